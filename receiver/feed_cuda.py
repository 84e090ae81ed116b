"""From the host's queues into the ring on the GPU: each burst is copied, then announced, then released."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streamdsb import cuda
from streamdsb.errors import RunFailed
from streamdsb.frame import FrameType, headers_of
from streamdsb.layout import FRAME_BYTES, ceil_div
from streamdsb.queues import FrameReceiver, wait_for_any
from streamdsb.queues.peer import BURST_FRAMES, PLACE_BYTES, PeerRing

_LOOK_UP_S = 0.25
_NAP_S = 20e-6
_HOST_TO_DEVICE = 1


class _Lane:
    """One queue of the host and its share of the ring."""

    def __init__(self, end: FrameReceiver, ring: PeerRing, queue: int, stream: Any) -> None:
        import cupy
        import cupyx

        self.end = end
        self.ended = True
        self._slots, self._ready, _, self._places, *_ = ring.queue(queue)
        assert ring.host_credit is not None
        self._credit = ring.host_credit[queue]
        self._words: np.ndarray = cupyx.zeros_pinned(self._places, np.uint64)
        self._burst = 0
        self._frames: np.ndarray | None = None
        self._copied = 0
        self._stream = stream
        self._event = cupy.cuda.Event(disable_timing=True)
        cuda.pin(end)

    def step(self) -> bool:
        """Move this queue on; False if there is nothing to do for now."""
        if self._frames is None:
            self._frames, self._copied = self.end.receive(), 0
            if self._frames is None:
                return False
        if self._copied < len(self._frames):
            return self._copy_some(self._frames)
        if not self._event.done:
            return False
        self.ended = int(headers_of(self._frames[-1:])["type"][0]) == FrameType.PASS_END
        self._frames = None
        self.end.release()
        return True

    @property
    def idle(self) -> bool:
        """True if only the sender can move this queue on."""
        return self._frames is None

    def _copy_some(self, frames: np.ndarray) -> bool:
        """Copy what the ring has room for, without going round its end."""
        place = self._burst % self._places
        wanted = min(ceil_div(len(frames) - self._copied, BURST_FRAMES), self._places - place)
        bursts = self._burst + np.arange(wanted, dtype=np.uint64)
        room = int(np.argmin(np.append(self._credit[place : place + wanted] == bursts, False)))
        if room == 0:
            return False
        part = frames[self._copied : self._copied + room * BURST_FRAMES]
        counts = np.full(room, BURST_FRAMES, np.uint64)
        counts[-1] = len(part) - (room - 1) * BURST_FRAMES
        self._words[place : place + room] = (bursts[:room] + np.uint64(1)) << np.uint64(8) | counts
        self._to_device(self._slots + place * PLACE_BYTES, part, len(part) * FRAME_BYTES)
        self._to_device(self._ready + 8 * place, self._words[place:], 8 * room)
        self._event.record(self._stream)
        self._burst += room
        self._copied += len(part)
        return True

    def _to_device(self, address: int, values: np.ndarray, size: int) -> None:
        import cupy

        source = cuda.address(values)
        cupy.cuda.runtime.memcpyAsync(address, source, size, _HOST_TO_DEVICE, self._stream.ptr)


class HostFeed:
    """Forwards the bursts of all queues of the host into the ring that the receive kernel reads."""

    def __init__(self, ends: Sequence[FrameReceiver], ring: PeerRing) -> None:
        import cupy

        self._lanes = [
            _Lane(end, ring, queue, cupy.cuda.Stream(non_blocking=True)) for queue, end in enumerate(ends)
        ]

    def forward_pass(self, timeout_s: float, look_up: Callable[[], None]) -> None:
        """Forward what comes until each queue has ended its pass; `look_up` may raise to call it off.

        Raises RunFailed if nothing moves for `timeout_s` seconds.
        """
        for lane in self._lanes:
            lane.ended = False
        open_lanes = list(self._lanes)
        deadline = time.monotonic() + timeout_s
        while open_lanes:
            look_up()
            moved = [lane.step() for lane in open_lanes]
            if any(moved):
                deadline = time.monotonic() + timeout_s
                open_lanes = [lane for lane in open_lanes if not lane.ended]
                continue
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"no frame could be forwarded to the GPU for {timeout_s:g} s (stream.timeout_s)"
                )
            if all(lane.idle for lane in open_lanes):
                wait_for_any([lane.end for lane in open_lanes], _LOOK_UP_S)
            else:
                time.sleep(_NAP_S)
