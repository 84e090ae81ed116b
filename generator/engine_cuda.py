"""The generator on a GPU: the twin of engine, around the resident generate kernel."""

from __future__ import annotations

import time

from generator.synthesize_cuda import GenerateKernel, measure_rate
from receiver.accumulate_cuda import shared_memory
from streamdsb.config import Config
from streamdsb.errors import RunFailed
from streamdsb.messages import Begin, PassSent, Ready
from streamdsb.queues.peer import DeviceRing
from streamdsb.worker import Cancelled, Control

_RECEIVER_START_S = 30.0


class CudaGeneratorEngine:
    """Serves released passes by a kernel that composes frames in the receiver's ring."""

    def __init__(
        self, config: Config, run: int, ring: DeviceRing, control: Control, first_pass: int = 0
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
        self._kernel.release(passes)
        sent, moved = self._kernel.sent, time.monotonic()
        while not self._kernel.wait_sent(passes):
            if self._control.cancelled.is_set():
                raise Cancelled
            if self._kernel.ended and not self._kernel.wait_sent(passes):
                raise RunFailed(
                    f"the generate kernel ended in pass {pass_index}: bursts sent {self._kernel.sent}"
                )
            before, sent = sent, self._kernel.sent
            if sent != before:
                moved = time.monotonic()
            elif time.monotonic() - moved > timeout_s:
                raise RunFailed(
                    f"no queue had room for {timeout_s:g} s (stream.timeout_s): bursts sent {sent}; the"
                    " receiver takes no frames"
                )
        self._control.send(PassSent(pass_index=pass_index, frames=self._layout.frames_per_pass))
