"""CUDA kernels: their sources, their compilation for the device found, and memory that outlives pools.

The sources lie as kernels/*.cu and *.cuh beside their CPU twins.  They are compiled at run time, through
CuPy on a machine with a GPU (`load`), or by NVRTC alone on any machine (`compile_only`).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdsb.errors import RunFailed, UserError

if TYPE_CHECKING:
    import cupy

PACKAGES = ("streamdsb", "streamdsb.service", "generator", "receiver")
"""Where kernel sources lie, each in a folder `kernels`."""

OPTIONS = ("--std=c++17", "--fmad=false", "--diag-suppress=177")
"""What every kernel is compiled with; 177 warns of constants that one kernel of a header does not use."""

_SUCCESS, _NOT_READY = 0, 600
"""cudaSuccess and cudaErrorNotReady."""

_MORE_QUEUES = '#include "gpunetio_queue.cuh"\n'
"""What comes before the choice of the queue's kind: empty unless chosen, since it may need DOCA's headers."""

_QUEUE_KINDS: dict[str, dict[str, object]] = {
    "PeerQueue": {},
    "GpunetioQueue": {"QUEUE": "GpunetioQueue", "GPUNETIO": 1},
    "SoftwareQueue": {"QUEUE": "GpunetioQueue", "GPUNETIO": 2},
}

_INCLUDE = re.compile(r'^#include "([\w.]+)"\n', re.MULTILINE)


def _find(name: str) -> Path:
    for package in PACKAGES:
        path = Path(str(resources.files(package))) / "kernels" / name
        if path.is_file():
            return path
    raise FileNotFoundError(f"no kernel source {name} in the folders kernels/ of {', '.join(PACKAGES)}")


def source(name: str) -> str:
    """The kernel source `name`, for example "receive.cu", with every header it includes put in once.

    One text, so that the compilation cache, which knows a kernel by its text, sees a changed header.
    """
    seen: set[str] = set()

    def expand(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        text = _find(name).read_text().replace("#pragma once\n", "")
        if name == "queue_kind.cuh":
            text = _MORE_QUEUES + text
        return _INCLUDE.sub(lambda match: expand(match[1]), text)

    return expand(name)


def kernel_names() -> list[str]:
    """Every kernel source, for example "receive.cu"."""
    folders = (Path(str(resources.files(package))) / "kernels" for package in PACKAGES)
    return sorted(path.name for folder in folders for path in folder.glob("*.cu"))


def _defines(defines: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"-DSTREAMDSB_{name}={value}" for name, value in defines.items())


# --- on a machine with a GPU ------------------------------------------------------------------------


def device_count() -> int:
    """CUDA devices of this machine, at least 1; UserError if CuPy is missing or finds none."""
    # Modules loaded after a persistent kernel has started can wait for it forever.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    try:
        import cupy
    except ImportError as error:
        hint = "install it with: pip install 'streamdsb[cuda]'"
        raise UserError(f"backend cuda needs CuPy ({error}); {hint}") from error
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UserError(f"backend cuda finds no usable CUDA device ({error})") from error


def use_device(device: int) -> None:
    """Make `device` the calling thread's current CUDA device; UserError if there is none of that number."""
    count = device_count()
    import cupy

    if not 0 <= device < count:
        raise UserError(f"CUDA device {device} was asked for; this machine has devices 0 to {count - 1}")
    cupy.cuda.Device(device).use()


@cache
def _module(name: str, options: tuple[str, ...], device: int, backend: str) -> Any:
    import cupy

    module = cupy.RawModule(code=source(name), options=options, backend=backend)
    module.compile()
    return module


def load(name: str, function: str, defines: Mapping[str, object] | None = None) -> Any:
    """The kernel `function` of source `name`, compiled for the current device with -DSTREAMDSB_<KEY>=<value>.

    Compiled code is kept by CuPy in its cache on disk.  UserError if it needs DOCA, which is not installed.
    """
    import cupy

    options, backend = OPTIONS + _defines(defines or {}), "nvrtc"
    if defines and defines.get("GPUNETIO") == 1:
        # DOCA's headers include the C library's and rdma-core's, which NVRTC cannot read
        from streamdsb.gpunetio.library import compile_options

        options, backend = options + compile_options(), "nvcc"
    return _module(name, options, cupy.cuda.Device().id, backend).get_function(function)


def queue_kind(kind: str) -> dict[str, object]:
    """What to define for the kind of queue a kernel uses; nothing for the one it uses by default."""
    return _QUEUE_KINDS.get(kind, {"QUEUE": kind})


