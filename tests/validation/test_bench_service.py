"""The service's benchmark at its smallest: every part that needs no GPU runs and finds nothing wrong."""

from pathlib import Path

import numpy as np
import pytest

from streamdsb import native
from streamdsb.service.client import Client
from streamdsb.service.models import Format, unpack
from validation import bench_service, bench_service_network, bench_service_solve, published_solves
from validation.bench_service_requests import instance, table


def test_the_table_has_the_configurations_that_fit() -> None:
    configurations = list(table())
    assert len(configurations) == 3 * 4 * (3 + 3 + 2 + 2 + 2)
    assert (Format.INT8, 128, 32, 400) in configurations
    assert (Format.PM1, 192, 32, 50) not in configurations


def test_published_times() -> None:
    assert published_solves.microseconds(Format.INT8, 128, 8, 100) == 151.7
    assert published_solves.microseconds(Format.PM1, 64, 1, 50) == 31.3
    assert published_solves.microseconds(Format.INT8, 512, 8, 100) is None


def test_numpy_loop_finds_a_planted_ground_state() -> None:
    couplings = np.ones((20, 20), np.int8) - np.eye(20, dtype=np.int8)
    assert bench_service_solve.numpy_loop(couplings, np.zeros(20), 4, 50, np.float32(0.1)) == -20 * 19


def test_a_run_over_the_network(tmp_path: Path) -> None:
    if not native.AVAILABLE:
        pytest.skip("the server needs Linux")
    model = instance(Format.TERNARY, 40)
    assert set(np.unique(unpack(model))) == {-1, 0, 1}
    with bench_service_network.server_process("workers=1") as address, Client(address) as client:
        loaded = client.load(model)
        for window, rate in ((4, None), (None, 2000.0)):
            run = bench_service_network.measure_loop(
                [client], model, loaded, 300, window=window, rate=rate, replicas=2, updates=10, spin=False
            )
            assert (run["lost"], run["refused"], run["mismatches"]) == (0, 0, 0)
            assert (run["energies_checked"], run["solves_checked"]) == (300, 100)
        networks = {"cpu": {"runs": [run, {**run, "outstanding": 4}]}}
    bench_service.plot(networks, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
