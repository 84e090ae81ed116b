"""What a client hands back: loaded models, replies, and refusals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamdsb.errors import RunFailed
from streamdsb.service.messages import MEANING, Status
from streamdsb.service.solve import Answer


class RequestRefused(RunFailed):
    """A server's answer other than ok."""

    def __init__(self, status: int, what: str) -> None:
        self.status = Status(status) if status in list(Status) else Status.MALFORMED
        super().__init__(f"the server refused {what}: {MEANING[self.status]} (status {status})")


@dataclass(frozen=True)
class LoadedModel:
    """A model that a server keeps: what requests name it by."""

    slot: int
    generation: int
    n: int


@dataclass(frozen=True)
class Reply(Answer):
    """An answer over the network; times in ns, the round trip by the client's clock, others the server's."""

    worker: int
    queue_ns: int
    solve_ns: int
    transmit_ns: int
    round_trip_ns: int


@dataclass(frozen=True)
class Replies:
    """Many answers as arrays of length m; spins int8 (m, n)."""

    headers: np.ndarray
    spins: np.ndarray
    sent_ns: np.ndarray
    received_ns: np.ndarray

    def __len__(self) -> int:
        return len(self.headers)

    @property
    def two_energy(self) -> np.ndarray:
        """2E, int64."""
        return self.headers["two_energy"]

    @property
    def replica(self) -> np.ndarray:
        """The best replica's index."""
        return self.headers["replica"]

    @property
    def round_trip_ns(self) -> np.ndarray:
        """From just before sending to just after receiving."""
        return self.received_ns - self.sent_ns

    def __getitem__(self, index: int) -> Reply:
        header = self.headers[index]
        return Reply(
            two_energy=int(header["two_energy"]),
            replica=int(header["replica"]),
            spins=self.spins[index],
            worker=int(header["worker"]),
            queue_ns=int(header["queue_ns"]),
            solve_ns=int(header["solve_ns"]),
            transmit_ns=int(header["transmit_ns"]),
            round_trip_ns=int(self.round_trip_ns[index]),
        )


def check_statuses(headers: np.ndarray) -> None:
    """RequestRefused if a RESULT header (m,) has a status other than ok."""
    refused = np.flatnonzero(headers["status"] != Status.OK)
    if len(refused):
        raise RequestRefused(int(headers["status"][refused[0]]), "the request")
