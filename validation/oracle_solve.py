"""The reference of the request service: one SOLVE in plain NumPy, sharing no code with the service.

Sums of couplings are integer sums; all else is float32 array operations, each rounded on its own.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validation.oracle import default_xi, initial_state


@dataclass(frozen=True)
class Answer:
    """What a RESULT holds: 2E and index of the best replica, its spins ±1, int8 (n,)."""

    two_energy: int
    replica: int
    spins: NDArray[np.int8]


def solve(
    couplings: NDArray[np.int8],
    field: NDArray[Any] | None,
    *,
    replicas: int,
    updates: int,
    seed: int,
    xi: float = 0.0,
    dt: float = 0.0,
) -> Answer:
    """K updates of B replicas, then the replica with the lowest 2E, the lowest index among equals.

    couplings int8 (n, n), symmetric with zero diagonal; field integers (n,). xi 0: the default gain,
    0.5 / sqrt(n) where all couplings are 0; dt 0: 1.0.
    """
    n = len(couplings)
    if xi == 0:
        xi = default_xi(couplings) if couplings.any() else 0.5 / math.sqrt(n)
    gain, step = np.float32(xi), np.float32(dt if dt else 1.0)
    h = np.zeros(n, np.int64) if field is None else np.asarray(field).astype(np.int64)
    # Sums of at most 2^24 in size are exact in float32 in whatever order BLAS adds.
    matrix = couplings.astype(np.float32)
    x: Any
    y: Any
    x, y = initial_state(n, replicas, seed)
    for k in range(updates):
        signs = np.where(x > 0, np.float32(1), np.float32(-1))
        total = (signs @ matrix).astype(np.int64) + h
        decay = np.float32(1.0 - (k / (updates - 1) if updates > 1 else 0.0))
        g = gain * total.astype(np.float32) - decay * x
        y = y + g * step
        x = x + y * step
        outside = np.abs(x) > 1
        x[outside] = np.sign(x[outside])
        y[outside] = 0
    spins = np.where(x > 0, 1, -1).astype(np.int64)
    sums = spins @ couplings.astype(np.int64)
    energies = -np.sum(spins * (sums + 2 * h), axis=1)
    best = int(np.argmin(energies))
    return Answer(int(energies[best]), best, spins[best].astype(np.int8))
