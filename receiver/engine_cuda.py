"""The receiver on a GPU: the twin of engine_cpu, around the resident receive kernel."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from receiver.accumulate_cuda import ReceiveKernel, measure_rate
from receiver.base import Receiver
from receiver.check import Count
from receiver.feed_cuda import HostFeed
from receiver.intake_cuda import LossyIntake
from receiver.update_cpu import Dynamics
from receiver.update_cuda import CudaState
from streamdsb import cuda
from streamdsb.config import Config
from streamdsb.errors import RunFailed, UserError
from streamdsb.layout import RowRange
from streamdsb.queues import FrameReceiver
from streamdsb.queues.feedback_line import AnswerLine
from streamdsb.queues.peer import DeviceRing, PeerRing
from streamdsb.worker import Cancelled


class CudaReceiver(Receiver):
    """Holds the state of all replicas on a GPU and takes in passes from the ring.

    receivers: the queues of a generator that sends through the host, none if it writes the ring itself.
    lines: back to the generator, one a queue, if the ring may lose frames.
    """

    def __init__(
        self,
        config: Config,
        run: int,
        field: np.ndarray | None,
        ring: DeviceRing,
        receivers: Sequence[FrameReceiver],
        cancelled: threading.Event,
        first_pass: int = 0,
        lines: Sequence[AnswerLine] = (),
    ) -> None:
        import cupyx

        self._timeout_s = config.stream.timeout_s
        self._first_pass = first_pass
        self._layout = config.layout
        self._cancelled = cancelled
        self._ring = ring
        dynamics = Dynamics(config.solver.updates, config.xi, np.float32(config.solver.dt))
        self._state = CudaState(self._layout, RowRange(0, config.n), dynamics, config.solver.seed, field)
        self._lossy = None
        if ring.window:
            self._lossy = LossyIntake(self._layout, run, ring.window, config.stream.resend_budget, lines)
        windows = self._lossy.windows if self._lossy is not None else None
        self._kernel = ReceiveKernel(
            self._layout, self._layout.queue_rows, run, first_pass, ring, self._state, windows=windows
        )
        self._feed = HostFeed(receivers, ring) if isinstance(ring, PeerRing) and receivers else None
        self._signs = self._state.host_signs
        self._next_signs: np.ndarray = cupyx.zeros_pinned(self._signs.shape, np.uint64)
        self._before = self._kernel.counts
        self._after: np.ndarray | None = self._before

    @property
    def signs(self) -> np.ndarray:
        return self._signs

    @property
    def state(self) -> tuple[np.ndarray, np.ndarray]:
        return self._state.to_host()

    def restore(self, positions: np.ndarray, momenta: np.ndarray) -> None:
        self._state.restore(positions, momenta)

    def measure_rate(self) -> float:
        return measure_rate(self._layout.replicas, self._ring)

    def start(self) -> None:
        # not before the first pass: what the generator sets up on this device has to be done
        self._kernel.start()
        self._ring.receiving.set()

    def free(self) -> None:
        # at once: beside a resident kernel, of a later run in this process, freeing would wait for its end
        self._kernel.free()
        self._state.free()
        self._ring.free()

    def stop(self) -> None:
        self._kernel.stop()

    def receive_pass(self, pass_index: int) -> tuple[float, float]:
        start = time.perf_counter()
        if self._after is not None:
            self._before, self._after = self._after, None
        if self._feed is not None:
            self._feed.forward_pass(self._timeout_s, self._look_up)
        passes = self._passes_until(pass_index)
        if self._lossy is not None:
            self._lossy.take_in(self._kernel, pass_index, passes, self._timeout_s, self._look_up)
        else:
            self._kernel.wait_drained(passes, self._timeout_s, self._look_up)
        # before the next pass is released, or frames of it may be counted already
        self._after = self._kernel.counts
        self._require_complete(pass_index)
        return time.perf_counter() - start, 0.0

    def count_frames(self) -> Mapping[Count, int]:
        counts = self._count_by_queue().sum(axis=0)
        return {reason: int(counts[reason]) for reason in Count}

    def count_resent(self) -> int:
        return 0 if self._lossy is None else self._lossy.resent

    def measure(self, pass_index: int) -> list[int]:
        # the kernel makes the update in the same trip; its signs wait in _next_signs
        two_energy = self._kernel.finish_pass(pass_index, self._passes_until(pass_index), self._next_signs)
        return [int(energy) for energy in two_energy]

    def advance(self, pass_index: int) -> None:
        self._signs, self._next_signs = self._next_signs, self._signs

    def _count_by_queue(self) -> np.ndarray:
        """Frames of this pass by queue and `Count`, int64 (queues, len(Count))."""
        until_now = self._kernel.counts if self._after is None else self._after
        return until_now - self._before

    def _passes_until(self, pass_index: int) -> int:
        """Passes of this process up to and with this one: what the kernel counts."""
        return pass_index - self._first_pass + 1

    def _look_up(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled

    def _require_complete(self, pass_index: int) -> None:
        counts = self._count_by_queue()
        for queue, sent in enumerate(self._kernel.sent):
            accepted, expected = int(counts[queue, Count.ACCEPTED]), self._layout.frames_on(queue)
            if not accepted == sent == expected:
                raise RunFailed(
                    f"pass {pass_index}, queue {queue}: {accepted} of {expected} frames were added, the"
                    f" sender counted {sent} ({self._kernel.describe()})"
                )


def device_bytes(config: Config) -> int:
    """GPU memory of the receiver: state, counts and ring."""
    return config.layout.state_bytes + config.stream.device_ring_bytes


def require_device_memory(config: Config) -> None:
    """Raise UserError if state and ring do not fit into the free memory of the current device."""
    needed, free = device_bytes(config), cuda.free_memory()
    if needed > free:
        stream = config.stream
        ring = f"stream.device_ring_mib = {stream.device_ring_mib}"
        if stream.transport == "gpunetio":
            ring = f"{stream.queues} queues of stream.slots = {stream.slots}"
        raise UserError(
            f"the receiver needs {needed / 1e9:.1f} GB of GPU memory for problem.n = {config.n},"
            f" solver.replicas = {config.solver.replicas} and {ring}, but {free / 1e9:.1f} GB are free; lower"
            " one of them"
        )
