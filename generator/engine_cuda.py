"""The generator on a GPU: the twin of engine, around the resident generate kernel."""

from __future__ import annotations

import time
from collections.abc import Sequence

from generator.resend_cuda import Repairs
from generator.synthesize_cuda import GenerateKernel, measure_rate
from receiver.accumulate_cuda import shared_memory
from streamdsb.config import Config
from streamdsb.errors import RunFailed
from streamdsb.messages import Begin, PassSent, Ready
from streamdsb.queues.feedback_line import FeedbackSource
from streamdsb.queues.peer import DeviceRing
from streamdsb.worker import Cancelled, Control

_RECEIVER_START_S = 30.0
_NAP_S = 0.2e-3


class CudaGeneratorEngine:
    """Serves released passes by a kernel that composes frames where the queues of `ring` say.

    lines: from the receiver, one a queue, if the ring may lose frames.
    """

    def __init__(
        self,
        config: Config,
        run: int,
        ring: DeviceRing,
        control: Control,
        first_pass: int = 0,
        lines: Sequence[FeedbackSource] = (),
    ) -> None:
        self._config = config
        self._first_pass = first_pass
        self._layout = config.layout
        self._ring = ring
        self._control = control
        beside = shared_memory(config.solver.replicas) if ring.is_here else None
        self._kernel = GenerateKernel(
            self._layout,
            self._layout.queue_rows,
            config.problem.source,
            config.problem.seed,
            run,
            first_pass,
            config.solver.updates + 1 - first_pass,
            ring,
            beside,
        )
        self._repairs = Repairs(self._layout, run, self._kernel, lines, ring.window) if ring.window else None

    def run(self) -> None:
        """Answer every Begin with a pass until the coordinator says Stop."""
        problem = self._config.problem
        rate = measure_rate(self._layout.n, problem.source, problem.seed, self._ring)
        self._control.send(Ready(payload_per_second=rate))
        started = False
        try:
            while isinstance(begin := self._control.next(), Begin):
                if not started:
                    self._start()
                    started = True
                self._send_pass(begin.pass_index)
        finally:
            if started:
                self._kernel.stop()

    def _start(self) -> None:
        """Launch, after the receive kernel if that shares the device: its blocks have to be resident."""
        if self._ring.is_here and not self._ring.receiving.wait(_RECEIVER_START_S):
            raise RunFailed(f"the receive kernel did not start within {_RECEIVER_START_S:g} s")
        self._kernel.start()

    def _send_pass(self, pass_index: int) -> None:
        timeout_s = self._config.stream.timeout_s
        passes = pass_index - self._first_pass + 1
        if self._repairs is not None:
            self._repairs.begin_pass(pass_index, passes - 1)
        self._kernel.release(passes)
        sent, moved = self._kernel.sent, time.monotonic()
        while not self._wait_sent(passes):
            self._look_up(pass_index, passes)
            before, sent = sent, self._kernel.sent
            if sent != before:
                moved = time.monotonic()
            elif time.monotonic() - moved > timeout_s:
                raise RunFailed(
                    f"no queue had room for {timeout_s:g} s (stream.timeout_s): bursts sent {sent}; the"
                    " receiver takes no frames"
                )
        self._control.send(PassSent(pass_index=pass_index, frames=self._layout.frames_per_pass))
        if self._repairs is not None:
            while not self._repairs.complete and not self._control.is_waiting():
                self._look_up(pass_index, passes)
                self._repair(self._repairs)

    def _wait_sent(self, passes: int) -> bool:
        """Wait a while for `passes` passes to be sent since the start; whether they are."""
        if self._repairs is None:
            return self._kernel.wait_sent(passes)
        self._repair(self._repairs)
        return all(self._kernel.queues_that_sent(passes))

    def _repair(self, repairs: Repairs) -> None:
        repairs.step(time.monotonic())
        time.sleep(_NAP_S)

    def _look_up(self, pass_index: int, passes: int) -> None:
        if self._control.cancelled.is_set():
            raise Cancelled
        if self._kernel.ended and not (self._repairs is None and self._kernel.wait_sent(passes)):
            raise RunFailed(
                f"the generate kernel ended in pass {pass_index}: bursts sent {self._kernel.sent}"
            )
