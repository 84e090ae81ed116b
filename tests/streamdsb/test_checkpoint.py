"""Checkpoints come back as they were written, or not at all."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdsb.checkpoint import (
    Checkpoint,
    Damaged,
    Header,
    find_checkpoints,
    load,
    load_first_usable,
    newest_usable,
    path_of,
    save,
)
from streamdsb.errors import UserError
from streamdsb.layout import RowRange


def checkpoint_of(n: int = 100, replicas: int = 3, next_pass: int = 7) -> Checkpoint:
    """A state of random numbers."""
    numbers = np.random.default_rng(next_pass)
    header = Header(
        next_pass=next_pass,
        n=n,
        replicas=replicas,
        first_row=0,
        last_row=n,
        input_hash="0123456789abcdef",
        best_pass=3,
        best_replica=1,
        best_two_energy=-(2**60) - 1,
    )
    return Checkpoint(
        header,
        numbers.standard_normal((replicas, n)).astype(np.float32),
        numbers.standard_normal((replicas, n)).astype(np.float32),
        numbers.integers(0, 2**64, -(-n // 64), np.uint64),
    )


@given(n=st.integers(1, 300), replicas=st.integers(1, 9))
def test_what_is_loaded_is_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory, n: int, replicas: int
) -> None:
    path = path_of(tmp_path_factory.mktemp("run"), 7)
    saved = checkpoint_of(n, replicas)
    size = save(path, saved)
    loaded = load(path)
    assert size == path.stat().st_size
    assert loaded.header == saved.header
    assert loaded.positions.tobytes() == saved.positions.tobytes()
    assert loaded.momenta.tobytes() == saved.momenta.tobytes()
    assert loaded.best_signs.tobytes() == saved.best_signs.tobytes()


@given(data=st.data())
def test_no_flipped_bit_passes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = path_of(tmp_path_factory.mktemp("run"), 7)
    save(path, checkpoint_of(20, 2))
    content = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    with pytest.raises(Damaged, match="checksum"):
        load(path)


@given(length=st.integers(0, 300))
def test_no_truncated_file_passes(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    path = path_of(tmp_path_factory.mktemp("run"), 7)
    save(path, checkpoint_of(20, 2))
    content = path.read_bytes()
    path.write_bytes(content[: min(length, len(content) - 1)])
    with pytest.raises(Damaged):
        load(path)


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for next_pass in (1, 5, 10, 11):
        save(path_of(tmp_path, next_pass), checkpoint_of(next_pass=next_pass))
    assert find_checkpoints(tmp_path) == [path_of(tmp_path, 11), path_of(tmp_path, 10)]
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [path_of(tmp_path, k).name for k in (10, 11)]


def test_a_damaged_one_falls_back_to_the_one_before(tmp_path: Path) -> None:
    for next_pass in (10, 11):
        save(path_of(tmp_path, next_pass), checkpoint_of(next_pass=next_pass))
    path_of(tmp_path, 11).write_bytes(b"{}")
    usable = load_first_usable(find_checkpoints(tmp_path), 100, 3, RowRange(0, 100))
    assert usable.header.next_pass == 10


@pytest.mark.parametrize(("n", "replicas"), [(101, 3), (100, 2)])
def test_one_of_another_size_is_not_used(tmp_path: Path, n: int, replicas: int) -> None:
    save(path_of(tmp_path, 7), checkpoint_of())
    with pytest.raises(UserError, match=r"no usable checkpoint: .*\(100, 3\)"):
        load_first_usable(find_checkpoints(tmp_path), n, replicas, RowRange(0, n))


def test_a_half_written_one_is_not_found(tmp_path: Path) -> None:
    folder = path_of(tmp_path, 7).parent
    folder.mkdir()
    (folder / "pass-0000000007.partial").write_bytes(b"half of it")
    assert find_checkpoints(tmp_path) == []


def test_a_disk_that_does_not_take_it_leaves_the_one_before(tmp_path: Path) -> None:
    save(path_of(tmp_path, 7), checkpoint_of())
    path_of(tmp_path, 8).with_suffix(".partial").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        save(path_of(tmp_path, 8), checkpoint_of(next_pass=8))
    assert load(path_of(tmp_path, 7)).header.next_pass == 7


def test_loading_takes_no_memory_beside_the_file(tmp_path: Path) -> None:
    save(path_of(tmp_path, 7), checkpoint_of(200_000, 4))
    tracemalloc.start()
    load(path_of(tmp_path, 7))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000


def save_parts(run: Path, whole: Checkpoint, parts: int) -> list[Path]:
    """Save `whole` as so many receivers would; the files."""
    paths = []
    for rows in RowRange(0, whole.header.n).split(parts):
        own = slice(rows.start, rows.stop)
        header = whole.header.model_copy(update={"first_row": rows.start, "last_row": rows.stop})
        part = Checkpoint(header, whole.positions[:, own], whole.momenta[:, own], whole.best_signs)
        paths.append(path_of(run, whole.header.next_pass, rows))
        save(paths[-1], part)
    return paths


@given(n=st.integers(1, 700), before=st.integers(1, 5), after=st.integers(1, 5))
def test_other_receivers_take_the_rows_over(
    tmp_path_factory: pytest.TempPathFactory, n: int, before: int, after: int
) -> None:
    run, whole = tmp_path_factory.mktemp("run"), checkpoint_of(n)
    groups = -(-n // 64)
    save_parts(run, whole, min(before, groups))
    for rows in RowRange(0, n).split(min(after, groups)):
        taken = load_first_usable(find_checkpoints(run), n, 3, rows)
        own = slice(rows.start, rows.stop)
        assert (taken.header.first_row, taken.header.last_row) == (rows.start, rows.stop)
        assert taken.positions.tobytes() == whole.positions[:, own].tobytes()
        assert taken.momenta.tobytes() == whole.momenta[:, own].tobytes()
        assert taken.best_signs.tobytes() == whole.best_signs.tobytes()


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"{}")])
def test_a_pass_of_which_a_part_is_lost_is_not_used(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    save_parts(tmp_path, checkpoint_of(300, next_pass=9), 3)
    newest = save_parts(tmp_path, checkpoint_of(300, next_pass=10), 2)
    assert newest_usable(tmp_path, 300, 3) == sorted(newest, reverse=True)
    damage(newest[0])
    assert load_first_usable(find_checkpoints(tmp_path), 300, 3, RowRange(0, 300)).header.next_pass == 9
    assert {load(path).header.next_pass for path in newest_usable(tmp_path, 300, 3)} == {9}


def test_receivers_forget_what_is_older_than_the_last_two_passes(tmp_path: Path) -> None:
    for next_pass in (8, 9, 10):
        save_parts(tmp_path, checkpoint_of(300, next_pass=next_pass), 3)
    assert [load(path).header.next_pass for path in find_checkpoints(tmp_path)] == [10] * 3 + [9] * 3


def test_a_run_without_checkpoints_has_none_that_is_newest(tmp_path: Path) -> None:
    assert newest_usable(tmp_path, 100, 3) == []
