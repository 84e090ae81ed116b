"""One end of a queue between machines before it knows the other end.

Both ends meet over a TCP connection that has proved the token.  Frames then take that connection, or
datagrams between the addresses that were exchanged over it.
"""

from __future__ import annotations

import socket
from typing import Protocol

from streamdsb.config import Config
from streamdsb.errors import RunFailed
from streamdsb.layout import FRAME_BYTES
from streamdsb.messages import Role
from streamdsb.probe import PROBE_S
from streamdsb.queues import FrameReceiver, FrameSender, ethernet, udp
from streamdsb.queues.ethernet import EthernetReceiver, EthernetSender
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

    def silence(self, address: str) -> str:
        """What is wrong, in a sentence, if no frame gets to `address` and back."""


def open_endpoint(config: Config, role: Role, run: int, queue: int, connection: socket.socket) -> Endpoint:
    """The end of a queue in `role`, met over `connection`; raises UserError if it cannot be had."""
    if config.stream.transport == "udp":
        return _UdpEndpoint(config, connection)
    if config.stream.transport == "ethernet":
        return _EthernetEndpoint(config, role, run, queue)
    if config.stream.transport == "gpunetio":
        from streamdsb.gpunetio.ends import CardEndpoint

        return CardEndpoint(config, role, connection)
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

    def silence(self, address: str) -> str:
        raise AssertionError("what TCP does not bring it reports itself")


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

    def silence(self, address: str) -> str:
        host = self._connection.getpeername()[0]
        return (
            f"stream.transport is udp, but no datagram of {FRAME_BYTES} bytes got to the receiver at {host},"
            f" port {address}, and back within {PROBE_S:g} s; let them pass (firewalls, the MTU on the way)"
            " or use tcp"
        )

    def _connect(self, address: str) -> None:
        if not address.isdecimal() or not 0 < int(address) < 1 << 16:
            raise RunFailed(f"a UDP port was expected from the other end of the queue, not {address!r}")
        udp.connect_socket(self._socket, self._connection.getpeername()[0], int(address))


class _EthernetEndpoint:
    def __init__(self, config: Config, role: Role, run: int, queue: int) -> None:
        self._config = config
        process = config.generator if role == "generator" else config.receiver
        self._interface = process.interface or ""
        ethernet.require_usable(self._interface, f"{role}.interface")
        self._place = run, queue, config.stream.burst_frames
        self.address = ethernet.mac_of(self._interface).hex(":")

    def sender(self, address: str, window: int) -> FrameSender:
        return EthernetSender(self._interface, _parse_mac(address), *self._place, window)

    def receiver(self, address: str) -> tuple[FrameReceiver, int]:
        window = self._config.stream.window_frames
        return EthernetReceiver(self._interface, _parse_mac(address), *self._place, window), window

    def silence(self, address: str) -> str:
        return (
            f"generator.interface is {self._interface} ({self.address}) and receiver.interface is"
            f" {self._config.receiver.interface} ({address}), but no frame got from one to the other and back"
            f" within {PROBE_S:g} s; they have to be on one Ethernet link that carries {FRAME_BYTES} bytes a"
            " frame, or use stream.transport udp or tcp"
        )


def _parse_mac(address: str) -> bytes:
    try:
        mac = bytes.fromhex(address.replace(":", ""))
    except ValueError:
        mac = b""
    if len(mac) != 6:
        raise RunFailed(f"an Ethernet address was expected from the other end of the queue, not {address!r}")
    return mac
