"""What a pass does to the replicas of a receiver, wherever they are held: the seam of the compute twins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from receiver.check import Count


class Receiver(ABC):
    """Takes in passes, measures and advances; CpuReceiver and CudaReceiver are the twins."""

    @property
    @abstractmethod
    def signs(self) -> np.ndarray:
        """The sign bitmaps of all replicas after the last update, uint64 (B, ceil(n / 64))."""

    @property
    @abstractmethod
    def state(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions and momenta of this receiver's rows, float32 (B, rows), for reading."""

    @abstractmethod
    def restore(self, positions: np.ndarray, momenta: np.ndarray) -> None:
        """Take over the state of a checkpoint, float32 (B, rows) each, before the first pass."""

    @abstractmethod
    def measure_rate(self) -> float:
        """Payload bytes a second that this process can add, nothing else going on."""

    @abstractmethod
    def receive_pass(self, pass_index: int) -> tuple[float, float]:
        """Take in a whole pass; the seconds until its last PASS_END and from there until all was added.

        Raises RunFailed if the pass does not count.
        """

    @abstractmethod
    def count_frames(self) -> Mapping[Count, int]:
        """Frames of the current pass by what happened to them, all queues together."""

    def count_resent(self) -> int:
        """Frames of the current pass that were asked for again, all queues together."""
        return 0

    @abstractmethod
    def measure(self, pass_index: int) -> list[int]:
        """2E of each replica for the signs that entered the pass that was taken in."""

    @abstractmethod
    def advance(self, pass_index: int) -> None:
        """The update that follows the pass that was measured."""

    def start(self) -> None:  # noqa: B027 - not every twin has to
        """The first pass is about to begin."""

    def stop(self) -> None:  # noqa: B027 - not every twin has to
        """No pass will follow."""

    def free(self) -> None:  # noqa: B027 - not every twin has to
        """Give back what was allocated: nothing will be asked any more."""
