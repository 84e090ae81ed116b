"""Accumulation on the CPU: mismatch counts c_i = popcount(row_i XOR v) of each replica's sign bits v."""

from __future__ import annotations

import numpy as np

from receiver.check import FrameCheck, accept_next
from receiver.mismatches import mismatch_counter
from streamdsb.jit import inline, kernel
from streamdsb.layout import BLOCK_WORDS, GROUP_ROWS, Layout, RowRange

_ROWS_AT_ONCE, _REPLICAS_AT_ONCE = 2, 8
"""Sixteen sums and the words that they are made of fill the vector registers of AVX-512."""

_count_all = mismatch_counter(_ROWS_AT_ONCE, _REPLICAS_AT_ONCE)
_count_one_replica = mismatch_counter(_ROWS_AT_ONCE, 1)
_count_one_row = mismatch_counter(1, 1)


@inline
def _add_rows(
    frames: np.ndarray,
    picked: np.ndarray,
    ahead: np.ndarray,
    signs: np.ndarray,
    words: int,
    counts: np.ndarray,
    first_row: int,
    sums: np.ndarray,
) -> None:
    replica = 0
    while replica < signs.shape[0]:
        several = replica + _REPLICAS_AT_ONCE <= signs.shape[0]
        replicas = _REPLICAS_AT_ONCE if several else 1
        if several:
            _count_all(frames, picked, ahead, signs, replica, words, sums)
        else:
            _count_one_replica(frames, picked, ahead, signs, replica, words, sums)
        for k in range(_ROWS_AT_ONCE):
            row = np.int64(frames[picked[k], 4]) - first_row
            for r in range(replicas):
                counts[replica + r, row] += np.int32(sums[k * replicas + r])
        replica += replicas


@inline
def _add_row(
    frames: np.ndarray,
    picked: np.ndarray,
    signs: np.ndarray,
    words: int,
    counts: np.ndarray,
    first_row: int,
    sums: np.ndarray,
) -> None:
    row = np.int64(frames[picked[0], 4]) - first_row
    for replica in range(signs.shape[0]):
        _count_one_row(frames, picked, picked, signs, replica, words, sums)
        counts[replica, row] += np.int32(sums[0])


@inline
def _block_of(frames: np.ndarray, index: int) -> int:
    return int(frames[index, 5] & np.uint64(0xFFFF_FFFF))


@inline
def _add_run(
    frames: np.ndarray,
    accepted: np.ndarray,
    start: int,
    stop: int,
    known: int,
    block: int,
    signs: np.ndarray,
    tile: np.ndarray,
    tile_block: np.ndarray,
    counts: np.ndarray,
    first_row: int,
    sums: np.ndarray,
) -> None:
    """Add frames[accepted[start:stop]], all of one column block; those before accepted[known] come next."""
    first_word = block * BLOCK_WORDS
    words = min(BLOCK_WORDS, signs.shape[1] - first_word)
    if tile_block[0] != block:
        tile[:, :words] = signs[:, first_word : first_word + words]
        tile_block[0] = block
    i = start
    while i + _ROWS_AT_ONCE <= stop:
        ahead = min(i + _ROWS_AT_ONCE, known - _ROWS_AT_ONCE)
        _add_rows(frames, accepted[i:], accepted[ahead:], tile, words, counts, first_row, sums)
        i += _ROWS_AT_ONCE
    while i < stop:
        _add_row(frames, accepted[i:], tile, words, counts, first_row, sums)
        i += 1


@kernel("void(uint64[:, ::1], int32[::1], uint64[:, ::1], uint64[:, ::1], int64[::1], int32[:, ::1], int64)")
def _accumulate(
    frames: np.ndarray,
    accepted: np.ndarray,
    signs: np.ndarray,
    tile: np.ndarray,
    tile_block: np.ndarray,
    counts: np.ndarray,
    first_row: int,
) -> None:
    """Add the mismatches of frames[accepted] to counts, int32 (B, rows).

    tile: uint64 (B, 504), the sign words of column block tile_block[0], kept from call to call so that
    they are contiguous and stay in the first-level cache.
    """
    sums = np.empty(_ROWS_AT_ONCE * _REPLICAS_AT_ONCE, np.uint64)
    i, known = 0, accepted.size
    while i < known:
        block = _block_of(frames, accepted[i])
        stop = i + 1
        while stop < known and _block_of(frames, accepted[stop]) == block:
            stop += 1
        _add_run(frames, accepted, i, stop, known, block, signs, tile, tile_block, counts, first_row, sums)
        i = stop


