"""Checkpoints of a run with several receivers: each rank saves its own rows, any ranks can take them over."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from streamdsb import checkpoint
from streamdsb.layout import RowRange
from streamdsb.worker import Background


class RankCheckpoints:
    """Writes the state of one rank's rows while the next pass goes on.

    run_directory: the same for all ranks, on a file system that they share.
    """

    def __init__(self, run_directory: Path, rows: RowRange) -> None:
        self._run_directory = run_directory
        self._rows = rows
        self._saving: Background | None = None
        self.sizes: list[int] = []
        """Bytes of each file that was written."""
        self.seconds: list[float] = []
        """How long each took."""

    def save(
        self, header: checkpoint.Header, state: tuple[np.ndarray, np.ndarray], best_signs: np.ndarray
    ) -> None:
        """Begin to write positions and momenta, float32 (B, rows), which stand still until `wait`."""
        own = {"first_row": self._rows.start, "last_row": self._rows.stop}
        saved = checkpoint.Checkpoint(header.model_copy(update=own), *state, best_signs.copy())
        path = checkpoint.path_of(self._run_directory, header.next_pass, self._rows)
        self.wait()
        self._saving = Background(self._writing(path, saved))

    def _writing(self, path: Path, saved: checkpoint.Checkpoint) -> Callable[[], None]:
        def write() -> None:
            start = time.perf_counter()
            self.sizes.append(checkpoint.save(path, saved))
            self.seconds.append(time.perf_counter() - start)

        return write

    def wait(self) -> float:
        """Seconds until what is being written is on disk; raises what went wrong with it."""
        start = time.perf_counter()
        if self._saving is not None:
            self._saving.wait()
            self._saving = None
        return time.perf_counter() - start
