"""The resident kernels on a machine without a GPU: compiled for its CPU, and run beside the same host code.

What they compute, when they wait and what host and device say to each other are real; memory order is not.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamdsb import cuda

AVAILABLE = shutil.which("g++") is not None and platform.machine() == "x86_64"
MULTIPROCESSORS = 4

_CALLS = {
    "receive": "receive((const Job*)a[0])",
    "generate": "generate((const Job*)a[0])",
    "wire": "wire((Job*)a[0])",
    "initialise": "initialise((const States*)a[0], a[1], a[2])",
}
_WITHOUT_ASSEMBLY = [
    ('asm("mul.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));', "c = a * b;"),
    ('asm("add.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));', "c = a + b;"),
    ('asm("sub.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));', "c = a - b;"),
    ('asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory");', "emulated_worker_barrier(WORKERS);"),
    ("#if __CUDA_ARCH__ >= 800\n    return __reduce_add_sync", "#if 1\n    return __reduce_add_sync"),
    ('asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");', "ns = __rdtsc() / 2;"),
    ("extern __shared__ __align__(16) u8 dynamic[];", "__shared__ __align__(16) u8 dynamic[1 << 18];"),
]
_HERE = Path(__file__).parent


def _source(name: str) -> str:
    text = cuda.source(name)
    memory = (_HERE.parent / "streamdsb" / "kernels" / "memory.cuh").read_text()
    types = (_HERE.parent / "streamdsb" / "kernels" / "types.cuh").read_text().replace("#pragma once\n", "")
    for part in (types, re.sub(r"#pragma once\n|#include .*\n", "", memory)):
        text = text.replace(part, "")
    for assembly, plain in _WITHOUT_ASSEMBLY:
        text = text.replace(assembly, plain)
    text = re.sub(r'asm\("\{\.reg \.pred p;.*?;$', "c = a > b;", text, flags=re.MULTILINE)
    return types + (_HERE / "cuda_on_host.h").read_text() + text


_folder = tempfile.TemporaryDirectory(prefix="kernels_on_host")


def _compile(name: str, function: str, defines: Mapping[str, object]) -> ctypes.CDLL:
    call = f"void emulated::call(const unsigned long long* a) {{ {_CALLS[function]}; }}\n"
    text = _source(name) + call
    options = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-w"]
    options += ["-ffp-contract=off", "-fno-strict-aliasing"]
    options += [f"-DSTREAMDSB_{key}={value}" for key, value in defines.items()]
    digest = hashlib.sha256("\n".join([text, *options]).encode()).hexdigest()[:16]
    library = Path(_folder.name) / f"{digest}.so"
    if not library.exists():
        source = library.with_suffix(".cpp")
        source.write_text(text)
        done = subprocess.run(
            ["g++", *options, str(source), "-o", str(library)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


class Array(np.ndarray):
    """A host array that looks like one on the device."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def set(self, values: np.ndarray) -> None:
        self[...] = values

    def get(self, out: np.ndarray | None = None) -> np.ndarray:
        if out is None:
            return np.array(self)
        out[...] = self
        return out


def _zeros(shape: int | tuple[int, ...], dtype: Any) -> Array:
    memory = np.zeros(int(np.prod(shape)) * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return memory[start : start + size].view(dtype).reshape(shape).view(Array)


class _Stream:
    current = threading.local()

    def __init__(self, non_blocking: bool = False) -> None:
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        _Stream.current.stream = self

    def __exit__(self, *exception: object) -> None:
        _Stream.current.stream = None

    def run(self, work: Any) -> None:
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return self._thread is None or not self._thread.is_alive()


class _Kernel:
    def __init__(self, name: str, function: str, defines: Mapping[str, object]) -> None:
        self._compiled = (name, function, defines)
        self.max_dynamic_shared_size_bytes = 0

    def __call__(self, grid: Any, block: Any, arguments: Any, shared_mem: int = 0) -> None:
        words = [a.data.ptr if isinstance(a, Array) else int(a) for a in arguments]
        values = (ctypes.c_uint64 * len(words))(*words)
        x, y = (*grid, 1)[:2]
        library = _compile(*self._compiled)

        def work() -> None:
            library.emulated_launch(int(x), int(y), int(block[0]), values)

        stream = getattr(_Stream.current, "stream", None)
        if stream is None:
            work()
        else:
            stream.run(work)


def _load(name: str, function: str, defines: Mapping[str, object] | None = None) -> _Kernel:
    return _Kernel(name, function, defines or {})


def _upload(values: np.ndarray) -> Array:
    array = _zeros(values.nbytes, np.uint8)
    array[:] = np.frombuffer(values.tobytes(), np.uint8)
    return array


def _mapped(dtype: np.dtype) -> np.ndarray:
    return np.asarray(_zeros(dtype.itemsize, np.uint8)).view(dtype).reshape(())


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that asks streamdsb.cuda or CuPy for a GPU have this machine's CPU."""
    cupy, cupyx = ModuleType("cupy"), ModuleType("cupyx")
    cupy.cuda = SimpleNamespace(Stream=_Stream, Device=lambda device: nullcontext())  # type: ignore[attr-defined]
    cupyx.zeros_pinned = np.zeros  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupyx", cupyx)
    for name, twin in {
        "zeros": _zeros,
        "empty": _zeros,
        "upload": _upload,
        "mapped": _mapped,
        "load": _load,
        "carve_out": lambda kernel, shared: None,
        "has_binary_mma": lambda: False,
        "multiprocessors": lambda: MULTIPROCESSORS,
        "free_memory": lambda: 1 << 40,
        "settle": lambda: None,
        "event_seconds": lambda launch, repeats: 1.0,
        "check_stream": lambda stream, what: stream.done,
        "use_device": lambda device: None,
    }.items():
        monkeypatch.setattr(cuda, name, twin)
