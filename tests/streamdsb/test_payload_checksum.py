"""The checksums of payloads are those of the xxhash library, however many frames there are."""

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdsb.frame import headers_of
from streamdsb.payload_checksum import checksums, write_checksums


def random_frames(count: int, seed: int, words: int = 512) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, (count, words), np.uint64)


def expected(frames: np.ndarray) -> list[int]:
    return [xxhash.xxh32(frame[8:512].tobytes()).intdigest() for frame in frames]


@given(count=st.integers(0, 40), seed=st.integers(0, 2**32), words=st.sampled_from([512, 528]))
@settings(max_examples=60, deadline=None)
def test_any_payloads(count: int, seed: int, words: int) -> None:
    frames = random_frames(count, seed, words)
    sums = np.full(count, 0xDEADBEEF, np.uint32)
    checksums(frames, sums)
    assert sums.tolist() == expected(frames)


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_payloads_of_one_word(word: int) -> None:
    frames = np.full((5, 512), word, np.uint64)
    sums = np.zeros(5, np.uint32)
    checksums(frames, sums)
    assert sums.tolist() == expected(frames)


@pytest.mark.parametrize("count", [1, 4, 5, 16, 17, 33])
def test_writing_changes_nothing_but_the_field(count: int) -> None:
    frames = random_frames(count, 7)
    before = frames.copy()
    write_checksums(frames)
    assert headers_of(frames)["payload_checksum"].tolist() == expected(before)
    headers_of(frames)["payload_checksum"] = headers_of(before)["payload_checksum"]
    assert (frames == before).all()
