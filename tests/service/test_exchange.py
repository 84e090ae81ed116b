"""The client's compiled loop against a socket that answers each request, however requests go out together."""

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from streamdsb import native
from streamdsb.service.exchange import REPLY_ROOM, collect, exchange, send_when_due
from streamdsb.service.limits import FRAME_BYTES, HEADER_BYTES
from streamdsb.service.messages import MessageType
from streamdsb.service.segments import can_join

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason="the compiled loop needs Linux")


class Echo:
    """Answers each datagram with its own header as a result; knows what sizes came."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.sizes: list[int] = []
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while True:
            request, sender = self.socket.recvfrom(2048)
            if not request:
                return
            self.sizes.append(len(request))
            answer = bytearray(request[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0"))
            answer[15] = MessageType.RESULT
            self.socket.sendto(answer, sender)


@pytest.fixture
def asking() -> Iterator[tuple[Echo, socket.socket]]:
    echo = Echo()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect(echo.socket.getsockname())
        yield echo, made
        made.send(b"")
    echo.thread.join()
    echo.socket.close()


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        [80],
        [80] * 5,
        [80, 80, 96],
        [80, 96, 80],
        [96, 96, 96, 80, 80, 80],
        [80, 96, 96, 80] * 20,
        [1000] * 64,
    ],
)
def test_each_request_goes_out_once(
    asking: tuple[Echo, socket.socket], sizes: list[int], joins: bool
) -> None:
    echo, made = asking
    joins = joins and can_join(made)
    count = len(sizes)
    frames = np.zeros((count, FRAME_BYTES), np.uint8)
    frames.view("<u8")[:, 3] = 1000 + np.arange(count)
    times, replies = np.zeros((2, count), np.int64), np.zeros((count, REPLY_ROOM), np.uint8)
    answered = exchange(
        made.fileno(), frames, np.array(sizes), np.arange(count), np.zeros(count, np.int64), count,
        2_000_000_000, False, joins, replies, times[0], times[1],
    )  # fmt: skip
    assert (answered, echo.sizes) == (count, sizes)
    assert (times > 0).all()


def test_a_thread_that_sends_and_one_that_takes_replies(asking: tuple[Echo, socket.socket]) -> None:
    echo, made = asking
    count = 200
    frames = np.zeros((count, FRAME_BYTES), np.uint8)
    frames.view("<u8")[:, 3] = 1000 + np.arange(count)
    due = 50_000 * np.arange(count)
    times, replies = np.zeros((2, count), np.int64), np.zeros((count, REPLY_ROOM), np.uint8)
    sender = threading.Thread(
        target=send_when_due,
        args=(made.fileno(), frames, np.full(count, 80), due, can_join(made), times[0]),
    )
    sender.start()
    answered = collect(made.fileno(), 1000, 2_000_000_000, replies, times[1])
    sender.join()
    assert (answered, echo.sizes) == (count, [80] * count)
    assert (times[1] >= times[0]).all()
    assert (times[0] - times[0, 0] >= due - due[0] - 1_000_000).all()
    assert (replies.view("<u8")[:, 3] == 1000 + np.arange(count)).all()
