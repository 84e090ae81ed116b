"""Several datagrams as one message, where the system can (Linux: UDP_SEGMENT and UDP_GRO).

What goes to one address in datagrams of one size costs one way through the system instead of many; what was
sent so, or was joined by a network card, also comes so. Datagrams on the wire are the same.
"""

from __future__ import annotations

import socket
from contextlib import suppress

import numpy as np
from numba import njit, types

from streamdsb.native import ADDRESS_BYTES, address, aim

MOST_SEGMENTS = 64
MOST_BYTES = 61_440
ROOM = 65_536
"""Bytes of a message that comes joined, at most."""

_UDP_SEGMENT, _UDP_GRO = 103, 104
_CONTROL_BYTES = 24

_sendmmsg = types.ExternalFunction(
    "sendmmsg", types.int32(types.int32, types.intp, types.uint32, types.int32)
)


def can_join(made: socket.socket) -> bool:
    """Whether messages sent over `made` may be joined; UDP only."""
    if made.type != socket.SOCK_DGRAM:
        return False
    try:
        made.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, 0)
    except OSError:
        return False
    return True


def take_joined(made: socket.socket, joined: bool = True) -> None:
    """Have messages come joined over `made`, or apart; nothing where the system cannot."""
    if made.type == socket.SOCK_DGRAM:
        with suppress(OSError):
            made.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, int(joined))


def controls(count: int) -> np.ndarray:
    """Room beside `count` message headers for what says the size of joined datagrams, uint64 (count, 3)."""
    return np.zeros((count, _CONTROL_BYTES // 8), np.uint64)


@njit(nogil=True)
def join(headers: np.ndarray, vectors: np.ndarray, control: np.ndarray, i: int, first: int, count: int,
         size: int) -> None:  # fmt: skip
    """Let message i, directed before, be the `count` datagrams of `size` bytes of vectors from `first` on."""
    headers[i, 2], headers[i, 3] = address(vectors) + 16 * first, count
    if count > 1:
        control[i, 0], control[i, 1] = 18, types.uint64(17 | _UDP_SEGMENT << 32)
        control[i, 2] = size
        headers[i, 4], headers[i, 5] = address(control) + _CONTROL_BYTES * i, _CONTROL_BYTES


@njit(nogil=True)
def expect(headers: np.ndarray, vectors: np.ndarray, control: np.ndarray, incoming: np.ndarray,
           names: np.ndarray, count: int) -> None:  # fmt: skip
    """Have the first `count` messages received whole, and say the size of the datagrams joined in each.

    incoming: uint8 (>= count, ROOM); names: where they come from, uint8 (>= count, ADDRESS_BYTES).
    """
    for i in range(count):
        aim(headers, vectors, i, address(incoming) + i * ROOM, ROOM,
            address(names) + i * ADDRESS_BYTES, ADDRESS_BYTES)  # fmt: skip
        control[i, 0] = 0
        headers[i, 4], headers[i, 5] = address(control) + _CONTROL_BYTES * i, _CONTROL_BYTES


@njit(nogil=True)
def segment_bytes(headers: np.ndarray, control: np.ndarray, i: int, size: int) -> int:
    """Bytes of each datagram of message i, received, `size` bytes in all; the last one may be shorter."""
    if headers[i, 5] >= 20 and control[i, 1] == types.uint64(17 | _UDP_GRO << 32):
        size = int(np.int64(control[i, 2] & np.uint64(0xFFFFFFFF)))
    return max(1, size)


@njit(nogil=True)
def _send_apart(fd: int, headers: np.ndarray, i: int) -> int:
    """Send the datagrams of message i one by one; returns how many the system refused."""
    single, refused = np.zeros(8, np.uint64), 0
    single[0], single[1], single[3] = headers[i, 0], headers[i, 1], 1
    for part in range(np.int64(headers[i, 3])):
        single[2] = headers[i, 2] + np.uint64(16 * part)
        if _sendmmsg(fd, address(single), 1, 0) <= 0:
            refused += 1
    return refused


@njit(nogil=True)
def send_joined(fd: int, headers: np.ndarray, count: int) -> int:
    """Send `count` messages, joined or not; returns how many datagrams the system refused, also alone."""
    sent, refused = 0, 0
    while sent < count:
        done = _sendmmsg(fd, address(headers) + 64 * sent, count - sent, 0)
        if done <= 0:
            refused += _send_apart(fd, headers, sent) if headers[sent, 3] > 1 else 1
            done = 1
        sent += done
    return refused
