"""Packed models: literal bytes, round trips, and what cannot be packed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdsb.errors import UserError
from streamdsb.service.models import Format, default_xi, natural_format, pack, packed_bytes, unpack
from validation import oracle


def couplings_for(n: int, format: Format, seed: int) -> np.ndarray:  # noqa: A002
    rng = np.random.default_rng(seed)
    values = {Format.PM1: [-1, 1], Format.TERNARY: [-1, 0, 0, 1], Format.INT8: range(-128, 128)}[format]
    upper = np.triu(rng.choice(list(values), (n, n)).astype(np.int8), 1)
    return upper + upper.T


def test_packed_bytes_of_the_largest_models() -> None:
    assert packed_bytes(2048, Format.PM1) == 524288
    assert packed_bytes(724, Format.INT8) == 524176
    assert packed_bytes(1, Format.TERNARY) == 12
    assert packed_bytes(128, Format.TERNARY) == 2 * 128 * 16 + 512


def test_literal_bytes() -> None:
    ternary = np.array([[0, 1, -1], [1, 0, 0], [-1, 0, 0]])
    assert pack(ternary).packed == bytes.fromhex(
        "0200000001000000000000000400000000000000010000000000000001000000ffffffff"
    )
    dense = np.array([[0, 1, -1], [1, 0, 1], [-1, 1, 0]])
    assert pack(dense).packed == bytes.fromhex("020000000500000002000000")
    assert pack(5 * ternary).packed == bytes.fromhex("0005fb050000fb0000")


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 100), format=st.sampled_from(Format), seed=st.integers(0, 2**32))
def test_round_trip(n: int, format: Format, seed: int) -> None:  # noqa: A002
    couplings = couplings_for(n, format, seed)
    model = pack(couplings, format)
    assert len(model.packed) == packed_bytes(n, format)
    assert np.array_equal(unpack(model), couplings)
    assert natural_format(couplings) <= format


def test_default_xi_is_the_oracles() -> None:
    for format in Format:  # noqa: A001
        couplings = couplings_for(37, format, 1)
        squares = int(np.square(couplings, dtype=np.int64).sum())
        assert default_xi(37, squares) == np.float32(oracle.default_xi(couplings))
    assert default_xi(4, 0) == np.float32(0.25)


@pytest.mark.parametrize(
    ("couplings", "words"),
    [
        (np.zeros((2, 3), int), "square matrix"),
        (np.eye(2, dtype=int), "diagonal should be 0"),
        (np.array([[0, 1], [2, 0]]), "should be equal"),
        (np.array([[0, 200], [200, 0]]), "-128 to 127"),
        (np.zeros((2, 2)), "float64"),
        (np.zeros((800, 800), np.int8) + 2 - 2 * np.eye(800, dtype=np.int8), "640000 bytes as INT8"),
    ],
)
def test_what_cannot_be_packed(couplings: np.ndarray, words: str) -> None:
    with pytest.raises(UserError, match=words):
        pack(couplings)


def test_a_format_too_small_is_refused() -> None:
    with pytest.raises(UserError, match="TERNARY holds them"):
        pack(np.zeros((3, 3), int), Format.PM1)
