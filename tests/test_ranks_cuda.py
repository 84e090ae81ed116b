"""Several receivers on GPUs under mpiexec: the oracle's records, also on one GPU that they share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdsb.config import Config
from tests.harness import MPIEXEC, config_of, expected_records, started_run

pytestmark = [pytest.mark.gpu, pytest.mark.mpi]

CUDA = {"backend": "cuda"}
LIMIT_S = 90.0


def run_ranks(ranks: int, config: Config, folder: Path, *settings: str) -> str:
    """Start so many ranks; what they said, once they have written the oracle's records."""
    launcher: list[str | Path] = [MPIEXEC, "-n", str(ranks)]
    with started_run(folder, config, *settings, launcher=launcher) as run:
        status, err = run.end(LIMIT_S)
    assert status == 0, err
    assert run.recorded() == expected_records(config)
    return err


def on_gpus(n: int, *, transport: str = "peer", queues: int = 2, **keys: Any) -> Config:
    stream = {"transport": transport, "queues": queues, "device_ring_mib": 8}
    if transport == "peer":
        keys["generator"] = CUDA
    return config_of("random", n, stream=stream, receiver=CUDA, **keys)


@pytest.mark.parametrize(("ranks", "n"), [(2, 1000), (2, 33_001), (3, 4097)])
def test_generators_on_the_same_gpu(ranks: int, n: int, tmp_path: Path) -> None:
    err = run_ranks(ranks, on_gpus(n, replicas=8, updates=6), tmp_path)
    assert "on GPU 0" in err


def test_generators_on_the_cpu_beside_them(tmp_path: Path) -> None:
    run_ranks(2, on_gpus(4097, transport="shm", updates=6), tmp_path)


def test_a_rank_that_generates_for_both(tmp_path: Path) -> None:
    run_ranks(3, on_gpus(4097, transport="tcp", updates=4), tmp_path, "generators=1")


def test_a_field_and_checkpoints(tmp_path: Path) -> None:
    field = np.random.default_rng(1).integers(-(2**31), 2**31, 1000).astype(np.int32)
    np.save(tmp_path / "h.npy", field)
    problem = {"field": str(tmp_path / "h.npy")}
    config = on_gpus(1000, updates=8, problem=problem, checkpoint={"every": 2})
    with started_run(tmp_path, config, launcher=[MPIEXEC, "-n", "2"]) as run:
        status, err = run.end(LIMIT_S)
    assert status == 0, err
    assert run.recorded() == expected_records(config, field)


def test_more_receivers_than_groups_of_rows(tmp_path: Path) -> None:
    assert "idle, as n = 65 has 2 groups" in run_ranks(3, on_gpus(65, queues=4, updates=6), tmp_path)


@pytest.mark.multi_gpu
def test_a_gpu_for_each_rank(tmp_path: Path) -> None:
    err = run_ranks(2, on_gpus(33_001, replicas=8, updates=6), tmp_path)
    assert "on GPU 0, " in err
    assert "on GPU 1, " in err
