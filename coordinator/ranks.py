"""A run with several receivers: MPI ranks that go through the passes in step, each with its own generator."""

from __future__ import annotations

import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from coordinator.field import load_field
from coordinator.launch import end_processes
from coordinator.lockstep import Lockstep
from coordinator.outcome import Outcome
from coordinator.partition import Partition, refuse_what_ranks_cannot
from coordinator.peers import Interrupted, Peers
from coordinator.plan import with_known_n
from coordinator.progress import Display, SilentDisplay
from coordinator.summary import last_words, make_summary
from streamdsb.communicator import Communicator
from streamdsb.config import Config
from streamdsb.errors import StreamdsbError
from streamdsb.messages import Stop
from streamdsb.run_directory import RunDirectory, check_free
from streamdsb.worker import Cancelled

_FIRST_SAYS_S = 2.0
"""A signal reaches all ranks; the others leave it to rank 0 to say so, for so long."""


def run_as_rank(
    load: Callable[[], Config],
    out: Path,
    overwrite: bool,
    display: Display,
    ranks: Communicator,
    trouble: threading.Event,
) -> None:
    """Be one rank of a run that mpiexec or srun started; only rank 0 loads the configuration and displays.

    trouble: ends this rank's waits once it is set.  Raises UserError or RunFailed.
    """
    peers = Peers(trouble)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: peers.interrupt(number))
    try:
        run_ranks(load, out, overwrite, display if ranks.rank == 0 else SilentDisplay(), ranks, peers)
        ranks.barrier()
    except (Cancelled, Interrupted) as error:
        cause = error if isinstance(error, Interrupted) else peers.cause_of(Interrupted("called off"))
        if isinstance(cause, Interrupted) and ranks.rank:
            time.sleep(_FIRST_SAYS_S)
        raise cause from None


def run_ranks(
    load: Callable[[], Config],
    out: Path,
    overwrite: bool,
    display: Display,
    ranks: Communicator,
    peers: Peers,
) -> None:
    """One rank's part of a run; raises UserError or RunFailed, or Cancelled if `peers` are in trouble."""
    started = datetime.now(UTC)
    config, field, run_id = ranks.broadcast(
        _prepare(load, out, overwrite) if ranks.rank == 0 else (None,) * 3
    )
    assert config is not None
    assert run_id is not None
    partition = Partition.of(config, ranks.size)
    hosts = ranks.gather(socket.gethostname())
    for line in partition.lines(hosts):
        display.say(line)
    receivers = ranks.first(len(partition.rows))
    if receivers is None:
        return
    lockstep = Lockstep(config, partition.rows, receivers, peers, display)
    try:
        lockstep.prepare(field, run_id, hosts)
        if receivers.rank == 0:
            _keep_records(lockstep, out, overwrite, field, started)
        else:
            lockstep.run_passes(None)
            lockstep.collect()
    except Cancelled:
        raise peers.cause_of(Interrupted("called off")) from None
    finally:
        display.close()
        peers.send(Stop(completed=False))
        end_processes(peers)
    if receivers.rank == 0:
        for line in last_words(config, lockstep.outcome, str(out)):
            display.say(line)


def _prepare(load: Callable[[], Config], out: Path, overwrite: bool) -> tuple[Config, np.ndarray | None, int]:
    """On rank 0: the configuration with its n, the field int32 (n,) and the run's id."""
    config = load()
    refuse_what_ranks_cannot(config)
    check_free(out, overwrite)
    config = with_known_n(config)
    field = None if config.problem.field is None else load_field(Path(config.problem.field), config.n)
    return config, field, random.SystemRandom().getrandbits(32)


def _keep_records(
    lockstep: Lockstep, out: Path, overwrite: bool, field: np.ndarray | None, started: datetime
) -> None:
    directory = RunDirectory(out, overwrite)
    config, outcome = lockstep.config, lockstep.outcome
    memory: dict[str, int] = {}
    cause: str | None = "another rank failed"
    try:
        directory.write_config(config.to_yaml())
        lockstep.run_passes(directory)
        memory = lockstep.collect()
        directory.write_spins(lockstep.best_spins, lockstep.signs.view(np.uint8))
        cause = None
    except StreamdsbError as error:
        cause = str(error)
        raise
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
