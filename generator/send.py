"""Sending: each queue's frames of a pass, composed burst by burst as the queue has room."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from generator.source import CouplingSource
from generator.symmetry import SymmetryCheck
from streamdsb.errors import RunFailed
from streamdsb.frame import FrameType, write_headers
from streamdsb.layout import BLOCK_WORDS, GROUP_ROWS, HEADER_WORDS, Layout, RowRange
from streamdsb.queues import FrameSender, wait_for_any
from streamdsb.worker import Cancelled

_LOOK_UP_S = 0.25
"""How often a wait looks whether the run has been called off."""


class QueueFeeder:
    """Feeds one queue: its rows, column block by column block, then PASS_END."""

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
        self._rows = rows
        self._layout = layout
        self._run = run
        self._source = source
        self._group = np.zeros((GROUP_ROWS, BLOCK_WORDS), np.uint64)
        self._group_place = (-1, -1)
        self._ended = True
        self.done = True

    def begin_pass(self, pass_index: int, symmetry: SymmetryCheck | None) -> None:
        """Start over from sequence number 0; `symmetry` watches the tiles that are made."""
        self._pass = pass_index
        self._symmetry = symmetry
        self._sequence = 0
        self._block = 0
        self._row = self._rows.start
        self._group_place = (-1, -1)
        self._ended = False
        self.done = False

    def step(self) -> bool:
        """Send one burst if the queue has room; False if it has none."""
        frames = self.sender.acquire()
        if frames is None:
            return False
        if self._ended:  # room for more means that nothing of PASS_END is kept back
            self.done = True
        elif len(self._rows) and self._block < self._layout.column_blocks:
            self.sender.commit(self._compose_tiles(frames))
        else:
            self._write_headers(frames[:1], FrameType.PASS_END, self._sequence, 0)
            self.sender.commit(1)
            self._ended = True
        return True

    def _compose_tiles(self, frames: np.ndarray) -> int:
        count = min(frames.shape[0], self._rows.stop - self._row)
        words = self._layout.words_in(self._block)
        rows = RowRange(self._row, self._row + count)
        payload = frames[:count, HEADER_WORDS : HEADER_WORDS + words]
        if self._is_whole_groups(rows):
            self._make(rows, payload)
        else:
            self._copy_from_groups(rows, payload)
        if self.sender.capabilities.copies_padding and words < BLOCK_WORDS:
            frames[:count, HEADER_WORDS + words :] = 0
        self._write_headers(frames[:count], FrameType.TILE, self._row, self._layout.columns_in(self._block))
        self._move_on(count)
        return count

    def _write_headers(self, frames: np.ndarray, kind: FrameType, row: int, couplings: int) -> None:
        block = self._block if kind is FrameType.TILE else 0
        write_headers(
            frames, int(kind), self._run, self._pass, self._sequence, row, block, self.queue, couplings
        )

    def _move_on(self, count: int) -> None:
        self._sequence += count
        self._row += count
        if self._row == self._rows.stop:
            self._row = self._rows.start
            self._block += 1

    def _is_whole_groups(self, rows: RowRange) -> bool:
        return rows.start % GROUP_ROWS == 0 and (len(rows) % GROUP_ROWS == 0 or rows.stop == self._rows.stop)

    def _make(self, rows: RowRange, words: np.ndarray) -> None:
        self._source.fill(rows, self._block, words)
        if self._symmetry is not None:
            self._symmetry.add(rows, self._block, words)

    def _copy_from_groups(self, rows: RowRange, payload: np.ndarray) -> None:
        """Bursts that cut a 64-row group take it from a buffer, so that no group is made twice."""
        at = rows.start
        while at < rows.stop:
            start = at - at % GROUP_ROWS
            group = RowRange(start, min(start + GROUP_ROWS, self._rows.stop))
            words = self._group[: len(group), : payload.shape[1]]
            if self._group_place != (start, self._block):
                self._make(group, words)
                self._group_place = (start, self._block)
            stop = min(group.stop, rows.stop)
            payload[at - rows.start : stop - rows.start] = words[at - start : stop - start]
            at = stop


def send_pass(feeders: Sequence[QueueFeeder], timeout_s: float, cancelled: threading.Event) -> None:
    """Feed these queues until each has sent its PASS_END.

    Raises RunFailed if no queue has room for `timeout_s` seconds, Cancelled if the run is called off.
    """
    open_feeders = [feeder for feeder in feeders if not feeder.done]
    deadline = time.monotonic() + timeout_s
    while open_feeders:
        moved = False
        for feeder in open_feeders:
            moved |= feeder.step()
        if cancelled.is_set():
            raise Cancelled
        if moved:
            deadline = time.monotonic() + timeout_s
            open_feeders = [feeder for feeder in open_feeders if not feeder.done]
        elif wait_for_any([feeder.sender for feeder in open_feeders], _LOOK_UP_S):
            continue
        elif time.monotonic() > deadline:
            queues = ", ".join(str(feeder.queue) for feeder in open_feeders)
            raise RunFailed(f"queue {queues}: full for {timeout_s:g} s (stream.timeout_s)")
