"""Messages: every field at its place, and what cannot be asked for."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdsb.errors import UserError
from streamdsb.service import limits, messages
from streamdsb.service.models import Format, Model

U32 = st.integers(0, 2**32 - 1)


def test_sizes() -> None:
    for dtype in (messages.LOAD, messages.LOAD_ACK, messages.SOLVE, messages.RESULT):
        assert dtype.itemsize == 64
    assert limits.FRAME_BYTES == 1472


@given(slot=st.integers(0, 63), generation=U32, request=st.integers(0, 2**64 - 1), size=st.integers(1, 3000))
def test_load_layout(slot: int, generation: int, request: int, size: int) -> None:
    packed = np.random.default_rng(size).bytes(size)
    frames = messages.load_frames(slot, generation, Model(7, Format.INT8, packed, 0.25), request)
    assert len(frames) == -(-size // 1408)
    body = b""
    for index, frame in enumerate(frames):
        expected = struct.pack(
            "<14xBBIIQIHxxIIIIf4x",
            1,
            16,
            slot,
            generation,
            request,
            7,
            3,
            index,
            len(frames),
            len(body),
            size,
            0.25,
        )
        assert frame[:64] == expected
        assert len(frame) <= 1472
        body += frame[64:]
    assert body == packed


@given(
    n=st.integers(1, 704),
    seed=st.integers(0, 2**64 - 1),
    first=st.integers(0, 2**32),
    updates=st.integers(1, 2**32 - 1),
    with_field=st.booleans(),
)
def test_solve_layout(n: int, seed: int, first: int, updates: int, with_field: bool) -> None:
    fields = np.arange(n, dtype=np.int16)[None] - 300 if with_field else None
    frames = messages.solve_frames(
        5, 9, n, fields, np.array([seed], np.uint64), replicas=3, updates=updates, xi=0.5, dt=1.25,
        first_request=first,
    )  # fmt: skip
    header = struct.pack(
        "<14xBBIIQIHHIff4xQ", 1, 18, 5, 9, first, n, 3, int(with_field), updates, 0.5, 1.25, seed
    )
    payload = b"" if fields is None else struct.pack(f"<{n}h", *fields[0])
    assert frames[0].tobytes() == header + payload


def test_result_layout() -> None:
    raw = struct.pack("<14xBBIIQqHHIIII4x", 1, 19, 5, 9, 77, -12345, 0, 3, 2, 10, 20, 30)
    header = np.frombuffer(raw, messages.RESULT)[0]
    names = ("version", "type", "model", "generation", "request", "two_energy", "status", "replica")
    assert [int(header[name]) for name in names] == [1, 19, 5, 9, 77, -12345, 0, 3]
    assert [int(header[name]) for name in ("worker", "queue_ns", "solve_ns", "transmit_ns")] == [
        2,
        10,
        20,
        30,
    ]


@given(st.lists(st.sampled_from([-1, 1]), min_size=1, max_size=100))
def test_spin_words(signs: list[int]) -> None:
    spins = np.array(signs, np.int8)
    words = messages.spin_words(spins)
    assert np.array_equal(messages.spins_of(words, len(spins)), spins)
    total = sum(int(word) << (32 * index) for index, word in enumerate(words))
    assert total == sum(1 << index for index, sign in enumerate(signs) if sign > 0)


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(UserError, match="from -32768 to 32767"):
        messages.check_field(np.array([40000]), 1)
    with pytest.raises(UserError, match="2 spins"):
        messages.check_field(np.zeros(3, int), 2)
    with pytest.raises(UserError, match="n up to 704"):
        messages.solve_frames(
            0, 1, 705, np.zeros((1, 705), np.int16), np.zeros(1, np.uint64), replicas=1, updates=1
        )
    with pytest.raises(UserError, match="0 to 63"):
        messages.load_frames(64, 1, Model(1, Format.INT8, b"\0"))
    with pytest.raises(UserError, match="from 1 to 32"):
        limits.check_request(128, 33, 1)
    with pytest.raises(UserError, match="from 1 to 100000"):
        limits.check_request(128, 1, 0)
