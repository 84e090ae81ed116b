"""A queue over one TCP connection: the frames one after another, whole, nothing between them."""

from __future__ import annotations

import select
import socket

import numpy as np

from streamdsb.channel import PeerGone
from streamdsb.frame import empty_frames
from streamdsb.layout import FRAME_BYTES
from streamdsb.queues.base import Capabilities


class _TcpEnd:
    capabilities = Capabilities(lossless=True, ordered=True, copies_padding=True)

    def __init__(self, connection: socket.socket, burst_frames: int, peer: str) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer = peer
        self._frames = empty_frames(burst_frames)
        self._bytes = self._frames.data.cast("B")

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def disarm(self) -> None:
        """Nothing to take back: a socket that is not polled does not wake anybody."""


class TcpSender(_TcpEnd):
    """The generator's end of a TCP queue."""

    poll_events = select.POLLOUT

    def __init__(self, connection: socket.socket, burst_frames: int, peer: str) -> None:
        super().__init__(connection, burst_frames, peer)
        self._unsent = self._bytes[:0]

    def acquire(self) -> np.ndarray | None:
        return self._frames if self._flush() else None

    def commit(self, count: int) -> None:
        self._unsent = self._bytes[: count * FRAME_BYTES]
        self._flush()

    def arm(self) -> bool:
        return not self._flush()

    def _flush(self) -> bool:
        """Send what the socket takes; True once nothing is left."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return False
        except OSError:
            raise PeerGone(f"{self._peer} has closed the data connection") from None
        return True


class TcpReceiver(_TcpEnd):
    """The receiver's end of a TCP queue."""

    poll_events = select.POLLIN

    def __init__(self, connection: socket.socket, burst_frames: int, peer: str) -> None:
        super().__init__(connection, burst_frames, peer)
        self._filled = 0
        self._whole = 0

    def receive(self) -> np.ndarray | None:
        self._fill()
        self._whole = self._filled // FRAME_BYTES
        return self._frames[: self._whole] if self._whole else None

    def release(self) -> None:
        rest = self._bytes[self._whole * FRAME_BYTES : self._filled]
        self._bytes[: len(rest)] = rest
        self._filled, self._whole = len(rest), 0

    def arm(self) -> bool:
        self._fill()
        return self._filled < FRAME_BYTES

    def _fill(self) -> None:
        try:
            while self._filled < len(self._bytes):
                got = self._socket.recv_into(self._bytes[self._filled :])
                if got == 0:
                    raise PeerGone(f"{self._peer} has closed the data connection")
                self._filled += got
        except BlockingIOError:
            pass
        except PeerGone:
            if self._filled < FRAME_BYTES:
                raise
        except OSError:
            raise PeerGone(f"{self._peer} has closed the data connection") from None
