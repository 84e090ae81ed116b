"""What ends a run from outside: killed and suspended processes, signals."""

import os
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness import (
    COMMAND,
    END_S,
    HANG_S,
    Started,
    config_of,
    run_in_threads,
    sentence_of,
    started_run,
    wait_until,
    written_config,
)

pytestmark = pytest.mark.processes

LONG_RUN = config_of(n=5000, replicas=2, updates=500)
LAST_PASS = LONG_RUN.solver.updates


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The records of LONG_RUN when nothing happens to it."""
    return run_in_threads(LONG_RUN, tmp_path_factory.mktemp("uninterrupted") / "run")


@pytest.fixture
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Started]:
    """A run that has just been started, over the transport that the test names, and is gone afterwards."""
    transport = getattr(request, "param", "shm")
    with started_run(tmp_path, LONG_RUN, f"stream.transport={transport}") as run:
        yield run


def assert_whole_prefix(text: str, uninterrupted: str) -> None:
    assert not text or text.endswith("\n")
    assert uninterrupted.startswith(text)


def wait_for_phase(run: Started, role: str, phase: str, rng: random.Random) -> psutil.Process:
    """The process of `role` at a random moment of a phase of the run."""
    process = run.of_role(role)
    if phase == "start":
        moment = time.monotonic() + rng.uniform(0, 1)
        wait_until(lambda: time.monotonic() > moment or run.passes() > 0)
    elif phase == "middle":
        run.wait_for_passes(rng.randrange(1, LAST_PASS // 2))
    else:
        run.wait_for_passes(LAST_PASS - rng.randrange(10))
    return process


# --- killed processes -----------------------------------------------------------------------------


WHEN = pytest.mark.parametrize(
    ("started", "phase"),
    [("shm", "start"), ("shm", "middle"), ("shm", "end"), ("tcp", "middle")],
    indirect=["started"],
)


@WHEN
@pytest.mark.parametrize("role", ["generator", "receiver"])
def test_a_killed_worker(started: Started, role: str, phase: str, uninterrupted: str) -> None:
    process = wait_for_phase(started, role, phase, random.Random(f"{role} {phase}"))
    is_missed = started.kill(process, LAST_PASS)
    assert is_missed or phase == "end", "the run was over before the kill"
    status, err = started.end()
    assert_whole_prefix(started.recorded(), uninterrupted)
    if is_missed or status:
        assert status == 1
        assert f"the {role}" in sentence_of(err)
        assert "signal 9 (SIGKILL)" in sentence_of(err)
    else:  # the last words were said before the signal came
        assert started.recorded() == uninterrupted


@WHEN
def test_a_killed_coordinator(started: Started, phase: str, uninterrupted: str) -> None:
    wait_for_phase(started, "coordinator", phase, random.Random(f"coordinator {phase}")).kill()
    status, _ = started.end()
    assert status == -signal.SIGKILL
    assert_whole_prefix(started.recorded(), uninterrupted)


@pytest.mark.parametrize("role", ["generator", "receiver"])
def test_a_stopped_worker_does_not_hold_up_the_end(started: Started, role: str) -> None:
    """One that hears nothing, because it is suspended, is ended too."""
    started.wait_for_passes(2)
    started.of_role(role).suspend()
    started.command.send_signal(signal.SIGTERM)
    status, err = started.end()
    assert status == 130
    assert "stopped by SIGTERM" in sentence_of(err)


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["start", "middle"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(started: Started, number: signal.Signals, phase: str, uninterrupted: str) -> None:
    wait_for_phase(started, "receiver", phase, random.Random(f"{number} {phase}"))
    started.command.send_signal(number)
    status, err = started.end()
    assert status == 130
    assert f"stopped by {number.name}" in sentence_of(err)
    assert "Traceback" not in err
    assert_whole_prefix(started.recorded(), uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay_s", [0.0, 0.2, 0.6])
def test_signals_before_anything_is_started(
    started: Started, number: signal.Signals, delay_s: float, uninterrupted: str
) -> None:
    """As soon as SIGTERM is caught at all, which is before the long imports, and a little later."""
    status = Path(f"/proc/{started.command.pid}/status")
    if not status.exists():
        pytest.skip("which signals a process catches is looked up in /proc")

    def catches_term() -> bool:
        caught = status.read_text().partition("SigCgt:")[2].split()[0]
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)

    wait_until(catches_term)
    time.sleep(delay_s)
    started.command.send_signal(number)
    code, err = started.end()
    assert code == 130, err
    assert sentence_of(err)
    assert "Traceback" not in err
    assert_whole_prefix(started.recorded(), uninterrupted)


def test_ctrl_c_in_a_terminal_reaches_all_three(tmp_path: Path, uninterrupted: str) -> None:
    command = subprocess.Popen(
        [*COMMAND, "run", written_config(tmp_path, LONG_RUN), "--out", tmp_path / "run"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    run = Started(command, tmp_path / "run", "")
    run.wait_for_passes(2)
    children = psutil.Process(command.pid).children()
    os.killpg(command.pid, signal.SIGINT)
    _, err = command.communicate(timeout=END_S)
    assert command.returncode == 130
    assert "stopped by SIGINT" in sentence_of(err)
    assert "Traceback" not in err
    assert not psutil.wait_procs(children, END_S)[1]
    assert_whole_prefix(run.recorded(), uninterrupted)


@pytest.mark.parametrize("after_s", [0.0, 0.15, 0.3, 0.6])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_terminal_that_ends_a_run_while_its_processes_start(
    number: signal.Signals, after_s: float, tmp_path: Path
) -> None:
    command = subprocess.Popen(
        [*COMMAND, "run", written_config(tmp_path, LONG_RUN), "--out", tmp_path / "run"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: bool(psutil.Process(command.pid).children()))
    children = psutil.Process(command.pid).children()
    time.sleep(after_s)
    os.killpg(command.pid, number)
    _, err = command.communicate(timeout=END_S)
    assert command.returncode == 130, err
    assert f"stopped by {number.name}" in sentence_of(err)
    assert "Traceback" not in err
    assert not psutil.wait_procs(children, END_S)[1]


def test_a_signal_that_was_set_to_be_ignored_is(tmp_path: Path) -> None:
    config = config_of(n=1000, updates=3)
    command = [
        *map(str, COMMAND),
        "run",
        str(written_config(tmp_path, config)),
        "--out",
        str(tmp_path / "run"),
    ]
    deaf = subprocess.Popen(["sh", "-c", f'trap "" HUP; exec {shlex.join(command)}'], stderr=subprocess.PIPE)
    wait_until(lambda: bool(psutil.Process(deaf.pid).children()))
    deaf.send_signal(signal.SIGHUP)
    _, err = deaf.communicate(timeout=HANG_S)
    assert deaf.returncode == 0, err
