"""Exactly once over a queue that loses, repeats, reorders and corrupts frames.

A window remembers, one bit a frame, what has been added from the first missing frame on, however long the
pass; what is missing is asked for again until it has come.
"""

from __future__ import annotations

import numpy as np

from receiver.answers import Answers, Standing
from receiver.check import END_FOUND, PASS, Count, count_in_order, judge, place_of, reasons_text
from streamdsb.feedback import MAX_RANGES
from streamdsb.jit import inline, kernel
from streamdsb.layout import Layout, RowRange, ceil_div
from streamdsb.payload_checksum import checksums

_BASE, _HIGHEST, _ENDED, _REPEATED = range(4)
_ACCEPTED, _DUPLICATE, _MISPLACED, _WRONG_PASS = (
    int(reason) for reason in (Count.ACCEPTED, Count.DUPLICATE, Count.MISPLACED, Count.WRONG_PASS)
)
_LATE, _CORRUPT, _OVERRUN = int(Count.LATE), int(Count.CORRUPT), int(Count.OVERRUN)


@inline
def _bit_of(sequence: int) -> np.uint64:
    return np.uint64(1) << np.uint64(sequence & 63)


@inline
def _word_of(sequence: int, added: np.ndarray) -> int:
    return (sequence >> 6) % added.size


@kernel("int64(uint64[:, ::1], uint32[::1], int64[::1], int64[::1], uint64[::1], int64[::1], int32[::1])")
def _admit(
    frames: np.ndarray,
    sums: np.ndarray,
    place: np.ndarray,
    state: np.ndarray,
    added: np.ndarray,
    counts: np.ndarray,
    accepted: np.ndarray,
) -> int:
    """Write the indices of the frames to add into `accepted`; return how many there are.

    sums: what the payloads hash to; place: see `place_of`; added: for each frame from the base on, whether
    it has been added, a ring of bits.
    """
    run, pass_index, queue, n, first_row, rows, blocks = place
    taken, i = 0, 0
    expected = rows * blocks
    while i < frames.shape[0]:
        base = state[_BASE]
        if state[_HIGHEST] == base:
            # nothing has come beyond it, so no bit is set
            in_order = count_in_order(frames, i, base, run, pass_index, queue, n, first_row, rows, blocks)
            first = i
            while i < first + in_order and np.uint64(sums[i]) == frames[i, 6] >> np.uint64(32):
                accepted[taken] = i
                taken += 1
                i += 1
            state[_BASE] = state[_HIGHEST] = base + i - first
            if i > first:
                continue
        verdict = judge(frames[i], run, pass_index, queue, n, first_row, rows, blocks)
        if verdict == END_FOUND:
            if np.int64(frames[i, 3]) == expected and np.int64(frames[i, 4]) == expected:
                state[_ENDED], state[_HIGHEST], state[_REPEATED] = 1, expected, 1
            else:
                counts[_MISPLACED] += 1
        elif verdict == -_WRONG_PASS and np.int64(frames[i, 2] >> np.uint64(32)) < pass_index:
            counts[_LATE] += 1
        elif verdict < 0:
            counts[-verdict] += 1
        elif np.uint64(sums[i]) != frames[i, 6] >> np.uint64(32):
            counts[_CORRUPT] += 1
        elif verdict >= base + 64 * added.size:
            counts[_OVERRUN] += 1
            state[_HIGHEST] = max(state[_HIGHEST], verdict + 1)  # so that it is asked for
        elif verdict < base or added[_word_of(verdict, added)] & _bit_of(verdict):
            counts[_DUPLICATE] += 1
            state[_REPEATED] = 1
        else:
            added[_word_of(verdict, added)] |= _bit_of(verdict)
            state[_HIGHEST] = max(state[_HIGHEST], verdict + 1)
            accepted[taken] = i
            taken += 1
            while added[_word_of(base, added)] & _bit_of(base):
                added[_word_of(base, added)] &= ~_bit_of(base)
                base += 1
            state[_BASE] = base
        i += 1
    counts[_ACCEPTED] += taken
    return taken


