"""Queue kind `peer`: rings of frame slots in the memory of the receiver's GPU.

A sender on the same device, on another one (through CUDA IPC) or on the host writes frames into the slots in
place.  Each queue has `places` places of 64 slots; two words a place say which burst is ready there and which
may be composed there next, so no burst is overwritten before it was read and none is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamdsb import cuda
from streamdsb.layout import FRAME_BYTES

BURST_FRAMES = 64
"""Slots of a place: the frames of one 64-row group in one column block."""

PLACE_BYTES = BURST_FRAMES * FRAME_BYTES

PEER_QUEUE = np.dtype([(name, "u8") for name in ("frames", "ready", "credit", "places", "next", "place")])
"""struct PeerQueue of peer_queue.cuh."""


@dataclass(frozen=True)
class PeerHandle:
    """What another process needs to write into a ring on this host."""

    memory: bytes
    offset: int
    queues: int
    places: int


class PeerRing:
    """The rings of all queues in one piece of device memory: ready words, credit words, then the slots."""

    def __init__(self, queues: int, places: int, base: int, keep: Any) -> None:
        self.queues = queues
        self.places = places
        self._base = base
        self._keep = keep
        self._words = queues * places

    @classmethod
    def allocate(cls, queues: int, ring_bytes: int) -> PeerRing:
        """Rings of `ring_bytes` in all, in whole places, on the current device, ready for burst 0."""
        places = max(ring_bytes // (queues * PLACE_BYTES), 2)
        memory = cuda.zeros(cls._control_bytes(queues, places) + queues * places * PLACE_BYTES, np.uint8)
        ring = cls(queues, places, memory.data.ptr, memory)
        credit = np.tile(np.arange(places, dtype=np.uint64), queues)
        memory[credit.nbytes : 2 * credit.nbytes].set(credit.view(np.uint8))
        return ring

    @staticmethod
    def _control_bytes(queues: int, places: int) -> int:
        return -(-2 * 8 * queues * places // FRAME_BYTES) * FRAME_BYTES

    @property
    def nbytes(self) -> int:
        """Device memory of the ring."""
        return self._control_bytes(self.queues, self.places) + self._words * PLACE_BYTES

    def queue(self, index: int) -> tuple[int, int, int, int, int, int]:
        """The fields of PEER_QUEUE for one queue."""
        words = self._base + 8 * self.places * index
        slots = self._base + self._control_bytes(self.queues, self.places) + self.places * PLACE_BYTES * index
        return slots, words, words + 8 * self._words, self.places, 0, 0

    def export(self) -> PeerHandle:
        """A handle with which another process on this host opens the ring."""
        import cupy

        memory = cupy.cuda.runtime.ipcGetMemHandle(self._base)
        return PeerHandle(bytes(memory), 0, self.queues, self.places)

    @classmethod
    def open(cls, handle: PeerHandle) -> PeerRing:
        """The ring that another process exported; its memory may be on another device."""
        import cupy

        base = cupy.cuda.runtime.ipcOpenMemHandle(handle.memory)
        return cls(handle.queues, handle.places, base + handle.offset, None)

    def close(self) -> None:
        """Give back what `open` mapped."""
        import cupy

        if self._keep is None:
            cupy.cuda.runtime.ipcCloseMemHandle(self._base)
