"""The reference: discrete simulated bifurcation in plain NumPy on an explicit matrix.

It shares no code with the rest of streamdsb, so that it can vouch for it: from the same problem and solver it
writes the same records.jsonl, byte for byte, and it recomputes the energy of any saved spins.

    python -m validation.oracle --source random --n 1000 --replicas 4 --updates 20 \\
        --problem-seed 42 --solver-seed 42 > reference.jsonl

Two rules make the result exact rather than close. Sums of couplings are sums of integers, and every partial
sum fits the significand of the float type that carries it, so BLAS may add in any order, fused or not. All
else is float32 array operations, each of which NumPy rounds on its own, to nearest-even.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

Couplings = NDArray[np.int8]
Positions = NDArray[np.float32]
Words = NDArray[np.uint64]

ROW_STEP = 0x9E3779B97F4A7C15
WORD_STEP = 0xD1342543DE82EF95
WRAP = (1 << 64) - 1

RANDOM_COUPLINGS, MATTIS_SIGNS, INITIAL_POSITIONS, INITIAL_MOMENTA = range(4)

BLOCK_ELEMENTS = 1 << 25  # of a matrix in one step: 32 MiB of int8, 128 MiB as float32


# --- the counter-based hash -----------------------------------------------------------------------


def _mix(z: Words) -> Words:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_key(seed: int, domain: int) -> int:
    """key(seed, domain) = mix(seed + (domain + 1) A), modulo 2^64."""
    return int(_mix(np.array([(seed + (domain + 1) * ROW_STEP) & WRAP], dtype=np.uint64))[0])


def hash_words(key: int, i: ArrayLike, w: ArrayLike) -> Words:
    """H(key, i, w) = mix(key + i A + w C), modulo 2^64, for counters i and w that broadcast; at least 1-d."""
    rows, words = np.atleast_1d(np.asarray(i, dtype=np.uint64), np.asarray(w, dtype=np.uint64))
    return _mix(np.uint64(key) + rows * np.uint64(ROW_STEP) + words * np.uint64(WORD_STEP))


def _signs_of_bits(words: Words, n: int) -> Couplings:
    """(..., W) words to (..., n) signs, element j from bit j mod 64 of word j div 64: 1 is +1, 0 is -1."""
    octets = np.ascontiguousarray(words, dtype="<u8").view(np.uint8)
    bits = np.unpackbits(octets, axis=-1, count=n, bitorder="little").view(np.int8)
    return 2 * bits - 1


# --- problems -------------------------------------------------------------------------------------


def _row_blocks(n: int) -> Iterator[slice]:
    rows = max(1, BLOCK_ELEMENTS // n)
    return (slice(first, min(first + rows, n)) for first in range(0, n, rows))


def random_couplings(n: int, seed: int) -> Couplings:
    """Random ±1 couplings, int8 (n, n): for i < j, J_ij is bit j mod 64 of H(key(seed, 0), i, j div 64)."""
    key = hash_key(seed, RANDOM_COUPLINGS)
    couplings = np.zeros((n, n), dtype=np.int8)
    for rows in _row_blocks(n):
        words = hash_words(key, np.arange(rows.start, rows.stop)[:, None], np.arange(-(-n // 64)))
        above = np.triu(_signs_of_bits(words, n)[:, rows.start :], k=1)
        couplings[rows, rows.start :] += above
        couplings[rows.start :, rows] += above.T
    return couplings


def mattis_spins(n: int, seed: int) -> Couplings:
    """The planted spins, int8 (n,): eta_i is bit i mod 64 of H(key(seed, 1), 0, i div 64)."""
    return _signs_of_bits(hash_words(hash_key(seed, MATTIS_SIGNS), 0, np.arange(-(-n // 64))), n)


def mattis_couplings(n: int, seed: int) -> Couplings:
    """Mattis couplings, int8 (n, n): J_ij = eta_i eta_j, with ground states ±eta and 2E = -n (n - 1)."""
    spins = mattis_spins(n, seed)
    couplings = np.multiply.outer(spins, spins)
    np.fill_diagonal(couplings, 0)
    return couplings


# --- energy and checksum --------------------------------------------------------------------------


def coupling_sums(couplings: Couplings, spins: NDArray[Any]) -> NDArray[np.int64]:
    """Exact sums a_i = sum_j J_ij s_j of int8 couplings (n, n) and ±1 spins (B, n), as int64 (B, n).

    No partial sum exceeds 128 n, so float32, exact on integers up to 2^24, serves up to n = 131,072, and
    float64 beyond. Rows are converted a block at a time, which needs some 300 MB at most beside the matrix.
    """
    n = len(couplings)
    if couplings.shape != (n, n) or couplings.dtype != np.int8:
        raise ValueError(f"couplings must be a square int8 matrix, not {couplings.dtype} {couplings.shape}")
    if spins.ndim != 2 or spins.shape[1] != n or not np.all(np.abs(spins) == 1):
        raise ValueError(f"spins must be -1 or +1, in (B, {n}) for these couplings, not in {spins.shape}")
    exact: type[np.floating[Any]] = np.float32 if 128 * n <= 1 << 24 else np.float64
    columns: NDArray[Any] = np.ascontiguousarray(spins.T, dtype=exact)
    sums = np.empty(spins.shape, dtype=np.int64)
    for rows in _row_blocks(n):
        sums[:, rows] = (couplings[rows].astype(exact) @ columns).T
    return sums


def _doubled(sums: NDArray[np.int64], spins: NDArray[Any], field: NDArray[Any] | None) -> NDArray[np.int64]:
    doubled = sums if field is None else sums + 2 * field.astype(np.int64)
    return -np.asarray(np.sum(doubled * spins, axis=1, dtype=np.int64))


def two_energy(
    couplings: Couplings, spins: NDArray[Any], field: NDArray[Any] | None = None
) -> NDArray[np.int64]:
    """Exact doubled energy 2E = - sum_ij J_ij s_i s_j - 2 sum_i h_i s_i.

    couplings int8 (n, n), symmetric with zero diagonal; spins ±1, (n,) or (B, n); field integers (n,).
    Returns int64, of shape () for one state and (B,) for B of them.
    """
    states = np.atleast_2d(spins)
    energies = _doubled(coupling_sums(couplings, states), states, field)
    return energies.reshape(spins.shape[:-1])


def sign_bitmap(states: NDArray[Any]) -> Words:
    """Signs of positions or spins, (n,) or (B, n), as little-endian words (..., ceil(n / 64)).

    Row i is bit i mod 64 of word i div 64: 1 where the value is > 0, so sign(0) = -1; padding bits are 0.
    """
    n = states.shape[-1]
    octets = np.zeros((*states.shape[:-1], 8 * -(-n // 64)), dtype=np.uint8)
    octets[..., : -(-n // 8)] = np.packbits(states > 0, axis=-1, bitorder="little")
    return octets.view("<u8")


def spins_of(bitmap: Words, n: int) -> Couplings:
    """The ±1 spins, int8 (..., n), that a sign bitmap (..., ceil(n / 64)) stands for."""
    return _signs_of_bits(bitmap, n)


def checksum(states: NDArray[Any]) -> str:
    """XXH64 (seed 0) of the sign bitmaps, one after another, of positions or spins (B, n): 16 hex digits."""
    return xxhash.xxh64(sign_bitmap(states).tobytes(), seed=0).hexdigest()


# --- dynamics -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """What one pass leaves: its line of records.jsonl and the state after it, float32 (B, n)."""

    record: str
    positions: Positions
    momenta: Positions


@dataclass(frozen=True)
class Solution:
    """The K + 1 lines of records.jsonl and the state in the end, float32 (B, n)."""

    records: list[str]
    positions: Positions
    momenta: Positions

    @property
    def spins(self) -> Couplings:
        """The last spins, int8 (B, n), whose energies the last record holds."""
        return _signs(self.positions)


def _signs(positions: Positions) -> Couplings:
    return np.where(positions > 0, 1, -1).astype(np.int8)


def initial_state(n: int, replicas: int, seed: int) -> tuple[Positions, Positions]:
    """Positions and momenta before the first update, float32 (B, n), uniform on a grid in [-0.1, 0.1).

    Replica b, row i: (t - 2^23) * (float32(0.1) * 2^-23) with t = H(key(seed, 2 or 3), b, i) >> 40.
    """
    scale = np.float32(0.1) * np.float32(2.0**-23)
    state = []
    for domain in (INITIAL_POSITIONS, INITIAL_MOMENTA):
        t = hash_words(hash_key(seed, domain), np.arange(replicas)[:, None], np.arange(n)) >> np.uint64(40)
        state.append((t.astype(np.int64) - (1 << 23)).astype(np.float32) * scale)
    return state[0], state[1]


def default_xi(couplings: Couplings) -> float:
    """0.5 / sqrt(n) where all couplings are ±1, else 0.5 sqrt(n - 1) / ||J||_F, in float64."""
    n = len(couplings)
    blocks = (np.square(couplings[rows], dtype=np.int32) for rows in _row_blocks(n))
    squares = sum(int(block.sum(dtype=np.int64)) for block in blocks)
    if squares == n * (n - 1):
        return 0.5 / math.sqrt(n)
    if squares == 0:
        raise ValueError("xi has no default where all couplings are 0: give one")
    return 0.5 * math.sqrt(n - 1) / math.sqrt(squares)


def update(
    positions: Positions, momenta: Positions, force: NDArray[np.int64], *, xi: float, decay: float, dt: float
) -> tuple[Positions, Positions]:
    """One update of positions x and momenta y, float32 (B, n), where the force a + h is an exact integer:

    g = xi * force - c * x;  y = y + g * dt;  x = x + y * dt;  and where |x| > 1: x = sign(x), y = 0,
    with xi, force, c (the decay) and dt rounded to float32, and so is each product, sum and difference.
    """
    strength, c, step = np.array([xi, decay, dt], dtype=np.float32)
    g = strength * force.astype(np.float32) - c * positions
    y = momenta + g * step
    x = positions + y * step
    outside = np.abs(x) > 1
    x[outside] = np.sign(x[outside])
    y[outside] = 0
    return x, y


def _record(k: int, energies: NDArray[np.int64], positions: Positions) -> str:
    best = int(np.argmin(energies))  # the first among equals
    record = {
        "pass": k,
        "best_two_energy": int(energies[best]),
        "best_replica": best,
        "two_energy": energies.tolist(),
        "checksum": checksum(positions),
    }
    return json.dumps(record, separators=(",", ":"))


def passes(
    couplings: Couplings,
    *,
    replicas: int,
    updates: int,
    seed: int,
    dt: float = 1.1,
    xi: float | None = None,
    field: NDArray[Any] | None = None,
) -> Iterator[Pass]:
    """Run K updates of B replicas, a pass at a time: K + 1 passes, of which the last only evaluates.

    couplings int8 (n, n), symmetric with zero diagonal; field integers (n,); xi None is `default_xi`.
    Update k has the decay 1 - k / (K - 1), or 1 if K = 1, and the force a + h.
    """
    if replicas < 1 or updates < 1:
        raise ValueError(f"replicas and updates must be at least 1, not {replicas} and {updates}")
    if np.any(np.diagonal(couplings)):
        raise ValueError("couplings must have a zero diagonal")
    if xi is None:
        xi = default_xi(couplings)
    x, y = initial_state(len(couplings), replicas, seed)
    for k in range(updates + 1):
        spins = _signs(x)
        sums = coupling_sums(couplings, spins)
        energies = _doubled(sums, spins, field)
        if k < updates:
            force = sums if field is None else sums + field.astype(np.int64)
            decay = 1.0 - (k / (updates - 1) if updates > 1 else 0.0)
            x, y = update(x, y, force, xi=xi, decay=decay, dt=dt)
        yield Pass(_record(k, energies, x), x, y)


def solve(
    couplings: Couplings,
    *,
    replicas: int,
    updates: int,
    seed: int,
    dt: float = 1.1,
    xi: float | None = None,
    field: NDArray[Any] | None = None,
) -> Solution:
    """All the `passes` of a run at once: every record line, without line ends, and the state in the end."""
    records = []
    for done in passes(couplings, replicas=replicas, updates=updates, seed=seed, dt=dt, xi=xi, field=field):
        records.append(done.record)
    return Solution(records, done.positions, done.momenta)


# --- the command ----------------------------------------------------------------------------------


def main() -> None:
    """Print the record lines of a synthetic problem."""
    parser = argparse.ArgumentParser(prog="python -m validation.oracle", description=main.__doc__)
    parser.add_argument("--source", choices=("mattis", "random"), required=True)
    parser.add_argument("--n", type=int, required=True, help="number of spins; the matrix takes n * n bytes")
    parser.add_argument("--replicas", type=int, required=True, help="B, runs from different initial states")
    parser.add_argument("--updates", type=int, required=True, help="K, which takes K + 1 passes")
    parser.add_argument("--problem-seed", type=int, required=True)
    parser.add_argument("--solver-seed", type=int, required=True)
    parser.add_argument("--dt", type=float, default=1.1, help="time step (default: %(default)s)")
    parser.add_argument("--xi", type=float, help="coupling strength (default: 0.5 / sqrt(n))")
    given = parser.parse_args()
    for name in ("n", "replicas", "updates"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(given, name)}")
    couplings = {"mattis": mattis_couplings, "random": random_couplings}[given.source](
        given.n, given.problem_seed
    )
    for done in passes(
        couplings,
        replicas=given.replicas,
        updates=given.updates,
        seed=given.solver_seed,
        dt=given.dt,
        xi=given.xi,
    ):
        print(done.record, flush=True)


if __name__ == "__main__":
    main()
