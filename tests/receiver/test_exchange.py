"""The exchange of signs: what ranks send ends up where the others expect it."""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import pytest

from receiver.exchange import SignExchange
from streamdsb.communicator import OneRank
from streamdsb.layout import RowRange


class RankAmong(OneRank):
    """One rank whose fellow ranks' words are known beforehand."""

    def __init__(self, rank: int, words: Sequence[np.ndarray]) -> None:
        self.rank, self.size = rank, len(words)
        self._words = words

    def concatenate(self, words: np.ndarray, counts: Sequence[int], into: np.ndarray) -> None:
        assert np.array_equal(words, self._words[self.rank])
        assert list(counts) == [part.size for part in self._words]
        into[:] = np.concatenate(self._words)

    def abort(self, status: int) -> NoReturn:
        raise AssertionError


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize(("n", "receivers"), [(65, 2), (1000, 3), (4097, 5), (64, 1)])
def test_all_words_end_up_in_their_places(n: int, receivers: int, replicas: int) -> None:
    width = -(-n // 64)
    whole = np.random.default_rng(n).integers(0, 2**64, (replicas, width), np.uint64)
    rows = RowRange(0, n).split(receivers)
    columns = [slice(part.start // 64, -(-part.stop // 64)) for part in rows]
    words = [whole[:, own].reshape(-1) for own in columns]
    for rank, own in enumerate(columns):
        signs = np.full_like(whole, 0xDEAD)
        signs[:, own] = whole[:, own]
        SignExchange(RankAmong(rank, words), rows, replicas).exchange(signs)
        assert np.array_equal(signs, whole)
