"""An interrupted run goes on and records the same bytes as if nothing had happened."""

import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
import xxhash

from streamdsb.checkpoint import find_checkpoints, load
from streamdsb.run_directory import BEST_SPINS, FINAL_SPINS, RECORDS
from tests.harness import (
    END_S,
    config_of,
    expected_records,
    run_command,
    sentence_of,
    start_command,
    written_config,
)

pytestmark = pytest.mark.processes

LONG_RUN = config_of(n=2000, replicas=3, updates=300, checkpoint={"every": 20})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of LONG_RUN when nothing happens to it."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    status, _, err = run_command("run", written_config(folder, LONG_RUN), "--out", folder / "run")
    assert status == 0, err
    return folder / "run"


def options_of(settings: Sequence[str]) -> list[str]:
    return [option for setting in settings for option in ("--set", setting)]


def interrupt(
    folder: Path, number: signal.Signals, after_checkpoints: int, settings: Sequence[str] = ()
) -> tuple[Path, str]:
    """A run of LONG_RUN ended by a signal some time after so many checkpoints; its standard error."""
    out, path = folder / "run", written_config(folder, LONG_RUN)
    command = start_command("run", path, "--out", out, *options_of(settings))
    deadline = time.monotonic() + 60
    newest = 20 * after_checkpoints
    while not any(load_pass(path) >= newest for path in find_checkpoints(out)):
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process = psutil.Process(command.pid)
    process.suspend()  # the passes stand still while they are counted
    assert (out / RECORDS).read_text().count("\n") <= LONG_RUN.solver.updates, "it was over before the signal"
    command.send_signal(number)
    process.resume()
    _, err = command.communicate(timeout=END_S)
    assert command.returncode != 0
    return out, err


def load_pass(path: Path) -> int:
    return int(path.stem.removeprefix("pass-"))


def test_records_are_those_of_the_oracle(uninterrupted: Path) -> None:
    assert (uninterrupted / RECORDS).read_text() == expected_records(LONG_RUN)


@pytest.mark.parametrize(
    ("number", "settings"),
    [
        (signal.SIGKILL, ()),
        (signal.SIGKILL, ("stream.transport=tcp", "stream.queues=3", "stream.burst_frames=7")),
        (signal.SIGINT, ()),
        (signal.SIGTERM, ("receiver.threads=2", "checkpoint.every=null")),
    ],
)
def test_a_resumed_run_ends_with_the_same_bytes(
    uninterrupted: Path, tmp_path: Path, number: signal.Signals, settings: tuple[str, ...]
) -> None:
    out, err = interrupt(tmp_path, number, random.Random(str(settings)).randint(1, 4))
    if number is not signal.SIGKILL:
        assert f"go on with: streamdsb run --resume {out}" in err
        # the state that entered the dropped pass is on disk: nothing that counted is lost
        assert load_pass(find_checkpoints(out)[0]) == len((out / RECORDS).read_text().splitlines()), err
    finish(out, settings, uninterrupted)


def finish(out: Path, settings: Sequence[str], uninterrupted: Path) -> None:
    """Resume the run in `out`: it ends as if nothing had happened."""
    status, _, err = run_command("run", "--resume", out, *options_of(settings))
    assert status == 0, err
    assert "continuing with pass" in err
    for name in (RECORDS, BEST_SPINS, FINAL_SPINS):
        assert (out / name).read_bytes() == (uninterrupted / name).read_bytes(), name
    assert find_checkpoints(out) == []


ON_CPU = ("stream.transport=shm", "generator.backend=cpu", "receiver.backend=cpu")
HALF_ON_GPU = ("stream.transport=tcp", "generator.backend=cpu", "receiver.backend=cuda")
ON_GPU = ("stream.transport=peer", "generator.backend=cuda", "receiver.backend=cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("before", "after"), [(ON_CPU, HALF_ON_GPU), (ON_CPU, ON_GPU), (HALF_ON_GPU, ON_CPU), (ON_GPU, ON_CPU)]
)
def test_a_run_goes_on_on_another_backend(
    uninterrupted: Path, tmp_path: Path, before: Sequence[str], after: Sequence[str]
) -> None:
    out, _ = interrupt(tmp_path, signal.SIGKILL, 1, before)
    finish(out, after, uninterrupted)


def test_a_damaged_checkpoint_costs_the_passes_since_the_one_before(
    uninterrupted: Path, tmp_path: Path
) -> None:
    out, _ = interrupt(tmp_path, signal.SIGKILL, 3)
    newest, before = find_checkpoints(out)
    newest.write_bytes(newest.read_bytes()[:-1])
    status, _, err = run_command("run", "--resume", out)
    assert status == 0, err
    assert f"continuing with pass {load_pass(before)} from a checkpoint" in err
    assert (out / RECORDS).read_bytes() == (uninterrupted / RECORDS).read_bytes()


def test_what_a_resumed_run_refuses(tmp_path: Path) -> None:
    out, _ = interrupt(tmp_path, signal.SIGKILL, 2)
    records = (out / RECORDS).read_bytes()
    for setting, key in (("solver.dt=1.0", "solver.dt"), ("problem.seed=7", "problem.seed")):
        status, _, err = run_command("run", "--resume", out, "--set", setting)
        assert status == 2
        assert f"{key} is" in sentence_of(err)
    for path in find_checkpoints(out):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    status, _, err = run_command("run", "--resume", out)
    assert status == 2
    assert "no usable checkpoint" in sentence_of(err)
    assert (out / RECORDS).read_bytes() == records


def test_other_couplings_are_refused(tmp_path: Path) -> None:
    """A file that has changed since the run began."""
    n = 1500
    numbers = np.random.default_rng(1)
    upper = np.triu(numbers.choice(np.array([-1, 1], np.int8), (n, n)), 1)
    np.save(tmp_path / "J.npy", upper + upper.T)
    config = config_of(
        "file", n, updates=300, problem={"path": str(tmp_path / "J.npy")}, checkpoint={"every": 5}
    )
    out = tmp_path / "run"
    command = start_command("run", written_config(tmp_path, config), "--out", out)
    deadline = time.monotonic() + 60
    while not find_checkpoints(out):
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    command.kill()
    command.communicate(timeout=END_S)
    upper[3, 5] *= -1
    np.save(tmp_path / "J.npy", upper + upper.T)
    status, _, err = run_command("run", "--resume", out)
    assert status == 2
    assert "not those the run began with" in sentence_of(err)


def test_a_run_that_is_complete_has_nothing_to_resume(uninterrupted: Path) -> None:
    status, _, err = run_command("run", "--resume", uninterrupted)
    assert status == 2
    assert "complete" in sentence_of(err)


def test_a_checkpoint_holds_the_state_between_two_passes(tmp_path: Path) -> None:
    out, _ = interrupt(tmp_path, signal.SIGINT, 1)
    checkpoint = load(find_checkpoints(out)[0])
    signs = np.packbits(checkpoint.positions > 0, axis=1, bitorder="little")
    padded = np.zeros((3, 8 * -(-2000 // 64)), np.uint8)
    padded[:, : signs.shape[1]] = signs
    last = (out / RECORDS).read_text().splitlines()[checkpoint.header.next_pass - 1]
    assert xxhash.xxh64_hexdigest(padded.tobytes()) in last
