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
from streamdsb.jit import kernel
from streamdsb.layout import FRAME_BYTES
from streamdsb.native import moved, receive_some
from streamdsb.queues import datagrams
from streamdsb.queues.datagrams import DatagramEnd, DatagramSender, Messages, send, widen

_BYTES_SET_ASIDE = 9216
"""What Linux charges a socket's buffer for one frame; 8448 were seen."""

SEGMENTS = 15
"""Frames that the system takes as one message, up to 64 KiB, and sends as a datagram each."""

# of Linux, where the socket module does not name them
_IP_MTU_DISCOVER, _IP_MTU, _IPV6_MTU_DISCOVER, _IPV6_MTU, _NEVER_FRAGMENT = 10, 14, 23, 24, 2
_UDP_SEGMENT, _UDP_GRO = 103, 104
_REFUSALS = (errno.EINVAL, errno.EIO, errno.EOPNOTSUPP)
_UDP_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}


@kernel("int64(int64, uint64[:, ::1], int64[::1])")
def _receive_whole(descriptor: int, headers: np.ndarray, counts: np.ndarray) -> int:
    """Receive messages, as many as have come; how many, and in `counts` the whole frames of each."""
    messages = max(0, receive_some(descriptor, headers, counts.size))
    for i in range(messages):
        counts[i] = moved(headers, i)[0] // FRAME_BYTES
    return messages


@kernel("int64(int64[::1], int64, int64, int64)")
def _run_from(counts: np.ndarray, first: int, stop: int, segments: int) -> int:
    """How many messages from `first` on, before `stop`, have their frames without a gap between them."""
    last = first
    while last < stop and counts[last] == segments:
        last += 1
    return min(last + 1, stop) - first


KERNELS = (*datagrams.KERNELS, _receive_whole, _run_from)


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
        self._in = Messages(burst_frames // self._segments * self._segments)
        self._counts = np.zeros(self._in.aim(len(self._in.frames), self._segments), np.int64)
        self._back = Messages(1)
        self._message, self._messages = 0, 0  # the first that is not released yet, and how many came
        self._run, self._held = 0, 0  # messages and frames of the burst that is held

    def receive(self) -> np.ndarray | None:
        while not self._held:
            self._message += self._run
            if self._message == self._messages:
                self._message = 0
                self._messages = _receive_whole(self._descriptor, self._in.headers, self._counts)
            self._run = _run_from(self._counts, self._message, self._messages, self._segments)
            if not self._run:
                return None
            last = self._message + self._run - 1
            self._held = (self._run - 1) * self._segments + int(self._counts[last])
        first = self._message * self._segments
        return self._in.frames[first : first + self._held]

    def release(self) -> None:
        self._held = 0

    def answer(self, frames: np.ndarray) -> None:
        for frame in frames:
            self._back.frames[0] = frame
            send(self._descriptor, self._back.headers, 0, 1)

    def arm(self) -> bool:
        return not self._held and self._message + self._run == self._messages
