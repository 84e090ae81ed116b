"""The client's side of the wire: many requests out and replies in, compiled, in batches.

Linux only; `exchange_plainly` does the same with one system call a message, anywhere.
"""

from __future__ import annotations

import select
import socket
import time as clock

import numpy as np
from numba import njit

from streamdsb.intrinsics import row_of
from streamdsb.native import (
    ADDRESS_BYTES,
    address,
    aim,
    moved,
    now_ns,
    receive_some,
    send_all,
    wait_readable,
)
from streamdsb.service.limits import HEADER_BYTES

REPLY_ROOM = 512
_BATCH = 64
_RESULT = 19


@njit(nogil=True, cache=True)
def exchange(
    fd: int,
    frames: np.ndarray,
    sizes: np.ndarray,
    order: np.ndarray,
    due: np.ndarray,
    window: int,
    patience_ns: int,
    spin: bool,
    replies: np.ndarray,
    sent: np.ndarray,
    received: np.ndarray,
) -> int:
    """Send requests, at most `window` of them unanswered, and take in their replies.

    fd: a socket whose other end is fixed; frames: uint8 (m, most), whose request ids count up by one; sizes:
    int64 (m,); order: int64 (k,), which to send, one after the other, of those without a reply; due: int64
    (k,), ns after the start before which each is not sent; replies: uint8 (m, REPLY_ROOM); sent, received:
    int64 (m,), monotonic ns, 0 where not sent, at first, or no reply came. Ends when all of `order` are
    answered or nothing has come for `patience_ns`; returns the number of answers. `spin` waits busily.
    """
    total, count = frames.shape[0], order.size
    out_headers, in_headers = np.zeros((_BATCH, 8), np.uint64), np.zeros((_BATCH, 8), np.uint64)
    out_vectors, in_vectors = np.zeros((_BATCH, 2), np.uint64), np.zeros((_BATCH, 2), np.uint64)
    incoming = np.empty((_BATCH, 2048), np.uint8)
    names = np.empty((_BATCH, ADDRESS_BYTES), np.uint8)
    time = np.empty(2, np.int64)
    first = row_of(frames, 0).view(np.uint64)[3]
    start = now_ns(time)
    progress, following, answered = start, 0, 0
    while answered < count:
        now = now_ns(time)
        batch = 0
        while (
            batch < _BATCH
            and following < count
            and following - answered < window
            and start + due[following] <= now
        ):
            chosen = order[following]
            aim(out_headers, out_vectors, batch, address(row_of(frames, chosen)), sizes[chosen], 0, 0)
            if sent[chosen] == 0:
                sent[chosen] = now
            following += 1
            batch += 1
        if batch:
            send_all(fd, out_headers, batch)
            progress = now
        for i in range(_BATCH):
            aim(in_headers, in_vectors, i, address(incoming) + i * 2048, 2048,
                address(names) + i * ADDRESS_BYTES, ADDRESS_BYTES)  # fmt: skip
        came = receive_some(fd, in_headers, _BATCH)
        now = now_ns(time)
        for i in range(max(came, 0)):
            size, _ = moved(in_headers, i)
            message = row_of(incoming, i)
            if size < HEADER_BYTES or size > REPLY_ROOM or message[15] != _RESULT:
                continue
            index = message.view(np.uint64)[3] - first
            if index >= np.uint64(total) or received[np.int64(index)]:
                continue
            replies[np.int64(index), :size] = message[:size]
            received[np.int64(index)] = now
            answered += 1
            progress = now
        if came <= 0 and batch == 0:
            if now - progress > patience_ns and (following == count or following - answered >= window):
                break
            if not spin:
                wait = 1
                if following < count and following - answered < window:
                    wait = min(max((start + due[following] - now) // 1_000_000, 0), 1)
                wait_readable(fd, -1, wait)
    return answered


def exchange_plainly(
    made: socket.socket,
    frames: np.ndarray,
    sizes: np.ndarray,
    order: np.ndarray,
    due: np.ndarray,
    window: int,
    patience_ns: int,
    replies: np.ndarray,
    sent: np.ndarray,
    received: np.ndarray,
) -> int:
    """`exchange` in Python."""
    count, following, answered = len(order), 0, 0
    first = int(frames[0].view("<u8")[3])
    start = progress = clock.monotonic_ns()
    while answered < count:
        now = clock.monotonic_ns()
        if following < count and following - answered < window and start + due[following] <= now:
            chosen = order[following]
            made.send(frames[chosen, : sizes[chosen]].tobytes())
            sent[chosen] = sent[chosen] or now
            progress = now
            following += 1
            wait = 0.0
        else:
            wait = 0.001
        if not select.select([made], [], [], wait)[0]:
            if clock.monotonic_ns() - progress > patience_ns:
                break
            continue
        message = np.frombuffer(made.recv(2048), np.uint8)
        if not HEADER_BYTES <= len(message) <= REPLY_ROOM or message[15] != _RESULT:
            continue
        index = int(message[24:32].view("<u8")[0]) - first
        if 0 <= index < len(frames) and not received[index]:
            replies[index, : len(message)] = message
            received[index] = progress = clock.monotonic_ns()
            answered += 1
    return answered
