"""Queue kind `peer`: rings of frame slots in the memory of the receiver's GPU.

A sender on the same device, on another one (through CUDA IPC) or on the host writes frames into the slots in
place.  Each queue has `places` places of 64 slots; two words a place say which burst is ready there and which
may be composed there next, so no burst is overwritten before it was read and none is lost.
"""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar, Protocol
from weakref import WeakValueDictionary

import numpy as np

from streamdsb import cuda, messages
from streamdsb.errors import RunFailed
from streamdsb.layout import FRAME_BYTES

BURST_FRAMES = 64
"""Slots of a place: the frames of one 64-row group in one column block."""

PLACE_BYTES = BURST_FRAMES * FRAME_BYTES

PEER_QUEUE = np.dtype([(name, "u8") for name in ("frames", "ready", "credit", "places", "next", "place")])
"""struct PeerQueue of peer_queue.cuh."""


class DeviceRing(Protocol):
    """The rings of frame slots of a kind of device queue, in the memory of the receiver's GPU."""

    kind: str
    """The type in CUDA that the kernels are compiled for."""
    fields: np.dtype
    """That type's members."""
    window: int
    """Frames a queue may have on the way, if it may lose them; else 0."""
    queues: int
    places: int
    """Times 64 slots that a queue has."""
    spared: int
    """Multiprocessors of the sender's device that its kernel leaves to another one."""
    receiving: threading.Event
    """Set once the receive kernel runs, for a generator in the same process."""

    @property
    def is_here(self) -> bool:
        """True if this process allocated the ring."""

    @property
    def slots(self) -> int:
        """The address of the first slot of queue 0; those of the other queues follow."""

    def queue(self, index: int) -> tuple[int, ...]:
        """What to put into `fields` for one queue."""

    def free(self) -> None:
        """Give the device memory of a ring that this process allocated back."""


class PeerRing:
    """The rings of all queues in one piece of device memory: ready words, credit words, then the slots."""

    kind = "PeerQueue"
    fields = PEER_QUEUE
    window = 0
    """Frames that may be on the way; what is not lossy needs no such bound."""
    spared = 0

    _here: ClassVar[WeakValueDictionary[int, PeerRing]] = WeakValueDictionary()
    """Rings that this process allocated, by address: IPC does not open memory where it was allocated."""

    def __init__(
        self, queues: int, places: int, base: int, memory: Any, credit: np.ndarray | None = None
    ) -> None:
        self.queues = queues
        self.places = places
        self.host_credit = credit
        """The credit words, uint64 (queues, places), where the host is the sender; else None."""
        self.receiving = threading.Event()
        """Set once the receive kernel runs, for a generator in the same process."""
        self._base = base
        self._memory = memory
        self._allocated = memory is not None
        self._words = queues * places

    @classmethod
    def allocate(cls, queues: int, ring_bytes: int, host_sends: bool = False) -> PeerRing:
        """Rings of `ring_bytes` in all, in whole places, on the current device, ready for burst 0."""
        places = max(ring_bytes // (queues * PLACE_BYTES), 2)
        memory = cuda.zeros(cls._control_bytes(queues, places) + queues * places * PLACE_BYTES, np.uint8)
        credit = np.tile(np.arange(places, dtype=np.uint64), queues)
        host_credit = None
        if host_sends:
            import cupyx

            host_credit = cupyx.zeros_pinned((queues, places), np.uint64)
            host_credit.reshape(-1)[:] = credit
        memory[credit.nbytes : 2 * credit.nbytes].set(credit.view(np.uint8))
        ring = cls(queues, places, memory.data.ptr, memory, host_credit)
        cls._here[ring._base] = ring
        return ring

    @staticmethod
    def _control_bytes(queues: int, places: int) -> int:
        return -(-2 * 8 * queues * places // FRAME_BYTES) * FRAME_BYTES

    @property
    def is_here(self) -> bool:
        """True if this process allocated the ring."""
        return self._allocated

    @property
    def nbytes(self) -> int:
        """Device memory of the ring."""
        return self._control_bytes(self.queues, self.places) + self._words * PLACE_BYTES

    @property
    def slots(self) -> int:
        """The address of the first slot of queue 0; those of the other queues follow."""
        return self._base + self._control_bytes(self.queues, self.places)

    def queue(self, index: int) -> tuple[int, int, int, int, int, int]:
        """The fields of PEER_QUEUE for one queue."""
        ready = self._base + 8 * self.places * index
        credit = ready + 8 * self._words
        if self.host_credit is not None:
            credit = cuda.address(self.host_credit) + 8 * self.places * index
        return self.slots + self.places * PLACE_BYTES * index, ready, credit, self.places, 0, 0

    def export(self) -> messages.DeviceRing:
        """What another process on this host, or another thread of this one, opens the ring by."""
        import cupy

        memory = bytes(cupy.cuda.runtime.ipcGetMemHandle(self._base))
        return messages.DeviceRing(
            memory=memory.hex(),
            process=os.getpid(),
            address=self._base,
            queues=self.queues,
            places=self.places,
        )

    @classmethod
    def open(cls, ring: messages.DeviceRing) -> PeerRing:
        """The ring that a process of this host exported; its memory may be on another device.

        Raises RunFailed if the current device cannot reach it.
        """
        if ring.process == os.getpid():
            return cls._here[ring.address]
        import cupy

        try:
            base = cupy.cuda.runtime.ipcOpenMemHandle(bytes.fromhex(ring.memory))
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise RunFailed(
                f"this GPU cannot write into the memory of the receiver's GPU: {error}"
            ) from error
        return cls(ring.queues, ring.places, base, None)

    def free(self) -> None:
        """Give the device memory of a ring that this process allocated back."""
        self._memory = None

    def close(self) -> None:
        """Unmap what `open` mapped; nothing for a ring of this process."""
        import cupy

        if not self.is_here:
            cupy.cuda.runtime.ipcCloseMemHandle(self._base)
