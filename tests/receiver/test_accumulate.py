"""One suite for accumulators: mismatch counts against a NumPy oracle, whatever the order of the frames."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.accumulate_cpu import CpuAccumulator
from receiver.check import FrameCheck
from streamdsb.frame import FrameType, empty_frames, write_headers
from streamdsb.layout import Layout, RowRange


class Accumulator(Protocol):
    def begin_pass(self, signs: np.ndarray) -> None: ...

    def feed(self, queue: int, frames: np.ndarray, accepted: np.ndarray) -> None: ...

    def finish_pass(self) -> np.ndarray: ...


Maker = Callable[[Layout, RowRange], Accumulator]
MAKERS: dict[str, Maker] = {"cpu": CpuAccumulator}


@pytest.fixture(params=sorted(MAKERS))
def make(request: pytest.FixtureRequest) -> Maker:
    return MAKERS[request.param]


def random_bits(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """uint8 (rows, columns) of 0 and 1."""
    return rng.integers(0, 2, (rows, columns), np.uint8)


def packed(bits: np.ndarray) -> np.ndarray:
    """uint64 (rows, ceil(columns / 64)), padding 0."""
    octets = np.packbits(bits, axis=1, bitorder="little")
    return np.pad(octets, ((0, 0), (0, -octets.shape[1] % 8))).view(np.uint64)


def expected_counts(couplings: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Mismatches of every row with every replica, (B, rows), from 0 and 1 in (rows, n) and (B, n)."""
    c, v = couplings.astype(np.float64), signs.astype(np.float64)
    return (v @ (1 - c).T + (1 - v) @ c.T).astype(np.int64)


def frames_of(couplings: np.ndarray, layout: Layout, queue: int, first_row: int = 0) -> np.ndarray:
    """All TILE frames of `queue`, uint64 (count, 512), in the order in which they are sent.

    couplings: 0 and 1 in (rows, n), of which row 0 is row `first_row` of the matrix.
    """
    words = packed(couplings)
    rows = layout.queue_rows[queue]
    frames = np.zeros((layout.frames_on(queue), 512), np.uint64)
    for block in range(layout.column_blocks):
        own = frames[block * len(rows) : (block + 1) * len(rows)]
        inside = layout.words_in(block)
        columns = layout.columns_in(block)
        write_headers(own, int(FrameType.TILE), 1, 0, block * len(rows), rows.start, block, queue, columns)
        source = words[rows.start - first_row : rows.stop - first_row]
        own[:, 8 : 8 + inside] = source[:, 504 * block : 504 * block + inside]
    return frames


def bursts(frames: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for at in range(0, len(frames), size):
        yield frames[at : at + size]


def all_of(frames: np.ndarray) -> np.ndarray:
    return np.arange(len(frames), dtype=np.int32)


@pytest.mark.parametrize("replicas", [1, 3, 8, 32])
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 1000])
def test_counts(make: Maker, n: int, replicas: int) -> None:
    rng = np.random.default_rng(n)
    layout = Layout(n, replicas, 1)
    couplings, signs = random_bits(rng, n, n), random_bits(rng, replicas, n)
    accumulator = make(layout, RowRange(0, n))
    accumulator.begin_pass(packed(signs))
    for burst in bursts(frames_of(couplings, layout, 0), 64):
        accumulator.feed(0, burst, all_of(burst))
    counts = accumulator.finish_pass()
    assert counts.dtype == np.int32
    assert (counts == expected_counts(couplings, signs)).all()


@pytest.mark.parametrize("n", [32_256, 32_257, 33_001])
def test_rows_that_span_column_blocks(make: Maker, n: int) -> None:
    """The last rows of a large matrix, as one of two receivers has them."""
    rng = np.random.default_rng(n)
    first = (n - 100) // 64 * 64
    rows, whole = RowRange(first, n), Layout(n, 3, 1)
    couplings, signs = random_bits(rng, len(rows), n), random_bits(rng, 3, n)
    words, accumulator = packed(couplings), make(whole, rows)
    accumulator.begin_pass(packed(signs))
    for block in range(whole.column_blocks):
        frames, inside = empty_frames(len(rows)), whole.words_in(block)
        write_headers(frames, int(FrameType.TILE), 1, 0, 0, first, block, 0, whole.columns_in(block))
        frames[:, 8 : 8 + inside] = words[:, 504 * block : 504 * block + inside]
        frames[:, 8 + inside :] = np.uint64(0xFFFF_FFFF_FFFF_FFFF)  # not part of the matrix, so never read
        accumulator.feed(0, frames, all_of(frames))
    assert (accumulator.finish_pass() == expected_counts(couplings, signs)).all()


@pytest.mark.parametrize("queues", [2, 3, 8])
def test_threads_that_feed_different_queues(make: Maker, queues: int) -> None:
    n, replicas = 1000, 8
    rng = np.random.default_rng(queues)
    layout = Layout(n, replicas, queues)
    couplings, signs = random_bits(rng, n, n), random_bits(rng, replicas, n)
    accumulator = make(layout, RowRange(0, n))

    def feed(queue: int) -> None:
        for burst in bursts(frames_of(couplings, layout, queue), 7):
            accumulator.feed(queue, burst, all_of(burst))

    for _ in range(5):
        accumulator.begin_pass(packed(signs))
        with ThreadPoolExecutor(queues) as pool:
            list(pool.map(feed, range(queues)))
        assert (accumulator.finish_pass() == expected_counts(couplings, signs)).all()


