"""Hearing whoever connects: each in a thread of its own and for a limited time, so none delays others."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

HANDSHAKE_TIMEOUT_S = 10.0
_CROWDED_S = 0.1

Hear = Callable[[socket.socket, str], None]
"""Talks to a connection, which came from the address in words."""


@contextmanager
def open_door(server: socket.socket, hear: Hear) -> Iterator[None]:
    """Within, let `hear` talk to all who connect to `server`, each for HANDSHAKE_TIMEOUT_S at most."""
    threading.Thread(target=_accept, args=(server, hear), daemon=True).start()
    try:
        yield
    finally:
        with suppress(OSError):  # closing alone would not wake the thread that accepts
            server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, hear: Hear) -> None:
    while True:
        try:
            connection, address = server.accept()
        except OSError as error:
            if error.errno in (errno.EBADF, errno.EINVAL):  # closed
                return
            time.sleep(_CROWDED_S)  # too many strangers at once, some of whom will have left, or one that has
            continue
        peer = f"{address[0]}:{address[1]}"
        try:
            threading.Thread(target=_hear, args=(connection, peer, hear), daemon=True).start()
        except RuntimeError:  # no more threads
            connection.close()


def _hear(connection: socket.socket, peer: str, hear: Hear) -> None:
    # the timeout alone would start anew with every byte
    connection.settimeout(HANDSHAKE_TIMEOUT_S)
    limit = threading.Timer(HANDSHAKE_TIMEOUT_S, _hang_up, (connection,))
    limit.daemon = True
    limit.start()
    try:
        hear(connection, peer)
    finally:
        limit.cancel()


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
