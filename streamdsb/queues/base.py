"""The two ends of a queue of frames, and how to wait for the first of several.

Neither end blocks: a sender asks for frames to fill and gets None while the queue is full, a receiver
asks for frames and gets None while it is empty; a frame that is not released holds the sender back.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Capabilities:
    """What a kind of queue promises."""

    lossless: bool
    ordered: bool
    copies_padding: bool
    """True if words past the last column travel too and must be 0."""
    guards_payload: bool = True
    """False if a payload may be altered on the way, so that its checksum has to be written and verified."""


class _End(Protocol):
    capabilities: Capabilities

    def arm(self) -> bool:
        """Ask to be woken through `fileno`; False if there is something to do already."""

    def disarm(self) -> None:
        """Take back `arm` and swallow the wake-ups; raises PeerGone if the other end is gone."""

    def fileno(self) -> int: ...

    @property
    def poll_events(self) -> int:
        """What to poll `fileno` for: select.POLLIN or select.POLLOUT."""

    def close(self) -> None: ...


class FrameSender(_End, Protocol):
    """The generator's end of one queue."""

    def acquire(self) -> np.ndarray | None:
        """Frames to fill, uint64 (burst_frames, 512), or None while the queue is full."""

    def commit(self, count: int) -> None:
        """Send the first `count` of the acquired frames."""


class FrameReceiver(_End, Protocol):
    """The receiver's end of one queue."""

    def receive(self) -> np.ndarray | None:
        """The next burst, uint64 (count, >= 512), or None while there is none; valid until `release`.

        A frame is the first 512 words of its row.
        """

    def release(self) -> None:
        """Give the frames of the last burst back to the sender."""


class LossySender(FrameSender, Protocol):
    """The generator's end of a queue that may lose, repeat and reorder frames."""

    window: int
    """Frames that may be on the way at most: what the receiver has set aside for them."""

    def feedback(self) -> np.ndarray | None:
        """Frames that came back, uint64 (count, >= 512), or None; valid until the next call."""


class LossyReceiver(FrameReceiver, Protocol):
    """The receiver's end of a queue that may lose, repeat and reorder frames."""

    window: int
    """Frames that may be on the way at most: what is set aside for them here."""

    def answer(self, frames: np.ndarray) -> None:
        """Send control frames, uint64 (count, 512), back now; what the system does not take is lost."""


def wait_for_any(ends: Sequence[FrameSender] | Sequence[FrameReceiver], timeout_s: float) -> bool:
    """Wait until one of `ends` has something to do; False if none had for `timeout_s` seconds."""
    armed = []
    try:
        for end in ends:
            armed.append(end)
            if not end.arm():
                return True
        poll = select.poll()
        for end in ends:
            poll.register(end.fileno(), end.poll_events)
        return bool(poll.poll(timeout_s * 1000))
    finally:
        for end in armed:
            end.disarm()
