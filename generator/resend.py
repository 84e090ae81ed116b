"""Sending over a queue that may lose frames: no more on the way than the receiver can take, and what is
asked for again is made again; nothing is kept.
"""

from __future__ import annotations

import time
from collections import deque
from typing import cast

import numpy as np

from generator.send import QueueFeeder, TileMaker
from generator.source import CouplingSource, RowSource
from generator.symmetry import SymmetryCheck
from streamdsb.feedback import FeedbackReader
from streamdsb.frame import FrameType
from streamdsb.jit import kernel
from streamdsb.layout import BLOCK_COLUMNS, FRAME_WORDS, GROUP_ROWS, HEADER_WORDS, Layout, RowRange
from streamdsb.payload_checksum import write_checksums
from streamdsb.queues import FrameSender
from streamdsb.queues.base import LossySender

_FIRST_REPEAT_S = 0.02
_LONGEST_REPEAT_S = 0.5
_FEW_ROWS = 8
"""Rows in a row that take less time to make one by one than their 64-row group does."""


@kernel("void(uint64[:, ::1], int64[::1], int64, int64, int64, int64[::1], int64[::1])")
def _write_places(
    frames: np.ndarray,
    sequences: np.ndarray,
    n: int,
    first_row: int,
    rows: int,
    places: np.ndarray,
    blocks: np.ndarray,
) -> None:
    """Put sequence number, row, column block and number of couplings into headers of block 0.

    places, blocks: int64 (len(frames),), receive the rows and column blocks.
    """
    for i in range(sequences.size):
        block, offset = sequences[i] // rows, sequences[i] % rows
        places[i], blocks[i] = first_row + offset, block
        frames[i, 3] = np.uint64(sequences[i])
        frames[i, 4] = np.uint64(first_row + offset)
        frames[i, 5] |= np.uint64(block)
        frames[i, 6] = np.uint64(min(n - block * BLOCK_COLUMNS, BLOCK_COLUMNS))


KERNELS = (_write_places,)


