"""What a receiver says back on a queue that loses frames: how far it is, what is missing, that it has all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from receiver.requests import FindMissing, Requests
from streamdsb.errors import RunFailed
from streamdsb.feedback import FeedbackWriter

_SHORTEST_SILENCE_S = 0.002
"""How long a sender that repeats itself waits for an answer, so that not every frame gets one."""


@dataclass(frozen=True)
class Standing:
    """How far a queue has come in its pass."""

    base: int
    """The first missing frame."""
    highest: int
    """The one after the last that has been seen."""
    accepted: int
    """Frames that were added."""
    ended: bool
    """True once the sender's PASS_END and every frame before it have come."""
    repeated: bool
    """True if the sender has repeated itself since the last answer."""


class Answers:
    """Decides for one queue when to say what, so that all frames come and the sender knows it.

    expected: frames of a pass; window: frames that may be on the way at most; budget: frames that may be
    asked for again in a pass, as a multiple of the frames of the pass.
    """

    def __init__(self, run: int, queue: int, expected: int, window: int, budget: float) -> None:
        self._queue = queue
        self._expected = expected
        self._window = window
        self._most_resent = int(budget * expected) + 4 * window
        self._writer = FeedbackWriter(run, queue)
        self._requests = Requests(expected)
        self.begin_pass(0)

    def begin_pass(self, pass_index: int) -> None:
        """Speak of `pass_index` from now on."""
        self._pass = pass_index
        self._acknowledged = 0
        self._answered = 0.0
        self._pass_acknowledged = False
        self._requests.begin_pass()
        self.resent = 0
        """Frames that were asked for again in the current pass."""

    @property
    def name(self) -> str:
        """The pass and the queue it speaks of."""
        return f"pass {self._pass}, queue {self._queue}"

    def answer(
        self, now: float, standing: Standing, missing: FindMissing, fault: Callable[[], str | None]
    ) -> np.ndarray | None:
        """What to send back, uint64 (1, 512), or None; now: seconds on any clock that only goes on.

        Raises RunFailed, beginning with what `fault` says, if the budget is spent.
        """
        if standing.ended:
            if self._pass_acknowledged and not standing.repeated:
                return None
            self._pass_acknowledged = True
            return self._writer.pass_ack(self._pass, self._expected)
        base = standing.base
        ranges = self._requests.due(now, base, standing.highest, standing.accepted, missing)
        if len(ranges):
            self.resent += int(ranges[:, 1].sum())
        if self.resent > self._most_resent:
            raise RunFailed(f"{fault()}: {self.resent} frames were asked for again (stream.resend_budget)")
        is_asked = standing.repeated and now >= self._answered + _SHORTEST_SILENCE_S
        if not len(ranges) and not is_asked and base < self._acknowledged + self._window // 4:
            return None
        self._acknowledged, self._answered = base, now
        return self._writer.resend(self._pass, base, ranges)
