"""A run with several receivers: MPI ranks that go through the passes in step, each with a generator."""

from __future__ import annotations

import random
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from coordinator.field import load_field
from coordinator.launch import end_processes
from coordinator.lockstep import Lockstep
from coordinator.outcome import Outcome
from coordinator.partition import Gpu, Partition, refuse_what_ranks_cannot
from coordinator.peers import Peers
from coordinator.plan import with_known_n
from coordinator.progress import Display, SilentDisplay
from coordinator.pulse import Pulse
from coordinator.summary import last_words, make_summary
from coordinator.supply import GeneratingRank, GeneratorBeside, Supply, generate_for
from streamdsb.checkpoint import newest_usable
from streamdsb.communicator import Communicator
from streamdsb.config import Config
from streamdsb.errors import Interrupted, StreamdsbError
from streamdsb.run_directory import RECORDS, TIMINGS, RunDirectory, check_free, read_lines
from streamdsb.worker import Cancelled

_FIRST_SAYS_S = 2.0
"""A signal reaches all ranks; the others leave it to rank 0 to say so, for so long.

So do those that generate with a failure, which the rank they generate for has caused or heard of.
"""


def run_as_rank(
    load: Callable[[], Config],
    out: Path,
    overwrite: bool,
    resume: bool,
    display: Display,
    ranks: Communicator,
    trouble: threading.Event,
) -> None:
    """Be one rank of a run that mpiexec or srun started; only rank 0 loads the configuration and displays.

    resume: go on with the interrupted run in `out`.

    trouble: ends this rank's waits once it is set.  Raises UserError or RunFailed.
    """
    peers = Peers(trouble)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: peers.interrupt(number))
    pulse: Pulse | None = None
    try:
        own_display = display if ranks.rank == 0 else SilentDisplay()
        hosts = ranks.gather(socket.gethostname())
        pulse = Pulse(ranks, hosts, peers)
        run_ranks(load, out, overwrite, resume, own_display, ranks, hosts, peers)
        ranks.barrier()
    except (Cancelled, Interrupted) as error:
        cause = error if isinstance(error, Interrupted) else peers.cause_of(Interrupted("called off"))
        if isinstance(cause, Interrupted) and ranks.rank:
            time.sleep(_FIRST_SAYS_S)
        raise cause from None
    finally:
        if pulse is not None:
            pulse.close()


def run_ranks(
    load: Callable[[], Config],
    out: Path,
    overwrite: bool,
    resume: bool,
    display: Display,
    ranks: Communicator,
    hosts: Sequence[str],
    peers: Peers,
) -> None:
    """One rank's part of a run; raises UserError or RunFailed, or Cancelled if `peers` are in trouble."""
    started = datetime.now(UTC)
    began = ranks.broadcast(_begin(load, out, overwrite, resume) if ranks.rank == 0 else None)
    assert began is not None
    config = began.config
    partition = Partition.of(config, ranks.size)
    gpu = _own_gpu(config, partition, ranks.rank, hosts)
    device = None if gpu is None else gpu.number
    for line in partition.lines(config, hosts, ranks.gather(gpu)):
        display.say(line)
    receivers = ranks.first(len(partition.rows))
    supply = _find_supply(partition, config, began.token, device, ranks, hosts, peers)
    if receivers is None or supply is None:
        return
    lockstep = Lockstep(config, partition.rows, supply, receivers, peers, display, began.out, device)
    try:
        lockstep.prepare(began.field, began.run_id, hosts, began.checkpoints)
        if receivers.rank == 0:
            directory = (
                RunDirectory.resume(out, lockstep.first_pass) if resume else RunDirectory(out, overwrite)
            )
            _keep_records(lockstep, directory, began.field, started, peers)
        else:
            lockstep.run_passes(None)
            lockstep.collect()
    except Cancelled:
        raise peers.cause_of(Interrupted("called off")) from None
    finally:
        display.close()
        lockstep.close()
        peers.call_off("")
        end_processes(peers)
    if receivers.rank == 0:
        for line in last_words(config, lockstep.outcome, str(out)):
            display.say(line)


