"""Requests on the GPU: resident models, a batch of solves in one launch, workers that stay, and their rings.

The kernels are in kernels/service.cu; a request is an item of the work ring (see rings.py). While workers
stay, nothing here takes or gives back device memory, and nothing waits for the whole device.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdsb import cuda
from streamdsb.errors import RunFailed, UserError
from streamdsb.service.fragments import FRAGMENT_BYTES, fragments_of
from streamdsb.service.limits import HEADER_BYTES, RING_ITEMS
from streamdsb.service.messages import FIELD_FOLLOWS, SOLVE
from streamdsb.service.models import Model
from streamdsb.service.rings import DT_AT, PLACE_AT, REPLY_BYTES, STOP, WORK_BYTES, XI_AT, Rings
from streamdsb.service.solve import DEFAULT_DT, gain_of

if TYPE_CHECKING:
    import cupy

THREADS = 256
BLOCKS_A_MULTIPROCESSOR = 2
PRODUCED_AT_ONCE = 32

_STARTED_NS, _ENDED_NS, _CONTROL_WORDS = 80, 96, 112
_RINGS = np.dtype([(name, "u8") for name in ("work", "replies", "reply_sequence", "acknowledged", "control")])
_HOST = np.dtype([(name, "u8") for name in ("replies", "reply_sequence", "control")])
_STORE = np.dtype([(name, "u8") for name in ("models", "formats")])
_KERNELS = ("serve", "saturate", "solve_batch")
_HOST_TO_DEVICE = 1
_RESERVED_BYTES = 1024  # of shared memory a block, for the system
_STOP_S = 5.0


def mapped_array(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """A zeroed array in pinned host memory that kernels read and write in place."""
    import cupy

    count = int(np.prod(shape, dtype=np.int64))
    memory = cupy.cuda.alloc_pinned_memory(max(count, 1) * np.dtype(dtype).itemsize)
    array = np.frombuffer(memory, dtype, count)
    array[...] = 0
    return array.reshape(shape)


def most_workers(shared_bytes: int) -> int:
    """Worker blocks that the current device holds beside the block that feeds them."""
    import cupy

    most = int(cupy.cuda.Device().attributes["MaxSharedMemoryPerMultiprocessor"])
    blocks = min(BLOCKS_A_MULTIPROCESSOR, most // (shared_bytes + _RESERVED_BYTES))
    return blocks * cuda.multiprocessors() - 1


def kernel_of(name: str) -> tuple[Any, int]:
    """A kernel of service.cu, granted the bytes of shared memory that it is to be launched with; both."""
    defines = {"MODEL_BYTES": FRAGMENT_BYTES}
    defines |= {f"WITHOUT_{other.upper()}": 1 for other in _KERNELS if other != name}
    size = cuda.zeros(1, np.uint32)
    cuda.load("service.cu", "shared_bytes", defines)((1,), (1,), (size,))
    shared = int(size.get()[0])
    kernel = cuda.load("service.cu", name, defines)
    kernel.max_dynamic_shared_size_bytes = shared
    cuda.carve_out(kernel, BLOCKS_A_MULTIPROCESSOR * (shared + _RESERVED_BYTES))
    return kernel, shared


def items_of(frames: np.ndarray, place: int, model: Model, xi: float = 0.0, dt: float = 0.0) -> np.ndarray:
    """SOLVE frames, uint8 (m, size), as items of the work ring, uint8 (m, WORK_BYTES)."""
    items = np.zeros((len(frames), WORK_BYTES), np.uint8)
    items[:, : frames.shape[1]] = frames
    items[:, PLACE_AT : PLACE_AT + 4].view("<u4")[:] = place
    items[:, XI_AT : XI_AT + 4].view("<f4")[:] = xi or gain_of(model)
    items[:, DT_AT : DT_AT + 4].view("<f4")[:] = dt or DEFAULT_DT
    return items


class DeviceStore:
    """Room for models on the current CUDA device, `places` of them, taken at once."""

    def __init__(self, places: int) -> None:
        import cupy

        self._fragments = cuda.zeros(places * FRAGMENT_BYTES, np.uint8)
        self._formats = cuda.zeros(places, np.uint32)
        store = np.zeros((), _STORE)
        store["models"], store["formats"] = self._fragments.data.ptr, self._formats.data.ptr
        self.address = cuda.upload(store)
        self._staged = mapped_array(FRAGMENT_BYTES, np.uint8)
        self._staged_format = mapped_array(1, np.uint32)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        cuda.settle()

    def upload(self, place: int, model: Model) -> None:
        """Put `model` at `place`, which no request may be reading; it is there when this returns."""
        from cupy.cuda import runtime

        fragments = fragments_of(model)
        self._staged[: fragments.size] = fragments
        self._staged_format[0] = model.format
        to = self._fragments.data.ptr + place * FRAGMENT_BYTES, self._formats.data.ptr + 4 * place
        for target, source, size in (
            (to[0], self._staged, fragments.size),
            (to[1], self._staged_format, 4),
        ):
            runtime.memcpyAsync(target, cuda.address(source), size, _HOST_TO_DEVICE, self._stream.ptr)
        self._stream.synchronize()


class _DeviceRings:
    """Rings in device memory; work items elsewhere if their address is given."""

    def __init__(self, work: int | None = None) -> None:
        self.replies = cuda.zeros((RING_ITEMS, REPLY_BYTES), np.uint8)
        self.control = cuda.zeros(_CONTROL_WORDS, np.uint64)
        self._sequence = cuda.zeros((2, RING_ITEMS), np.uint64)
        self._work = cuda.zeros((RING_ITEMS, WORK_BYTES), np.uint8) if work is None else None
        rings = np.zeros((), _RINGS)
        rings["work"] = work if self._work is None else self._work.data.ptr
        rings["replies"], rings["control"] = self.replies.data.ptr, self.control.data.ptr
        rings["reply_sequence"] = self._sequence.data.ptr
        rings["acknowledged"] = self._sequence.data.ptr + 8 * RING_ITEMS
        self.address = cuda.upload(rings)


class ResidentWorkers:
    """Worker blocks that stay on the current device and answer what comes through the host's rings.

    rings: in mapped memory, `make_rings(mapped_array)`; workers: blocks, all that fit if None.
    """

    def __init__(self, rings: Rings, store: DeviceStore, workers: int | None = None) -> None:
        import cupy

        self._kernel, self._shared = kernel_of("serve")
        most = most_workers(self._shared)
        if workers is not None and workers > most:
            raise UserError(f"workers is {workers}, but this GPU has room for 1 to {most} worker blocks")
        self._host, self._store = rings, store
        self._blocks = 1 + (workers or most)
        self._rings = _DeviceRings(cuda.address(rings.work))
        host = np.zeros((), _HOST)
        host["replies"], host["control"] = cuda.address(rings.replies), cuda.address(rings.control)
        host["reply_sequence"] = cuda.address(rings.reply_sequence)
        self._host_address = cuda.upload(host)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._started = False
        cuda.settle()

    def start(self) -> None:
        """Launch the workers; they stay until the rings' stop flag is up. The device must be idle before."""
        gc.collect()  # freeing device memory waits for the workers' end: free now what is left
        arguments = self._rings.address, self._host_address, self._store.address
        with self._stream:
            self._kernel((self._blocks,), (THREADS,), arguments, shared_mem=self._shared)
        self._started = True

    def check(self) -> None:
        """RunFailed if the workers have ended although nobody stopped them."""
        if self._started and cuda.check_stream(self._stream, "the worker kernel"):
            raise RunFailed("the worker kernel ended by itself")

    def stop(self) -> None:
        """End the workers and wait for them; RunFailed if they do not, or had a fault."""
        self._host.control[STOP] = 1
        deadline = time.monotonic() + _STOP_S
        while self._started and not cuda.check_stream(self._stream, "the worker kernel"):
            if time.monotonic() > deadline:
                raise RunFailed(f"the worker kernel did not end within {_STOP_S:g} s of being stopped")
            time.sleep(1e-3)
        self._started = False


