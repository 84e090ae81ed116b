"""Receiver and generator of a run over transport gpunetio, on cards or on the software card.

On the software card both are threads of one process and share its ring.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np

from generator.engine_cuda import CudaGeneratorEngine
from receiver.accumulate_cuda import shared_memory
from receiver.engine_cuda import CudaReceiver
from streamdsb.config import Config
from streamdsb.errors import RunFailed
from streamdsb.gpunetio.ends import AnswerEnd, FeedbackEnd, receiver_ring, sender_ring
from streamdsb.gpunetio.keys import SOFTWARE_CARD
from streamdsb.gpunetio.ring import CardReceiver, CardSender
from streamdsb.gpunetio.software import SoftwareRing
from streamdsb.worker import Control

_HERE_S = 30.0
_here: WeakValueDictionary[int, SoftwareRing] = WeakValueDictionary()
"""Rings of this process on the software card, by the number of the run."""


class CardCudaReceiver(CudaReceiver):
    """A receiver on queues of a card; a fault of the card ends the run by its name."""

    def __init__(
        self,
        config: Config,
        run: int,
        field: np.ndarray | None,
        ring: CardReceiver | SoftwareRing,
        cancelled: threading.Event,
        first_pass: int,
        answers: Sequence[AnswerEnd],
    ) -> None:
        super().__init__(config, run, field, ring, [], cancelled, first_pass, answers)
        self._card = ring

    def stop(self) -> None:
        super().stop()
        if isinstance(self._card, SoftwareRing):
            self._card.stop()
        else:
            self._card.free()

    def _look_up(self) -> None:
        super()._look_up()
        self._card.check()


class CardGeneratorEngine(CudaGeneratorEngine):
    """A generator on queues of a card; a fault of the card ends the run by its name."""

    def run(self) -> None:
        try:
            super().run()
        finally:
            if isinstance(self._ring, CardSender):
                self._ring.free()

    def _start(self) -> None:
        super()._start()
        if isinstance(self._ring, SoftwareRing):
            self._ring.start(shared_memory(self._config.solver.replicas))

    def _look_up(self, pass_index: int, passes: int) -> None:
        if isinstance(self._ring, CardSender):
            self._ring.check()
        super()._look_up(pass_index, passes)


def make_receiver(
    config: Config,
    run: int,
    field: np.ndarray | None,
    answers: Sequence[AnswerEnd],
    cancelled: threading.Event,
    first_pass: int = 0,
) -> CardCudaReceiver:
    """The receiver on the current device, which frames can come to from now on."""
    stream = config.stream
    ring: CardReceiver | SoftwareRing
    if config.receiver.nic == SOFTWARE_CARD:
        ring = SoftwareRing(stream.queues, stream.slots, stream.window_frames, pace_gbps=stream.pace_gbps)
        _here[run] = ring
    else:
        import cupy

        ring = receiver_ring(config, int(cupy.cuda.Device().compute_capability))
    return CardCudaReceiver(config, run, field, ring, cancelled, first_pass, answers)


def make_generator(
    config: Config, run: int, feedback: list[FeedbackEnd], control: Control, first_pass: int = 0
) -> CardGeneratorEngine:
    """The generator on the current device, towards the receiver that `feedback` comes from.

    RunFailed if that does not set up the software card, where they share one, in time.
    """
    ring: CardSender | SoftwareRing | None
    if config.generator.nic == SOFTWARE_CARD:
        deadline = time.monotonic() + _HERE_S
        while (ring := _here.get(run)) is None:
            if time.monotonic() > deadline:
                raise RunFailed(f"the receiver did not set up the software card within {_HERE_S:g} s")
            time.sleep(0.01)
    else:
        ring = sender_ring(config, feedback)
    return CardGeneratorEngine(config, run, ring, control, first_pass, feedback)
