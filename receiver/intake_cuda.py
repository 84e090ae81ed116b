"""Taking in passes over device queues that lose frames: what the receive kernel misses is asked for again.

When to ask for what follows the rules of the CPU's window.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from receiver.accumulate_cuda import ReceiveKernel
from receiver.answers import Answers, Standing
from receiver.check import Count
from receiver.window_cuda import DeviceWindows, Look
from streamdsb.errors import RunFailed
from streamdsb.layout import Layout
from streamdsb.queues.feedback_line import AnswerLine

_SETTLED_S = 0.001
"""What has come may wait so long for a worker before it is taken for missing."""
_NAP_S = 0.2e-3


class _Lane:
    """One queue: where it stands, and what to say back."""

    def __init__(self, expected: int, answers: Answers, line: AnswerLine) -> None:
        self.expected = expected
        self.answers = answers
        self._line = line
        self._settled = 0
        self._settling = (0.0, 0)
        self._repeats = 0

    def answer(self, now: float, look: Look, passes: int, accepted: int, ended: bool) -> None:
        """Say back what `look` asks for in the last of `passes` passes; `accepted` frames of it have come."""
        start = (passes - 1) * self.expected
        since, highest = self._settling
        if now >= since + _SETTLED_S:
            self._settled, self._settling = highest, (now, look.highest)
        standing = Standing(
            base=self._in_pass(look.base - start),
            highest=self._in_pass(self._settled - start),
            accepted=accepted,
            ended=ended,
            repeated=look.repeats > self._repeats,
        )

        def missing(first: int, stop: int) -> np.ndarray:
            return look.missing(first + start, stop + start) - np.array([start, 0])

        def fault() -> str:
            return f"{self.answers.name}: {accepted} of {self.expected} frames were added"

        frame = self.answers.answer(now, standing, missing, fault)
        if frame is not None:
            self._repeats = look.repeats
            self._line.answer(frame)

    def _in_pass(self, sequence: int) -> int:
        return min(max(sequence, 0), self.expected)


class LossyIntake:
    """Sees to it that a receive kernel gets every frame of each pass.

    window: frames a queue may have on the way; budget: as of Answers; lines: to the senders, one a queue.
    """

    def __init__(
        self, layout: Layout, run: int, window: int, budget: float, lines: Sequence[AnswerLine]
    ) -> None:
        self.windows = DeviceWindows(layout.queues, window)
        """To make the kernel with."""
        self._lanes = []
        for queue, line in enumerate(lines):
            expected = layout.frames_on(queue)
            self._lanes.append(_Lane(expected, Answers(run, queue, expected, window, budget), line))

    @property
    def resent(self) -> int:
        """Frames of the current pass that were asked for again."""
        return sum(lane.answers.resent for lane in self._lanes)

    def begin_pass(self, pass_index: int) -> None:
        """Speak of `pass_index` from now on."""
        for lane in self._lanes:
            lane.answers.begin_pass(pass_index)

    def step(self, kernel: ReceiveKernel, passes: int) -> None:
        """Look at the kernel and say back what is to be said; `passes`: since its start, with this one.

        Raises RunFailed if the kernel is gone or too much was asked for again.
        """
        ended, accepted = kernel.ended, kernel.counts[:, Count.ACCEPTED]
        looks = self.windows.look(kernel.check)
        for queue, (lane, look) in enumerate(zip(self._lanes, looks, strict=True)):
            come = int(accepted[queue]) - (passes - 1) * lane.expected
            lane.answer(time.monotonic(), look, passes, come, ended[queue] >= passes)

    def take_in(
        self,
        kernel: ReceiveKernel,
        pass_index: int,
        passes: int,
        timeout_s: float,
        look_up: Callable[[], None],
    ) -> None:
        """Return once the kernel has drained the pass; `look_up` may raise to call it off.

        Raises RunFailed if the kernel is gone, if no frame is accepted for `timeout_s` seconds, or if too
        much was asked for again.
        """
        self.begin_pass(pass_index)
        moved, accepted, drained = time.monotonic(), -1, False
        while not drained:
            drained = kernel.drained >= passes
            kernel.check()
            look_up()
            self.step(kernel, passes)
            now, before, accepted = time.monotonic(), accepted, int(kernel.counts[:, Count.ACCEPTED].sum())
            if accepted != before:
                moved = now
            elif now - moved > timeout_s:
                raise RunFailed(f"no frame came for {timeout_s:g} s (stream.timeout_s): {kernel.describe()}")
            time.sleep(_NAP_S)
