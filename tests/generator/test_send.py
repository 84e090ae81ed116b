"""What a queue carries in a pass: every frame of its rows in order, as the couplings say, then PASS_END."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generator.resend import LossyFeeder
from generator.send import QueueFeeder, send_pass
from generator.source import CouplingSource, MattisCouplings, RandomCouplings
from streamdsb.errors import RunFailed
from streamdsb.feedback import FeedbackWriter
from streamdsb.frame import headers_of
from streamdsb.layout import Layout, RowRange
from streamdsb.payload_checksum import checksums
from streamdsb.queues import wait_for_any
from streamdsb.queues.base import LossySender
from streamdsb.queues.datagrams import DatagramEnd
from streamdsb.worker import Cancelled
from tests.queue_pairs import HANG_S, LOSSLESS_KINDS, Pair, queue_of

RUN, PASS = 77, 3


class CountingCouplings(RandomCouplings):
    """Random couplings that remember which groups of rows they were asked for."""

    def __init__(self, n: int, seed: int) -> None:
        super().__init__(n, seed)
        self.asked: list[tuple[int, int]] = []

    def fill(self, rows: RowRange, column_block: int, out: np.ndarray) -> None:
        self.asked += [(start, column_block) for start in range(rows.start, rows.stop, 64)]
        super().fill(rows, column_block, out)


class GroupCouplings:
    """Random couplings of a source that makes whole groups of rows only."""

    coupling_format, symmetric = RandomCouplings.coupling_format, True

    def __init__(self, n: int, seed: int) -> None:
        self.n, self._random = n, RandomCouplings(n, seed)

    def fill(self, rows: RowRange, column_block: int, out: np.ndarray) -> None:
        self._random.fill(rows, column_block, out)


def everything_sent(pair: Pair, feeder: QueueFeeder, pass_index: int = PASS) -> np.ndarray:
    """All frames of one pass, uint64 (count, 512), as they come out of the queue."""
    feeder.begin_pass(pass_index, None)
    received = []
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_pass, [feeder], HANG_S, threading.Event())
        while not received or headers_of(received[-1])["type"][-1] != 2:
            while (frames := pair.receiver.receive()) is None:
                assert wait_for_any([pair.receiver], HANG_S)
            received.append(frames.copy())
            pair.receiver.release()
        sending.result(HANG_S)
    return np.concatenate(received)


def expected_words(source: CouplingSource, rows: RowRange, block: int) -> np.ndarray:
    words = Layout(source.n, 1, 1).words_in(block)
    out = np.zeros((len(rows), words), np.uint64)
    source.fill(rows, block, out)
    return out


@pytest.mark.parametrize("kind", LOSSLESS_KINDS)
@pytest.mark.parametrize("burst_frames", [1, 7, 64, 100, 256])
@pytest.mark.parametrize(
    ("n", "queue", "queues"), [(1, 0, 1), (63, 0, 1), (65, 1, 2), (1000, 1, 3), (200, 0, 8)]
)
def test_one_pass(kind: str, burst_frames: int, n: int, queue: int, queues: int) -> None:
    layout = Layout(n, 1, queues)
    rows, source = layout.queue_rows[queue], RandomCouplings(n, 5)
    with queue_of(kind, burst_frames, 2) as pair:
        frames = everything_sent(pair, QueueFeeder(queue, rows, layout, RUN, source, pair.sender))
    headers = headers_of(frames)
    assert headers["type"].tolist() == [1] * len(rows) + [2]
    assert (headers["run"] == RUN).all()
    assert (headers["pass"] == PASS).all()
    assert (headers["queue"] == queue).all()
    assert headers["sequence"].tolist() == list(range(len(rows) + 1))
    assert headers["row"].tolist() == [*range(rows.start, rows.stop), len(rows)]
    assert (headers["couplings"][:-1] == n).all()
    words = layout.words_in(0)
    assert (frames[:-1, 8 : 8 + words] == expected_words(source, rows, 0)).all()


@pytest.mark.parametrize("kind", LOSSLESS_KINDS)
def test_column_blocks_follow_each_other(kind: str) -> None:
    layout = Layout(32_400, 1, 8)
    rows, source = RowRange(32_256, 32_400), MattisCouplings(32_400, 5)
    with queue_of(kind, 100, 2) as pair:
        frames = everything_sent(pair, QueueFeeder(7, rows, layout, RUN, source, pair.sender))
    headers = headers_of(frames)[:-1]
    assert headers["column_block"].tolist() == [0] * 144 + [1] * 144
    assert headers["row"].tolist() == [*range(32_256, 32_400)] * 2
    assert headers["couplings"].tolist() == [32_256] * 144 + [144] * 144
    assert (frames[:144, 8:] == expected_words(source, rows, 0)).all()
    assert (frames[144:288, 8:11] == expected_words(source, rows, 1)).all()


@pytest.mark.parametrize("burst_frames", [1, 7, 100])
def test_padding_is_clean_where_it_travels(burst_frames: int) -> None:
    layout, source = Layout(200, 1, 1), RandomCouplings(200, 5)
    with queue_of("tcp", burst_frames, 2) as pair:
        assert pair.sender.capabilities.copies_padding
        room = pair.sender.acquire()
        assert room is not None
        room[:] = np.uint64(0xFFFF_FFFF_FFFF_FFFF)  # left over from something else
        frames = everything_sent(pair, QueueFeeder(0, RowRange(0, 200), layout, RUN, source, pair.sender))
    assert not frames[:-1, 8 + 4 :].any()


def test_bursts_that_cut_groups_make_no_group_twice() -> None:
    layout, source = Layout(1000, 1, 1), CountingCouplings(1000, 5)
    with queue_of("shm", 7, 2) as pair:
        everything_sent(pair, QueueFeeder(0, RowRange(0, 1000), layout, RUN, source, pair.sender))
    assert source.asked == [(start, 0) for start in range(0, 1000, 64)]


def test_passes_are_alike() -> None:
    layout, source = Layout(150, 1, 1), RandomCouplings(150, 5)
    with queue_of("shm", 7, 2) as pair:
        feeder = QueueFeeder(0, RowRange(0, 150), layout, RUN, source, pair.sender)
        first, second = everything_sent(pair, feeder, 0), everything_sent(pair, feeder, 1)
    assert (headers_of(first)["pass"] == 0).all()
    assert (headers_of(second)["pass"] == 1).all()
    assert (first[:, 3:11] == second[:, 3:11]).all()


@pytest.mark.parametrize("kind", LOSSLESS_KINDS)
def test_a_receiver_that_takes_nothing_is_named(kind: str) -> None:
    layout, source = Layout(3000, 1, 1), RandomCouplings(3000, 5)
    with queue_of(kind, 16, 2) as pair:
        feeder = QueueFeeder(0, RowRange(0, 3000), layout, RUN, source, pair.sender)
        feeder.begin_pass(0, None)
        with pytest.raises(RunFailed, match=r"queue 0: full for 0.3 s \(stream.timeout_s\)"):
            send_pass([feeder], 0.3, threading.Event())


def test_a_run_that_is_called_off_stops_sending() -> None:
    layout, source = Layout(3000, 1, 1), RandomCouplings(3000, 5)
    cancelled = threading.Event()
    with queue_of("shm", 16, 2) as pair:
        feeder = QueueFeeder(0, RowRange(0, 3000), layout, RUN, source, pair.sender)
        feeder.begin_pass(0, None)
        timer = threading.Timer(0.05, cancelled.set)
        timer.start()
        with pytest.raises(Cancelled):
            send_pass([feeder], HANG_S, cancelled)
        timer.join()


@pytest.mark.parametrize("kind", LOSSLESS_KINDS)
def test_a_pass_that_is_sent_has_left_the_sender(kind: str) -> None:
    """Nothing is kept back for want of room when nobody is going to ask the sender for more."""
    for n in range(1, 200):
        layout, source = Layout(n, 1, 1), RandomCouplings(n, 5)
        with queue_of(kind, 1, 4) as pair, ThreadPoolExecutor(1) as pool:
            feeder = QueueFeeder(0, RowRange(0, n), layout, RUN, source, pair.sender)
            feeder.begin_pass(0, None)
            sending = pool.submit(send_pass, [feeder], HANG_S, threading.Event())
            wait([sending], 0.02)  # long enough for what the queue holds by itself
            received = 0
            while received < n + 1:
                if (frames := pair.receiver.receive()) is not None:
                    received += len(frames)
                    pair.receiver.release()
                else:
                    assert wait_for_any([pair.receiver], 3.0), f"{received} of {n + 1} frames came"


@dataclass
class Tape:
    """A sender's end that keeps what it was given, and says back what it is told to."""

    burst_frames: int
    window: int
    capabilities = DatagramEnd.capabilities
    sent: list[np.ndarray] = field(default_factory=list)
    back: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._frames = np.full((self.burst_frames, 512), 2**64 - 1, np.uint64)

    def acquire(self) -> np.ndarray | None:
        return self._frames

    def commit(self, count: int) -> None:
        self.sent.append(self._frames[:count].copy())
        self._frames[:] = np.uint64(2**64 - 1)

    def feedback(self) -> np.ndarray | None:
        return self.back.pop(0) if self.back else None