class LossyFeeder(QueueFeeder):
    """Feeds one queue that loses frames until the receiver says that it has them all."""

    look_up_s = 0.005

    def __init__(
        self,
        queue: int,
        rows: RowRange,
        layout: Layout,
        run: int,
        source: CouplingSource,
        sender: LossySender,
    ) -> None:
        super().__init__(queue, rows, layout, run, source, sender)
        self._lossy_sender = sender
        self._window = sender.window
        self._reader = FeedbackReader(run, queue, self._frames_per_pass)
        self._again = TileMaker(source, rows)
        self._row_source = source if isinstance(source, RowSource) else None
        self._complete = True

    @property
    def acknowledged(self) -> bool:
        return self._complete

    def begin_pass(self, pass_index: int, symmetry: SymmetryCheck | None) -> None:
        super().begin_pass(pass_index, symmetry)
        self._again.begin_pass(None)
        self._complete = False
        self._acknowledged = 0
        self._wanted: deque[tuple[int, int]] = deque()
        self._repeat_s = _FIRST_REPEAT_S
        self._repeat_at = 0.0

    def step(self) -> bool:
        """Listen to the receiver, then send a burst if there is one and room for it; False if neither."""
        moved = self._listen()
        if self._complete:
            self.sent = True
            return moved
        frames = self.sender.acquire()
        if frames is None:
            return moved
        if self._ended:
            self.sent = True
        count = self._compose_again(frames)
        fresh = self._fresh_after(count, len(frames))
        if fresh > 0:
            count += self._compose_next(frames[count : count + fresh])
        if count == 0 and self._is_repeat_due():
            self._commit(frames, self._compose_last(frames))
            return moved
        if count == 0:
            return moved
        self._commit(frames, count)
        self._repeat_at = time.monotonic() + self._repeat_s
        return True

    def _fresh_after(self, count: int, most: int) -> int:
        """How many frames that were never sent may follow `count` others in a burst of at most `most`.

        They go to the end of a 64-row group where they reach one, so that no group is cut without need.
        """
        room = min(most - count, self._window - (self._sequence - self._acknowledged))
        if self._sequence == self._frames_per_pass or room <= 0:
            return 0
        offset = self._sequence % len(self._rows)
        stop = (offset + room) // GROUP_ROWS * GROUP_ROWS
        if offset + room >= len(self._rows):
            return room
        if stop > offset:
            return stop - offset
        return 0 if count else room

    def _compose_last(self, frames: np.ndarray) -> int:
        """PASS_END after the last frame, else the last frame once more: it shows what was lost before it."""
        if self._sequence < self._frames_per_pass:
            return self._compose(frames[:1], self._sequence - 1, self._again)
        self._compose_end(frames)
        self._ended = True
        return 1

    def _listen(self) -> bool:
        """Take in what the receiver said; True if it has more than before."""
        before = self._acknowledged
        frames = self._lossy_sender.feedback()
        if frames is None:
            return False
        for feedback in self._reader.read(frames, self._pass):
            self._acknowledged = max(self._acknowledged, feedback.acknowledged)
            self._complete |= feedback.complete
            self._wanted.extend((first, count) for first, count in feedback.missing.tolist())
        if self._complete:
            self._wanted.clear()
        if self._acknowledged > before:
            self._repeat_s = _FIRST_REPEAT_S
        return self._acknowledged > before

    def _compose_again(self, frames: np.ndarray) -> int:
        """Fill `frames` with the first of those that are wanted; how many."""
        filled = 0
        while self._wanted and filled < len(frames):
            if self._row_source is not None and self._wanted[0][1] < _FEW_ROWS:
                filled += self._compose_scattered(frames[filled:], self._row_source)
                continue
            first, count = self._wanted.popleft()
            made = self._compose(frames[filled : filled + count], first, self._again)
            filled += made
            if made < count:
                self._wanted.appendleft((first + made, count - made))
        return filled

    def _compose_scattered(self, frames: np.ndarray, source: RowSource) -> int:
        """The same for short ranges, all at once, up to the first that is not."""
        wanted: list[int] = []
        while self._wanted and self._wanted[0][1] < _FEW_ROWS and len(wanted) < len(frames):
            first, count = self._wanted.popleft()
            fit = min(count, len(frames) - len(wanted))
            wanted.extend(range(first, first + fit))
            if fit < count:
                self._wanted.appendleft((first + fit, count - fit))
        frames = frames[: len(wanted)]
        sequences, rows = np.array(wanted, np.int64), self._rows
        places, blocks = np.empty_like(sequences), np.empty_like(sequences)
        self._write_headers(frames, FrameType.TILE, 0, 0, 0, 0)
        _write_places(frames, sequences, self._layout.n, rows.start, len(rows), places, blocks)
        source.fill_rows(places, blocks, frames[:, HEADER_WORDS:FRAME_WORDS])
        return len(wanted)

    def _commit(self, frames: np.ndarray, count: int) -> None:
        if not self.sender.capabilities.guards_payload:
            write_checksums(frames[:count])
        self.sender.commit(count)

    def _is_repeat_due(self) -> bool:
        """Whether the end, or what was sent last and nobody answered, is to be said (again)."""
        now = time.monotonic()
        is_first_end = self._sequence == self._frames_per_pass and not self._ended
        if now < self._repeat_at and not is_first_end:
            return False
        self._repeat_at = now + self._repeat_s
        self._repeat_s = min(2 * self._repeat_s, _LONGEST_REPEAT_S)
        return True


def feeder_for(
    queue: int, rows: RowRange, layout: Layout, run: int, source: CouplingSource, sender: FrameSender
) -> QueueFeeder:
    """What feeds a queue of this kind."""
    if sender.capabilities.lossless:
        return QueueFeeder(queue, rows, layout, run, source, sender)
    return LossyFeeder(queue, rows, layout, run, source, cast(LossySender, sender))
