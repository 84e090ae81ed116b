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
    copy,
    direct,
    moved,
    now_ns,
    receive_some,
    wait_readable,
)
from streamdsb.service.limits import HEADER_BYTES
from streamdsb.service.segments import (
    MOST_BYTES,
    ROOM,
    expect_joined,
    join,
    segment_bytes,
    send_joined,
    take_joined,
)

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
    joins: bool,
    replies: np.ndarray,
    sent: np.ndarray,
    received: np.ndarray,
) -> int:
    """Send requests, at most `window` of them unanswered, and take in their replies.

    fd: a socket whose other end is fixed; frames: uint8 (m, most), whose request ids count up by one; sizes:
    int64 (m,); order: int64 (k,), which to send, one after the other, of those without a reply; due: int64
    (k,), ns after the start before which each is not sent; replies: uint8 (m, REPLY_ROOM); sent, received:
    int64 (m,), monotonic ns, 0 where not sent, at first, or no reply came. Ends when all of `order` are
    answered or nothing has come for `patience_ns`; returns the number of answers. `spin` waits busily;
    `joins` sends what is due together as one message where sizes allow.
    """
    total, count = frames.shape[0], order.size
    out_headers, in_headers = np.zeros((_BATCH, 8), np.uint64), np.zeros((_BATCH, 8), np.uint64)
    out_vectors, in_vectors = np.zeros((_BATCH, 2), np.uint64), np.zeros((_BATCH, 2), np.uint64)
    out_controls, in_controls = np.zeros((_BATCH, 3), np.uint64), np.zeros((_BATCH, 3), np.uint64)
    incoming, piece = np.empty((_BATCH, ROOM), np.uint8), np.zeros(REPLY_ROOM, np.uint8)
    names = np.empty((_BATCH, ADDRESS_BYTES), np.uint8)
    time = np.empty(2, np.int64)
    first = row_of(frames, 0).view(np.uint64)[3]
    start = now_ns(time)
    progress, following, answered, came = start, 0, 0, _BATCH
    while answered < count:
        now = now_ns(time)
        batch, messages, begun, size = 0, 0, 0, 0
        while (
            batch < _BATCH
            and following < count
            and following - answered < window
            and start + due[following] <= now
        ):
            chosen = order[following]
            if not (joins and batch and sizes[chosen] == size and size * (batch + 1 - begun) <= MOST_BYTES):
                if messages:
                    join(out_headers, out_vectors, out_controls, messages - 1, begun, batch - begun, size)
                begun, size = batch, sizes[chosen]
                direct(out_headers, messages, 0, 0)
                messages += 1
            out_vectors[batch, 0], out_vectors[batch, 1] = address(row_of(frames, chosen)), sizes[chosen]
            if sent[chosen] == 0:
                sent[chosen] = now
            following += 1
            batch += 1
        if batch:
            join(out_headers, out_vectors, out_controls, messages - 1, begun, batch - begun, size)
            send_joined(fd, out_headers, messages)
            progress = now
        for i in range(max(came, 0)):
            aim(in_headers, in_vectors, i, address(incoming) + i * ROOM, ROOM,
                address(names) + i * ADDRESS_BYTES, ADDRESS_BYTES)  # fmt: skip
            expect_joined(in_headers, in_controls, i)
        came = receive_some(fd, in_headers, _BATCH)
        now = now_ns(time)
        for i in range(max(came, 0)):
            whole, _ = moved(in_headers, i)
            step = segment_bytes(in_headers, in_controls, i, whole)
            for at in range(0, whole, step):
                size = min(step, whole - at)
                if size < HEADER_BYTES or size > REPLY_ROOM:
                    continue
                copy(piece, 0, row_of(incoming, i)[at:], 0, size)
                index = piece.view(np.uint64)[3] - first
                if piece[15] != _RESULT or index >= np.uint64(total) or received[np.int64(index)]:
                    continue
                replies[np.int64(index), :size] = piece[:size]
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
    take_joined(made, False)
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
