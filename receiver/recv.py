"""Receiving: the bursts of several queues, checked, accumulated and released as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from receiver.accumulate_cpu import CpuAccumulator
from receiver.check import FrameCheck
from streamdsb.errors import RunFailed
from streamdsb.queues import FrameReceiver, wait_for_any
from streamdsb.worker import Cancelled

_LOOK_UP_S = 0.25
"""How often a wait looks whether the run has been called off."""


@dataclass(frozen=True)
class QueueIntake:
    """One queue and the check of its frames."""

    end: FrameReceiver
    check: FrameCheck

    def step(self, accumulator: CpuAccumulator) -> bool:
        """Take in one burst; False if none has come."""
        frames = self.end.receive()
        if frames is None:
            return False
        accumulator.feed(self.check.queue, frames, self.check.accept(frames))
        self.end.release()
        return True


def receive_pass(
    intakes: Sequence[QueueIntake], accumulator: CpuAccumulator, timeout_s: float, cancelled: threading.Event
) -> None:
    """Take in what these queues bring until each has ended its pass.

    Raises RunFailed if no frame comes for `timeout_s` seconds, Cancelled if the run is called off.
    """
    open_intakes = list(intakes)
    deadline = time.monotonic() + timeout_s
    while open_intakes:
        moved = False
        for intake in open_intakes:
            moved |= intake.step(accumulator)
        if cancelled.is_set():
            raise Cancelled
        if moved:
            deadline = time.monotonic() + timeout_s
            open_intakes = [intake for intake in open_intakes if not intake.check.ended]
        elif wait_for_any([intake.end for intake in open_intakes], _LOOK_UP_S):
            continue
        elif time.monotonic() > deadline:
            queues = ", ".join(str(intake.check.queue) for intake in open_intakes)
            raise RunFailed(f"queue {queues}: no frame came for {timeout_s:g} s (stream.timeout_s)")
