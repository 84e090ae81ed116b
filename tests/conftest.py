"""Tests that need devices are skipped, saying why, where there are none."""

from functools import cache

import pytest

from streamdsb.cuda import device_count
from streamdsb.errors import UserError


@cache
def _devices() -> tuple[int, str]:
    try:
        return device_count(), ""
    except UserError as error:
        return 0, f" ({error})"


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, needed in (("gpu", 1), ("multi_gpu", 2)):
        if item.get_closest_marker(marker):
            found, why = _devices()
            if found < needed:
                pytest.skip(f"needs {needed} CUDA device{'s'[: needed - 1]}; {found} found{why}")
