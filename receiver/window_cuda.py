"""Exactly once on the GPU: the twin of window, whose bits the receive kernel keeps.

The kernel tells new frames from others and adds each once; here the host looks at what it has added and asks
for the rest, by the rules of the CPU's window.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from receiver.answers import Answers, Standing
from streamdsb import cuda
from streamdsb.control_words import ControlWords
from streamdsb.errors import RunFailed
from streamdsb.feedback import MAX_RANGES
from streamdsb.layout import MAX_QUEUES, Layout, ceil_div
from streamdsb.queues.feedback_line import AnswerLine

WINDOW = np.dtype([(name, "u8") for name in ("base", "highest", "repeats", "seen", "added")])
"""struct Window of job.cuh."""

_FEWEST_WORDS = 64
_LOOK_TIMEOUT_S = 5.0
_NAP_S = 0.5e-3


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


class _Lane:
    """One queue: where it stands, and what to say back."""

    def __init__(self, expected: int, answers: Answers, line: AnswerLine) -> None:
        self.expected = expected
        self.answers = answers
        self._line = line
        self._highest = 0
        self._repeats = 0

    def answer(self, now: float, look: Look, start: int, accepted: int, ended: bool, fault: str) -> bool:
        """Say back what `look` asks for, of the pass whose first frame has number `start`."""
        # What came since the look before may still wait for a worker; only what is older is missing.
        highest, self._highest = self._highest, look.highest
        standing = Standing(
            base=self._in_pass(look.base, start),
            highest=self._in_pass(highest, start),
            accepted=accepted,
            ended=ended,
            repeated=look.repeats > self._repeats,
        )

        def missing(first: int, stop: int) -> np.ndarray:
            return look.missing(first + start, stop + start) - np.array([start, 0])

        frame = self.answers.answer(now, standing, missing, lambda: fault)
        if frame is not None:
            self._repeats = look.repeats
            self._line.answer(frame)
        return frame is not None

    def _in_pass(self, number: int, start: int) -> int:
        return min(max(number - start, 0), self.expected)


class LossyIntake:
    """Sees to it that a receive kernel gets every frame of a pass, over lossy queues."""

    def __init__(
        self, layout: Layout, run: int, window: int, budget: float, lines: Sequence[AnswerLine]
    ) -> None:
        self.windows = DeviceWindows(layout.queues, window)
        self._lanes = [
            _Lane(layout.frames_on(queue), Answers(run, queue, layout.frames_on(queue), window, budget), line)
            for queue, line in enumerate(lines)
        ]

    @property
    def resent(self) -> int:
        """Frames of the current pass that were asked for again."""
        return sum(lane.answers.resent for lane in self._lanes)

    def begin_pass(self, pass_index: int) -> None:
        """Speak of `pass_index` from now on."""
        self._pass = pass_index
        for lane in self._lanes:
            lane.answers.begin_pass(pass_index)

    def answer(
        self,
        now: float,
        passes: int,
        accepted: Sequence[int],
        ended: Sequence[int],
        check: Callable[[], None],
    ) -> None:
        """Look at the kernel and say back what is to be said.

        passes: since the start, with this one; accepted: frames that each queue has added since then; ended:
        passes that each has ended.  Raises RunFailed if too much was asked for again.
        """
        for queue, (lane, look) in enumerate(zip(self._lanes, self.windows.look(check), strict=True)):
            start = (passes - 1) * lane.expected
            come = int(accepted[queue]) - start
            fault = f"pass {self._pass}, queue {queue}: {come} of {lane.expected} frames were added"
            lane.answer(now, look, start, come, ended[queue] >= passes, fault)


def nap() -> None:
    """Let the kernel get on before the next look."""
    time.sleep(_NAP_S)
