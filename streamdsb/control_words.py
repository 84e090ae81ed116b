"""Words in mapped host memory, over which the host and a resident kernel talk."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from streamdsb import cuda
from streamdsb.intrinsics import load_acquire
from streamdsb.jit import compile_kernels, kernel

_LOOK_UP_S = 0.1
_NAP_S = 50e-6
_SPINS = 100_000


@kernel("boolean(uint64[::1], int64, uint64)")
def _spin(words: np.ndarray, index: int, value: np.uint64) -> bool:
    """Look at words[index] for some tens of microseconds; True once it is `value` or more."""
    for _ in range(_SPINS):  # noqa: SIM110
        if load_acquire(words, index) >= value:
            return True
    return False


class ControlWords:
    """A structured value of 64-bit words, zero at the start, that both sides read and write in place."""

    def __init__(self, dtype: np.dtype) -> None:
        self._value = cuda.mapped(dtype)
        self._words = self._value.reshape(1).view(np.uint64)
        if not _spin.signatures:
            compile_kernels(_spin)

    @property
    def address(self) -> int:
        """Where the value is, for host and device."""
        return cuda.address(self._value)

    def __getitem__(self, name: str) -> Any:
        return self._value[name]

    def __setitem__(self, name: str, value: object) -> None:
        self._value[name] = value

    def reached(self, name: str, value: int, index: int = 0) -> bool:
        """Wait up to 0.1 s for word `index` of field `name` to be `value` or more; other threads go on."""
        fields = self._value.dtype.fields
        assert fields is not None
        word = fields[name][1] // 8 + index
        deadline = time.monotonic() + _LOOK_UP_S
        while not _spin(self._words, word, np.uint64(value)):
            if time.monotonic() > deadline:
                return False
            time.sleep(_NAP_S)
        return True
