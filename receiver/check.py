"""Frames are checked before they are added: run, pass, queue, sequence number, row and column block."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from streamdsb.frame import FrameType, kind_word, place_word, run_word
from streamdsb.jit import inline, kernel
from streamdsb.layout import BLOCK_COLUMNS, Layout, RowRange


class Count(IntEnum):
    """What happened to the frames of a queue; all but ACCEPTED and MISSING are frames that were rejected."""

    ACCEPTED = 0
    MISSING = 1
    DUPLICATE = 2
    MALFORMED = 3
    FOREIGN_RUN = 4
    WRONG_PASS = 5
    WRONG_QUEUE = 6
    MISPLACED = 7
    LATE = 8
    """Of an earlier pass, on a queue that may hold frames back."""
    CORRUPT = 9
    """The payload is not what its checksum says."""
    OVERRUN = 10
    """Too far ahead of the first missing frame to be remembered."""


PASS = 1
"""Which entry of `place_of` is the pass."""

END_FOUND = -100
"""Verdict on a PASS_END frame."""

_NEXT_SEQUENCE, _ENDED, _SENT = range(3)
_KIND_BYTES = np.uint64(0xFFFF_FFFF_0000_0000)
_LOW_HALF = np.uint64(0x0000_0000_FFFF_FFFF)
_QUEUE_BYTES = np.uint64(0x0000_FFFF_0000_0000)
_TILE = int(FrameType.TILE)
_PASS_END = int(FrameType.PASS_END)
_ACCEPTED, _MISSING, _DUPLICATE, _MALFORMED, _FOREIGN_RUN, _WRONG_PASS, _WRONG_QUEUE, _MISPLACED = (
    int(reason) for reason in list(Count)[:8]
)


@inline
def judge(
    frame: np.ndarray, run: int, pass_index: int, queue: int, n: int, first_row: int, rows: int, blocks: int
) -> int:
    """What the header of `frame`, uint64 (>= 512,), says.

    The sequence number of a TILE frame that is where it belongs, END_FOUND for a PASS_END, or minus the
    Count of the frames that are rejected for the same reason.
    """
    kind = frame[1] & _KIND_BYTES
    run_and_pass = run_word(run, pass_index)
    sequence = int(np.int64(frame[3]))
    if kind != kind_word(_TILE) and kind != kind_word(_PASS_END):
        verdict = -_MALFORMED
    elif (frame[2] ^ run_and_pass) & _LOW_HALF:
        verdict = -_FOREIGN_RUN
    elif frame[2] != run_and_pass:
        verdict = -_WRONG_PASS
    elif (frame[5] ^ place_word(0, queue, 0)) & _QUEUE_BYTES:
        verdict = -_WRONG_QUEUE
    elif kind == kind_word(_PASS_END):
        verdict = END_FOUND
    else:
        block = int(np.int64(frame[5] & _LOW_HALF))
        offset = np.int64(frame[4]) - first_row
        couplings = min(n - block * BLOCK_COLUMNS, BLOCK_COLUMNS)
        in_place = (
            0 <= offset < rows
            and block < blocks
            and sequence == block * rows + offset
            and frame[5] == place_word(block, queue, 1)
            and frame[6] & _LOW_HALF == np.uint64(couplings)
        )
        verdict = sequence if in_place else -_MISPLACED
    return verdict


@inline
def count_in_order(
    frames: np.ndarray,
    first: int,
    sequence: int,
    run: int,
    pass_index: int,
    queue: int,
    n: int,
    first_row: int,
    rows: int,
    blocks: int,
) -> int:
    """How many of `frames` from frames[first] on are the TILE frames `sequence`, `sequence` + 1, ...

    No further than to the end of their column block.  `judge` would find each in its place; where frames
    come as they were sent, this asks one thing of a frame instead of eight.
    """
    if sequence >= rows * blocks:
        return 0
    block, offset = sequence // rows, sequence % rows
    kind, run_and_pass, place = kind_word(_TILE), run_word(run, pass_index), place_word(block, queue, 1)
    couplings = np.uint64(min(n - block * BLOCK_COLUMNS, BLOCK_COLUMNS))
    next_sequence, next_row = np.uint64(sequence), np.uint64(first_row + offset)
    stop = first + min(frames.shape[0] - first, rows - offset)
    i = first
    while i < stop:
        wrong = ((frames[i, 1] ^ kind) & _KIND_BYTES) | (frames[i, 2] ^ run_and_pass)
        wrong |= (frames[i, 3] ^ next_sequence) | (frames[i, 4] ^ next_row)
        wrong |= (frames[i, 5] ^ place) | ((frames[i, 6] ^ couplings) & _LOW_HALF)
        if wrong:
            break
        next_sequence += np.uint64(1)
        next_row += np.uint64(1)
        i += 1
    return i - first


@inline
def accept_next(
    frames: np.ndarray,
    first: int,
    place: np.ndarray,
    state: np.ndarray,
    counts: np.ndarray,
    accepted: np.ndarray,
    taken: int,
) -> tuple[int, int]:
    """Look at frames[first], and at those that follow it in order in its column block.

    place: see `place_of`; state, counts, accepted: the other parts of a FrameCheck.  The indices of those to
    add go to accepted[taken] and on.  How many frames were looked at, and how many of them are to be added.
    """
    run, pass_index, queue, n, first_row, rows, blocks = place
    next_sequence = np.int64(state[_NEXT_SEQUENCE])
    looked = count_in_order(frames, first, next_sequence, run, pass_index, queue, n, first_row, rows, blocks)
    added = looked
    for k in range(looked):
        accepted[taken + k] = first + k
    state[_NEXT_SEQUENCE] += np.uint64(looked)
    if looked == 0:
        looked = 1
        verdict = judge(frames[first], run, pass_index, queue, n, first_row, rows, blocks)
        if verdict == END_FOUND:
            state[_ENDED] = np.uint64(1)
            state[_SENT] = frames[first, 4]
        elif verdict < 0:
            counts[-verdict] += 1
        elif verdict < next_sequence:
            counts[_DUPLICATE] += 1
        else:
            counts[_MISSING] += verdict - next_sequence
            state[_NEXT_SEQUENCE] = np.uint64(verdict + 1)
            accepted[taken] = first
            added = 1
    counts[_ACCEPTED] += added
    return looked, added


@kernel("int64(uint64[:, ::1], int64[::1], uint64[::1], int64[::1], int32[::1])")
def _check_frames(
    frames: np.ndarray, place: np.ndarray, state: np.ndarray, counts: np.ndarray, accepted: np.ndarray
) -> int:
    """Write the indices of the frames to add into `accepted`; return how many there are."""
    taken, i = 0, 0
    while i < frames.shape[0]:
        looked, added = accept_next(frames, i, place, state, counts, accepted, taken)
        i += looked
        taken += added
    return taken


KERNELS = (_check_frames,)


def reasons_text(counts: np.ndarray) -> str:
    """Why frames were not added, by `counts`, in brackets; empty if all were."""
    rejected = ", ".join(
        f"{int(counts[reason])} {reason.name.lower().replace('_', ' ')}"
        for reason in Count
        if reason is not Count.ACCEPTED and counts[reason]
    )
    return f" ({rejected})" if rejected else ""


def place_of(layout: Layout, queue: int, rows: RowRange, run: int) -> np.ndarray:
    """What the headers of a queue's frames are held against, int64 (7,), as `judge` takes it; pass 0."""
    return np.array([run, 0, queue, layout.n, rows.start, len(rows), layout.column_blocks], np.int64)


