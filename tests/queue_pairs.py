"""Both ends of a queue of every kind that the CPU has, in one process."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from streamdsb.queues import FrameReceiver, FrameSender
from streamdsb.queues.shm import ShmLink, ShmReceiver, ShmSender
from streamdsb.queues.tcp import TcpReceiver, TcpSender

KINDS = ("shm", "tcp")
HANG_S = 30.0


@dataclass
class Pair:
    """Both ends of one queue."""

    sender: FrameSender
    receiver: FrameReceiver

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


def open_pair(kind: str, burst_frames: int, ring_bursts: int) -> Pair:
    """Both ends of a queue in this process."""
    if kind == "shm":
        link = ShmLink.create(burst_frames, ring_bursts)
        ring = os.dup(link.ring)
        return Pair(
            ShmSender(link.ring, link.sender_bell, burst_frames, ring_bursts, "the receiver"),
            ShmReceiver(ring, link.receiver_bell, burst_frames, ring_bursts, "the generator"),
        )
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


@contextmanager
def queue_of(kind: str, burst_frames: int = 4, ring_bursts: int = 3) -> Iterator[Pair]:
    pair = open_pair(kind, burst_frames, ring_bursts)
    try:
        yield pair
    finally:
        pair.close()
