"""The run directory: whole lines, nothing overwritten silently, one sentence when it cannot be written."""

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from streamdsb.errors import UserError
from streamdsb.run_directory import RECORDS, RunDirectory, check_free, read_lines, record_line


def test_a_record() -> None:
    assert record_line(7, [4, -8, 0, -8], "00ff") == (
        '{"pass":7,"best_two_energy":-8,"best_replica":1,"two_energy":[4,-8,0,-8],"checksum":"00ff"}'
    )


def test_energies_beyond_double_precision_are_exact() -> None:
    energy = -(10**8) * (10**8 - 1)
    assert f"[{energy},{energy + 1}]" in record_line(0, [energy, energy + 1], "0")


def test_what_is_written(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "a" / "b")
    directory.write_config("problem: {}\n")
    for k in range(3):
        directory.append_record(record_line(k, [k], "0"))
        directory.append_timing({"pass": k, "total_s": 0.5})
    directory.write_spins(np.ones(70, np.int8), np.zeros((2, 16), np.uint8))
    directory.write_summary({"status": "completed"})
    directory.close()
    out = tmp_path / "a" / "b"
    assert [line["pass"] for line in read_lines(out / "records.jsonl")] == [0, 1, 2]
    assert (out / "timings.jsonl").read_text().splitlines()[0] == '{"pass":0,"total_s":0.5}'
    assert json.loads((out / "summary.json").read_text()) == {"status": "completed"}
    assert np.load(out / "best_spins.npy").shape == (70,)
    assert not [path for path in out.iterdir() if "partial" in path.name]


def test_lines_are_there_before_the_run_ends(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.append_record("{}")
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == b"{}\n"
    directory.close()


def test_a_last_line_without_its_end_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text('{"pass":0}\n{"pass":1}\n{"pa')
    assert read_lines(tmp_path / "records.jsonl") == [{"pass": 0}, {"pass": 1}]


def test_lines_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"records.jsonl: cannot be read: No such file"):
        read_lines(tmp_path / "records.jsonl")
    (tmp_path / "records.jsonl").write_text("not JSON\n")
    with pytest.raises(UserError, match="a line is not JSON"):
        read_lines(tmp_path / "records.jsonl")


def test_only_a_free_place_is_taken(tmp_path: Path) -> None:
    check_free(tmp_path / "new" / "run", overwrite=False)
    check_free(tmp_path, overwrite=False)
    (tmp_path / "records.jsonl").write_text("")
    with pytest.raises(UserError, match="--overwrite"):
        check_free(tmp_path, overwrite=False)
    check_free(tmp_path, overwrite=True)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UserError, match=r"notes.txt in it is not part of one"):
        check_free(tmp_path, overwrite=True)
    with pytest.raises(UserError, match="is a file"):
        check_free(tmp_path / "notes.txt", overwrite=True)


def test_overwriting_leaves_nothing_of_the_run_before(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path)
    first.append_record("old")
    first.write_summary({})
    first.close()
    second = RunDirectory(tmp_path, overwrite=True)
    second.append_record("new")
    second.close()
    assert (tmp_path / "records.jsonl").read_text() == "new\n"
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(UserError, match="not writable"):
        check_free(tmp_path / "run", overwrite=False)


def test_only_one_process_writes_a_run(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "run")
    first.append_record("{}")
    for second in (
        lambda: RunDirectory(tmp_path / "run", overwrite=True),
        lambda: RunDirectory.resume(tmp_path / "run", 0),
    ):
        with pytest.raises(UserError, match="another process is writing this run"):
            second()
    first.close()
    assert (tmp_path / "run" / RECORDS).read_text() == "{}\n"
    RunDirectory(tmp_path / "run", overwrite=True).close()