@dataclass(frozen=True)
class Saturated:
    """Requests a second that the rings carried, and the last 4096 replies, uint8 (4096, REPLY_BYTES)."""

    rate: float
    replies: np.ndarray


class GpuSolver:
    """Models resident on the current CUDA device; place i holds models[i]."""

    def __init__(self, models: Sequence[Model]) -> None:
        cuda.device_count()
        self._store = DeviceStore(len(models))
        for place, model in enumerate(models):
            self._store.upload(place, model)

    def solve(self, items: np.ndarray) -> np.ndarray:
        """Solve items, uint8 (m, WORK_BYTES), in one launch; their replies, uint8 (m, REPLY_BYTES)."""
        device_items = cuda.empty(items.shape, np.uint8)
        device_items.set(np.ascontiguousarray(items))
        replies = cuda.zeros((len(items), REPLY_BYTES), np.uint8)
        self.launch(device_items, replies)
        return replies.get()

    def launch(self, items: cupy.ndarray, replies: cupy.ndarray) -> None:
        """`solve` on arrays that are on the device, without waiting."""
        kernel, shared = kernel_of("solve_batch")
        kernel((len(items),), (THREADS,), (items, replies, self._store.address), shared_mem=shared)

    def saturate(self, patterns: np.ndarray, count: int, workers: int | None = None) -> Saturated:
        """Run `count` requests, a multiple of PRODUCED_AT_ONCE, through rings on the device, at full speed.

        Producer warps copy the patterns, items of one frame size, in turn and give request i the seed i; a
        consumer warp takes the replies in order. workers: blocks that solve, all that fit if None.
        """
        if count % PRODUCED_AT_ONCE:
            raise UserError(f"{count} requests are not a multiple of {PRODUCED_AT_ONCE}")
        rings = _DeviceRings()
        device_patterns = cuda.empty(patterns.shape, np.uint8)
        device_patterns.set(np.ascontiguousarray(patterns))
        header = patterns[0, :HEADER_BYTES].view(SOLVE)[0]
        frame_bytes = HEADER_BYTES + (2 * int(header["n"]) if header["flags"] & FIELD_FOLLOWS else 0)
        counts = np.uint32(len(patterns)), np.uint64(count), np.uint32(-(-frame_bytes // 16) * 16)
        arguments = rings.address, self._store.address, device_patterns, *counts
        kernel, shared = kernel_of("saturate")
        blocks = 1 + (workers or most_workers(shared))
        kernel((blocks,), (THREADS,), arguments, shared_mem=shared)
        cuda.settle()
        times = rings.control.get()
        rate = count / (int(times[_ENDED_NS]) - int(times[_STARTED_NS])) * 1e9
        return Saturated(rate, rings.replies.get())
