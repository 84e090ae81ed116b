"""A queue of UDP datagrams, a frame each, between two sockets that are connected to each other.

The network may lose, repeat and reorder them.  A strange sender's datagrams do not reach a connected
socket.  Nothing is fragmented: the path has to carry jumbo frames.
"""

from __future__ import annotations

import select
import socket
from contextlib import suppress

import numpy as np

from streamdsb.errors import UserError
from streamdsb.frame import empty_frames
from streamdsb.jit import kernel
from streamdsb.layout import FRAME_BYTES
from streamdsb.native import aim, message_headers, receive_some, send_some
from streamdsb.queues.base import Capabilities

_BYTES_SET_ASIDE = 9216
"""What Linux charges a socket's buffer for one frame; 8448 were seen."""
_FEEDBACK_FRAMES = 16

SEGMENTS = 15
"""Frames that the system takes as one message, up to 64 KiB, and sends as a datagram each."""

# of Linux, where the socket module does not name them
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE = 33, 32
_IP_MTU_DISCOVER, _IP_MTU, _IPV6_MTU_DISCOVER, _IPV6_MTU, _NEVER_FRAGMENT = 10, 14, 23, 24, 2
_UDP_SEGMENT = 103
_UDP_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}


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


def open_socket(host: str, window: int) -> socket.socket:
    """A UDP socket at `host`, any port, with room for `window` frames if the system grants it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _NEVER_FRAGMENT)
    else:
        opened.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _NEVER_FRAGMENT)
    size = window * _BYTES_SET_ASIDE // 2  # the system doubles it
    for plain, forced in ((socket.SO_RCVBUF, _SO_RCVBUFFORCE), (socket.SO_SNDBUF, _SO_SNDBUFFORCE)):
        opened.setsockopt(socket.SOL_SOCKET, plain, size)
        with suppress(PermissionError):
            opened.setsockopt(socket.SOL_SOCKET, forced, size)
    opened.bind((host, 0))
    opened.setblocking(False)
    return opened


def connect_socket(opened: socket.socket, host: str, port: int) -> None:
    """Talk to the other end only; raises UserError if the way there does not carry whole frames."""
    opened.connect((host, port))
    six = opened.family == socket.AF_INET6
    level, option = (socket.IPPROTO_IPV6, _IPV6_MTU) if six else (socket.IPPROTO_IP, _IP_MTU)
    found, needed = opened.getsockopt(level, option), FRAME_BYTES + _UDP_HEADERS[opened.family]
    if found < needed:
        raise UserError(
            f"stream.transport udp needs an MTU of {needed} bytes or more, but the way to {host} has {found};"
            " set it on the interfaces (ip link set dev INTERFACE mtu 9000) or use stream.transport tcp"
        )


def segment(connected: socket.socket) -> bool:
    """Let a message of several frames be sent as a datagram each; False if the system is too old for it."""
    try:
        connected.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, FRAME_BYTES)
    except OSError:
        return False
    return True


class _UdpEnd:
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


class UdpSender(_UdpEnd):
    """The generator's end of a UDP queue; `window`: frames that the receiver's buffer holds."""

    def __init__(self, connected: socket.socket, burst_frames: int, window: int) -> None:
        super().__init__(connected)
        self.window = window
        self._out = Messages(burst_frames)
        self._back = Messages(_FEEDBACK_FRAMES)
        self._sent, self._committed = 0, 0
        self._segments = SEGMENTS if segment(connected) else 1

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


class UdpReceiver(_UdpEnd):
    """The receiver's end of a UDP queue."""

    poll_events = select.POLLIN

    def __init__(self, connected: socket.socket, burst_frames: int) -> None:
        super().__init__(connected)
        granted = connected.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self.window = max(1, granted // _BYTES_SET_ASIDE)
        self._in = Messages(burst_frames)
        self._back = Messages(1)
        self._held = 0

    def receive(self) -> np.ndarray | None:
        if not self._held:
            self._held = receive(self._descriptor, self._in.headers, self._in.frames)
        return self._in.frames[: self._held] if self._held else None

    def release(self) -> None:
        self._held = 0

    def answer(self, frames: np.ndarray) -> None:
        for frame in frames:
            self._back.frames[0] = frame
            send(self._descriptor, self._back.headers, 0, 1)

    def arm(self) -> bool:
        return not self._held
