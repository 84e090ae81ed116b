"""Communicators: one rank and MPI do the same; who was started by mpiexec knows it."""

import subprocess
import sys
from pathlib import Path

import pytest

from streamdsb.communicator import OneRank, started_by_mpi
from tests.communicator_conformance import check_conformance
from tests.harness import MPIEXEC, run_command

ROOT = Path(__file__).parents[2]


def test_one_rank_conforms() -> None:
    check_conformance(OneRank())


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_mpi_conforms(ranks: int) -> None:
    done = subprocess.run(
        [MPIEXEC, "-n", str(ranks), sys.executable, "-m", "tests.communicator_conformance"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert all(f"rank {rank} conforms" in done.stdout for rank in range(ranks))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, True),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, False),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, True),
        ({"PMIX_RANK": "0"}, True),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}, True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, False),  # the batch script itself
        ({"SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0"}, False),  # srun --pty bash
    ],
)
def test_who_was_started_as_a_rank(variables: dict[str, str], expected: bool) -> None:
    assert started_by_mpi(variables) is expected


@pytest.mark.mpi
def test_ranks_of_another_mpi_are_told_so(tmp_path: Path) -> None:
    """What a process sees whose mpiexec is not that of its MPI library."""
    path = tmp_path / "run.yaml"
    path.write_text("problem: {n: 100}\n")
    variables = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
    status, _, err = run_command("run", path, "--out", tmp_path / "run", environment=variables)
    assert status == 2
    assert "4 ranks were started, but mpi4py sees one" in err
    assert not (tmp_path / "run").exists()


def test_without_mpi4py_the_command_to_install_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('not here')\n")
    path = tmp_path / "run.yaml"
    path.write_text("problem: {n: 100}\n")
    variables = {"PMI_SIZE": "2", "PYTHONPATH": str(tmp_path)}
    status, _, err = run_command("run", path, "--out", tmp_path / "run", environment=variables)
    assert status == 2
    assert "pip install 'streamdsb[mpi]'" in err


def test_several_receivers_in_one_process_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("problem: {n: 100}\nreceivers: 4\n")
    status, _, err = run_command("run", path, "--out", tmp_path / "run")
    assert status == 2
    assert "mpiexec -n 4 streamdsb run" in err
    assert not (tmp_path / "run").exists()
