"""Exactly once: whatever a link does to the frames, each is added once and the pass comes to its end."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.check import Count
from receiver.window import Window
from streamdsb.errors import RunFailed
from streamdsb.feedback import FeedbackReader, FeedbackWriter
from streamdsb.frame import FrameType, empty_frames, headers_of, write_headers
from streamdsb.layout import HEADER_WORDS, Layout, RowRange
from streamdsb.payload_checksum import write_checksums

RUN, PASS, QUEUE = 77, 3, 1
LAYOUT = Layout(32_300, 1, 4)
ROWS = RowRange(64, 64 + 80)
EXPECTED = 2 * len(ROWS)
END = EXPECTED
"""Where PASS_END stands in `all_frames`, after the TILE frames."""


def all_frames(pass_index: int = PASS) -> np.ndarray:
    frames = empty_frames(EXPECTED + 1)
    frames[:, HEADER_WORDS:] = np.random.default_rng(5).integers(0, 2**64, (EXPECTED + 1, 504), np.uint64)
    for block in range(2):
        part = frames[block * len(ROWS) : (block + 1) * len(ROWS)]
        columns = LAYOUT.columns_in(block)
        write_headers(
            part, FrameType.TILE, RUN, pass_index, block * len(ROWS), ROWS.start, block, QUEUE, columns
        )
    write_headers(frames[END:], FrameType.PASS_END, RUN, pass_index, EXPECTED, EXPECTED, 0, QUEUE, 0)
    write_checksums(frames)
    return frames


FRAMES = all_frames()


def new_window(span: int = 64, budget: float = 100.0) -> Window:
    window = Window(LAYOUT, QUEUE, ROWS, RUN, EXPECTED + 1, span, budget)
    window.begin_pass(PASS)
    return window


def take(window: Window, *numbers: int) -> list[int]:
    """Let frames with these numbers come in one burst; the numbers of those that are added."""
    return [numbers[i] for i in window.accept(FRAMES[list(numbers)])]


def counted(window: Window) -> dict[str, int]:
    return {reason.name: int(window.counts[reason]) for reason in Count if window.counts[reason]}


def asked_for(window: Window, now: float) -> list[int] | None:
    """The frames that the window asks for again, None if it says nothing."""
    answer = window.answer(now)
    if answer is None:
        return None
    (feedback,) = FeedbackReader(RUN, QUEUE, EXPECTED).read(answer, PASS)
    return [first + i for first, count in feedback.missing.tolist() for i in range(count)]


def test_in_order_nothing_is_asked_for_and_the_end_is_acknowledged() -> None:
    window = new_window(4096)
    assert take(window, *range(END + 1)) == list(range(END))
    assert window.ended
    answer = window.answer(0.0)
    assert answer is not None
    assert FeedbackReader(RUN, QUEUE, EXPECTED).read(answer, PASS)[0].complete
    assert window.answer(100.0) is None, "said once, until the end comes again"
    take(window, END)
    assert window.answer(100.0) is not None


def test_a_gap_is_asked_for_at_once_and_again_after_a_while() -> None:
    window = new_window()
    take(window, 0, 1, 4, 5, 7)
    assert asked_for(window, 0.0) == [2, 3, 6]
    assert asked_for(window, 0.001) is None
    assert asked_for(window, 0.025) == [2, 3, 6]
    assert asked_for(window, 0.05) == [2, 3, 6]
    assert asked_for(window, 0.08) is None, "nothing has come: it waits longer"
    take(window, 3, 2)
    assert asked_for(window, 0.1) == [6]
    assert window.resent == 10


def test_each_gap_is_asked_for_again_in_its_own_time() -> None:
    window = new_window()
    take(window, 0, 2)
    assert asked_for(window, 0.0) == [1]
    take(window, 5)
    assert asked_for(window, 0.015) == [3, 4]
    assert asked_for(window, 0.025) == [1]
    assert asked_for(window, 0.03) is None
    assert asked_for(window, 0.04) == [3, 4]


def test_who_fills_gaps_quickly_is_asked_again_soon() -> None:
    window = new_window()
    for turn in range(20):
        now = float(turn)
        take(window, 2 * turn + 1)
        assert asked_for(window, now) == [2 * turn]
        take(window, 2 * turn)
        window.answer(now + 0.001)
    take(window, 41)
    assert asked_for(window, 30.0) == [40]
    assert asked_for(window, 30.001) is None
    assert asked_for(window, 30.005) == [40]


def test_more_gaps_than_a_request_holds_are_asked_for_one_after_another() -> None:
    window = new_window(4096)
    take(window, END)
    numbers = list(range(1, END, 2))
    take(window, *numbers)
    asked: list[int] = []
    for turn in range(3):
        asked += asked_for(window, 0.003 * turn) or []
    assert asked == list(range(0, END, 2))


def test_only_new_gaps_are_asked_for_meanwhile() -> None:
    window = new_window()
    take(window, 0, 2)
    assert asked_for(window, 0.0) == [1]
    take(window, 5)
    assert asked_for(window, 0.001) is None, "gaps are asked for together"
    take(window, 7)
    assert asked_for(window, 0.003) == [3, 4, 6]


def test_gaps_at_the_end_are_asked_for_without_waiting_for_more() -> None:
    window = new_window(1024)
    take(window, 0, 2)
    assert asked_for(window, 0.0) == [1]
    take(window, *range(3, END - 1), END)
    assert asked_for(window, 0.0001) == [END - 1]


def test_every_frame_is_added_once() -> None:
    window = new_window()
    assert take(window, 0, 2, 2, 1, 0, 1) == [0, 2, 1]
    assert counted(window) == {"ACCEPTED": 3, "DUPLICATE": 3}


def test_a_repeated_frame_is_answered_with_where_the_receiver_stands() -> None:
    window = new_window(1024)
    take(window, 0, 1, 2)
    assert window.answer(0.0) is None
    take(window, 2)
    answer = window.answer(1.0)
    assert answer is not None
    assert FeedbackReader(RUN, QUEUE, EXPECTED).read(answer, PASS)[0].acknowledged == 3


def test_the_sender_is_told_early_enough_to_go_on() -> None:
    window = new_window(16)
    take(window, 0, 1, 2)
    assert window.answer(0.0) is None
    take(window, 3)
    assert asked_for(window, 0.0) == []


def test_frames_beyond_the_window_are_not_added_but_asked_for() -> None:
    window = new_window(64)
    assert take(window, 1, 150) == [1]
    assert counted(window) == {"ACCEPTED": 1, "OVERRUN": 1}
    assert asked_for(window, 0.0) == [0, *range(2, 151)]


def test_a_frame_from_beyond_the_window_is_added_once_the_window_has_got_there() -> None:
    window = new_window(64)
    assert take(window, 0, 2, 150, 1) == [0, 2, 1]
    assert take(window, *range(3, 150)) == list(range(3, 150)), "the one from beyond is not taken for added"
    assert take(window, 150, 150) == [150]
    assert take(window, *range(151, END + 1)) == list(range(151, END))
    assert window.ended
    assert counted(window) == {"ACCEPTED": EXPECTED, "OVERRUN": 1, "DUPLICATE": 1}


def test_a_corrupt_frame_is_a_missing_frame() -> None:
    window = new_window()
    altered = FRAMES[:3].copy()
    altered[1, 300] ^= np.uint64(1 << 17)
    assert window.accept(altered).tolist() == [0, 2]
    assert counted(window) == {"ACCEPTED": 2, "CORRUPT": 1}
    assert asked_for(window, 0.0) == [1]


def test_frames_of_other_passes_are_told_apart() -> None:
    window = new_window()
    window.accept(all_frames(PASS - 1)[:2])
    window.accept(all_frames(PASS + 1)[:3])
    assert counted(window) == {"LATE": 2, "WRONG_PASS": 3}


def test_an_end_with_another_number_of_frames_is_not_believed() -> None:
    window = new_window()
    wrong = FRAMES[END:].copy()
    wrong[0, 4] -= np.uint64(1)
    window.accept(wrong)
    assert counted(window) == {"MISPLACED": 1}
    assert window.answer(0.0) is None


def test_a_spent_budget_ends_the_pass_by_name() -> None:
    window = new_window(1, budget=0.0)
    take(window, END)

    def ask_for_ever() -> None:
        for second in range(0, 1000, 10):
            window.answer(float(second))

    with pytest.raises(RunFailed, match=r"pass 3, queue 1: 0 of 160 frames were added.*resend_budget"):
        ask_for_ever()


def test_any_flipped_bit_of_a_frame_is_noticed_or_harmless() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        frame = FRAMES[5:6].copy()
        bit = rng.randrange(14 * 8, 4096 * 8)
        frame[0, bit // 64] ^= np.uint64(1 << (bit % 64))
        window = new_window()
        accepted = window.accept(frame).tolist()
        assert not accepted or 56 * 8 <= bit < 64 * 8, "only the sender's timestamp does not matter"


@dataclass
class Link:
    """A link that loses, repeats, holds back and alters frames, by chance."""

    rng: random.Random
    loss: float
    repeat: float
    hold: float
    alter: float
    held: list[np.ndarray] = field(default_factory=list)

    def carry(self, frames: np.ndarray) -> list[np.ndarray]:
        out = []
        for i in range(len(frames)):
            if self.rng.random() < self.loss:
                continue
            frame = frames[i : i + 1].copy()
            if self.rng.random() < self.alter:
                bit = self.rng.randrange(14 * 8, 4096 * 8)
                frame[0, bit // 64] ^= np.uint64(1 << (bit % 64))
            out += [frame] * (2 if self.rng.random() < self.repeat else 1)
            if self.rng.random() < self.hold:
                self.held.append(out.pop())
        if self.held and self.rng.random() < 0.5:
            out.append(self.held.pop(self.rng.randrange(len(self.held))))
        return out


@given(
    seed=st.integers(0, 2**32),
    span=st.sampled_from([1, 3, 64, 100, 1000]),
    rates=st.tuples(*[st.sampled_from([0.0, 0.02, 0.1, 0.25])] * 4),
)
@settings(max_examples=60, deadline=None)
def test_any_link_brings_every_frame_once(
    seed: int, span: int, rates: tuple[float, float, float, float]
) -> None:
    rng = random.Random(seed)
    there, back = (Link(rng, *rates) for _ in range(2))
    window, reader = new_window(span, budget=1e9), FeedbackReader(RUN, QUEUE, EXPECTED)
    added = np.zeros(EXPECTED, np.int64)
    sequence, acknowledged, wanted, complete = 0, 0, [0], False
    for tick in range(100_000):
        burst = wanted[:8]
        del wanted[:8]
        room = span - (sequence - acknowledged)
        fresh = min(8, room, END - sequence) if not burst else 0
        burst += range(sequence, sequence + fresh)
        sequence += fresh
        if not burst:
            burst = [END if sequence == END else sequence - 1]
        for frame in there.carry(FRAMES[burst]):
            number = int(headers_of(frame)["sequence"][0])
            added[[number] * len(window.accept(frame))] += 1
        answer = window.answer(tick * 0.005)
        for frame in back.carry(answer if answer is not None else FRAMES[:0]):
            for feedback in reader.read(frame, PASS):
                acknowledged = max(acknowledged, feedback.acknowledged)
                complete |= feedback.complete
                wanted += [a + i for a, count in feedback.missing.tolist() for i in range(count)]
        if complete:
            break
    assert complete, "the pass has not come to its end"
    assert window.ended
    assert (added == 1).all()


def test_feedback_that_is_not_ours_or_not_whole_is_ignored() -> None:
    writer = FeedbackWriter(RUN, QUEUE)
    good = writer.resend(PASS, 5, np.array([[7, 2], [20, 1]])).copy()
    reader = FeedbackReader(RUN, QUEUE, EXPECTED)
    (feedback,) = reader.read(good, PASS)
    assert (feedback.acknowledged, feedback.missing.tolist()) == (5, [[7, 2], [20, 1]])
    assert reader.read(good, PASS + 1) == []
    assert FeedbackReader(RUN + 1, QUEUE, EXPECTED).read(good, PASS) == []
    assert FeedbackReader(RUN, QUEUE + 1, EXPECTED).read(good, PASS) == []
    for outside in ([[EXPECTED, 1]], [[0, EXPECTED + 1]], [[3, 0]], [[2**62, 2**62]]):
        assert reader.read(writer.resend(PASS, 5, np.array(outside)), PASS) == []
    altered = good.copy()
    altered[0, HEADER_WORDS] ^= np.uint64(1)
    assert reader.read(altered, PASS) == []


@pytest.mark.parametrize("said", [(PASS - 1, EXPECTED), (PASS, EXPECTED - 1)])
def test_an_acknowledgement_whose_header_was_altered_is_ignored(said: tuple[int, int]) -> None:
    altered = FeedbackWriter(RUN, QUEUE).pass_ack(*said)
    header = headers_of(altered)
    header["pass"], header["sequence"] = PASS, EXPECTED
    assert FeedbackReader(RUN, QUEUE, EXPECTED).read(altered, PASS) == []


def test_a_request_is_not_taken_for_an_acknowledgement() -> None:
    altered = FeedbackWriter(RUN, QUEUE).resend(PASS, 5, np.array([[7, 2]]))
    headers_of(altered)["type"] = FrameType.PASS_ACK
    assert FeedbackReader(RUN, QUEUE, EXPECTED).read(altered, PASS) == []
