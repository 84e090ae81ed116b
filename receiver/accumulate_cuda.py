"""Accumulation on the GPU: the persistent receive kernel, from the first pass to the last."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from receiver.check import Count
from receiver.update_cuda import STATES, CudaState
from receiver.window_cuda import DeviceWindows
from streamdsb import cuda
from streamdsb.control_words import ControlWords
from streamdsb.errors import RunFailed, UserError
from streamdsb.frame import ETHERTYPE_FIELD
from streamdsb.layout import (
    BLOCK_COLUMNS,
    GROUP_ROWS,
    HEADER_BYTES,
    MAX_CUDA_REPLICAS,
    MAX_QUEUES,
    PAYLOAD_BYTES,
    Layout,
    RowRange,
)
from streamdsb.queues.peer import BURST_FRAMES, PEER_QUEUE, PLACE_BYTES, DeviceRing, PeerRing

_WORKERS = 256
_THREADS = _WORKERS + 32


def job_of(queue: np.dtype) -> np.dtype:
    """struct Job of job.cuh for a kind of queue."""
    share = [("queue", queue), *((name, "u8") for name in ("first_row", "rows", "pending", "window"))]
    return np.dtype(
        [
            ("states", STATES),
            ("first_pass", "u8"),
            ("queues", "u8"),
            ("ring_mask", "u8"),
            ("run", "u4"),
            ("ethertype", "u4"),
            ("xi", "f4"),
            ("dt", "f4"),
            ("ring", "u8"),
            ("control", "u8"),
            ("state", "u8"),
            ("copies", "u8"),
            ("looks", "u8"),
            ("window_words", "u8"),
            ("share", np.dtype(share), MAX_QUEUES),
        ]
    )


JOB = job_of(PEER_QUEUE)
CONTROL = np.dtype(
    [
        ("stop", "u8"),
        ("update", "u8"),
        ("moves", "u8"),
        ("decay", "u8"),
        ("signs", "u8"),
        ("unused", "u8", 11),
        ("drained", "u8"),
        ("updated", "u8"),
        ("beat", "u8"),
        ("energies", "i8", MAX_CUDA_REPLICAS),
        ("ended", "u8", MAX_QUEUES),
        ("sent", "u8", MAX_QUEUES),
        ("counts", "u8", (MAX_QUEUES, len(Count))),
    ]
)
_STARVED = 5
"""Where this word of the kernel's State is."""

UNIT_BYTES = 64
_HEADERS_BYTES = 8 * BURST_FRAMES * HEADER_BYTES
_UPDATE_TIMEOUT_S = 30.0
_STATE_BYTES = 4096


def accumulation_path(replicas: int) -> str:
    """`mma` (binary tensor cores) or `popc`, whichever was measured to be faster."""
    return "mma" if replicas > 1 and cuda.has_binary_mma() else "popc"