def carve_out(kernel: Any, shared_bytes: int) -> None:
    """Ask for a division of the L1 with room for `shared_bytes` of shared memory a multiprocessor.

    Kernels that are to share multiprocessors ask for the same; L1 beyond that speeds up streaming loads.
    """
    import cupy

    most = int(cupy.cuda.Device().attributes["MaxSharedMemoryPerMultiprocessor"])
    kernel.preferred_shared_memory_carveout = min(-(-100 * shared_bytes // most), 100)


def has_binary_mma() -> bool:
    """Whether the current device has binary tensor cores with AND (compute capability 8.0 or later)."""
    import cupy

    return int(cupy.cuda.Device().compute_capability) >= 80


def multiprocessors() -> int:
    """Multiprocessors of the current device."""
    import cupy

    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


def free_memory() -> int:
    """Bytes of the current device's memory that are free."""
    import cupy

    return int(cupy.cuda.runtime.memGetInfo()[0])


def pin(end: object) -> None:
    """Page-lock the frames that a queue's end has as `memory`, if the system allows it."""
    import cupy

    memory = getattr(end, "memory", None)
    if isinstance(memory, np.ndarray):
        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
            cupy.cuda.runtime.hostRegister(address(memory), memory.nbytes, 0)


def event_seconds(launch: Callable[[], object], repeats: int) -> float:
    """Median seconds of `launch()` by device events, after two that warm up; not beside a resident kernel."""
    import cupy

    times = []
    for _ in range(repeats + 2):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        launch()
        stop.record()
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3)
    return statistics.median(times[2:])


def clock_khz() -> int:
    """Highest clock of the current device's multiprocessors, kHz."""
    import cupy

    return int(cupy.cuda.Device().attributes["ClockRate"])


def empty(shape: int | tuple[int, ...], dtype: Any) -> cupy.ndarray:
    """An uninitialized array from plain cudaMalloc, not from a pool, so that IPC can export it."""
    import cupy

    count = int(np.prod(shape, dtype=np.int64))
    memory = cupy.cuda.Memory(max(count * np.dtype(dtype).itemsize, 1))
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def zeros(shape: int | tuple[int, ...], dtype: Any) -> cupy.ndarray:
    """A zeroed array in memory of its own."""
    array = empty(shape, dtype)
    array.data.memset(0, array.nbytes)
    return array


def upload(values: np.ndarray) -> cupy.ndarray:
    """The bytes of a structured array, uint8 (nbytes,), in device memory of their own."""
    raw = np.frombuffer(values.tobytes(), np.uint8)
    array = empty(raw.size, np.uint8)
    array.set(raw)
    return array


def mapped(dtype: np.dtype) -> np.ndarray:
    """A zeroed structured value, shape (), in pinned host memory that kernels read and write in place."""
    import cupy

    array = np.frombuffer(cupy.cuda.alloc_pinned_memory(dtype.itemsize), dtype, 1)
    array.view(np.uint8)[:] = 0
    return array.reshape(())


def address(array: np.ndarray) -> int:
    """The address of a host array; with unified addressing it is also the device's for pinned memory."""
    return int(array.__array_interface__["data"][0])


def settle() -> None:
    """Wait until the current device is idle, its set-up done; never while a resident kernel runs."""
    import cupy

    cupy.cuda.runtime.deviceSynchronize()


def check_stream(stream: Any, what: str) -> bool:
    """Whether all work of `stream` is done; RunFailed, naming `what`, if the device reported a fault."""
    from cupy.cuda import runtime

    # not stream.done, which takes a fault for work that is not done yet
    status = int(runtime.streamQuery(stream.ptr))
    if status not in (_SUCCESS, _NOT_READY):
        raise RunFailed(f"{what} stopped with a device fault: {runtime.CUDARuntimeError(status)}")
    return status == _SUCCESS


# --- on a machine without one -----------------------------------------------------------------------


def _nvrtc() -> ctypes.CDLL:
    for package in ("nvidia.cu13", "nvidia.cuda_nvrtc"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted((Path(folder) / "lib").glob("libnvrtc.so.*")):
                return ctypes.CDLL(str(path))
    raise UserError("NVRTC is not installed; pip install nvidia-cuda-nvrtc brings it (no GPU needed)")


def compile_only(name: str, architecture: int, defines: Mapping[str, object] | None = None) -> bytes:
    """The machine code (cubin) of source `name` for compute capability `architecture`, for example 90.

    Needs no GPU and no driver, only NVRTC from PyPI. RunFailed with the log if it does not compile.
    """
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()

    def read(size_of: str, get: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(nvrtc, size_of)(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, get)(program, buffer)
        return buffer.raw

    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source(name).encode(), name.encode(), 0, None, None)
    try:
        options: Sequence[bytes] = [
            option.encode() for option in (f"-arch=sm_{architecture}", *OPTIONS, *_defines(defines or {}))
        ]
        failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if failed:
            log = read("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0").decode()
            raise RunFailed(f"{name} does not compile for sm_{architecture}:\n{log}")
        return read("nvrtcGetCUBINSize", "nvrtcGetCUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
