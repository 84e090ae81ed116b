"""What a check costs is measured on frames that it accepts."""

import pytest

from validation import bench_check
from validation.bench_check import Cost, cost_of_check, cost_of_window


@pytest.mark.parametrize("measure", [cost_of_check, cost_of_window])
def test_all_frames_are_accepted(measure: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_check, "_PAIRS", 2)
    monkeypatch.setattr(bench_check, "_BURSTS", 5)
    assert callable(measure)
    cost = measure(3)
    assert min(cost.with_check_s, cost.without_s) > 0


def test_the_share_is_of_the_time_of_a_frame() -> None:
    assert Cost(0.0, 0.0, 2e-9).share(4032 / 100e-9) == pytest.approx(0.02)