class FrameCheck:
    """Decides for one queue which frames are added, and counts the others by reason.

    A gap in the sequence numbers is counted as MISSING; such a pass does not count.
    """

    def __init__(self, layout: Layout, queue: int, rows: RowRange, run: int, burst_frames: int) -> None:
        self.queue = queue
        self.expected = len(rows) * layout.column_blocks
        """TILE frames that make this queue's pass complete."""
        self._place = place_of(layout, queue, rows, run)
        self._state = np.zeros(3, np.uint64)
        self._accepted = np.empty(burst_frames, np.int32)
        self.counts = np.zeros(len(Count), np.int64)
        """Frames of the current pass by what happened to them, int64 (len(Count),)."""
        self.parts = self._place, self._state, self.counts, self._accepted
        """What `accept_next` takes."""

    def begin_pass(self, pass_index: int) -> None:
        """Expect the frames of `pass_index` from sequence number 0."""
        self._place[PASS] = pass_index
        self._state[:] = 0
        self.counts[:] = 0

    def accept(self, frames: np.ndarray) -> np.ndarray:
        """Indices, int32, of those of `frames`, uint64 (count <= burst_frames, 512), that are to be added."""
        return self._accepted[: _check_frames(frames, *self.parts)]

    @property
    def ended(self) -> bool:
        """True once the sender's PASS_END has come."""
        return bool(self._state[_ENDED])

    def fault(self) -> str | None:
        """What is wrong with this queue's pass, or still missing, in a sentence, or None."""
        accepted, sent = int(self.counts[Count.ACCEPTED]), int(self._state[_SENT])
        if accepted == sent == self.expected:
            return None
        counted = f", the sender counted {sent}" if self.ended else ""
        return (
            f"pass {self._place[PASS]}, queue {self.queue}: {accepted} of {self.expected} frames were"
            f" added{counted}{reasons_text(self.counts)}"
        )
