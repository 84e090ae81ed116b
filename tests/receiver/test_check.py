"""The check of frames: each reason of rejection by itself, and any mixture of them against a model."""

import struct
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.check import Count, FrameCheck
from streamdsb.frame import FrameType, empty_frames, headers_of, write_headers
from streamdsb.layout import Layout, RowRange

RUN, PASS = 0xCAFE_F00D, 5
LAYOUT = Layout(32_300, 1, 3)  # two column blocks, of 32,256 and 44 columns
QUEUE = 1
ROWS = RowRange(10_752, 10_759)
EXPECTED = 2 * len(ROWS)
BURST = 64


def a_check() -> FrameCheck:
    check = FrameCheck(LAYOUT, QUEUE, ROWS, RUN, BURST)
    check.begin_pass(PASS)
    return check


def the_pass() -> np.ndarray:
    """The frames of one flawless pass of the queue, PASS_END included."""
    frames = empty_frames(EXPECTED + 1)
    for block in range(2):
        own = frames[block * len(ROWS) : (block + 1) * len(ROWS)]
        first = block * len(ROWS)
        write_headers(own, 1, RUN, PASS, first, ROWS.start, block, QUEUE, LAYOUT.columns_in(block))
    write_headers(frames[-1:], int(FrameType.PASS_END), RUN, PASS, EXPECTED, EXPECTED, 0, QUEUE, 0)
    return frames


def counted(check: FrameCheck) -> dict[str, int]:
    return {reason.name: int(check.counts[reason]) for reason in Count if check.counts[reason]}


def feed(check: FrameCheck, frames: np.ndarray) -> list[int]:
    """The indices that the check accepts of all `frames`, given to it in bursts."""
    accepted: list[int] = []
    for at in range(0, len(frames), BURST):
        accepted += [at + int(i) for i in check.accept(frames[at : at + BURST])]
    return accepted


def test_a_flawless_pass() -> None:
    check = a_check()
    assert check.expected == EXPECTED
    frames = the_pass()
    assert feed(check, frames[:-1]) == list(range(EXPECTED))
    assert not check.ended
    assert feed(check, frames[-1:]) == []
    assert check.ended
    assert counted(check) == {"ACCEPTED": EXPECTED}
    assert check.fault() is None


def test_fields_that_do_not_matter() -> None:
    frames = the_pass()
    headers = headers_of(frames)
    headers["destination"] = 0xFF
    headers["source"] = 0xAB
    headers["payload_checksum"] = 0x12345678
    headers["timestamp_ns"] = 2**64 - 1
    check = a_check()
    assert feed(check, frames) == list(range(EXPECTED))
    assert check.ended


def test_a_new_pass_starts_over() -> None:
    check = a_check()
    feed(check, the_pass())
    check.begin_pass(PASS + 1)
    assert not check.ended
    assert not check.counts.any()
    frames = the_pass()
    assert feed(check, frames) == []
    assert counted(check) == {"WRONG_PASS": EXPECTED + 1}
    headers_of(frames)["pass"] = PASS + 1
    assert feed(check, frames) == list(range(EXPECTED))
    assert check.fault() is None


REJECTED = {
    "another EtherType": ("ethertype", 0x0800, "MALFORMED"),
    "version 0": ("version", 0, "MALFORMED"),
    "version 2": ("version", 2, "MALFORMED"),
    "type 0": ("type", 0, "MALFORMED"),
    "PASS_ACK": ("type", 3, "MALFORMED"),
    "RESEND": ("type", 4, "MALFORMED"),
    "type 255": ("type", 255, "MALFORMED"),
    "run + 1": ("run", RUN + 1, "FOREIGN_RUN"),
    "run 0": ("run", 0, "FOREIGN_RUN"),
    "pass before": ("pass", PASS - 1, "WRONG_PASS"),
    "pass after": ("pass", PASS + 1, "WRONG_PASS"),
    "far pass": ("pass", 2**32 - 1, "WRONG_PASS"),
    "queue before": ("queue", QUEUE - 1, "WRONG_QUEUE"),
    "queue 65535": ("queue", 65_535, "WRONG_QUEUE"),
    "row after": ("row", ROWS.start + 4, "MISPLACED"),
    "far row": ("row", 2**64 - 1, "MISPLACED"),
    "other block": ("column_block", 1, "MISPLACED"),
    "far block": ("column_block", 2**32 - 1, "MISPLACED"),
    "TERNARY": ("format", 2, "MISPLACED"),
    "fewer couplings": ("couplings", 32_255, "MISPLACED"),
    "more couplings": ("couplings", 32_257, "MISPLACED"),
    "sequence past the end": ("sequence", EXPECTED, "MISPLACED"),
    "far sequence": ("sequence", 2**64 - 1, "MISPLACED"),
    "sequence of another row": ("sequence", 4, "MISPLACED"),
}


