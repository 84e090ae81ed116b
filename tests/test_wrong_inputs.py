"""Inputs that turn out to be wrong in the middle of a run: one sentence, and nothing left behind."""

from pathlib import Path

import numpy as np
import pytest

from streamdsb.config import Config
from streamdsb.errors import RunFailed, UserError
from tests.harness import config_of, run_command, run_in_threads, sentence_of, written_config

DRIFTING = """
import numpy as np

class Drifting:
    n = 300
    passes = 0

    def fill(self, rows, column_block, out):
        out[:] = 0
        self.passes += rows.start == 128
        if self.passes > 2:  # J[200, 250] and J[250, 200], both on queue 1
            for i, j in ((200, 250), (250, 200)):
                if rows.start <= i < rows.stop:
                    out[i - rows.start, j // 64] |= np.uint64(1 << j % 64)
"""


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


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["problem.n=100000000", "solver.replicas=1024"],
            ["GB", "problem.n = 100000000", "solver.replicas = 1024"],
        ),
        (["problem.source=file", "problem.path=none.npy"], ["none.npy does not exist"]),
        (
            ["problem.source=python", "problem.path=nothing:Here"],
            ["problem.path nothing:Here", "ModuleNotFound"],
        ),
        (["problem.field=none.npy"], ["problem.field", "none.npy does not exist"]),
        (["solver.updates=0"], ["solver.updates", "from 1 to 2147483647"]),
    ],
)
def test_what_cannot_run_leaves_nothing_behind(settings: list[str], words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "problem: {source: mattis, n: 100}\n" if "none.npy" in settings[0] else "problem: {n: 100}\n"
    )
    options = [text for setting in settings for text in ("--set", setting)]
    status, _, err = run_command("run", path, *options, "--out", tmp_path / "run", cwd=tmp_path)
    assert status == 2, err
    assert all(word in sentence_of(err) for word in words), err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_a_missing_configuration(tmp_path: Path) -> None:
    status, _, err = run_command("run", tmp_path / "none.yaml", "--out", tmp_path / "run")
    assert status == 2
    assert "none.yaml" in sentence_of(err)
    assert not (tmp_path / "run").exists()


def _file_config(path: Path, couplings: np.ndarray, **problem: object) -> Config:
    np.save(path / "couplings.npy", couplings)
    return config_of("file", len(couplings), problem={"path": str(path / "couplings.npy"), **problem})


def test_asymmetric_couplings_end_the_run(tmp_path: Path) -> None:
    couplings = np.ones((300, 300), np.int8)
    couplings[200, 7] = -1
    with pytest.raises(UserError, match=r"J\[7, 200\] is \+1, but J\[200, 7\] is -1"):
        run_in_threads(_file_config(tmp_path, couplings), tmp_path / "run")


def test_couplings_other_than_plus_and_minus_one_end_the_run(tmp_path: Path) -> None:
    couplings = np.ones((300, 300), np.int8)
    couplings[299, 7] = 0
    with pytest.raises(UserError, match=r"J\[299, 7\] is 0"):
        run_in_threads(_file_config(tmp_path, couplings), tmp_path / "run")


def test_a_field_of_another_length(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"problem.field has shape \(99,\), but n is 100"):
        run_in_threads(config_of(n=100), tmp_path / "run", np.zeros(99, np.int32))


def test_a_source_that_drifts_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DRIFTING)
    config = config_of(
        "python",
        300,
        updates=5,
        problem={"path": f"{tmp_path}/mine.py:Drifting"},
        stream={"queues": 2, "burst_frames": 64},
    )
    with pytest.raises(
        RunFailed, match=r"mine.py:Drifting: its couplings of pass 2 on queue 1 are not those"
    ):
        run_in_threads(config, tmp_path / "run")
    assert (tmp_path / "run" / "records.jsonl").read_text().count("\n") == 2


@pytest.mark.parametrize(
    "address", ["..:7000", f"{'a' * 70}:7000", f"localhost:{'7' * 5000}", "localhost:70000", "x"]
)
@pytest.mark.parametrize("arguments", [["generate", "--connect"], ["coordinate", "run.yaml", "--listen"]])
def test_addresses_that_are_none(arguments: list[str], address: str, tmp_path: Path) -> None:
    written_config(tmp_path, config_of(n=100, stream={"transport": "tcp"}))
    status, _, err = run_command(*arguments, address, environment={"STREAMDSB_TOKEN": "x"}, cwd=tmp_path)
    assert status == 2, err
    assert "Traceback" not in err
    assert "HOST:PORT" in sentence_of(err) or "is not a host name" in sentence_of(err)
