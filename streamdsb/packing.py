"""±1 couplings as packed bits, for who writes a source of couplings."""

from __future__ import annotations

import numpy as np

from streamdsb.layout import BLOCK_COLUMNS, RowRange, ceil_div


def columns_of(n: int, column_block: int) -> np.ndarray:
    """The columns j of a column block that are inside the matrix, int64."""
    first = column_block * BLOCK_COLUMNS
    return np.arange(first, min(first + BLOCK_COLUMNS, n))


def pack_couplings(plus: np.ndarray) -> np.ndarray:
    """Pack bool (rows, columns), True for J = +1, into uint64 (rows, ceil(columns / 64)).

    Column j stands at bit j % 64 of word j // 64; padding bits are 0.
    """
    rows, columns = plus.shape
    packed = np.zeros((rows, 8 * ceil_div(columns, 64)), np.uint8)
    packed[:, : ceil_div(columns, 8)] = np.packbits(plus, axis=1, bitorder="little")
    return packed.view(np.uint64)


def unpack_couplings(words: np.ndarray, columns: int) -> np.ndarray:
    """The reverse of `pack_couplings`: uint8 (rows, columns) of 0 and 1 from uint64 (rows, words)."""
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, count=columns, bitorder="little")


def set_diagonal(rows: RowRange, column_block: int, out: np.ndarray) -> None:
    """Set the diagonal bits of `rows` that lie in `column_block`; out: uint64 (len(rows), words)."""
    first_column = column_block * BLOCK_COLUMNS
    start, stop = max(rows.start, first_column), min(rows.stop, first_column + BLOCK_COLUMNS)
    row = np.arange(start, max(start, stop))
    column = row - first_column
    out[row - rows.start, column // 64] |= np.uint64(1) << (column % 64).astype(np.uint64)
