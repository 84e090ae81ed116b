"""How a generator or receiver joins its coordinator: by inheritance on one machine, by TCP from another."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

import streamdsb
from streamdsb.channel import Channel, prove_token
from streamdsb.config import Config, load_config, make_config
from streamdsb.errors import UserError
from streamdsb.links import TOKEN_VARIABLE, connect, parse_address, token_from_environment
from streamdsb.messages import PROTOCOL, Failed, Hello, Role, Welcome

JOIN_PATIENCE_S = 60.0
"""How long a worker waits for a coordinator that does not listen yet."""


@dataclass(frozen=True)
class Origin:
    """Where a worker comes from: its control connection and what it needs to open its queues."""

    connection: socket.socket
    peer: str
    token: str
    data_host: str
    """Address on which a receiver listens for frames sent over TCP."""
    queues: tuple[tuple[int, int], ...] = ()
    """(ring, doorbell) descriptors of the queues in shared memory."""
    expected: Path | None = None
    """A configuration that the coordinator's has to agree with."""


@dataclass(frozen=True)
class Joined:
    """What the coordinator answered: the run's id and configuration, whose n may still be open."""

    run: int
    config: Config


def inherited_origin(arguments: list[str]) -> Origin:
    """The origin of a process that a coordinator started: descriptors on the command line.

    The terminal's Ctrl-C is left to the coordinator, which tells its processes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control, *pairs = arguments
    queues = tuple((int(ring), int(bell)) for ring, bell in (pair.split(":") for pair in pairs))
    connection = socket.socket(fileno=int(control))
    token = os.environ.get(TOKEN_VARIABLE, "")
    return Origin(connection, "the coordinator", token, "127.0.0.1", queues)


def remote_origin(address: str, data_host: str | None = None, expected: Path | None = None) -> Origin:
    """The origin of a process that joins over TCP; raises UserError if it cannot."""
    token = token_from_environment()
    host, port = parse_address(address)
    connection = connect(host, port, "coordinator", JOIN_PATIENCE_S)
    prove_token(connection, token, f"the coordinator at {address}", asking=True)
    own_host = connection.getsockname()[0]
    return Origin(
        connection, f"the coordinator at {address}", token, data_host or own_host, expected=expected
    )


def say_hello(role: Role, origin: Origin, channel: Channel) -> Joined:
    """Introduce this process; raises UserError if the coordinator refuses it or its configuration differs."""
    channel.send(
        Hello(
            role=role,
            protocol=PROTOCOL,
            version=streamdsb.__version__,
            pid=os.getpid(),
            host=socket.gethostname(),
        )
    )
    channel.set_timeout(None)
    answer, _ = channel.receive()
    if isinstance(answer, Failed):
        raise UserError(answer.message)
    if not isinstance(answer, Welcome):
        raise UserError(f"{channel.peer} sent {type(answer).__name__} where Welcome was expected")
    config = make_config(answer.config, "the coordinator's configuration")
    if config.digest() != answer.digest:
        raise UserError(f"{channel.peer} and this {role} understand the configuration differently")
    if origin.expected is not None:
        _require_same(load_config(origin.expected), config, origin.expected)
    return Joined(answer.run, config)


def _require_same(own: Config, theirs: Config, path: Path) -> None:
    ours, others = own.model_dump(), theirs.model_dump()
    for section, values in ours.items():
        for key, value in values.items():
            if value != others[section][key]:
                raise UserError(
                    f"{path}: {section}.{key} is {value!r}, but the coordinator has {others[section][key]!r}"
                )