def sign_tile_bytes(replicas: int) -> int:
    """Shared memory of a block: sign tiles, and set bits, of the replicas of one shard."""
    shards = -(-replicas // 32)
    shard = -(-replicas // shards)
    return -(-shard * (504 * 8 + 4) // 8) * 8


def shared_memory(replicas: int) -> int:
    """Shared memory, in bytes, of a multiprocessor that holds a block of the receive kernel and one more."""
    return sign_tile_bytes(replicas) + _HEADERS_BYTES + 8192


def load_kernel(
    source: str, function: str, replicas: int, path: str, workers: int = _WORKERS, queue: str = PeerRing.kind
) -> Any:
    """A kernel that accumulates, for `replicas` replicas and `workers` threads, its shared memory granted.

    queue: the kind of queue it receives from.
    """
    defines: dict[str, object] = {"REPLICAS": replicas, "PATH": path, "WORKERS": workers}
    kernel = cuda.load(source, function, defines | cuda.queue_kind(queue))
    kernel.max_dynamic_shared_size_bytes = sign_tile_bytes(replicas)
    return kernel


def measure_rate(replicas: int, ring: DeviceRing) -> float:
    """Payload bytes a second that the current device accumulates from the slots of `ring` alone."""
    bursts = min(ring.queues * ring.places, BLOCK_COLUMNS // GROUP_ROWS)
    signs = cuda.zeros((replicas, BLOCK_COLUMNS // 64), np.uint64)
    counts = cuda.zeros((replicas, BLOCK_COLUMNS), np.int32)
    kernel = load_kernel("accumulate.cu", "accumulate", replicas, accumulation_path(replicas))
    arguments = (np.uint64(ring.slots), signs, counts, np.uint64(BLOCK_COLUMNS), np.uint64(bursts))
    grid, shared = (2 * cuda.multiprocessors(),), sign_tile_bytes(replicas)
    seconds = cuda.event_seconds(lambda: kernel(grid, (_WORKERS,), arguments, shared_mem=shared), 5)
    return bursts * GROUP_ROWS * PAYLOAD_BYTES / seconds


class ReceiveKernel:
    """The resident receive kernel of one receiver: checks frames, adds their mismatch counts to the state's.

    `run` is the run id, `first_pass` the pass it starts with, `queue_rows` the rows that each queue carries.
    Queues that may lose frames need `windows`.
    """

    def __init__(
        self,
        layout: Layout,
        queue_rows: tuple[RowRange, ...],
        run: int,
        first_pass: int,
        ring: DeviceRing,
        state: CudaState,
        path: str | None = None,
        windows: DeviceWindows | None = None,
    ) -> None:
        import cupy

        if not 1 <= layout.replicas <= MAX_CUDA_REPLICAS:
            raise UserError(
                f"backend cuda takes solver.replicas from 1 to {MAX_CUDA_REPLICAS}, not {layout.replicas}"
            )
        path = path or accumulation_path(layout.replicas)
        self._kernel = load_kernel("receive.cu", "receive", layout.replicas, path, queue=ring.kind)
        self._shared = sign_tile_bytes(layout.replicas) + _HEADERS_BYTES
        self._kernel.max_dynamic_shared_size_bytes = self._shared
        cuda.carve_out(self._kernel, shared_memory(layout.replicas))
        self._blocks = max(cuda.multiprocessors(), ring.queues + 1)
        self._windows = windows
        self._is_lossy = windows is not None
        waiting = ring.places * BURST_FRAMES if windows is None else 64 * windows.words
        units = 1 << (ring.queues * waiting - 1).bit_length()
        self._units = cuda.zeros(units * UNIT_BYTES, np.uint8)
        self._pending = cuda.zeros((ring.queues, ring.places), np.uint32)
        self._state = cuda.zeros(_STATE_BYTES, np.uint8)
        self._control = ControlWords(CONTROL)
        self._queues = ring.queues
        self._ring = ring
        self._dynamics = state.dynamics
        self._replicas = layout.replicas
        job = np.zeros((), job_of(ring.fields))
        job["states"], job["first_pass"], job["queues"] = state.pointers, first_pass, ring.queues
        job["ring_mask"], job["run"], job["ethertype"] = units - 1, run, ETHERTYPE_FIELD
        job["xi"], job["dt"] = state.dynamics.xi, state.dynamics.dt
        job["ring"], job["control"] = self._units.data.ptr, self._control.address
        job["state"] = self._state.data.ptr
        for index, part in enumerate(queue_rows):
            pending = self._pending[index].data.ptr
            window = windows.address(index) if windows else 0
            job["share"][index] = (ring.queue(index), part.start, len(part), pending, window)
        self._copies = None
        if windows is not None:
            self._copies = cuda.zeros(self._blocks * PLACE_BYTES, np.uint8)
            job["copies"], job["looks"] = self._copies.data.ptr, windows.looks_address
            job["window_words"] = windows.words
        self._job = cuda.upload(job)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        cuda.settle()

    def start(self) -> None:
        """Launch the kernel; it stays until `stop`. The device must be idle before."""
        # freeing device memory waits for the kernel's end: collect what is left of earlier runs now
        gc.collect()
        with self._stream:
            self._kernel((self._blocks,), (_THREADS,), (self._job,), shared_mem=self._shared)

    @property
    def drained(self) -> int:
        """Passes, since the start, that are received and accumulated to the end."""
        return int(self._control["drained"])

    @property
    def counts(self) -> np.ndarray:
        """Frames by queue and `Count` since the start, int64 (queues, len(Count)); a copy."""
        counts: np.ndarray = self._control["counts"][: self._queues].astype(np.int64)
        if self._is_lossy:  # accepted by their headers before their payloads were looked at
            counts[:, Count.ACCEPTED] -= counts[:, Count.CORRUPT]
        return counts

    @property
    def sent(self) -> list[int]:
        """What each queue's last PASS_END counted."""
        return [int(count) for count in self._control["sent"][: self._queues]]

    @property
    def ended(self) -> list[int]:
        """Passes that each queue has ended."""
        return [int(count) for count in self._control["ended"][: self._queues]]

    def check(self) -> None:
        """RunFailed if the kernel has ended although nobody stopped it."""
        if cuda.check_stream(self._stream, "the receive kernel"):
            raise RunFailed("the receive kernel ended by itself")

    def wait_drained(self, passes: int, timeout: float, tick: Callable[[], None] | None = None) -> None:
        """Return once `passes` passes are drained; call `tick` every 0.1 s.

        RunFailed if the kernel faults, or if no frame is accepted for `timeout` seconds.
        """
        moved = time.monotonic()
        accepted = 0
        while not self._control.reached("drained", passes):
            self.check()
            if tick is not None:
                tick()
            now, before, accepted = time.monotonic(), accepted, int(self.counts[:, Count.ACCEPTED].sum())
            if accepted != before:
                moved = now
            elif now - moved > timeout:
                raise RunFailed(f"no frame came for {timeout:g} s: {self.describe()}")

    def finish_pass(self, k: int, passes: int, signs: np.ndarray) -> np.ndarray:
        """These rows' share of 2E, int64 (B,), from the counts of pass k; then update k, if there is one.

        `passes` is how many passes, with this one, have been drained since the start.  The update writes the
        new sign bits of these rows into `signs`, uint64 (B, ceil(n / 64)) in pinned memory, too.
        """
        moves = k < self._dynamics.updates
        decay = self._dynamics.detuning(k) if moves else np.float32(0)
        self._control["moves"] = moves
        self._control["decay"] = int(decay.view(np.uint32))
        self._control["signs"] = cuda.address(signs)
        self._control["update"] = passes
        deadline = time.monotonic() + _UPDATE_TIMEOUT_S
        while not self._control.reached("updated", passes):
            self.check()
            if time.monotonic() > deadline:
                raise RunFailed(f"update {k} did not end within {_UPDATE_TIMEOUT_S:g} s")
        return np.array(self._control["energies"][: self._replicas])

    def describe(self) -> str:
        """The counters, a queue at a time."""
        return "; ".join(
            f"queue {index}: "
            + ", ".join(
                f"{int(row[reason])} {reason.name.lower().replace('_', ' ')}"
                for reason in Count
                if row[reason]
            )
            for index, row in enumerate(self.counts)
        )

    def free(self) -> None:
        """Give the device memory back, once the kernel has ended; the counts stay."""
        del self._units, self._pending, self._state, self._job, self._ring, self._copies, self._windows

    @property
    def starved_cycles(self) -> int:
        """Clock cycles that worker blocks waited for work, all together; known once the kernel has ended."""
        return int(self._state.view(np.uint64)[_STARVED].get())

    def stop(self) -> None:
        """End the kernel and wait for it."""
        self._control["stop"] = 1
        deadline = time.monotonic() + 5
        while not cuda.check_stream(self._stream, "the receive kernel"):
            if time.monotonic() > deadline:
                raise RunFailed("the receive kernel did not end within 5 s of being stopped")
            time.sleep(1e-4)
