"""The receiver: takes in the frames of each pass, then measures and advances the replicas."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from receiver.accumulate_cpu import CpuAccumulator
from receiver.check import Count, FrameCheck
from receiver.recv import QueueIntake, receive_pass
from receiver.update_cpu import CpuState, Dynamics, checksum
from streamdsb.config import Config
from streamdsb.errors import RunFailed, UserError
from streamdsb.frame import FrameType, empty_frames, write_headers
from streamdsb.layout import FRAME_WORDS, HEADER_WORDS, PAYLOAD_BYTES, RowRange
from streamdsb.machine import available_memory
from streamdsb.messages import Begin, Finish, PassReceived, Progress, Ready, Spins, Stop, Updated
from streamdsb.queues import FrameReceiver
from streamdsb.worker import Control, Shares, every, shortest_time

_TRIAL_FRAMES = 256
_PROGRESS_S = 0.25


class ReceiverEngine:
    """Holds the state of all replicas and serves the coordinator's passes from the given queues."""

    def __init__(
        self,
        config: Config,
        run: int,
        field: np.ndarray | None,
        receivers: Sequence[FrameReceiver],
        control: Control,
    ) -> None:
        self._config = config
        self._layout = config.layout
        self._control = control
        rows = RowRange(0, config.n)
        self._accumulator = CpuAccumulator(self._layout, rows)
        dynamics = Dynamics(config.solver.updates, config.xi, np.float32(config.solver.dt))
        self._state = CpuState(
            self._layout, rows, dynamics, config.solver.seed, field, config.receiver.threads
        )
        self._checks = [
            FrameCheck(self._layout, queue, queue_rows, run, config.stream.burst_frames)
            for queue, queue_rows in enumerate(self._layout.queue_rows)
        ]
        intakes = [QueueIntake(end, check) for end, check in zip(receivers, self._checks, strict=True)]
        self._shares = Shares(intakes, config.receiver.threads, control.cancelled)
        self._pass = 0
        self._best = Spins(best_pass=0, best_replica=0, best_two_energy=2**62)
        self._best_signs = self._state.signs[0].copy()

    def run(self) -> None:
        """Serve Begin and Finish until the coordinator says Stop, then hand over the spins."""
        self._control.send(Ready(payload_per_second=self._measure_rate()))
        every(_PROGRESS_S, self._report_progress)
        while not isinstance(message := self._control.next(), Stop):
            if isinstance(message, Begin):
                self._receive_pass(message.pass_index)
            elif isinstance(message, Finish):
                self._finish_pass(message)
            else:
                raise RunFailed(f"the coordinator sent {type(message).__name__} in the middle of a run")
        if message.completed:
            bitmaps = np.concatenate([self._best_signs[None], self._state.signs])
            self._control.send(self._best, bitmaps.tobytes())

    def _report_progress(self) -> None:
        self._control.send(Progress(pass_index=self._pass, frames=self._count(Count.ACCEPTED)))

    def _receive_pass(self, pass_index: int) -> None:
        start = time.perf_counter()
        self._pass = pass_index
        for check in self._checks:
            check.begin_pass(pass_index)
        self._accumulator.begin_pass(self._state.signs)
        ends: list[float] = []

        def receive(share: Sequence[QueueIntake]) -> None:
            receive_pass(share, self._accumulator, self._config.stream.timeout_s, self._control.cancelled)
            ends.append(time.perf_counter())

        self._shares.each(receive)
        for check in self._checks:
            if fault := check.fault():
                raise RunFailed(fault)
        self._control.send(
            PassReceived(
                pass_index=pass_index,
                frames=self._count(Count.ACCEPTED),
                dropped=self._count(Count.MISSING),
                duplicated=self._count(Count.DUPLICATE),
                rejected={reason.name.lower(): self._count(reason) for reason in list(Count)[3:]},
                receive_s=max(ends) - start,
                drain_s=time.perf_counter() - max(ends),
            )
        )

    def _count(self, reason: Count) -> int:
        return sum(int(check.counts[reason]) for check in self._checks)

    def _finish_pass(self, finish: Finish) -> None:
        start = time.perf_counter()
        counts = self._accumulator.finish_pass()
        two_energy = [int(energy) for energy in self._state.measure(counts)]
        self._remember_best(finish.pass_index, two_energy)
        if finish.advance:
            self._state.advance(counts, finish.pass_index)
        self._control.send(
            Updated(
                pass_index=finish.pass_index,
                two_energy=two_energy,
                checksum=checksum(self._state.signs),
                update_s=time.perf_counter() - start,
            )
        )

    def _remember_best(self, pass_index: int, two_energy: list[int]) -> None:
        lowest = min(two_energy)
        if lowest < self._best.best_two_energy:
            replica = two_energy.index(lowest)
            self._best = Spins(best_pass=pass_index, best_replica=replica, best_two_energy=lowest)
            self._best_signs[:] = self._state.signs[replica]

    def _measure_rate(self) -> float:
        """Payload bytes a second that the threads of this process can add, nothing else going on."""
        count = min(_TRIAL_FRAMES, self._layout.n)
        frames = empty_frames(count)
        frames[:, HEADER_WORDS:] = np.arange(FRAME_WORDS - HEADER_WORDS, dtype=np.uint64)
        write_headers(frames, int(FrameType.TILE), 0, 0, 0, 0, 0, 0, 0)
        accepted = np.arange(count, dtype=np.int32)
        self._accumulator.begin_pass(self._state.signs)
        seconds = shortest_time(lambda: self._accumulator.feed(0, frames, accepted))
        return count * PAYLOAD_BYTES * len(self._shares) / seconds


def require_memory(config: Config) -> None:
    """Raise UserError if the state of this configuration does not fit into this machine's memory."""
    needed, available = config.layout.state_bytes, available_memory()
    if needed > available:
        raise UserError(
            f"the receiver needs {needed / 1e9:.1f} GB for problem.n = {config.n} and solver.replicas ="
            f" {config.solver.replicas}, but {available / 1e9:.1f} GB are available; lower one of them"
        )
