"""Sending again on the GPU: the twin of resend, which gives the generate kernel its orders.

The kernel sends no more than it is permitted and makes again what it is told; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from generator.synthesize_cuda import MOST_ORDERS, ORDER, GenerateKernel
from streamdsb.feedback import FeedbackReader
from streamdsb.layout import GROUP_ROWS, Layout, ceil_div
from streamdsb.queues.feedback_line import FeedbackSource

_FIRST_REPEAT_S = 0.02
_LONGEST_REPEAT_S = 0.5


def orders_of(ranges: np.ndarray, rows: int, queue: int, passes_before: int) -> np.ndarray:
    """The orders, ORDER (tiles,), for ranges of sequence numbers, int64 (ranges, 2).

    rows: those that the queue carries; passes_before: passes since the start before theirs.
    """
    counts = ranges[:, 1]
    steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    sequences = np.unique(np.repeat(ranges[:, 0], counts) + steps)
    block, offset = np.divmod(sequences, rows)
    tiles = block * ceil_div(rows, GROUP_ROWS) + offset // GROUP_ROWS
    distinct, first = np.unique(tiles, return_index=True)
    orders = np.zeros(len(distinct), ORDER)
    orders["queue"], orders["pass"], orders["tile"] = queue, passes_before, distinct
    orders["rows"] = np.bitwise_or.reduceat(np.uint64(1) << (offset % GROUP_ROWS).astype(np.uint64), first)
    return orders


def end_order(queue: int, passes_before: int) -> np.ndarray:
    """The order, ORDER (1,), to send PASS_END again."""
    order = np.zeros(1, ORDER)
    order["queue"], order["pass"] = queue, passes_before
    return order


class _Lane:
    """One queue: what the receiver has said of its pass, and what it still wants."""

    def __init__(self, layout: Layout, queue: int, run: int, line: FeedbackSource, window: int) -> None:
        self.queue = queue
        self._rows = len(layout.queue_rows[queue])
        self._expected = layout.frames_on(queue)
        self._line = line
        self._reader = FeedbackReader(run, queue, self._expected)
        self._window = window
        self.complete = True

    def begin_pass(self, pass_index: int, passes_before: int) -> None:
        self._pass = pass_index
        self._passes_before = passes_before
        self.complete = False
        self._acknowledged = 0
        self._wanted: list[np.ndarray] = []
        self._repeat_s = _FIRST_REPEAT_S
        self._repeat_at = 0.0

    @property
    def permitted(self) -> int:
        """Frames that may be sent since the start."""
        ahead = min(self._acknowledged + self._window, self._expected)
        return self._passes_before * self._expected + ahead

    def listen(self) -> bool:
        """Take in what the receiver said; True if it has more than before."""
        before = self._acknowledged, self.complete
        while (frames := self._line.feedback()) is not None:
            for feedback in self._reader.read(frames, self._pass):
                self._acknowledged = max(self._acknowledged, feedback.acknowledged)
                self.complete |= feedback.complete
                if len(feedback.missing):
                    self._wanted.append(feedback.missing)
        if self.complete:
            self._wanted.clear()
        moved = (self._acknowledged, self.complete) != before
        if moved:
            self._repeat_s = _FIRST_REPEAT_S
        return moved

    def orders(self, now: float, moved: bool, sent: bool) -> np.ndarray:
        """What to send again now, ORDER (any number,); moved: something has been sent; sent: all has."""
        orders = np.zeros(0, ORDER)
        if self.complete:
            return orders
        if self._wanted:
            orders = orders_of(np.concatenate(self._wanted), self._rows, self.queue, self._passes_before)
            self._wanted.clear()
        elif not moved and now >= self._repeat_at and self._repeat_at:
            orders = self._last(sent)
            self._repeat_s = min(2 * self._repeat_s, _LONGEST_REPEAT_S)
        if moved or len(orders) or not self._repeat_at:
            self._repeat_at = now + self._repeat_s
        return orders

    def _last(self, sent: bool) -> np.ndarray:
        """PASS_END after the last frame, else the last permitted frame: it shows what was lost before it."""
        if sent or not self._expected:
            return end_order(self.queue, self._passes_before)
        last = min(self._acknowledged + self._window, self._expected) - 1
        return orders_of(np.array([[last, 1]]), self._rows, self.queue, self._passes_before)


class Repairs:
    """Lets a generate kernel send as its receiver gets on, until that has every frame of the pass."""

    def __init__(
        self, layout: Layout, run: int, kernel: GenerateKernel, lines: Sequence[FeedbackSource], window: int
    ) -> None:
        self._kernel = kernel
        self._lanes = [_Lane(layout, queue, run, line, window) for queue, line in enumerate(lines)]
        self._sent = [0] * layout.queues
        self._passes = 0
        self._waiting = np.zeros(0, ORDER)

    @property
    def complete(self) -> bool:
        """True once the receiver has said of every queue that it has the whole pass."""
        return all(lane.complete for lane in self._lanes)

    def begin_pass(self, pass_index: int, passes_before: int) -> None:
        """Serve pass `pass_index` from now on, before it is released; `passes_before` it since the start."""
        self._passes = passes_before + 1
        self._waiting = self._waiting[:0]
        for lane in self._lanes:
            lane.begin_pass(pass_index, passes_before)
            self._kernel.permit(lane.queue, lane.permitted)

    def step(self, now: float) -> bool:
        """Listen to the receiver and give orders; True if something has been sent or has come."""
        before, self._sent = self._sent, self._kernel.sent
        sent = self._kernel.queues_that_sent(self._passes)
        moved = False
        orders = [self._waiting]
        for lane in self._lanes:
            heard = lane.listen()
            moved |= heard
            if heard:
                self._kernel.permit(lane.queue, lane.permitted)
            has_sent = self._sent[lane.queue] != before[lane.queue]
            orders.append(lane.orders(now, has_sent or heard, sent[lane.queue]))
        self._waiting = np.concatenate(orders)
        if len(self._waiting) and self._kernel.post(self._waiting[:MOST_ORDERS]):
            self._waiting = self._waiting[MOST_ORDERS:]
        return moved or self._sent != before
