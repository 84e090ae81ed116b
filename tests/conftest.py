"""Tests that need devices are skipped, saying why, where there are none; some tests never run at once."""

import importlib.util
from functools import cache

import pytest

from streamdsb.cuda import device_count
from streamdsb.errors import UserError
from tests.harness import MPIEXEC


@cache
def _devices() -> tuple[int, str]:
    try:
        return device_count(), ""
    except UserError as error:
        return 0, f" ({error})"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several workers, one runs all that share a GPU, spin in MPI, or wait for processes to end."""
    for item in items:
        if any(item.get_closest_marker(name) for name in ("gpu", "mpi", "processes")):
            item.add_marker(pytest.mark.xdist_group("one at a time"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("mpi") and not (MPIEXEC.exists() and importlib.util.find_spec("mpi4py")):
        pytest.skip(f"needs mpi4py and {MPIEXEC}: python -m pip install mpi4py mpich")
    for marker, needed in (("gpu", 1), ("multi_gpu", 2)):
        if item.get_closest_marker(marker):
            found, why = _devices()
            if found < needed:
                pytest.skip(f"needs {needed} CUDA device{'s'[: needed - 1]}; {found} found{why}")