def test_only_accepted_frames_are_added(make: Maker) -> None:
    rng = np.random.default_rng(5)
    layout = Layout(200, 4, 1)
    couplings, signs = random_bits(rng, 200, 200), random_bits(rng, 4, 200)
    accumulator = make(layout, RowRange(0, 200))
    accumulator.begin_pass(packed(signs))
    frames = frames_of(couplings, layout, 0)
    frames[1::2, 4] = np.uint64(2**63)  # rows that would be far outside
    accepted = np.arange(0, 200, 2, dtype=np.int32)
    accumulator.feed(0, frames, accepted)
    accumulator.feed(0, frames, accepted[:0])
    counts = accumulator.finish_pass()
    assert (counts[:, ::2] == expected_counts(couplings, signs)[:, ::2]).all()
    assert not counts[:, 1::2].any()


def test_each_pass_starts_from_zero_with_its_own_signs(make: Maker) -> None:
    rng = np.random.default_rng(6)
    layout = Layout(130, 2, 1)
    couplings = random_bits(rng, 130, 130)
    frames, accumulator = frames_of(couplings, layout, 0), make(layout, RowRange(0, 130))
    for _ in range(3):
        signs = random_bits(rng, 2, 130)
        accumulator.begin_pass(packed(signs))
        accumulator.feed(0, frames, all_of(frames))
        assert (accumulator.finish_pass() == expected_counts(couplings, signs)).all()


@pytest.mark.parametrize(("bit", "sign"), [(0, 1), (1, 0), (1, 1), (0, 0)])
def test_extremes(make: Maker, bit: int, sign: int) -> None:
    layout = Layout(129, 2, 1)
    couplings, signs = np.full((129, 129), bit, np.uint8), np.full((2, 129), sign, np.uint8)
    accumulator = make(layout, RowRange(0, 129))
    accumulator.begin_pass(packed(signs))
    frames = frames_of(couplings, layout, 0)
    accumulator.feed(0, frames, all_of(frames))
    assert (accumulator.finish_pass() == (0 if bit == sign else 129)).all()


@pytest.mark.parametrize("kind", sorted(MAKERS))
@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 300),
    replicas=st.integers(1, 9),
    queues=st.integers(1, 4),
    burst=st.integers(1, 70),
    seed=st.integers(0, 2**32),
)
def test_the_order_of_bursts_does_not_matter(
    kind: str, n: int, replicas: int, queues: int, burst: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    layout = Layout(n, replicas, queues)
    couplings, signs = random_bits(rng, n, n), random_bits(rng, replicas, n)
    pieces = [
        (queue, piece)
        for queue in range(queues)
        for piece in bursts(frames_of(couplings, layout, queue), burst)
    ]
    random.Random(seed).shuffle(pieces)
    accumulator = MAKERS[kind](layout, RowRange(0, n))
    accumulator.begin_pass(packed(signs))
    for queue, piece in pieces:
        accumulator.feed(queue, piece, all_of(piece))
    assert (accumulator.finish_pass() == expected_counts(couplings, signs)).all()


@given(seed=st.integers(0, 2**32), burst=st.sampled_from([1, 7, 64]), replicas=st.sampled_from([1, 3, 9]))
@settings(max_examples=40, deadline=None)
def test_checking_and_adding_in_one_go_is_the_same(seed: int, burst: int, replicas: int) -> None:
    """Of frames that are missing, repeated, swapped, of another run or pass, and whole passes."""
    layout, rng = Layout(32_300, replicas, 8), np.random.default_rng(seed)
    rows = layout.queue_rows[3]
    rows = RowRange(rows.start, rows.start + 65)
    frames = np.zeros((2 * len(rows) + 1, 512), np.uint64)
    frames[:, 8:] = rng.integers(0, 2**64, (len(frames), 504), np.uint64)
    for block in range(2):
        own, first = frames[block * len(rows) : (block + 1) * len(rows)], block * len(rows)
        own[:, 8 + layout.words_in(block) :] = 0
        write_headers(own, int(FrameType.TILE), 1, 0, first, rows.start, block, 3, layout.columns_in(block))
    write_headers(frames[-1:], int(FrameType.PASS_END), 1, 0, 2 * len(rows), 2 * len(rows), 0, 3, 0)
    for _ in range(rng.integers(0, 8)):
        at = rng.integers(0, len(frames), 2)
        match rng.integers(0, 4):
            case 0:
                frames = np.delete(frames, at[0], axis=0)
            case 1:
                frames = np.insert(frames, at[0], frames[min(at[1], len(frames) - 1)], axis=0)
            case 2:
                frames[at[0] % len(frames), 2] ^= np.uint64(1) << np.uint64(rng.integers(0, 64))
            case 3:
                frames[at % len(frames)] = frames[at[::-1] % len(frames)]
    signs = packed(random_bits(rng, replicas, layout.n))
    checks = [FrameCheck(layout, 3, rows, 1, burst) for _ in range(2)]
    apart, together = CpuAccumulator(layout, rows), CpuAccumulator(layout, rows)
    for check, accumulator in zip(checks, (apart, together), strict=True):
        check.begin_pass(0)
        accumulator.begin_pass(signs)
    for part in bursts(frames, burst):
        apart.feed(3, part, checks[0].accept(part))
        together.feed_checked(checks[1], part)
    np.testing.assert_array_equal(apart.finish_pass(), together.finish_pass())
    np.testing.assert_array_equal(checks[0].counts, checks[1].counts)
    assert checks[0].fault() == checks[1].fault()
    assert checks[0].ended == checks[1].ended
