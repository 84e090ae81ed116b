"""Queues of frames between a generator and a receiver."""

from streamdsb.queues.base import (
    Capabilities,
    FrameReceiver,
    FrameSender,
    wait_for_any,
)

__all__ = ["Capabilities", "FrameReceiver", "FrameSender", "wait_for_any"]
