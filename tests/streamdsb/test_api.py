"""Running from Python, and the commands' help."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import streamdsb
from streamdsb.errors import UserError
from tests.harness import config_of, expected_records, run_command
from validation import oracle


def test_run_returns_energies_spins_and_records(tmp_path: Path) -> None:
    config = config_of(n=300, replicas=4, updates=10)
    result = streamdsb.run(config.model_dump(), tmp_path / "run")
    assert (tmp_path / "run" / "records.jsonl").read_text() == expected_records(config)
    assert result.energies.dtype == np.int64
    assert result.energies.shape == (11, 4)
    assert [record["two_energy"] for record in result.records] == result.energies.tolist()
    assert oracle.two_energy(oracle.random_couplings(300, 42), result.spins) == result.energies.min()
    assert result.summary["status"] == "completed"
    assert result.directory == tmp_path / "run"


def test_run_without_a_directory_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = streamdsb.run({"problem": {"source": "mattis", "n": 200}, "solver": {"updates": 5}})
    assert result.energies.min() == -200 * 199
    assert list(tmp_path.iterdir()) == []
    assert result.directory is None


def test_run_from_a_thread(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    config = config_of(n=100)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(streamdsb.run, config, tmp_path / "run").result()
    assert (tmp_path / "run" / "records.jsonl").read_text() == expected_records(config)


def test_run_refuses_what_the_command_refuses() -> None:
    with pytest.raises(UserError, match=r"problem\.n"):
        streamdsb.run({"problem": {"source": "mattis", "n": 0}})


def run_beside_a_coordinator(folder: Path, first: str) -> subprocess.CompletedProcess[str]:
    """A program in a folder with a coordinator.py and a generator.py; `first` is its first line."""
    for name in ("coordinator", "generator"):
        (folder / f"{name}.py").write_text("raise ZeroDivisionError\n" if not first else "")
    (folder / "program.py").write_text(
        f"{first}\nimport streamdsb\n"
        "result = streamdsb.run({'problem': {'source': 'mattis', 'n': 100}, 'solver': {'updates': 2}})\n"
        "print(result.energies.min())\n"
    )
    return subprocess.run(
        [sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, check=False
    )


def test_modules_of_the_users_do_not_hide_ours(tmp_path: Path) -> None:
    done = run_beside_a_coordinator(tmp_path, "")
    assert done.stdout == "-9900\n", done.stderr


def test_a_module_of_the_users_that_was_imported_before_is_named(tmp_path: Path) -> None:
    done = run_beside_a_coordinator(tmp_path, "import coordinator")
    assert f"UserError: a module coordinator was imported from {tmp_path / 'coordinator.py'}" in done.stderr


@pytest.mark.parametrize(
    "command", ["run", "coordinate", "generate", "receive", "plan", "validate", "compare", "report", "doctor"]
)
def test_every_command_explains_itself(command: str) -> None:
    status, out, _ = run_command(command, "--help")
    assert status == 0
    assert out.startswith(f"Usage: streamdsb {command}")
    assert len(out.splitlines()) > 3


def test_unknown_commands_and_options() -> None:
    assert run_command("rum")[0] == 2
    assert run_command("run")[0] == 2
    assert run_command("run", "x.yaml", "--bogus")[0] == 2
