"""The few calls of the CUDA driver that compiled loops make; `connect` finds them first.

A launch from compiled code costs what the driver takes, and holds no interpreter lock.
"""

# numba reads an intrinsic's signature from the parameters of its Python function
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import ctypes

import llvmlite.binding
import numpy as np
from numba import types

from streamdsb.errors import UserError
from streamdsb.jit import inline
from streamdsb.native import address

NOT_READY = 600
"""What `query` says while a stream has work left; 0 once it has none, all else is a fault."""

_status, _address, _size, _count = types.int32, types.intp, types.uint64, types.uint32
_copy_in = types.ExternalFunction("cuMemcpyHtoDAsync_v2", _status(_address, _address, _size, _address))
_copy_out = types.ExternalFunction("cuMemcpyDtoHAsync_v2", _status(_address, _address, _size, _address))
_query = types.ExternalFunction("cuStreamQuery", _status(_address))
_launch = types.ExternalFunction(
    "cuLaunchKernel",
    _status(_address, *[_count] * 6, _count, _address, _address, _address),
)


def connect() -> None:
    """Find the driver on this machine; UserError if there is none."""
    try:
        llvmlite.binding.load_library_permanently("libcuda.so.1")
    except RuntimeError as error:
        raise UserError(f"the CUDA driver's library is missing: {error}") from None


def describe(status: int) -> str:
    """The driver's words for what a call returned."""
    text = ctypes.c_char_p()
    ctypes.CDLL("libcuda.so.1").cuGetErrorString(status, ctypes.byref(text))
    return (text.value or b"unknown error").decode() + f" ({status})"


@inline
def copy_in(target, source, size, stream):
    """Start to copy `size` bytes of a host array to a device address; returns a status."""
    return _copy_in(target, address(source), np.uint64(size), stream)


@inline
def copy_out(target, source, size, stream):
    """Start to copy `size` bytes at a device address to a host array; returns a status."""
    return _copy_out(address(target), source, np.uint64(size), stream)


@inline
def launch(kernel, threads, shared_bytes, stream, parameters):
    """Start one block of `kernel`; parameters: int64 (k,), where each parameter lies. Returns a status."""
    return _launch(kernel, 1, 1, 1, threads, 1, 1, shared_bytes, stream, address(parameters), 0)


@inline
def query(stream):
    """0 once all that was started on `stream` is done, NOT_READY before."""
    return _query(stream)
