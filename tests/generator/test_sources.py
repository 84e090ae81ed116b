"""One suite for every coupling source: packed words equal to the oracle's explicit matrix."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from generator.source import CouplingSource, MattisCouplings, RandomCouplings, open_source
from streamdsb.config import Problem
from streamdsb.errors import UserError
from streamdsb.frame import CouplingFormat, empty_frames
from streamdsb.layout import Layout, RowRange
from streamdsb.packing import unpack_couplings
from validation.oracle import hash_key, hash_words, mattis_spins, random_couplings

SEED = 42
GARBAGE = np.uint64(0xDEAD_BEEF_DEAD_BEEF)
SIZES = (1, 2, 63, 64, 65, 1000, 4097, 32_256, 32_257)

THIRDS = """
import numpy as np
from streamdsb.packing import columns_of, pack_couplings

class Thirds:
    def __init__(self, n):
        self.n = n

    def fill(self, rows, column_block, out):
        i = np.arange(rows.start, rows.stop)[:, None]
        out[:] = ~pack_couplings((i + columns_of(self.n, column_block)) % 3 != 0)
"""

Rows = list[RowRange]
Expected = Callable[[int, RowRange], np.ndarray]


def mattis_rows(n: int, rows: RowRange) -> np.ndarray:
    """Rows of the Mattis couplings as bool (len(rows), n), True for +1."""
    spins = mattis_spins(n, SEED)
    return np.multiply.outer(spins[rows.start : rows.stop], spins) > 0


def random_rows(n: int, rows: RowRange) -> np.ndarray:
    """Rows of the random couplings as bool (len(rows), n), True for +1, each from its own hash."""
    i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(n)
    low, high = np.minimum(i, j), np.maximum(i, j)
    words = hash_words(hash_key(SEED, 0), low, high // 64)
    return (words >> (high % 64).astype(np.uint64) & np.uint64(1)).astype(bool)


def thirds_rows(n: int, rows: RowRange) -> np.ndarray:
    """Rows of the couplings of the class `Thirds` as bool (len(rows), n)."""
    return (np.arange(rows.start, rows.stop)[:, None] + np.arange(n)) % 3 == 0


EXPECTED: dict[str, Expected] = {"mattis": mattis_rows, "random": random_rows, "python": thirds_rows}


def rows_to_check(n: int) -> Rows:
    """Whole groups, partial groups and starts at every multiple of 64, within what a test can hold."""
    if n <= 1000:
        return [RowRange(start, n) for start in sorted({0, (n - 1) // 64 * 64})] + [
            RowRange(start, min(start + count, n))
            for start, count in ((0, 1), (64, 7), (128, 130))
            if start < n
        ]
    middle, last = n // 2 // 64 * 64, (n - 1) // 64 * 64
    return [RowRange(0, 65), RowRange(middle, middle + 71), RowRange(last - 64, n)]


def write_entries(path: Path, kind: str, shape: tuple[int, int], rows: RowRange, plus: np.ndarray) -> None:
    """A .npy in which `rows` hold couplings and any other row is a hole."""
    if kind.startswith("packed"):
        entries = np.packbits(plus, axis=1, bitorder=kind.removeprefix("packed-"))  # type: ignore[arg-type]
    else:
        entries = plus if kind == "bool" else np.where(plus, 1, -1).astype(np.int8)
    mode = "r+" if path.exists() else "w+"
    stored = np.lib.format.open_memmap(
        path, mode, entries.dtype, (shape[0], entries.shape[1]) if mode == "w+" else None
    )
    stored[rows.start : rows.stop] = entries


def write_matrix(folder: Path, kind: str, n: int) -> Path:
    """The random couplings as a file, or a folder of shards, of `kind`; the diagonal is anything."""
    if kind == "shards":
        folder = folder / "shards"
        folder.mkdir()
        edges = sorted({0, n // 3, n // 2, min(n // 2 + 70, n), n} - {0}) if n > 1 else [1]
        start = 0
        for index, stop in enumerate(edges):
            shard_kind = ("int8", "bool", "packed-big")[index % 3]
            for rows in [RowRange(max(r.start, start), min(r.stop, stop)) for r in rows_to_check(n)]:
                if rows.start < rows.stop:
                    local = RowRange(rows.start - start, rows.stop - start)
                    write_entries(
                        folder / f"part-{index}.npy",
                        shard_kind,
                        (stop - start, n),
                        local,
                        random_rows(n, rows),
                    )
            if not (folder / f"part-{index}.npy").exists():  # no row of it is looked at
                write_entries(
                    folder / f"part-{index}.npy",
                    shard_kind,
                    (stop - start, n),
                    RowRange(0, 0),
                    np.ones((0, n), bool),
                )
            start = stop
        return folder
    path = folder / f"{kind}.npy"
    for rows in rows_to_check(n):
        write_entries(path, kind, (n, n), rows, random_rows(n, rows))
    return path


KINDS = ("mattis", "random", "int8", "bool", "packed-big", "packed-little", "shards", "python")


def open_kind(kind: str, folder: Path, n: int) -> tuple[CouplingSource, Expected]:
    """A source of `kind` with n spins, and the rows that it should hold."""
    if kind in ("mattis", "random"):
        return open_source(Problem(source=kind, n=n, seed=SEED)), EXPECTED[kind]  # type: ignore[arg-type]
    if kind == "python":
        (folder / "thirds.py").write_text(THIRDS)
        return open_source(Problem(source="python", n=n, path=f"{folder}/thirds.py:Thirds")), thirds_rows
    order = "little" if kind == "packed-little" else "big"
    path = write_matrix(folder, kind, n)
    return open_source(Problem(source="file", path=str(path), bit_order=order)), random_rows


def filled(source: CouplingSource, rows: RowRange, block: int) -> np.ndarray:
    """What `fill` writes into frames full of garbage: the payload words, after a look at all the others."""
    words = Layout(source.n, 1, 1).words_in(block)
    frames = empty_frames(len(rows) + 1)
    frames[:] = GARBAGE
    source.fill(rows, block, frames[: len(rows), 8 : 8 + words])
    assert (frames[: len(rows), :8] == GARBAGE).all(), "headers were written"
    assert (frames[: len(rows), 8 + words :] == GARBAGE).all(), "words past the last column were written"
    assert (frames[len(rows)] == GARBAGE).all(), "rows past the last were written"
    return frames[: len(rows), 8 : 8 + words].copy()


def test_rows_from_their_own_hashes_are_those_of_the_explicit_matrix() -> None:
    couplings = random_couplings(300, SEED)
    plus = random_rows(300, RowRange(0, 300))
    off_diagonal = ~np.eye(300, dtype=bool)
    assert (np.where(plus, 1, -1) == couplings)[off_diagonal].all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_words(kind: str, n: int, tmp_path: Path) -> None:
    source, expected = open_kind(kind, tmp_path, n)
    assert source.n == n
    assert source.coupling_format is CouplingFormat.PM1
    assert source.symmetric == (kind in ("mattis", "random"))
    layout = Layout(n, 1, 1)
    for rows in rows_to_check(n):
        plus = expected(n, rows)
        plus[np.arange(len(rows)), np.arange(rows.start, rows.stop)] = True  # the transmitted diagonal
        for block in range(layout.column_blocks):
            columns = layout.columns_in(block)
            words = filled(source, rows, block)
            bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
            assert not bits[:, columns:].any(), "padding bits are set"
            assert (bits[:, :columns] == plus[:, block * 32_256 : block * 32_256 + columns]).all()


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200, 1000, 32_300])
@pytest.mark.parametrize("kind", [RandomCouplings, MattisCouplings])
def test_scattered_rows_are_those_of_their_groups(
    kind: type[RandomCouplings | MattisCouplings], n: int
) -> None:
    source, layout = kind(n, 7), Layout(n, 1, 1)
    for block in range(layout.column_blocks):
        for start in {0, n // 128 * 64, (n - 1) // 64 * 64}:
            rows = RowRange(start, min(start + 64, n))
            group = np.zeros((len(rows), layout.words_in(block)), np.uint64)
            source.fill(rows, block, group)
            order = np.random.default_rng(start).permutation(len(rows))
            out = np.full((len(rows), 512), 2**64 - 1, np.uint64)
            source.fill_rows(order + rows.start, np.full(len(rows), block), out[:, 8:])
            assert (out[:, 8 : 8 + group.shape[1]] == group[order]).all(), block
            assert not out[:, 8 + group.shape[1] :].any(), "padding is not clean"


@pytest.mark.parametrize("kind", KINDS)
def test_every_start_gives_the_same_rows(kind: str, tmp_path: Path) -> None:
    n = 1000
    source, _ = open_kind(kind, tmp_path, n)
    whole = filled(source, RowRange(0, n), 0)
    for start in range(0, n, 64):
        for count in (1, 63, 64, 65, 200):
            rows = RowRange(start, min(start + count, n))
            assert (filled(source, rows, 0) == whole[rows.start : rows.stop]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_several_threads_at_once(kind: str, tmp_path: Path) -> None:
    n = 1000
    source, _ = open_kind(kind, tmp_path, n)
    whole = filled(source, RowRange(0, n), 0)
    parts = [RowRange(start, min(start + 64, n)) for start in range(0, n, 64)] * 8
    with ThreadPoolExecutor(4) as pool:
        for rows, words in zip(parts, pool.map(lambda rows: filled(source, rows, 0), parts), strict=True):
            assert (words == whole[rows.start : rows.stop]).all()


# --- what is refused ------------------------------------------------------------------------------


def _refusal(**problem: object) -> str:
    with pytest.raises(UserError) as caught:
        open_source(Problem(**problem))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _saved(path: Path, array: np.ndarray) -> str:
    np.save(path, array, allow_pickle=True)
    return str(path)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.ones((3, 4), np.int8), "not square: 3 rows in all, but 4 columns where 3 are needed"),
        (np.ones((4, 3), bool), "not square: 4 rows in all, but 3 columns where 4 are needed"),
        (
            np.ones((9, 1), np.uint8),
            "not square: 9 rows in all, but 1 bytes of packed bits where 2 are needed",
        ),
        (
            np.ones((9, 9), np.uint8),
            "not square: 9 rows in all, but 9 bytes of packed bits where 2 are needed",
        ),
        (np.ones((3, 3), np.float64), "dtype float64, but int8 of ±1, bool"),
        (np.ones((3, 3), np.int16), "dtype int16, but int8 of ±1, bool"),
        (np.ones(9, np.int8), r"shape (9,), but (rows, columns) of at least 1"),
        (np.ones((2, 2, 2), np.int8), r"shape (2, 2, 2), but (rows, columns) of at least 1"),
        (np.ones((0, 0), np.int8), r"shape (0, 0), but (rows, columns) of at least 1"),
        (np.array([[print]], object), "cannot be read as .npy"),
    ],
    ids=lambda value: "" if isinstance(value, str) else f"{value.dtype}{value.shape}",
)
def test_files_of_another_shape_or_type(array: np.ndarray, words: str, tmp_path: Path) -> None:
    path = _saved(tmp_path / "m.npy", array)
    sentence = _refusal(source="file", path=path)
    assert words in sentence
    assert f"problem.path {path}" in sentence


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "does not exist" in _refusal(source="file", path=str(tmp_path / "none.npy"))
    assert "problem.path aaa" in _refusal(source="file", path="a" * 300)
    assert "cannot be read: File name too long" in _refusal(source="file", path="a" * 300)
    assert "cannot be read" in _refusal(source="file", path="a\0b")
    assert "folder without .npy files" in _refusal(source="file", path=str(tmp_path))
    (tmp_path / "text.npy").write_text("+1 -1\n-1 +1\n")
    assert "text.npy: not a .npy file" in _refusal(source="file", path=str(tmp_path / "text.npy"))
    np.savez(tmp_path / "several.npz", np.ones((2, 2), np.int8))
    assert "several arrays" in _refusal(source="file", path=str(tmp_path / "several.npz"))
    whole = Path(_saved(tmp_path / "whole.npy", np.ones((100, 100), np.int8))).read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:5000])
    assert "cannot be read as .npy" in _refusal(source="file", path=str(tmp_path / "cut.npy"))


def test_shards_of_different_widths(tmp_path: Path) -> None:
    _saved(tmp_path / "0.npy", np.ones((2, 4), np.int8))
    second = _saved(tmp_path / "1.npy", np.ones((2, 3), np.int8))
    sentence = _refusal(source="file", path=str(tmp_path))
    assert f"{second}: not square: 4 rows in all, but 3 columns where 4 are needed" in sentence


def test_another_n_than_the_configuration_says(tmp_path: Path) -> None:
    path = _saved(tmp_path / "m.npy", np.ones((3, 3), np.int8))
    assert _refusal(source="file", path=path, n=4) == f"problem.n is 4, but {path} has n = 3"


@pytest.mark.parametrize("value", [0, 2, -2, 127, -128])
@pytest.mark.parametrize("place", [(0, 1), (7, 0), (64, 63), (99, 98)])
def test_entries_other_than_plus_and_minus_one(value: int, place: tuple[int, int], tmp_path: Path) -> None:
    entries = np.ones((100, 100), np.int8)
    entries[place] = value
    entries[99, 5:20] = 3  # later ones are not the ones to name
    np.fill_diagonal(entries, 77)  # and the diagonal may be anything
    source = open_source(Problem(source="file", path=_saved(tmp_path / "m.npy", entries)))
    with pytest.raises(UserError) as caught:
        source.fill(RowRange(64, 100), 0, np.zeros((36, 2), np.uint64))
    first = min(place, (99, 5))
    named = value if first == place else 3
    assert f"J[{first[0]}, {first[1]}] is {named}, but off the diagonal it should be +1 or -1" in str(
        caught.value
    )


def test_the_first_bad_entry_is_named_from_whatever_column_block_is_read(tmp_path: Path) -> None:
    path = tmp_path / "holes.npy"
    np.lib.format.open_memmap(path, "w+", np.int8, (32_257, 32_257))
    source = open_source(Problem(source="file", path=str(path)))
    with pytest.raises(UserError, match=r"J\[0, 1\] is 0, but"):
        source.fill(RowRange(32_192, 32_193), 1, np.zeros((1, 1), np.uint64))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nocolon", "expected module:Class"),
        (":Class", "expected module:Class"),
        ("module:", "expected module:Class"),
        ("no_such_module_here:Class", "ModuleNotFoundError"),
        ("{folder}/none.py:Class", "FileNotFoundError"),
        ("{folder}/mine.py:Nothing", "has no Nothing"),
        ("{folder}/broken.py:Class", "SyntaxError"),
        ("{folder}/mine.py:Raises", "raised RuntimeError: no licence ({folder}/mine.py, line 3)"),
        ("{folder}/mine.py:Exits", "constructing it raised SystemExit: 3 ({folder}/mine.py, line 9)"),
        ("{folder}/mine.py:AskedForN", "constructing it raised KeyError: 'n' ({folder}/mine.py, line 13)"),
        (
            "{folder}/exits.py:Class",
            "importing {folder}/exits.py raised SystemExit: bye ({folder}/exits.py, line 2)",
        ),
        ("{folder}/mine.py:WithoutN", "the object's n is None"),
        ("{folder}/mine.py:NegativeN", "the object's n is -3"),
        ("{folder}/mine.py:WithoutFill", "the object has no method fill(rows, column_block, out)"),
    ],
)
def test_python_sources_that_do_not_work(path: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("class Class\n")
    (tmp_path / "mine.py").write_text(
        "class Raises:\n    def __init__(self):\n        raise RuntimeError('no licence')\n"
        "class WithoutN: pass\n"
        "class NegativeN: n = -3\n"
        "import sys\n"
        "class Exits:\n    def __init__(self):\n        sys.exit(3)\n"
        "class AskedForN:\n    @property\n    def n(self):\n        return {}['n']\n"
        "class WithoutFill: n = 3\n"
    )
    (tmp_path / "exits.py").write_text("import sys\nsys.exit('bye')\n")
    path = path.format(folder=tmp_path)
    sentence = _refusal(source="python", path=path)
    assert words.format(folder=tmp_path) in sentence
    assert f"problem.path {path}" in sentence


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("1 / 0", r"ZeroDivisionError: division by zero \({file}, line 6\)"),
        ("sys.exit(4)", r"SystemExit: 4 \({file}, line 6\)"),
        ("raise ValueError('two\\nlines')", r"ValueError: two lines \({file}, line 6\)"),
        ("np.ones(3).reshape(2)", r"ValueError: cannot reshape .* \({file}, line 6\)"),
        ("helper.fail()", r"OSError: no such tape \({folder}/helper_of_a_source.py, line 2\)"),
    ],
)
def test_a_python_source_that_fails_while_filling(statement: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "helper_of_a_source.py").write_text("def fail():\n    raise OSError('no such tape')\n")
    (tmp_path / "mine.py").write_text(
        "import sys; import numpy as np\nimport helper_of_a_source as helper\n"
        f"class Failing:\n    n = 70\n    def fill(self, rows, column_block, out):\n        {statement}\n"
    )
    try:
        source = open_source(Problem(source="python", path=f"{tmp_path}/mine.py:Failing"))
        where = words.format(file=tmp_path / "mine.py", folder=tmp_path)
        with pytest.raises(UserError, match=rf"fill\(rows 64 to 70, column block 0\) raised {where}$"):
            source.fill(RowRange(64, 70), 0, np.zeros((6, 2), np.uint64))
    finally:
        sys.modules.pop("helper_of_a_source", None)
        sys.path.remove(str(tmp_path))


def test_a_python_source_takes_seed_and_n_only_if_it_wants_them(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Seeded:\n    def __init__(self, seed):\n        self.n = seed + 1\n"
        "    def fill(self, rows, column_block, out): pass\n"
    )
    assert open_source(Problem(source="python", path=f"{tmp_path}/mine.py:Seeded", seed=6)).n == 7
    assert "problem.n is 9" in _refusal(source="python", path=f"{tmp_path}/mine.py:Seeded", seed=6, n=9)


def test_words_that_a_class_leaves_out_are_not_an_earlier_frames(tmp_path: Path) -> None:
    (tmp_path / "lazy.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n"
        "@dataclass\nclass Lazy:\n    n: int\n\n    def fill(self, rows, column_block, out):\n        pass\n"
    )
    source = open_source(Problem(source="python", n=70, path=f"{tmp_path}/lazy.py:Lazy"))
    words = np.full((64, 2), 2**64 - 1, np.uint64)
    source.fill(RowRange(0, 64), 0, words)
    assert (unpack_couplings(words, 70) == np.eye(64, 70, dtype=np.uint8)).all()


def test_an_empty_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "J.npy").write_bytes(b"")
    with pytest.raises(UserError, match=r"not a \.npy file"):
        open_source(Problem(source="file", path=str(tmp_path / "J.npy")))
