"""What it costs to look at the header of each frame before it is added.

The same frames are added by the same kernel twice, once as the check lets them through and once all of them,
unlooked at, in turns taken alternately.  On a link that loses frames both sides hash the payloads, since
that is another cost.  There are more frames than caches hold, so that headers come from memory, as in a
pipeline they come from another core.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from receiver.accumulate_cpu import CpuAccumulator
from receiver.check import FrameCheck
from receiver.window import Window
from streamdsb.frame import FrameType, empty_frames, write_headers
from streamdsb.layout import HEADER_WORDS, Layout
from streamdsb.payload_checksum import checksums, write_checksums

_RUN = 1
_BURST = 256
_BURSTS = 96
_TURN_PAIRS = 41


@dataclass(frozen=True)
class Cost:
    """Seconds a frame, medians of the turns; `check_s` is the median difference within pairs of turns."""

    with_check_s: float
    without_s: float
    check_s: float

    def share(self, rate: float, payload_bytes: int) -> float:
        """Of the time that a frame takes in passes at `rate` bytes a second."""
        return self.check_s * rate / payload_bytes


def cost_of_check(replicas: int, is_lossy: bool = False) -> Cost:
    """Of checking a frame beside accumulating it for so many replicas, on one core."""
    layout = Layout(_BURST * _BURSTS, replicas, 1)
    bursts = [_burst(layout, k * _BURST) for k in range(_BURSTS)]
    check: FrameCheck | Window = FrameCheck(layout, 0, layout.rows, _RUN, _BURST)
    if is_lossy:
        check = Window(layout, 0, layout.rows, _RUN, _BURST, 4096, 1.0)
    accumulator = CpuAccumulator(layout, layout.rows)
    signs = np.random.default_rng(0).integers(0, 2**64, (replicas, layout.bitmap_words), np.uint64)
    every, sums = np.arange(_BURST, dtype=np.int32), np.empty(_BURST, np.uint32)

    def take(is_checked: bool) -> float:
        accumulator.begin_pass(signs)
        check.begin_pass(0)
        start = time.perf_counter()
        for frames in bursts:
            if is_checked:
                accumulator.feed(0, frames, check.accept(frames))
            else:
                if is_lossy:
                    checksums(frames, sums)
                accumulator.feed(0, frames, every)
        seconds = time.perf_counter() - start
        assert not is_checked or check.counts[0] == _BURST * _BURSTS, "frames were refused"
        return seconds / (_BURST * _BURSTS)

    pairs = []
    for turn in range(_TURN_PAIRS):
        first = take(turn % 2 == 0)
        second = take(turn % 2 == 1)
        pairs.append((first, second) if turn % 2 == 0 else (second, first))
    checked, unchecked = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Cost(checked, unchecked, statistics.median(one - other for one, other in pairs))


def _burst(layout: Layout, first_row: int) -> np.ndarray:
    """Frames of column block 0 as they are sent, uint64 (_BURST, 512)."""
    frames = empty_frames(_BURST)
    words = layout.words_in(0)
    payload = np.random.default_rng(first_row).integers(0, 2**64, (_BURST, words), np.uint64)
    frames[:, HEADER_WORDS : HEADER_WORDS + words] = payload
    columns = layout.columns_in(0)
    write_headers(frames, int(FrameType.TILE), _RUN, 0, first_row, first_row, 0, 0, columns)
    write_checksums(frames)
    return frames
