"""What it costs to look at the header of each frame before it is added.

The same frames are added by the same kernel, once as the check lets them through and once all of them,
unlooked at, in turns taken alternately; only that is timed.  As in a pipeline, frames of a lossless queue
come from another core, which writes them into the ring in shared memory, and those of a link that may lose
them have just been copied by this one.  On the latter both sides hash the payloads: that is another cost.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from receiver.accumulate_cpu import CpuAccumulator
from receiver.check import Count, FrameCheck
from receiver.window import Window
from streamdsb.frame import FrameType, empty_frames, write_headers
from streamdsb.layout import HEADER_WORDS, PAYLOAD_BYTES, Layout
from streamdsb.payload_checksum import checksums, write_checksums
from streamdsb.queues import wait_for_any
from streamdsb.queues.shm import ShmLink, ShmReceiver, ShmSender

_RUN = 1
_BURST, _RING, _WINDOW = 256, 4, 4096
_BURSTS = 48
_PAIRS = 61

Bursts = Callable[[], Iterator[np.ndarray]]
"""The bursts of a pass, one after another."""


@dataclass(frozen=True)
class Cost:
    """Seconds a frame, medians of the turns, of which each is the median of its bursts.

    check_s is the median difference within pairs of turns.
    """

    with_check_s: float
    without_s: float
    check_s: float

    def share(self, rate: float) -> float:
        """Of the time that a frame takes in passes at `rate` bytes of payload a second."""
        return self.check_s * rate / PAYLOAD_BYTES


def cost_of_check(replicas: int) -> Cost:
    """Of a check beside accumulation for so many replicas, frames coming from another core."""
    layout = _layout(replicas)
    check = FrameCheck(layout, 0, layout.rows, _RUN, _BURST)
    accumulator = CpuAccumulator(layout, layout.rows)
    link = ShmLink.create(_BURST, _RING)
    writer = multiprocessing.get_context("fork").Process(target=_write_passes, args=(link, layout))
    writer.start()
    end = ShmReceiver(link.ring, link.receiver_bell, _BURST, _RING, "the writer")

    def bursts() -> Iterator[np.ndarray]:
        for _ in range(_BURSTS):
            while (frames := end.receive()) is None:
                wait_for_any([end], 1.0)
            yield frames
            end.release()

    every = np.arange(_BURST, dtype=np.int32)
    cost = _compare(
        layout,
        accumulator,
        check,
        bursts,
        lambda frames: accumulator.feed_checked(check, frames),
        lambda frames: accumulator.feed(0, frames, every),
    )
    writer.join()
    end.close()
    os.close(link.sender_bell)
    return cost


def cost_of_window(replicas: int) -> Cost:
    """Of a window, without its checksums, beside accumulation for so many replicas."""
    layout = _layout(replicas)
    window = Window(layout, 0, layout.rows, _RUN, _BURST, _WINDOW, 1.0)
    accumulator = CpuAccumulator(layout, layout.rows)
    buffer = empty_frames(_BURST)
    sent = [_burst(layout, k) for k in range(_BURSTS)]
    every, sums = np.arange(_BURST, dtype=np.int32), np.empty(_BURST, np.uint32)

    def bursts() -> Iterator[np.ndarray]:
        for frames in sent:
            buffer[:] = frames
            yield buffer

    def hash_and_add(frames: np.ndarray) -> None:
        checksums(frames, sums)
        accumulator.feed(0, frames, every)

    return _compare(
        layout,
        accumulator,
        window,
        bursts,
        lambda frames: accumulator.feed(0, frames, window.accept(frames)),
        hash_and_add,
    )


def _compare(
    layout: Layout,
    accumulator: CpuAccumulator,
    check: FrameCheck | Window,
    bursts: Bursts,
    add_checked: Callable[[np.ndarray], None],
    add: Callable[[np.ndarray], None],
) -> Cost:
    signs = np.random.default_rng(0).integers(0, 2**64, (layout.replicas, layout.bitmap_words), np.uint64)

    def take(is_checked: bool) -> float:
        accumulator.begin_pass(signs)
        check.begin_pass(0)
        times = []
        for frames in bursts():
            start = time.perf_counter()
            if is_checked:
                add_checked(frames)
            else:
                add(frames)
            times.append(time.perf_counter() - start)
        assert not is_checked or check.counts[Count.ACCEPTED] == check.expected, "frames were refused"
        return statistics.median(times) / _BURST  # a burst during which another process ran is none to count

    checked: list[float] = []
    unchecked: list[float] = []
    for turn in range(2 * _PAIRS):
        is_checked = turn % 4 in (0, 3)
        (checked if is_checked else unchecked).append(take(is_checked))
    differences = [one - other for one, other in zip(checked, unchecked, strict=True)]
    return Cost(*map(statistics.median, (checked, unchecked, differences)))


def _layout(replicas: int) -> Layout:
    return Layout(_BURST * _BURSTS, replicas, 1)


def _write_headers(frames: np.ndarray, layout: Layout, burst: int) -> None:
    first, columns = burst * _BURST, layout.columns_in(0)
    write_headers(frames, int(FrameType.TILE), _RUN, 0, first, first, 0, 0, columns)


def _burst(layout: Layout, burst: int) -> np.ndarray:
    """Frames of the only column block as they are sent, uint64 (_BURST, 512)."""
    frames = empty_frames(_BURST)
    words = layout.words_in(0)
    payload = np.random.default_rng(burst).integers(0, 2**64, (_BURST, words), np.uint64)
    frames[:, HEADER_WORDS : HEADER_WORDS + words] = payload
    _write_headers(frames, layout, burst)
    write_checksums(frames)
    return frames


def _write_passes(link: ShmLink, layout: Layout) -> None:
    end = ShmSender(link.ring, link.sender_bell, _BURST, _RING, "the receiver")
    pattern = _burst(layout, 0)
    for burst in range(2 * _PAIRS * _BURSTS):
        while (frames := end.acquire()) is None:
            wait_for_any([end], 1.0)
        frames[:] = pattern
        _write_headers(frames, layout, burst % _BURSTS)
        end.commit(_BURST)
