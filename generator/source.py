"""Where couplings come from: the seam that every coupling source fits, and how one is opened."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from generator.matrix_file import FileCouplings
from generator.synthesize_cpu import (
    fill_mattis,
    fill_mattis_rows,
    fill_random,
    fill_random_rows,
    mattis_bitmap,
)
from streamdsb.config import Problem
from streamdsb.errors import UserError
from streamdsb.frame import CouplingFormat
from streamdsb.hashing import Domain, key_of
from streamdsb.layout import BLOCK_COLUMNS, BLOCK_WORDS, MAX_N, RowRange
from streamdsb.packing import set_diagonal


class CouplingSource(Protocol):
    """A symmetric matrix of couplings, handed out as packed words, a few rows of one block at a time."""

    n: int
    coupling_format: CouplingFormat
    symmetric: bool
    """True if the couplings are symmetric by construction; others are checked as the first pass goes by."""

    def fill(self, rows: RowRange, column_block: int, out: np.ndarray) -> None:
        """Write the couplings of `rows` in `column_block` into out, uint64 (len(rows), words), all of it.

        rows.start is a multiple of 64 and words is the number that holds columns inside the matrix.
        Column j of the block stands at bit j % 64 of word j // 64, 1 for J = +1 and 0 for J = -1; the
        diagonal bit is 1 and bits of columns >= n are 0.  out has unit inner stride.  Several threads
        may call at once.
        """


@runtime_checkable
class RowSource(Protocol):
    """A source that makes scattered rows for less than their groups: lost frames are sent again so."""

    def fill_rows(self, rows: np.ndarray, blocks: np.ndarray, out: np.ndarray) -> None:
        """Write row rows[k] in column block blocks[k] into out[k], for any rows, whole payloads.

        rows, blocks: int64 (count,); out: uint64 (count, 504), unit inner stride; padding becomes 0.
        """


class RandomCouplings:
    """Independent ±1 couplings from a counter-based hash of the seed."""

    coupling_format = CouplingFormat.PM1
    symmetric = True

    def __init__(self, n: int, seed: int) -> None:
        self.n = n
        self._key = key_of(seed, Domain.RANDOM_COUPLINGS)

    def fill(self, rows: RowRange, column_block: int, out: np.ndarray) -> None:
        fill_random(self._key, self.n, rows.start, column_block * BLOCK_WORDS, out.shape[1], out)

    def fill_rows(self, rows: np.ndarray, blocks: np.ndarray, out: np.ndarray) -> None:
        fill_random_rows(self._key, self.n, rows, blocks, out)


class MattisCouplings:
    """J_ij = eta_i eta_j with hashed signs eta: the ground states are eta and -eta, at 2E = -n (n - 1)."""

    coupling_format = CouplingFormat.PM1
    symmetric = True

    def __init__(self, n: int, seed: int) -> None:
        self.n = n
        self._eta = mattis_bitmap(key_of(seed, Domain.MATTIS_SIGNS), n)

    def fill(self, rows: RowRange, column_block: int, out: np.ndarray) -> None:
        fill_mattis(self._eta, self.n, rows.start, column_block * BLOCK_WORDS, out.shape[1], out)

    def fill_rows(self, rows: np.ndarray, blocks: np.ndarray, out: np.ndarray) -> None:
        fill_mattis_rows(self._eta, self.n, rows, blocks, out)


class PythonCouplings:
    """A user's own class: anything with `n` and `fill(rows, column_block, out)`.

    The class need not care for the diagonal and the padding: they are set here.
    """

    coupling_format = CouplingFormat.PM1
    symmetric = False

    def __init__(self, problem: Problem) -> None:
        assert problem.path is not None
        self._where = f"problem.path {problem.path}"
        source_class = _find_class(problem.path, self._where)
        with _their_failure(f"{self._where}: constructing it"):
            self._source = _construct(source_class, problem)
            n = getattr(self._source, "n", None)
        if not isinstance(n, int | np.integer) or not 1 <= n <= MAX_N:
            raise UserError(
                f"{self._where}: the object's n is {n!r}, but it should be an integer from 1 to {MAX_N}"
            )
        if not callable(getattr(self._source, "fill", None)):
            raise UserError(f"{self._where}: the object has no method fill(rows, column_block, out)")
        self.n = int(n)

    def fill(self, rows: RowRange, column_block: int, out: np.ndarray) -> None:
        out[:] = 0  # what the user's code leaves out must not be what an earlier frame held
        with _their_failure(
            f"{self._where}: fill(rows {rows.start} to {rows.stop}, column block {column_block})"
        ):
            self._source.fill(rows, column_block, out)
        if self.n % 64 and column_block == (self.n - 1) // BLOCK_COLUMNS:
            out[:, -1] &= np.uint64((1 << self.n % 64) - 1)
        set_diagonal(rows, column_block, out)


def open_source(problem: Problem) -> CouplingSource:
    """The coupling source that `problem` names; raises UserError if it cannot be had or has another n."""
    source: CouplingSource
    if problem.source == "file":
        assert problem.path is not None
        source = FileCouplings(Path(problem.path), problem.bit_order)
    elif problem.source == "python":
        source = PythonCouplings(problem)
    else:
        assert problem.n is not None
        kind = RandomCouplings if problem.source == "random" else MattisCouplings
        source = kind(problem.n, problem.seed)
    if problem.n is not None and source.n != problem.n:
        raise UserError(f"problem.n is {problem.n}, but {problem.path} has n = {source.n}")
    return source


def _find_class(path: str, where: str) -> Any:
    module_name, colon, class_name = path.rpartition(":")
    if not colon or not module_name or not class_name:
        raise UserError(f"{where}: expected module:Class or folder/file.py:Class")
    with _their_failure(f"{where}: importing {module_name}"):
        module = _load_file(module_name) if module_name.endswith(".py") else _import(module_name)
    if not hasattr(module, class_name):
        raise UserError(f"{where}: module {module_name} has no {class_name}")
    return getattr(module, class_name)


def _import(name: str) -> Any:
    _search("")
    return importlib.import_module(name)


def _load_file(name: str) -> Any:
    _search(str(Path(name).absolute().parent))  # where it may import a helper from
    spec = importlib.util.spec_from_file_location(f"streamdsb_source_{Path(name).stem}", name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _search(folder: str) -> None:
    # at the end, so that a file of the user's never hides a module of ours or of the library
    if folder not in sys.path:
        sys.path.append(folder)


def _construct(source_class: Any, problem: Problem) -> Any:
    offered = {"n": problem.n, "seed": problem.seed}
    taken = inspect.signature(source_class).parameters
    return source_class(**{name: value for name, value in offered.items() if name in taken})


@contextmanager
def _their_failure(doing: str) -> Iterator[None]:
    """Report whatever the user's code raises within, sys.exit() included, and the line it comes from."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise UserError(f"{doing} raised {type(error).__name__}: {error}{_place_of(error)}") from error


def _place_of(error: BaseException) -> str:
    """The innermost line of the user's own code that `error` went through, if any."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *_NOT_THEIRS)):
            return f" ({frame.filename}, line {frame.lineno})"
    return ""


_NOT_THEIRS = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    *(f"{Path(__file__).parents[1] / package}/" for package in ("generator", "streamdsb")),
)
