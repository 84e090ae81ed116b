"""Maximum cut of a complete graph with weights ±1: from a packed graph to a run, and from a run to a cut.

    python -m validation.maxcut prepare K2000_w_packed.npz configs/K2000.npy
    streamdsb run configs/k2000.yaml --out runs/k2000
    python -m validation.maxcut cut runs/k2000 K2000_w_packed.npz

The cut of spins s is the sum of w_ij over the edges with s_i != s_j. With couplings J = -w and
W = sum_{i<j} w_ij, 2E = - sum_ij J_ij s_i s_j = 2 sum_{i<j} w_ij s_i s_j, so

    cut = sum_{i<j} w_ij (1 - s_i s_j) / 2 = (2 W - 2E) / 4.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from streamdsb.errors import StreamdsbError, UserError
from streamdsb.npy_file import load_npy
from streamdsb.run_directory import BEST_SPINS
from validation.run_files import RunFiles

Weights = NDArray[np.int8]


@dataclass(frozen=True)
class Cut:
    """The best cut of a run: its spins, int8 (n,) of ±1, counted on the weights."""

    spins: NDArray[np.int8]
    weight: int

    @property
    def sides(self) -> tuple[int, int]:
        """Vertices with spin +1 and with spin -1."""
        plus = int(np.count_nonzero(self.spins > 0))
        return plus, self.spins.size - plus


def load_weights(path: Path) -> Weights:
    """The weights of a packed graph, int8 (n, n), symmetric, ±1 with a zero diagonal.

    The .npz holds w_bits, uint8 (n, ceil(n / 8)), most significant bit first: 1 is the weight +1 and 0 is -1;
    diagonal bits are ignored. Raises UserError if it does not, or if the bits are not symmetric.
    """
    bits = _load_npz(path, "w_bits")
    n = bits.shape[0] if bits.ndim == 2 else 0
    if bits.dtype != np.uint8 or n == 0 or bits.shape[1] != -(-n // 8):
        raise UserError(
            f"{path}: w_bits is {bits.dtype} {bits.shape}, but bits packed in uint8 (n, ceil(n / 8)) are due"
        )
    weights = np.unpackbits(bits, axis=1, count=n).view(np.int8) * np.int8(2) - np.int8(1)
    np.fill_diagonal(weights, 0)
    differs = weights != weights.T
    if differs.any():
        i, j = (int(index) for index in np.argwhere(differs)[0])
        raise UserError(
            f"{path}: not symmetric: w[{i}, {j}] is {weights[i, j]:+d}, but w[{j}, {i}] is {weights[j, i]:+d}"
        )
    return weights


def prepare(graph: Path, output: Path) -> int:
    """Write the couplings J = -w of a packed graph as an int8 .npy for `source: file`; returns n.

    Raises UserError if the graph cannot be read or the file cannot be written.
    """
    if output.suffix != ".npy":
        raise UserError(f"{output}: the couplings need a name that ends in .npy")
    couplings = -load_weights(graph)
    try:
        np.save(output, couplings)
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {error.strerror or error}") from None
    return len(couplings)


def cut_weight(weights: Weights, spins: NDArray[Any]) -> int:
    """The sum of w_ij over the edges i < j whose ends have different spins; spins: ±1 (n,)."""
    plus = spins > 0
    return int(weights[np.ix_(plus, ~plus)].sum(dtype=np.int64))


def best_cut(run: Path, graph: Path) -> Cut:
    """The cut of a run's best spins, counted on the weights and checked against the recorded energy.

    Raises UserError if a file is missing or of another size, or if the cut and the energy disagree.
    """
    weights = load_weights(graph)
    spins = _load_spins(run / BEST_SPINS, len(weights))
    two_energy = RunFiles(run).lowest_two_energy
    weight = cut_weight(weights, spins)
    total = int(np.triu(weights).sum(dtype=np.int64))
    if 4 * weight != 2 * total - two_energy:
        raise UserError(
            f"{run}: {BEST_SPINS} cuts {weight:,} of {graph}, but the lowest recorded 2E = {two_energy:,}"
            f" stands for {(2 * total - two_energy) / 4:,.10g}"
        )
    return Cut(spins, weight)


def _load_npz(path: Path, name: str) -> NDArray[Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return np.asarray(arrays[name])
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except KeyError:
        raise UserError(f"{path}: has no array {name}") from None
    except (ValueError, TypeError, AttributeError, EOFError, BadZipFile):
        raise UserError(f"{path}: not an .npz of packed weights") from None


def _load_spins(path: Path, n: int) -> NDArray[np.int8]:
    spins = load_npy(path)
    if spins.shape != (n,) or not np.all(np.abs(spins) == 1):
        raise UserError(
            f"{path}: spins of ±1 in ({n},) are needed for this graph, not {spins.dtype} {spins.shape}"
        )
    return spins


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m validation.maxcut",
        description="Maximum cut of a complete graph with weights ±1.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    graph_help = ".npz with w_bits, uint8 (n, ceil(n / 8)), most significant bit first, 1 for the weight +1"
    command = commands.add_parser("prepare", help="write the couplings of a graph as a .npy")
    command.add_argument("graph", type=Path, help=graph_help)
    command.add_argument("output", type=Path, help=".npy to write: int8 (n, n), J = -w")
    command = commands.add_parser("cut", help="count the best cut of a run on the weights")
    command.add_argument("run", type=Path, help="run directory")
    command.add_argument("graph", type=Path, help=graph_help)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare the couplings of a graph, or count the best cut of a run; the exit status."""
    given = _parser().parse_args(arguments)
    try:
        if given.command == "prepare":
            n = prepare(given.graph, given.output)
            print(f"{given.output}: couplings of {n:,} vertices, {n * (n - 1) // 2:,} edges")
        else:
            cut = best_cut(given.run, given.graph)
            plus, minus = cut.sides
            print(f"best cut: {cut.weight:,} between {plus:,} and {minus:,} vertices, as the energy says too")
    except StreamdsbError as error:
        print(f"maxcut: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
