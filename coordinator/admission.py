"""Letting a generator and a receiver in that come over TCP; strangers stay out."""

from __future__ import annotations

import errno
import socket
import threading
import time
from contextlib import suppress

import streamdsb
from coordinator.peers import Peer, Peers, TurnedAway
from coordinator.progress import Display
from streamdsb.channel import Channel, prove_token
from streamdsb.errors import StreamdsbError
from streamdsb.links import HANDSHAKE_TIMEOUT_S, listen
from streamdsb.messages import PROTOCOL, Hello

_JOIN_TIMEOUT_S = 600.0
_CROWDED_S = 0.1
_ROLES = ("generator", "receiver")


def admit_peers(peers: Peers, display: Display, host: str, port: int, token: str) -> None:
    """Listen until a generator and a receiver have joined, in any order, and add them to `peers`."""
    deadline = time.monotonic() + _JOIN_TIMEOUT_S
    with listen(host, port) as server:
        display.say(f"listening on {host}:{server.getsockname()[1]}")
        threading.Thread(target=_open_doors, args=(server, token, peers), daemon=True).start()
        peers.admits = True
        try:
            while missing := [role for role in _ROLES if not peers.of_role(role)]:
                waiting_for = f"a {' and a '.join(missing)} to join"
                display.say(f"waiting for {waiting_for}")
                peer, arrival, _ = peers.next(max(0.0, deadline - time.monotonic()), waiting_for)
                if isinstance(arrival, TurnedAway):
                    display.say(f"turned away: {arrival.reason}")
                elif isinstance(arrival, Hello) and peer is not None:
                    _admit(peer, peers, display)
        finally:
            peers.admits = False
            with suppress(OSError):  # closing alone would not wake the thread that accepts
                server.shutdown(socket.SHUT_RDWR)


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


def _open_doors(server: socket.socket, token: str, peers: Peers) -> None:
    """Hear everybody who connects, each in a thread of its own so that a silent one delays nobody."""
    while True:
        try:
            connection, address = server.accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                return
            time.sleep(_CROWDED_S)  # too many strangers at once; some will have left
            continue
        peer = f"{address[0]}:{address[1]}"
        threading.Thread(target=_hear, args=(connection, peer, token, peers), daemon=True).start()


def _hear(connection: socket.socket, peer: str, token: str, peers: Peers) -> None:
    connection.settimeout(HANDSHAKE_TIMEOUT_S)
    try:
        prove_token(connection, token, peer, asking=False)
        channel = Channel(connection, peer)
        peers.announce(Peer(channel.expect(Hello)[0], channel))
    except (StreamdsbError, OSError) as error:
        connection.close()
        peers.announce(TurnedAway(reason=str(error)))
