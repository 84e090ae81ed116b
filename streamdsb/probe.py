"""Whether frames get from one end of a queue to the other and back, tried before any of them carries data."""

from __future__ import annotations

import select
import socket
import time

from streamdsb.frame import FrameType, empty_frames, write_headers
from streamdsb.queues import wait_for_any
from streamdsb.queues.base import LossyReceiver, LossySender

PROBE_S = 5.0
"""How long it is tried; links that lose many frames get one through much sooner."""
PROBE_PASS = 2**32 - 1
"""What probes say to belong to: no run has so many passes, so one that is late is taken for nothing else."""
_REPEAT_S = 0.02


def probe(sender: LossySender, run: int, queue: int) -> bool:
    """Send frames until one comes back; False if none has for PROBE_S seconds."""
    deadline = time.monotonic() + PROBE_S
    while time.monotonic() < deadline:
        frames = sender.acquire()
        if frames is not None:
            write_headers(frames[:1], int(FrameType.PASS_END), run, PROBE_PASS, 0, 0, 0, queue, 0)
            sender.commit(1)
        if wait_for_any([sender], _REPEAT_S) and sender.feedback() is not None:
            return True
    return False


def answer_probes(receiver: LossyReceiver, run: int, queue: int, connection: socket.socket) -> None:
    """Send a frame back for each burst that comes, until the generator hangs up `connection`."""
    answer = empty_frames(1)
    write_headers(answer, int(FrameType.PASS_ACK), run, PROBE_PASS, 0, 0, 0, queue, 0)
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(receiver.fileno(), receiver.poll_events)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if receiver.receive() is not None:
            receiver.release()
            receiver.answer(answer)
        elif connection.fileno() in ready:
            return
        receiver.disarm()
