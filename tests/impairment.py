"""What an impaired link does to the frames of one direction, in one compiled loop."""

# numba reads types off the arguments
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, typeof, types

from streamdsb.hashing import hash_word, mix
from streamdsb.jit import kernel
from streamdsb.native import (
    address,
    aim,
    copy,
    message_headers,
    moved,
    now_ns,
    receive_some,
    send_all,
    wait_readable,
)

LOSS, DUPLICATE, CORRUPT, REORDER, DELAY, WHICH_BIT, HOW_FAR = range(7)
"""What is drawn for a frame; the first five are the indices of the rates."""

FORWARDED, LOST, DUPLICATED, CORRUPTED, REORDERED, DELAYED, REFUSED = range(7)
"""Indices of the counts; REFUSED counts what the system did not take."""

REORDER_FRAMES = 16
"""A reordered frame comes after up to so many later ones,"""
REORDER_NS = 5_000_000
"""or after so long, if no more frames come."""

# indices of the state
_FREE, _OUT, _HELD, _FIRST_DELAYED, _LAST_DELAYED, _SEEN, _STOP = range(7)

_BATCH = 128
_MOST_HELD = 256
_MOST_DELAYED = 1 << 14
_SLOTS = 2 * _BATCH + _MOST_HELD + _MOST_DELAYED + 1
_SLOT_BYTES = 9216
_MAC_BITS = 96
_ETHER_TYPE = 0x88B5
_IPV4, _UDP = 0x0800, 17
_FRAME_BYTES = 4096


class Work(NamedTuple):
    """The memory of one direction. A frame is in one slot, which is free, incoming, outgoing or kept."""

    frames: np.ndarray  # uint8 (slots, bytes)
    lengths: np.ndarray  # int64 (slots,)
    free: np.ndarray  # int64: a stack of slots
    incoming: np.ndarray  # int64: the slot of each message, as for
    outgoing: np.ndarray
    held: np.ndarray  # int64 (_MOST_HELD, 3): slot, frames to be seen before, time at the latest, ns
    delayed: np.ndarray  # int64 (_MOST_DELAYED, 2): a ring of slot and time
    state: np.ndarray  # int64
    counts: np.ndarray  # int64
    rates: np.ndarray  # float64
    headers: np.ndarray  # of what goes out
    vectors: np.ndarray
    key: np.uint64
    delay_ns: int
    everything: bool
    hides_corruption: bool
    target: int

    @classmethod
    def make(
        cls,
        rates: tuple[float, float, float, float, float],
        delay_ns: int,
        key: int,
        target: int,
        everything: bool,
        hides_corruption: bool,
    ) -> Work:
        """rates: of LOSS, DUPLICATE, CORRUPT, REORDER, DELAY; target: the socket that sends."""
        state = np.zeros(8, np.int64)
        state[_FREE] = _SLOTS
        return cls(
            frames=np.empty((_SLOTS, _SLOT_BYTES), np.uint8),
            lengths=np.zeros(_SLOTS, np.int64),
            free=np.arange(_SLOTS)[::-1].copy(),
            incoming=np.zeros(_BATCH, np.int64),
            outgoing=np.zeros(_BATCH, np.int64),
            held=np.zeros((_MOST_HELD, 3), np.int64),
            delayed=np.zeros((_MOST_DELAYED, 2), np.int64),
            state=state,
            counts=np.zeros(8, np.int64),
            rates=np.array(rates, np.float64),
            headers=message_headers(_BATCH),
            vectors=np.zeros((_BATCH, 2), np.uint64),
            key=np.uint64(mix(np.uint64(key))),
            delay_ns=delay_ns,
            everything=everything,
            hides_corruption=hides_corruption,
            target=target,
        )

    def stop(self) -> None:
        """Let `forward` return; the event that it waits for has to be signalled too."""
        self.state[_STOP] = 1


_piece = njit(nogil=True)


@_piece
def _draw(work, frame, what):
    """A number from 0 to 1, exclusive."""
    word = hash_word(work.key, np.uint64(frame), np.uint64(what))
    return np.float64(np.int64(word >> np.uint64(11))) * 2.0**-53


@_piece
def _take(work):
    work.state[_FREE] -= 1
    return work.free[work.state[_FREE]]


@_piece
def _give(work, slot):
    work.free[work.state[_FREE]] = slot
    work.state[_FREE] += 1


@_piece
def _flush(work):
    count = work.state[_OUT]
    refused = send_all(work.target, work.headers, count)
    work.counts[FORWARDED] += count - refused
    work.counts[REFUSED] += refused
    for i in range(count):
        _give(work, work.outgoing[i])
    work.state[_OUT] = 0


@_piece
def _send(work, slot):
    if work.state[_OUT] == _BATCH:
        _flush(work)
    i = work.state[_OUT]
    aim(
        work.headers,
        work.vectors,
        i,
        address(work.frames) + slot * _SLOT_BYTES,
        work.lengths[slot],
        0,
        0,
    )
    work.outgoing[i] = slot
    work.state[_OUT] = i + 1


@_piece
def _big_endian(frame, at):
    return np.int64(frame[at]) << 8 | np.int64(frame[at + 1])


@_piece
def _udp_header(frame, length):
    """Where the UDP header of a datagram that can hold a frame begins; 0 if it is something else."""
    if length < 14 + 20 + 8 or _big_endian(frame, 12) != _IPV4 or frame[23] != _UDP:
        return 0
    at = 14 + 4 * np.int64(frame[14] & 15)
    return at if length >= at + 8 + _FRAME_BYTES and _big_endian(frame, at + 4) >= 8 + _FRAME_BYTES else 0


