"""A queue of UDP datagrams, a frame each, between two sockets that are connected to each other.

The network may lose, repeat and reorder them.  A strange sender's datagrams do not reach a connected
socket.  Nothing is fragmented: the path has to carry jumbo frames.
"""

from __future__ import annotations

import errno
import select
import socket

import numpy as np

from streamdsb.errors import UserError
from streamdsb.frame import empty_frames
from streamdsb.jit import kernel
from streamdsb.layout import FRAME_BYTES, FRAME_WORDS
from streamdsb.native import aim, message_headers, moved, receive_some
from streamdsb.queues import datagrams
from streamdsb.queues.datagrams import DatagramEnd, DatagramSender, Messages, send, widen

_BYTES_SET_ASIDE = 9216
"""What Linux charges a socket's buffer for one frame; 8448 were seen."""

SEGMENTS = 15
"""Frames that the system takes as one message, up to 64 KiB, and sends as a datagram each."""
_MESSAGES_AT_A_TIME = 4

# of Linux, where the socket module does not name them
_IP_MTU_DISCOVER, _IP_MTU, _IPV6_MTU_DISCOVER, _IPV6_MTU, _NEVER_FRAGMENT = 10, 14, 23, 24, 2
_UDP_SEGMENT, _UDP_GRO = 103, 104
_REFUSALS = (errno.EINVAL, errno.EIO, errno.EOPNOTSUPP)
_UDP_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}


@kernel("int64(int64, uint64[:, ::1], uint64[:, ::1], uint64[:, ::1], int64)")
def _receive_messages(
    descriptor: int, headers: np.ndarray, vectors: np.ndarray, frames: np.ndarray, segments: int
) -> int:
    """Fill `frames` from the first on with what has come; how many whole frames that is.

    A message has room for `segments` frames.  Few are asked for at a time, and what follows one of fewer
    frames moves up, so that all lie without a gap however many a message brings.
    """
    filled = 0
    while True:
        room = min(headers.shape[0], (frames.shape[0] - filled) // segments)
        for i in range(room):
            data = frames[filled + i * segments].ctypes.data
            aim(headers, vectors, i, data, segments * FRAME_BYTES, 0, 0)
        came, source = max(0, receive_some(descriptor, headers, room)), filled
        for i in range(came):
            whole = moved(headers, i)[0] // FRAME_BYTES
            if source > filled:
                for row in range(whole):
                    for word in range(FRAME_WORDS):
                        frames[filled + row, word] = frames[source + row, word]
            filled += whole
            source += segments
        if room == 0 or came < room:
            return filled


KERNELS = (*datagrams.KERNELS, _receive_messages)


def open_socket(host: str, window: int) -> socket.socket:
    """A UDP socket at `host`, any port, with room for `window` frames if the system grants it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _NEVER_FRAGMENT)
    else:
        opened.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _NEVER_FRAGMENT)
    widen(opened, window * _BYTES_SET_ASIDE)
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


class UdpSender(DatagramSender):
    """The generator's end of a UDP queue; `window`: frames that the receiver's buffer holds."""

    def __init__(self, connected: socket.socket, burst_frames: int, window: int) -> None:
        super().__init__(connected, burst_frames, window, SEGMENTS if segment(connected) else 1)
        self._count = 0

    def commit(self, count: int) -> None:
        self._count = count
        super().commit(count)

    def _flush(self) -> bool:
        return super()._flush() or (self._segments > 1 and self._look_why() and super()._flush())

    def _look_why(self) -> bool:
        """Whether what was left can go after all: a system or an interface may refuse to segment messages."""
        first = self._sent * self._segments
        try:
            self._socket.send(self._out.frames[first : min(first + self._segments, self._count)].data)
        except OSError as error:
            if error.errno not in _REFUSALS:
                return False
            self._socket.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, 0)
            self._segments = 1
            self._committed = self._out.aim(self._count, 1)
            self._sent = first
        else:
            self._sent += 1
        return True


def coalesce(connected: socket.socket) -> bool:
    """Let up to SEGMENTS datagrams come as one message; False if the system is too old for it."""
    try:
        connected.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
    except OSError:
        return False
    return True


class UdpReceiver(DatagramEnd):
    """The receiver's end of a UDP queue."""

    poll_events = select.POLLIN

    def __init__(self, connected: socket.socket, burst_frames: int) -> None:
        super().__init__(connected)
        granted = connected.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self.window = max(1, granted // _BYTES_SET_ASIDE)
        self._segments = SEGMENTS if burst_frames >= SEGMENTS and coalesce(connected) else 1
        messages = _MESSAGES_AT_A_TIME if self._segments > 1 else burst_frames
        self._headers, self._vectors = message_headers(messages), np.zeros((messages, 2), np.uint64)
        self._in = empty_frames(burst_frames)
        self._back = Messages(1)
        self._held = 0

    def receive(self) -> np.ndarray | None:
        if not self._held:
            self._held = _receive_messages(
                self._descriptor, self._headers, self._vectors, self._in, self._segments
            )
        return self._in[: self._held] if self._held else None

    def release(self) -> None:
        self._held = 0

    def answer(self, frames: np.ndarray) -> None:
        for frame in frames:
            self._back.frames[0] = frame
            send(self._descriptor, self._back.headers, 0, 1)

    def arm(self) -> bool:
        return not self._held
