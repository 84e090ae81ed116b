"""Synthetic ±1 couplings on the CPU: 64-row groups of one column block, as packed bits.

Bit 1 means +1 and bit 0 means -1.  Random couplings hash one 64-bit word per 64 couplings on or above
the diagonal; a 64x64 tile below it is the bit transpose of its mirror image.  Mattis couplings are
J_ij = eta_i eta_j.  The diagonal bit is 1 and bits of columns >= n are 0.
"""

from __future__ import annotations

import numpy as np

from streamdsb.hashing import A, C, hash_word, mix
from streamdsb.intrinsics import row_of
from streamdsb.jit import inline, kernel
from streamdsb.layout import BLOCK_WORDS, GROUP_ROWS
from streamdsb.transpose import (
    LANES,
    hash_bits,
    hash_tiles,
    new_tile_sets,
    transpose_tiles,
    transpose_tiles_into,
)

_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


@inline
def _fill_below_diagonal(
    key: np.uint64, group: int, rows: int, first_word: int, words: int, tiles: np.ndarray, out: np.ndarray
) -> None:
    """Whole tile sets go from the registers into their rows; a copy in between costs a third of the rate."""
    column = np.uint64(group) * C
    for at in range(0, words, LANES):
        mirrored_row = np.uint64(64 * (first_word + at))
        hash_tiles(tiles, key + mirrored_row * A + column)
        if rows == GROUP_ROWS and at + LANES <= words:
            transpose_tiles_into(tiles, out, at)
        else:
            transpose_tiles(tiles)
            for r in range(rows):
                for t in range(min(LANES, words - at)):
                    out[r, at + t] = tiles[LANES * r + t]


@inline
def _fill_on_diagonal(
    key: np.uint64, group: int, rows: int, tiles: np.ndarray, out: np.ndarray, word: int
) -> None:
    for k in range(64):
        right_of_diagonal = _ALL << np.uint64(k) << _ONE
        above = hash_word(key, np.uint64(64 * group + k), np.uint64(group)) & right_of_diagonal
        tiles[LANES * k : LANES * (k + 1)] = above
        if k < rows:
            out[k, word] = above
    transpose_tiles(tiles)
    for r in range(rows):
        out[r, word] |= tiles[LANES * r] | (_ONE << np.uint64(r))


@inline
def _fill_above_diagonal(key: np.uint64, row: int, first_word: int, words: np.ndarray) -> None:
    counter = key + np.uint64(row) * A + np.uint64(first_word) * C
    for w in range(words.size):
        words[w] = mix(counter)
        counter += C


@kernel("void(uint64, int64, int64, int64, int64, uint64[:, :])")
def fill_random(key: np.uint64, n: int, first_row: int, first_word: int, words: int, out: np.ndarray) -> None:
    """Write words `first_word` to `first_word + words - 1` of the rows from `first_row` into out.

    out: uint64 (rows, >= words), unit inner stride; first_row is a multiple of 64.
    """
    tiles = new_tile_sets(1)[0]
    for at in range(0, out.shape[0], 64):
        group = (first_row + at) // 64
        group_out = out[at : at + 64]
        rows = group_out.shape[0]
        above = min(max(group - first_word, 0), words)
        _fill_below_diagonal(key, group, rows, first_word, above, tiles, group_out)
        if first_word <= group < first_word + words:
            _fill_on_diagonal(key, group, rows, tiles, group_out, above)
            above += 1
        for r in range(rows):
            row_words = row_of(group_out, r)
            _fill_above_diagonal(key, first_row + at + r, first_word + above, row_words[above:words])
    _clear_padding(n, first_word, words, out)


@inline
def _fill_row(key: np.uint64, row: int, first_word: int, words: np.ndarray) -> None:
    """Below the diagonal each bit of a row takes a hash, as a row of a tile does."""
    group, column = row // 64, np.uint64(row % 64)
    for w in range(words.size):
        above = hash_word(key, np.uint64(row), np.uint64(first_word + w))
        if first_word + w > group:
            words[w] = above
            continue
        counter = key + np.uint64(64 * (first_word + w)) * A + np.uint64(group) * C
        below = hash_bits(counter, A, _ONE << column)
        if first_word + w == group:
            left_of_diagonal = (_ONE << column) - _ONE
            below = (below & left_of_diagonal) | (_ONE << column) | (above & (_ALL << column << _ONE))
        words[w] = below


