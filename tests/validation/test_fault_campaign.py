"""The fault campaign at its smallest."""

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from validation import fault_campaign
from validation.fault_campaign import Way

pytestmark = pytest.mark.processes


def test_a_run_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_campaign, "KILLS_PER_RUN", 1)
    out = tmp_path / "figures.json"
    options = ["--runs", "1", "--n", "300", "--updates", "100", "--out", str(out)]
    result = CliRunner().invoke(fault_campaign.main, options)
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())
    totals, (course,) = figures["totals"], figures["courses"]
    assert totals["kills_survived"] == len(course["kills"]) == 1
    assert totals["resumes"] + totals["recoveries"] + totals["begun_again"] > 0
    assert totals["records_compared"] == 101
    assert totals["frames"] == 101 * 300


@pytest.mark.parametrize("way", [Way("udp", loses=True), Way("udp", receivers=2, generators=1, loses=True)])
def test_a_run_on_an_impaired_link_that_may_be_killed(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way.ranks > 1 and not fault_campaign.MPIEXEC:
        pytest.skip("needs mpiexec")
    monkeypatch.setattr(fault_campaign, "KILLS_PER_RUN", 1)
    monkeypatch.setattr(fault_campaign, "WAYS", (way,))
    out = tmp_path / "figures.json"
    options = ["--runs", "1", "--n", "300", "--updates", "100", "--out", str(out)]
    result = CliRunner().invoke(fault_campaign.main, options)
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())
    assert {kill["way"] for kill in figures["courses"][0]["kills"]} <= {str(way)}  # it may be over before one
    assert figures["totals"]["resent"] > 0
    assert figures["totals"]["frames"] == 101 * 300


def test_records_that_differ_are_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disturb(path: Path, out: Path, passes: int, rng: random.Random) -> fault_campaign.Course:
        out.mkdir()
        (out / "records.jsonl").write_text("{}\n" * passes)
        return fault_campaign.Course()

    monkeypatch.setattr(fault_campaign, "_disturb", disturb)
    result = CliRunner().invoke(fault_campaign.main, ["--runs", "1", "--n", "300", "--updates", "2"])
    assert "its records differ" in str(result.exception)
