"""Data connections: how the ends of the queues of a run find each other."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence

from streamdsb.channel import Channel, PeerGone, prove_token
from streamdsb.config import Config
from streamdsb.endpoints import open_endpoint
from streamdsb.errors import RunFailed, StreamdsbError, UserError
from streamdsb.messages import Failed, Join, Joined
from streamdsb.queues import FrameReceiver, FrameSender
from streamdsb.queues.shm import ShmReceiver, ShmSender

TOKEN_VARIABLE = "STREAMDSB_TOKEN"
HANDSHAKE_TIMEOUT_S = 10.0


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
    if not colon or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise UserError(f"address {text!r}: expected HOST:PORT with a port from 0 to 65535")
    return host.strip("[]") or "0.0.0.0", int(port)


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; raises UserError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def connect(host: str, port: int, what: str, patience_s: float) -> socket.socket:
    """Connect to `what`, trying again while nobody listens there yet, for up to `patience_s` seconds."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=HANDSHAKE_TIMEOUT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise UserError(f"no {what} listens at {host}:{port} (waited {patience_s:g} s)") from None
            time.sleep(0.1)
        except OSError as error:
            raise UserError(
                f"cannot connect to the {what} at {host}:{port}: {error.strerror or error}"
            ) from None
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
    """One data connection to the receiver for each queue."""
    senders: list[FrameSender] = []
    for queue in range(config.stream.queues):
        connection = connect(host, port, "receiver", HANDSHAKE_TIMEOUT_S)
        prove_token(connection, token, f"receiver at {host}:{port}", asking=True)
        channel = Channel(connection, f"the receiver at {host}:{port}")
        endpoint = open_endpoint(config, connection)
        channel.send(Join(run=run, queue=queue, digest=config.digest(), address=endpoint.address))
        answer, _ = channel.receive()
        if isinstance(answer, Failed):
            raise UserError(answer.message)
        if not isinstance(answer, Joined):
            raise RunFailed(f"{channel.peer} sent {type(answer).__name__} where Joined was expected")
        senders.append(endpoint.sender(answer.address, answer.window))
        if config.stream.is_lossy:
            connection.close()
    return senders


def accept_receivers(config: Config, run: int, server: socket.socket, token: str) -> list[FrameReceiver]:
    """Wait for the generator's data connections, one a queue; strangers are turned away meanwhile."""
    joined: dict[int, FrameReceiver] = {}
    deadline = time.monotonic() + config.stream.timeout_s
    while len(joined) < config.stream.queues:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not select.select([server], [], [], remaining)[0]:
            missing = ", ".join(str(q) for q in range(config.stream.queues) if q not in joined)
            raise RunFailed(
                f"the generator did not connect queue {missing} within {config.stream.timeout_s:g} s"
            )
        connection, address = server.accept()
        connection.settimeout(HANDSHAKE_TIMEOUT_S)
        try:
            queue, receiver = _admit(
                config, run, connection, token, f"{address[0]}:{address[1]}", set(joined)
            )
        except (StreamdsbError, OSError):
            connection.close()
        else:
            joined[queue] = receiver
    return [joined[queue] for queue in sorted(joined)]


def _admit(
    config: Config, run: int, connection: socket.socket, token: str, peer: str, taken: set[int]
) -> tuple[int, FrameReceiver]:
    prove_token(connection, token, peer, asking=False)
    channel = Channel(connection, peer)
    join, _ = channel.expect(Join)
    refusal = None
    if join.run != run:
        refusal = f"the generator belongs to run {join.run}, the receiver to run {run}"
    elif join.digest != config.digest():
        refusal = "the generator and the receiver hold different configurations"
    elif join.queue >= config.stream.queues or join.queue in taken:
        refusal = f"queue {join.queue} is taken or unknown; the queues are 0 to {config.stream.queues - 1}"
    if refusal:
        channel.send(Failed(message=refusal, exit_status=UserError.exit_status))
        raise PeerGone(refusal)
    endpoint = open_endpoint(config, connection)
    receiver, window = endpoint.receiver(join.address)
    channel.send(Joined(address=endpoint.address, window=window))
    if config.stream.is_lossy:
        connection.close()
    return join.queue, receiver
