"""The packet loop: datagrams in and out in batches, requests into one ring, replies out of the other.

Compiled, one thread, no interpreter lock. The loop is the same for every kind of worker and socket.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from streamdsb.intrinsics import load_acquire, row_of, store_release
from streamdsb.native import (
    ADDRESS_BYTES,
    address,
    aim,
    copy,
    direct,
    fill,
    moved,
    now_ns,
    receive_some,
    signal,
    take,
    wait_readable,
)
from streamdsb.service.limits import FRAME_BYTES, HEADER_BYTES, MAX_PAIRS, MAX_UPDATES, RING_ITEMS
from streamdsb.service.loop_state import BATCH, COUNTERS, ONE_FRAME, Loop
from streamdsb.service.rings import (
    ADDRESS_AT,
    ADDRESS_SIZE_AT,
    ARRIVED,
    DRAINED,
    DT_AT,
    FINISHED_AT,
    PLACE_AT,
    PUBLISHED,
    RECEIVED_AT,
    SIZE_AT,
    STOP,
    TICKET_AT,
    UPLOADED,
    XI_AT,
    Rings,
)
from streamdsb.service.segments import (
    MOST_BYTES,
    expect,
    join,
    segment_bytes,
    send_joined,
)
from streamdsb.service.store import (
    COMPLETE,
    PINS,
    N,
    Store,
    add_fragment,
    find,
    next_place,
    use,
)

_PLACE = {name: index for index, name in enumerate(COUNTERS)}
_RECEIVED, _TOO_SHORT, _WRONG_VERSION = (_PLACE[name] for name in COUNTERS[:3])
_WRONG_TYPE, _LOAD_FRAGMENTS, _LOADS_REFUSED, _MODELS_LOADED = (_PLACE[name] for name in COUNTERS[3:7])
_ACCEPTED, _REPLIES, _SEND_REFUSED, _BATCHES = (
    _PLACE[name] for name in ("solves_accepted", "replies", "send_refused", "batches")
)
_REFUSED = _PLACE["unknown_model"] - 1  # + status

_VERSION = 1
_LOAD, _LOAD_ACK, _SOLVE, _RESULT = 16, 17, 18, 19
_OK, _UNKNOWN, _WRONG_N, _OUT_OF_RANGE, _MALFORMED, _OVERLOADED = range(6)

_IDLE_MS = 50
_QUIET = 10_000
"""Times to look in vain, some milliseconds, before a loop with nothing to come rests."""


@njit(nogil=True)
def _turn_around(reply: np.ndarray, frame: np.ndarray, raw: bool) -> None:
    """The Ethernet part of a reply: back to the sender, or zero where there is none."""
    if raw:
        copy(reply, 0, frame, 6, 6)
        copy(reply, 6, frame, 0, 6)
        copy(reply, 12, frame, 12, 2)
    else:
        fill(reply, 0, 14, 0)


@njit(nogil=True)
def _answer(loop: Loop, i: int, frame: np.ndarray, kind: int, status: int, raw: bool) -> None:
    """Put a reply without a solution, of type `kind`, into answer i."""
    reply = row_of(loop.answers, i)
    copy(reply, 14, frame, 14, 18)
    fill(reply, 32, HEADER_BYTES, 0)
    reply[15] = kind
    if kind == _LOAD_ACK:
        reply.view(np.uint32)[8] = status
    else:
        reply.view(np.uint16)[20] = status
    _turn_around(reply, frame, raw)


@njit(nogil=True)
def _positive_or_zero(value: np.float32) -> bool:
    return bool(value >= np.float32(0) and value < np.float32(np.inf))


@njit(nogil=True)
def _admit(loop: Loop, rings: Rings, store: Store, frame: np.ndarray, size: int, name: np.ndarray,
           name_bytes: int, now: int, most: int) -> int:  # fmt: skip
    """Put a SOLVE message into the work ring; returns the status, 0 if it is in."""
    half, word, real = frame.view(np.uint16), frame.view(np.uint32), frame.view(np.float32)
    n, replicas, flags, updates = np.int64(word[8]), np.int64(half[18]), half[19], np.int64(word[10])
    xi, dt = real[11], real[12]
    expected = HEADER_BYTES + (2 * n if flags & 1 else 0)
    if size != expected or flags > 1:
        return _MALFORMED
    place = find(store, np.int64(word[4]), np.int64(word[5]))
    if place < 0:
        return _UNKNOWN
    if n != store.table[place, N]:
        return _WRONG_N
    pairs = replicas * 32 * ((n + 31) // 32)
    if replicas < 1 or pairs > MAX_PAIRS or updates < 1 or updates > MAX_UPDATES:
        return _OUT_OF_RANGE
    if not _positive_or_zero(xi) or not _positive_or_zero(dt):
        return _OUT_OF_RANGE
    ticket = rings.control[PUBLISHED]
    slot = np.int64(ticket % np.uint64(RING_ITEMS))
    if ticket - rings.control[DRAINED] >= np.uint64(most) or loop.occupied[slot]:
        return _OVERLOADED
    loop.occupied[slot] = 1
    store.table[place, PINS] += 1
    item = row_of(rings.work, slot)
    copy(item, 0, frame, 0, size)
    copy(item, ADDRESS_AT, name, 0, ADDRESS_BYTES)
    item_word, item_real = item.view(np.uint32), item.view(np.float32)
    item.view(np.uint64)[RECEIVED_AT // 8] = now
    item_word[PLACE_AT // 4], item_word[ADDRESS_SIZE_AT // 4] = place, name_bytes
    item_real[XI_AT // 4] = xi if xi > np.float32(0) else store.xi[place]
    item_real[DT_AT // 4] = dt if dt > np.float32(0) else np.float32(1)
    store_release(rings.work_sequence, slot, ticket + np.uint64(1))
    store_release(rings.control, PUBLISHED, ticket + np.uint64(1))
    return _OK


@njit(nogil=True)
def _load(
    loop: Loop, rings: Rings, store: Store, frame: np.ndarray, size: int, now: int, upload_event: int
) -> int:
    """Take in a LOAD message; returns the status to answer, or less than 0 for no answer now."""
    loop.counters[_LOAD_FRAGMENTS] += 1
    if rings.control[ARRIVED]:
        return _OVERLOADED  # one upload at a time
    status = add_fragment(store, frame, size, now)
    if status == COMPLETE:
        loop.counters[_MODELS_LOADED] += 1
        place = next_place(store, np.int64(frame.view(np.uint32)[4]))
        if upload_event >= 0:
            store_release(rings.control, ARRIVED, np.uint64(place + 1))
            signal(upload_event, 1)
            return COMPLETE
        use(store, place)
        return _OK
    if status > 0:
        loop.counters[_LOADS_REFUSED] += 1
    return status


@njit(nogil=True)
def _take_in(loop: Loop, rings: Rings, store: Store, size: int, name: np.ndarray, name_bytes: int, out: int,
             now: int, most: int, raw: bool, upload_event: int) -> int:  # fmt: skip
    """Look at loop.frame, of `size` bytes, answering it in answer `out` or not; how many then."""
    frame = loop.frame
    if size < HEADER_BYTES:
        loop.counters[_TOO_SHORT] += 1
        return out
    if frame[14] != _VERSION:
        loop.counters[_WRONG_VERSION] += 1
        return out
    kind = frame[15]
    if kind in (_LOAD_ACK, _RESULT):  # an answer to an answer could go round for ever
        loop.counters[_WRONG_TYPE] += 1
        return out
    if kind == _LOAD:
        status = _load(loop, rings, store, frame, size, now, upload_event)
        if status == COMPLETE:
            copy(loop.pending, 0, frame, 0, FRAME_BYTES)
            copy(loop.pending, ADDRESS_AT, name, 0, ADDRESS_BYTES)
            loop.pending.view(np.uint32)[ADDRESS_SIZE_AT // 4] = name_bytes
        if status < 0:
            return out
        _answer(loop, out, frame, _LOAD_ACK, status, raw)
    else:
        status = _MALFORMED
        if kind == _SOLVE:
            status = _admit(loop, rings, store, frame, size, name, name_bytes, now, most)
        else:
            loop.counters[_WRONG_TYPE] += 1
        if status == _OK:
            loop.counters[_ACCEPTED] += 1
            return out
        if kind == _SOLVE:
            loop.counters[_REFUSED + status] += 1
        _answer(loop, out, frame, _RESULT, status, raw)
    return out + 1


@njit(nogil=True)
def _take_in_batch(fd: int, loop: Loop, rings: Rings, store: Store, received: int, now: int, most: int,
                   raw: bool, joins: bool, upload_event: int) -> None:  # fmt: skip
    """Look at the frames of `received` messages, and send what is to be answered at once."""
    out = 0
    for i in range(received):
        whole, name_bytes = moved(loop.in_headers, i)
        step = segment_bytes(loop.in_headers, loop.in_controls, i, whole)
        at = 0
        while True:  # once for an empty message, too
            size = min(step, whole - at)
            loop.counters[_RECEIVED] += 1
            copy(loop.frame, 0, row_of(loop.incoming, i)[at:], 0, min(size, ONE_FRAME))
            name = row_of(loop.addresses, i)
            loop.asked_by[out] = i
            out = _take_in(loop, rings, store, size, name, name_bytes, out, now, most, raw, upload_event)
            if out == BATCH:
                _ship_answers(fd, loop, out, joins)
                out = 0
            at += step
            if at >= whole:
                break
    if out:
        _ship_answers(fd, loop, out, joins)


@njit(nogil=True)
def _ship_answers(fd: int, loop: Loop, count: int, joins: bool) -> None:
    """Send answers without a solution, those to one message as one."""
    messages, begun = 0, 0
    for i in range(count):
        loop.out_vectors[i, 0], loop.out_vectors[i, 1] = address(row_of(loop.answers, i)), HEADER_BYTES
        last = i + 1 == count
        if last or not joins or loop.asked_by[i + 1] != loop.asked_by[begun]:
            _, name_bytes = moved(loop.in_headers, loop.asked_by[begun])
            direct(
                loop.out_headers, messages, address(row_of(loop.addresses, loop.asked_by[begun])), name_bytes
            )
            join(loop.out_headers, loop.out_vectors, loop.out_controls, messages, begun, i + 1 - begun,
                 HEADER_BYTES)  # fmt: skip
            messages, begun = messages + 1, i + 1
    _ship(fd, loop, messages, count)


@njit(nogil=True)
def _same_way(rings: Rings, one: int, other: int) -> bool:
    """Whether the requests in two work slots came from the same address."""
    a, b = row_of(rings.work, one).view(np.uint64), row_of(rings.work, other).view(np.uint64)
    for word in range(ADDRESS_AT // 8, (ADDRESS_AT + ADDRESS_BYTES) // 8):  # noqa: SIM110
        if a[word] != b[word]:
            return False
    return True  # all() of a generator would not compile


@njit(nogil=True)
def _drain(fd: int, loop: Loop, rings: Rings, store: Store, time: np.ndarray, raw: bool, joins: bool) -> int:
    """Send the replies that are ready, at most a batch; returns their number."""
    first, count = rings.control[DRAINED], 0
    messages, begun = 0, 0
    now, step, slot = np.int64(0), np.int64(0), np.int64(0)
    while count < BATCH:
        turn = first + np.uint64(count)
        place = np.int64(turn % np.uint64(RING_ITEMS))
        if load_acquire(rings.reply_sequence, place) != turn + np.uint64(1):
            break
        if count == 0:
            now = now_ns(time)
        reply = row_of(rings.replies, place)
        word, wide = reply.view(np.uint32), reply.view(np.uint64)
        before, slot = slot, np.int64(wide[TICKET_AT // 8] % np.uint64(RING_ITEMS))
        item = row_of(rings.work, slot)
        _turn_around(reply, item, raw)
        if wide[FINISHED_AT // 8]:
            word[14] = min(now - np.int64(wide[FINISHED_AT // 8]), 0xFFFFFFFF)
        else:  # the worker's clock is not this one: what was not solving was waiting
            inside = now - np.int64(item.view(np.uint64)[RECEIVED_AT // 8])
            word[12] = max(0, min(inside - np.int64(word[13]), 0xFFFFFFFF))
        size = np.int64(word[SIZE_AT // 4])
        if not (joins and count and size == step and size * (count + 1 - begun) <= MOST_BYTES
                and _same_way(rings, before, slot)):  # fmt: skip
            if messages:
                join(loop.out_headers, loop.out_vectors, loop.out_controls, messages - 1, begun,
                     count - begun, step)  # fmt: skip
            begun, step = count, size
            name_bytes = np.int64(item.view(np.uint32)[ADDRESS_SIZE_AT // 4])
            direct(loop.out_headers, messages, address(item) + ADDRESS_AT, name_bytes)
            messages += 1
        loop.out_vectors[count, 0], loop.out_vectors[count, 1] = address(reply), size
        count += 1
    if count == 0:
        return 0
    join(loop.out_headers, loop.out_vectors, loop.out_controls, messages - 1, begun, count - begun, step)
    _ship(fd, loop, messages, count)
    for index in range(count):
        place = np.int64((first + np.uint64(index)) % np.uint64(RING_ITEMS))
        ticket = row_of(rings.replies, place).view(np.uint64)[TICKET_AT // 8]
        slot = np.int64(ticket % np.uint64(RING_ITEMS))
        store.table[np.int64(row_of(rings.work, slot).view(np.uint32)[PLACE_AT // 4]), PINS] -= 1
        loop.occupied[slot] = 0
    rings.control[DRAINED] = first + np.uint64(count)
    return count


@njit(nogil=True)
def _drain_all(fd: int, loop: Loop, rings: Rings, store: Store, time: np.ndarray, raw: bool,
               joins: bool) -> int:  # fmt: skip
    """Send the replies that are ready: what came in as one batch may hold many batches of requests."""
    drained = 0
    while drained < RING_ITEMS:
        count = _drain(fd, loop, rings, store, time, raw, joins)
        drained += count
        if count < BATCH:
            break
    return drained


@njit(nogil=True)
def _ship(fd: int, loop: Loop, messages: int, count: int) -> None:
    """Send `messages` messages with `count` replies in them."""
    refused = send_joined(fd, loop.out_headers, messages)
    loop.counters[_SEND_REFUSED] += refused
    loop.counters[_REPLIES] += count - refused


@njit(nogil=True)
def _acknowledge(fd: int, loop: Loop, rings: Rings, store: Store, raw: bool) -> None:
    """Put the model in use whose upload is done, and say so."""
    use(store, np.int64(rings.control[ARRIVED]) - 1)
    rings.control[UPLOADED], rings.control[ARRIVED] = 0, 0
    name_bytes = np.int64(loop.pending.view(np.uint32)[ADDRESS_SIZE_AT // 4])
    _answer(loop, 0, loop.pending, _LOAD_ACK, _OK, raw)
    aim(loop.out_headers, loop.out_vectors, 0, address(loop.answers), HEADER_BYTES,
        address(loop.pending) + ADDRESS_AT, name_bytes)  # fmt: skip
    _ship(fd, loop, 1, 1)


@njit(nogil=True)
def _expect(loop: Loop, count: int) -> None:
    """Have the first `count` messages of the next batch received whole."""
    expect(loop.in_headers, loop.in_vectors, loop.in_controls, loop.incoming, loop.addresses, count)


@njit(nogil=True, cache=True)
def serve(fd: int, work_event: int, reply_event: int, upload_event: int, most: int, raw: bool, joins: bool,
          loop: Loop, rings: Rings, store: Store) -> None:  # fmt: skip
    """Serve until the stop flag is up.

    fd: a socket; most: requests inside, at most. work_event: an eventfd to add published requests to, or -1;
    reply_event: one that workers signal, or -1 to look for replies without rest while any are to come.
    upload_event: one to signal when the model of place control[ARRIVED] - 1 is complete; it is used once
    control[UPLOADED] says the same. -1 if models are used where they are. joins: whether replies of one size
    to one client go as one message.
    """
    time = np.empty(2, np.int64)
    quiet = 0
    _expect(loop, BATCH)
    while not load_acquire(rings.control, STOP):
        received = receive_some(fd, loop.in_headers, BATCH)
        if received > 0:
            now = now_ns(time)
            published = rings.control[PUBLISHED]
            loop.counters[_BATCHES] += 1
            _take_in_batch(fd, loop, rings, store, received, now, most, raw, joins, upload_event)
            if work_event >= 0 and rings.control[PUBLISHED] != published:
                signal(work_event, rings.control[PUBLISHED] - published)
            _expect(loop, received)
        drained = _drain_all(fd, loop, rings, store, time, raw, joins)
        arrived = rings.control[ARRIVED]
        if arrived and load_acquire(rings.control, UPLOADED) == arrived:
            _acknowledge(fd, loop, rings, store, raw)
        quiet = 0 if received > 0 or drained > 0 else quiet + 1
        if quiet and reply_event >= 0:
            wait_readable(fd, reply_event, _IDLE_MS)
            take(reply_event)
        elif quiet > _QUIET and not arrived and rings.control[PUBLISHED] == rings.control[DRAINED]:
            wait_readable(fd, -1, _IDLE_MS)
