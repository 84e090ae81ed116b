"""Sending: each queue's frames of a pass, composed burst by burst as the queue has room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from generator.source import CouplingSource
from generator.symmetry import SymmetryCheck
from streamdsb.errors import RunFailed
from streamdsb.frame import FrameType, write_headers
from streamdsb.layout import BLOCK_WORDS, FRAME_WORDS, GROUP_ROWS, HEADER_WORDS, Layout, RowRange
from streamdsb.queues import FrameSender, wait_for_any
from streamdsb.worker import Cancelled


class TileMaker:
    """Makes the payloads of any rows of one queue, whole 64-row groups at a time."""

    def __init__(self, source: CouplingSource, rows: RowRange) -> None:
        self._source = source
        self._rows = rows
        self._symmetry: SymmetryCheck | None = None
        self._group = np.zeros((GROUP_ROWS, BLOCK_WORDS), np.uint64)
        self._group_place = (-1, -1)

    def begin_pass(self, symmetry: SymmetryCheck | None) -> None:
        """Let `symmetry` watch the tiles that are made from now on."""
        self._symmetry = symmetry
        self._group_place = (-1, -1)

    def fill(self, rows: RowRange, block: int, words: np.ndarray) -> None:
        """The couplings of `rows` in column block `block`, uint64 (len(rows), words), any row stride."""
        if self._is_whole_groups(rows):
            self._make(rows, block, words)
        else:
            self._copy_from_groups(rows, block, words)

    def _is_whole_groups(self, rows: RowRange) -> bool:
        return rows.start % GROUP_ROWS == 0 and (len(rows) % GROUP_ROWS == 0 or rows.stop == self._rows.stop)

    def _make(self, rows: RowRange, block: int, words: np.ndarray) -> None:
        self._source.fill(rows, block, words)
        if self._symmetry is not None:
            self._symmetry.add(rows, block, words)

    def _copy_from_groups(self, rows: RowRange, block: int, words: np.ndarray) -> None:
        """Bursts that cut a 64-row group take it from a buffer, so that no group is made twice."""
        at = rows.start
        while at < rows.stop:
            start = at - at % GROUP_ROWS
            group = RowRange(start, min(start + GROUP_ROWS, self._rows.stop))
            stop = min(group.stop, rows.stop)
            part = words[at - rows.start : stop - rows.start]
            if len(part) == len(group):
                self._make(group, block, part)
            else:
                made = self._group[: len(group), : words.shape[1]]
                if self._group_place != (start, block):
                    self._make(group, block, made)
                    self._group_place = (start, block)
                part[:] = made[at - start : stop - start]
            at = stop


class QueueFeeder:
    """Feeds one queue: its rows, column block by column block, then PASS_END."""

    look_up_s = 0.25
    """How often a wait looks whether the run has been called off."""

    def __init__(
        self,
        queue: int,
        rows: RowRange,
        layout: Layout,
        run: int,
        source: CouplingSource,
        sender: FrameSender,
    ) -> None:
        self.queue = queue
        self.sender = sender
        self.sent = True
        """Whether every frame of the pass has been handed over to the queue."""
        self._rows = rows
        self._layout = layout
        self._run = run
        self._frames_per_pass = len(rows) * layout.column_blocks
        self._maker = TileMaker(source, rows)
        self._ended = True

    @property
    def acknowledged(self) -> bool:
        """True if the receiver needs nothing more of this pass; what a lossless queue takes, it brings."""
        return self.sent

    def begin_pass(self, pass_index: int, symmetry: SymmetryCheck | None) -> None:
        """Start over from sequence number 0; `symmetry` watches the tiles that are made."""
        self._pass = pass_index
        self._sequence = 0
        self._maker.begin_pass(symmetry)
        self._ended = False
        self.sent = False

    def step(self) -> bool:
        """Send one burst if the queue has room; False if it has none."""
        frames = self.sender.acquire()
        if frames is None:
            return False
        if self._ended:  # room for more means that nothing of PASS_END is kept back
            self.sent = True
        elif self._sequence < self._frames_per_pass:
            self.sender.commit(self._compose_next(frames))
        else:
            self._compose_end(frames)
            self.sender.commit(1)
            self._ended = True
        return True

    def _compose_next(self, frames: np.ndarray) -> int:
        count = self._compose(frames, self._sequence, self._maker)
        self._sequence += count
        return count

    def _compose(self, frames: np.ndarray, sequence: int, maker: TileMaker) -> int:
        """Fill `frames` with those from `sequence` on, up to the end of the column block; how many."""
        block, offset = divmod(sequence, len(self._rows))
        row = self._rows.start + offset
        rows = RowRange(row, min(row + len(frames), self._rows.stop))
        frames = frames[: len(rows)]
        words = self._layout.words_in(block)
        maker.fill(rows, block, frames[:, HEADER_WORDS : HEADER_WORDS + words])
        if self.sender.capabilities.copies_padding and words < BLOCK_WORDS:
            frames[:, HEADER_WORDS + words : FRAME_WORDS] = 0
        couplings = self._layout.columns_in(block)
        self._write_headers(frames, FrameType.TILE, sequence, row, block, couplings)
        return len(rows)

    def _compose_end(self, frames: np.ndarray) -> None:
        total = self._frames_per_pass
        self._write_headers(frames[:1], FrameType.PASS_END, total, total, 0, 0)

    def _write_headers(
        self, frames: np.ndarray, kind: FrameType, sequence: int, row: int, block: int, couplings: int
    ) -> None:
        write_headers(frames, int(kind), self._run, self._pass, sequence, row, block, self.queue, couplings)


def send_pass(feeders: Sequence[QueueFeeder], timeout_s: float, cancelled: threading.Event) -> None:
    """Feed these queues until all have every frame of the pass, PASS_END included.

    Raises RunFailed if no queue takes anything for `timeout_s` seconds, Cancelled if the run is called off.
    """
    deadline = time.monotonic() + timeout_s
    while open_feeders := [feeder for feeder in feeders if not feeder.sent]:
        if _step_all(open_feeders, cancelled):
            deadline = time.monotonic() + timeout_s
        elif time.monotonic() > deadline:
            queues = ", ".join(str(feeder.queue) for feeder in open_feeders)
            raise RunFailed(f"queue {queues}: full for {timeout_s:g} s (stream.timeout_s)")


def serve_until_acknowledged(
    feeders: Sequence[QueueFeeder], is_released: Callable[[], bool], cancelled: threading.Event
) -> None:
    """Send again what is asked for until the receiver has the pass or its successor is released.

    Raises Cancelled if the run is called off.
    """
    while open_feeders := [feeder for feeder in feeders if not feeder.acknowledged]:
        if is_released():
            return
        _step_all(open_feeders, cancelled)


def _step_all(feeders: Sequence[QueueFeeder], cancelled: threading.Event) -> bool:
    """A step of each; if none moved, a wait for one that can, and False."""
    moved = False
    for feeder in feeders:
        moved |= feeder.step()
    if cancelled.is_set():
        raise Cancelled
    if not moved:
        wait_for_any([feeder.sender for feeder in feeders], min(feeder.look_up_s for feeder in feeders))
    return moved
