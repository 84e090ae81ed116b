"""Device queue kind `faulty`, for tests: it loses, repeats, delays, alters and overwrites frames on purpose.

It stands for a network card that writes into a cyclic buffer of the receiver's GPU, and shows that the
resident kernels add every frame exactly once over such a queue.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from streamdsb import cuda
from streamdsb.hashing import Domain, key_of
from streamdsb.layout import FRAME_BYTES
from streamdsb.queues.feedback_line import FeedbackLine
from streamdsb.queues.peer import BURST_FRAMES, PLACE_BYTES

_WORDS = ("frames", "ready", "arrived", "slots", "staging", "vacant", "places", "key")
_RATES = ("lose", "repeat", "delay", "alter")
FAULTY_QUEUE = np.dtype([(name, "u8") for name in (*_WORDS, *_RATES, "next")])
"""struct FaultyQueue of faulty_queue.cuh."""


@dataclass(frozen=True)
class Faults:
    """What becomes of frames on their way, each as a share of them from 0 to 1."""

    lose: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0
    alter: float = 0.0
    seed: int = 1

    @property
    def rates(self) -> list[int]:
        """Of 65,536, in the order of struct FaultyQueue."""
        return [round(65_536 * rate) for rate in (self.lose, self.repeat, self.delay, self.alter)]


class FaultyRing:
    """The rings of all queues, and the places where frames are composed, on the current device.

    slots: frames that a queue's ring holds, a power of two; window: frames that may be on the way, a multiple
    of 64; places: bursts of a queue that may be composed at once.
    """

    kind = "FaultyQueue"
    fields = FAULTY_QUEUE
    is_here = True
    spared = 0

    def __init__(
        self, queues: int, slots: int, window: int, faults: Faults | None = None, places: int = 32
    ) -> None:
        self.queues = queues
        self.window = window
        self.places = slots // BURST_FRAMES
        self.lines = [FeedbackLine() for _ in range(queues)]
        self.receiving = threading.Event()
        self._ring_slots = slots
        self._faults = faults or Faults()
        self._staging_places = places
        self._frames = cuda.zeros((queues, slots * FRAME_BYTES), np.uint8)
        self._staging = cuda.zeros((queues, places * PLACE_BYTES), np.uint8)
        words = np.zeros((queues, slots + 1 + places), np.uint64)
        words[:, slots + 1 :] = np.arange(places)
        self._words = cuda.upload(words)

    @property
    def slots(self) -> int:
        """The address of the first slot of queue 0; those of the other queues follow."""
        return int(self._frames.data.ptr)

    def queue(self, index: int) -> tuple[int, ...]:
        """The fields of FAULTY_QUEUE for one queue."""
        slots, places = self._ring_slots, self._staging_places
        ready = int(self._words.data.ptr) + 8 * (slots + 1 + places) * index
        key = int(key_of(8 * self._faults.seed + index, Domain.RANDOM_COUPLINGS))
        return (
            self.slots + slots * FRAME_BYTES * index,
            *(ready, ready + 8 * slots, slots),
            int(self._staging.data.ptr) + places * PLACE_BYTES * index,
            *(ready + 8 * (slots + 1), places, key),
            *self._faults.rates,
            0,
        )

    def free(self) -> None:
        """Give the device memory back."""
        del self._frames, self._staging, self._words
