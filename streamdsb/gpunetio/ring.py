"""Both ends of queues of kind `gpunetio` on network cards: what the resident kernels are given.

Receiver and generator each open their own card, tell each other its Ethernet address, and make their queues.
An end has nothing of the other: a receiver's queues cannot send, a sender's cannot receive.
"""

from __future__ import annotations

import threading

import numpy as np

from streamdsb.control_words import ControlWords
from streamdsb.frame import ETHERTYPE
from streamdsb.gpunetio.library import Card, CardQueue
from streamdsb.gpunetio.queue import (
    GPUNETIO_QUEUE,
    SEND_STATE_WORDS,
    SLOT_BYTES,
    address_words,
    check_faults,
    frame_picoseconds,
    source_address,
)
from streamdsb.layout import MAX_QUEUES
from streamdsb.queues.peer import BURST_FRAMES, PLACE_BYTES

PLACES = 64
"""Bursts of a send queue that may be composed or on the way at once: 4096 descriptors."""

_FIRST_CONSISTENT = 90
"""From this compute capability on a GPU sees a frame before its completion without the card's help."""


class _CardEnd:
    """What both ends have: a card, and queues of which the kernels report faults.

    The queues' memories do not follow each other, so `places` is a queue's share of the first one's: whoever
    tries how fast a kernel is in places * queues places from `slots` on stays in there.
    """

    kind = "GpunetioQueue"
    fields = GPUNETIO_QUEUE
    is_here = False
    """The other end is another process, or on another GPU."""
    spared = 0

    def __init__(self, card: Card, queues: int, window: int, places: int) -> None:
        self.queues = queues
        self.places = places // queues
        self.window = window
        self.receiving = threading.Event()
        self._card = card
        self._made: list[CardQueue] = []
        self._faults = ControlWords(np.dtype([("fault", "u8", MAX_QUEUES)]))

    def _fields(self, index: int, **values: int) -> tuple[int, ...]:
        known = {"fault": self._faults.address + 8 * index} | values
        return tuple(known.get(name, 0) for name in GPUNETIO_QUEUE.names or ())

    @property
    def slots(self) -> int:
        """The address of the memory of queue 0."""
        return self._made[0].memory

    def check(self) -> None:
        """RunFailed if a kernel reported a fault of the card."""
        check_faults(self._faults["fault"][: self.queues])

    def free(self) -> None:
        """Take queues and card down, after the kernels that use them have ended."""
        self._card.close()


class CardReceiver(_CardEnd):
    """The receiver's end: cyclic queues of `slots` slots, to which frames come from now on.

    capability: the GPU's compute capability, such as 90.
    """

    def __init__(self, card: Card, queues: int, slots: int, window: int, capability: int) -> None:
        super().__init__(card, queues, window, slots // BURST_FRAMES)
        self._slots = slots
        consistent = capability >= _FIRST_CONSISTENT
        self._made = [card.receive_queue(slots, SLOT_BYTES, consistent) for _ in range(queues)]
        card.steer()

    def queue(self, index: int) -> tuple[int, ...]:
        """The fields of GPUNETIO_QUEUE for one queue."""
        made = self._made[index]
        return self._fields(index, receive_queue=made.handle, frames=made.memory, slots=self._slots)

    @property
    def steered(self) -> list[int]:
        """Frames that came for each queue, whether or not it had room for them."""
        return [self._card.steered(index) for index in range(self.queues)]


class CardSender(_CardEnd):
    """The generator's end: queues towards the card with the Ethernet address `peer`.

    pace_gbps: what all queues together send at most, Gb/s on the link; None for no pace.  receiving: of the
    receiver's end, if that is in this process on the same GPU.
    """

    def __init__(
        self,
        card: Card,
        queues: int,
        window: int,
        peer: bytes,
        pace_gbps: float | None = None,
        receiving: threading.Event | None = None,
    ) -> None:
        from streamdsb import cuda

        super().__init__(card, queues, window, PLACES)
        if receiving is not None:
            self.is_here, self.receiving = True, receiving
        self._frame_ps = frame_picoseconds(pace_gbps, queues)
        self._peer = peer
        self._mac = card.mac
        self._states = cuda.zeros((queues, SEND_STATE_WORDS), np.uint64)
        self._made = [card.send_queue(PLACES * BURST_FRAMES, PLACES * PLACE_BYTES) for _ in range(queues)]

    def queue(self, index: int) -> tuple[int, ...]:
        """The fields of GPUNETIO_QUEUE for one queue."""
        made = self._made[index]
        addresses, source = address_words(self._peer, source_address(self._mac, index))
        return self._fields(
            index,
            send_queue=made.handle,
            staging=made.memory,
            places=PLACES,
            state=int(self._states.data.ptr) + 8 * SEND_STATE_WORDS * index,
            key=made.key,
            addresses=addresses,
            source=source,
            frame_ps=self._frame_ps,
        )


def open_card(nic: str, device: int) -> Card:
    """The card at PCI address `nic`, for the current CUDA device, number `device`."""
    import cupy

    address = str(cupy.cuda.Device(device).pci_bus_id)
    return Card(nic, address, ETHERTYPE)
