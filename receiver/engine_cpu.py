"""The receiver on the CPU: threads that check and accumulate, state in host memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from receiver.accumulate_cpu import CpuAccumulator
from receiver.base import Receiver
from receiver.check import Count, FrameCheck
from receiver.recv import LossyQueueIntake, QueueIntake, receive_pass
from receiver.update_cpu import CpuState, Dynamics
from receiver.window import Window
from streamdsb.config import Config
from streamdsb.errors import RunFailed, UserError
from streamdsb.frame import FrameType, empty_frames, write_headers
from streamdsb.layout import FRAME_WORDS, HEADER_WORDS, PAYLOAD_BYTES, RowRange
from streamdsb.machine import available_memory
from streamdsb.queues import FrameReceiver
from streamdsb.queues.base import LossyReceiver
from streamdsb.worker import Shares, shortest_time

_TRIAL_FRAMES = 256


class CpuReceiver(Receiver):
    """Holds the state of all replicas in host memory and accumulates from the given queues.

    rows: those whose state is held here, from a multiple of 64; None for all.
    """

    def __init__(
        self,
        config: Config,
        run: int,
        field: np.ndarray | None,
        receivers: Sequence[FrameReceiver],
        cancelled: threading.Event,
        rows: RowRange | None = None,
    ) -> None:
        self._timeout_s = config.stream.timeout_s
        self._layout = config.layout if rows is None else config.layout.of(rows)
        self._cancelled = cancelled
        rows = self._layout.rows
        self._accumulator = CpuAccumulator(self._layout, rows)
        dynamics = Dynamics(config.solver.updates, config.xi, np.float32(config.solver.dt))
        self._state = CpuState(
            self._layout, rows, dynamics, config.solver.seed, field, config.receiver.threads
        )
        intakes = [
            self._intake(config, run, queue, carried, end)
            for queue, (carried, end) in enumerate(zip(self._layout.queue_rows, receivers, strict=True))
        ]
        self._checks = [intake.check for intake in intakes]
        self._shares = Shares(intakes, config.receiver.threads, cancelled)

    def _intake(
        self, config: Config, run: int, queue: int, rows: RowRange, end: FrameReceiver
    ) -> QueueIntake | LossyQueueIntake:
        burst_frames = config.stream.burst_frames
        if end.capabilities.lossless:
            return QueueIntake(end, FrameCheck(self._layout, queue, rows, run, burst_frames))
        lossy = cast(LossyReceiver, end)
        budget = config.stream.resend_budget
        window = Window(self._layout, queue, rows, run, burst_frames, lossy.window, budget)
        return LossyQueueIntake(lossy, window)

    @property
    def signs(self) -> np.ndarray:
        return self._state.signs

    @property
    def state(self) -> tuple[np.ndarray, np.ndarray]:
        return self._state.positions, self._state.momenta

    def restore(self, positions: np.ndarray, momenta: np.ndarray) -> None:
        self._state.restore(positions, momenta)

    def measure_rate(self) -> float:
        rows = self._layout.rows
        count = min(_TRIAL_FRAMES, len(rows))
        frames = empty_frames(count)
        frames[:, HEADER_WORDS:] = np.arange(FRAME_WORDS - HEADER_WORDS, dtype=np.uint64)
        write_headers(frames, int(FrameType.TILE), 0, 0, 0, rows.start, 0, 0, 0)
        accepted = np.arange(count, dtype=np.int32)
        self._accumulator.begin_pass(self._state.signs)
        seconds = shortest_time(lambda: self._accumulator.feed(0, frames, accepted))
        return count * PAYLOAD_BYTES * len(self._shares) / seconds

    def receive_pass(self, pass_index: int) -> tuple[float, float]:
        start = time.perf_counter()
        for check in self._checks:
            check.begin_pass(pass_index)
        self._accumulator.begin_pass(self._state.signs)
        ends: list[float] = []

        def receive(share: Sequence[QueueIntake | LossyQueueIntake]) -> None:
            receive_pass(share, self._accumulator, self._timeout_s, self._cancelled)
            ends.append(time.perf_counter())

        self._shares.each(receive)
        for check in self._checks:
            if fault := check.fault():
                raise RunFailed(fault)
        return max(ends) - start, time.perf_counter() - max(ends)

    def count_frames(self) -> Mapping[Count, int]:
        return {reason: sum(int(check.counts[reason]) for check in self._checks) for reason in Count}

    def count_resent(self) -> int:
        return sum(check.resent for check in self._checks if isinstance(check, Window))

    def measure(self, pass_index: int) -> list[int]:
        return [int(energy) for energy in self._state.measure(self._accumulator.finish_pass())]

    def advance(self, pass_index: int) -> None:
        self._state.advance(self._accumulator.finish_pass(), pass_index)


def require_memory(config: Config, state_bytes: int | None = None) -> None:
    """Raise UserError if the state of the receivers here does not fit into this machine's memory.

    state_bytes: of all of them; None for one receiver of all rows.
    """
    needed = config.layout.state_bytes if state_bytes is None else state_bytes
    available = available_memory()
    if needed > available:
        raise UserError(
            f"the receiver needs {needed / 1e9:.1f} GB for problem.n = {config.n} and solver.replicas ="
            f" {config.solver.replicas}, but {available / 1e9:.1f} GB are available; lower one of them"
        )
