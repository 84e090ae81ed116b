"""A dense ±1 matrix on disk: one .npy file or a folder of row shards, mapped and never loaded whole."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numba import types

from streamdsb.errors import UserError
from streamdsb.frame import CouplingFormat
from streamdsb.intrinsics import row_of
from streamdsb.jit import inline, kernel
from streamdsb.layout import BLOCK_COLUMNS, MAX_N, RowRange, ceil_div
from streamdsb.npy_file import load_npy
from streamdsb.packing import pack_couplings, set_diagonal

_KEY = "problem.path"
_KINDS = "int8 of ±1, bool (true for +1) or uint8 of packed bits (1 for +1)"


@dataclass(frozen=True)
class _Shard:
    path: Path
    rows: RowRange
    entries: np.ndarray
    """int8 or bool (rows, n), or packed uint8 (rows, ceil(n / 8)), mapped."""


class FileCouplings:
    """Couplings from a .npy of shape (n, n) or packed (n, ceil(n / 8)), or from a folder of such row shards.

    Shards are taken in the order of their names and stacked.  The diagonal may hold anything.  Entries
    are checked whenever they are read: one that is not ±1 is refused with the first such (i, j).
    """

    coupling_format = CouplingFormat.PM1
    symmetric = False

    def __init__(self, path: Path, bit_order: Literal["big", "little"]) -> None:
        self._path = path
        self._bit_order = bit_order
        self._shards = _open_shards(path)
        self.n = self._shards[-1].rows.stop
        if self.n > MAX_N:
            raise UserError(f"{_KEY} {path}: {self.n} rows, but n should be from 1 to {MAX_N}")
        for shard in self._shards:
            _check_width(shard, self.n)

    def fill(self, rows: RowRange, column_block: int, out: np.ndarray) -> None:
        first = column_block * BLOCK_COLUMNS
        columns = RowRange(first, min(first + BLOCK_COLUMNS, self.n))
        for shard in self._shards:
            start, stop = max(rows.start, shard.rows.start), min(rows.stop, shard.rows.stop)
            if start < stop:
                own = RowRange(start, stop)
                out[start - rows.start : stop - rows.start] = self._packed(shard, own, columns)
        set_diagonal(rows, column_block, out)

    def _packed(self, shard: _Shard, rows: RowRange, columns: RowRange) -> np.ndarray:
        local = slice(rows.start - shard.rows.start, rows.stop - shard.rows.start)
        if shard.entries.dtype == np.uint8:
            stored = shard.entries[local, columns.start // 8 : ceil_div(columns.stop, 8)]
            return _packed_bits(stored, len(columns), self._bit_order)
        entries = shard.entries[local, columns.start : columns.stop]
        if entries.dtype == np.bool_:
            return pack_couplings(entries)
        packed = np.zeros((len(rows), ceil_div(len(columns), 64)), np.uint64)
        if not _pack_entries(_rows_contiguous(entries), rows.start - columns.start, packed):
            i, j, value = self._first_offence()
            raise UserError(
                f"{_KEY} {self._path}: J[{i}, {j}] is {value}, but off the diagonal it should be +1 or -1"
            )
        return packed

    def _first_offence(self) -> tuple[int, int, int]:
        """The first (i, j), row by row, that is not ±1; there is one."""
        every_column = RowRange(0, self.n)
        for shard in self._shards:
            for start in range(0, len(shard.rows) if shard.entries.dtype == np.int8 else 0):
                rows = RowRange(shard.rows.start + start, shard.rows.start + start + 1)
                found = _first_other_value(shard.entries[start : start + 1], rows, every_column)
                if found is not None:
                    return found
        raise UserError(f"{_KEY} {self._path}: an entry that was not ±1 has changed while it was read")


@inline
def _are_signs(entries: np.ndarray) -> bool:
    others = np.uint8(0)
    for entry in entries:
        others |= np.uint8(entry + 1) & np.uint8(0xFD)
    return others == 0


@inline
def _pack_row(entries: np.ndarray, words: np.ndarray) -> None:
    whole = entries.size // 64
    for w in range(whole):
        word = np.uint64(0)
        for bit in range(64):
            word |= np.uint64(entries[64 * w + bit] > 0) << np.uint64(bit)
        words[w] = word
    for c in range(64 * whole, entries.size):
        words[whole] |= np.uint64(entries[c] > 0) << np.uint64(c % 64)


@kernel((types.Array(types.int8, 2, "A", readonly=True), types.int64, types.uint64[:, ::1]))
def _pack_entries(entries: np.ndarray, diagonal: int, packed: np.ndarray) -> bool:
    """Set the bits of entries > 0 in packed, uint64 (rows, words) of zeros; False if an entry is not ±1.

    entries: int8 (rows, columns) with unit inner stride; in row r the one at diagonal + r may be anything.
    """
    signs = True
    for r in range(entries.shape[0]):
        row = row_of(entries, r)
        before = min(max(diagonal + r, 0), row.size)
        after = min(max(diagonal + r + 1, 0), row.size)
        signs &= _are_signs(row[:before]) & _are_signs(row[after:])
        _pack_row(row, packed[r])
    return signs


def _rows_contiguous(entries: np.ndarray) -> np.ndarray:
    return entries if entries.strides[1] == 1 else np.ascontiguousarray(entries)


def _first_other_value(entries: np.ndarray, rows: RowRange, columns: RowRange) -> tuple[int, int, int] | None:
    for r, c in np.argwhere(np.abs(entries) != 1):
        i, j = rows.start + int(r), columns.start + int(c)
        if i != j:
            return i, j, int(entries[r, c])
    return None


def _packed_bits(stored: np.ndarray, columns: int, bit_order: str) -> np.ndarray:
    """uint64 (rows, ceil(columns / 64)) from bytes of packed bits, with clean padding."""
    packed = np.zeros((stored.shape[0], 8 * ceil_div(columns, 64)), np.uint8)
    packed[:, : stored.shape[1]] = stored
    words = packed.view(np.uint64)
    if bit_order == "big":
        _reverse_bytes(words)
    if columns % 64:
        words[:, -1] &= np.uint64((1 << columns % 64) - 1)
    return words


def _reverse_bytes(words: np.ndarray) -> None:
    """Turn round the bits of every byte, in place: halves, then quarters, then neighbours change places."""
    for shift, mask in ((4, 0x0F0F0F0F0F0F0F0F), (2, 0x3333333333333333), (1, 0x5555555555555555)):
        low = words & np.uint64(mask)
        low <<= np.uint64(shift)
        words >>= np.uint64(shift)
        words &= np.uint64(mask)
        words |= low


def _open_shards(path: Path) -> list[_Shard]:
    try:
        files = sorted(path.glob("*.npy")) if stat.S_ISDIR(path.stat().st_mode) else [path]
    except FileNotFoundError:
        raise UserError(f"{_KEY} {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{_KEY} {path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if not files:
        raise UserError(f"{_KEY} {path} is a folder without .npy files")
    shards: list[_Shard] = []
    for file in files:
        entries = _map_entries(file)
        first = shards[-1].rows.stop if shards else 0
        shards.append(_Shard(file, RowRange(first, first + entries.shape[0]), entries))
    return shards


def _map_entries(file: Path) -> np.ndarray:
    entries = load_npy(file, _KEY)
    if entries.ndim != 2 or not all(entries.shape):
        raise UserError(f"{_KEY} {file}: shape {entries.shape}, but (rows, columns) of at least 1 is needed")
    if entries.dtype not in (np.int8, np.bool_, np.uint8):
        raise UserError(f"{_KEY} {file}: dtype {entries.dtype}, but {_KINDS} is needed")
    return entries


def _check_width(shard: _Shard, n: int) -> None:
    packed = shard.entries.dtype == np.uint8
    width, needed = shard.entries.shape[1], ceil_div(n, 8) if packed else n
    if width != needed:
        unit = "bytes of packed bits" if packed else "columns"
        raise UserError(
            f"{_KEY} {shard.path}: not square: {n} rows in all, but {width} {unit} where {needed} are needed"
        )


KERNELS = (_pack_entries,)
