"""Dynamics of discrete simulated bifurcation on the CPU: energies, the update step, sign bitmaps.

With mismatch count c, sign s and field h of a row, every operation rounded to float32 on its own:

    a = n - 2 c - s                      (the coupling sum; the transmitted diagonal bit is removed)
    2E = - sum_i s_i (a_i + 2 h_i)       (int64)
    g = xi * float32(a + h) - c_k * x
    y = y + g * dt
    x = x + y * dt
    if |x| > 1: x = +1 if x > 0 else -1; y = 0

after Goto et al., "High-performance combinatorial optimization based on classical mechanics" (2021).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import xxhash

from streamdsb.hashing import Domain, hash_word, key_of
from streamdsb.intrinsics import row_of
from streamdsb.jit import inline, kernel
from streamdsb.layout import GROUP_ROWS, Layout, RowRange
from streamdsb.packing import pack_couplings

_ONE = np.uint64(1)


@dataclass(frozen=True)
class Dynamics:
    """Parameters of the update step."""

    updates: int
    xi: np.float32
    dt: np.float32

    def detuning(self, k: int) -> np.float32:
        """c_k = float32(1 - p_k) with p_k = k / (K - 1) in float64, p_0 = 0 if K = 1."""
        pump = k / (self.updates - 1) if self.updates > 1 else 0.0
        return np.float32(1.0 - pump)


@inline
def _initial_value(key: np.uint64, replica: int, row: int) -> np.float32:
    t = np.int64(hash_word(key, np.uint64(replica), np.uint64(row)) >> np.uint64(40))
    return np.float32(t - 8388608) * (np.float32(0.1) * np.float32(2.0**-23))


@kernel("void(uint64, uint64, int64, float32[:, ::1], float32[:, ::1], uint64[:, :])")
def _initialize(
    position_key: np.uint64,
    momentum_key: np.uint64,
    first_row: int,
    x: np.ndarray,
    y: np.ndarray,
    signs: np.ndarray,
) -> None:
    for replica in range(x.shape[0]):
        for r in range(x.shape[1]):
            x[replica, r] = _initial_value(position_key, replica, first_row + r)
            y[replica, r] = _initial_value(momentum_key, replica, first_row + r)
        _pack_signs(x[replica], signs[replica])


@inline
def _pack_signs(x: np.ndarray, bitmap: np.ndarray) -> None:
    for start in range(0, x.size, 64):
        word = np.uint64(0)
        for bit in range(min(64, x.size - start)):
            word |= np.uint64(x[start + bit] > np.float32(0)) << np.uint64(bit)
        bitmap[start // 64] = word


@inline
def _coupling_sum(n: int, mismatches: np.int32, position: np.float32) -> np.int64:
    return np.int64(n) - np.int64(2) * np.int64(mismatches) - np.int64(1 if position > np.float32(0) else -1)


@kernel("void(int64, int32[:, :], float32[:, :], int32[::1], int64[::1])")
def _measure(n: int, counts: np.ndarray, x: np.ndarray, field: np.ndarray, two_energy: np.ndarray) -> None:
    """Add this range's share of 2E to two_energy, int64 (B,).

    counts: int32 (B, rows), x: float32 (B, rows), field: int32 (rows,) or (0,).
    """
    for replica in range(counts.shape[0]):
        c, position = row_of(counts, replica), row_of(x, replica)
        total = np.int64(0)
        for r in range(c.size):
            a = _coupling_sum(n, c[r], position[r])
            total += a if position[r] > np.float32(0) else -a
        for r in range(field.size):
            h = np.int64(2) * np.int64(field[r])
            total += h if position[r] > np.float32(0) else -h
        two_energy[replica] -= total


@inline
def _move(
    coupling: np.float32,
    xi: np.float32,
    dt: np.float32,
    detuning: np.float32,
    x: np.ndarray,
    y: np.ndarray,
    r: int,
) -> None:
    force = xi * coupling - detuning * x[r]
    momentum = y[r] + force * dt
    position = x[r] + momentum * dt
    outside = abs(position) > np.float32(1)
    wall = np.float32(1) if position > np.float32(0) else np.float32(-1)
    x[r] = wall if outside else position
    y[r] = np.float32(0) if outside else momentum


@kernel(
    "void(int64, int32[:, :], int32[::1], float32, float32, float32, float32[:, :], float32[:, :],"
    " uint64[:, :])"
)
def _advance(
    n: int,
    counts: np.ndarray,
    field: np.ndarray,
    xi: np.float32,
    dt: np.float32,
    detuning: np.float32,
    x: np.ndarray,
    y: np.ndarray,
    signs: np.ndarray,
) -> None:
    """One update of positions and momenta, float32 (B, rows), and of the rows' sign bitmaps."""
    for replica in range(x.shape[0]):
        c, position, momentum = row_of(counts, replica), row_of(x, replica), row_of(y, replica)
        if field.size:
            for r in range(c.size):
                total = _coupling_sum(n, c[r], position[r]) + np.int64(field[r])
                _move(np.float32(total), xi, dt, detuning, position, momentum, r)
        else:
            for r in range(c.size):
                total = _coupling_sum(n, c[r], position[r])
                _move(np.float32(total), xi, dt, detuning, position, momentum, r)
        _pack_signs(position, row_of(signs, replica))