@kernel("int64(uint64[::1], int64, int64, int64, int64[:, ::1])")
def _find_missing(added: np.ndarray, base: int, first: int, stop: int, ranges: np.ndarray) -> int:
    """Write the ranges of frames from `first` to `stop` - 1 that are missing; return how many there are.

    Frames beyond the window are missing too; once `ranges` is full, the rest is left out.
    """
    found = 0
    sequence = first
    while sequence < stop and found < ranges.shape[0]:
        start = sequence
        while sequence < stop and (
            sequence >= base + 64 * added.size or not added[_word_of(sequence, added)] & _bit_of(sequence)
        ):
            sequence += 1
        if sequence > start:
            ranges[found, 0], ranges[found, 1] = start, sequence - start
            found += 1
        else:
            sequence += 1
    return found


KERNELS = (_admit, _find_missing)


class Window:
    """Decides for one queue which frames are added, and what to send back.

    window: frames that may be on the way at most; budget: frames that may be asked for again in a pass,
    as a multiple of the frames of the pass.
    """

    def __init__(
        self,
        layout: Layout,
        queue: int,
        rows: RowRange,
        run: int,
        burst_frames: int,
        window: int,
        budget: float,
    ) -> None:
        self.queue = queue
        self.expected = len(rows) * layout.column_blocks
        """TILE frames that make this queue's pass complete."""
        self._place = place_of(layout, queue, rows, run)
        self._state = np.zeros(4, np.int64)
        self._added = np.zeros(ceil_div(window, 64) + 1, np.uint64)
        self._accepted = np.empty(burst_frames, np.int32)
        self._sums = np.empty(burst_frames, np.uint32)
        self._ranges = np.empty((MAX_RANGES, 2), np.int64)
        self._answers = Answers(run, queue, self.expected, window, budget)
        self.counts = np.zeros(len(Count), np.int64)
        """Frames of the current pass by what happened to them, int64 (len(Count),)."""

    def begin_pass(self, pass_index: int) -> None:
        """Expect the frames of `pass_index`."""
        self._place[PASS] = pass_index
        self._state[:] = 0
        self._added[:] = 0
        self.counts[:] = 0
        self._answers.begin_pass(pass_index)

    @property
    def resent(self) -> int:
        """Frames that were asked for again in the current pass."""
        return self._answers.resent

    def accept(self, frames: np.ndarray) -> np.ndarray:
        """Indices, int32, of those of `frames`, uint64 (<= burst_frames, >= 512), that are to be added."""
        sums = self._sums[: len(frames)]
        checksums(frames, sums)
        taken = _admit(frames, sums, self._place, self._state, self._added, self.counts, self._accepted)
        return self._accepted[:taken]

    def answer(self, now: float) -> np.ndarray | None:
        """What to send back, uint64 (1, 512), or None; now: seconds on any clock that only goes on.

        Raises RunFailed if the budget is spent.
        """
        standing = Standing(
            base=int(self._state[_BASE]),
            highest=int(self._state[_HIGHEST]),
            accepted=int(self.counts[Count.ACCEPTED]),
            ended=self.ended,
            repeated=bool(self._state[_REPEATED]),
        )
        frame = self._answers.answer(now, standing, self._missing, self.fault)
        if frame is not None:
            self._state[_REPEATED] = 0
        return frame

    def _missing(self, first: int, stop: int) -> np.ndarray:
        base = int(self._state[_BASE])
        return self._ranges[: _find_missing(self._added, base, max(first, base), stop, self._ranges)]

    @property
    def ended(self) -> bool:
        """True once the sender's PASS_END and every frame before it have come."""
        return bool(self._state[_ENDED]) and int(self._state[_BASE]) == self.expected

    def fault(self) -> str | None:
        """What is still wrong with this queue's pass, in a sentence, or None."""
        if self.ended:
            return None
        return (
            f"pass {self._place[PASS]}, queue {self.queue}: {int(self.counts[Count.ACCEPTED])} of"
            f" {self.expected} frames were added{reasons_text(self.counts)}"
        )
