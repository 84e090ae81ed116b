"""A line of timings.jsonl: the same keys whether one receiver took the pass in or several."""

from __future__ import annotations

from typing import Any

from streamdsb.layout import PAYLOAD_BYTES
from streamdsb.messages import PassReceived


def timing(
    received: PassReceived,
    *,
    update_s: float,
    exchange_s: float,
    checkpoint_wait_s: float,
    total_s: float,
    restarted: int,
) -> dict[str, Any]:
    """Of a pass whose frames, of all receivers together, `received` tells; exchange_s is part of update_s.

    restarted: how often it was begun again.
    """
    payload = received.frames * PAYLOAD_BYTES
    return {
        "pass": received.pass_index,
        "receive_s": round(received.receive_s, 6),
        "drain_s": round(received.drain_s, 6),
        "update_s": round(update_s, 6),
        "exchange_s": round(exchange_s, 6),
        "checkpoint_wait_s": round(checkpoint_wait_s, 6),
        "total_s": round(total_s, 6),
        "payload_bytes": payload,
        "gbps": round(payload * 8e-9 / received.receive_s, 3),
        "frames": received.frames,
        "dropped": received.dropped,
        "duplicated": received.duplicated,
        "rejected": sum(received.rejected.values()),
        "corrupt": received.rejected.get("corrupt", 0),
        "late": received.rejected.get("late", 0),
        "overrun": received.rejected.get("overrun", 0),
        "resent": received.resent,
        "restarted": restarted,
    }
