"""Whole runs for tests: as threads of this process, where its boundary is not the point, or as the command.

Either way everything is real: the queues and their handshakes, the control connections, both engines and the
coordinator's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import generator.main
import receiver.main
from coordinator.engine import CoordinatorEngine, welcome
from coordinator.peers import Peer, Peers
from coordinator.progress import SilentDisplay
from streamdsb.channel import Channel
from streamdsb.config import Config, make_config
from streamdsb.join import Origin
from streamdsb.messages import Hello
from streamdsb.queues.shm import ShmLink
from streamdsb.run_directory import RECORDS, RunDirectory
from streamdsb.worker import run_worker
from tests.impaired_link import ImpairedLink
from validation import oracle

RUN_ID = 0x1234_5678
HANG_S = 60.0
END_S = 20.0
"""Processes end within 5 s of a fault; only four times that is called a hang, as machines may be busy."""

COMMAND = [str(Path(sys.executable).with_name("streamdsb"))]
"""The command line as it is installed beside this Python."""

_MARK = "STREAMDSB_TEST_MARK"
"""In the environment of all processes of a run that is started."""

MPIEXEC = Path(sys.executable).with_name("mpiexec")
"""Starts ranks; `mpich` from PyPI installs it beside this Python."""


def config_of(
    source: str = "random",
    n: int = 100,
    *,
    replicas: int = 3,
    updates: int = 2,
    seed: int = 42,
    **sections: Any,
) -> Config:
    """A configuration whose problem and solver seeds are equal; `sections` such as stream={"queues": 2}."""
    problem = {"source": source, "n": n, "seed": seed} | sections.pop("problem", {})
    solver = {"replicas": replicas, "updates": updates, "seed": seed} | sections.pop("solver", {})
    return make_config({"problem": problem, "solver": solver, **sections})


# --- what a run should record ---------------------------------------------------------------------


@cache
def _couplings(source: str, n: int, seed: int) -> np.ndarray:
    make = {"random": oracle.random_couplings, "mattis": oracle.mattis_couplings}[source]
    return make(n, seed)


def expected_records(config: Config, field: np.ndarray | None = None) -> str:
    """The text of records.jsonl according to the oracle."""
    problem, solver = config.problem, config.solver
    records = _records(
        problem.source,
        config.n,
        problem.seed,
        solver.replicas,
        solver.updates,
        solver.seed,
        solver.dt,
        solver.xi,
        None if field is None else tuple(field.tolist()),
    )
    if config.n > 10_000:
        _couplings.cache_clear()  # a gigabyte
    return records


@cache
def _records(
    source: str,
    n: int,
    problem_seed: int,
    replicas: int,
    updates: int,
    seed: int,
    dt: float,
    xi: float | None,
    field: tuple[int, ...] | None,
) -> str:
    solution = oracle.solve(
        _couplings(source, n, problem_seed),
        replicas=replicas,
        updates=updates,
        seed=seed,
        dt=dt,
        xi=xi,
        field=None if field is None else np.array(field, np.int32),
    )
    return "".join(record + "\n" for record in solution.records)


# --- a run as threads -----------------------------------------------------------------------------


def _origins(config: Config, data_host: str) -> Iterator[tuple[str, Origin, Channel]]:
    """For each role, where it comes from and the coordinator's end of its control connection."""
    stream = config.stream
    links = (
        [ShmLink.create(stream.burst_frames, stream.ring_bursts) for _ in range(stream.queues)]
        if stream.transport == "shm"
        else []
    )
    queues = {
        "receiver": tuple((link.ring, link.receiver_bell) for link in links),
        "generator": tuple((os.dup(link.ring), link.sender_bell) for link in links),
    }
    for role in ("receiver", "generator"):
        ours, theirs = socket.socketpair()
        origin = Origin(theirs, "the coordinator", "a token", data_host, queues[role])
        yield role, origin, Channel(ours, f"the {role}")


