"""How a generator or receiver joins its coordinator: by inheritance on one machine, by TCP from another."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from streamdsb.channel import prove_token
from streamdsb.config import load_config_for_apart
from streamdsb.gpunetio.library import require_for
from streamdsb.links import TOKEN_VARIABLE, connect, parse_address, token_from_environment
from streamdsb.messages import Expectation

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
    is_remote: bool = False
    """True if this process was started apart and tells its user itself how it ended."""
    expected: Expectation | None = None
    """A configuration that the coordinator's has to agree with."""


def inherited_origin(arguments: list[str]) -> Origin:
    """The origin of a process that a coordinator started, deaf to SIGINT and SIGHUP: descriptors on the
    command line.
    """
    control, *pairs = arguments
    queues = tuple((int(ring), int(bell)) for ring, bell in (pair.split(":") for pair in pairs))
    connection = socket.socket(fileno=int(control))
    token = os.environ.get(TOKEN_VARIABLE, "")
    return Origin(connection, "the coordinator", token, "127.0.0.1", queues)


def remote_origin(address: str, data_host: str | None = None, expected: Path | None = None) -> Origin:
    """The origin of a process that joins over TCP; raises UserError if it cannot."""
    token = token_from_environment()
    insists: Expectation | None = None
    if expected is not None:
        config = load_config_for_apart(expected)
        if config.stream.transport == "gpunetio":
            require_for(config.receiver.nic or "")  # now, rather than once all have joined
        insists = Expectation(path=str(expected), config=config.model_dump())
    host, port = parse_address(address)
    connection = connect(host, port, "coordinator", JOIN_PATIENCE_S)
    prove_token(connection, token, f"the coordinator at {address}", asking=True)
    own_host = connection.getsockname()[0]
    return Origin(
        connection,
        f"the coordinator at {address}",
        token,
        data_host or own_host,
        is_remote=True,
        expected=insists,
    )
