"""Eight 64x64 bit tiles, hashed and transposed at once, against one bit after another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from streamdsb.hashing import A
from streamdsb.transpose import hash_bits, hash_tiles, new_tile_sets, transpose_tiles, transpose_tiles_into
from validation.oracle import hash_words


@njit
def _transposed(tiles: np.ndarray) -> np.ndarray:
    own = new_tile_sets(1)[0]
    own[:] = tiles
    transpose_tiles(own)
    return own.copy()


@njit
def _hashed(row_zero: np.uint64) -> np.ndarray:
    tiles = new_tile_sets(1)[0]
    hash_tiles(tiles, row_zero)
    return tiles.copy()


@njit
def _written(tiles: np.ndarray, out: np.ndarray, at: int) -> None:
    own = new_tile_sets(1)[0]
    own[:] = tiles
    transpose_tiles_into(own, out, at)


@njit
def _address(count: int) -> int:
    return new_tile_sets(count).ctypes.data


def _bits(tiles: np.ndarray) -> np.ndarray:
    """uint8 (8 tiles, 64 rows, 64 columns) of a tile set, whose word 8 k + t is row k of tile t."""
    words = tiles.reshape(64, 8).T.copy()
    return np.unpackbits(words.view(np.uint8).reshape(8, 64, 8), axis=2, bitorder="little")


@pytest.mark.parametrize("seed", range(5))
def test_transpose(seed: int) -> None:
    tiles = np.random.default_rng(seed).integers(0, 2**64, 512, np.uint64)
    assert (_bits(_transposed(tiles)) == _bits(tiles).transpose(0, 2, 1)).all()
    assert (_transposed(_transposed(tiles)) == tiles).all()


def test_transpose_of_every_single_bit_of_a_tile() -> None:
    for k in range(64):
        tiles = np.zeros(512, np.uint64)
        tiles[8 * k : 8 * k + 8] = np.uint64(1) << np.arange(8, dtype=np.uint64) * np.uint64(9)
        expected = _bits(tiles).transpose(0, 2, 1)
        assert (_bits(_transposed(tiles)) == expected).all()


def test_hashes_of_the_rows_of_eight_tiles() -> None:
    start = 12345678901234567
    expected = hash_words(start, np.arange(512), 0).reshape(8, 64)  # row 64 t + k
    found = _hashed(np.uint64(start)).reshape(64, 8).T
    assert (found == expected).all()
    assert int(A) == 0x9E3779B97F4A7C15


@pytest.mark.parametrize("at", [0, 1, 8, 24])
@pytest.mark.parametrize("row_words", [32, 512])
def test_a_transpose_is_written_into_its_rows_and_nowhere_else(at: int, row_words: int) -> None:
    tiles = np.random.default_rng(at).integers(0, 2**64, 512, np.uint64)
    out = np.full((66, row_words), 7, np.uint64)[1:65, :32]
    whole = out.base
    assert whole is not None
    _written(tiles, out, at)
    assert (out[:, at : at + 8] == _transposed(tiles).reshape(64, 8)).all()
    out[:, at : at + 8] = 7
    assert (whole == 7).all()


def test_tile_sets_start_on_a_cache_line() -> None:
    assert all(_address(count) % 64 == 0 for count in (1, 2, 3, 8))


@njit
def _hash_bits(first: np.uint64, step: np.uint64, bit: np.uint64) -> np.uint64:
    return hash_bits(first, step, bit)


@given(key=st.integers(0, 2**64 - 1), bit=st.integers(0, 63))
@settings(deadline=None)
def test_a_word_of_bits_is_that_of_64_hashes(key: int, bit: int) -> None:
    found = int(_hash_bits(np.uint64(key), A, np.uint64(1 << bit)))
    hashes = hash_words(key, np.arange(64, dtype=np.uint64), np.zeros(64, np.uint64))
    assert found == sum((int(hashed) >> bit & 1) << k for k, hashed in enumerate(hashes))