@pytest.mark.parametrize(("field", "value", "reason"), REJECTED.values(), ids=REJECTED)
def test_each_reason(field: str, value: int, reason: str) -> None:
    frames = the_pass()
    headers_of(frames)[field][3] = value
    check = a_check()
    assert feed(check, frames) == [i for i in range(EXPECTED) if i != 3]
    assert counted(check) == {"ACCEPTED": EXPECTED - 1, "MISSING": 1, reason: 1}
    fault = check.fault()
    assert fault is not None
    assert fault.startswith(f"pass {PASS}, queue {QUEUE}: {EXPECTED - 1} of {EXPECTED} frames were added")
    assert f"1 missing, 1 {reason.lower().replace('_', ' ')}" in fault


def test_a_duplicate_is_counted_and_not_added() -> None:
    frames = the_pass()
    check = a_check()
    order = [0, 1, 1, 2, 0, *range(3, EXPECTED + 1)]
    assert feed(check, frames[order]) == [0, 1, 3, *range(5, EXPECTED + 2)]
    assert counted(check) == {"ACCEPTED": EXPECTED, "DUPLICATE": 2}
    assert check.fault() is None  # every frame was added exactly once


def test_a_gap_is_counted_and_is_a_fault() -> None:
    frames = the_pass()
    check = a_check()
    feed(check, frames[[0, 1, 5, 6, *range(9, EXPECTED + 1)]])
    assert counted(check) == {"ACCEPTED": EXPECTED - 5, "MISSING": 5}
    assert "5 missing" in (check.fault() or "")


def test_frames_lost_at_the_end_are_a_fault() -> None:
    frames = the_pass()
    check = a_check()
    feed(check, frames[[0, 1, EXPECTED]])
    assert check.ended
    assert (
        check.fault() == f"pass 5, queue 1: 2 of {EXPECTED} frames were added, the sender counted {EXPECTED}"
    )


def test_a_sender_that_counted_differently_is_a_fault() -> None:
    frames = the_pass()
    headers_of(frames)["row"][-1] = EXPECTED - 1
    check = a_check()
    feed(check, frames)
    assert f"the sender counted {EXPECTED - 1}" in (check.fault() or "")


def test_a_frame_that_comes_late_is_not_added() -> None:
    frames = the_pass()
    check = a_check()
    assert feed(check, frames[[1, 0, *range(2, EXPECTED + 1)]]) == [0, *range(2, EXPECTED + 1)][:-1]
    assert counted(check) == {"ACCEPTED": EXPECTED - 1, "MISSING": 1, "DUPLICATE": 1}
    assert check.fault() is not None


def test_a_queue_without_rows() -> None:
    check = FrameCheck(LAYOUT, QUEUE, RowRange(64, 64), RUN, BURST)
    check.begin_pass(PASS)
    frames = the_pass()
    headers_of(frames)["row"][-1] = 0
    assert feed(check, frames) == []
    assert check.ended
    assert check.fault() is None
    assert counted(check) == {"MISPLACED": EXPECTED}


# --- any mixture ----------------------------------------------------------------------------------


