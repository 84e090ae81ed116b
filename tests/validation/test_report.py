import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import streamdsb
from streamdsb.errors import UserError
from validation.report import SIZE, report


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("report") / "run"
    streamdsb.run({"problem": {"source": "mattis", "n": 65}, "solver": {"replicas": 3, "updates": 10}}, out)
    return out


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[12:16] == b"IHDR"
    assert data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


def keep_lines(path: Path, count: int) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))


def unfinished(run: Path, passes: int) -> Path:
    keep_lines(run / "records.jsonl", passes)
    keep_lines(run / "timings.jsonl", passes)
    for name in ("summary.json", "best_spins.npy", "final_spins.npy"):
        (run / name).unlink()
    return run


def test_a_picture_in_the_run_directory(run):
    assert report(run) == run / "report.png"
    assert png_size(run / "report.png") == SIZE == (1500, 1050)


def test_a_picture_elsewhere(run, tmp_path):
    assert report(run, tmp_path / "picture") == tmp_path / "picture"
    assert png_size(tmp_path / "picture") == SIZE
    assert not (run / "report.png").exists()


def test_another_run_gives_another_picture(run, tmp_path):
    whole = report(run, tmp_path / "whole.png").read_bytes()
    assert report(run, tmp_path / "again.png").read_bytes() == whole
    assert report(unfinished(run, 4), tmp_path / "part.png").read_bytes() != whole


@pytest.mark.parametrize("passes", [1, 2, 7])
def test_an_unfinished_run(run, passes):
    assert png_size(report(unfinished(run, passes))) == SIZE


def test_a_last_line_without_its_end_or_its_timing(run):
    unfinished(run, 5)
    keep_lines(run / "timings.jsonl", 4)
    with open(run / "records.jsonl", "a") as file:
        file.write('{"pass":5,"best')
    assert png_size(report(run)) == SIZE


@pytest.mark.parametrize(("passes", "replicas"), [(1001, 32), (9001, 100)])
def test_a_long_run(run, passes, replicas):
    record = {"pass": 0, "best_two_energy": 0, "best_replica": 0, "checksum": "0" * 16}
    with open(run / "records.jsonl", "w") as records, open(run / "timings.jsonl", "w") as timings:
        for k in range(passes):
            energies = [-(k * (b + 1)) % 977 for b in range(replicas)]
            records.write(json.dumps(record | {"pass": k, "two_energy": energies}) + "\n")
            timings.write(json.dumps({"payload_bytes": 1e6, "receive_s": 0.001 + k % 7 * 1e-5}) + "\n")
    assert png_size(report(run)) == SIZE


def edit(run: Path, old: str, new: str) -> None:
    timings = run / "timings.jsonl"
    timings.write_text(timings.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda run: (run / "timings.jsonl").unlink(), r"timings\.jsonl: cannot be read: No such file"),
        (lambda run: (run / "records.jsonl").unlink(), r"records\.jsonl: cannot be read: No such file"),
        (lambda run: (run / "config.yaml").unlink(), r"config\.yaml: cannot read .* No such file"),
        (lambda run: keep_lines(run / "timings.jsonl", 0), "no pass is over yet"),
        (lambda run: edit(run, "receive_s", "received_s"), "a line without the values to plot"),
        (lambda run: edit(run, '"pass":3', '"pass":'), r"timings\.jsonl: line 4 is .* a JSON object"),
        (
            lambda run: edit(run, '"payload_bytes":', '"payload_bytes":' + 400 * "9"),
            "without the values to plot",
        ),
    ],
)
def test_what_cannot_be_plotted_is_said_in_a_sentence(run, break_it, words):
    break_it(run)
    with pytest.raises(UserError, match=words) as caught:
        report(run)
    assert "\n" not in str(caught.value)
    assert not (run / "report.png").exists()


def test_a_picture_that_cannot_be_written(run, tmp_path):
    with pytest.raises(UserError, match=r"nowhere/report\.png: cannot be written: No such file"):
        report(run, tmp_path / "nowhere" / "report.png")


def test_without_matplotlib(run, tmp_path):
    """An installation without it, as far as Python can tell: its import fails."""
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('No module named matplotlib')\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from pathlib import Path
from streamdsb.errors import UserError
from validation.report import report
try:
    report(Path({str(run)!r}))
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "a report needs matplotlib; get it with: pip install 'streamdsb[plot]'\n"
