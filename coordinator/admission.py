"""Letting a generator and a receiver in that come over TCP; strangers stay out."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from functools import partial

import streamdsb
from coordinator.peers import Peer, Peers, TurnedAway
from coordinator.progress import Display
from streamdsb.channel import Channel, prove_token
from streamdsb.door import open_door
from streamdsb.errors import StreamdsbError
from streamdsb.links import listen
from streamdsb.messages import PROTOCOL, Hello

_JOIN_TIMEOUT_S = 600.0
_ROLES = ("generator", "receiver")


def admit_peers(peers: Peers, display: Display, host: str, port: int, token: str) -> None:
    """Listen until a generator and a receiver have joined, in any order, and add them to `peers`."""
    with listen(host, port) as server:
        display.say(f"listening on {host}:{server.getsockname()[1]}")
        admit(_ROLES, peers, display, server, token, _JOIN_TIMEOUT_S)


def admit(
    roles: Sequence[str], peers: Peers, display: Display, server: socket.socket, token: str, timeout_s: float
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
            elif isinstance(arrival, Hello) and peer is not None:
                _admit(peer, peers, display)
    peers.admits = False


def _admit(peer: Peer, peers: Peers, display: Display) -> None:
    refusal = _refusal(peer.hello, peers)
    if refusal is None:
        display.say(f"{peer.name} has joined")
        peers.add(peer)
    else:
        display.say(f"turned away: {refusal}")
        peer.turn_away(refusal)


def _refusal(hello: Hello, peers: Peers) -> str | None:
    """Why whoever says `hello` cannot take part, or None."""
    if (hello.version, hello.protocol) != (streamdsb.__version__, PROTOCOL):
        return (
            f"the {hello.role} on {hello.host} is streamdsb {hello.version} (protocol {hello.protocol}), the"
            f" coordinator {streamdsb.__version__} (protocol {PROTOCOL}); install the same version"
        )
    if peers.of_role(hello.role):
        return f"{peers.of_role(hello.role)[0].name} has joined already; a run has one {hello.role}"
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
