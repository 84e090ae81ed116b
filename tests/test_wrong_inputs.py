"""Inputs that turn out to be wrong in the middle of a run: one sentence, and nothing left behind."""

from pathlib import Path

import numpy as np
import pytest

from tests.harness import config_of, run_command, sentence_of, written_config


def refused(config: Path, out: Path) -> str:
    """The sentence in which the command refuses to run `config`."""
    status, _, err = run_command("run", config, "--out", out)
    assert status == 2, err
    assert "Traceback" not in err
    assert "passes are recorded" not in err
    return sentence_of(err)


def test_couplings_that_are_refused_do_not_block_the_retry(tmp_path: Path) -> None:
    couplings = np.ones((100, 100), np.int8)
    couplings[70, 3] = -1
    np.save(tmp_path / "J.npy", couplings)
    config = written_config(tmp_path, config_of("file", 100, problem={"path": str(tmp_path / "J.npy")}))
    assert "J[3, 70] is +1, but J[70, 3] is -1" in refused(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    np.save(tmp_path / "J.npy", np.ones((100, 100), np.int8))
    status, _, err = run_command("run", config, "--out", tmp_path / "run")
    assert status == 0, err


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (np.ones(100), "float64 (100,), but one dimension of n integers"),
        (np.ones((10, 10), int), "int64 (10, 10), but one dimension of n integers"),
        (np.full(100, 2**31), "h[0] is 2147483648, but it should be from -2147483648 to 2147483647"),
        (np.ones(99, int), "problem.field has shape (99,), but n is 100"),
    ],
    ids=["floats", "matrix", "too large", "too few"],
)
def test_fields(field: np.ndarray, words: str, tmp_path: Path) -> None:
    np.save(tmp_path / "h.npy", field)
    config = config_of(n=100, problem={"field": str(tmp_path / "h.npy")})
    assert words in refused(written_config(tmp_path, config), tmp_path / "run")
    assert not (tmp_path / "run").exists()
