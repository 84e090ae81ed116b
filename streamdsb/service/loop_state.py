"""What a packet loop counts, and the buffers that it works with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamdsb.native import ADDRESS_BYTES, message_headers
from streamdsb.service.limits import HEADER_BYTES, RING_ITEMS
from streamdsb.service.rings import WORK_BYTES
from streamdsb.service.segments import ROOM, controls

BATCH = 64
"""Messages received, and replies sent, in one go."""

ONE_FRAME = 2048
"""Room for a frame; an oversized datagram is seen to be one."""

COUNTERS = (
    "received",
    "too_short",
    "wrong_version",
    "wrong_type",
    "load_fragments",
    "loads_refused",
    "models_loaded",
    "solves_accepted",
    "unknown_model",
    "wrong_n",
    "out_of_range",
    "malformed",
    "overloaded",
    "replies",
    "send_refused",
    "batches",
)
"""What the loop counts, in the order of `Loop.counters`; every frame that is not used has one of them."""


class Loop(NamedTuple):
    """What one packet loop works with: its socket's buffers, and its counters, int64 (16,)."""

    incoming: np.ndarray
    addresses: np.ndarray
    in_headers: np.ndarray
    in_vectors: np.ndarray
    in_controls: np.ndarray
    frame: np.ndarray
    answers: np.ndarray
    asked_by: np.ndarray
    """The message of the batch that each answer goes back to."""
    out_headers: np.ndarray
    out_vectors: np.ndarray
    out_controls: np.ndarray
    occupied: np.ndarray
    pending: np.ndarray
    counters: np.ndarray


def make_loop() -> Loop:
    """The buffers of one packet loop."""
    return Loop(
        np.zeros((BATCH, ROOM), np.uint8),
        np.zeros((BATCH, ADDRESS_BYTES), np.uint8),
        message_headers(BATCH),
        np.zeros((BATCH, 2), np.uint64),
        controls(BATCH),
        np.zeros(ONE_FRAME, np.uint8),
        np.zeros((BATCH, HEADER_BYTES), np.uint8),
        np.zeros(BATCH, np.int64),
        message_headers(BATCH),
        np.zeros((BATCH, 2), np.uint64),
        controls(BATCH),
        np.zeros(RING_ITEMS, np.uint8),
        np.zeros(WORK_BYTES, np.uint8),
        np.zeros(len(COUNTERS), np.int64),
    )
