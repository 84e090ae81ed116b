"""What the scaling benchmark gives to the model, and how cores that are shared lower it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator.scaling import scaling_lines
from streamdsb.cli import main
from streamdsb.layout import Layout
from validation.bench_scaling import _Terms

ALONE = {"payload_bytes": 8e9, "receive_s": 1.0, "update_s": 0.5}
ONE_CORE = {"payload_bytes": 8e9, "receive_s": 1.6, "update_s": 0.5}
TERMS = _Terms.of(1_000_000, 8, ALONE, ONE_CORE, 1e-4, 1e-4 + 2e-3)


def test_terms() -> None:
    assert (TERMS.alone_rate, TERMS.one_core_rate, TERMS.update_rate) == (8e9, 5e9, 16e6)
    assert TERMS.latency_s == 1e-4
    assert TERMS.bandwidth == pytest.approx(2.5e9)  # half of the 10 MB in 2 ms


@pytest.mark.parametrize(
    ("receivers", "cores", "rate"), [(1, 2, 8e9), (2, 2, 5e9), (4, 2, 2.5e9), (2, 8, 8e9)]
)
def test_receivers_share_cores(receivers: int, cores: int, rate: float) -> None:
    assert TERMS.network(receivers, cores).receiver_rate == rate


def test_terms_as_plan_takes_them() -> None:
    config = str(Path(__file__).parents[2] / "configs" / "quickstart.yaml")
    assert TERMS.options == "--rate 64 --latency-us 100 --bandwidth 20 --update-rate 1.6e+07"
    result = CliRunner().invoke(main, ["plan", config, "--receivers", "1,2", *TERMS.options.split()])
    assert result.exit_code == 0, result.output
    network = TERMS.network(2, 4)
    assert result.output.splitlines()[-4:] == scaling_lines(Layout(100_000, 8, 1), [1, 2], network)
