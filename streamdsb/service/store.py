"""The models a server holds: 64 slots, each with the model in use and room for the next one.

A model arrives in fragments, in any order; the slot goes on answering from the model in use until the next
one is complete and checked. Requests pin what they were admitted with, and what is pinned is not
overwritten, so a request is computed from one generation and no mixture. One thread calls all of this.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from streamdsb.native import copy
from streamdsb.service.limits import HEADER_BYTES, MAX_FRAGMENTS, MODEL_BYTES, PAYLOAD_BYTES, SLOTS

PLACES = 2 * SLOTS
"""Two for each slot: 2 slot and 2 slot + 1."""

EMPTY, LOADING, CHECKED, IN_USE = range(4)
STATE, GENERATION, N, FORMAT, TOTAL, FRAGMENTS, RECEIVED, PINS, TOUCHED, XI_BITS = range(10)

INCOMPLETE = -1
COMPLETE = -2

ABANDONED_NS = 1_000_000_000
"""A load that rests this long gives way to another generation's."""

_OK, _UNKNOWN, _OUT_OF_RANGE, _MALFORMED, _OVERLOADED = 0, 1, 3, 4, 5
_PM1, _TERNARY, _INT8 = 1, 2, 3


class Store(NamedTuple):
    """models: uint8 (PLACES, MODEL_BYTES); table: int64 (PLACES, 10); xi: float32 (PLACES,); in_use:
    int64 (SLOTS,), a place or -1; seen: uint32 (PLACES, MAX_FRAGMENTS, 2), offset and size of fragments.
    """

    models: np.ndarray
    table: np.ndarray
    xi: np.ndarray
    in_use: np.ndarray
    seen: np.ndarray


def make_store() -> Store:
    """An empty store; memory is taken as models come."""
    return Store(
        np.zeros((PLACES, MODEL_BYTES), np.uint8),
        np.zeros((PLACES, 10), np.int64),
        np.zeros(PLACES, np.float32),
        np.full(SLOTS, -1, np.int64),
        np.zeros((PLACES, MAX_FRAGMENTS, 2), np.uint32),
    )


@njit(nogil=True)
def find(store: Store, slot: int, generation: int) -> int:
    """The place of a model in use, or -1."""
    if slot >= SLOTS:
        return -1
    place = store.in_use[slot]
    if place >= 0 and store.table[place, GENERATION] == generation:
        return place
    return -1


@njit(nogil=True)
def next_place(store: Store, slot: int) -> int:
    """The place where the slot's next model is put together."""
    return 2 * slot + (1 if store.in_use[slot] == 2 * slot else 0)


