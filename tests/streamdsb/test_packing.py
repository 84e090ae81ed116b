"""Packed couplings: bit j % 64 of word j // 64, there and back."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamdsb.layout import RowRange
from streamdsb.packing import columns_of, pack_couplings, set_diagonal, unpack_couplings

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 300))


@settings(deadline=None)
@given(plus=hnp.arrays(np.bool_, SHAPES))
def test_round_trip(plus: np.ndarray) -> None:
    packed = pack_couplings(plus)
    assert packed.dtype == np.uint64
    assert packed.shape == (plus.shape[0], -(-plus.shape[1] // 64))
    assert (unpack_couplings(packed, plus.shape[1]) == plus).all()


@settings(deadline=None)
@given(plus=hnp.arrays(np.bool_, SHAPES))
def test_each_bit_against_python(plus: np.ndarray) -> None:
    expected = [sum(int(bit) << j for j, bit in enumerate(row)) for row in plus]
    found = [sum(int(word) << 64 * w for w, word in enumerate(row)) for row in pack_couplings(plus)]
    assert found == expected  # padding bits included: they are 0


@settings(deadline=None)
@given(
    block=st.integers(0, 3),
    offset=st.integers(-200, 32_400),
    count=st.integers(0, 130),
)
def test_set_diagonal(block: int, offset: int, count: int) -> None:
    start = max(0, block * 32_256 + offset)
    rows = RowRange(start, start + count)
    out = np.zeros((count, 504), np.uint64)
    set_diagonal(rows, block, out)
    inside = [i for i in range(rows.start, rows.stop) if i // 32_256 == block]
    found = np.argwhere(unpack_couplings(out, 32_256))
    assert found.tolist() == [[i - rows.start, i - block * 32_256] for i in inside]


def test_columns_of_a_block() -> None:
    assert columns_of(40_000, 1).tolist() == list(range(32_256, 40_000))
    assert len(columns_of(40_000, 0)) == 32_256
