"""What a receiver sends back on a queue that loses frames: RESEND and PASS_ACK frames.

RESEND says that every frame before its sequence number has been added (0: none yet) and lists ranges of
missing ones: its row field counts them, its payload holds a pair of 64-bit words for each, the first
sequence number and the number of frames.  PASS_ACK says that the pass has been added whole.
Its payload repeats the pass and the number of its frames: the checksum does not guard the header, and an
acknowledgement that is taken for another pass's would end the sending too early.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamdsb.frame import FrameType, empty_frames, write_headers
from streamdsb.layout import BLOCK_WORDS, FRAME_WORDS, HEADER_WORDS
from streamdsb.payload_checksum import checksums, write_checksums

MAX_RANGES = BLOCK_WORDS // 2
_NO_RANGES = np.empty((0, 2), np.int64)


@dataclass(frozen=True)
class Feedback:
    """What the receiver has said about one pass of one queue."""

    acknowledged: int
    """Frames from the first on that have been added without a gap."""
    missing: np.ndarray
    """First sequence number and length of each range to be sent again, int64 (ranges, 2)."""
    complete: bool
    """True if the pass has been added whole, PASS_END included."""


class FeedbackWriter:
    """Composes the frames that go back on one queue."""

    def __init__(self, run: int, queue: int) -> None:
        self._run = run
        self._queue = queue
        self._frame = empty_frames(1)

    def resend(self, pass_index: int, acknowledged: int, missing: np.ndarray) -> np.ndarray:
        """A RESEND frame, uint64 (1, 512), valid until the next call; missing: int64 (<= MAX_RANGES, 2)."""
        words = self._frame[0, HEADER_WORDS:]
        words[:] = 0
        words[: missing.size] = missing.reshape(-1)
        return self._finish(FrameType.RESEND, pass_index, acknowledged, len(missing))

    def pass_ack(self, pass_index: int, frames: int) -> np.ndarray:
        """A PASS_ACK frame, uint64 (1, 512), valid until the next call; frames: how many were added."""
        self._frame[0, HEADER_WORDS : HEADER_WORDS + 2] = pass_index, frames
        return self._finish(FrameType.PASS_ACK, pass_index, frames, 0)

    def _finish(self, kind: FrameType, pass_index: int, sequence: int, row: int) -> np.ndarray:
        write_headers(self._frame, int(kind), self._run, pass_index, sequence, row, 0, self._queue, 0)
        write_checksums(self._frame)
        return self._frame


class FeedbackReader:
    """Understands the frames that come back on one queue and ignores all others."""

    def __init__(self, run: int, queue: int, frames_per_pass: int) -> None:
        self._run = run
        self._queue = queue
        self._expected = frames_per_pass

    def read(self, frames: np.ndarray, pass_index: int) -> list[Feedback]:
        """What `frames`, uint64 (count, >= 512), say about `pass_index`, in the order they came."""
        sums = np.empty(len(frames), np.uint32)
        checksums(frames, sums)
        headers = frames[:, :HEADER_WORDS].tolist()  # few, and quicker to look through than arrays
        said = [
            self._understand(header, total, frame[HEADER_WORDS:], pass_index)
            for header, total, frame in zip(headers, sums.tolist(), frames, strict=True)
        ]
        return [feedback for feedback in said if feedback is not None]

    def _understand(
        self, header: list[int], total: int, payload: np.ndarray, pass_index: int
    ) -> Feedback | None:
        """What one frame says about `pass_index`, if anything; total: the checksum of its payload."""
        _, kind, run_and_pass, acknowledged, ranges, place, checksum, _ = header
        if (
            run_and_pass != self._run | pass_index << 32
            or place >> 32 & 0xFFFF != self._queue
            or acknowledged > self._expected
            or checksum >> 32 != total
        ):
            return None
        if kind >> 56 == FrameType.PASS_ACK and payload[:2].tolist() == [pass_index, self._expected]:
            return Feedback(self._expected, _NO_RANGES, complete=True)
        if kind >> 56 == FrameType.RESEND and ranges <= MAX_RANGES:
            missing = payload[: 2 * ranges].astype(np.int64).reshape(-1, 2)
            if self._are_inside(missing.tolist()):
                return Feedback(acknowledged, missing, complete=False)
        return None

    def _are_inside(self, ranges: list[list[int]]) -> bool:
        return all(first >= 0 and 0 < count <= self._expected - first for first, count in ranges)


assert FRAME_WORDS == HEADER_WORDS + 2 * MAX_RANGES
