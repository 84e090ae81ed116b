"""Where the frames of a receiving rank come from: a generator beside it, or another rank that generates.

Such a rank joins each receiver that it serves like a generator that is started apart, over a TCP connection
that has proved the run's token; it is one process, with a thread for each of these receivers.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Protocol

import generator.main
from coordinator.admission import admit
from coordinator.launch import launch_generator
from coordinator.peers import Peers
from coordinator.progress import Display
from streamdsb.channel import prove_token
from streamdsb.config import Config
from streamdsb.door import HANDSHAKE_TIMEOUT_S
from streamdsb.errors import Cancelled
from streamdsb.join import Origin
from streamdsb.links import accept_receivers, connect, listen, shm_receivers
from streamdsb.messages import Listening
from streamdsb.queues import FrameReceiver
from streamdsb.worker import serve

_JOIN_TIMEOUT_S = 60.0
_LOOK_UP_S = 0.1


class Supply(Protocol):
    """A receiver's generator and the queues from it."""

    def join(self, peers: Peers, display: Display) -> None:
        """Have the generator, which has said hello, among `peers`."""

    def open_queues(self, config: Config, run: int, peers: Peers) -> list[FrameReceiver]:
        """The receiver's ends, once the generator knows its rows; config: with its n."""


class GeneratorBeside:
    """A process that this rank starts, joined by queues in shared memory."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._links: list[tuple[int, int]] = []

    def join(self, peers: Peers, display: Display) -> None:
        self._links = launch_generator(self._config, peers)

    def open_queues(self, config: Config, run: int, peers: Peers) -> list[FrameReceiver]:
        return shm_receivers(config, self._links)


class GeneratingRank:
    """Another rank, which connects to this one; its queues are as networked as it is."""

    def __init__(self, config: Config, token: str) -> None:
        self._config = config
        self._token = token
        self._server = listen("0.0.0.0", 0)

    @property
    def port(self) -> int:
        """Where the rank that generates finds this one."""
        port: int = self._server.getsockname()[1]
        return port

    def join(self, peers: Peers, display: Display) -> None:
        with self._server:
            admit(["generator"], peers, display, self._server, self._token, _JOIN_TIMEOUT_S, self._config)

    def open_queues(self, config: Config, run: int, peers: Peers) -> list[FrameReceiver]:
        host = peers.members[0].own_host
        with listen(host, 0) as server:
            peers.send(Listening(host=host, port=server.getsockname()[1]))
            return accept_receivers(config, run, server, self._token, peers.trouble)


def generate_for(receivers: Mapping[int, tuple[str, int]], token: str, peers: Peers) -> None:
    """Be the generator of these ranks, given by host and port, until the run is over.

    Raises UserError or RunFailed if one of them cannot be served to the end, Cancelled if `peers` are in
    trouble.
    """
    pool = ThreadPoolExecutor(len(receivers))
    open_ones = {pool.submit(_generate, rank, host, port, token) for rank, (host, port) in receivers.items()}
    while open_ones:
        done, open_ones = wait(open_ones, _LOOK_UP_S, FIRST_EXCEPTION)
        for future in done:
            future.result()
        if peers.trouble.is_set():
            raise Cancelled


def _generate(rank: int, host: str, port: int, token: str) -> None:
    connection = connect(host, port, f"receiver of rank {rank}", HANDSHAKE_TIMEOUT_S)
    prove_token(connection, token, f"the receiver of rank {rank}", asking=True)
    serve(Origin(connection, f"rank {rank}", token, host), generator.main.work)
