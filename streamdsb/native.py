"""What compiled loops call: the C library's batched datagrams, events, clock, and atomics.

Linux only. Addresses travel as integers; the arrays behind them outlive the call.
"""

# numba reads an intrinsic's signature from the parameters of its Python function
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import sys

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from streamdsb.jit import inline

AVAILABLE = sys.platform == "linux"
"""Whether this system has what is declared here."""

MSG_DONTWAIT = 0x40
POLLIN = 1
CLOCK_MONOTONIC = 1

ADDRESS_BYTES = 32
"""Room for a socket address: IPv4, IPv6 or link layer."""

_recvmmsg = types.ExternalFunction(
    "recvmmsg", types.int32(types.int32, types.intp, types.uint32, types.int32, types.intp)
)
_sendmmsg = types.ExternalFunction(
    "sendmmsg", types.int32(types.int32, types.intp, types.uint32, types.int32)
)
_poll = types.ExternalFunction("poll", types.int32(types.intp, types.uint64, types.int32))
_read = types.ExternalFunction("read", types.intp(types.int32, types.intp, types.uint64))
_write = types.ExternalFunction("write", types.intp(types.int32, types.intp, types.uint64))
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))


def message_headers(count: int) -> np.ndarray:
    """`count` headers for recvmmsg and sendmmsg, uint64 (count, 8).

    A row is a struct mmsghdr: address, its length, I/O vectors, their number, control, its length, flags,
    bytes moved.
    """
    return np.zeros((count, 8), np.uint64)


@njit(nogil=True)
def copy(target, at, source, start, count):
    """target[at : at + count] = source[start : start + count], which numba takes long to compile."""
    for i in range(count):
        target[at + i] = source[start + i]


@njit(nogil=True)
def fill(target, start, stop, value):
    """target[start:stop] = value, likewise."""
    for i in range(start, stop):
        target[i] = value


@inline
def address(array):
    """Where an array lies, as a signed integer: numba makes floats of mixed signs."""
    return np.int64(array.ctypes.data)


@inline
def moved(headers, i):
    """Bytes of message i that recvmmsg filled in, and of its socket address."""
    low = np.uint64(0xFFFFFFFF)
    return np.int64(headers[i, 7] & low), np.int64(headers[i, 1] & low)


@inline
def direct(headers, i, name, name_bytes):
    """Let message i, still without contents, go to the socket address at `name`."""
    headers[i, 0], headers[i, 1] = name, name_bytes
    for field in range(2, 8):
        headers[i, field] = 0


@inline
def aim(headers, vectors, i, data, size, name, name_bytes):
    """Let message i be `size` bytes at `data`, from or to the socket address at `name`.

    vectors: uint64 (count, 2), the I/O vectors of the headers.
    """
    direct(headers, i, name, name_bytes)
    vectors[i, 0], vectors[i, 1] = data, size
    headers[i, 2], headers[i, 3] = address(vectors) + 16 * i, 1


@inline
def receive_some(fd, headers, most):
    """Messages that were waiting, at most `most`; -1 on an error or if there are none. Does not block."""
    return _recvmmsg(fd, address(headers), most, MSG_DONTWAIT, 0)


@inline
def send_some(fd, headers, first, count):
    """Send `count` messages from `first` on; how many the system took, -1 if none. Does not block."""
    return _sendmmsg(fd, address(headers) + 64 * first, count, MSG_DONTWAIT)


@inline
def send_all(fd, headers, count):
    """Send `count` messages; returns how many the system refused, which are skipped."""
    sent, refused = 0, 0
    while sent < count:
        done = _sendmmsg(fd, address(headers) + 64 * sent, count - sent, 0)
        if done <= 0:
            refused += 1
            done = 1
        sent += done
    return refused


@inline
def wait_readable(first, second, timeout_ms):
    """Wait until one of two descriptors can be read; a negative one is ignored."""
    watched = np.empty(4, np.int32)  # struct pollfd: descriptor, events and what happened (16 bits each)
    watched[0], watched[1], watched[2], watched[3] = first, POLLIN, second, POLLIN
    return _poll(address(watched), 2, timeout_ms)


@inline
def signal(fd, count):
    """Add `count` to an eventfd."""
    value = np.empty(1, np.uint64)
    value[0] = count
    _write(fd, address(value), 8)


@inline
def take(fd):
    """Wait for an eventfd and take from it: one if it is a semaphore, all if not."""
    value = np.empty(1, np.uint64)
    _read(fd, address(value), 8)


@inline
def now_ns(time):
    """Monotonic time, ns; time: scratch int64 (2,)."""
    _clock_gettime(CLOCK_MONOTONIC, address(time))
    return time[0] * 1_000_000_000 + time[1]


@intrinsic
def fetch_add(typingctx, words, index, amount):
    """Atomically add to words[index] (1-D contiguous uint64); returns what was there before."""

    def codegen(context, builder, signature, args):
        data = context.make_array(words)(context, builder, args[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [args[1]]), args[2], "seq_cst")

    return types.uint64(words, types.intp, types.uint64), codegen
