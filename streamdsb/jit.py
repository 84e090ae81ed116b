"""How the CPU's hot loops are compiled: one place for numba's options."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import njit


def _use_full_vector_width() -> None:
    """Let LLVM use 512-bit vectors where the machine has AVX-512.

    Its tuning for many such processors prefers 256 bits, which halves the rate of popcounts and hashes.
    The user's own NUMBA_CPU_NAME or NUMBA_CPU_FEATURES win.
    """
    features = llvm.get_host_cpu_features()
    if features.get("avx512f") and not (numba.config.CPU_NAME or numba.config.CPU_FEATURES):
        numba.config.CPU_NAME = llvm.get_host_cpu_name()
        numba.config.CPU_FEATURES = features.flatten() + ",-prefer-256-bit"


_use_full_vector_width()

_compiling = threading.Lock()

inline = njit(inline="always")
"""A piece of a kernel."""


def kernel(signature: str | tuple[Any, ...]) -> Callable[[Callable[..., Any]], Any]:
    """A loop that Python calls, compiled once a machine and run without the interpreter's lock.

    signature: numba's, as text or types, for `compile_kernels`; an array is "[:, :]" with any strides or
    "[:, ::1]" contiguous.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(nogil=True, cache=True)(function)
        dispatcher.streamdsb_signature = signature
        return dispatcher

    return decorate


def compile_kernels(*kernels: Any, announce: Callable[[], None] = lambda: None) -> None:
    """Compile each kernel, or load it from numba's cache, for its own signature and no other.

    What NumPy calls contiguous depends on the shape too (a single row always is); without this, a kernel
    would be compiled once more in the middle of a pass.  May be called again, and from several threads.
    announce: called once it turns out that something is not in the cache.
    """
    announced = False
    with _compiling:
        for dispatcher in kernels:
            before = sum(dispatcher.stats.cache_misses.values())
            dispatcher.disable_compile(False)
            dispatcher.compile(dispatcher.streamdsb_signature)
            dispatcher.disable_compile()
            if not announced and sum(dispatcher.stats.cache_misses.values()) > before:
                announce()
                announced = True
