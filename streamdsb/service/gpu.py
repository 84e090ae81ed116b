"""Requests on the GPU: resident models, a batch of solves in one launch, and the rings on the device.

The kernels are in kernels/service.cu; a request is an item of the work ring (see rings.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdsb import cuda
from streamdsb.service.fragments import FRAGMENT_BYTES, fragments_of
from streamdsb.service.limits import HEADER_BYTES, RING_ITEMS
from streamdsb.service.messages import FIELD_FOLLOWS, SOLVE
from streamdsb.service.models import Model
from streamdsb.service.rings import DT_AT, PLACE_AT, REPLY_BYTES, WORK_BYTES, XI_AT
from streamdsb.service.solve import DEFAULT_DT, gain_of

if TYPE_CHECKING:
    import cupy

THREADS = 256
BLOCKS_A_MULTIPROCESSOR = 2

_STARTED_NS, _ENDED_NS, _CONTROL_WORDS = 80, 96, 112


def _struct(*pointers: int) -> Any:
    """Device pointers as a kernel's parameter of a struct of them."""
    return np.array([tuple(pointers)], np.dtype([(f"p{i}", "u8") for i in range(len(pointers))]))[0]


def _kernel(name: str) -> Any:
    return cuda.load("service.cu", name, {"MODEL_BYTES": FRAGMENT_BYTES})


def items_of(frames: np.ndarray, place: int, model: Model, xi: float = 0.0, dt: float = 0.0) -> np.ndarray:
    """SOLVE frames, uint8 (m, size), as items of the work ring, uint8 (m, WORK_BYTES)."""
    items = np.zeros((len(frames), WORK_BYTES), np.uint8)
    items[:, : frames.shape[1]] = frames
    items[:, PLACE_AT : PLACE_AT + 4].view("<u4")[:] = place
    items[:, XI_AT : XI_AT + 4].view("<f4")[:] = xi or gain_of(model)
    items[:, DT_AT : DT_AT + 4].view("<f4")[:] = dt or DEFAULT_DT
    return items


@dataclass(frozen=True)
class Saturated:
    """Requests a second that the rings carried, and the last 4096 replies, uint8 (4096, REPLY_BYTES)."""

    rate: float
    replies: np.ndarray


class GpuSolver:
    """Models resident on the current CUDA device; place i holds models[i]."""

    def __init__(self, models: Sequence[Model]) -> None:
        cuda.device_count()
        self._fragments = cuda.zeros(len(models) * FRAGMENT_BYTES, np.uint8)
        for place, model in enumerate(models):
            packed = fragments_of(model)
            start = place * FRAGMENT_BYTES
            self._fragments[start : start + packed.size].set(packed)
        self._formats = cuda.zeros(len(models), np.uint32)
        self._formats.set(np.array([model.format for model in models], np.uint32))
        self._store = _struct(self._fragments.data.ptr, self._formats.data.ptr)
        size = cuda.zeros(1, np.uint32)
        _kernel("shared_bytes")((1,), (1,), (size,))
        self._shared_bytes = int(size.get()[0])

    def _launch(self, name: str, blocks: int, arguments: tuple[Any, ...]) -> None:
        kernel = _kernel(name)
        kernel.max_dynamic_shared_size_bytes = self._shared_bytes
        kernel((blocks,), (THREADS,), arguments, shared_mem=self._shared_bytes)

    def solve(self, items: np.ndarray) -> np.ndarray:
        """Solve items, uint8 (m, WORK_BYTES), in one launch; their replies, uint8 (m, REPLY_BYTES)."""
        device_items = cuda.empty(items.shape, np.uint8)
        device_items.set(np.ascontiguousarray(items))
        replies = cuda.zeros((len(items), REPLY_BYTES), np.uint8)
        self.launch(device_items, replies)
        return replies.get()

    def launch(self, items: cupy.ndarray, replies: cupy.ndarray) -> None:
        """`solve` on arrays that are on the device, without waiting."""
        self._launch("solve_batch", len(items), (items, replies, self._store))

    def saturate(self, patterns: np.ndarray, count: int, workers: int | None = None) -> Saturated:
        """Run `count` requests (a multiple of 8) through rings on the device, as fast as they go.

        A producer warp copies the patterns, items of one frame size, in turn and gives request i the seed i;
        a consumer warp takes the replies in order. workers: blocks that solve, all that fit if None.
        """
        assert count % 8 == 0
        if workers is None:
            workers = BLOCKS_A_MULTIPROCESSOR * cuda.multiprocessors() - 1
        work = cuda.zeros((RING_ITEMS, WORK_BYTES), np.uint8)
        replies = cuda.zeros((RING_ITEMS, REPLY_BYTES), np.uint8)
        sequence, acknowledged = cuda.zeros(RING_ITEMS, np.uint64), cuda.zeros(RING_ITEMS, np.uint64)
        control = cuda.zeros(_CONTROL_WORDS, np.uint64)
        device_patterns = cuda.empty(patterns.shape, np.uint8)
        device_patterns.set(np.ascontiguousarray(patterns))
        rings = _struct(
            work.data.ptr, replies.data.ptr, sequence.data.ptr, acknowledged.data.ptr, control.data.ptr
        )
        header = patterns[0, :HEADER_BYTES].view(SOLVE)[0]
        frame_bytes = HEADER_BYTES + (2 * int(header["n"]) if header["flags"] & FIELD_FOLLOWS else 0)
        counts = np.uint32(len(patterns)), np.uint64(count), np.uint32(-(-frame_bytes // 16) * 16)
        self._launch("saturate", workers + 1, (rings, self._store, device_patterns, *counts))
        cuda.settle()
        times = control.get()
        rate = count / (int(times[_ENDED_NS]) - int(times[_STARTED_NS])) * 1e9
        return Saturated(rate, replies.get())