@contextmanager
def workers(config: Config, peers: Peers, link: ImpairedLink | None = None) -> Iterator[None]:
    """A generator and a receiver as threads that have said hello to `peers`; they end with the context.

    link: what their frames cross, if they are to live on both sides of one.
    """
    work = {"receiver": receiver.main.work, "generator": generator.main.work}
    futures: list[Future[int]] = []
    with ThreadPoolExecutor(2) as pool:
        submit = {"receiver": pool.submit, "generator": pool.submit}
        if link is not None:
            submit = {"receiver": link.receiver.submit, "generator": link.sender.submit}
        data_host = "127.0.0.1" if link is None else link.receiver.address
        try:
            for role, origin, channel in _origins(config, data_host):
                futures.append(submit[role](run_worker, origin, work[role]))
                channel.set_timeout(HANG_S)
                peers.add(Peer(channel.expect(Hello)[0], channel))
            yield
        finally:
            # a worker that lost its coordinator without a Stop would end this whole process
            peers.call_off("the test is over")
            for future in futures:
                future.result(HANG_S)
            for peer in peers.members:
                peer.channel.shutdown()


@contextmanager
def prepared(
    config: Config, out: Path, field: np.ndarray | None = None, link: ImpairedLink | None = None
) -> Iterator[tuple[CoordinatorEngine, Peers, RunDirectory]]:
    """An engine before its first pass, with its workers as threads."""
    peers = Peers()
    engine = CoordinatorEngine(config, peers, SilentDisplay())
    with workers(config, peers, link):
        for peer in peers.members:
            welcome(peer.channel, config, RUN_ID)
        engine.prepare(field)
        directory = RunDirectory(out)
        try:
            yield engine, peers, directory
        finally:
            directory.close()


def run_in_threads(
    config: Config, out: Path, field: np.ndarray | None = None, link: ImpairedLink | None = None
) -> str:
    """Run in this process and return the text of records.jsonl; raises what the coordinator raises."""
    with prepared(config, out, field, link) as (engine, _, directory):
        engine.run_passes(directory)
    return (out / RECORDS).read_text()


# --- a run as processes ---------------------------------------------------------------------------


def start_command(
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    launcher: Sequence[str | Path] = (),
) -> subprocess.Popen[str]:
    """Start `streamdsb` with `arguments`, by `launcher`; its standard output and error are pipes."""
    return subprocess.Popen(
        [*map(str, launcher), *COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
    )


def run_command(
    *arguments: str | Path, environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, str, str]:
    """Run `streamdsb` to its end: exit status, standard output, standard error."""
    process = start_command(*arguments, environment=environment, cwd=cwd)
    try:
        out, err = process.communicate(timeout=HANG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def wait_until(is_so: Callable[[], bool], timeout_s: float = HANG_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "hangs"
        time.sleep(0.005)


@dataclass
class Started:
    """The processes of one `streamdsb run`, alone or as ranks of mpiexec."""

    command: subprocess.Popen[str]
    out: Path
    mark: str

    def processes(self) -> list[psutil.Process]:
        """Everything that is alive and was started for this run."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
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
        assert self.passes() >= count, self.command.communicate()

    def kill(self, process: psutil.Process, last_pass: int) -> bool:
        """Kill `process`; whether the run still had passes before it, so that its death has to be noticed."""
        try:
            process.suspend()  # the passes stand still while they are counted
            is_missed = self.passes() <= last_pass
            process.kill()
        except psutil.NoSuchProcess:
            return False
        return is_missed

    def end(self, timeout_s: float = END_S) -> tuple[int, str]:
        """The exit status and standard error of the command, which has to end soon, as does all else."""
        try:
            _, err = self.command.communicate(timeout=timeout_s)
        finally:
            self.command.kill()
        wait_until(lambda: not self.processes(), END_S)
        return self.command.returncode, err


@contextmanager
def started_run(
    folder: Path, config: Config, *settings: str, launcher: Sequence[str | Path] = ()
) -> Iterator[Started]:
    """A run of `config` with `settings` into folder/run; whatever is left of it in the end is killed."""
    mark, out = uuid.uuid4().hex, folder / "run"
    options = [word for setting in settings for word in ("--set", setting)]
    path = written_config(folder, config)
    command = start_command("run", path, *options, "--out", out, environment={_MARK: mark}, launcher=launcher)
    run = Started(command, out, mark)
    try:
        yield run
    finally:
        left = run.processes()
        for process in left:
            process.kill()
        command.communicate()
    assert not left, "processes were left behind"


def written_config(folder: Path, config: Config) -> Path:
    """The configuration as a file."""
    path = folder / "run.yaml"
    path.write_text(config.to_yaml())
    return path


def sentence_of(err: str) -> str:
    """The one line of standard error in which the command says why it failed."""
    lines: Sequence[str] = [line for line in err.splitlines() if line.startswith("streamdsb: ")]
    assert len(lines) == 1, err
    return lines[0]
