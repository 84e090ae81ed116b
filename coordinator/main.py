"""Leading a run from its configuration to its directory, on this machine or over TCP."""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.admission import admit_peers
from coordinator.engine import CoordinatorEngine, welcome
from coordinator.launch import end_processes, launch
from coordinator.peers import Peers
from coordinator.progress import Display
from coordinator.summary import last_words, make_summary
from streamdsb.config import Config
from streamdsb.errors import StreamdsbError, UserError
from streamdsb.links import TOKEN_VARIABLE
from streamdsb.machine import peak_memory
from streamdsb.messages import Farewell, Spins, Stop
from streamdsb.run_directory import RECORDS, RunDirectory, check_free, read_lines

_STOP_TIMEOUT_S = 3.0
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
    directory: Path


def run_here(config: Config, out: Path, overwrite: bool, display: Display) -> RunResult:
    """Run with a generator and a receiver that are started on this machine.

    Raises UserError or RunFailed; the directory then holds every pass that counted.
    """
    return _lead(config, out, overwrite, display, lambda peers: launch(config, peers))


def coordinate(
    config: Config, out: Path, overwrite: bool, display: Display, host: str, port: int
) -> RunResult:
    """Run with a generator and a receiver that join over TCP with the token of the environment.

    Without a token there, a new one is made and shown.  Raises UserError or RunFailed.
    """
    if config.stream.transport != "tcp":
        raise UserError(
            f"stream.transport is {config.stream.transport}, for the processes of one 'streamdsb run';"
            " processes started apart need tcp"
        )
    given = os.environ.get(TOKEN_VARIABLE)
    token = given or secrets.token_hex(16)
    if not given:
        display.say(f"the others need this token: export {TOKEN_VARIABLE}={token}")
    return _lead(
        config, out, overwrite, display, lambda peers: admit_peers(peers, display, host, port, token)
    )


def load_field(path: Path) -> np.ndarray:
    """The field h of a .npy of integers, as int32 (n,); raises UserError if it is anything else."""
    try:
        values = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"problem.field {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise UserError(f"problem.field {path}: cannot be read as .npy: {error}") from None
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iu":
        raise UserError(f"problem.field {path}: one dimension of integers is needed, an int32 for each spin")
    limits = np.iinfo(np.int32)
    outside = np.flatnonzero((values < limits.min) | (values > limits.max))
    if outside.size:
        i = int(outside[0])
        raise UserError(f"problem.field {path}: h[{i}] is {values[i]}, but it should fit 32 bits")
    return values.astype(np.int32)


def _lead(
    config: Config, out: Path, overwrite: bool, display: Display, gather: Callable[[Peers], None]
) -> RunResult:
    check_free(out, overwrite)
    field_values = None if config.problem.field is None else load_field(Path(config.problem.field))
    started = datetime.now(UTC)
    peers = Peers()
    engine = CoordinatorEngine(config, peers, display)
    with _signals(peers):
        try:
            gather(peers)
            run_id = random.SystemRandom().getrandbits(32)
            for peer in peers.members:
                welcome(peer.channel, config, run_id)
            engine.prepare(field_values)
            directory = RunDirectory(out, overwrite)
            try:
                directory.write_config(engine.config.to_yaml())
                engine.run_passes(directory)
                spins, memory = _collect(peers, engine.config, directory)
                summary = make_summary(
                    engine.config, engine.outcome, field_values, memory, started, cause=None
                )
                directory.write_summary(summary)
            except StreamdsbError as error:
                display.close()
                _write_failure(engine, field_values, started, error, directory)
                display.say(f"{len(engine.outcome.energies):,} whole passes are recorded in {out}")
                raise
            finally:
                directory.close()
        finally:
            display.close()
            peers.send(Stop(completed=False))
            end_processes(peers)
    for line in last_words(engine.config, engine.outcome, str(out)):
        display.say(line)
    return RunResult(
        energies=np.array(engine.outcome.energies, np.int64),
        spins=spins,
        records=read_lines(out / RECORDS),
        summary=summary,
        directory=out,
    )


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


def _write_failure(
    engine: CoordinatorEngine,
    field_values: np.ndarray | None,
    started: datetime,
    error: StreamdsbError,
    directory: RunDirectory,
) -> None:
    summary = make_summary(engine.config, engine.outcome, field_values, {}, started, cause=str(error))
    # if the disk is full, that has ended the run and is the error to report
    with suppress(UserError):
        directory.write_summary(summary)


@contextmanager
def _signals(peers: Peers) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into an orderly end, where signals can be had."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: peers.interrupt(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