@pytest.mark.parametrize("source_class", [RandomCouplings, MattisCouplings, GroupCouplings])
@given(data=st.data())
@settings(deadline=None, max_examples=10)
def test_what_is_asked_for_again_is_what_was_sent_first(
    source_class: type[CouplingSource], data: st.DataObject
) -> None:
    n, rows = 32_300, RowRange(32_192, 32_300)
    layout, source = Layout(n, 1, 1), source_class(n, 7)  # type: ignore[call-arg]
    total = 2 * len(rows)
    burst, window = data.draw(st.sampled_from([1, 7, 100, 256])), data.draw(st.sampled_from([50, 100, 1000]))
    tape = Tape(burst, window)
    feeder = LossyFeeder(3, rows, layout, RUN, source, cast(LossySender, tape))
    feeder.begin_pass(PASS, None)
    writer = FeedbackWriter(RUN, 3)
    ranges = st.tuples(st.integers(0, total - 1), st.integers(1, 20))
    again: list[int] = []
    acknowledged = 0
    while acknowledged < total:
        asked = [
            (first, min(count, total - first)) for first, count in data.draw(st.lists(ranges, max_size=9))
        ]
        again += [first + k for first, count in asked for k in range(count)]
        missing = np.array(asked, np.int64).reshape(-1, 2)
        tape.back.append(writer.resend(PASS, acknowledged, missing).copy())
        while feeder.step():
            pass
        acknowledged = min(total, acknowledged + data.draw(st.integers(window // 2 + 1, window + 1)))
    tape.back.append(writer.pass_ack(PASS, total).copy())
    while not feeder.acknowledged:
        feeder.step()
    frames = np.concatenate(tape.sent)
    headers = headers_of(frames)
    frames, headers = frames[headers["type"] == 1], headers[headers["type"] == 1]
    counted = np.bincount(headers["sequence"].astype(np.int64), minlength=total)
    assert (counted >= np.bincount(again, minlength=total)).all(), "asked for and not sent"
    sums = np.empty(len(frames), np.uint32)
    checksums(frames, sums)
    assert (headers["payload_checksum"] == sums).all()
    whole = [expected_words(source, RowRange(32_192, 32_300), block) for block in range(2)]
    for frame, header in zip(frames, headers, strict=True):
        block, offset = divmod(int(header["sequence"]), len(rows))
        assert (header["row"], header["column_block"]) == (rows.start + offset, block)
        assert (header["queue"], header["format"], header["run"], header["pass"]) == (3, 1, RUN, PASS)
        assert header["couplings"] == layout.columns_in(block)
        words = layout.words_in(block)
        assert (frame[8 : 8 + words] == whole[block][offset]).all()
        assert not frame[8 + words : 512].any(), "padding is not clean"
