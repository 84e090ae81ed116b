"""Letting a generator and a receiver in that come over TCP; strangers stay out."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import streamdsb
from coordinator.peers import Left, Peer, Peers, TurnedAway
from coordinator.progress import Display
from streamdsb.channel import Channel, prove_token
from streamdsb.config import Config
from streamdsb.door import open_door
from streamdsb.errors import StreamdsbError
from streamdsb.links import listen
from streamdsb.messages import PROTOCOL, Expectation, Hello, Role

_JOIN_TIMEOUT_S = 600.0
_ROLES = ("generator", "receiver")


def admit_peers(peers: Peers, display: Display, host: str, port: int, token: str, config: Config) -> None:
    """Listen until a generator and a receiver have joined, in any order, and add them to `peers`.

    Who expects another configuration than `config` is turned away; who leaves again may come back.
    """
    with listen(host, port) as server:
        display.say(f"listening on {host}:{server.getsockname()[1]}")
        admit(_ROLES, peers, display, server, token, _JOIN_TIMEOUT_S, config)


def admit(
    roles: Sequence[str],
    peers: Peers,
    display: Display,
    server: socket.socket,
    token: str,
    timeout_s: float,
    config: Config,
) -> None:
    """Hear who connects to `server` until one of each role has joined, and add them to `peers`."""
    deadline = time.monotonic() + timeout_s
    peers.admits = True
    with open_door(server, partial(_hear, token, peers)):
        while missing := [role for role in roles if not peers.of_role(role)]:
            waiting_for = f"a {' and a '.join(missing)} to join"
            display.say(f"waiting for {waiting_for}")
            peer, arrival, _ = peers.next(max(0.0, deadline - time.monotonic()), waiting_for)
            if isinstance(arrival, TurnedAway):
                display.say(f"turned away: {arrival.reason}")
            elif isinstance(arrival, Left):
                display.say(f"left again: {arrival.reason}")
            elif isinstance(arrival, Hello) and peer is not None:
                _admit(peer, peers, display, config)
    peers.admits = False


def _admit(peer: Peer, peers: Peers, display: Display, config: Config) -> None:
    refusal = _refusal(peer.hello, peers, config)
    if refusal is None:
        display.say(f"{peer.name} has joined")
        peers.add(peer)
    else:
        display.say(f"turned away: {refusal}")
        peer.turn_away(refusal)


def _refusal(hello: Hello, peers: Peers, config: Config) -> str | None:
    """Why whoever says `hello` cannot take part, or None."""
    if (hello.version, hello.protocol) != (streamdsb.__version__, PROTOCOL):
        return (
            f"the {hello.role} on {hello.host} is streamdsb {hello.version} (protocol {hello.protocol}), the"
            f" coordinator {streamdsb.__version__} (protocol {PROTOCOL}); install the same version"
        )
    if peers.of_role(hello.role):
        return f"{peers.of_role(hello.role)[0].name} has joined already; a run has one {hello.role}"
    return None if hello.expected is None else _disagreement(hello.expected, hello.role, config)


def _disagreement(expected: Expectation, role: Role, config: Config) -> str | None:
    """The first key in which a process in `role` expects something else than `config`, in a sentence."""
    theirs, ours = expected.config, config.model_dump()
    for section, values in ours.items():
        keys = values if isinstance(values, dict) else {"": values}
        other = theirs.get(section)
        others = other if isinstance(other, dict) else {"": other}
        for key, value in keys.items():
            # files that only others open may lie elsewhere on the machine of this one
            elsewhere = key == "field" or (key == "path" and role == "receiver")
            pair = [others.get(key), value]
            if elsewhere:
                pair = [path and Path(str(path)).name for path in pair]
            if pair[0] != pair[1]:
                name = f"{section}.{key}" if key else section
                return f"{expected.path}: {name} is {others.get(key)!r}, but the coordinator has {value!r}"
    return None


def _hear(token: str, peers: Peers, connection: socket.socket, peer: str) -> None:
    try:
        prove_token(connection, token, peer, asking=False)
        channel = Channel(connection, peer)
        own_host = connection.getsockname()[0]
        peers.announce(Peer(channel.expect(Hello)[0], channel, own_host=own_host))
    except (StreamdsbError, OSError) as error:
        connection.close()
        peers.announce(TurnedAway(reason=str(error)))
