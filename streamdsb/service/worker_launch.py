"""The worker of the `launch` server: a copy in, a kernel launch and a copy out for every request.

One thread, compiled; each of its lanes is a stream with one request on its way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from streamdsb.intrinsics import load_acquire, row_of, store_release
from streamdsb.native import copy, now_ns, signal, take
from streamdsb.service.driver import NOT_READY, copy_in, copy_out, launch, query
from streamdsb.service.gpu import THREADS
from streamdsb.service.limits import RING_ITEMS
from streamdsb.service.rings import (
    ANSWERED,
    FINISHED_AT,
    RECEIVED_AT,
    REPLY_BYTES,
    STOP,
    TICKET_AT,
    WORK_BYTES,
    Rings,
)

_ONE = np.uint64(1)


class Lanes(NamedTuple):
    """A row a stream: its handle, device addresses of an item and a reply, the reply's place in pinned host
    memory, uint8 (S, 512), where the kernel's parameters lie, int64 (S, 3), and the ticket of the request on
    its way, -1 if there is none. The others are int64 (S,); kernel and shared_bytes are one for all.
    """

    streams: np.ndarray
    items: np.ndarray
    replies: np.ndarray
    staged: np.ndarray
    parameters: np.ndarray
    tickets: np.ndarray
    kernel: int
    shared_bytes: int


@njit(nogil=True)
def begin(lanes: Lanes, lane: int, item: np.ndarray, copies: bool) -> int:
    """Start to solve a work item on a lane, with or without copies in and out; the driver's status."""
    stream, status = lanes.streams[lane], 0
    if copies:
        status = copy_in(lanes.items[lane], item, WORK_BYTES, stream)
    if status == 0:
        parameters = row_of(lanes.parameters, lane)
        status = launch(lanes.kernel, THREADS, lanes.shared_bytes, stream, parameters)
    if status == 0 and copies:
        status = copy_out(row_of(lanes.staged, lane), lanes.replies[lane], REPLY_BYTES, stream)
    return status


@njit(nogil=True)
def _finish(rings: Rings, lanes: Lanes, lane: int, time: np.ndarray) -> None:
    """Publish the reply that has come back on a lane."""
    ticket = np.uint64(lanes.tickets[lane])
    turn = rings.control[ANSWERED]
    place = np.int64(turn % np.uint64(RING_ITEMS))
    reply = row_of(rings.replies, place)
    copy(reply, 0, row_of(lanes.staged, lane), 0, REPLY_BYTES)
    word, wide = reply.view(np.uint32), reply.view(np.uint64)
    item = row_of(rings.work, np.int64(ticket % np.uint64(RING_ITEMS)))
    finished = now_ns(time)
    inside = finished - np.int64(item.view(np.uint64)[RECEIVED_AT // 8])
    word[11] = lane
    word[12] = max(0, min(inside - np.int64(word[13]), 0xFFFFFFFF))  # copies and launch are waiting, too
    wide[TICKET_AT // 8], wide[FINISHED_AT // 8] = ticket, np.uint64(finished)
    store_release(rings.reply_sequence, place, turn + _ONE)
    rings.control[ANSWERED] = turn + _ONE
    lanes.tickets[lane] = -1


@njit(nogil=True)
def _is_published(rings: Rings, ticket: int) -> bool:
    return bool(load_acquire(rings.work_sequence, ticket % RING_ITEMS) == np.uint64(ticket + 1))


@njit(nogil=True, cache=True)
def work(rings: Rings, lanes: Lanes, work_event: int, reply_event: int) -> int:
    """Serve until the stop flag is up; returns 0, or the driver's status if it reports a fault.

    work_event: an eventfd that is signalled after requests are published; reply_event: one that wakes the
    packet loop. The context of the device is the calling thread's current one.
    """
    time = np.empty(2, np.int64)
    following, inside, status = 0, 0, 0
    while status == 0 and not load_acquire(rings.control, STOP):
        answered = 0
        for lane in range(lanes.streams.size):
            if lanes.tickets[lane] >= 0:
                state = query(lanes.streams[lane])
                if state == NOT_READY:
                    continue
                if state != 0:
                    return state
                _finish(rings, lanes, lane, time)
                answered += 1
            if _is_published(rings, following):
                lanes.tickets[lane] = following
                status = begin(lanes, lane, row_of(rings.work, following % RING_ITEMS), True)
                if status != 0:
                    break
                following += 1
                inside += 1
        inside -= answered
        if answered:
            signal(reply_event, answered)
        elif inside == 0 and not _is_published(rings, following):
            take(work_event)
    return status
