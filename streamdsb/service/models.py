"""Packed models: couplings in the formats that a request service keeps resident.

With W = ceil(n / 32) words of 32 bits a row, little-endian, padding bits 0:

PM1      n W words; bit j of row i is 1 where J_ij = +1, and 0 on the diagonal
TERNARY  the plane of J_ij = +1, the plane of J_ij = -1 (n W words each), then n int32 |P_i| - |M_i|
INT8     n n int8, row after row
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from streamdsb.errors import UserError
from streamdsb.service.limits import MAX_PAIRS, MODEL_BYTES


class Format(IntEnum):
    """How couplings are packed."""

    PM1 = 1
    TERNARY = 2
    INT8 = 3


@dataclass(frozen=True)
class Model:
    """A packed model; xi 0 stands for the default gain of its couplings."""

    n: int
    format: Format
    packed: bytes
    xi: float = 0.0


def packed_bytes(n: int, format: Format) -> int:  # noqa: A002
    """Bytes of a packed model of n spins."""
    plane = 4 * n * -(-n // 32)
    return {Format.PM1: plane, Format.TERNARY: 2 * plane + 4 * n, Format.INT8: n * n}[format]


def default_xi(n: int, squares: int) -> np.float32:
    """0.5 sqrt(n - 1) / ||J||_F with squares = ||J||_F^2, in float64, rounded once.

    That is 0.5 / sqrt(n) for ±1, which also stands in where all couplings are 0.
    """
    if squares in (0, n * (n - 1)):
        return np.float32(0.5 / math.sqrt(n))
    return np.float32(0.5 * math.sqrt(n - 1) / math.sqrt(squares))


def check_couplings(J: Any) -> np.ndarray:  # noqa: N803
    """Couplings as int8 (n, n); UserError unless integer, symmetric and zero on the diagonal."""
    couplings = np.asarray(J)
    if couplings.ndim != 2 or couplings.shape[0] != couplings.shape[1] or not len(couplings):
        raise UserError(f"the couplings have the shape {couplings.shape}, but they should be a square matrix")
    if couplings.dtype.kind not in "iu" or couplings.min() < -128 or couplings.max() > 127:
        raise UserError(
            f"the couplings have type {couplings.dtype} and go from {couplings.min()} to {couplings.max()},"
            " but a model holds integers from -128 to 127; quantize() makes some"
        )
    if np.diagonal(couplings).any():
        row = int(np.flatnonzero(np.diagonal(couplings))[0])
        raise UserError(f"coupling ({row}, {row}) is {couplings[row, row]}, but the diagonal should be 0")
    if not np.array_equal(couplings, couplings.T):
        i, j = (int(place) for place in np.argwhere(couplings != couplings.T)[0])
        raise UserError(
            f"couplings ({i}, {j}) and ({j}, {i}) are {couplings[i, j]} and {couplings[j, i]},"
            " but should be equal"
        )
    return couplings.astype(np.int8)


def natural_format(couplings: np.ndarray) -> Format:
    """The smallest format that holds int8 couplings (n, n)."""
    n = len(couplings)
    largest = max(-int(couplings.min()), int(couplings.max()))
    if largest > 1:
        return Format.INT8
    return Format.PM1 if np.count_nonzero(couplings) == n * (n - 1) else Format.TERNARY


def _pack_plane(bits: np.ndarray) -> np.ndarray:
    n = len(bits)
    octets = np.zeros((n, 4 * -(-n // 32)), np.uint8)
    octets[:, : -(-n // 8)] = np.packbits(bits, axis=1, bitorder="little")
    return octets


def pack(J: Any, format: Format | None = None, xi: float = 0.0) -> Model:  # noqa: A002, N803
    """Pack integer couplings (n, n); by default in the smallest format that holds them."""
    couplings = check_couplings(J)
    n = len(couplings)
    natural = natural_format(couplings)
    if format is None:
        format = natural  # noqa: A001
    elif format < natural:
        raise UserError(f"these couplings do not fit the format {format.name}; {natural.name} holds them")
    size = packed_bytes(n, format)
    if size > MODEL_BYTES or n > MAX_PAIRS:
        raise UserError(f"{n} spins take {size} bytes as {format.name}, but a model may have {MODEL_BYTES}")
    if not (math.isfinite(xi) and xi >= 0):
        raise UserError(f"xi is {xi}, but it should be a number above 0, or 0 for the default")
    if format is Format.PM1:
        packed = _pack_plane(couplings > 0).tobytes()
    elif format is Format.TERNARY:
        constants = couplings.sum(axis=1, dtype=np.int32).astype("<i4")
        planes = _pack_plane(couplings > 0).tobytes() + _pack_plane(couplings < 0).tobytes()
        packed = planes + constants.tobytes()
    else:
        packed = couplings.tobytes()
    return Model(n, format, packed, xi)


def unpack(model: Model) -> np.ndarray:
    """The couplings of a packed model, int8 (n, n)."""
    n = model.n
    if model.format is Format.INT8:
        return np.frombuffer(model.packed, np.int8).reshape(n, n).copy()
    row = 4 * -(-n // 32)
    planes = np.frombuffer(model.packed, np.uint8)[: (2 if model.format is Format.TERNARY else 1) * n * row]
    bits = np.unpackbits(planes.reshape(-1, n, row), axis=2, count=n, bitorder="little").view(np.int8)
    if model.format is Format.TERNARY:
        return bits[0] - bits[1]
    couplings = 2 * bits[0] - 1
    np.fill_diagonal(couplings, 0)
    return couplings
