"""Couplings and energies of a run worked out again, by validation.oracle and without the code that made it.

Only a user's own Python class is asked through the code of the run, for want of another description of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdsb.config import Config, Problem
from streamdsb.errors import UserError
from streamdsb.npy_file import load_npy
from validation import oracle

EXPLICIT_N = 20_000
"""Largest n whose matrix is written out, in n * n bytes."""


def can_recompute(config: Config) -> bool:
    """True if `energies_of` serves this problem: small enough to write out, or Mattis."""
    return config.n <= EXPLICIT_N or config.problem.source == "mattis"


def energies_of(config: Config, states: Sequence[NDArray[np.int8]]) -> tuple[list[int], str]:
    """Exact 2E of each of `states`, ±1 (n,), and in words how it was had.

    Up to EXPLICIT_N from the matrix itself; beyond, for Mattis couplings alone, from the overlap with eta,
    2E = n - (sum_i eta_i s_i)^2 - 2 sum_i h_i s_i. Raises UserError if couplings or field cannot be had.
    """
    field = field_of(config.problem)
    if config.n <= EXPLICIT_N:
        couplings, origin = couplings_of(config)
        return [int(energy) for energy in oracle.two_energy(couplings, np.stack(states), field)], origin
    eta = oracle.mattis_spins(config.n, config.problem.seed)
    return [_mattis_two_energy(eta, spins, field) for spins in states], "from the overlap with eta"


def _mattis_two_energy(eta: NDArray[np.int8], spins: NDArray[np.int8], field: NDArray[Any] | None) -> int:
    overlap = 2 * int(np.count_nonzero(eta == spins)) - len(eta)
    of_field = 0 if field is None else int(np.sum(field * spins, dtype=np.int64))
    return len(eta) - overlap**2 - 2 * of_field


def field_of(problem: Problem) -> NDArray[np.int64] | None:
    """The field h, int64 (n,), or None; raises UserError if its file is gone."""
    return None if problem.field is None else load_npy(Path(problem.field)).astype(np.int64)


def couplings_of(config: Config) -> tuple[NDArray[np.int8], str]:
    """The whole matrix, int8 (n, n) with a zero diagonal, and in words where it comes from.

    Raises UserError if it cannot be had, or is not the shape it had in the run.
    """
    problem = config.problem
    if problem.source == "mattis":
        return oracle.mattis_couplings(config.n, problem.seed), "from the oracle's own couplings"
    if problem.source == "random":
        return oracle.random_couplings(config.n, problem.seed), "from the oracle's own couplings"
    if problem.source == "file":
        return _file_couplings(config), f"from {problem.path} as it is now"
    return _python_couplings(config), f"from what {problem.path} gives now, asked through the run's own code"


def _file_couplings(config: Config) -> NDArray[np.int8]:
    problem, n = config.problem, config.n
    path = Path(str(problem.path))
    couplings = np.empty((n, n), np.int8)
    row = 0
    for file in sorted(path.glob("*.npy")) if path.is_dir() else [path]:
        entries = load_npy(file)
        if entries.dtype == np.uint8:
            entries = np.unpackbits(entries, axis=1, bitorder=problem.bit_order)[:, :n]
        rows = couplings[row : row + len(entries)]
        if rows.shape != entries.shape:
            raise UserError(f"{file} has changed since the run: its rows are {entries.shape} for n = {n:,}")
        rows[:] = entries
        if entries.dtype != np.int8:  # bits, 1 for +1
            rows *= 2
            rows -= 1
        row += len(entries)
    if row != n:
        raise UserError(f"{path} has changed since the run: {row:,} rows for n = {n:,}")
    np.fill_diagonal(couplings, 0)
    return couplings


def _python_couplings(config: Config) -> NDArray[np.int8]:
    from generator.source import open_source
    from streamdsb.layout import BLOCK_COLUMNS, Layout, RowRange
    from streamdsb.packing import unpack_couplings

    source, layout = open_source(config.problem), Layout(config.n, 1, 1)
    couplings = np.empty((config.n, config.n), np.int8)
    for block in range(layout.column_blocks):
        words = np.zeros((config.n, layout.words_in(block)), np.uint64)
        source.fill(RowRange(0, config.n), block, words)
        bits = unpack_couplings(words, layout.columns_in(block)).view(np.int8)
        couplings[:, block * BLOCK_COLUMNS :][:, : layout.columns_in(block)] = 2 * bits - 1
    np.fill_diagonal(couplings, 0)
    return couplings
