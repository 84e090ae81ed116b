"""When to ask for missing frames, and when to ask again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from streamdsb.feedback import MAX_RANGES

_SHORTEST_PATIENCE_S = 0.002
_FIRST_PATIENCE_S = 0.02
_LONGEST_PATIENCE_S = 0.5
_BATCH_S = 0.002
"""New gaps are asked for together, this often at most."""

_NOTHING = np.empty((0, 2), np.int64)

FindMissing = Callable[[int, int], np.ndarray]
"""The ranges of missing frames from one sequence number to before another, int64 (<= MAX_RANGES, 2)."""


class Requests:
    """Asks for each gap once it shows, and again when it should have been filled long ago.

    expected: frames of a pass; behind the last nothing new comes that a request could wait for.
    How long that is follows from how long the other end took to fill gaps; it doubles while nothing comes.
    Times are in seconds on any clock that only goes on.
    """

    def __init__(self, expected: int | None = None) -> None:
        self._expected = expected
        self._patience_s = _FIRST_PATIENCE_S
        self.begin_pass()

    def begin_pass(self) -> None:
        """Forget what was asked for; what was learned of the other end stays."""
        self._asked: deque[tuple[float, int, int]] = deque()
        self._asked_up_to = 0
        self._timed: tuple[float, int] | None = None
        self._asked_at = -np.inf
        self._accepted = -1

    def due(self, now: float, base: int, highest: int, accepted: int, missing: FindMissing) -> np.ndarray:
        """The ranges to ask for now, int64 (<= MAX_RANGES, 2).

        base: the first missing frame; highest: the one after the last that has been seen; accepted: how many
        have come.
        """
        self._learn(now, missing)
        while self._asked and self._asked[0][2] <= base:
            self._asked.popleft()
        if self._asked and now >= self._asked[0][0] + self._patience_s:
            _, first, stop = self._asked.popleft()
            ranges, stop = self._find(max(first, base), stop, missing)
            if len(ranges):
                self._despair(accepted)
        else:
            first = max(base, self._asked_up_to)
            if now < self._asked_at + _BATCH_S and highest != self._expected:
                highest = first
            ranges, stop = self._find(first, max(first, highest), missing)
            self._asked_up_to = stop
            if len(ranges):
                self._asked_at = now
                self._timed = self._timed or (now, int(ranges[0, 0]))
        if len(ranges):
            self._asked.append((now, int(ranges[0, 0]), stop))
        return ranges

    def _find(self, first: int, stop: int, missing: FindMissing) -> tuple[np.ndarray, int]:
        """Missing ranges from `first` on, and where they end: before `stop` if there are too many."""
        if first >= stop:
            return _NOTHING, stop
        ranges = missing(first, stop)
        if len(ranges) == MAX_RANGES:
            end = int(ranges[-1].sum())
            if end < stop and stop <= self._asked_up_to:
                self._asked.appendleft((-np.inf, end, stop))
            stop = end
        return ranges, stop

    def _learn(self, now: float, missing: FindMissing) -> None:
        """Take the time that the other end needed, once the frame that is timed has come."""
        if self._timed is not None and not len(missing(self._timed[1], self._timed[1] + 1)):
            self._set_patience(self._patience_s / 2 + (now - self._timed[0]))
            self._timed = None

    def _despair(self, accepted: int) -> None:
        """Something was asked for in vain: whatever comes now may answer either request."""
        self._timed = None
        if accepted == self._accepted:
            self._set_patience(2 * self._patience_s)
        self._accepted = accepted

    def _set_patience(self, seconds: float) -> None:
        self._patience_s = min(max(seconds, _SHORTEST_PATIENCE_S), _LONGEST_PATIENCE_S)
