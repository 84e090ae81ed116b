"""The receiver on a GPU: the twin of engine, around the resident receive kernel."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from receiver.accumulate_cuda import ReceiveKernel, measure_rate
from receiver.check import Count
from receiver.feed_cuda import HostFeed
from receiver.update_cpu import Dynamics, checksum
from receiver.update_cuda import CudaState
from streamdsb import cuda
from streamdsb.config import Config
from streamdsb.errors import RunFailed, UserError
from streamdsb.layout import RowRange
from streamdsb.messages import Begin, Finish, PassReceived, Progress, Ready, Spins, Stop, Updated
from streamdsb.queues import FrameReceiver
from streamdsb.queues.peer import PeerRing
from streamdsb.worker import Cancelled, Control, every

_PROGRESS_S = 0.25


class CudaReceiverEngine:
    """Holds the state of all replicas on a GPU and serves the coordinator's passes from the ring.

    receivers: the queues of a generator that sends through the host, none if it writes the ring itself.
    """

    def __init__(
        self,
        config: Config,
        run: int,
        field: np.ndarray | None,
        ring: PeerRing,
        receivers: Sequence[FrameReceiver],
        control: Control,
    ) -> None:
        import cupyx

        self._config = config
        self._layout = config.layout
        self._control = control
        self._ring = ring
        dynamics = Dynamics(config.solver.updates, config.xi, np.float32(config.solver.dt))
        self._state = CudaState(self._layout, RowRange(0, config.n), dynamics, config.solver.seed, field)
        self._kernel = ReceiveKernel(self._layout, self._layout.queue_rows, run, 0, ring, self._state)
        self._feed = HostFeed(receivers, ring) if receivers else None
        self._signs = self._state.host_signs
        self._next_signs: np.ndarray = cupyx.zeros_pinned(self._signs.shape, np.uint64)
        self._pass = 0
        self._seen = self._kernel.counts
        self._best = Spins(best_pass=0, best_replica=0, best_two_energy=2**62)
        self._best_signs = self._signs[0].copy()

    def run(self) -> None:
        """Serve Begin and Finish until the coordinator says Stop, then hand over the spins."""
        self._control.send(Ready(payload_per_second=measure_rate(self._layout.replicas, self._ring)))
        every(_PROGRESS_S, self._report_progress)
        message = self._control.next()
        if isinstance(message, Begin):
            # not before the first Begin: what the generator sets up on this device has to be done
            self._kernel.start()
            self._ring.receiving.set()
        try:
            while not isinstance(message, Stop):
                if isinstance(message, Begin):
                    self._receive_pass(message.pass_index)
                elif isinstance(message, Finish):
                    self._finish_pass(message)
                else:
                    raise RunFailed(f"the coordinator sent {type(message).__name__} in the middle of a run")
                message = self._control.next()
        finally:
            self._kernel.stop()
        if message.completed:
            bitmaps = np.concatenate([self._best_signs[None], self._signs])
            self._control.send(self._best, bitmaps.tobytes())

    def _counts(self) -> np.ndarray:
        """Frames of this pass by queue and `Count`, int64 (queues, len(Count))."""
        return self._kernel.counts - self._seen

    def _report_progress(self) -> None:
        accepted = int(self._counts()[:, Count.ACCEPTED].sum())
        self._control.send(Progress(pass_index=self._pass, frames=max(accepted, 0)))

    def _receive_pass(self, pass_index: int) -> None:
        start = time.perf_counter()
        self._pass = pass_index
        timeout_s = self._config.stream.timeout_s
        if self._feed is not None:
            self._feed.forward_pass(timeout_s, self._look_up)
        self._kernel.wait_drained(pass_index + 1, timeout_s, self._look_up)
        counts = self._counts()
        self._require_complete(counts)
        # before the next pass is released, or frames of it may be counted already
        self._seen = self._seen + counts
        total = {reason: int(counts[:, reason].sum()) for reason in Count}
        self._control.send(
            PassReceived(
                pass_index=pass_index,
                frames=total[Count.ACCEPTED],
                dropped=total[Count.MISSING],
                duplicated=total[Count.DUPLICATE],
                rejected={reason.name.lower(): total[reason] for reason in list(Count)[3:]},
                receive_s=time.perf_counter() - start,
                drain_s=0.0,
            )
        )

    def _look_up(self) -> None:
        if self._control.cancelled.is_set():
            raise Cancelled

    def _require_complete(self, counts: np.ndarray) -> None:
        for queue, sent in enumerate(self._kernel.sent):
            accepted, expected = int(counts[queue, Count.ACCEPTED]), self._layout.frames_on(queue)
            if not accepted == sent == expected:
                raise RunFailed(
                    f"pass {self._pass}, queue {queue}: {accepted} of {expected} frames were added, the"
                    f" sender counted {sent} ({self._kernel.describe()})"
                )

    def _finish_pass(self, finish: Finish) -> None:
        start = time.perf_counter()
        k = finish.pass_index
        two_energy = self._kernel.finish_pass(k, k + 1, self._next_signs).tolist()
        self._remember_best(k, two_energy)
        if finish.advance:
            self._signs, self._next_signs = self._next_signs, self._signs
        self._control.send(
            Updated(
                pass_index=k,
                two_energy=two_energy,
                checksum=checksum(self._signs),
                update_s=time.perf_counter() - start,
            )
        )

    def _remember_best(self, pass_index: int, two_energy: list[int]) -> None:
        lowest = min(two_energy)
        if lowest < self._best.best_two_energy:
            replica = two_energy.index(lowest)
            self._best = Spins(best_pass=pass_index, best_replica=replica, best_two_energy=lowest)
            self._best_signs[:] = self._signs[replica]


def device_bytes(config: Config) -> int:
    """GPU memory of the receiver: state, counts and ring."""
    return config.layout.state_bytes + (config.stream.device_ring_mib << 20)


def require_device_memory(config: Config) -> None:
    """Raise UserError if state and ring do not fit into the free memory of the current device."""
    needed, free = device_bytes(config), cuda.free_memory()
    if needed > free:
        raise UserError(
            f"the receiver needs {needed / 1e9:.1f} GB of GPU memory for problem.n = {config.n},"
            f" solver.replicas = {config.solver.replicas} and stream.device_ring_mib ="
            f" {config.stream.device_ring_mib}, but {free / 1e9:.1f} GB are free; lower one of them"
        )