@_piece
def _corrupt(work, slot, index):
    """Flip a bit behind the addresses."""
    frame, length = work.frames[slot], work.lengths[slot]
    udp = _udp_header(frame, length)
    if work.hides_corruption and udp:
        frame[udp + 6], frame[udp + 7] = 0, 0
    bit = _MAC_BITS + np.int64(_draw(work, index, WHICH_BIT) * (8 * length - _MAC_BITS))
    frame[bit >> 3] ^= np.uint8(1 << (bit & 7))
    work.counts[CORRUPTED] += 1


@_piece
def _pass_on(work, slot, index, now):
    """Send a frame, or a copy, now or later; index: what its numbers are drawn for."""
    state = work.state
    if _draw(work, index, CORRUPT) < work.rates[CORRUPT]:
        _corrupt(work, slot, index)
    if _draw(work, index, REORDER) < work.rates[REORDER] and state[_HELD] < _MOST_HELD:
        later = 1 + np.int64(_draw(work, index, HOW_FAR) * REORDER_FRAMES)
        place = work.held[state[_HELD]]
        place[0], place[1], place[2] = slot, state[_SEEN] + later, now + REORDER_NS
        state[_HELD] += 1
        work.counts[REORDERED] += 1
    elif (
        _draw(work, index, DELAY) < work.rates[DELAY]
        and state[_LAST_DELAYED] - state[_FIRST_DELAYED] < _MOST_DELAYED
    ):
        entry = work.delayed[state[_LAST_DELAYED] % _MOST_DELAYED]
        entry[0], entry[1] = slot, now + work.delay_ns
        state[_LAST_DELAYED] += 1
        work.counts[DELAYED] += 1
    else:
        _send(work, slot)


@_piece
def _impair(work, slot, now):
    """Let happen to one frame what happens."""
    index = 2 * work.state[_SEEN]
    work.state[_SEEN] += 1
    if _draw(work, index, LOSS) < work.rates[LOSS]:
        work.counts[LOST] += 1
        _give(work, slot)
        return
    again = -1
    if _draw(work, index, DUPLICATE) < work.rates[DUPLICATE]:
        again = _take(work)
        work.lengths[again] = work.lengths[slot]
        copy(work.frames[again], 0, work.frames[slot], 0, work.lengths[slot])
        work.counts[DUPLICATED] += 1
    _pass_on(work, slot, index, now)
    if again >= 0:
        _pass_on(work, again, index + 1, now)


@_piece
def _release(work, now):
    """Send what was kept long enough."""
    state, held = work.state, work.held
    kept = 0
    for i in range(state[_HELD]):
        if held[i, 1] <= state[_SEEN] or held[i, 2] <= now:
            _send(work, held[i, 0])
        else:
            for k in range(3):
                held[kept, k] = held[i, k]
            kept += 1
    state[_HELD] = kept
    while state[_FIRST_DELAYED] < state[_LAST_DELAYED]:
        entry = work.delayed[state[_FIRST_DELAYED] % _MOST_DELAYED]
        if entry[1] > now:
            break
        _send(work, entry[0])
        state[_FIRST_DELAYED] += 1


@_piece
def _next_due_ms(work, now):
    """Until when to wait, ms; -1 for as long as nothing comes."""
    state, due = work.state, np.int64(-1)
    if state[_FIRST_DELAYED] < state[_LAST_DELAYED]:
        due = work.delayed[state[_FIRST_DELAYED] % _MOST_DELAYED, 1]
    for i in range(state[_HELD]):
        due = work.held[i, 2] if due < 0 else min(due, work.held[i, 2])
    return -1 if due < 0 else max(0, (due - now + 999_999) // 1_000_000)


def _forward(source, stop_event, work):
    """Pass on what the socket `source` receives until `work.stop`."""
    time = np.zeros(2, np.int64)
    headers, vectors = np.zeros((_BATCH, 8), np.uint64), np.zeros((_BATCH, 2), np.uint64)
    for i in range(_BATCH):
        work.incoming[i] = _take(work)
        slot = work.incoming[i]
        aim(headers, vectors, i, address(work.frames) + slot * _SLOT_BYTES, _SLOT_BYTES, 0, 0)
    while work.state[_STOP] == 0:
        count = receive_some(source, headers, _BATCH)
        now = now_ns(time)
        for i in range(count):
            slot = work.incoming[i]
            work.lengths[slot] = moved(headers, i)[0]
            frame = work.frames[slot]
            if (
                work.everything
                or _big_endian(frame, 12) == _ETHER_TYPE
                or _udp_header(frame, work.lengths[slot])
            ):
                _impair(work, slot, now)
                _release(work, now)
            else:
                _send(work, slot)
            work.incoming[i] = _take(work)
            slot = work.incoming[i]
            aim(headers, vectors, i, address(work.frames) + slot * _SLOT_BYTES, _SLOT_BYTES, 0, 0)
        _release(work, now)
        _flush(work)
        if count <= 0:
            wait_readable(source, stop_event, _next_due_ms(work, now))


_work_type: Any = typeof(Work.make((0, 0, 0, 0, 0), 0, 0, 0, False, False))
forward = kernel(types.void(types.int64, types.int64, _work_type))(_forward)
