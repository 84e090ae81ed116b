"""Device queue kind `gpunetio`: what its kernels are told of a queue, and the faults that they report."""

from __future__ import annotations

import numpy as np

from streamdsb.errors import RunFailed
from streamdsb.layout import FRAME_BYTES

SLOT_BYTES = FRAME_BYTES
WIRE_BYTES = FRAME_BYTES + 24
"""A frame on the link: with preamble, checksum and gap."""

_RECEIVER = ("fault", "receive_queue", "frames", "slots")
_SENDER = ("send_queue", "staging", "places", "state", "key", "addresses", "source", "frame_ps")
GPUNETIO_QUEUE = np.dtype([(name, "u8") for name in (*_RECEIVER, *_SENDER)])
"""struct GpunetioQueue of gpunetio_queue.cuh."""

SEND_STATE_WORDS = 3
"""64-bit words of its struct SendState."""

_FAULTS = {
    1: "the card could not send: a completion reports an error",
    2: "the card could not receive: a completion reports an error",
    3: "the card's library refused a send descriptor",
}
"""enum GpunetioFault."""


def check_faults(faults: np.ndarray) -> None:
    """RunFailed, with the number of the queue, if a kernel reported a fault of the card; uint64 (queues,)."""
    for queue, fault in enumerate(faults.tolist()):
        if fault:
            raise RunFailed(f"queue {queue}: {_FAULTS.get(fault, f'fault {fault} of the card')}")


def source_address(mac: bytes, queue: int) -> bytes:
    """The source address of a queue's frames: locally administered, its first byte tells the queue."""
    return bytes([0x02 + 16 * queue]) + mac[1:]


def address_words(destination: bytes, source: bytes) -> tuple[int, int]:
    """The first 12 bytes of a frame as GPUNETIO_QUEUE has them: 8 bytes, then 4."""
    both = destination + source
    return int.from_bytes(both[:8], "little"), int.from_bytes(both[8:12], "little")


def frame_picoseconds(pace_gbps: float | None, queues: int) -> int:
    """What a frame of each of `queues` queues takes if all together send `pace_gbps` Gb/s; 0: no pace."""
    return 0 if pace_gbps is None else round(8000 * WIRE_BYTES * queues / pace_gbps)
