"""The frame header: where each field stands, to the byte, whichever way it is written."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdsb.frame import (
    HEADER,
    CouplingFormat,
    FrameType,
    empty_frames,
    headers_of,
    write_headers,
)

U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))

OFFSETS = {
    "destination": (0, 6),
    "source": (6, 6),
    "ethertype": (12, 2),
    "version": (14, 1),
    "type": (15, 1),
    "run": (16, 4),
    "pass": (20, 4),
    "sequence": (24, 8),
    "row": (32, 8),
    "column_block": (40, 4),
    "queue": (44, 2),
    "format": (46, 2),
    "couplings": (48, 4),
    "payload_checksum": (52, 4),
    "timestamp_ns": (56, 8),
}


def test_every_field_stands_where_the_table_says() -> None:
    assert HEADER.fields is not None
    found = {name: (offset, kind.itemsize) for name, (kind, offset, *_) in HEADER.fields.items()}
    assert found == OFFSETS
    assert HEADER.itemsize == 64


def test_numbers_of_types_and_formats() -> None:
    assert {t.name: t.value for t in FrameType} == {"TILE": 1, "PASS_END": 2, "PASS_ACK": 3, "RESEND": 4}
    assert {f.name: f.value for f in CouplingFormat} == {"PM1": 1, "TERNARY": 2, "INT8": 3}


def test_a_header_byte_for_byte() -> None:
    frames = empty_frames(1)
    write_headers(frames, FrameType.TILE, 0x01020304, 7, 0x1122334455, 0x99AABB, 310, 5, 640)
    assert frames.tobytes()[:64] == bytes.fromhex(
        "000000000000 000000000000 88b5 01 01"
        "04030201 07000000"
        "5544332211000000"
        "bbaa990000000000"
        "36010000 0500 0100"
        "80020000 00000000"
        "0000000000000000"
    )


@settings(deadline=None)
@given(
    kind=st.sampled_from(FrameType),
    run=U32,
    pass_index=U32,
    sequence=st.integers(0, 2**62),
    row=st.integers(0, 2**62),
    block=U32,
    queue=U16,
    couplings=st.integers(0, 2**31 - 1),
    count=st.integers(1, 5),
    garbage=U64,
)
def test_words_and_structure_agree(
    kind: FrameType,
    run: int,
    pass_index: int,
    sequence: int,
    row: int,
    block: int,
    queue: int,
    couplings: int,
    count: int,
    garbage: int,
) -> None:
    frames = np.full((count, 512), garbage, np.uint64)
    write_headers(frames, int(kind), run, pass_index, sequence, row, block, queue, couplings)
    for i, header in enumerate(headers_of(frames)):
        assert header["ethertype"] == 0x88B5
        assert header["version"] == 1
        assert header["type"] == kind
        assert header["run"] == run
        assert header["pass"] == pass_index
        assert header["sequence"] == sequence + i
        assert header["row"] == row + i
        assert header["column_block"] == block
        assert header["queue"] == queue
        assert header["format"] == CouplingFormat.PM1
        assert header["couplings"] == couplings
        assert not header["destination"].any()
        assert not header["source"].any()
        assert header["payload_checksum"] == header["timestamp_ns"] == 0
    assert (frames[:, 8:] == np.uint64(garbage)).all(), "the payload has been touched"


@given(
    values=st.tuples(
        U16, st.integers(0, 255), st.integers(0, 255), U32, U32, U64, U64, U32, U16, U16, U32, U32, U64
    )
)
def test_structure_round_trip_against_struct(values: tuple[int, ...]) -> None:
    frames = empty_frames(1)
    raw = bytes(12) + struct.pack(">H", values[0]) + struct.pack("<BBIIQQIHHIIQ", *values[1:])
    frames.view(np.uint8)[0, :64] = np.frombuffer(raw, np.uint8)
    header = headers_of(frames)[0]
    names = list(OFFSETS)[2:]
    assert tuple(int(header[name]) for name in names) == values
    again = np.zeros(1, HEADER)
    again[0] = header
    assert again.tobytes() == raw


def test_headers_are_a_view() -> None:
    frames = empty_frames(3)
    headers_of(frames)["sequence"] = [4, 5, 6]
    assert frames[:, 3].tolist() == [4, 5, 6]
    with pytest.raises(ValueError, match="read-only"):
        headers_of(np.frombuffer(bytes(4096), np.uint64).reshape(1, 512))["row"] = 1
