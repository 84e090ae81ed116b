"""The long run at its shortest."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from validation import long_run

pytestmark = pytest.mark.processes


def test_frames_and_memory_are_told(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    result = CliRunner().invoke(long_run.main, ["--n", "3000", "--passes", "300", "--out", str(out)])
    assert out.exists(), result.output
    figures = json.loads(out.read_text())
    assert figures["frames"] == 300 * 3000
    for moment in ("memory_at_pass_2", "memory_at_the_end"):
        assert set(figures[moment]) == {"coordinator", "generator", "receiver"}
        assert min(figures[moment].values()) > 1 << 20
    assert 2 <= figures["samples"][0]["passes"] <= figures["passes_at_the_end"] < 300


def test_a_process_that_grows_fails_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_run, "_FLAT", -(1 << 40))
    result = CliRunner().invoke(long_run.main, ["--n", "3000", "--passes", "300"])
    assert result.exit_code == 1
    assert "grew by more than" in result.output
