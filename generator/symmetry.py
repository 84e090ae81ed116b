"""Is the matrix symmetric, and the same in every pass?  Answered as they go by, in memory that does not grow.

Every 64x64 bit tile is hashed with its place.  A tile below the diagonal is transposed and hashed with
the place of its mirror image, so the sum over the tiles below equals the sum over those above if the
matrix is symmetric, and differs, but for one chance in about 2^64, if it is not.  The sum over the
tiles above identifies the couplings.  Only if the sums differ is the matrix read again to find where.
In later passes both sums of each queue have to be what they were in the first.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from streamdsb.errors import RunFailed, UserError
from streamdsb.hashing import A, C, mix
from streamdsb.intrinsics import row_of
from streamdsb.jit import inline, kernel
from streamdsb.layout import BLOCK_COLUMNS, BLOCK_WORDS, Layout, RowRange
from streamdsb.packing import unpack_couplings
from streamdsb.transpose import LANES, TILE_SET_WORDS, new_tile_sets, transpose_tiles

if TYPE_CHECKING:
    from generator.source import CouplingSource


@inline
def _load_tiles(words: np.ndarray, first: int, count: int, tiles: np.ndarray) -> None:
    tiles[:] = np.uint64(0)
    for r in range(words.shape[0]):
        row = row_of(words, r)
        for lane in range(count):
            tiles[LANES * r + lane] = row[first + lane]


@inline
def _hash_mirrored(tiles: np.ndarray, count: int, first_word: int, group: int) -> np.uint64:
    total = np.uint64(0)
    place = np.uint64(group) * C
    for e in range(TILE_SET_WORDS):
        k, lane = e // LANES, e % LANES
        row = np.uint64(64 * (first_word + lane) + k)
        if lane < count and tiles[e] != np.uint64(0):
            total += mix(tiles[e] + row * A + place)
    return total


@inline
def _hash_upright(row_words: np.ndarray, row: int, first_word: int) -> np.uint64:
    total = np.uint64(0)
    place = np.uint64(row) * A + np.uint64(first_word) * C
    for w in range(row_words.size):
        if row_words[w] != np.uint64(0):
            total += mix(row_words[w] + place)
        place += C
    return total


@kernel("void(uint64[:, :], int64, int64, uint64[::1])")
def _hash_sides(words: np.ndarray, first_row: int, first_word: int, sums: np.ndarray) -> None:
    """Add the tiles of `words`, uint64 (rows, words), to sums, uint64 (2,): above, below the diagonal.

    first_row is a multiple of 64.  A tile on the diagonal counts on both sides.
    """
    tiles = new_tile_sets(1)[0]
    for at in range(0, words.shape[0], 64):
        group_words = words[at : at + 64]
        group = (first_row + at) // 64
        below = min(max(group + 1 - first_word, 0), words.shape[1])
        for start in range(0, below, LANES):
            count = min(LANES, below - start)
            _load_tiles(group_words, start, count, tiles)
            transpose_tiles(tiles)
            sums[1] += _hash_mirrored(tiles, count, first_word + start, group)
        above = min(max(group - first_word, 0), words.shape[1])
        for r in range(group_words.shape[0]):
            row = row_of(group_words, r)
            sums[0] += _hash_upright(row[above:], first_row + at + r, first_word + above)


KERNELS = (_hash_sides,)


class SymmetryCheck:
    """Watches the tiles of one pass, over all rows or some; several threads may add to it."""

    def __init__(self) -> None:
        self._sums = np.zeros(2, np.uint64)
        self._lock = threading.Lock()

    def add(self, rows: RowRange, column_block: int, words: np.ndarray) -> None:
        """Watch `words`, uint64 (len(rows), words of the block); rows.start is a multiple of 64."""
        sums = np.zeros(2, np.uint64)
        _hash_sides(words, rows.start, column_block * BLOCK_WORDS, sums)
        with self._lock:
            self._sums += sums

    @property
    def sums(self) -> tuple[int, int]:
        """What the tiles above and below the diagonal sum to modulo 2**64; sums over distinct rows add up."""
        return int(self._sums[0]), int(self._sums[1])


class InputWatch:
    """Watches what a source gives on each queue, which has to be the same in every pass."""

    def __init__(self, name: str, queues: int) -> None:
        self._name = name
        self._queues = queues
        self._first: tuple[int, list[tuple[int, int]]] | None = None

    def begin_pass(self) -> list[SymmetryCheck]:
        """What watches the tiles of each queue in the pass that begins."""
        self._checks = [SymmetryCheck() for _ in range(self._queues)]
        return self._checks

    def end_pass(self, pass_index: int) -> tuple[int, int] | None:
        """After all rows of a pass: of the first one, the sums over all queues, modulo 2**64.

        Raises RunFailed if another pass differs from it.
        """
        sums = [check.sums for check in self._checks]
        if self._first is None:
            self._first = pass_index, sums
            above, below = (sum(side) % 2**64 for side in zip(*sums, strict=True))
            return above, below
        first_pass, expected = self._first
        for queue, (found, right) in enumerate(zip(sums, expected, strict=True)):
            if found != right:
                raise RunFailed(
                    f"{self._name}: its couplings of pass {pass_index} on queue {queue} are not those of pass"
                    f" {first_pass}: they hash to {sum(found) % 2**64:016x}, not to {sum(right) % 2**64:016x}"
                )
        return None


def hash_of_sums(sums: tuple[int, int], source: CouplingSource, name: str) -> str:
    """16 hex digits for the couplings whose tiles have these sums over all rows.

    Raises UserError with the first asymmetric (i, j), for which `source` is read again, if they differ.
    """
    above, below = sums
    if above != below:
        i, j, value = first_asymmetry(source)
        raise UserError(f"{name}: not symmetric: J[{i}, {j}] is {value:+d}, but J[{j}, {i}] is {-value:+d}")
    return f"{above:016x}"


_MIRROR_ROWS = 1024


def first_asymmetry(source: CouplingSource) -> tuple[int, int, int]:
    """The first (i, j), row by row, with J_ij != J_ji, and J_ij; there is one.  Reads the matrix again."""
    layout = Layout(source.n, 1, 1)
    for block in range(layout.column_blocks):
        rows = RowRange(block * BLOCK_COLUMNS, block * BLOCK_COLUMNS + layout.columns_in(block))
        strip = np.zeros((len(rows), BLOCK_WORDS), np.uint64)
        found: list[tuple[int, int, int]] = []
        for other in range(block, layout.column_blocks):
            source.fill(rows, other, strip[:, : layout.words_in(other)])
            found += _asymmetries(source, layout, strip, rows, block, other)
        if found:
            return min(found)
    raise UserError(
        "the couplings changed while they were read: their two halves hash differently, yet agree"
    )


def _asymmetries(
    source: CouplingSource, layout: Layout, strip: np.ndarray, rows: RowRange, block: int, other: int
) -> list[tuple[int, int, int]]:
    """For each chunk of mirror rows, the first (i, j, J_ij) where `strip` and its mirror image differ."""
    found = []
    first = other * BLOCK_COLUMNS
    stop = first + layout.columns_in(other)
    for start in range(first, stop, _MIRROR_ROWS):
        mirror = RowRange(start, min(start + _MIRROR_ROWS, stop))
        mirrored = np.zeros((len(mirror), layout.words_in(block)), np.uint64)
        source.fill(mirror, block, mirrored)
        word = (start - first) // 64
        upright = unpack_couplings(strip[:, word : word + -(-len(mirror) // 64)], len(mirror))
        differs = upright != unpack_couplings(mirrored, len(rows)).T
        if differs.any():
            i = int(differs.any(axis=1).argmax())
            j = int(differs[i].argmax())
            found.append((rows.start + i, mirror.start + j, 2 * int(upright[i, j]) - 1))
    return found
