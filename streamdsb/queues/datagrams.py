"""What queues of datagrams share, of whichever network: a frame each, moved in batches by compiled code."""

from __future__ import annotations

import select
import socket
from contextlib import suppress

import numpy as np

from streamdsb.frame import empty_frames
from streamdsb.jit import kernel
from streamdsb.layout import FRAME_BYTES
from streamdsb.native import aim, message_headers, receive_some, send_some
from streamdsb.queues.base import Capabilities

_FEEDBACK_FRAMES = 16

# of Linux, where the socket module does not name them
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE = 33, 32


@kernel("int64(uint64[:, ::1], uint64[:, ::1], uint64[:, ::1], int64, int64)")
def _aim_at_frames(
    headers: np.ndarray, vectors: np.ndarray, frames: np.ndarray, count: int, segments: int
) -> int:
    """Let messages of up to `segments` frames each carry the first `count` frames; how many messages."""
    messages = 0
    for first in range(0, count, segments):
        size = min(segments, count - first) * FRAME_BYTES
        aim(headers, vectors, messages, frames[first].ctypes.data, size, 0, 0)
        messages += 1
    return messages


@kernel("int64(int64, uint64[:, ::1], int64, int64)")
def send(descriptor: int, headers: np.ndarray, first: int, stop: int) -> int:
    """Send messages `first` to `stop` - 1; the first that the system did not take."""
    while first < stop:
        taken = send_some(descriptor, headers, first, stop - first)
        if taken <= 0:
            break
        first += taken
    return first


@kernel("int64(int64, uint64[:, ::1], uint64[:, ::1])")
def receive(descriptor: int, headers: np.ndarray, frames: np.ndarray) -> int:
    """Receive whole frames, as many as have come; how many. What is no frame is cleared."""
    count = max(0, receive_some(descriptor, headers, frames.shape[0]))
    for i in range(count):
        if headers[i, 7] & np.uint64(0xFFFF_FFFF) != np.uint64(FRAME_BYTES):
            frames[i, 1] = np.uint64(0)
    return count


KERNELS = (_aim_at_frames, send, receive)


class Messages:
    """Frames in memory and the message headers that the system calls take for them."""

    def __init__(self, count: int) -> None:
        self.frames = empty_frames(count)
        self.headers = message_headers(count)
        self._vectors = np.zeros((count, 2), np.uint64)
        self.aim(count, 1)

    def aim(self, count: int, segments: int) -> int:
        """Let messages of up to `segments` frames each carry the first `count` frames; how many messages."""
        return int(_aim_at_frames(self.headers, self._vectors, self.frames, count, segments))


def widen(opened: socket.socket, size: int) -> None:
    """Ask for buffers of `size` bytes in both directions; the system may grant less."""
    for plain, forced in ((socket.SO_RCVBUF, _SO_RCVBUFFORCE), (socket.SO_SNDBUF, _SO_SNDBUFFORCE)):
        opened.setsockopt(socket.SOL_SOCKET, plain, size // 2)  # the system doubles it
        with suppress(PermissionError):
            opened.setsockopt(socket.SOL_SOCKET, forced, size // 2)


class DatagramEnd:
    """An end of a queue over a socket that takes and gives datagrams of one peer only."""

    capabilities = Capabilities(lossless=False, ordered=False, copies_padding=True, guards_payload=False)

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._descriptor = connected.fileno()

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        self._socket.close()

    def disarm(self) -> None:
        """Nothing to take back: a socket that is not polled does not wake anybody."""


class DatagramSender(DatagramEnd):
    """The generator's end; `window`: frames that the receiver has room for.

    segments: frames that the system takes as one message and sends as a datagram each.
    """

    def __init__(self, connected: socket.socket, burst_frames: int, window: int, segments: int = 1) -> None:
        super().__init__(connected)
        self.window = window
        self._out = Messages(burst_frames)
        self._back = Messages(_FEEDBACK_FRAMES)
        self._sent, self._committed = 0, 0
        self._segments = segments

    def acquire(self) -> np.ndarray | None:
        return self._out.frames if self._flush() else None

    def commit(self, count: int) -> None:
        self._sent, self._committed = 0, self._out.aim(count, self._segments)
        self._flush()

    def feedback(self) -> np.ndarray | None:
        count = receive(self._descriptor, self._back.headers, self._back.frames)
        return self._back.frames[:count] if count else None

    def arm(self) -> bool:
        return self._sent == self._committed or not self._flush()

    @property
    def poll_events(self) -> int:
        return select.POLLIN | (select.POLLOUT if self._sent < self._committed else 0)

    def _flush(self) -> bool:
        """Send what the socket takes; True once nothing is left."""
        self._sent = send(self._descriptor, self._out.headers, self._sent, self._committed)
        return self._sent == self._committed
