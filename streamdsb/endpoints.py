"""One end of a queue between machines before it knows the other end.

Both ends meet over a TCP connection that has proved the token.  Frames then take that connection, or
datagrams between the addresses that were exchanged over it.
"""

from __future__ import annotations

import socket
from typing import Protocol

from streamdsb.config import Config
from streamdsb.errors import RunFailed
from streamdsb.queues import FrameReceiver, FrameSender, udp
from streamdsb.queues.tcp import TcpReceiver, TcpSender
from streamdsb.queues.udp import UdpReceiver, UdpSender


class Endpoint(Protocol):
    """An end that is being set up; it becomes a sender or a receiver once the other's address is known."""

    address: str
    """What the other end needs to know of this one."""

    def sender(self, address: str, window: int) -> FrameSender:
        """The generator's end, towards `address`, where at most `window` frames have room."""

    def receiver(self, address: str) -> tuple[FrameReceiver, int]:
        """The receiver's end, for frames from `address`, and how many of them have room."""


def open_endpoint(config: Config, connection: socket.socket) -> Endpoint:
    """This process's end of a queue, met over `connection`; raises UserError if it cannot be had."""
    if config.stream.transport == "udp":
        return _UdpEndpoint(config, connection)
    return _TcpEndpoint(config, connection)


class _TcpEndpoint:
    address = ""

    def __init__(self, config: Config, connection: socket.socket) -> None:
        self._burst_frames = config.stream.burst_frames
        self._connection = connection

    def sender(self, address: str, window: int) -> FrameSender:
        return TcpSender(self._connection, self._burst_frames, "the receiver")

    def receiver(self, address: str) -> tuple[FrameReceiver, int]:
        return TcpReceiver(self._connection, self._burst_frames, "the generator"), 0


class _UdpEndpoint:
    def __init__(self, config: Config, connection: socket.socket) -> None:
        self._stream = config.stream
        self._connection = connection
        self._socket = udp.open_socket(connection.getsockname()[0], config.stream.window_frames)
        self.address = str(self._socket.getsockname()[1])

    def sender(self, address: str, window: int) -> FrameSender:
        self._connect(address)
        return UdpSender(self._socket, self._stream.burst_frames, window)

    def receiver(self, address: str) -> tuple[FrameReceiver, int]:
        self._connect(address)
        receiver = UdpReceiver(self._socket, self._stream.burst_frames)
        receiver.window = min(receiver.window, self._stream.window_frames)
        return receiver, receiver.window

    def _connect(self, address: str) -> None:
        if not address.isdecimal() or not 0 < int(address) < 1 << 16:
            raise RunFailed(f"a UDP port was expected from the other end of the queue, not {address!r}")
        udp.connect_socket(self._socket, self._connection.getpeername()[0], int(address))