class Model:
    """The check in plain Python on the bytes of each header."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.next_sequence = 0
        self.ended = False
        self.accepted: list[int] = []
        self.places: list[tuple[int, int]] = []

    def see(self, index: int, header: bytes) -> None:
        reason = self._reason(header)
        if reason is not None:
            self.counts[reason] += 1
        if reason == "ACCEPTED":
            sequence, row, block = struct.unpack_from("<QQI", header, 24)
            if sequence > self.next_sequence:
                self.counts["MISSING"] += sequence - self.next_sequence
            self.next_sequence = sequence + 1
            self.accepted.append(index)
            self.places.append((row, block))

    def _reason(self, header: bytes) -> str | None:
        ethertype, version, kind = struct.unpack_from(">HBB", header, 12)
        run, pass_index, sequence, row, block, queue, form, couplings = struct.unpack_from(
            "<IIQQIHHI", header, 16
        )
        if ethertype != 0x88B5 or version != 1 or kind not in (1, 2):
            return "MALFORMED"
        if run != RUN:
            return "FOREIGN_RUN"
        if pass_index != PASS:
            return "WRONG_PASS"
        if queue != QUEUE:
            return "WRONG_QUEUE"
        if kind == 2:
            self.ended = True
            return None
        places = [(b, r) for b in range(2) for r in range(ROWS.start, ROWS.stop)]
        columns = [32_256, 44]
        if (
            sequence >= len(places)
            or places[sequence] != (block, row)
            or form != 1
            or couplings != columns[block]
        ):
            return "MISPLACED"
        return "DUPLICATE" if sequence < self.next_sequence else "ACCEPTED"


FIELDS = {
    "ethertype": st.sampled_from([0x88B5, 0xB588, 0]),
    "version": st.integers(0, 3),
    "type": st.integers(0, 5),
    "run": st.sampled_from([RUN, RUN ^ 1, RUN ^ 0x8000_0000, 0]),
    "pass": st.sampled_from([PASS, PASS - 1, PASS + 1, PASS | 0x8000_0000]),
    "sequence": st.integers(0, EXPECTED + 2) | st.integers(0, 2**64 - 1),
    "row": st.integers(ROWS.start - 1, ROWS.stop) | st.integers(0, 2**64 - 1),
    "column_block": st.integers(0, 2) | st.integers(0, 2**32 - 1),
    "queue": st.integers(0, 3) | st.integers(0, 2**16 - 1),
    "format": st.integers(0, 4),
    "couplings": st.sampled_from([32_256, 44, 0, 2**32 - 1]),
    "payload_checksum": st.integers(0, 2**32 - 1),
    "timestamp_ns": st.integers(0, 2**64 - 1),
}
corruptions = st.sampled_from(sorted(FIELDS)).flatmap(lambda name: st.tuples(st.just(name), FIELDS[name]))
arrivals = st.lists(
    st.tuples(st.integers(0, EXPECTED), st.just([]) | st.lists(corruptions, max_size=2)), max_size=60
)


def assert_like_the_model(frames: np.ndarray, bursts: list[int]) -> None:
    model, check = Model(), a_check()
    accepted: list[int] = []
    at = 0
    for size in bursts:
        accepted += [at + int(i) for i in check.accept(frames[at : at + size])]
        for index in range(at, min(at + size, len(frames))):
            model.see(index, frames[index].tobytes()[:64])
        at += size
    assert accepted == model.accepted
    assert counted(check) == {reason: count for reason, count in model.counts.items() if count}
    assert check.ended == model.ended
    assert len(model.places) == len(set(model.places)), "a frame was added twice"


@settings(deadline=None, max_examples=300)
@given(arrived=arrivals, data=st.data())
def test_any_frames_in_any_order(
    arrived: list[tuple[int, list[tuple[str, int]]]], data: st.DataObject
) -> None:
    frames = the_pass()[[place for place, _ in arrived]]
    headers = headers_of(frames)
    for index, (_, changes) in enumerate(arrived):
        for name, value in changes:
            headers[name][index] = value
    cuts = data.draw(st.lists(st.integers(0, len(frames)), max_size=5))
    edges = [0, *sorted(cuts), len(frames)]
    assert_like_the_model(frames, [b - a for a, b in pairwise(edges)])


@settings(deadline=None, max_examples=200)
@given(
    lost=st.sets(st.integers(0, EXPECTED - 1), max_size=4),
    repeated=st.lists(st.integers(0, EXPECTED - 1), max_size=4),
    moved=st.lists(st.tuples(st.integers(0, EXPECTED - 1), st.integers(0, EXPECTED - 1)), max_size=3),
)
def test_loss_repetition_and_reordering(
    lost: set[int], repeated: list[int], moved: list[tuple[int, int]]
) -> None:
    order = sorted([*(i for i in range(EXPECTED) if i not in lost), *repeated])
    for a, b in moved:
        order.insert(b % (len(order) + 1), order.pop(a % len(order)))
    assert_like_the_model(the_pass()[order], [len(order)])


@settings(deadline=None, max_examples=200)
@given(
    taken=st.integers(0, EXPECTED),
    first=st.integers(0, EXPECTED - 1),
    changes=st.lists(st.tuples(st.integers(0, EXPECTED), corruptions), max_size=3),
)
def test_frames_in_order_are_those_that_would_be_judged_so(
    taken: int, first: int, changes: list[tuple[int, tuple[str, int]]]
) -> None:
    """Wherever a burst begins, what follows the frames that were taken before is told from all else."""
    frames = np.concatenate([the_pass()[:taken], the_pass()[first:]])
    headers = headers_of(frames)
    for place, (name, value) in changes:
        headers[name][place % len(frames)] = value
    assert_like_the_model(frames, [taken, len(frames) - taken])
