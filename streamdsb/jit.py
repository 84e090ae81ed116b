"""How the CPU's hot loops are compiled: one place for numba's options."""

from __future__ import annotations

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

kernel = njit(nogil=True, cache=True)
"""A loop that Python calls: compiled once a machine, run without the interpreter's lock."""

inline = njit(inline="always")
"""A piece of such a loop."""
