"""Exactly once on the GPU: the twin of window, whose bits the receive kernel keeps.

The kernel tells new frames from others and adds each once; here the host looks at what it has added.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamdsb import cuda
from streamdsb.control_words import ControlWords
from streamdsb.errors import RunFailed
from streamdsb.feedback import MAX_RANGES
from streamdsb.layout import MAX_QUEUES, ceil_div

WINDOW = np.dtype([(name, "u8") for name in ("base", "highest", "repeats", "seen", "added")])
"""struct Window of job.cuh."""

_FEWEST_WORDS = 64
_LOOK_TIMEOUT_S = 5.0


def window_words(frames: int) -> int:
    """64-bit words of a window for `frames` frames on the way: a power of two, one more than they fill."""
    return max(_FEWEST_WORDS, 1 << ceil_div(frames, 64).bit_length())


@dataclass(frozen=True)
class Look:
    """What the kernel shows of one queue; frames are numbered through all passes since its start."""

    base: int
    """The first frame that is not added."""
    highest: int
    """The one after the last that has come."""
    repeats: int
    """Frames that came again, and PASS_ENDs, since the start."""
    added: np.ndarray
    """Whether frames from the base on are added, a bit each, uint64 (words,): f in word f / 64 % words."""

    def missing(self, first: int, stop: int) -> np.ndarray:
        """Frames from `first` to `stop` - 1 not added yet: MAX_RANGES ranges at most, int64 (ranges, 2)."""
        frames = np.arange(max(first, self.base), max(stop, self.base))
        words = len(self.added)
        there = self.added[frames // 64 % words] >> (frames % 64).astype(np.uint64) & np.uint64(1)
        gone = (there == 0) | (frames >= self.base + 64 * (words - 1))
        edges = np.flatnonzero(np.diff(gone.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)[:MAX_RANGES]
        return np.stack([edges[:, 0] + max(first, self.base), edges[:, 1] - edges[:, 0]], axis=1)


class DeviceWindows:
    """The windows of a receive kernel's lossy queues, in device memory, and the host's looks at them.

    window: frames a queue may have on the way at most.
    """

    def __init__(self, queues: int, window: int) -> None:
        self._queues = queues
        self.words = window_words(window)
        self._bits = cuda.zeros((queues, 2, self.words), np.uint64)
        windows = np.zeros(queues, WINDOW)
        for queue in range(queues):
            seen = self._bits.data.ptr + 16 * self.words * queue
            windows[queue] = (0, 0, 0, seen, seen + 8 * self.words)
        self._windows = cuda.upload(windows)
        shown = [("base", "u8"), ("highest", "u8"), ("repeats", "u8"), ("unused", "u8")]
        queue_type = np.dtype([*shown, ("added", "u8", self.words)])
        head = [("look", "u8", 8), ("shown", "u8", 8)]
        self._looks = ControlWords(np.dtype([*head, ("queues", queue_type, MAX_QUEUES)]))
        self._look = 0

    @property
    def looks_address(self) -> int:
        """Where the kernel finds the host's looks."""
        return self._looks.address

    def address(self, queue: int) -> int:
        """The device address of a queue's struct Window."""
        return int(self._windows.data.ptr) + WINDOW.itemsize * queue

    def look(self, check: Callable[[], None]) -> list[Look]:
        """Every queue's window as it is now; `check` may raise why the kernel does not show it."""
        self._look += 1
        self._looks["look"][0] = self._look
        deadline = time.monotonic() + _LOOK_TIMEOUT_S
        while not self._looks.reached("shown", self._look):
            check()
            if time.monotonic() > deadline:
                raise RunFailed(f"the receive kernel did not show its windows within {_LOOK_TIMEOUT_S:g} s")
        return [
            Look(int(q["base"]), int(q["highest"]), int(q["repeats"]), q["added"].copy())
            for q in self._looks["queues"][: self._queues]
        ]
