"""Data connections: how the ends of the queues of a run find each other."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from typing import cast

from streamdsb.channel import Channel, PeerGone, prove_token
from streamdsb.config import Config
from streamdsb.config_words import shown
from streamdsb.door import HANDSHAKE_TIMEOUT_S, open_door
from streamdsb.endpoints import open_endpoint
from streamdsb.errors import Cancelled, RunFailed, StreamdsbError, UserError
from streamdsb.messages import Failed, Join, Joined
from streamdsb.probe import answer_probes, probe
from streamdsb.queues import FrameReceiver, FrameSender
from streamdsb.queues.base import LossyReceiver, LossySender
from streamdsb.queues.shm import ShmReceiver, ShmSender

TOKEN_VARIABLE = "STREAMDSB_TOKEN"
_LOOK_UP_S = 0.25
"""How often a wait looks whether the run has been called off."""


def token_from_environment() -> str:
    """The run's token; raises UserError if the environment has none."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise UserError(
            f"{TOKEN_VARIABLE} is not set; set it to the token that 'streamdsb coordinate' printed"
        )
    return token


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, with [..] around an IPv6 host."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise UserError(f"address {shown(text)}: expected HOST:PORT with a port from 0 to 65535")
    host = host.strip("[]")
    _require_host(host)
    return host or "0.0.0.0", int(port)


def _require_host(name: str) -> None:
    """Raise UserError for what a resolver does not even look up."""
    try:
        is_host = b"\0" not in name.encode("idna")
    except UnicodeError:
        is_host = False
    if not is_host:
        raise UserError(
            f"{shown(name)} is not a host name or an address: a name such as node7 or 10.0.0.7 is"
        )


