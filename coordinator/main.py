"""Leading a run from its configuration to its directory, on this machine or over TCP."""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.admission import admit_peers
from coordinator.engine import CoordinatorEngine, welcome
from coordinator.field import load_field
from coordinator.launch import end_processes, launch
from coordinator.partition import ranks_text
from coordinator.peers import Peers, ProcessDied
from coordinator.progress import Display
from coordinator.resume import load_began
from coordinator.summary import last_words, make_summary
from streamdsb.channel import PeerGone
from streamdsb.checkpoint import find_checkpoints
from streamdsb.config import Config
from streamdsb.errors import Interrupted, StreamdsbError, UserError
from streamdsb.links import TOKEN_VARIABLE
from streamdsb.machine import peak_memory
from streamdsb.messages import Farewell, Spins, Stop
from streamdsb.run_directory import RECORDS, TIMINGS, RunDirectory, check_free, read_lines

_SPINS_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class RunResult:
    """What a completed run gives back."""

    energies: np.ndarray
    """2E of each replica in each pass, int64 (K + 1, B)."""
    spins: np.ndarray
    """The spins of the lowest energy of the run, int8 (n,) of ±1."""
    records: list[dict[str, Any]]
    """The lines of records.jsonl."""
    summary: dict[str, Any]
    directory: Path | None
    """The run directory; None if it was not kept."""


def run_here(config: Config, out: Path, overwrite: bool, display: Display) -> RunResult:
    """Run with a generator and a receiver that are started on this machine.

    Raises UserError or RunFailed; the directory then holds every pass that counted.
    """
    receivers, generators = config.receivers or 1, config.generators or 0
    if receivers + generators > 1:
        raise UserError(
            f"{ranks_text(receivers, generators)}, but this is one process; start as many with"
            f" mpiexec -n {receivers + generators} streamdsb run"
        )
    check_free(out, overwrite)
    return _lead_here(lambda: _Run(config, display, lambda: RunDirectory(out, overwrite)), out)


def resume_here(out: Path, settings: Sequence[str], display: Display) -> RunResult:
    """Go on with the interrupted run in `out` from its newest usable checkpoint.

    settings may change how it runs ("receiver.backend=cuda"), not what it solves.  Raises UserError or
    RunFailed like `run_here`.
    """
    config = load_began(out, settings)
    if not find_checkpoints(out):
        display.say(f"{out} has no checkpoint yet: beginning with pass 0")
    return _lead_here(lambda: _continue(config, out, display), out)


def _continue(config: Config, out: Path, display: Display) -> _Run:
    """A run that goes on from the newest usable checkpoint in `out`, with pass 0 if there is none."""
    run = _Run(config, display, lambda: RunDirectory.resume(out, run.engine.next_pass))
    run.checkpoints = find_checkpoints(out)
    return run


def _lead_here(begin: Callable[[], _Run], out: Path) -> RunResult:
    """Lead a run with processes of this machine; if one dies, again, as often as recovery.restarts allows."""
    run = begin()
    config, display = run.engine.config, run.display
    allowed = config.recovery.restarts
    begun_anew: Counter[int] = Counter()
    while True:
        run.engine.begun_anew = begun_anew
        run.may_restart = begun_anew.total() < allowed
        try:
            return run.lead(partial(launch, config))
        except ProcessDied as death:
            if not run.may_restart:
                raise
            begun_anew[run.engine.next_pass] += 1
            display.say(f"{death}: starting again, {begun_anew.total()} of {allowed} times")
            run = _continue(config, out, display) if run.has_directory and out.exists() else begin()


def coordinate(
    config: Config, out: Path, overwrite: bool, display: Display, host: str, port: int
) -> RunResult:
    """Run with a generator and a receiver that join over TCP with the token of the environment.

    Without a token there, a new one is made and shown.  Raises UserError or RunFailed.
    """
    if not config.stream.is_networked:
        raise UserError(
            f"stream.transport is {config.stream.transport}, for the processes of one 'streamdsb run';"
            " processes started apart need tcp, udp, ethernet or gpunetio"
        )
    if config.has_software_card:
        raise UserError(
            "generator.nic and receiver.nic are software, a card inside one process of 'streamdsb run';"
            " processes started apart need the PCI addresses of network cards, or another stream.transport:"
            " tcp, udp or ethernet"
        )
    given = os.environ.get(TOKEN_VARIABLE)
    token = given or secrets.token_hex(16)
    if not given:
        display.say(f"the others need this token: export {TOKEN_VARIABLE}={token}")
    check_free(out, overwrite)
    run = _Run(config, display, lambda: RunDirectory(out, overwrite))
    return run.lead(lambda peers: admit_peers(peers, display, host, port, token, config))