@inline
def _fill_mattis_row(eta: np.ndarray, row: int, first_word: int, words: np.ndarray) -> None:
    flip = ((eta[row // 64] >> np.uint64(row % 64)) & _ONE) - _ONE
    for w in range(words.size):
        words[w] = eta[first_word + w] ^ flip


@kernel("void(uint64, int64, int64[::1], int64[::1], uint64[:, :])")
def fill_random_rows(key: np.uint64, n: int, rows: np.ndarray, blocks: np.ndarray, out: np.ndarray) -> None:
    """Write row rows[k] in column block blocks[k] into out[k], whole payloads; their padding becomes 0.

    out: uint64 (len(rows), 504), unit inner stride.
    """
    for k in range(rows.size):
        first_word = blocks[k] * BLOCK_WORDS
        words = min(BLOCK_WORDS, (n + 63) // 64 - first_word)
        _fill_row(key, rows[k], first_word, row_of(out, k)[:words])
        _end_payload(n, first_word, words, row_of(out, k))


@kernel("uint64[::1](uint64, int64)")
def mattis_bitmap(key: np.uint64, n: int) -> np.ndarray:
    """The Mattis signs eta, uint64 (ceil(n / 64),), bit 1 for +1, padding 0."""
    eta = np.empty((n + 63) // 64, np.uint64)
    for w in range(eta.size):
        eta[w] = hash_word(key, np.uint64(0), np.uint64(w))
    if n % 64:
        eta[-1] &= (_ONE << np.uint64(n % 64)) - _ONE
    return eta


@kernel("void(uint64[::1], int64, int64, int64, int64, uint64[:, :])")
def fill_mattis(
    eta: np.ndarray, n: int, first_row: int, first_word: int, words: int, out: np.ndarray
) -> None:
    """Write words `first_word` to `first_word + words - 1` of J_ij = eta_i eta_j, rows from `first_row`.

    eta: uint64 bitmap of `mattis_bitmap`; out: uint64 (rows, >= words), unit inner stride.
    """
    signs = eta[first_word : first_word + words]
    for r in range(out.shape[0]):
        row = first_row + r
        flip = ((eta[row // 64] >> np.uint64(row % 64)) & _ONE) - _ONE
        row_words = row_of(out, r)
        for w in range(words):
            row_words[w] = signs[w] ^ flip
    _clear_padding(n, first_word, words, out)


@kernel("void(uint64[::1], int64, int64[::1], int64[::1], uint64[:, :])")
def fill_mattis_rows(eta: np.ndarray, n: int, rows: np.ndarray, blocks: np.ndarray, out: np.ndarray) -> None:
    """`fill_random_rows` for J_ij = eta_i eta_j."""
    for k in range(rows.size):
        first_word = blocks[k] * BLOCK_WORDS
        words = min(BLOCK_WORDS, (n + 63) // 64 - first_word)
        _fill_mattis_row(eta, rows[k], first_word, row_of(out, k)[:words])
        _end_payload(n, first_word, words, row_of(out, k))


@inline
def _clear_padding(n: int, first_word: int, words: int, out: np.ndarray) -> None:
    if n % 64 and first_word + words == (n + 63) // 64:
        inside = (_ONE << np.uint64(n % 64)) - _ONE
        for r in range(out.shape[0]):
            out[r, words - 1] &= inside


@inline
def _end_payload(n: int, first_word: int, words: int, payload: np.ndarray) -> None:
    """Clear what follows the last column."""
    if n % 64 and first_word + words == (n + 63) // 64:
        payload[words - 1] &= (_ONE << np.uint64(n % 64)) - _ONE
    payload[words:] = np.uint64(0)


KERNELS = (fill_random, fill_random_rows, mattis_bitmap, fill_mattis, fill_mattis_rows)