KERNELS = (_initialize, _measure, _advance)


def checksum(signs: np.ndarray) -> str:
    """XXH64 (seed 0) of the replicas' sign bitmaps, uint64 (B, ceil(n / 64)), as 16 hex digits."""
    return xxhash.xxh64_hexdigest(np.ascontiguousarray(signs).data)


class CpuState:
    """Positions and momenta, float32 (B, rows), of one receiver's rows and all replicas' sign bitmaps."""

    def __init__(
        self,
        layout: Layout,
        rows: RowRange,
        dynamics: Dynamics,
        seed: int,
        field: np.ndarray | None,
        threads: int,
    ) -> None:
        self.dynamics = dynamics
        self.positions = np.empty((layout.replicas, len(rows)), np.float32)
        self.momenta = np.empty((layout.replicas, len(rows)), np.float32)
        self.signs = np.zeros((layout.replicas, layout.bitmap_words), np.uint64)
        self._n = layout.n
        self._rows = rows
        # a copy, because kernels take no read-only arrays, and what came over a connection is one
        self._field = np.zeros(0, np.int32) if field is None else field[rows.start : rows.stop].copy()
        self._parts = [part for part in RowRange(0, len(rows)).split(threads) if len(part)]
        self._pool = ThreadPoolExecutor(len(self._parts), "update") if len(self._parts) > 1 else None
        keys = key_of(seed, Domain.INITIAL_POSITIONS), key_of(seed, Domain.INITIAL_MOMENTA)
        _initialize(*keys, rows.start, self.positions, self.momenta, self._own_signs(RowRange(0, len(rows))))

    def restore(self, positions: np.ndarray, momenta: np.ndarray) -> None:
        """Continue from these positions and momenta, float32 (B, rows)."""
        self.positions[:] = positions
        self.momenta[:] = momenta
        self._own_signs(RowRange(0, len(self._rows)))[:] = pack_couplings(positions > 0)

    def _own_signs(self, part: RowRange) -> np.ndarray:
        first = (self._rows.start + part.start) // GROUP_ROWS
        return self.signs[:, first : first + -(-len(part) // GROUP_ROWS)]

    def _field_of(self, part: RowRange) -> np.ndarray:
        return self._field[part.start : part.stop]

    def measure(self, counts: np.ndarray) -> np.ndarray:
        """These rows' share of 2E of the signs that entered the pass, int64 (B,); counts: int32 (B, rows)."""
        shares = np.zeros((len(self._parts), counts.shape[0]), np.int64)

        def measure_part(index: int) -> None:
            part = self._parts[index]
            own = slice(part.start, part.stop)
            _measure(self._n, counts[:, own], self.positions[:, own], self._field_of(part), shares[index])

        self._each_part(measure_part)
        return shares.sum(axis=0)

    def advance(self, counts: np.ndarray, k: int) -> None:
        """Update k: positions, momenta and the sign bits of these rows, in place."""
        detuning = self.dynamics.detuning(k)

        def advance_part(index: int) -> None:
            part = self._parts[index]
            own = slice(part.start, part.stop)
            _advance(
                self._n,
                counts[:, own],
                self._field_of(part),
                self.dynamics.xi,
                self.dynamics.dt,
                detuning,
                self.positions[:, own],
                self.momenta[:, own],
                self._own_signs(part),
            )

        self._each_part(advance_part)

    def _each_part(self, work: Callable[[int], None]) -> None:
        if self._pool is None:
            for index in range(len(self._parts)):
                work(index)
        else:
            list(self._pool.map(work, range(len(self._parts))))
