"""The way back of a device queue that loses frames: from the receiver's host to the generator's."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np


class AnswerLine(Protocol):
    """The receiver's end."""

    def answer(self, frames: np.ndarray) -> None:
        """Send control frames, uint64 (count, 512), back now; they may get lost."""


class FeedbackSource(Protocol):
    """The generator's end."""

    def feedback(self) -> np.ndarray | None:
        """Frames that came back, uint64 (count, >= 512), or None; valid until the next call."""


class FeedbackLine:
    """Both ends in one process."""

    def __init__(self) -> None:
        self._frames: deque[np.ndarray] = deque()

    def answer(self, frames: np.ndarray) -> None:
        self._frames.append(frames.copy())

    def feedback(self) -> np.ndarray | None:
        return self._frames.popleft() if self._frames else None
