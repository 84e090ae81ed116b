"""The stream frame, version 1: 64 header bytes and 4032 payload bytes, little-endian.

Eight 64-bit words hold the header, which is how compiled loops read and write it; HEADER is the same
layout as a NumPy structured type, for everything that is not hot.
"""

from __future__ import annotations

import mmap
import sys
from enum import IntEnum

import numpy as np

from streamdsb.jit import inline, kernel
from streamdsb.layout import FRAME_BYTES, FRAME_WORDS, HEADER_BYTES

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("streamdsb reads and writes little-endian frames in place; this machine is big-endian")

VERSION = 1
ETHERTYPE = 0x88B5
ETHERTYPE_FIELD = int.from_bytes(ETHERTYPE.to_bytes(2, "big"), "little")
"""The EtherType as who reads little-endian words finds it in a header."""

HEADER = np.dtype(
    [
        ("destination", "u1", 6),
        ("source", "u1", 6),
        ("ethertype", ">u2"),
        ("version", "u1"),
        ("type", "u1"),
        ("run", "<u4"),
        ("pass", "<u4"),
        ("sequence", "<u8"),
        ("row", "<u8"),
        ("column_block", "<u4"),
        ("queue", "<u2"),
        ("format", "<u2"),
        ("couplings", "<u4"),
        ("payload_checksum", "<u4"),
        ("timestamp_ns", "<u8"),
    ]
)
assert HEADER.itemsize == HEADER_BYTES


class FrameType(IntEnum):
    """What a frame is for."""

    TILE = 1
    PASS_END = 2
    PASS_ACK = 3
    RESEND = 4


class CouplingFormat(IntEnum):
    """How couplings are packed into a payload."""

    PM1 = 1
    TERNARY = 2
    INT8 = 3


def headers_of(frames: np.ndarray) -> np.ndarray:
    """The headers of `frames`, uint64 (count, 512), as a HEADER view of shape (count,) on the same memory."""
    return frames[:, : HEADER_BYTES // 8].view(HEADER)[:, 0]


_ETHERTYPE_BYTES = np.uint64(ETHERTYPE_FIELD << 32)


@inline
def kind_word(frame_type: int) -> np.uint64:
    """Header word 1 without a MAC: EtherType, version and `frame_type`."""
    return _ETHERTYPE_BYTES | (np.uint64(VERSION) << np.uint64(48)) | (np.uint64(frame_type) << np.uint64(56))


@inline
def run_word(run: int, pass_index: int) -> np.uint64:
    """Header word 2: run id and pass."""
    return np.uint64(run) | (np.uint64(pass_index) << np.uint64(32))


@inline
def place_word(block: int, queue: int, coupling_format: int) -> np.uint64:
    """Header word 5: column block, queue and coupling format."""
    return (
        np.uint64(block) | (np.uint64(queue) << np.uint64(32)) | (np.uint64(coupling_format) << np.uint64(48))
    )


@kernel("void(uint64[:, ::1], int64, int64, int64, int64, int64, int64, int64, int64)")
def write_headers(
    frames: np.ndarray,
    frame_type: int,
    run: int,
    pass_index: int,
    sequence: int,
    row: int,
    block: int,
    queue: int,
    couplings: int,
) -> None:
    """Write the headers of `frames`, uint64 (count, 512): frame i has sequence + i and row + i."""
    for i in range(frames.shape[0]):
        frames[i, 0] = np.uint64(0)
        frames[i, 1] = kind_word(frame_type)
        frames[i, 2] = run_word(run, pass_index)
        frames[i, 3] = np.uint64(sequence + i)
        frames[i, 4] = np.uint64(row + i)
        frames[i, 5] = place_word(block, queue, 1)
        frames[i, 6] = np.uint64(couplings)
        frames[i, 7] = np.uint64(0)


KERNELS = (write_headers,)


def empty_frames(count: int) -> np.ndarray:
    """`count` zeroed frames, uint64 (count, 512), on a page boundary: no vector straddles a cache line."""
    memory = mmap.mmap(-1, count * FRAME_BYTES)
    return np.frombuffer(memory, np.uint64).reshape(count, FRAME_WORDS)
