"""Receiver and generator of a run over transport gpunetio, on cards or on the software card.

Where both are on one GPU they are threads of one process; on the software card they share its ring, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

import numpy as np

from generator.engine_cuda import CudaGeneratorEngine
from receiver.accumulate_cuda import shared_memory
from receiver.engine_cuda import CudaReceiver
from streamdsb.config import Config
from streamdsb.errors import RunFailed
from streamdsb.gpunetio.ends import AnswerEnd, FeedbackEnd, receiver_ring, sender_ring
from streamdsb.gpunetio.ring import CardReceiver, CardSender
from streamdsb.gpunetio.software import SoftwareRing
from streamdsb.worker import Control

_OTHER_END_S = 5.0


class OpenQueues:
    """The receiver's queues, and the ends of the run in this process: the receiver, and maybe the generator.

    Nothing is taken down, and no device memory freed, before the kernels of all these have ended: to free
    waits for every kernel of the device, also for one that another thread has yet to stop.
    """

    def __init__(self, ring: CardReceiver | SoftwareRing) -> None:
        self.ring = ring
        self.over = threading.Event()
        """Set once everything is taken down."""
        self._lock = threading.Lock()
        self._ends = 1
        self._closings: list[Callable[[], None]] = [self._close]
        self._kept: list[object] = []

    def join(self) -> None:
        """Let the generator be an end in this process, too; RunFailed if the receiver has left."""
        with self._lock:
            if not self._ends:
                raise RunFailed("the receiver has closed its queues")
            self._ends += 1

    def leave(self, kept: object = None, close: Callable[[], None] | None = None) -> None:
        """An end's kernel has ended; the last to leave takes everything down, also what others `close`.

        kept: has device memory, which is not to be freed before.
        """
        with self._lock:
            self._kept.append(kept)
            if close is not None:
                self._closings.append(close)
            self._ends -= 1
            if self._ends:
                return
        for closing in self._closings:
            closing()
        self._closings.clear()
        self._kept.clear()
        self.over.set()

    def _close(self) -> None:
        if isinstance(self.ring, SoftwareRing):
            self.ring.stop()
        self.ring.free()


_here: WeakValueDictionary[int, OpenQueues] = WeakValueDictionary()
"""What receivers of this process opened, by the number of the run."""


class CardCudaReceiver(CudaReceiver):
    """A receiver on queues of a card; a fault of the card ends the run by its name."""

    def __init__(
        self,
        config: Config,
        run: int,
        field: np.ndarray | None,
        queues: OpenQueues,
        cancelled: threading.Event,
        first_pass: int,
        answers: Sequence[AnswerEnd],
    ) -> None:
        super().__init__(config, run, field, queues.ring, [], cancelled, first_pass, answers)
        self._queues = queues
        self._answers = answers

    def receive_pass(self, pass_index: int) -> tuple[float, float]:
        try:
            return super().receive_pass(pass_index)
        except RunFailed as error:
            if not isinstance(self._queues.ring, CardReceiver):
                raise
            steered = ", ".join(map(str, self._queues.ring.steered))
            raise RunFailed(f"{error}; frames that the card steered to each queue: {steered}") from error

    def stop(self) -> None:
        super().stop()
        self._queues.leave()
        for answer in self._answers:
            answer.close()

    def free(self) -> None:
        # a generator beside it has been told to stop, too; if it does not, the end of the process frees all
        if self._queues.over.wait(_OTHER_END_S):
            self._kernel.free()
            self._state.free()
            self._lossy = None  # its windows, too

    def _look_up(self) -> None:
        super()._look_up()
        self._queues.ring.check()


class CardGeneratorEngine(CudaGeneratorEngine):
    """A generator on queues of a card; a fault of the card ends the run by its name.

    beside: the receiver's queues, if that is in this process.
    """

    def __init__(
        self,
        config: Config,
        run: int,
        ring: CardSender | SoftwareRing,
        control: Control,
        first_pass: int,
        feedback: Sequence[FeedbackEnd],
        beside: OpenQueues | None,
    ) -> None:
        super().__init__(config, run, ring, control, first_pass, feedback)
        self._card = ring
        self._beside = beside

    def run(self) -> None:
        try:
            super().run()
        finally:
            close = self._card.free if isinstance(self._card, CardSender) else None
            if self._beside is not None:
                self._beside.leave(self._kernel, close)
            elif close is not None:
                close()

    def _start(self) -> None:
        super()._start()
        if isinstance(self._card, SoftwareRing):
            self._card.start(shared_memory(self._config.solver.replicas))

    def _look_up(self, pass_index: int, passes: int) -> None:
        if isinstance(self._card, CardSender):
            self._card.check()
        super()._look_up(pass_index, passes)


def open_queues(config: Config, run: int) -> OpenQueues:
    """The receiver's queues on the current device, which frames can come to from now on.

    A generator in the same process finds them by the number of the run: open them before it is let in.
    """
    stream = config.stream
    ring: CardReceiver | SoftwareRing
    if config.has_software_card:
        ring = SoftwareRing(stream.queues, stream.slots, stream.window_frames, pace_gbps=stream.pace_gbps)
    else:
        import cupy

        ring = receiver_ring(config, int(cupy.cuda.Device().compute_capability))
    queues = _here[run] = OpenQueues(ring)
    return queues


def make_generator(
    config: Config, run: int, feedback: list[FeedbackEnd], control: Control, first_pass: int = 0
) -> CardGeneratorEngine:
    """The generator on the current device, towards the receiver that `feedback` comes from.

    RunFailed if that is on a software card of another process.
    """
    beside = _here.get(run)
    ring: CardSender | SoftwareRing
    if not config.has_software_card:
        ring = sender_ring(config, feedback, None if beside is None else beside.ring.receiving)
    elif beside is not None and isinstance(beside.ring, SoftwareRing):
        ring = beside.ring
    else:
        raise RunFailed("the receiver is on the software card of another process; a run has it inside one")
    if beside is not None:
        beside.join()
    return CardGeneratorEngine(config, run, ring, control, first_pass, feedback, beside)
