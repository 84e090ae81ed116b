"""Recovery while running: processes that die are started again and the records are the same bytes."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness import Started, config_of, run_in_threads, sentence_of, started_run

pytestmark = pytest.mark.processes

RUN = config_of(n=5000, replicas=2, updates=200)
END_S = 60.0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The records of RUN when nothing happens to it."""
    return run_in_threads(RUN, tmp_path_factory.mktemp("uninterrupted") / "run")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Start RUN with these settings; whatever it started is gone afterwards."""
    with ExitStack() as runs:
        yield lambda *settings: runs.enter_context(started_run(tmp_path, RUN, *settings))


def kill(run: Started, role: str, passes: int) -> None:
    """Kill the process of `role` in the middle of a run that has recorded some more passes by then."""
    run.wait_for_passes(passes)
    assert run.kill(run.of_role(role), RUN.solver.updates), "the run was over before the kill"


def restarted(run: Started) -> list[int]:
    lines = (run.out / "timings.jsonl").read_text().splitlines()
    return [timing["restarted"] for timing in map(json.loads, lines)]


@pytest.mark.parametrize("transport", ["shm", "udp"])
def test_a_generator_that_dies_costs_one_pass(
    start: Callable[..., Started], transport: str, uninterrupted: str
) -> None:
    run = start("recovery.restarts=2", f"stream.transport={transport}", "checkpoint.every=null")
    kill(run, "generator", 20)
    before = run.passes()
    _, err = run.command.communicate(timeout=END_S)
    assert run.command.returncode == 0, err
    assert "the generator" in err
    assert "starting again, 1 of 2 times" in err
    assert run.recorded() == uninterrupted
    assert sum(restarted(run)) == 1
    assert restarted(run).index(1) >= before - 1


@pytest.mark.parametrize(("every", "passes"), [("10", 35), ("null", 5)])
def test_a_receiver_that_dies_goes_on_from_the_last_checkpoint(
    start: Callable[..., Started], every: str, passes: int, uninterrupted: str
) -> None:
    run = start("recovery.restarts=2", f"checkpoint.every={every}")
    kill(run, "receiver", passes)
    _, err = run.command.communicate(timeout=END_S)
    assert run.command.returncode == 0, err
    assert ("continuing with pass" in err) == (every != "null")
    assert run.recorded() == uninterrupted
    assert sum(restarted(run)) <= 1  # the pass may have been recorded again since


def test_both_die_in_turn(start: Callable[..., Started], uninterrupted: str) -> None:
    run = start("recovery.restarts=2", "checkpoint.every=10")
    kill(run, "generator", 5)
    kill(run, "receiver", 60)
    _, err = run.command.communicate(timeout=END_S)
    assert run.command.returncode == 0, err
    assert "starting again, 2 of 2 times" in err
    assert run.recorded() == uninterrupted


def test_a_death_too_many_ends_the_run(start: Callable[..., Started], uninterrupted: str) -> None:
    run = start("recovery.restarts=1", "checkpoint.every=10")
    kill(run, "generator", 5)
    kill(run, "generator", 60)
    status, err = run.end()
    assert status == 1
    assert "signal 9 (SIGKILL)" in sentence_of(err)
    assert uninterrupted.startswith(run.recorded())
    assert "streamdsb run --resume" in err