def _own_gpu(config: Config, partition: Partition, rank: int, hosts: Sequence[str]) -> Gpu | None:
    """The GPU of this rank if it receives on one; raises UserError if there is none for it."""
    if config.receiver.backend != "cuda" or rank >= len(partition.rows):
        return None
    from coordinator.rank_cuda import device_of

    return device_of(config, rank, hosts)


def _find_supply(
    partition: Partition,
    config: Config,
    token: str,
    device: int | None,
    ranks: Communicator,
    hosts: Sequence[str],
    peers: Peers,
) -> Supply | None:
    """Where this rank's frames are to come from, if it receives; if it generates, it does so, to the end."""
    if config.stream.transport == "peer" and device is not None:
        from coordinator.rank_cuda import GeneratorInside

        return GeneratorInside(device)
    if not partition.served:
        return GeneratorBeside(config)
    supply = GeneratingRank(config, token) if ranks.rank < len(partition.rows) else None
    ports = ranks.gather(supply.port if supply else 0)
    if served := partition.served_by(ranks.rank):
        addresses = {
            rank: ("127.0.0.1" if hosts[rank] == hosts[ranks.rank] else hosts[rank], ports[rank])
            for rank in served
        }
        try:
            generate_for(addresses, token, peers)
        except StreamdsbError:
            time.sleep(_FIRST_SAYS_S)
            raise
    return supply


@dataclass(frozen=True)
class _Beginning:
    """What rank 0 tells the others before they begin."""

    config: Config
    """With its n."""
    out: Path
    field: np.ndarray | None
    """int32 (n,)"""
    run_id: int
    checkpoints: list[Path]
    """The files of the pass to go on from."""
    token: str
    """What ranks that generate prove to those that receive."""


def _begin(load: Callable[[], Config], out: Path, overwrite: bool, resume: bool) -> _Beginning:
    config = load()
    refuse_what_ranks_cannot(config)
    if not resume:
        check_free(out, overwrite)
    config = with_known_n(config)
    field = None if config.problem.field is None else load_field(Path(config.problem.field), config.n)
    checkpoints = newest_usable(out, config.n, config.solver.replicas) if resume else []
    run_id, token = random.SystemRandom().getrandbits(32), secrets.token_hex(16)
    return _Beginning(config, out.absolute(), field, run_id, checkpoints, token)


def _keep_records(
    lockstep: Lockstep, directory: RunDirectory, field: np.ndarray | None, started: datetime, peers: Peers
) -> None:
    config, outcome = lockstep.config, lockstep.outcome
    memory: dict[str, int] = {}
    # if another rank fails, this one may be ended before it can say so
    cause: str | None = "another rank failed, or all were ended from outside"
    _write_summary(directory, config, outcome, field, memory, started, cause)
    try:
        if lockstep.first_pass:
            records, timings = (read_lines(directory.path / name) for name in (RECORDS, TIMINGS))
            outcome.recall(records, timings)
        directory.write_config(config.to_yaml())
        lockstep.run_passes(directory)
        memory = lockstep.collect()
        directory.write_spins(lockstep.best_spins, lockstep.signs.view(np.uint8))
        directory.forget_checkpoints()
        cause = None
    except (StreamdsbError, Cancelled) as error:
        failure = peers.cause_of(Interrupted("called off")) if isinstance(error, Cancelled) else error
        cause = str(failure)
        raise failure from None
    finally:
        _write_summary(directory, config, outcome, field, memory, started, cause)
        directory.close()


def _write_summary(
    directory: RunDirectory,
    config: Config,
    outcome: Outcome,
    field: np.ndarray | None,
    memory: dict[str, int],
    started: datetime,
    cause: str | None,
) -> None:
    try:
        directory.write_summary(make_summary(config, outcome, field, memory, started, cause))
    except StreamdsbError:
        if cause is None:  # else that ended the run, and is the error to report
            raise