def _reason(error: OSError) -> str:
    """In the system's words; Python's repeat the address."""
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return (error.strerror or str(error)).partition(" (while")[0]


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; raises UserError if the address cannot be had."""
    _require_host(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {_reason(error)}") from None


def connect(host: str, port: int, what: str, patience_s: float) -> socket.socket:
    """Connect to `what`, trying again while nobody listens there yet, for up to `patience_s` seconds.

    Raises UserError if that cannot be.
    """
    _require_host(host)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=HANDSHAKE_TIMEOUT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise UserError(f"no {what} listens at {host}:{port} (waited {patience_s:g} s)") from None
            time.sleep(0.1)
        except OSError as error:
            raise UserError(f"cannot connect to the {what} at {host}:{port}: {_reason(error)}") from None
        else:
            return connection


def shm_senders(config: Config, links: Sequence[tuple[int, int]]) -> list[FrameSender]:
    """Sending ends of rings whose (ring, doorbell) descriptors this process inherited."""
    stream = config.stream
    return [
        ShmSender(ring, bell, stream.burst_frames, stream.ring_bursts, "the receiver") for ring, bell in links
    ]


def shm_receivers(config: Config, links: Sequence[tuple[int, int]]) -> list[FrameReceiver]:
    """Receiving ends of rings whose (ring, doorbell) descriptors this process inherited."""
    stream = config.stream
    return [
        ShmReceiver(ring, bell, stream.burst_frames, stream.ring_bursts, "the generator")
        for ring, bell in links
    ]


def connect_senders(config: Config, run: int, host: str, port: int, token: str) -> list[FrameSender]:
    """One data connection to the receiver for each queue.

    Raises UserError if frames do not get there the way that the configuration says.
    """
    senders: list[FrameSender] = []
    for number in range(config.stream.queues):
        connection = connect(host, port, "receiver", HANDSHAKE_TIMEOUT_S)
        prove_token(connection, token, f"receiver at {host}:{port}", asking=True)
        channel = Channel(connection, f"the receiver at {host}:{port}")
        endpoint = open_endpoint(config, "generator", run, number, connection)
        channel.send(Join(run=run, queue=number, digest=config.digest(), address=endpoint.address))
        answer, _ = channel.receive()
        if isinstance(answer, Failed):
            raise UserError(answer.message)
        if not isinstance(answer, Joined):
            raise RunFailed(f"{channel.peer} sent {type(answer).__name__} where Joined was expected")
        sender = endpoint.sender(answer.address, answer.window)
        if config.stream.is_lossy:
            if not probe(cast(LossySender, sender), run, number):
                raise UserError(endpoint.silence(answer.address))
            connection.close()
        senders.append(sender)
    return senders


class _Reception:
    """The receiver's ends of the queues that the generator has connected so far."""

    def __init__(self, config: Config, run: int, token: str) -> None:
        self._config = config
        self._run = run
        self._token = token
        self._taken: set[int] = set()
        self._lock = threading.Lock()
        self.joined: queue.SimpleQueue[tuple[int, FrameReceiver] | StreamdsbError] = queue.SimpleQueue()
        """Queues and their ends as they come, and why one cannot be had at this end."""

    def hear(self, connection: socket.socket, peer: str) -> None:
        """Take a queue from the generator, or turn a stranger away."""
        try:
            self.joined.put(self._admit(connection, peer))
        except (StreamdsbError, OSError):
            connection.close()

    def _admit(self, connection: socket.socket, peer: str) -> tuple[int, FrameReceiver]:
        prove_token(connection, self._token, peer, asking=False)
        channel = Channel(connection, peer)
        join, _ = channel.expect(Join)
        if refusal := self._refusal(join):
            channel.send(Failed(message=refusal, exit_status=UserError.exit_status))
            raise PeerGone(refusal)
        try:
            endpoint = open_endpoint(self._config, "receiver", self._run, join.queue, connection)
            receiver, window = endpoint.receiver(join.address)
        except StreamdsbError as error:
            self.joined.put(error)
            channel.send(Failed(message=str(error), exit_status=error.exit_status))
            raise
        channel.send(Joined(address=endpoint.address, window=window))
        if self._config.stream.is_lossy:
            answer_probes(cast(LossyReceiver, receiver), self._run, join.queue, connection)
            connection.close()
        return join.queue, receiver

    def _refusal(self, join: Join) -> str | None:
        """Why `join` cannot be taken; None if it is, and then its queue is."""
        if join.run != self._run:
            return f"the generator belongs to run {join.run}, the receiver to run {self._run}"
        if join.digest != self._config.digest():
            return "the generator and the receiver hold different configurations"
        with self._lock:
            if join.queue in self._taken or join.queue >= self._config.stream.queues:
                last = self._config.stream.queues - 1
                return f"queue {join.queue} is taken or unknown; the queues are 0 to {last}"
            self._taken.add(join.queue)
        return None


def accept_receivers(
    config: Config, run: int, server: socket.socket, token: str, cancelled: threading.Event
) -> list[FrameReceiver]:
    """Wait for the generator's data connections, one a queue; strangers are turned away meanwhile.

    Raises RunFailed if one does not come in time, UserError if frames cannot come the way that the
    configuration says, Cancelled if the run is called off.
    """
    reception = _Reception(config, run, token)
    joined: dict[int, FrameReceiver] = {}
    deadline = time.monotonic() + config.stream.timeout_s
    with open_door(server, reception.hear):
        while len(joined) < config.stream.queues:
            try:
                came = reception.joined.get(timeout=_LOOK_UP_S)
            except queue.Empty:
                pass
            else:
                if isinstance(came, StreamdsbError):
                    raise came
                number, receiver = came
                joined[number] = receiver
            if cancelled.is_set():
                raise Cancelled
            if time.monotonic() > deadline:
                missing = ", ".join(str(q) for q in range(config.stream.queues) if q not in joined)
                raise RunFailed(
                    f"the generator did not connect queue {missing} within {config.stream.timeout_s:g} s"
                )
    return [joined[number] for number in sorted(joined)]
