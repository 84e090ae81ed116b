"""Generator and receiver on one device with queues that fail on purpose in between, without a coordinator."""

from __future__ import annotations

import contextlib
import time
from types import TracebackType
from typing import Any

import numpy as np

from generator.resend_cuda import Repairs
from generator.synthesize_cuda import GenerateKernel
from receiver.accumulate_cuda import ReceiveKernel, shared_memory
from receiver.intake_cuda import LossyIntake
from receiver.update_cpu import Dynamics, checksum
from receiver.update_cuda import CudaState
from streamdsb import cuda
from streamdsb.layout import Layout, RowRange
from streamdsb.queues.faulty import Faults, FaultyRing
from streamdsb.run_directory import record_line

RUN = 7
SEED = 42


class LossyLoop:
    """A run's inner loop over queues of kind `faulty`, the receiver on device 0, the generator on any."""

    def __init__(
        self,
        n: int,
        replicas: int,
        updates: int,
        source: str,
        queues: int,
        faults: Faults,
        *,
        slots: int = 1024,
        window: int = 512,
        budget: float = 10.0,
        first_pass: int = 0,
        generator_device: int = 0,
    ) -> None:
        self.layout = Layout(n, replicas, queues)
        self.first_pass = first_pass
        rows = self.layout.queue_rows
        xi = np.float32(0.5 / np.sqrt(np.float64(n)))
        cuda.use_device(0)
        self.ring = FaultyRing(queues, slots, window, faults)
        self.state = CudaState(
            self.layout, RowRange(0, n), Dynamics(updates, xi, np.float32(1.1)), SEED, None
        )
        self.intake = LossyIntake(self.layout, RUN, window, budget, self.ring.lines)
        self.receiver = ReceiveKernel(
            self.layout, rows, RUN, first_pass, self.ring, self.state, windows=self.intake.windows
        )
        passes = updates + 1 - first_pass
        self._generator_device = generator_device
        beside = None if generator_device else shared_memory(replicas)
        with self._on_generator_device():
            self.generator = GenerateKernel(
                self.layout, rows, source, SEED, RUN, first_pass, passes, self.ring, beside
            )
        self.repairs = Repairs(self.layout, RUN, self.generator, self.ring.lines, window)

    def _on_generator_device(self) -> Any:
        import cupy

        if self._generator_device:
            with (
                cupy.cuda.Device(self._generator_device),
                contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError),
            ):
                cupy.cuda.runtime.deviceEnablePeerAccess(0)
        return cupy.cuda.Device(self._generator_device)

    def __enter__(self) -> LossyLoop:
        self.receiver.start()
        with self._on_generator_device():
            self.generator.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._on_generator_device():
                self.generator.stop()
        finally:
            self.receiver.stop()

    def look_up(self) -> None:
        """Raise if something has gone wrong."""
        self.receiver.check()
        assert not self.generator.ended

    def record(self, k: int, timeout_s: float = 20.0) -> str:
        """Pass k from its release to its line of records.jsonl."""
        passes = k - self.first_pass + 1
        self.intake.begin_pass(k)
        self.repairs.begin_pass(k, passes - 1)
        self.generator.release(passes)
        deadline = time.monotonic() + timeout_s
        while self.receiver.drained < passes or not self.repairs.complete:
            self.look_up()
            self.intake.step(self.receiver, passes)
            self.repairs.step(time.monotonic())
            assert time.monotonic() < deadline, self.receiver.describe()
            time.sleep(2e-4)
        energies = [int(e) for e in self.receiver.finish_pass(k, passes, self.state.host_signs)]
        return record_line(k, energies, checksum(self.state.host_signs))
