"""A worker thread of the `cpu` server: claim a request, solve it, publish the reply."""

from __future__ import annotations

import numpy as np
from numba import njit

from streamdsb.intrinsics import load_acquire, row_of, store_release
from streamdsb.native import copy, fetch_add, now_ns, signal, take
from streamdsb.service.limits import HEADER_BYTES, RING_ITEMS
from streamdsb.service.messages import FIELD_FOLLOWS
from streamdsb.service.rings import (
    ANSWERED,
    CLAIMED,
    DT_AT,
    FINISHED_AT,
    PLACE_AT,
    RECEIVED_AT,
    SIZE_AT,
    STOP,
    TICKET_AT,
    XI_AT,
    Rings,
)
from streamdsb.service.solve_cpu import solve
from streamdsb.service.store import FORMAT, TOTAL, Store

_ONE = np.uint64(1)
_RESULT = 19


@njit(nogil=True, cache=True)
def work(
    rings: Rings, store: Store, work_event: int, reply_event: int, worker: int, scratch: np.ndarray
) -> None:
    """Serve until the stop flag is up.

    work_event: an eventfd that counts published requests; reply_event: one that wakes the packet loop;
    scratch: uint8 (SCRATCH_BYTES,).
    """
    time = np.empty(2, np.int64)
    answer, spins = np.empty(2, np.int64), np.empty(128, np.uint32)
    nothing = np.empty(0, np.int16)
    while True:
        take(work_event)
        if load_acquire(rings.control, STOP):
            return
        ticket = fetch_add(rings.control, CLAIMED, _ONE)
        slot = np.int64(ticket % np.uint64(RING_ITEMS))
        while load_acquire(rings.work_sequence, slot) != ticket + _ONE:
            pass
        claimed = now_ns(time)
        item = row_of(rings.work, slot)
        half, word, real, wide = (
            item.view(np.uint16),
            item.view(np.uint32),
            item.view(np.float32),
            item.view(np.uint64),
        )
        n, place = np.int64(word[8]), np.int64(word[PLACE_AT // 4])
        field = nothing
        if half[19] & np.uint16(FIELD_FOLLOWS):
            field = item[HEADER_BYTES : HEADER_BYTES + 2 * n].view(np.int16)
        solve(
            store.table[place, FORMAT],
            n,
            row_of(store.models, place)[: store.table[place, TOTAL]],
            field,
            np.int64(half[18]),
            np.int64(word[10]),
            real[XI_AT // 4],
            real[DT_AT // 4],
            wide[7],
            scratch,
            answer,
            spins,
        )
        finished = now_ns(time)
        turn = fetch_add(rings.control, ANSWERED, _ONE)
        place = np.int64(turn % np.uint64(RING_ITEMS))
        reply = row_of(rings.replies, place)
        copy(reply, 0, item, 0, 32)
        reply[15] = _RESULT
        reply_word, reply_wide = reply.view(np.uint32), reply.view(np.uint64)
        reply_wide[4] = np.uint64(answer[0])
        reply_word[10] = np.uint32(answer[1]) << np.uint32(16)  # status 0, best replica
        reply_word[11] = worker
        reply_word[12] = min(claimed - np.int64(wide[RECEIVED_AT // 8]), 0xFFFFFFFF)
        reply_word[13] = min(finished - claimed, 0xFFFFFFFF)
        reply_word[14], reply_word[15] = 0, 0
        words = (n + 31) // 32
        copy(reply_word, 16, spins, 0, words)
        reply_wide[TICKET_AT // 8], reply_wide[FINISHED_AT // 8] = ticket, finished
        reply_word[SIZE_AT // 4] = HEADER_BYTES + 4 * words
        store_release(rings.reply_sequence, place, turn + _ONE)
        signal(reply_event, 1)
