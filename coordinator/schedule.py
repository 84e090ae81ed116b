"""When the next checkpoint is due."""

from __future__ import annotations

import time

from streamdsb.config import Config


class SaveSchedule:
    """Tells at each pass boundary whether the state should be saved, as checkpoint.every has it."""

    def __init__(self, config: Config) -> None:
        self._passes, self._seconds = config.checkpoint.interval
        self._last_pass = config.solver.updates
        self._saved_at = time.monotonic()

    def is_due(self, next_pass: int) -> bool:
        """Whether to save the state that `next_pass` starts from; the clock starts anew if so."""
        if next_pass > self._last_pass:
            return False
        if self._passes is not None:
            return next_pass % self._passes == 0
        if self._seconds is None or time.monotonic() - self._saved_at < self._seconds:
            return False
        self._saved_at = time.monotonic()
        return True
