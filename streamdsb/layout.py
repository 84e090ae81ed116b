"""Every size that follows from n, the number of replicas and the number of queues, in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

FRAME_BYTES = 4096
HEADER_BYTES = 64
PAYLOAD_BYTES = FRAME_BYTES - HEADER_BYTES

FRAME_WORDS = FRAME_BYTES // 8
HEADER_WORDS = HEADER_BYTES // 8
BLOCK_WORDS = PAYLOAD_BYTES // 8
"""64-bit words of one row inside one column block."""

BLOCK_COLUMNS = BLOCK_WORDS * 64
"""Couplings of one row inside one column block."""

GROUP_ROWS = 64
"""Rows are dealt out in groups of 64: the side of the bit tiles that symmetric sources transpose."""

MAX_N = 100_000_000
MAX_REPLICAS = 1024
MAX_CUDA_REPLICAS = 64
MAX_QUEUES = 8
MAX_RECEIVERS = 65_536


def ceil_div(a: int, b: int) -> int:
    """The least integer that is not below a / b."""
    return -(-a // b)


@dataclass(frozen=True)
class RowRange:
    """Rows `start` to `stop` - 1."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def split(self, parts: int) -> tuple[RowRange, ...]:
        """Divide the range into `parts` ranges, as equal as whole 64-row groups allow; some may be empty.

        `start` must be a multiple of 64; the last range ends where this one does.
        """
        groups = ceil_div(len(self), GROUP_ROWS)
        edges = [
            min(self.start + GROUP_ROWS * (part * groups // parts), self.stop) for part in range(parts + 1)
        ]
        return tuple(RowRange(a, b) for a, b in pairwise(edges))


@dataclass(frozen=True)
class Layout:
    """Sizes of a streaming run of `n` spins and `replicas` replicas over `queues` queues to one receiver.

    A pass is sent column block by column block, all rows of one block before the next.  Each queue
    carries its own contiguous range of rows, so the sequence number of a TILE frame fixes its place:
    frame s of a queue with R rows holds row `first + s % R` of column block `s // R`.
    Of several receivers, each has a layout of its own rows.
    """

    n: int
    replicas: int
    queues: int
    own_rows: RowRange | None = None
    """The rows of this receiver, from a multiple of 64, if it has not all of them."""

    @property
    def rows(self) -> RowRange:
        """The rows that pass through the queues."""
        return RowRange(0, self.n) if self.own_rows is None else self.own_rows

    def of(self, rows: RowRange) -> Layout:
        """The layout of the receiver that owns `rows`."""
        if rows.start % GROUP_ROWS:
            raise ValueError(
                f"rows begin at {rows.start}, but they should begin at a multiple of {GROUP_ROWS}"
            )
        return replace(self, own_rows=rows)

    @property
    def column_blocks(self) -> int:
        return ceil_div(self.n, BLOCK_COLUMNS)

    @property
    def bitmap_words(self) -> int:
        """64-bit words of one replica's sign bitmap."""
        return ceil_div(self.n, 64)

    @property
    def frames_per_pass(self) -> int:
        """TILE frames of one pass, all queues together."""
        return len(self.rows) * self.column_blocks

    @property
    def payload_per_pass(self) -> int:
        """Bytes, for all n rows V(n) = n * ceil(n / 32256) * 4032, padding included."""
        return self.frames_per_pass * PAYLOAD_BYTES

    @property
    def queue_rows(self) -> tuple[RowRange, ...]:
        """The rows that each queue carries."""
        return self.rows.split(self.queues)

    def frames_on(self, queue: int) -> int:
        """TILE frames that `queue` carries in one pass."""
        return len(self.queue_rows[queue]) * self.column_blocks

    def columns_in(self, block: int) -> int:
        """Couplings of one row in column block `block` that are inside the matrix."""
        return min(BLOCK_COLUMNS, self.n - block * BLOCK_COLUMNS)

    def words_in(self, block: int) -> int:
        """64-bit words of one row in column block `block` that hold couplings inside the matrix."""
        return ceil_div(self.columns_in(block), 64)

    @property
    def state_bytes(self) -> int:
        """Bytes of the receiver's state that grow with n: positions, momenta, counts, signs, best signs."""
        per_spin = 4 + 4 + 4
        return self.replicas * len(self.rows) * per_spin + (self.replicas + 1) * self.bitmap_words * 8
