"""How the time of a pass depends on the number of receivers: a model, for planning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.plan import duration_text
from streamdsb.layout import GROUP_ROWS, MAX_RECEIVERS, Layout, ceil_div

_COLLECTIVES = 3
"""In each pass: energies, signs, checksums."""
_PAYS = 1.1
"""Twice the receivers pay as long as they make a pass this many times faster."""


@dataclass(frozen=True)
class Network:
    """What a pass meets: rates in bytes a second, seconds, and updates of one spin a second."""

    receiver_rate: float
    """Payload that each receiver takes in."""
    latency_s: float
    """Of one message between two receivers."""
    bandwidth: float
    """Of the signs, into each receiver."""
    update_rate: float
    """Of each receiver."""


@dataclass(frozen=True)
class PassTime:
    """Seconds of one pass with this many receivers, part by part."""

    receivers: int
    stream_s: float
    """The payload of the receiver with the most rows, V / (G R) if they divide evenly."""
    exchange_s: float
    """3 ceil(log2 G) latencies, and (G - 1) / G of n B / 8 bytes of signs."""
    update_s: float
    """n B / G updates."""

    @classmethod
    def of(cls, layout: Layout, receivers: int, network: Network) -> PassTime:
        groups = ceil_div(layout.n, GROUP_ROWS)
        working = min(receivers, groups)
        share = ceil_div(groups, working) / groups
        steps = math.ceil(math.log2(working))
        sign_bytes = layout.bitmap_words * 8 * layout.replicas
        return cls(
            receivers,
            share * layout.payload_per_pass / network.receiver_rate,
            _COLLECTIVES * steps * network.latency_s
            + sign_bytes * (working - 1) / working / network.bandwidth,
            share * layout.n * layout.replicas / network.update_rate,
        )

    @property
    def total_s(self) -> float:
        return self.stream_s + self.exchange_s + self.update_s


def scaling_lines(layout: Layout, receivers: Sequence[int], network: Network) -> list[str]:
    """A table, a line for each number of receivers, and where more of them stop paying."""
    alone = PassTime.of(layout, 1, network).total_s
    lines = ["receivers        pass      stream    exchange      update   times faster  efficiency"]
    for count in receivers:
        time = PassTime.of(layout, count, network)
        faster = alone / time.total_s
        parts = (time.total_s, time.stream_s, time.exchange_s, time.update_s)
        columns = "".join(f"{duration_text(part):>12}" for part in parts)
        lines.append(f"{count:>9,}{columns[1:]}{faster:>15.2f}{faster / count:>11.0%} ")
    enough = most_that_pay(layout, network)
    if enough == MAX_RECEIVERS:
        lines.append(f"up to {enough:,} receivers, the most there can be, twice as many pay")
    else:
        lines.append(
            f"beyond about {enough:,} receiver{'s'[: enough - 1]}, twice as many make a pass less than"
            f" {_PAYS - 1:.0%} faster"
        )
    return [line.rstrip() for line in lines]


def most_that_pay(layout: Layout, network: Network) -> int:
    """A power of two of receivers, of which twice as many would make a pass less than 10% faster.

    65,536 if twice as many would pay even then.
    """
    enough = 1
    while enough < MAX_RECEIVERS and _pays(layout, enough, network):
        enough *= 2
    return enough


def _pays(layout: Layout, receivers: int, network: Network) -> bool:
    now, twice = (PassTime.of(layout, count, network).total_s for count in (receivers, 2 * receivers))
    return now >= _PAYS * twice
