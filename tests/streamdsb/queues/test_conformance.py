"""One suite for every kind of queue on the CPU: order, back-pressure, wake-ups and the end of a peer.

Queues that may lose frames lose none here: nothing disturbs them, and no more are on the way than there is
room for.
"""

import multiprocessing
import os
import select
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdsb.channel import PeerGone
from streamdsb.frame import FrameType, write_headers
from streamdsb.queues import FrameReceiver, FrameSender, wait_for_any
from streamdsb.queues.shm import ShmReceiver, ShmSender
from streamdsb.queues.tcp import TcpReceiver, TcpSender
from tests.queue_pairs import HANG_S, KINDS, LOSSLESS_KINDS, QUEUE, RUN, Pair, open_pair, queue_of

END = 2**64 - 1


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A queue with bursts of 4 frames, 3 of them in a ring."""
    with queue_of(request.param) as opened:
        yield opened


@pytest.fixture
def lossless_pair(pair: Pair) -> Pair:
    """Likewise, of a kind that knows of its other end: that it is full, or gone."""
    if not pair.sender.capabilities.lossless:
        pytest.skip("a queue that may lose frames does not know of its other end")
    return pair


def put(sender: FrameSender, numbers: list[int]) -> bool:
    """Send a burst with a number in each header and all over each payload; False if the queue is full."""
    frames = sender.acquire()
    if frames is None:
        return False
    write_headers(frames[: len(numbers)], int(FrameType.TILE), RUN, 0, 0, 0, 0, QUEUE, 0)
    frames[: len(numbers), 3] = numbers
    frames[: len(numbers), 8:] = np.array(numbers, np.uint64)[:, None]
    sender.commit(len(numbers))
    return True


def take(receiver: FrameReceiver, timeout_s: float = HANG_S) -> list[int]:
    """The numbers of the next burst, once it has come, released."""
    while (frames := receiver.receive()) is None:
        assert wait_for_any([receiver], timeout_s), "no frame came"
    numbers = numbers_of(frames)
    receiver.release()
    return numbers


def numbers_of(frames: np.ndarray) -> list[int]:
    assert frames.flags.c_contiguous
    assert frames.shape[1] >= 512
    assert (frames[:, 8:512] == frames[:, 3:4]).all(), "a frame is torn"
    return [int(number) for number in frames[:, 3]]


def take_all(receiver: FrameReceiver, count: int) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < count:
        numbers += take(receiver)
    return numbers


def fill_up(sender: FrameSender) -> list[int]:
    """Send bursts of 4 until the queue takes no more; the numbers that it has taken.

    The kernel may move on what a TCP socket holds and so make room a little later.
    """
    numbers: list[int] = []
    while wait_for_any([sender], 0.1):
        if put(sender, list(range(len(numbers), len(numbers) + 4))):
            numbers += range(len(numbers), len(numbers) + 4)
        assert len(numbers) < 10_000, "the queue never fills up"
    return numbers


def test_an_empty_queue_has_nothing_and_room_for_a_burst(pair: Pair) -> None:
    assert pair.receiver.receive() is None
    frames = pair.sender.acquire()
    assert frames is not None
    assert frames.shape == (4, 512)
    assert frames.dtype == np.uint64
    assert frames.flags.writeable


@pytest.mark.parametrize("kind", KINDS)
def test_both_ends_promise_the_same(kind: str) -> None:
    with queue_of(kind) as pair:
        capabilities = pair.sender.capabilities
        assert pair.receiver.capabilities == capabilities
        assert capabilities.lossless == capabilities.ordered == (kind in LOSSLESS_KINDS)
        assert capabilities.lossless <= capabilities.guards_payload


def test_frames_come_in_order_whole_and_once(pair: Pair) -> None:
    sent: list[int] = []
    for count in (4, 1, 2, 4, 3):
        burst = list(range(len(sent), len(sent) + count))
        while not put(pair.sender, burst):
            raise AssertionError("an emptied queue is full")
        sent += burst
        assert take_all(pair.receiver, count) == burst
    assert pair.receiver.receive() is None


def test_acquiring_again_before_a_commit_sends_nothing(pair: Pair) -> None:
    for _ in range(5):
        assert pair.sender.acquire() is not None
    assert pair.receiver.receive() is None
    put(pair.sender, [7])
    assert take(pair.receiver) == [7]
    assert pair.receiver.receive() is None


def test_frames_stay_until_they_are_released(pair: Pair) -> None:
    put(pair.sender, [1, 2])
    assert wait_for_any([pair.receiver], HANG_S)
    first = pair.receiver.receive()
    assert first is not None
    held = first[:, :512].copy()
    put(pair.sender, [3, 4])
    again = pair.receiver.receive()
    assert again is not None
    assert (again[: len(held), :512] == held).all()
    assert (first[:, :512] == held).all()
    pair.receiver.release()


def test_unreleased_frames_hold_the_sender_back(lossless_pair: Pair) -> None:
    sent = fill_up(lossless_pair.sender)
    assert lossless_pair.sender.acquire() is None
    assert not wait_for_any([lossless_pair.sender], 0.05)
    assert lossless_pair.sender.acquire() is None
    received = take(lossless_pair.receiver)
    while lossless_pair.sender.acquire() is None:  # which also sends what TCP did not take at the commit
        received += take(lossless_pair.receiver)
    assert received + take_all(lossless_pair.receiver, len(sent) - len(received)) == sent


def test_the_shared_ring_holds_as_many_bursts_as_it_was_made_for() -> None:
    with queue_of("shm", burst_frames=4, ring_bursts=3) as pair:
        assert len(fill_up(pair.sender)) == 12
        assert take(pair.receiver) == [0, 1, 2, 3]
        assert put(pair.sender, [12])
        assert not put(pair.sender, [13])


def test_what_is_there_already_is_seen_without_waiting(pair: Pair) -> None:
    # room is nothing to wait for where it does not depend on the other end: such a sender waits for answers
    assert wait_for_any([pair.sender], 0) == pair.sender.capabilities.lossless
    assert not wait_for_any([pair.receiver], 0)
    put(pair.sender, [1])
    assert wait_for_any([pair.receiver], HANG_S)
    assert wait_for_any([pair.receiver], 0)
    assert take(pair.receiver) == [1]
    assert not wait_for_any([pair.receiver], 0)


def test_a_sleeping_receiver_is_woken(pair: Pair) -> None:
    for number in range(50):
        thread = threading.Thread(target=put, args=(pair.sender, [number]))
        assert pair.receiver.arm()
        thread.start()
        poll = select.poll()
        poll.register(pair.receiver.fileno(), pair.receiver.poll_events)
        assert poll.poll(HANG_S * 1000), "slept through a frame"
        pair.receiver.disarm()
        thread.join()
        assert take(pair.receiver) == [number]


def test_a_sleeping_sender_is_woken(lossless_pair: Pair) -> None:
    sent = fill_up(lossless_pair.sender)
    thread = threading.Thread(target=take_all, args=(lossless_pair.receiver, len(sent)))
    thread.start()
    while lossless_pair.sender.acquire() is None:
        assert wait_for_any([lossless_pair.sender], HANG_S), "slept through a release"
    thread.join()


def test_disarming_takes_a_wake_up_back(pair: Pair) -> None:
    assert pair.receiver.arm()
    pair.receiver.disarm()
    assert not wait_for_any([pair.receiver], 0)
    assert pair.receiver.arm()
    put(pair.sender, [1])
    pair.receiver.disarm()
    assert take(pair.receiver) == [1]
    assert not wait_for_any([pair.receiver], 0.02), "an old wake-up was left"


def test_the_first_of_several_queues_wakes(pair: Pair) -> None:
    with queue_of("shm") as other, queue_of("tcp") as third:
        receivers = [other.receiver, pair.receiver, third.receiver]
        assert not wait_for_any(receivers, 0)
        for sender, receiver in ((third.sender, third.receiver), (other.sender, other.receiver)):
            thread = threading.Thread(target=put, args=(sender, [1]))
            thread.start()
            assert wait_for_any(receivers, HANG_S)
            thread.join()
            assert take(receiver) == [1]
        assert not wait_for_any(receivers, 0)


def _until_gone(end: FrameSender | FrameReceiver, timeout_s: float = 0.05) -> None:
    for _ in range(1000):
        if isinstance(end, ShmSender | TcpSender):
            put(end, [1, 2, 3, 4])
        elif isinstance(end, ShmReceiver | TcpReceiver) and end.receive() is not None:
            end.release()
        wait_for_any([end], timeout_s)  # type: ignore[list-item]


def test_a_receiver_that_closes_is_missed(lossless_pair: Pair) -> None:
    lossless_pair.receiver.close()
    with pytest.raises(PeerGone, match="the receiver"):
        _until_gone(lossless_pair.sender)


def test_a_sender_that_closes_is_missed(lossless_pair: Pair) -> None:
    lossless_pair.sender.close()
    with pytest.raises(PeerGone, match="the generator"):
        _until_gone(lossless_pair.receiver)


def test_a_sender_that_closes_wakes_a_sleeping_receiver(lossless_pair: Pair) -> None:
    timer = threading.Timer(0.05, lossless_pair.sender.close)
    timer.start()
    with pytest.raises(PeerGone, match="the generator"):
        _until_gone(lossless_pair.receiver, HANG_S)
    timer.join()


def test_a_receiver_that_closes_wakes_a_sleeping_sender(lossless_pair: Pair) -> None:
    fill_up(lossless_pair.sender)
    timer = threading.Timer(0.05, lossless_pair.receiver.close)
    timer.start()
    with pytest.raises(PeerGone, match="the receiver"):
        _until_gone(lossless_pair.sender, HANG_S)
    timer.join()


def test_frames_sent_before_a_close_still_come(pair: Pair) -> None:
    put(pair.sender, [1, 2, 3])
    pair.sender.close()
    assert take_all(pair.receiver, 3) == [1, 2, 3]


def test_a_torn_frame_is_not_delivered() -> None:
    with queue_of("tcp") as pair:
        connection = pair.sender._socket  # type: ignore[attr-defined]
        connection.send(bytes(4096 + 100))
        assert take(pair.receiver) == [0]
        assert pair.receiver.receive() is None
        connection.send(bytes(3996))
        assert take(pair.receiver) == [0]


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=25)
@given(data=st.data(), burst_frames=st.integers(1, 9), ring=st.integers(2, 5))
def test_any_interleaving(kind: str, data: st.DataObject, burst_frames: int, ring: int) -> None:
    with queue_of(kind, burst_frames, ring) as pair:
        sent: list[int] = []
        received: list[int] = []
        for is_send in data.draw(st.lists(st.booleans(), max_size=60)):
            if is_send:
                count = data.draw(st.integers(1, burst_frames))
                burst = list(range(len(sent), len(sent) + count))
                if put(pair.sender, burst):
                    sent += burst
            elif (frames := pair.receiver.receive()) is not None:
                assert 1 <= len(frames) <= burst_frames
                received += numbers_of(frames)
                pair.receiver.release()
        while len(received) < len(sent):
            received += take(pair.receiver)
            while pair.sender.acquire() is None:  # the sender of a TCP queue may still hold a part
                received += take(pair.receiver)
        assert received == sent
        assert pair.receiver.receive() is None


def _send_and_exit(kind: str, end: FrameSender, frames: int, burst_frames: int) -> None:
    generator = np.random.default_rng(1)
    number = 0
    while number < frames:
        burst = list(range(number, min(number + int(generator.integers(1, burst_frames + 1)), frames)))
        while not put(end, burst):
            assert wait_for_any([end], HANG_S)
        number += len(burst)
    while not put(end, [END]):
        assert wait_for_any([end], HANG_S)
    while end.acquire() is None:
        assert wait_for_any([end], HANG_S)
    os._exit(0)


@pytest.mark.parametrize("burst_frames", [1, 7, 64])
@pytest.mark.parametrize("kind", LOSSLESS_KINDS)
def test_two_processes(kind: str, burst_frames: int) -> None:
    pair = open_pair(kind, burst_frames, 3)
    pair.sender.acquire()  # whatever is compiled is compiled before the fork
    process = multiprocessing.get_context("fork").Process(
        target=_send_and_exit, args=(kind, pair.sender, 3000, burst_frames)
    )
    process.start()
    pair.sender.close()  # ours; the child has its own
    numbers: list[int] = []
    while not numbers or numbers[-1] != END:
        numbers += take(pair.receiver)
    assert numbers == [*range(3000), END]
    with pytest.raises(PeerGone):
        _until_gone(pair.receiver)
    process.join(HANG_S)
    assert process.exitcode == 0
    pair.receiver.close()
