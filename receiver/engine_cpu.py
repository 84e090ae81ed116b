"""The receiver on the CPU: threads that check and accumulate, state in host memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from receiver.accumulate_cpu import CpuAccumulator
from receiver.base import Receiver
from receiver.check import Count, FrameCheck
from receiver.recv import QueueIntake, receive_pass
from receiver.update_cpu import CpuState, Dynamics
from streamdsb.config import Config
from streamdsb.errors import RunFailed, UserError
from streamdsb.frame import FrameType, empty_frames, write_headers
from streamdsb.layout import FRAME_WORDS, HEADER_WORDS, PAYLOAD_BYTES, RowRange
from streamdsb.machine import available_memory
from streamdsb.queues import FrameReceiver
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
        self._checks = [
            FrameCheck(self._layout, queue, queue_rows, run, config.stream.burst_frames)
            for queue, queue_rows in enumerate(self._layout.queue_rows)
        ]
        intakes = [QueueIntake(end, check) for end, check in zip(receivers, self._checks, strict=True)]
        self._shares = Shares(intakes, config.receiver.threads, cancelled)

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

        def receive(share: Sequence[QueueIntake]) -> None:
            receive_pass(share, self._accumulator, self._timeout_s, self._cancelled)
            ends.append(time.perf_counter())

        self._shares.each(receive)
        for check in self._checks:
            if fault := check.fault():
                raise RunFailed(fault)
        return max(ends) - start, time.perf_counter() - max(ends)

    def count_frames(self) -> Mapping[Count, int]:
        return {reason: sum(int(check.counts[reason]) for check in self._checks) for reason in Count}

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
