"""A control connection: whole messages over a stream socket, and the proof that the peer has the token."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import threading
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from streamdsb.errors import RunFailed, UserError
from streamdsb.messages import parse_message

_LENGTHS = struct.Struct("<II")
_MAX_TEXT = 1 << 20
_NONCE = 32
_MAGIC = b"streamdsb control 1\n"

M = TypeVar("M", bound=BaseModel)


class PeerGone(RunFailed):
    """The other end of a connection has closed it."""


class Channel:
    """Messages over one connected stream socket; `send` may be called from several threads."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self._socket = connection
        self._send_lock = threading.Lock()
        self.peer = peer
        """Who is at the other end, for error messages."""
        self.max_bytes = 0
        """How many bytes may come beside a message."""
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: BaseModel, data: bytes | memoryview = b"") -> None:
        """Send `message` and the bytes that belong to it; raises PeerGone if nobody is there."""
        text = message.model_dump_json().encode()
        try:
            with self._send_lock:
                self._socket.sendall(_LENGTHS.pack(len(text), len(data)) + text)
                if data:
                    self._socket.sendall(data)
        except OSError:
            raise PeerGone(f"{self.peer} has closed the control connection") from None

    def receive(self) -> tuple[BaseModel, bytes]:
        """Wait for the next message and its bytes; raises PeerGone at the end of the stream."""
        text_length, data_length = _LENGTHS.unpack(self._receive_exactly(_LENGTHS.size))
        for length, limit in ((text_length, _MAX_TEXT), (data_length, self.max_bytes)):
            if length > limit:
                raise RunFailed(f"{self.peer} announced a control message of {length} bytes, over {limit}")
        text = self._receive_exactly(text_length)
        data = self._receive_exactly(data_length)
        try:
            return parse_message(text), data
        except ValidationError as error:
            first = error.errors()[0]
            raise RunFailed(
                f"{self.peer} sent a control message that cannot be read: {first['msg']}"
            ) from None

    def expect(self, kind: type[M]) -> tuple[M, bytes]:
        """Receive a message that has to be of `kind`."""
        message, data = self.receive()
        if not isinstance(message, kind):
            raise RunFailed(f"{self.peer} sent {type(message).__name__} where {kind.__name__} was expected")
        return message, data

    def set_timeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._socket.close()

    def shutdown(self) -> None:
        """Wake whoever waits in `receive` with PeerGone."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _receive_exactly(self, count: int) -> bytes:
        return receive_exactly(self._socket, count, self.peer)


def receive_exactly(connection: socket.socket, count: int, peer: str) -> bytes:
    """`count` bytes from `connection`; raises PeerGone if it ends before, RunFailed if it times out."""
    parts = bytearray(count)
    view, got = memoryview(parts), 0
    while got < count:
        try:
            step = connection.recv_into(view[got:])
        except TimeoutError:
            raise RunFailed(f"{peer} said nothing for {connection.gettimeout():g} s") from None
        except OSError:
            step = 0
        if step == 0:
            raise PeerGone(f"{peer} has closed the connection")
        got += step
    return bytes(parts)


def prove_token(connection: socket.socket, token: str, peer: str, *, asking: bool) -> None:
    """Prove to each other that both ends have `token`, without sending it (HMAC-SHA256 of fresh nonces).

    Both ends call this on a new TCP connection, the one that connected with asking=True.  Raises
    UserError if the other end has another token or does not speak this protocol.
    """
    own = os.urandom(_NONCE)
    connection.sendall(_MAGIC + own)
    greeting = receive_exactly(connection, len(_MAGIC) + _NONCE, peer)
    if greeting[: len(_MAGIC)] != _MAGIC:
        raise UserError(
            f"{peer} does not speak {_MAGIC.decode().strip()}; is another program listening there?"
        )
    theirs = greeting[len(_MAGIC) :]

    def answer(side: bytes, nonces: bytes) -> bytes:
        return hmac.new(os.fsencode(token), side + nonces, hashlib.sha256).digest()

    sides = (b"ask", b"answer") if asking else (b"answer", b"ask")
    connection.sendall(answer(sides[0], theirs + own))
    try:
        proof = receive_exactly(connection, hashlib.sha256().digest_size, peer)
    except PeerGone:
        raise UserError(f"{peer} refused the token; both sides need the same STREAMDSB_TOKEN") from None
    if not hmac.compare_digest(proof, answer(sides[1], own + theirs)):
        raise UserError(f"{peer} has another token; both sides need the same STREAMDSB_TOKEN")
