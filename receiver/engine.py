"""The receiver: takes in the frames of each pass, then measures and advances the replicas."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from receiver.base import Receiver
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


class ReceiverEngine:
    """Serves the coordinator's passes with a receiver and remembers the best spins."""

    def __init__(self, config: Config, receiver: Receiver, control: Control) -> None:
        self._layout = config.layout
        self._receiver = receiver
        self._control = control
        self._pass = 0
        self._best = Spins(best_pass=0, best_replica=0, best_two_energy=2**62)
        self._best_signs = np.zeros(self._layout.bitmap_words, np.uint64)
        self._saving: Background | None = None

    def restore_checkpoint(self, restored: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint instead of the initial state."""
        header = restored.header
        self._receiver.restore(restored.positions, restored.momenta)
        self._best = Spins(
            best_pass=header.best_pass,
            best_replica=header.best_replica,
            best_two_energy=header.best_two_energy,
        )
        self._best_signs[:] = restored.best_signs

    def run(self) -> None:
        """Serve Begin and Finish until the coordinator says Stop, then hand over the spins."""
        self._control.send(Ready(payload_per_second=self._receiver.measure_rate()))
        every(_PROGRESS_S, self._report_progress)
        message = self._control.next()
        if isinstance(message, Begin):
            self._receiver.start()
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
                    self._saving = Background(partial(self._save, message, self._receiver.state))
                elif isinstance(message, Drop):
                    self._control.cancelled.clear()
                    self._control.send(Dropped())
                else:
                    raise RunFailed(f"the coordinator sent {type(message).__name__} in the middle of a run")
                message = self._control.next()
            self._wait_for_checkpoint()
        finally:
            self._receiver.stop()
        if message.completed:
            bitmaps = np.concatenate([self._best_signs[None], self._receiver.signs])
            self._control.send(self._best, bitmaps.tobytes())
        self._receiver.free()

    def _report_progress(self) -> None:
        frames = self._receiver.count_frames()[Count.ACCEPTED]
        self._control.send(Progress(pass_index=self._pass, frames=max(frames, 0)))

    def _take_in(self, pass_index: int) -> None:
        self._pass = pass_index
        receive_s, drain_s = self._receiver.receive_pass(pass_index)
        frames = self._receiver.count_frames()
        self._control.send(
            PassReceived(
                pass_index=pass_index,
                frames=frames[Count.ACCEPTED],
                dropped=frames[Count.MISSING],
                duplicated=frames[Count.DUPLICATE],
                rejected={reason.name.lower(): frames[reason] for reason in list(Count)[3:]},
                resent=self._receiver.count_resent(),
                receive_s=receive_s,
                drain_s=drain_s,
            )
        )

    def _finish(self, finish: Finish) -> None:
        start = time.perf_counter()
        two_energy = self._receiver.measure(finish.pass_index)
        wait_s = self._wait_for_checkpoint()
        lowest = min(two_energy)
        if lowest < self._best.best_two_energy:
            replica = two_energy.index(lowest)
            self._best = Spins(best_pass=finish.pass_index, best_replica=replica, best_two_energy=lowest)
            self._best_signs[:] = self._receiver.signs[replica]
        if finish.advance:
            self._receiver.advance(finish.pass_index)
        self._control.send(
            Updated(
                pass_index=finish.pass_index,
                two_energy=two_energy,
                checksum=checksum(self._receiver.signs),
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