@kernel(
    "void(uint64[:, ::1], int64[::1], uint64[::1], int64[::1], int32[::1], uint64[:, ::1], uint64[:, ::1], "
    "int64[::1], int32[:, ::1], int64)"
)
def _check_and_accumulate(
    frames: np.ndarray,
    place: np.ndarray,
    state: np.ndarray,
    outcomes: np.ndarray,
    accepted: np.ndarray,
    signs: np.ndarray,
    tile: np.ndarray,
    tile_block: np.ndarray,
    counts: np.ndarray,
    first_row: int,
) -> None:
    """Add the mismatches of those frames that the check's parts, from `place` to `accepted`, let through."""
    sums = np.empty(_ROWS_AT_ONCE * _REPLICAS_AT_ONCE, np.uint64)
    i = 0
    while i < frames.shape[0]:
        looked, added = accept_next(frames, i, place, state, outcomes, accepted, 0)
        if added > 0:
            block = _block_of(frames, i)
            _add_run(
                frames, accepted, 0, added, added, block, signs, tile, tile_block, counts, first_row, sums
            )
        i += looked


KERNELS = (_accumulate, _check_and_accumulate)


def _aligned_tile(replicas: int) -> np.ndarray:
    """Zeroed uint64 (replicas, 504) on a cache line."""
    words = np.zeros(replicas * BLOCK_WORDS + 8, np.uint64)
    skip = (-words.ctypes.data // 8) % 8
    return words[skip : skip + replicas * BLOCK_WORDS].reshape(replicas, BLOCK_WORDS)


class CpuAccumulator:
    """Mismatch counts of the rows of one receiver, int32 (B, rows), for all replicas.

    Queues carry distinct rows, so threads may feed different queues at the same time.
    """

    def __init__(self, layout: Layout, rows: RowRange) -> None:
        if rows.start % GROUP_ROWS:
            raise ValueError(
                f"rows begin at {rows.start}, but they should begin at a multiple of {GROUP_ROWS}"
            )
        self._rows = rows
        self._counts = np.zeros((layout.replicas, len(rows)), np.int32)
        self._tiles = [_aligned_tile(layout.replicas) for _ in range(layout.queues)]
        self._tile_blocks = np.full((layout.queues, 1), -1, np.int64)
        self._signs = np.zeros((layout.replicas, layout.bitmap_words), np.uint64)

    def begin_pass(self, signs: np.ndarray) -> None:
        """Start from zero counts against `signs`, uint64 (B, ceil(n / 64)), to be left alone meanwhile."""
        self._signs = signs
        self._counts[:] = 0
        self._tile_blocks[:] = -1

    def feed(self, queue: int, frames: np.ndarray, accepted: np.ndarray) -> None:
        """Add the frames that the check of `queue` accepted; frames: uint64 (count, 512), accepted: int32."""
        _accumulate(frames, accepted, *self._parts(queue))

    def feed_checked(self, check: FrameCheck, frames: np.ndarray) -> None:
        """Add those of `frames`, uint64 (count, 512), that `check` accepts.

        The same as `feed` with what it accepts, in one go: a header is read once.
        """
        _check_and_accumulate(frames, *check.parts, *self._parts(check.queue))

    def _parts(self, queue: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
        """What the kernels take to add frames of a queue."""
        return self._signs, self._tiles[queue], self._tile_blocks[queue], self._counts, self._rows.start

    def finish_pass(self) -> np.ndarray:
        """The counts of the pass, int32 (B, rows)."""
        return self._counts
