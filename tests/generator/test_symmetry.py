"""The symmetry of couplings: a pair that differs is found wherever it stands, a symmetric matrix passes."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generator.source import RandomCouplings
from generator.symmetry import InputWatch, SymmetryCheck, hash_of_sums
from streamdsb.errors import RunFailed, UserError
from streamdsb.frame import CouplingFormat
from streamdsb.layout import BLOCK_COLUMNS, Layout, RowRange
from streamdsb.packing import columns_of, pack_couplings, set_diagonal


class HeldCouplings:
    """Couplings held in memory, bool (n, n), True for +1."""

    coupling_format = CouplingFormat.PM1
    symmetric = False

    def __init__(self, plus: np.ndarray) -> None:
        self.n = len(plus)
        self._plus = plus

    def fill(self, rows: RowRange, column_block: int, out: np.ndarray) -> None:
        out[:] = pack_couplings(self._plus[rows.start : rows.stop, columns_of(self.n, column_block)])
        set_diagonal(rows, column_block, out)


class FlippedCouplings(RandomCouplings):
    """Random couplings with some J_ij negated and their mirror images not."""

    def __init__(self, n: int, seed: int, flipped: Sequence[tuple[int, int]]) -> None:
        super().__init__(n, seed)
        self._flipped = flipped

    def fill(self, rows: RowRange, column_block: int, out: np.ndarray) -> None:
        super().fill(rows, column_block, out)
        for i, j in self._flipped:
            if rows.start <= i < rows.stop and j // BLOCK_COLUMNS == column_block:
                out[i - rows.start, j % BLOCK_COLUMNS // 64] ^= np.uint64(1 << j % 64)


def checked(source: HeldCouplings | FlippedCouplings, rows_at_once: int = 256, queues: int = 1) -> str:
    """The hash of the couplings after one pass over them; raises what the check raises."""
    check, layout = SymmetryCheck(), Layout(source.n, 1, queues)
    for block in range(layout.column_blocks):
        for queue_rows in layout.queue_rows:
            for start in range(queue_rows.start, queue_rows.stop, rows_at_once):
                rows = RowRange(start, min(start + rows_at_once, queue_rows.stop))
                words = np.zeros((len(rows), layout.words_in(block)), np.uint64)
                source.fill(rows, block, words)
                check.add(rows, block, words)
    return hash_of_sums(check.sums, source, "couplings")


def symmetric_matrix(n: int, seed: int) -> np.ndarray:
    upper = np.triu(np.random.default_rng(seed).integers(0, 2, (n, n), np.uint8)).astype(bool)
    return upper | upper.T


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 260), seed=st.integers(0, 2**32))
def test_symmetric_matrices_pass(n: int, seed: int) -> None:
    assert len(checked(HeldCouplings(symmetric_matrix(n, seed)))) == 16


@settings(deadline=None, max_examples=150)
@given(data=st.data(), n=st.integers(2, 260), seed=st.integers(0, 2**32))
def test_any_single_flipped_pair_is_found(data: st.DataObject, n: int, seed: int) -> None:
    i = data.draw(st.integers(0, n - 2))
    j = data.draw(st.integers(i + 1, n - 1))
    below = data.draw(st.booleans())
    plus = symmetric_matrix(n, seed)
    place = (j, i) if below else (i, j)
    plus[place] ^= True
    upright, mirrored = (1 if plus[i, j] else -1), (1 if plus[j, i] else -1)
    with pytest.raises(UserError) as caught:
        checked(HeldCouplings(plus))
    expected = f"couplings: not symmetric: J[{i}, {j}] is {upright:+d}, but J[{j}, {i}] is {mirrored:+d}"
    assert str(caught.value) == expected


@settings(deadline=None, max_examples=60)
@given(data=st.data(), n=st.integers(2, 200), seed=st.integers(0, 2**32))
def test_of_several_flipped_pairs_the_first_is_named(data: st.DataObject, n: int, seed: int) -> None:
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda pair: pair[0] != pair[1])
    chosen = data.draw(st.lists(pairs, min_size=1, max_size=5, unique_by=lambda pair: (min(pair), max(pair))))
    plus = symmetric_matrix(n, seed)
    for pair in chosen:
        plus[pair] ^= True
    i, j = min((min(pair), max(pair)) for pair in chosen)
    with pytest.raises(UserError, match=rf"J\[{i}, {j}\] is [+-]1, but J\[{j}, {i}\]"):
        checked(HeldCouplings(plus))


@pytest.mark.parametrize("rows_at_once", [64, 128, 320])
@pytest.mark.parametrize("queues", [1, 2, 8])
def test_the_hash_does_not_depend_on_how_the_pass_is_cut(rows_at_once: int, queues: int) -> None:
    source = HeldCouplings(symmetric_matrix(1000, 7))
    assert checked(source, rows_at_once, queues) == checked(source)


def test_the_hash_tells_couplings_apart_but_not_their_diagonals() -> None:
    plus = symmetric_matrix(130, 1)
    other_diagonal = plus ^ np.eye(130, dtype=bool)
    other_pair = plus.copy()
    other_pair[[3, 128], [128, 3]] ^= True
    assert checked(HeldCouplings(plus)) == checked(HeldCouplings(other_diagonal))
    assert checked(HeldCouplings(plus)) != checked(HeldCouplings(other_pair))


@pytest.mark.parametrize("place", [(5, 32_258), (32_300, 32_299), (32_299, 100)])
def test_across_column_blocks(place: tuple[int, int]) -> None:
    i, j = min(place), max(place)
    with pytest.raises(UserError, match=rf"J\[{i}, {j}\] is [+-]1, but J\[{j}, {i}\]"):
        checked(FlippedCouplings(32_301, 3, [place]))


def test_couplings_that_change_while_they_are_read() -> None:
    source = FlippedCouplings(130, 3, [(5, 9)])
    check = SymmetryCheck()
    words = np.zeros((130, 3), np.uint64)
    source.fill(RowRange(0, 130), 0, words)
    check.add(RowRange(0, 130), 0, words)
    with pytest.raises(UserError, match="changed while they were read"):
        hash_of_sums(check.sums, FlippedCouplings(130, 3, []), "couplings")


def test_sums_over_distinct_rows_add_up_to_those_of_all() -> None:
    source = HeldCouplings(symmetric_matrix(1000, 7))
    words = np.zeros((1000, 16), np.uint64)
    source.fill(RowRange(0, 1000), 0, words)
    sums = []
    for rows in (RowRange(0, 1000), *RowRange(0, 1000).split(3)):
        check = SymmetryCheck()
        check.add(rows, 0, words[rows.start : rows.stop])
        sums.append(np.array(check.sums, np.uint64))
    assert np.array_equal(sums[0], sums[1] + sums[2] + sums[3])
    assert len({tuple(pair.tolist()) for pair in sums}) == 4
    assert sums[1][0] != sums[1][1]


def watched(watch: InputWatch, pass_index: int, flipped: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """A pass of 300 spins over two queues with some couplings negated."""
    source, queues = FlippedCouplings(300, 3, flipped), RowRange(0, 300).split(2)
    for check, rows in zip(watch.begin_pass(), queues, strict=True):
        words = np.zeros((len(rows), 5), np.uint64)
        source.fill(rows, 0, words)
        check.add(rows, 0, words)
    return watch.end_pass(pass_index)


@pytest.mark.parametrize(("i", "j", "queue"), [(5, 9, 0), (127, 299, 0), (128, 5, 1), (299, 298, 1)])
def test_a_coupling_that_is_another_in_a_later_pass_is_noticed(i: int, j: int, queue: int) -> None:
    watch = InputWatch("couplings", 2)
    sums = watched(watch, 4, [])
    assert sums is not None
    assert sums[0] == sums[1]
    assert f"{sums[0]:016x}" == checked(FlippedCouplings(300, 3, []))
    assert watched(watch, 5, []) is None
    with pytest.raises(RunFailed, match=rf"couplings of pass 6 on queue {queue} are not those of pass 4"):
        watched(watch, 6, [(i, j)])
