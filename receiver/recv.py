"""Receiving: the bursts of several queues, checked, accumulated and released as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from receiver.accumulate_cpu import CpuAccumulator
from receiver.check import FrameCheck
from receiver.window import Window
from streamdsb.errors import RunFailed
from streamdsb.queues import FrameReceiver, wait_for_any
from streamdsb.queues.base import LossyReceiver
from streamdsb.worker import Cancelled

_LOOK_UP_S = 0.25
"""How often a wait looks whether the run has been called off."""
_LOSSY_LOOK_UP_S = 0.002
"""How often it looks whether something has to be asked for again."""


@dataclass(frozen=True)
class QueueIntake:
    """One lossless queue and the check of its frames."""

    end: FrameReceiver
    check: FrameCheck
    look_up_s = _LOOK_UP_S

    def step(self, accumulator: CpuAccumulator) -> bool:
        """Take in one burst; False if none has come."""
        frames = self.end.receive()
        if frames is None:
            return False
        accumulator.feed_checked(self.check, frames)
        self.end.release()
        return True


@dataclass(frozen=True)
class LossyQueueIntake:
    """One queue that may lose frames, and the window that sees to it that each is added once."""

    end: LossyReceiver
    check: Window
    look_up_s = _LOSSY_LOOK_UP_S

    def step(self, accumulator: CpuAccumulator) -> bool:
        """Take in one burst and answer what is to be answered; False if nothing new has come."""
        frames, new = self.end.receive(), 0
        if frames is not None:
            accepted = self.check.accept(frames)
            new = len(accepted)
            accumulator.feed(self.check.queue, frames, accepted)
            self.end.release()
        answer = self.check.answer(time.monotonic())
        if answer is not None:
            self.end.answer(answer)
        return new > 0


def receive_pass(
    intakes: Sequence[QueueIntake | LossyQueueIntake],
    accumulator: CpuAccumulator,
    timeout_s: float,
    cancelled: threading.Event,
) -> None:
    """Take in what these queues bring until each has ended its pass.

    Raises RunFailed if no frame comes for `timeout_s` seconds, Cancelled if the run is called off.
    """
    deadline = time.monotonic() + timeout_s
    while open_intakes := [intake for intake in intakes if not intake.check.ended]:
        moved = False
        for intake in open_intakes:
            moved |= intake.step(accumulator)
        if cancelled.is_set():
            raise Cancelled
        if moved:
            deadline = time.monotonic() + timeout_s
        elif time.monotonic() > deadline:
            queues = ", ".join(str(intake.check.queue) for intake in open_intakes)
            faults = "; ".join(filter(None, (intake.check.fault() for intake in open_intakes)))
            raise RunFailed(f"queue {queues}: no frame came for {timeout_s:g} s (stream.timeout_s): {faults}")
        else:
            look_up_s = min(intake.look_up_s for intake in open_intakes)
            wait_for_any([intake.end for intake in open_intakes], look_up_s)