class _Run:
    """One run from its processes to its directory."""

    def __init__(self, config: Config, display: Display, open_directory: Callable[[], RunDirectory]) -> None:
        self.checkpoints: list[Path] = []
        self.display = display
        self.has_directory = False
        self.may_restart = False
        """True if a process that dies is started again."""
        self._field = None if config.problem.field is None else load_field(Path(config.problem.field))
        self._started = datetime.now(UTC)
        self._peers = Peers()
        self._open_directory = open_directory
        self.engine = CoordinatorEngine(config, self._peers, display)

    def lead(self, gather: Callable[[Peers], None]) -> RunResult:
        """Gather the processes, go through all passes, and see to it that nothing is left running."""
        cause = ""
        with _signals(self._peers):
            try:
                gather(self._peers)
                run_id = random.SystemRandom().getrandbits(32)
                self._welcome(run_id)
                self.engine.prepare(self._field, self.checkpoints)
                result = self._pass_by_pass()
            except StreamdsbError as error:
                cause = str(error)
                raise
            finally:
                self.display.close()
                self._peers.call_off(cause)
                end_processes(self._peers)
        for line in last_words(self.engine.config, self.engine.outcome, str(result.directory)):
            self.display.say(line)
        return result

    def _welcome(self, run_id: int) -> None:
        try:
            for peer in self._peers.members:
                welcome(peer.channel, self.engine.config, run_id)
        except PeerGone as gone:
            raise self._peers.cause_of(gone) from None

    def _pass_by_pass(self) -> RunResult:
        directory = self._open_directory()
        self.has_directory = True
        try:
            self._recall(directory)
            directory.write_config(self.engine.config.to_yaml())
            self.engine.run_passes(directory)
            spins, memory = _collect(self._peers, self.engine.config, directory)
            summary = self._summary(memory, cause=None)
            directory.write_summary(summary)
            directory.forget_checkpoints()
        except StreamdsbError as error:
            self.display.close()
            # if the disk is full, that has ended the run and is the error to report
            with suppress(UserError):
                directory.write_summary(self._summary({}, cause=str(error)))
            self._leave(directory, error)
            raise
        finally:
            directory.close()
        return RunResult(
            energies=np.array(self.engine.outcome.energies, np.int64),
            spins=spins,
            records=read_lines(directory.path / RECORDS),
            summary=summary,
            directory=directory.path,
        )

    def _recall(self, directory: RunDirectory) -> None:
        """Know what an earlier part of the run recorded."""
        if self.engine.next_pass:
            records, timings = (read_lines(directory.path / name) for name in (RECORDS, TIMINGS))
            self.engine.outcome.recall(records, timings)

    def _leave(self, directory: RunDirectory, error: StreamdsbError) -> None:
        """Last words about a run that did not get to its end, and a checkpoint if the user stopped it."""
        if self.engine.next_pass:
            self.display.say(f"{self.engine.next_pass:,} whole passes are recorded in {directory.path}")
        if isinstance(error, ProcessDied):
            is_to_be_saved = self.may_restart and error.role == "generator"
        else:
            is_to_be_saved = self.engine.config.checkpoint.is_on and isinstance(error, Interrupted)
        try:
            if is_to_be_saved:
                self.engine.save_before_leaving(directory)
        except StreamdsbError as failure:
            self.display.say(f"no checkpoint was made: {failure}")
        if find_checkpoints(directory.path) and not (self.may_restart and isinstance(error, ProcessDied)):
            self.display.say(f"go on with: streamdsb run --resume {directory.path}")

    def _summary(self, memory: dict[str, int], cause: str | None) -> dict[str, Any]:
        engine = self.engine
        return make_summary(engine.config, engine.outcome, self._field, memory, self._started, cause)


def _collect(peers: Peers, config: Config, directory: RunDirectory) -> tuple[np.ndarray, dict[str, int]]:
    """Say Stop, save the spins that come back; the best spins, and each process's peak memory in bytes."""
    peers.send(Stop(completed=True))
    best: np.ndarray | None = None
    memory = {"coordinator": peak_memory()}
    expected = len(peers.members)
    deadline = time.monotonic() + _SPINS_TIMEOUT_S
    while best is None or len(memory) <= expected:
        peer, message, data = peers.next(max(0.0, deadline - time.monotonic()), "the spins of the run")
        if isinstance(message, Farewell) and peer is not None:
            memory[peer.hello.role] = message.peak_memory
        elif isinstance(message, Spins):
            bitmaps = np.frombuffer(data, np.uint8).reshape(config.solver.replicas + 1, -1)
            bits = np.unpackbits(bitmaps[0], count=config.n, bitorder="little")
            best = bits.astype(np.int8) * 2 - 1
            directory.write_spins(best, bitmaps[1:])
    return best, memory


@contextmanager
def _signals(peers: Peers) -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into an orderly end, where signals can be had and are not ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = [signal.signal(number, lambda number, _: peers.interrupt(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
