"""Both ends of a queue of every kind that the CPU has, in one process."""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from streamdsb.errors import UserError
from streamdsb.jit import compile_kernels
from streamdsb.queues import FrameReceiver, FrameSender, ethernet, udp
from streamdsb.queues.ethernet import EthernetReceiver, EthernetSender
from streamdsb.queues.shm import ShmLink, ShmReceiver, ShmSender
from streamdsb.queues.tcp import TcpReceiver, TcpSender
from streamdsb.queues.udp import UdpReceiver, UdpSender

LOSSLESS_KINDS = ("shm", "tcp")
LOSSY_KINDS = ("udp", "ethernet")
KINDS = LOSSLESS_KINDS + LOSSY_KINDS
HANG_S = 30.0

RUN = secrets.randbits(32)
"""Which frames are ours on the loopback interface, which all processes of the machine share."""
QUEUE = 0x0102
WINDOW = 1024

compile_kernels(*ethernet.KERNELS, *udp.KERNELS)


@dataclass
class Pair:
    """Both ends of one queue."""

    sender: FrameSender
    receiver: FrameReceiver

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


def open_pair(kind: str, burst_frames: int, ring_bursts: int) -> Pair:
    """Both ends of a queue in this process; skips the test where there can be none."""
    if kind == "shm":
        link = ShmLink.create(burst_frames, ring_bursts)
        ring = os.dup(link.ring)
        return Pair(
            ShmSender(link.ring, link.sender_bell, burst_frames, ring_bursts, "the receiver"),
            ShmReceiver(ring, link.receiver_bell, burst_frames, ring_bursts, "the generator"),
        )
    if kind == "udp":
        return open_udp_pair(burst_frames, WINDOW)
    if kind == "ethernet":
        return open_ethernet_pair(burst_frames, WINDOW)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sending = socket.create_connection(server.getsockname())
        receiving, _ = server.accept()
    for connection in (sending, receiving):  # small, so that a queue fills up with few frames
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    return Pair(
        TcpSender(sending, burst_frames, "the receiver"),
        TcpReceiver(receiving, burst_frames, "the generator"),
    )


def udp_sockets(window: int, host: str = "127.0.0.1") -> tuple[socket.socket, socket.socket]:
    """Two sockets that are connected to each other."""
    first, second = udp.open_socket(host, window), udp.open_socket(host, window)
    for own, other in ((first, second), (second, first)):
        udp.connect_socket(own, host, other.getsockname()[1])
    return first, second


def open_udp_pair(burst_frames: int, window: int, host: str = "127.0.0.1") -> Pair:
    sending, receiving = udp_sockets(window, host)
    receiver = UdpReceiver(receiving, burst_frames)
    return Pair(UdpSender(sending, burst_frames, receiver.window), receiver)


def open_ethernet_pair(burst_frames: int, window: int, run: int = RUN, queue: int = QUEUE) -> Pair:
    try:
        mac = ethernet.mac_of("lo")
        receiver = EthernetReceiver("lo", mac, run, queue, burst_frames, window)
        return Pair(EthernetSender("lo", mac, run, queue, burst_frames, receiver.window), receiver)
    except UserError as error:
        pytest.skip(str(error))


@contextmanager
def queue_of(kind: str, burst_frames: int = 4, ring_bursts: int = 3) -> Iterator[Pair]:
    pair = open_pair(kind, burst_frames, ring_bursts)
    try:
        yield pair
    finally:
        pair.close()
