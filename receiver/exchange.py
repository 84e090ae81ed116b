"""Several receivers, each with some of the rows, keep all sign bitmaps alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamdsb.communicator import Communicator
from streamdsb.layout import GROUP_ROWS, RowRange, ceil_div


class SignExchange:
    """Brings each receiver's sign words, B ceil(rows / 64) of them, to all others with one Allgatherv.

    rows: those of each rank, from multiples of 64.
    """

    def __init__(self, ranks: Communicator, rows: Sequence[RowRange], replicas: int) -> None:
        self._ranks = ranks
        firsts = [part.start // GROUP_ROWS for part in rows]
        self._columns = [
            slice(first, first + ceil_div(len(part), GROUP_ROWS))
            for first, part in zip(firsts, rows, strict=True)
        ]
        self._counts = [replicas * (columns.stop - columns.start) for columns in self._columns]
        self._every = np.zeros(sum(self._counts), np.uint64)

    def exchange(self, signs: np.ndarray) -> None:
        """Fill in the words of the others' rows in signs, uint64 (B, ceil(n / 64))."""
        own = np.ascontiguousarray(signs[:, self._columns[self._ranks.rank]])
        self._ranks.concatenate(own.reshape(-1), self._counts, self._every)
        at = 0
        for rank, (columns, count) in enumerate(zip(self._columns, self._counts, strict=True)):
            if rank != self._ranks.rank:
                signs[:, columns] = self._every[at : at + count].reshape(signs.shape[0], -1)
            at += count
