"""The messages of the request service, version 1: a header of 64 bytes, then a payload.

On raw Ethernet a message is the whole frame; over UDP the same bytes are the datagram, with the Ethernet
part zero. Fields are little-endian and naturally aligned, except the EtherType, which is big-endian.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from streamdsb.errors import UserError
from streamdsb.service.limits import (
    FIELD_MAX,
    FIELD_MIN,
    HEADER_BYTES,
    MAX_FIELD_SPINS,
    MAX_FRAGMENTS,
    PAYLOAD_BYTES,
    SLOTS,
)
from streamdsb.service.models import Model

VERSION = 1
FIELD_FOLLOWS = 1


class MessageType(IntEnum):
    """What a message is."""

    LOAD = 16
    LOAD_ACK = 17
    SOLVE = 18
    RESULT = 19


class Status(IntEnum):
    """How a server answers."""

    OK = 0
    UNKNOWN_MODEL = 1
    WRONG_N = 2
    OUT_OF_RANGE = 3
    MALFORMED = 4
    OVERLOADED = 5


MEANING = {
    Status.OK: "ok",
    Status.UNKNOWN_MODEL: "unknown model or generation",
    Status.WRONG_N: "n does not match the model",
    Status.OUT_OF_RANGE: "parameters out of range",
    Status.MALFORMED: "malformed message",
    Status.OVERLOADED: "overloaded",
}

_ALL: list[tuple[str, str, int]] = [
    ("destination", "V6", 0),
    ("source", "V6", 6),
    ("ether_type", ">u2", 12),
    ("version", "u1", 14),
    ("type", "u1", 15),
    ("model", "<u4", 16),
    ("generation", "<u4", 20),
    ("request", "<u8", 24),
]


def _header(*fields: tuple[str, str, int]) -> np.dtype[Any]:
    names, formats, offsets = zip(*_ALL, *fields, strict=True)
    return np.dtype(
        {"names": list(names), "formats": list(formats), "offsets": list(offsets), "itemsize": HEADER_BYTES}
    )


LOAD = _header(
    ("n", "<u4", 32),
    ("format", "<u2", 36),
    ("fragment", "<u4", 40),
    ("fragments", "<u4", 44),
    ("offset", "<u4", 48),
    ("total", "<u4", 52),
    ("xi", "<f4", 56),
)
LOAD_ACK = _header(("status", "<u4", 32))
SOLVE = _header(
    ("n", "<u4", 32),
    ("replicas", "<u2", 36),
    ("flags", "<u2", 38),
    ("updates", "<u4", 40),
    ("xi", "<f4", 44),
    ("dt", "<f4", 48),
    ("seed", "<u8", 56),
)
RESULT = _header(
    ("two_energy", "<i8", 32),
    ("status", "<u2", 40),
    ("replica", "<u2", 42),
    ("worker", "<u4", 44),
    ("queue_ns", "<u4", 48),
    ("solve_ns", "<u4", 52),
    ("transmit_ns", "<u4", 56),
)


def load_frames(
    slot: int, generation: int, model: Model, request: int = 0, fragment_bytes: int = PAYLOAD_BYTES
) -> list[bytes]:
    """The LOAD messages, one for each fragment of `model`, in order."""
    if not 0 <= slot < SLOTS:
        raise UserError(f"model id is {slot}, but it should be an integer from 0 to {SLOTS - 1}")
    count = -(-len(model.packed) // fragment_bytes)
    if count > MAX_FRAGMENTS:
        raise UserError(f"{count} fragments are too many: a model may have {MAX_FRAGMENTS}")
    header = np.zeros((), LOAD)
    header["version"], header["type"] = VERSION, MessageType.LOAD
    header["model"], header["generation"], header["request"] = slot, generation, request
    header["n"], header["format"], header["xi"] = model.n, model.format, model.xi
    header["fragments"], header["total"] = count, len(model.packed)
    frames = []
    for fragment in range(count):
        offset = fragment * fragment_bytes
        header["fragment"], header["offset"] = fragment, offset
        frames.append(header.tobytes() + model.packed[offset : offset + fragment_bytes])
    return frames


def check_field(h: Any, n: int) -> np.ndarray:
    """A field for n spins as int16 (..., n); UserError if it is not of such integers."""
    field = np.asarray(h)
    if field.ndim == 0 or field.shape[-1] != n:
        raise UserError(f"the field has the shape {field.shape}, but the model has {n} spins")
    if field.dtype.kind not in "iu" or (field.size and (field.min() < FIELD_MIN or field.max() > FIELD_MAX)):
        raise UserError(
            f"the field has type {field.dtype}, but it should hold integers from {FIELD_MIN} to {FIELD_MAX}"
        )
    return field.astype("<i2")


def solve_frames(
    slot: int,
    generation: int,
    n: int,
    fields: np.ndarray | None,
    seeds: np.ndarray,
    *,
    replicas: int,
    updates: int,
    xi: float = 0.0,
    dt: float = 0.0,
    first_request: int = 0,
) -> np.ndarray:
    """SOLVE messages, uint8 (m, size), one for each seed.

    fields: int16 (m, n), one a request, or None; seeds: uint64 (m,). xi 0 is the model's, dt 0 is 1.0.
    Request ids count up from `first_request`.
    """
    if fields is not None and n > MAX_FIELD_SPINS:
        raise UserError(f"n is {n}, but a field has to fit one frame: n up to {MAX_FIELD_SPINS}")
    headers = np.zeros(len(seeds), SOLVE)
    headers["version"], headers["type"] = VERSION, MessageType.SOLVE
    headers["model"], headers["generation"] = slot, generation
    headers["request"] = np.uint64(first_request) + np.arange(len(seeds), dtype=np.uint64)
    headers["n"], headers["replicas"], headers["updates"] = n, replicas, updates
    headers["flags"] = 0 if fields is None else FIELD_FOLLOWS
    headers["xi"], headers["dt"], headers["seed"] = xi, dt, seeds
    frames = headers.view(np.uint8).reshape(len(seeds), HEADER_BYTES)
    if fields is None:
        return frames
    payload = np.ascontiguousarray(fields, "<i2").view(np.uint8).reshape(len(seeds), 2 * n)
    return np.concatenate([frames, payload], axis=1)


def spins_of(words: np.ndarray, n: int) -> np.ndarray:
    """Spins ±1, int8 (..., n), from the 32-bit words (..., ceil(n / 32)) of a RESULT."""
    octets = np.ascontiguousarray(words, "<u4").view(np.uint8)
    return 2 * np.unpackbits(octets, axis=-1, count=n, bitorder="little").view(np.int8) - 1


def spin_words(spins: np.ndarray) -> np.ndarray:
    """The reverse of `spins_of`: uint32 (..., ceil(n / 32)), bit i % 32 of word i // 32 set for +1."""
    n = spins.shape[-1]
    octets = np.zeros((*spins.shape[:-1], 4 * -(-n // 32)), np.uint8)
    octets[..., : -(-n // 8)] = np.packbits(spins > 0, axis=-1, bitorder="little")
    return octets.view("<u4")
