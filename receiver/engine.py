"""The receiver: takes in the frames of each pass, then measures and advances the replicas."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from receiver.check import Count
from receiver.update_cpu import checksum
from streamdsb import checkpoint
from streamdsb.config import Config
from streamdsb.errors import RunFailed
from streamdsb.messages import (
    Begin,
    Drop,
    Dropped,
    Finish,
    PassReceived,
    Progress,
    Ready,
    Save,
    Saved,
    Spins,
    Stop,
    Updated,
)
from streamdsb.worker import Background, Cancelled, Control, every

_PROGRESS_S = 0.25


class ReceiverEngine(ABC):
    """Serves the coordinator's passes and remembers the best spins; engine_cpu and engine_cuda compute."""

    def __init__(self, config: Config, control: Control, first_pass: int) -> None:
        self._config = config
        self._first_pass = first_pass
        self._layout = config.layout
        self._control = control
        self._pass = 0
        self._best = Spins(best_pass=0, best_replica=0, best_two_energy=2**62)
        self._best_signs = np.zeros(self._layout.bitmap_words, np.uint64)
        self._saving: Background | None = None

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

    @abstractmethod
    def measure(self, pass_index: int) -> list[int]:
        """2E of each replica for the signs that entered the pass that was taken in."""

    @abstractmethod
    def advance(self, pass_index: int) -> None:
        """The update that follows the pass that was measured."""

    def restore_checkpoint(self, restored: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint instead of the initial state."""
        header = restored.header
        self.restore(restored.positions, restored.momenta)
        self._best = Spins(
            best_pass=header.best_pass,
            best_replica=header.best_replica,
            best_two_energy=header.best_two_energy,
        )
        self._best_signs[:] = restored.best_signs

    def start(self) -> None:  # noqa: B027 - not every engine has to
        """The first pass is about to begin."""

    def stop(self) -> None:  # noqa: B027 - not every engine has to
        """No pass will follow."""

    def run(self) -> None:
        """Serve Begin and Finish until the coordinator says Stop, then hand over the spins."""
        self._control.send(Ready(payload_per_second=self.measure_rate()))
        every(_PROGRESS_S, self._report_progress)
        message = self._control.next()
        if isinstance(message, Begin):
            self.start()
        try:
            while not isinstance(message, Stop):
                if isinstance(message, Begin):
                    # called off by Drop or Stop, which is the next message
                    with suppress(Cancelled):
                        self._take_in(message.pass_index)
                elif isinstance(message, Finish):
                    self._finish(message)
                elif isinstance(message, Save):
                    self._wait_for_checkpoint()
                    self._saving = Background(partial(self._save, message, self.state))
                elif isinstance(message, Drop):
                    self._control.cancelled.clear()
                    self._control.send(Dropped())
                else:
                    raise RunFailed(f"the coordinator sent {type(message).__name__} in the middle of a run")
                message = self._control.next()
            self._wait_for_checkpoint()
        finally:
            self.stop()
        if message.completed:
            bitmaps = np.concatenate([self._best_signs[None], self.signs])
            self._control.send(self._best, bitmaps.tobytes())

    def _report_progress(self) -> None:
        frames = self.count_frames()[Count.ACCEPTED]
        self._control.send(Progress(pass_index=self._pass, frames=max(frames, 0)))

    def _take_in(self, pass_index: int) -> None:
        self._pass = pass_index
        receive_s, drain_s = self.receive_pass(pass_index)
        frames = self.count_frames()
        self._control.send(
            PassReceived(
                pass_index=pass_index,
                frames=frames[Count.ACCEPTED],
                dropped=frames[Count.MISSING],
                duplicated=frames[Count.DUPLICATE],
                rejected={reason.name.lower(): frames[reason] for reason in list(Count)[3:]},
                receive_s=receive_s,
                drain_s=drain_s,
            )
        )

    def _finish(self, finish: Finish) -> None:
        start = time.perf_counter()
        two_energy = self.measure(finish.pass_index)
        wait_s = self._wait_for_checkpoint()
        lowest = min(two_energy)
        if lowest < self._best.best_two_energy:
            replica = two_energy.index(lowest)
            self._best = Spins(best_pass=finish.pass_index, best_replica=replica, best_two_energy=lowest)
            self._best_signs[:] = self.signs[replica]
        if finish.advance:
            self.advance(finish.pass_index)
        self._control.send(
            Updated(
                pass_index=finish.pass_index,
                two_energy=two_energy,
                checksum=checksum(self.signs),
                update_s=time.perf_counter() - start,
                checkpoint_wait_s=wait_s,
            )
        )

    def _save(self, order: Save, state: tuple[np.ndarray, np.ndarray]) -> None:
        """Write positions and momenta, which stand still until the next update."""
        start = time.perf_counter()
        header = checkpoint.Header(
            next_pass=order.next_pass,
            n=self._layout.n,
            replicas=self._layout.replicas,
            first_row=0,
            last_row=self._layout.n,
            input_hash=order.input_hash,
            best_pass=self._best.best_pass,
            best_replica=self._best.best_replica,
            best_two_energy=self._best.best_two_energy,
        )
        saved = checkpoint.Checkpoint(header, *state, self._best_signs.copy())
        size = checkpoint.save(Path(order.path), saved)
        seconds = time.perf_counter() - start
        self._control.send(Saved(next_pass=order.next_pass, size=size, seconds=seconds))

    def _wait_for_checkpoint(self) -> float:
        """Seconds until the checkpoint that is being written is on disk; raises what went wrong with it."""
        start = time.perf_counter()
        if self._saving is not None:
            self._saving.wait()
            self._saving = None
        return time.perf_counter() - start
