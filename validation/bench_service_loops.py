"""Compiled loops that stand where the packet loop would: what rings and launches do without a network."""

from __future__ import annotations

import numpy as np
from numba import njit

from streamdsb.intrinsics import load_acquire, row_of, store_release
from streamdsb.native import now_ns, signal
from streamdsb.service.driver import NOT_READY, query
from streamdsb.service.limits import RING_ITEMS
from streamdsb.service.rings import ADDRESS_AT, DRAINED, PUBLISHED, RECEIVED_AT, TICKET_AT, WORK_BYTES, Rings
from streamdsb.service.worker_launch import Lanes, begin

_BURST = 32


@njit(nogil=True)
def _publish(rings: Rings, pattern: np.ndarray, frame_words: int, ticket: int, seed: int, now: int) -> None:
    """Put a pattern, uint64 (192,), into the work ring, with a seed of its own."""
    slot = ticket % RING_ITEMS
    item = row_of(rings.work, slot).view(np.uint64)
    for word in range(frame_words):
        item[word] = pattern[word]
    for word in range(ADDRESS_AT // 8, WORK_BYTES // 8):
        item[word] = pattern[word]
    item[7], item[RECEIVED_AT // 8] = seed, now
    store_release(rings.work_sequence, slot, np.uint64(ticket + 1))
    store_release(rings.control, PUBLISHED, np.uint64(ticket + 1))


@njit(nogil=True, cache=True)
def fill(rings: Rings, patterns: np.ndarray, frame_words: int, most: int, work_event: int, patience_ns: int,
         energies: np.ndarray, times: np.ndarray) -> int:  # fmt: skip
    """Publish requests, at most `most` inside, and take their replies, as fast as that goes.

    patterns: uint64 (p, 192), work items that are used in turn; request i of this call has the seed i.
    work_event: as in `serve`. energies, times: int64 (count,), 2E and ns inside of each. Returns ns for all
    of them, -1 if no reply came for `patience_ns`. The rings are empty before and after.
    """
    time, taken = np.empty(2, np.int64), np.zeros(RING_ITEMS, np.uint8)
    count, published, drained = energies.size, 0, 0
    base = np.int64(rings.control[PUBLISHED])
    start = now_ns(time)
    progress = start
    while drained < count:
        now, first, before = now_ns(time), published, drained
        while published < min(count, drained + most, first + _BURST):
            slot = (base + published) % RING_ITEMS
            if taken[slot]:
                break
            taken[slot] = 1
            pattern = row_of(patterns, published % len(patterns))
            _publish(rings, pattern, frame_words, base + published, published, now)
            published += 1
        if work_event >= 0 and published > first:
            signal(work_event, published - first)
        while drained < min(published, before + _BURST):
            turn = base + drained
            if load_acquire(rings.reply_sequence, turn % RING_ITEMS) != np.uint64(turn + 1):
                break
            reply = row_of(rings.replies, turn % RING_ITEMS).view(np.int64)
            slot = reply[TICKET_AT // 8] % RING_ITEMS
            request = reply[TICKET_AT // 8] - base
            energies[request] = reply[4]
            times[request] = now_ns(time) - row_of(rings.work, slot).view(np.int64)[RECEIVED_AT // 8]
            taken[slot] = 0
            drained += 1
        rings.control[DRAINED] = base + drained
        if drained > before:
            progress = now
        elif now - progress > patience_ns:
            return -1
    return now_ns(time) - start


@njit(nogil=True, cache=True)
def round_trips(lanes: Lanes, item: np.ndarray, copies: bool, times: np.ndarray) -> int:
    """Launch the same item times.size times, one after the other; times: int64, ns. The driver's status."""
    time = np.empty(2, np.int64)
    for turn in range(times.size):
        start = now_ns(time)
        status = begin(lanes, 0, item, copies)
        if status != 0:
            return status
        state = query(lanes.streams[0])
        while state == NOT_READY:
            state = query(lanes.streams[0])
        if state != 0:
            return state
        times[turn] = now_ns(time) - start
    return 0
