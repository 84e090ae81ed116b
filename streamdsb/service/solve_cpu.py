"""One request on the CPU: the whole trajectory in one call that holds no interpreter lock.

With the coupling sum a and field h of a row, every operation rounded to float32 on its own:

    g = xi * float32(a + h) - c_k * x          c_k = float32(1 - k / (K - 1)), 1 if K = 1
    y = y + g * dt
    x = x + y * dt
    if |x| > 1: x = +1 if x > 0 else -1; y = 0

After K updates the answer is the replica with the lowest 2E = - sum_i s_i (a_i + 2 h_i) of the signs
s = sign(x), the lowest index among equals.

Sums are kept, not recomputed: with t_i the sum of J_ij over the j with s_j = +1, a_i = 2 t_i - sum_j J_ij,
and few signs flip in an update. A flip of s_j adds or takes row j, which is column j by symmetry.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from streamdsb.hashing import A, hash_word, mix
from streamdsb.intrinsics import row_of
from streamdsb.jit import inline, kernel
from streamdsb.native import copy, fill
from streamdsb.service.limits import MAX_PAIRS

_PM1 = 1
_TERNARY = 2

_LANES = 64
_ONE = np.float32(1)
_ZERO = np.float32(0)

SCRATCH_BYTES = 2112 * 2112 + 32 * MAX_PAIRS
"""What one solve works in: couplings as int8 (n, whole lanes) of the largest model, and vectors."""


@inline
def _key(seed: np.uint64, domain: int) -> np.uint64:
    return mix(seed + np.uint64(domain + 1) * A)


@inline
def _initial_value(key: np.uint64, replica: int, row: int) -> np.float32:
    t = np.int64(hash_word(key, np.uint64(replica), np.uint64(row)) >> np.uint64(40))
    return np.float32(t - 8388608) * (np.float32(0.1) * np.float32(2.0**-23))


@inline
def _bit(words: np.ndarray, row: int, stride: int, column: int) -> np.int8:
    return np.int8((words[row * stride + column // 32] >> np.uint32(column % 32)) & np.uint32(1))


@njit(nogil=True)
def _expand(form: int, n: int, packed: np.ndarray, rows: np.ndarray) -> None:
    """A packed model as int8 (n, lanes), zero beyond n."""
    if form != _PM1 and form != _TERNARY:
        values = packed.view(np.int8)
        for i in range(n):
            row = row_of(rows, i)
            copy(row, 0, values, i * n, n)
            fill(row, n, row.size, 0)
        return
    stride = (n + 31) // 32
    words = packed.view(np.uint32)
    for i in range(n):
        row = row_of(rows, i)
        fill(row, n, row.size, 0)
        if form == _PM1:
            for j in range(n):
                row[j] = np.int8(2) * _bit(words, i, stride, j) - np.int8(1)
            row[i] = 0
        else:
            for j in range(n):
                row[j] = _bit(words, i, stride, j) - _bit(words, n + i, stride, j)


@inline
def _base(rows: np.ndarray, field: np.ndarray, base: np.ndarray) -> None:
    """What a + h is where all spins are -1: h_i - sum_j J_ij, int32."""
    for i in range(rows.shape[0]):
        row, total = row_of(rows, i), np.int32(0)
        for j in range(row.size):
            total += np.int32(row[j])
        base[i] = (np.int32(field[i]) if field.size else np.int32(0)) - total


@inline
def _move(
    xi: np.float32,
    dt: np.float32,
    detuning: np.float32,
    base: np.ndarray,
    plus: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    flips: np.ndarray,
) -> None:
    """One update of all rows; flips[i] becomes 1 where the sign turned, else 0."""
    for i in range(x.size):
        total = np.float32(np.int32(base[i] + np.int32(2) * plus[i]))
        force = xi * total - detuning * x[i]
        momentum = y[i] + force * dt
        position = x[i] + momentum * dt
        outside = abs(position) > _ONE
        wall = _ONE if position > _ZERO else -_ONE
        flips[i] = (x[i] > _ZERO) != (position > _ZERO)
        x[i] = wall if outside else position
        y[i] = _ZERO if outside else momentum


@inline
def _flip(row: np.ndarray, up: bool, plus: np.ndarray) -> None:
    if up:
        for i in range(plus.size):
            plus[i] += np.int32(row[i])
    else:
        for i in range(plus.size):
            plus[i] -= np.int32(row[i])


@inline
def _follow(rows: np.ndarray, x: np.ndarray, flips: np.ndarray, eights: np.ndarray, plus: np.ndarray) -> None:
    """Bring t up to date with the signs that turned; eights: the flips, eight to a uint64."""
    for group in range(eights.size):
        if eights[group]:
            for j in range(8 * group, min(8 * group + 8, x.size)):
                if flips[j]:
                    _flip(row_of(rows, j), x[j] > _ZERO, plus)


@inline
def _two_energy(base: np.ndarray, plus: np.ndarray, field: np.ndarray, x: np.ndarray) -> np.int64:
    total = np.int64(0)
    for i in range(x.size):
        doubled = np.int64(base[i]) + np.int64(2) * np.int64(plus[i])
        if field.size:
            doubled += np.int64(field[i])
        total += doubled if x[i] > _ZERO else -doubled
    return -total


@kernel(
    "void(int64, int64, uint8[::1], int16[::1], int64, int64, float32, float32, uint64, uint8[::1],"
    " int64[::1], uint32[::1])"
)
def solve(
    form: int,
    n: int,
    packed: np.ndarray,
    field: np.ndarray,
    replicas: int,
    updates: int,
    xi: np.float32,
    dt: np.float32,
    seed: np.uint64,
    scratch: np.ndarray,
    answer: np.ndarray,
    spins: np.ndarray,
) -> None:
    """Solve one request.

    form: a `Format`; packed: uint8 of a model, 4-byte aligned; field: int16 (n,) or (0,); scratch: uint8
    (SCRATCH_BYTES,), 8-byte aligned. Leaves 2E and the index of the best replica in answer, int64 (2,), and
    its signs in spins, uint32 (ceil(n / 32),).
    """
    lanes = (n + _LANES - 1) // _LANES * _LANES
    rows = scratch[: n * lanes].view(np.int8).reshape((n, lanes))
    vectors = scratch[n * lanes : n * lanes + 20 * lanes].view(np.int32).reshape((5, lanes))
    base, plus = vectors[0, :n], vectors[1, :n]
    x, y = vectors[2].view(np.float32)[:n], vectors[3].view(np.float32)[:n]
    flips = vectors[4].view(np.uint8)[:lanes]
    eights = flips.view(np.uint64)
    position_key, momentum_key = _key(seed, 2), _key(seed, 3)
    _expand(form, n, packed, rows)
    _base(rows, field, base)
    fill(flips, 0, lanes, 0)
    for replica in range(replicas):
        fill(plus, 0, n, 0)
        for i in range(n):
            x[i] = _initial_value(position_key, replica, i)
            y[i] = _initial_value(momentum_key, replica, i)
            flips[i] = x[i] > _ZERO
        _follow(rows, x, flips, eights, plus)
        for k in range(updates):
            pump = k / (updates - 1) if updates > 1 else 0.0
            _move(xi, dt, np.float32(1.0 - pump), base, plus, x, y, flips)
            _follow(rows, x, flips, eights, plus)
        two_energy = _two_energy(base, plus, field, x)
        if replica == 0 or two_energy < answer[0]:
            answer[0], answer[1] = two_energy, replica
            fill(spins, 0, (n + 31) // 32, 0)
            for i in range(n):
                spins[i // 32] |= np.uint32(x[i] > _ZERO) << np.uint32(i % 32)


KERNELS = (solve,)
