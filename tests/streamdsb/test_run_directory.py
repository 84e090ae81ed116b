"""The run directory: whole lines, nothing overwritten silently, one sentence when it cannot be written."""

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from streamdsb.checkpoint import find_checkpoints, path_of, save
from streamdsb.errors import UserError
from streamdsb.run_directory import RECORDS, TIMINGS, RunDirectory, check_free, read_lines, record_line
from tests.streamdsb.test_checkpoint import checkpoint_of


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
    for line in (b"not JSON", b"[1, 2]", b"\xff", b"[" * 100_000):
        (tmp_path / "records.jsonl").write_bytes(b"{}\n" + line + b"\n")
        with pytest.raises(
            UserError, match=r"records.jsonl: line 2 is b'.*', but it should be a JSON object"
        ):
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
    for path in ("notes.txt", "notes.txt/run", "notes.txt/deep/run"):
        with pytest.raises(UserError, match=r"notes.txt is a file, but a run needs a directory"):
            check_free(tmp_path / path, overwrite=True)
    with pytest.raises(UserError, match="cannot be a run directory: File name too long"):
        check_free(tmp_path / ("a" * 300), overwrite=False)


def test_overwriting_leaves_nothing_of_the_run_before(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path)
    first.append_record("old")
    first.write_summary({})
    first.close()
    half_written = tmp_path / ".best_spins.npy.partial"  # by a process that was killed
    half_written.touch()
    second = RunDirectory(tmp_path, overwrite=True)
    assert not half_written.exists()
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


def test_a_run_without_a_pass_leaves_the_place_free(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("new", "mine"):
        directory = RunDirectory(tmp_path / name)
        directory.write_config("problem: {}\n")
        directory.write_summary({"status": "failed"})
        directory.close()
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_checkpoint_is_kept_even_before_the_first_pass(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    save(path_of(tmp_path / "run", 0), checkpoint_of(next_pass=0))
    directory.close()
    assert find_checkpoints(tmp_path / "run") == [path_of(tmp_path / "run", 0)]


# --- going on with a run --------------------------------------------------------------------------


def interrupted(path: Path, passes: int = 4) -> tuple[bytes, bytes]:
    """A run of so many passes without its end; what its records and timings hold."""
    directory = RunDirectory(path)
    for k in range(passes):
        directory.append_record(record_line(k, [k, -k], "0"))
        directory.append_timing({"pass": k, "receive_s": 0.25, "total_s": 1})
    directory.close()
    return (path / RECORDS).read_bytes(), (path / TIMINGS).read_bytes()


def test_a_resumed_run_goes_on_after_the_passes_of_its_checkpoint(tmp_path: Path) -> None:
    records, timings = interrupted(tmp_path / "run")
    directory = RunDirectory.resume(tmp_path / "run", 3)
    directory.append_record("{}")
    directory.close()
    assert (tmp_path / "run" / RECORDS).read_bytes() == b"".join(records.splitlines(True)[:3]) + b"{}\n"
    assert (tmp_path / "run" / TIMINGS).read_bytes() == b"".join(timings.splitlines(True)[:3])


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        (RECORDS, b"{}", r"line 2 is b'{}', but it should be pass 1 with its two_energy"),
        (RECORDS, b"3", r"line 2 is b'3', but it should be a JSON object"),
        (RECORDS, b"\xff", "a JSON object"),
        (RECORDS, b'{"pass":2,"two_energy":[1,2]}', "pass 1"),
        (RECORDS, b'{"pass":1,"two_energy":[]}', "two_energy"),
        (RECORDS, b'{"pass":1,"two_energy":[0.5]}', "two_energy"),
        (RECORDS, b'{"pass":1,"two_energy":[9223372036854775808]}', "two_energy"),
        (TIMINGS, b"{}", "pass 1 with its receive_s and total_s"),
        (TIMINGS, b'{"pass":1,"receive_s":1}', "receive_s and total_s"),
        (TIMINGS, b'{"pass":1,"receive_s":1,"total_s":NaN}', "receive_s and total_s"),
        (TIMINGS, b'{"pass":1,"receive_s":true,"total_s":1}', "receive_s and total_s"),
    ],
)
def test_a_damaged_line_is_named_before_anything_is_cut_off(
    name: str, line: bytes, words: str, tmp_path: Path
) -> None:
    interrupted(tmp_path)
    lines = (tmp_path / name).read_bytes().splitlines()
    lines[1] = line
    (tmp_path / name).write_bytes(b"\n".join(lines) + b"\n")
    before = [(tmp_path / each).read_bytes() for each in (RECORDS, TIMINGS)]
    with pytest.raises(UserError, match=words) as caught:
        RunDirectory.resume(tmp_path, 3)
    assert str(tmp_path / name) in str(caught.value)
    assert [(tmp_path / each).read_bytes() for each in (RECORDS, TIMINGS)] == before


def test_timings_that_are_too_few_or_gone_are_named_before_records_are_cut_off(tmp_path: Path) -> None:
    records, timings = interrupted(tmp_path)
    (tmp_path / TIMINGS).write_bytes(b"".join(timings.splitlines(True)[:2]))
    with pytest.raises(UserError, match=r"timings.jsonl: 2 whole lines, but .* after 3"):
        RunDirectory.resume(tmp_path, 3)
    (tmp_path / TIMINGS).unlink()
    with pytest.raises(UserError, match=r"timings.jsonl: cannot be read: No such file"):
        RunDirectory.resume(tmp_path, 3)
    assert (tmp_path / RECORDS).read_bytes() == records
