"""Queues that may lose frames, of both kinds: what goes back, and what happens when there is no room."""

import select
import threading
import time
from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest

from streamdsb.frame import FrameType, empty_frames, write_headers
from streamdsb.queues import wait_for_any
from streamdsb.queues.base import LossyReceiver, LossySender
from tests.queue_pairs import HANG_S, LOSSY_KINDS, QUEUE, RUN, WINDOW, Pair, queue_of

BURST = 64
ON_THE_WAY = 256
"""Frames that the test has on the way at most; either direction has room for more."""


@pytest.fixture(params=LOSSY_KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with queue_of(request.param, BURST) as opened:
        yield opened


def ends_of(pair: Pair) -> tuple[LossySender, LossyReceiver]:
    return cast(LossySender, pair.sender), cast(LossyReceiver, pair.receiver)


def number(frames: np.ndarray, kind: FrameType, numbers: range | list[int]) -> np.ndarray:
    """As many of `frames` as there are numbers, each with its own in its header and all over its payload."""
    numbered = frames[: len(numbers)]
    write_headers(numbered, int(kind), RUN, 0, 0, 0, 0, QUEUE, 0)
    numbered[:, 3] = numbers
    numbered[:, 8:] = numbered[:, 3:4]
    return numbered


def numbers_of(frames: np.ndarray) -> list[int]:
    assert (frames[:, 8:512] == frames[:, 3:4]).all(), "a frame is torn"
    return [int(value) for value in frames[:, 3]]


def send(sender: LossySender, numbers: range) -> None:
    """Send the numbers, in bursts, without waiting for anybody."""
    for start in range(numbers.start, numbers.stop, BURST):
        part = range(start, min(start + BURST, numbers.stop))
        while (frames := sender.acquire()) is None:
            assert wait_for_any([sender], HANG_S)
        number(frames, FrameType.TILE, part)
        sender.commit(len(part))
    while sender.acquire() is None:
        assert wait_for_any([sender], HANG_S)


def take_all(receiver: LossyReceiver, timeout_s: float = 0.1) -> list[int]:
    """The numbers of all frames until none has come for a while."""
    numbers: list[int] = []
    while wait_for_any([receiver], timeout_s):
        if (frames := receiver.receive()) is not None:
            numbers += numbers_of(frames)
            receiver.release()
    return numbers


def pump(sender: LossySender, receiver: LossyReceiver, count: int) -> None:
    """Send `count` frames there and each back; every number arrives once at either end, in order."""
    sent, received, returned = 0, list[int](), list[int]()
    answers = empty_frames(BURST)
    deadline = time.monotonic() + HANG_S
    while len(returned) < count:
        assert time.monotonic() < deadline, f"{sent} sent, {len(received)} received, {len(returned)} returned"
        size = min(BURST, count - sent, ON_THE_WAY - (sent - len(returned)))
        if size > 0:
            send(sender, range(sent, sent + size))
            sent += size
        if (frames := receiver.receive()) is not None:
            received += (numbers := numbers_of(frames))
            receiver.release()
            receiver.answer(number(answers, FrameType.RESEND, numbers))
        if (back := sender.feedback()) is not None:
            returned += numbers_of(back)
    assert received == returned == list(range(count))


def test_many_frames_there_and_back(pair: Pair) -> None:
    pump(*ends_of(pair), 20_000)


def test_nothing_has_come_back_yet(pair: Pair) -> None:
    sender, receiver = ends_of(pair)
    send(sender, range(3))
    assert take_all(receiver) == [0, 1, 2]
    assert sender.feedback() is None
    assert not wait_for_any([sender], 0)


def test_an_answer_wakes_the_sender(pair: Pair) -> None:
    sender, receiver = ends_of(pair)
    for i in range(20):
        assert sender.arm()
        answer = number(empty_frames(2), FrameType.PASS_ACK, [i, i + 1])
        thread = threading.Thread(target=receiver.answer, args=(answer,))
        thread.start()
        poll = select.poll()
        poll.register(sender.fileno(), sender.poll_events)
        assert poll.poll(HANG_S * 1000), "slept through an answer"
        thread.join()
        sender.disarm()
        back = list[int]()
        while len(back) < 2:
            if (frames := sender.feedback()) is not None:
                back += numbers_of(frames)
        assert back == [i, i + 1]


def test_a_whole_window_has_room(pair: Pair) -> None:
    sender, receiver = ends_of(pair)
    assert sender.window == receiver.window
    for turn in range(3):
        numbers = range(turn * sender.window, (turn + 1) * sender.window)
        send(sender, numbers)
        assert take_all(receiver) == list(numbers)


def test_what_has_no_room_is_lost_and_the_rest_comes_whole(pair: Pair) -> None:
    sender, receiver = ends_of(pair)
    far_too_many = range(8 * max(WINDOW, sender.window))
    send(sender, far_too_many)
    received = take_all(receiver)
    assert received == sorted(set(received))
    assert sender.window <= len(received) < len(far_too_many)
    send(sender, range(7))
    assert take_all(receiver) == list(range(7))


def test_a_receiver_that_is_gone_does_not_hold_the_sender_up(pair: Pair) -> None:
    sender, receiver = ends_of(pair)
    receiver.close()
    send(sender, range(4 * BURST))
    assert sender.feedback() is None


def test_a_sender_that_is_gone_does_not_hold_the_receiver_up(pair: Pair) -> None:
    sender, receiver = ends_of(pair)
    send(sender, range(3))
    sender.close()
    assert take_all(receiver) == [0, 1, 2]
    for _ in range(4):
        receiver.answer(number(empty_frames(1), FrameType.RESEND, [0]))
    assert not wait_for_any([receiver], 0.01) or receiver.receive() is None
