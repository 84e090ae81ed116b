"""Full disks, directories that hold something already, ports in use."""

import errno
import os
import shlex
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import COMMAND, config_of, expected_records, run_command, sentence_of, written_config

FILLS_A_DISK = config_of(n=100, updates=1000)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(tiny_disk: Path, tmp_path: Path) -> None:
    out = tiny_disk / "run"
    status, _, err = run_command("run", written_config(tmp_path, FILLS_A_DISK), "--out", out)
    assert status == 2, err
    assert os.strerror(errno.ENOSPC).lower() in sentence_of(err).lower()
    assert "Traceback" not in err
    for name in ("records.jsonl", "timings.jsonl"):
        text = (out / name).read_text()
        assert text.endswith("\n")
    assert expected_records(FILLS_A_DISK).startswith((out / "records.jsonl").read_text())
    assert not [path.name for path in out.iterdir() if "partial" in path.name]


def test_an_existing_run_is_never_overwritten_silently(tmp_path: Path) -> None:
    config = config_of(n=100)
    path, out = written_config(tmp_path, config), tmp_path / "run"
    assert run_command("run", path, "--out", out)[0] == 0
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    status, _, err = run_command("run", path, "--out", out, "--set", "problem.seed=1")
    assert status == 2
    assert "--overwrite" in sentence_of(err)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    status, _, err = run_command("run", path, "--out", out, "--set", "problem.seed=1", "--overwrite")
    assert status == 0, err
    assert (out / "records.jsonl").read_bytes() != before["records.jsonl"]


def test_overwriting_spares_what_is_not_a_run(tmp_path: Path) -> None:
    path, out = written_config(tmp_path, config_of(n=100)), tmp_path / "run"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    status, _, err = run_command("run", path, "--out", out, "--overwrite")
    assert status == 2
    assert "thesis.tex" in sentence_of(err)
    assert (out / "thesis.tex").read_text() == "years of work"


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        path = written_config(tmp_path, config_of(n=100, stream={"transport": "tcp"}))
        status, _, err = run_command(
            "coordinate", path, "--listen", f"127.0.0.1:{port}", "--out", tmp_path / "run"
        )
    assert status == 2
    assert f"127.0.0.1:{port}" in sentence_of(err)
    assert not (tmp_path / "run").exists()


def test_overwriting_spares_what_lies_among_checkpoints(tmp_path: Path) -> None:
    path, out = written_config(tmp_path, config_of(n=100)), tmp_path / "run"
    assert run_command("run", path, "--out", out)[0] == 0
    (out / "checkpoints").mkdir()
    (out / "checkpoints" / "pass-00000003.partial").write_text("half a checkpoint")
    assert run_command("run", path, "--out", out, "--overwrite")[0] == 0
    assert not (out / "checkpoints").exists()
    (out / "checkpoints").mkdir()
    (out / "checkpoints" / "thesis.tex").write_text("years of work")
    status, _, err = run_command("run", path, "--out", out, "--overwrite")
    assert status == 2
    assert "checkpoints/thesis.tex" in sentence_of(err)
    assert (out / "checkpoints" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("streams", ["<&-", "<&- >&-", "2>&-", "2>/dev/full", ">/dev/full", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed_or_full(streams: str, tmp_path: Path) -> None:
    config = config_of(n=100)
    command = [*COMMAND, "run", str(written_config(tmp_path, config)), "--out", str(tmp_path / "run")]
    done = subprocess.run(
        ["sh", "-c", f"exec {shlex.join(command)} {streams}"], capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "records.jsonl").read_text() == expected_records(config)


def test_a_configuration_in_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    path = written_config(tmp_path, config_of(n=100))
    path.write_text("# ünï\n" + path.read_text(), encoding="utf-8")
    plain = {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    status, _, err = run_command("plan", path, environment=plain)
    assert status == 0, err
