"""The client's side of the wire: many requests out and replies in, compiled, in batches.

Linux only; `exchange_plainly` does the same with one system call a message, anywhere.
"""

from __future__ import annotations

import select
import socket
import time as clock
from typing import NamedTuple

import numpy as np
from numba import njit

from streamdsb.intrinsics import row_of
from streamdsb.native import (
    ADDRESS_BYTES,
    address,
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
    expect,
    join,
    segment_bytes,
    send_joined,
    take_joined,
)

REPLY_ROOM = 512
_BATCH = 64
_RESULT = 19


class _Messages(NamedTuple):
    """A batch of messages on their way out or in."""

    headers: np.ndarray
    vectors: np.ndarray
    controls: np.ndarray
    incoming: np.ndarray
    names: np.ndarray
    piece: np.ndarray
    time: np.ndarray


@njit(nogil=True)
def _new_messages(room: int) -> _Messages:
    """room: bytes of each that comes in."""
    return _Messages(
        np.zeros((_BATCH, 8), np.uint64),
        np.zeros((_BATCH, 2), np.uint64),
        np.zeros((_BATCH, 3), np.uint64),
        np.empty((_BATCH, room), np.uint8),
        np.empty((_BATCH, ADDRESS_BYTES), np.uint8),
        np.zeros(REPLY_ROOM, np.uint8),
        np.empty(2, np.int64),
    )


@njit(nogil=True)
def _expect(coming: _Messages, count: int) -> None:
    """Have the first `count` messages of the next batch received whole."""
    expect(coming.headers, coming.vectors, coming.controls, coming.incoming, coming.names, count)


@njit(nogil=True)
def _send_due(fd: int, going: _Messages, frames: np.ndarray, sizes: np.ndarray, order: np.ndarray,
              due: np.ndarray, start: int, following: int, stop: int, joins: bool, sent: np.ndarray
              ) -> int:  # fmt: skip
    """Send what is due of requests `following` to `stop` - 1 of `order`, at most a batch; how many."""
    now = now_ns(going.time)
    batch, messages, begun, size = 0, 0, 0, 0
    while batch < _BATCH and following + batch < stop and start + due[following + batch] <= now:
        chosen = order[following + batch]
        if not (joins and batch and sizes[chosen] == size and size * (batch + 1 - begun) <= MOST_BYTES):
            if messages:
                join(going.headers, going.vectors, going.controls, messages - 1, begun, batch - begun, size)
            begun, size = batch, sizes[chosen]
            direct(going.headers, messages, 0, 0)
            messages += 1
        going.vectors[batch, 0], going.vectors[batch, 1] = address(row_of(frames, chosen)), sizes[chosen]
        if sent[chosen] == 0:
            sent[chosen] = now
        batch += 1
    if batch:
        join(going.headers, going.vectors, going.controls, messages - 1, begun, batch - begun, size)
        send_joined(fd, going.headers, messages)
    return batch


@njit(nogil=True)
def _take_in(fd: int, coming: _Messages, first: int, replies: np.ndarray, received: np.ndarray) -> int:
    """Take in the replies that have come, at most a batch of messages; how many are new, -1 if none came.

    first: the request id of replies[0].
    """
    came = receive_some(fd, coming.headers, _BATCH)
    if came <= 0:
        return -1
    now, answered = now_ns(coming.time), 0
    for i in range(came):
        whole, _ = moved(coming.headers, i)
        step = segment_bytes(coming.headers, coming.controls, i, whole)
        for at in range(0, whole, step):
            size = min(step, whole - at)
            if size < HEADER_BYTES or size > REPLY_ROOM:
                continue
            copy(coming.piece, 0, row_of(coming.incoming, i)[at:], 0, size)
            index = coming.piece.view(np.uint64)[3] - first
            if coming.piece[15] != _RESULT or index >= np.uint64(len(replies)) or received[np.int64(index)]:
                continue
            replies[np.int64(index), :size] = coming.piece[:size]
            received[np.int64(index)] = now
            answered += 1
    _expect(coming, came)
    return answered


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
    count, following, answered = order.size, 0, 0
    going, coming = _new_messages(0), _new_messages(ROOM)
    first = row_of(frames, 0).view(np.uint64)[3]
    start = now_ns(going.time)
    progress = start
    _expect(coming, _BATCH)
    while answered < count:
        stop = min(count, answered + window)
        batch = _send_due(fd, going, frames, sizes, order, due, start, following, stop, joins, sent)
        following += batch
        new = _take_in(fd, coming, first, replies, received)
        answered += max(new, 0)
        if batch or new > 0:
            progress = now_ns(going.time)
        if new < 0 and batch == 0:
            now = now_ns(going.time)
            if now - progress > patience_ns and (following == count or following - answered >= window):
                break
            if not spin:
                wait = 1
                if following < count and following - answered < window:
                    wait = min(max((start + due[following] - now) // 1_000_000, 0), 1)
                wait_readable(fd, -1, wait)
    return answered


@njit(nogil=True, cache=True)
def send_when_due(
    fd: int, frames: np.ndarray, sizes: np.ndarray, due: np.ndarray, joins: bool, sent: np.ndarray
) -> None:
    """The sending half of `exchange`, waiting busily, for a thread beside the one that does `collect`."""
    going, following, count = _new_messages(0), 0, due.size
    order = np.arange(count)
    start = now_ns(going.time)
    while following < count:
        following += _send_due(fd, going, frames, sizes, order, due, start, following, count, joins, sent)


@njit(nogil=True, cache=True)
def collect(fd: int, first: int, patience_ns: int, replies: np.ndarray, received: np.ndarray) -> int:
    """The other half of `exchange`: take in replies from request id `first` on, waiting busily.

    Ends when all are there or nothing has come for `patience_ns`; returns the number of answers.
    """
    coming, answered = _new_messages(ROOM), 0
    progress = now_ns(coming.time)
    _expect(coming, _BATCH)
    while answered < len(replies):
        new = _take_in(fd, coming, np.uint64(first), replies, received)
        if new > 0:
            answered, progress = answered + new, now_ns(coming.time)
        elif now_ns(coming.time) - progress > patience_ns:
            break
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
