"""The two rings between the packet loop and the workers, whatever the workers are.

A request gets a ticket t and lies in work slot t mod 4096; publishing it is writing t + 1 into the slot's
sequence number. A worker claims a ticket with one atomic addition, waits for its sequence number, solves,
then takes a reply slot the same way. The packet loop scans replies in order and frees the work slot when the
reply is on its way, so at most 4096 requests are inside and a reply slot is never taken twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from streamdsb.service.limits import FRAME_BYTES, RING_ITEMS

WORK_BYTES = 1536
REPLY_BYTES = 512

# a work slot, beyond its frame
ADDRESS_AT = FRAME_BYTES  # socket address of the client, 32 bytes
RECEIVED_AT = ADDRESS_AT + 32  # u64, ns
PLACE_AT = RECEIVED_AT + 8  # u32, place of the model in the store
ADDRESS_SIZE_AT = PLACE_AT + 4  # u32
XI_AT = ADDRESS_SIZE_AT + 4  # f32, in force
DT_AT = XI_AT + 4  # f32, in force

# a reply slot, beyond its message
TICKET_AT = 480  # u64
FINISHED_AT = 488  # u64, ns by the packet loop's clock, 0 if the worker has another
SIZE_AT = 496  # u32, bytes of the message

STOP, CLAIMED, ANSWERED, PUBLISHED, DRAINED, ARRIVED, UPLOADED = 0, 8, 16, 24, 32, 40, 48
"""Places in `control`, a cache line apart: stop flag, next work and reply tickets of the workers, next work
and reply tickets of the packet loop; place + 1 of a complete model that waits to be uploaded, and of the
model that is."""


class Rings(NamedTuple):
    """work: uint8 (4096, 1536), replies: uint8 (4096, 512), their sequence numbers, uint64 (4096,), and
    control, uint64 (56,).
    """

    work: np.ndarray
    work_sequence: np.ndarray
    replies: np.ndarray
    reply_sequence: np.ndarray
    control: np.ndarray


def make_rings(allocate: Callable[[Any, Any], np.ndarray] = np.zeros) -> Rings:
    """Empty rings; allocate(shape, dtype) gives zeroed memory, ordinary or such as a device reads too."""
    return Rings(
        allocate((RING_ITEMS, WORK_BYTES), np.uint8),
        allocate(RING_ITEMS, np.uint64),
        allocate((RING_ITEMS, REPLY_BYTES), np.uint8),
        allocate(RING_ITEMS, np.uint64),
        allocate(56, np.uint64),
    )
