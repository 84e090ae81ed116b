"""What goes wrong for real: killed processes, signals, full disks, lost and repeated frames."""

import errno
import os
import random
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

import generator.main
from streamdsb.config import Config
from streamdsb.errors import RunFailed, UserError
from streamdsb.frame import headers_of
from streamdsb.queues import FrameSender
from streamdsb.queues.base import Capabilities
from tests.harness import (
    config_of,
    expected_records,
    run_command,
    run_in_threads,
    sentence_of,
    start_command,
    written_config,
)

HANG_S = 10.0
"""Processes end within 5 s of a fault; only twice that is called a hang, as machines may be busy."""

LONG_RUN = config_of(n=5000, replicas=2, updates=500)
MARK = "STREAMDSB_TEST_MARK"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The records of LONG_RUN when nothing happens to it."""
    return run_in_threads(LONG_RUN, tmp_path_factory.mktemp("uninterrupted") / "run")


@dataclass
class Started:
    """A run of LONG_RUN as processes."""

    command: subprocess.Popen[str]
    out: Path
    mark: str

    def processes(self) -> list[psutil.Process]:
        """Everything that is alive and was started for this run."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def of_role(self, role: str) -> psutil.Process:
        """The process of `role`, once it has been started."""
        if role == "coordinator":
            return psutil.Process(self.command.pid)
        found: list[psutil.Process] = []

        def has_started() -> bool:
            for process in psutil.Process(self.command.pid).children():
                try:
                    if process.cmdline()[2:4] == ["-m", role]:
                        found.append(process)
                except (psutil.Error, IndexError):
                    continue
            return bool(found)

        wait_until(has_started)
        return found[0]

    def recorded(self) -> str:
        path = self.out / "records.jsonl"
        return path.read_text() if path.exists() else ""

    def passes(self) -> int:
        return self.recorded().count("\n")

    def wait_for_passes(self, count: int) -> None:
        wait_until(lambda: self.passes() >= count or self.command.poll() is not None)

    def end(self) -> tuple[int, str]:
        """The exit status and standard error of the command, which has to end soon, as does all else."""
        try:
            _, err = self.command.communicate(timeout=HANG_S)
        finally:
            self.command.kill()
        wait_until(lambda: not self.processes(), HANG_S)
        return self.command.returncode, err


def wait_until(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "hangs"
        time.sleep(0.005)


@pytest.fixture
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Started]:
    """A run that has just been started, over the transport that the test names, and is gone afterwards."""
    transport = getattr(request, "param", "shm")
    mark, out = uuid.uuid4().hex, tmp_path / "run"
    command = start_command(
        "run",
        written_config(tmp_path, LONG_RUN),
        "--set",
        f"stream.transport={transport}",
        "--out",
        out,
        environment={MARK: mark},
    )
    run = Started(command, out, mark)
    try:
        yield run
    finally:
        left = run.processes()
        for process in left:
            process.kill()
    assert not left, "processes were left behind"


def assert_whole_prefix(text: str, uninterrupted: str) -> None:
    assert not text or text.endswith("\n")
    assert uninterrupted.startswith(text)


