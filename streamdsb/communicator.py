"""What the ranks of one run say to each other: one rank alone, or MPI.

Collectives are MPI's own; waiting for them is ours: it leaves the cores to those who work, and looks whether
the run has been called off.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from streamdsb.errors import StreamdsbError, UserError
from streamdsb.worker import Cancelled

T = TypeVar("T")

_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")

_START_S = 25.0
"""The ranks come to MPI_Init within so many seconds of each other, or not at all."""
_HEARD_S = 1.0
"""mpiexec loses what it has not read of a rank that aborts."""
_SPIN_S = 2e-3
_SHORTEST_NAP_S = 20e-6
_LONGEST_NAP_S = 5e-3
_NAP_SHARE = 0.01
"""Of the time that was waited: what a wait ends too late by."""


class Communicator(ABC):
    """The ranks of a run; every method but `abort` is called by all of them, in the same order."""

    rank: int
    size: int

    @abstractmethod
    def broadcast(self, value: T) -> T:
        """Rank 0's value."""

    @abstractmethod
    def gather(self, value: T) -> list[T]:
        """Each rank's value, at every rank."""

    @abstractmethod
    def sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over all ranks of an array of int64, or of uint64 modulo 2**64."""

    @abstractmethod
    def concatenate(self, words: np.ndarray, counts: Sequence[int], into: np.ndarray) -> None:
        """All ranks' words, one rank after another, in `into`, uint64 (sum(counts),).

        words: this rank's, uint64 (counts[rank],).
        """

    @abstractmethod
    def first(self, size: int) -> Communicator | None:
        """The communicator of ranks 0 to size - 1; None at the others."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all ranks are here."""

    @abstractmethod
    def abort(self, status: int) -> NoReturn:
        """End all ranks at once; the job's exit status is `status`."""


class OneRank(Communicator):
    """A run that has no other ranks."""

    rank = 0
    size = 1

    def broadcast(self, value: T) -> T:
        return value

    def gather(self, value: T) -> list[T]:
        return [value]

    def sum(self, values: np.ndarray) -> np.ndarray:
        return values.copy()

    def concatenate(self, words: np.ndarray, counts: Sequence[int], into: np.ndarray) -> None:
        into[:] = words

    def first(self, size: int) -> Communicator | None:
        return self

    def barrier(self) -> None:
        pass

    def abort(self, status: int) -> NoReturn:
        raise SystemExit(status)


class MpiRanks(Communicator):
    """The ranks of an MPI communicator; any wait raises Cancelled once `cancelled` is set."""

    def __init__(self, communicator: Any, cancelled: threading.Event) -> None:
        self._communicator = communicator
        self._cancelled = cancelled
        self.rank = communicator.Get_rank()
        self.size = communicator.Get_size()

    @classmethod
    def world(cls, cancelled: threading.Event) -> MpiRanks:
        """All ranks that were started together; raises UserError if they cannot find each other.

        A rank that waits too long for another that never comes prints its stack and ends the process.
        """
        # a watch that needs not the interpreter's lock, which MPI_Init keeps
        faulthandler.dump_traceback_later(_START_S, exit=True)
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise UserError(
                f"this process was started by mpiexec or srun, but mpi4py cannot be imported ({error});"
                " python -m pip install 'streamdsb[mpi]'"
            ) from None
        finally:
            faulthandler.cancel_dump_traceback_later()
        ranks = cls(MPI.COMM_WORLD, cancelled)
        started = max((int(os.environ.get(name, "1")) for name in _SIZE_VARIABLES), default=1)
        if ranks.size == 1 and started > 1:
            library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
            raise UserError(
                f"{started} ranks were started, but mpi4py sees one: its MPI library ({library}) is not that"
                " of this mpiexec or srun; use the mpiexec of that library, or build mpi4py with the other"
            )
        return ranks

    def broadcast(self, value: T) -> T:
        self.barrier()
        return self._communicator.bcast(value)

    def gather(self, value: T) -> list[T]:
        self.barrier()
        return self._communicator.allgather(value)

    def sum(self, values: np.ndarray) -> np.ndarray:
        total = np.empty_like(values)
        self._wait(self._communicator.Iallreduce(np.ascontiguousarray(values), total))
        return total

    def concatenate(self, words: np.ndarray, counts: Sequence[int], into: np.ndarray) -> None:
        self._wait(self._communicator.Iallgatherv(np.ascontiguousarray(words), (into, list(counts))))

    def first(self, size: int) -> Communicator | None:
        part = self._communicator.Split(int(self.rank >= size), self.rank)
        return MpiRanks(part, self._cancelled) if self.rank < size else None

    def barrier(self) -> None:
        self._wait(self._communicator.Ibarrier())

    def abort(self, status: int) -> NoReturn:
        self._communicator.Abort(status)
        os._exit(status)

    def _wait(self, request: Any) -> None:
        start = time.monotonic()
        while not request.Test():
            if self._cancelled.is_set():
                raise Cancelled
            waited = time.monotonic() - start
            if waited < _SPIN_S:
                time.sleep(0)
            else:
                # MPI moves on only when it is asked, some times for one collective
                time.sleep(min(max(waited * _NAP_SHARE, _SHORTEST_NAP_S), _LONGEST_NAP_S))


def started_by_mpi(environment: Mapping[str, str] = os.environ) -> bool:
    """True if mpiexec or srun started this process as one of several ranks.

    A lone one needs no MPI: it may be a shell that srun gave.
    """
    sizes = [environment[name] for name in _SIZE_VARIABLES if name in environment]
    return any(int(size) > 1 for size in sizes) if sizes else "PMIX_RANK" in environment


def be_rank(work: Callable[[Communicator, threading.Event], None]) -> None:
    """Do `work` as one of the ranks of mpiexec or srun: what it raises is said and ends all of them.

    The event that `work` is given ends this rank's waits once it is set.  Raises UserError if the ranks
    do not find each other.
    """
    trouble = threading.Event()
    ranks = MpiRanks.world(trouble)
    name = f"rank {ranks.rank} on {socket.gethostname()}"
    try:
        work(ranks, trouble)
    except StreamdsbError as error:
        print(f"streamdsb: {name}: {error}", file=sys.stderr, flush=True)
        time.sleep(_HEARD_S)
        ranks.abort(error.exit_status)
    except BaseException as error:
        print(f"streamdsb: {name}: unexpected {type(error).__name__}: {error}", file=sys.stderr)
        traceback.print_exc()
        sys.stderr.flush()
        time.sleep(_HEARD_S)
        ranks.abort(1)
