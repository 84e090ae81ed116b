"""Accumulation on the GPU: the persistent receive kernel, from the first pass to the last."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from receiver.check import Count
from receiver.update_cuda import STATES, CudaState
from streamdsb import cuda
from streamdsb.errors import RunFailed, UserError
from streamdsb.frame import ETHERTYPE
from streamdsb.intrinsics import load_acquire
from streamdsb.jit import compile_kernels, kernel
from streamdsb.layout import HEADER_BYTES, MAX_QUEUES, Layout, RowRange
from streamdsb.queues.peer import BURST_FRAMES, PEER_QUEUE, PeerRing

MAX_REPLICAS = 64
_WORKERS = 256
_THREADS = _WORKERS + 32
_SHARE = np.dtype([("queue", PEER_QUEUE), ("first_row", "u8"), ("rows", "u8"), ("pending", "u8")])
_JOB = np.dtype(
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
        ("share", _SHARE, MAX_QUEUES),
    ]
)
_CONTROL = np.dtype(
    [
        ("stop", "u8"),
        ("update", "u8"),
        ("moves", "u8"),
        ("decay", "u8"),
        ("unused", "u8", 12),
        ("drained", "u8"),
        ("updated", "u8"),
        ("beat", "u8"),
        ("energies", "i8", MAX_REPLICAS),
        ("ended", "u8", MAX_QUEUES),
        ("sent", "u8", MAX_QUEUES),
        ("counts", "u8", (MAX_QUEUES, len(Count))),
    ]
)
_WORD = {"drained": 16, "updated": 17}
"""Where these words of _CONTROL are."""
_STARVED = 5
"""Where this word of the kernel's State is."""

_UNIT_BYTES = 64
_HEADERS_BYTES = 8 * BURST_FRAMES * HEADER_BYTES
_UPDATE_TIMEOUT_S = 30.0
_LOOK_UP_S = 0.1
_NAP_S = 50e-6
_SPINS = 100_000
_STATE_BYTES = 4096


@kernel("boolean(uint64[::1], int64, uint64)")
def _spin(words: np.ndarray, index: int, value: np.uint64) -> bool:
    """Look at words[index] for some tens of microseconds; True once it is `value` or more."""
    for _ in range(_SPINS):  # noqa: SIM110
        if load_acquire(words, index) >= value:
            return True
    return False


def ethertype_field() -> int:
    """The EtherType as a little-endian reader of the header finds it."""
    return int.from_bytes(ETHERTYPE.to_bytes(2, "big"), "little")


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


def load_kernel(source: str, function: str, replicas: int, path: str, workers: int = _WORKERS) -> Any:
    """A kernel that accumulates, for `replicas` replicas and `workers` threads, its shared memory granted."""
    kernel = cuda.load(source, function, {"REPLICAS": replicas, "PATH": path, "WORKERS": workers})
    kernel.max_dynamic_shared_size_bytes = sign_tile_bytes(replicas)
    return kernel


class ReceiveKernel:
    """The resident receive kernel of one receiver: checks frames, adds their mismatch counts to the state's.

    `run` is the run id, `first_pass` the pass it starts with, `queue_rows` the rows that each queue carries.
    """

    def __init__(
        self,
        layout: Layout,
        queue_rows: tuple[RowRange, ...],
        run: int,
        first_pass: int,
        ring: PeerRing,
        state: CudaState,
        path: str | None = None,
    ) -> None:
        import cupy

        if not 1 <= layout.replicas <= MAX_REPLICAS:
            raise UserError(
                f"solver.replicas: backend cuda takes 1 to {MAX_REPLICAS} replicas, not {layout.replicas}"
            )
        path = path or accumulation_path(layout.replicas)
        self._kernel = load_kernel("receive.cu", "receive", layout.replicas, path)
        self._shared = sign_tile_bytes(layout.replicas) + _HEADERS_BYTES
        self._kernel.max_dynamic_shared_size_bytes = self._shared
        cuda.carve_out(self._kernel, shared_memory(layout.replicas))
        units = 1 << (ring.queues * ring.places * BURST_FRAMES - 1).bit_length()
        self._units = cuda.zeros(units * _UNIT_BYTES, np.uint8)
        self._pending = cuda.zeros((ring.queues, ring.places), np.uint32)
        self._state = cuda.zeros(_STATE_BYTES, np.uint8)
        self._control = cuda.mapped(_CONTROL)
        self._words = self._control.reshape(1).view(np.uint64)
        self._counts = self._control["counts"]
        if not _spin.signatures:
            compile_kernels(_spin)
        self._queues = ring.queues
        self._ring = ring
        self._dynamics = state.dynamics
        self._replicas = layout.replicas
        job = np.zeros((), _JOB)
        job["states"], job["first_pass"], job["queues"] = state.pointers, first_pass, ring.queues
        job["ring_mask"], job["run"], job["ethertype"] = units - 1, run, ethertype_field()
        job["xi"], job["dt"] = state.dynamics.xi, state.dynamics.dt
        job["ring"], job["control"] = self._units.data.ptr, cuda.address(self._control)
        job["state"] = self._state.data.ptr
        for index, part in enumerate(queue_rows):
            pending = self._pending[index].data.ptr
            job["share"][index] = (ring.queue(index), part.start, len(part), pending)
        self._job = cuda.upload(job)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._blocks = max(cuda.multiprocessors(), ring.queues + 1)
        cuda.settle()

    def start(self) -> None:
        """Launch the kernel; it stays until `stop`. The device must be idle before."""
        with self._stream:
            self._kernel((self._blocks,), (_THREADS,), (self._job,), shared_mem=self._shared)

    @property
    def drained(self) -> int:
        """Passes, since the start, that are received and accumulated to the end."""
        return int(self._control["drained"])

    @property
    def counts(self) -> np.ndarray:
        """Frames by queue and `Count` since the start, int64 (queues, len(Count)); a copy."""
        return self._counts[: self._queues].astype(np.int64)

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
        while not self._reached("drained", passes):
            if tick is not None:
                tick()
            now, before, accepted = time.monotonic(), accepted, int(self.counts[:, Count.ACCEPTED].sum())
            if accepted != before:
                moved = now
            elif now - moved > timeout:
                raise RunFailed(f"no frame came for {timeout:g} s: {self.describe()}")

    def finish_pass(self, k: int, passes: int) -> np.ndarray:
        """These rows' share of 2E, int64 (B,), from the counts of pass k; then update k, if there is one.

        `passes` is how many passes, with this one, have been drained since the start.
        """
        moves = k < self._dynamics.updates
        decay = self._dynamics.detuning(k) if moves else np.float32(0)
        self._control["moves"] = moves
        self._control["decay"] = int(decay.view(np.uint32))
        self._control["update"] = passes
        deadline = time.monotonic() + _UPDATE_TIMEOUT_S
        while not self._reached("updated", passes):
            if time.monotonic() > deadline:
                raise RunFailed(f"update {k} did not end within {_UPDATE_TIMEOUT_S:g} s")
        return np.array(self._control["energies"][: self._replicas])

    def _reached(self, word: str, value: int) -> bool:
        """Wait up to 0.1 s, without the interpreter's lock, for a word of the kernel's to reach `value`."""
        deadline = time.monotonic() + _LOOK_UP_S
        while not _spin(self._words, _WORD[word], np.uint64(value)):
            if time.monotonic() > deadline:
                self.check()
                return False
            time.sleep(_NAP_S)
        return True

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