def wait_for_phase(run: Started, role: str, phase: str, rng: random.Random) -> psutil.Process:
    """The process of `role` at a random moment of a phase of the run."""
    process = run.of_role(role)
    if phase == "start":
        time.sleep(rng.uniform(0, 1))
    elif phase == "middle":
        run.wait_for_passes(rng.randrange(1, LONG_RUN.solver.updates // 2))
    else:
        run.wait_for_passes(LONG_RUN.solver.updates - rng.randrange(10))
    return process


def kill(run: Started, process: psutil.Process) -> bool:
    """Kill `process`; whether the run still had passes before it, so that its death has to be noticed."""
    try:
        process.suspend()  # the passes stand still while they are counted
        is_missed = run.passes() <= LONG_RUN.solver.updates
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return is_missed


# --- killed processes -----------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["start", "middle", "end"])
@pytest.mark.parametrize("role", ["generator", "receiver"])
@pytest.mark.parametrize("started", ["shm", "tcp"], indirect=True)
def test_a_killed_worker(started: Started, role: str, phase: str, uninterrupted: str) -> None:
    process = wait_for_phase(started, role, phase, random.Random(f"{role} {phase}"))
    is_missed = kill(started, process)
    assert is_missed or phase == "end", "the run was over before the kill"
    status, err = started.end()
    assert_whole_prefix(started.recorded(), uninterrupted)
    if is_missed or status:
        assert status == 1
        assert f"the {role}" in sentence_of(err)
        assert "signal 9 (SIGKILL)" in sentence_of(err)
    else:  # the last words were said before the signal came
        assert started.recorded() == uninterrupted


@pytest.mark.parametrize("phase", ["start", "middle", "end"])
@pytest.mark.parametrize("started", ["shm", "tcp"], indirect=True)
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


def test_ctrl_c_in_a_terminal_reaches_all_three(tmp_path: Path, uninterrupted: str) -> None:
    command = subprocess.Popen(
        [*start_arguments(tmp_path)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    run = Started(command, tmp_path / "run", "")
    run.wait_for_passes(2)
    children = psutil.Process(command.pid).children()
    os.killpg(command.pid, signal.SIGINT)
    _, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 130
    assert "stopped by SIGINT" in sentence_of(err)
    assert "Traceback" not in err
    assert not psutil.wait_procs(children, HANG_S)[1]
    assert_whole_prefix(run.recorded(), uninterrupted)


def start_arguments(folder: Path) -> list[str]:
    from tests.harness import COMMAND

    return [*COMMAND, "run", str(written_config(folder, LONG_RUN)), "--out", str(folder / "run")]


# --- disks, directories and ports -----------------------------------------------------------------


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(tiny_disk: Path, tmp_path: Path, uninterrupted: str) -> None:
    out = tiny_disk / "run"
    status, _, err = run_command("run", written_config(tmp_path, LONG_RUN), "--out", out)
    assert status == 2, err
    assert os.strerror(errno.ENOSPC).lower() in sentence_of(err).lower()
    assert "Traceback" not in err
    for name in ("records.jsonl", "timings.jsonl"):
        text = (out / name).read_text()
        assert text.endswith("\n")
    assert_whole_prefix((out / "records.jsonl").read_text(), uninterrupted)
    assert not [path.name for path in out.iterdir() if "partial" in path.name]


def test_an_existing_run_is_never_overwritten_silently(tmp_path: Path) -> None:
    config = config_of(n=100)
    path, out = written_config(tmp_path, config), tmp_path / "run"
    assert run_command("run", path, "--out", out)[0] == 0
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    status, _, err = run_command("run", path, "--out", out, "--set", "problem.seed=1")
    assert status == 2
    assert "--overwrite" in sentence_of(err)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    status, _, err = run_command("run", path, "--out", out, "--set", "problem.seed=1", "--overwrite")
    assert status == 0, err
    assert (out / "records.jsonl").read_bytes() != before["records.jsonl"]


def test_overwriting_spares_what_is_not_a_run(tmp_path: Path) -> None:
    path, out = written_config(tmp_path, config_of(n=100)), tmp_path / "run"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    status, _, err = run_command("run", path, "--out", out, "--overwrite")
    assert status == 2
    assert "thesis.tex" in sentence_of(err)
    assert (out / "thesis.tex").read_text() == "years of work"


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


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        path = written_config(tmp_path, config_of(n=100, stream={"transport": "tcp"}))
        status, _, err = run_command(
            "coordinate", path, "--listen", f"127.0.0.1:{port}", "--out", tmp_path / "run"
        )
    assert status == 2
    assert f"127.0.0.1:{port}" in sentence_of(err)
    assert not (tmp_path / "run").exists()


# --- couplings and fields that are refused --------------------------------------------------------


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


# --- frames that get lost, come twice or do not belong --------------------------------------------


class TamperedSender:
    """A sender whose frames are changed on their way into the queue."""

    def __init__(self, inner: FrameSender, change: Callable[[np.ndarray], np.ndarray]) -> None:
        self._inner = inner
        self._change = change
        self._room = np.zeros((0, 512), np.uint64)
        self.capabilities: Capabilities = inner.capabilities

    def acquire(self) -> np.ndarray | None:
        frames = self._inner.acquire()
        if frames is None:
            return None
        self._room = frames
        return frames[: len(frames) // 2]

    def commit(self, count: int) -> None:
        changed = self._change(self._room[:count].copy())
        self._room[: len(changed)] = changed
        if len(changed):
            self._inner.commit(len(changed))

    def arm(self) -> bool:
        return self._inner.arm()

    def disarm(self) -> None:
        self._inner.disarm()

    def fileno(self) -> int:
        return self._inner.fileno()

    @property
    def poll_events(self) -> int:
        return self._inner.poll_events

    def close(self) -> None:
        self._inner.close()


def tampered(monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Let the next run's frames be changed by `change`, burst by burst."""
    for name in ("shm_senders", "connect_senders"):
        original = getattr(generator.main, name)
        monkeypatch.setattr(
            generator.main,
            name,
            lambda *arguments, original=original: [
                TamperedSender(sender, change) for sender in original(*arguments)
            ],
        )


def is_tile(frames: np.ndarray) -> np.ndarray:
    return headers_of(frames)["type"] == 1


TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])


def small_run(transport: str) -> Config:
    return config_of(n=500, updates=4, stream={"transport": transport, "queues": 2, "burst_frames": 64})


@TRANSPORTS
def test_frames_that_come_twice_are_added_once(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tampered(monkeypatch, lambda frames: np.concatenate([frames[is_tile(frames)], frames]))
    config = small_run(transport)
    assert run_in_threads(config, tmp_path / "run") == expected_records(config)
    timings = (tmp_path / "run" / "timings.jsonl").read_text().splitlines()
    assert all('"duplicated":500' in line for line in timings)


@TRANSPORTS
@pytest.mark.parametrize("field", ["run", "pass", "queue", "row", "version"])
def test_frames_that_do_not_belong_are_not_added(
    field: str, transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_strangers(frames: np.ndarray) -> np.ndarray:
        strangers = frames[is_tile(frames)].copy()
        headers_of(strangers)[field] += 1
        strangers[:, 8:] = ~strangers[:, 8:]
        return np.concatenate([strangers, frames])

    tampered(monkeypatch, with_strangers)
    config = small_run(transport)
    assert run_in_threads(config, tmp_path / "run") == expected_records(config)
    timings = (tmp_path / "run" / "timings.jsonl").read_text().splitlines()
    assert all('"rejected":500' in line for line in timings)


@TRANSPORTS
def test_a_gap_ends_the_run_with_its_name(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_some(frames: np.ndarray) -> np.ndarray:
        headers = headers_of(frames)
        lost = (headers["pass"] == 2) & (headers["row"] >= 300) & (headers["row"] < 310) & is_tile(frames)
        return frames[~lost]

    tampered(monkeypatch, without_some)
    config = small_run(transport)
    with pytest.raises(RunFailed, match=r"pass 2, queue 1: 234 of 244 frames were added.*10 missing"):
        run_in_threads(config, tmp_path / "run")
    whole = "".join(line + "\n" for line in expected_records(config).splitlines()[:2])
    assert (tmp_path / "run" / "records.jsonl").read_text() == whole


@TRANSPORTS
def test_reordered_frames_end_the_run(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tampered(monkeypatch, lambda frames: frames[::-1])
    with pytest.raises(RunFailed, match=r"pass 0, queue \d: .* missing, .* duplicate"):
        run_in_threads(small_run(transport), tmp_path / "run")
    assert not (tmp_path / "run").exists(), "a run without a pass leaves nothing"


@TRANSPORTS
def test_a_queue_that_falls_silent_is_named(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_the_end(frames: np.ndarray) -> np.ndarray:
        return frames[is_tile(frames) | (headers_of(frames)["queue"] == 0)]

    tampered(monkeypatch, without_the_end)
    stream = {"transport": transport, "queues": 2, "burst_frames": 64, "timeout_s": 1}
    with pytest.raises(RunFailed, match=r"queue 1: no frame came for 1 s \(stream.timeout_s\)"):
        run_in_threads(config_of(n=500, stream=stream), tmp_path / "run")
