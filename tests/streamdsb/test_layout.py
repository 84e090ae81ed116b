"""Sizes against numbers written out by hand."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdsb.layout import (
    BLOCK_COLUMNS,
    BLOCK_WORDS,
    FRAME_WORDS,
    HEADER_WORDS,
    PAYLOAD_BYTES,
    Layout,
    RowRange,
    ceil_div,
)


def test_frame_sizes() -> None:
    assert (FRAME_WORDS, HEADER_WORDS, BLOCK_WORDS) == (512, 8, 504)
    assert (PAYLOAD_BYTES, BLOCK_COLUMNS) == (4032, 32_256)


@pytest.mark.parametrize(
    ("n", "column_blocks", "bitmap_words", "frames", "payload"),
    [
        (1, 1, 1, 1, 4032),
        (2, 1, 1, 2, 8064),
        (64, 1, 1, 64, 258_048),
        (65, 1, 2, 65, 262_080),
        (2_000, 1, 32, 2_000, 8_064_000),
        (32_256, 1, 504, 32_256, 130_056_192),
        (32_257, 2, 505, 64_514, 260_120_448),
        (100_000, 4, 1_563, 400_000, 1_612_800_000),
        (1_000_000, 32, 15_625, 32_000_000, 129_024_000_000),
        (10_000_000, 311, 156_250, 3_110_000_000, 12_539_520_000_000),
        (100_000_000, 3_101, 1_562_500, 310_100_000_000, 1_250_323_200_000_000),
    ],
)
def test_a_pass(n: int, column_blocks: int, bitmap_words: int, frames: int, payload: int) -> None:
    layout = Layout(n, replicas=8, queues=2)
    assert layout.column_blocks == column_blocks
    assert layout.bitmap_words == bitmap_words
    assert layout.frames_per_pass == frames
    assert layout.payload_per_pass == payload


def test_columns_and_words_of_each_block() -> None:
    layout = Layout(70_000, 1, 1)
    assert [layout.columns_in(block) for block in range(layout.column_blocks)] == [32_256, 32_256, 5_488]
    assert [layout.words_in(block) for block in range(layout.column_blocks)] == [504, 504, 86]
    assert Layout(32_257, 1, 1).words_in(1) == 1


def test_state_of_a_million_spins() -> None:
    # positions, momenta and counts of 4 bytes each, B bitmaps and the best one's copy
    assert Layout(1_000_000, 8, 1).state_bytes == 96_000_000 + 9 * 125_000


@pytest.mark.parametrize(
    ("n", "queues", "edges"),
    [
        (1, 1, [0, 1]),
        (1, 3, [0, 0, 0, 1]),
        (64, 2, [0, 0, 64]),
        (65, 2, [0, 64, 65]),
        (1_000, 2, [0, 512, 1_000]),
        (1_000, 3, [0, 320, 640, 1_000]),
        (100_000, 8, [0, 12_480, 24_960, 37_504, 49_984, 62_464, 75_008, 87_488, 100_000]),
    ],
)
def test_rows_of_the_queues(n: int, queues: int, edges: list[int]) -> None:
    layout = Layout(n, 1, queues)
    assert layout.queue_rows == tuple(RowRange(a, b) for a, b in pairwise(edges))
    assert [layout.frames_on(q) for q in range(queues)] == [
        (b - a) * layout.column_blocks for a, b in pairwise(edges)
    ]


@settings(deadline=None)
@given(start_group=st.integers(0, 2**21), length=st.integers(0, 10**8), parts=st.integers(1, 8))
def test_split_covers_the_range_in_whole_groups(start_group: int, length: int, parts: int) -> None:
    whole = RowRange(64 * start_group, 64 * start_group + length)
    ranges = whole.split(parts)
    assert len(ranges) == parts
    assert ranges[0].start == whole.start
    assert ranges[-1].stop == whole.stop
    assert all(a.stop == b.start for a, b in pairwise(ranges))
    assert all(r.start % 64 == 0 for r in ranges if len(r))
    groups = [ceil_div(len(r), 64) for r in ranges]
    assert max(groups) - min(groups) <= 1


@settings(deadline=None)
@given(a=st.integers(0, 2**60), b=st.integers(1, 2**30))
def test_ceil_div(a: int, b: int) -> None:
    assert (ceil_div(a, b) - 1) * b < a <= ceil_div(a, b) * b


def test_the_layout_of_some_rows() -> None:
    parts = RowRange(0, 4097).split(3)
    assert parts == (RowRange(0, 1344), RowRange(1344, 2752), RowRange(2752, 4097))
    layouts = [Layout(4097, 8, 2).of(rows) for rows in parts]
    assert [layout.frames_per_pass for layout in layouts] == [1344, 1408, 1345]
    assert layouts[1].queue_rows == (RowRange(1344, 2048), RowRange(2048, 2752))
    assert layouts[2].queue_rows == (RowRange(2752, 3456), RowRange(3456, 4097))
    assert layouts[1].frames_on(1) == 704
    assert layouts[1].state_bytes == 8 * 1408 * 12 + 9 * 65 * 8
    assert all(layout.bitmap_words == 65 for layout in layouts)


def test_rows_that_do_not_begin_a_group_are_refused() -> None:
    with pytest.raises(ValueError, match="rows begin at 65, but they should begin at a multiple of 64"):
        Layout(4097, 8, 2).of(RowRange(65, 128))