@njit(nogil=True)
def _packed_bytes(n: int, form: int) -> int:
    plane = 4 * n * ((n + 31) // 32)
    if form == _PM1:
        return plane
    return 2 * plane + 4 * n if form == _TERNARY else n * n


@njit(nogil=True)
def add_fragment(store: Store, frame: np.ndarray, size: int, now: int) -> int:
    """Take in one LOAD message of `size` bytes.

    Returns INCOMPLETE (nothing to answer), COMPLETE (a whole, checked model, to be put in use with `use`,
    whose place is 2 slot or 2 slot + 1 with the state CHECKED), or the status to answer.
    """
    half, word, real = frame.view(np.uint16), frame.view(np.uint32), frame.view(np.float32)
    slot, generation, n, form = np.int64(word[4]), np.int64(word[5]), np.int64(word[8]), np.int64(half[18])
    fragment, fragments = np.int64(word[10]), np.int64(word[11])
    offset, total, xi = np.int64(word[12]), np.int64(word[13]), real[14]
    payload = size - HEADER_BYTES
    if slot >= SLOTS or not (xi >= np.float32(0) and xi < np.float32(np.inf)):
        return _OUT_OF_RANGE
    if (
        n < 1
        or form < _PM1
        or form > _INT8
        or n > 4096
        or total != _packed_bytes(n, form)
        or total > MODEL_BYTES
    ):
        return _OUT_OF_RANGE
    if fragment >= fragments or fragments > MAX_FRAGMENTS:
        return _OUT_OF_RANGE
    if payload < 1 or payload > PAYLOAD_BYTES or offset + payload > total:
        return _MALFORMED
    if find(store, slot, generation) >= 0:
        return _OK
    place = next_place(store, slot)
    row = store.table[place]
    if row[PINS] > 0:
        return _OVERLOADED
    fresh = row[STATE] != LOADING or row[GENERATION] != generation
    if fresh:
        if row[STATE] == LOADING and now - row[TOUCHED] < ABANDONED_NS:
            return _OVERLOADED
        row[STATE], row[GENERATION], row[N], row[FORMAT] = LOADING, generation, n, form
        row[TOTAL], row[FRAGMENTS], row[RECEIVED], row[XI_BITS] = total, fragments, 0, np.int64(word[14])
        store.xi[place] = xi
        for i in range(fragments):
            store.seen[place, i, 0], store.seen[place, i, 1] = 0, 0
    elif (
        row[N] != n
        or row[FORMAT] != form
        or row[TOTAL] != total
        or row[FRAGMENTS] != fragments
        or row[XI_BITS] != np.int64(word[14])
    ):
        return _MALFORMED
    row[TOUCHED] = now
    if store.seen[place, fragment, 1]:
        return INCOMPLETE
    store.seen[place, fragment, 0], store.seen[place, fragment, 1] = offset, payload
    copy(store.models[place], offset, frame, HEADER_BYTES, payload)
    row[RECEIVED] += 1
    if row[RECEIVED] < fragments:
        return INCOMPLETE
    if not _covers(store.seen[place], fragments, total) or not _is_sound(store.models[place], n, form):
        row[STATE] = EMPTY
        return _MALFORMED
    if xi == np.float32(0):
        store.xi[place] = _default_xi(store.models[place], n, form)
    row[STATE] = CHECKED
    return COMPLETE


@njit(nogil=True)
def use(store: Store, place: int) -> None:
    """Put a CHECKED model in use; requests admitted with the one before keep it until they are answered."""
    slot = place // 2
    before = store.in_use[slot]
    if before >= 0:
        store.table[before, STATE] = EMPTY
    store.table[place, STATE] = IN_USE
    store.in_use[slot] = place


@njit(nogil=True)
def _covers(seen: np.ndarray, fragments: int, total: int) -> bool:
    """Whether the fragments, in order, lie end to end."""
    end = np.int64(0)
    for fragment in range(fragments):
        if np.int64(seen[fragment, 0]) != end:
            return False
        end += np.int64(seen[fragment, 1])
    return end == total


@njit(nogil=True)
def _bit(words: np.ndarray, row: int, stride: int, column: int) -> int:
    return (words[row * stride + column // 32] >> np.uint32(column % 32)) & np.uint32(1)


@njit(nogil=True)
def _is_plane(words: np.ndarray, n: int, stride: int) -> bool:
    """Whether n rows of bits are symmetric, with zero diagonal and padding."""
    padding = np.uint32(0) if n % 32 == 0 else np.uint32(0xFFFFFFFF) << np.uint32(n % 32)
    for i in range(n):
        if words[i * stride + stride - 1] & padding or _bit(words, i, stride, i):
            return False
        for j in range(i):
            if _bit(words, i, stride, j) != _bit(words, j, stride, i):
                return False
    return True


@njit(nogil=True)
def _is_sound(model: np.ndarray, n: int, form: int) -> bool:
    """Whether a packed model is one: symmetric, zero on the diagonal, padding and row constants right."""
    if form == _INT8:
        values = model.view(np.int8)
        for i in range(n):
            if values[i * n + i]:
                return False
            for j in range(i):
                if values[i * n + j] != values[j * n + i]:
                    return False
        return True
    stride = (n + 31) // 32
    words = model.view(np.uint32)
    if not _is_plane(words, n, stride):
        return False
    if form == _PM1:
        return True
    plane = n * stride
    if not _is_plane(words[plane:], n, stride):
        return False
    constants = model.view(np.int32)[2 * plane :]
    for i in range(n):
        constant = 0
        for w in range(i * stride, i * stride + stride):
            if words[w] & words[plane + w]:
                return False
        for j in range(n):
            constant += int(_bit(words, i, stride, j)) - int(_bit(words, n + i, stride, j))
        if constants[i] != constant:
            return False
    return True


@njit(nogil=True)
def _default_xi(model: np.ndarray, n: int, form: int) -> np.float32:
    """0.5 sqrt(n - 1) / ||J||_F, and 0.5 / sqrt(n) for ±1 or no couplings, in float64, rounded once."""
    squares = n * (n - 1)
    if form == _INT8:
        values = model.view(np.int8)
        squares = 0
        for place in range(n * n):
            squares += int(values[place]) ** 2
    elif form == _TERNARY:
        stride = (n + 31) // 32
        words = model.view(np.uint32)
        squares = 0
        for i in range(2 * n):
            for j in range(n):
                squares += int(_bit(words, i, stride, j))
    if squares == 0 or squares == n * (n - 1):
        return np.float32(0.5 / math.sqrt(n))
    return np.float32(0.5 * math.sqrt(n - 1) / math.sqrt(squares))
