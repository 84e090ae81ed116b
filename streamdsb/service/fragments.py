"""Models as the GPU keeps them: in the order in which tensor cores take their operands.

A tile is 16 rows, and a lane l holds rows g = l / 4 and g + 8 and the columns of t = l % 4. Place q of each
16 columns holds column (q // 2) + 8 (q % 2) of them (see kernels/solve.cuh).

INT8            for each tile and 64 columns: lane's 16 columns of row g, all lanes, then those of row g + 8
PM1, TERNARY    for each tile and 256 columns: for each plane, lane's words 2t of rows g, g + 8, then 2t + 1;
                after all tiles one int32 a row, |P_i| - |M_i|
"""

from __future__ import annotations

import numpy as np

from streamdsb.service.limits import padded
from streamdsb.service.models import Format, Model, unpack

_PLACES = np.array([q // 2 + 8 * (q % 2) for q in range(16)])

FRAGMENT_BYTES = 2 * 2048 * 2048 // 8 + 4 * 2048
"""The largest model, n = 2048 as ±1; others take less."""


def fragments_of(model: Model) -> np.ndarray:
    """The bytes of a model in device memory, uint8, at most FRAGMENT_BYTES."""
    n, rows = model.n, padded(model.n)
    couplings = unpack(model)
    whole = 64 if model.format is Format.INT8 else 256
    chunks = -(-n // whole)
    square = np.zeros((rows, chunks * whole), np.int8)
    square[:n, :n] = couplings
    square = square.reshape(rows, -1, 16)[:, :, _PLACES].reshape(rows, -1)
    if model.format is Format.INT8:
        tiled = square.reshape(rows // 16, 2, 8, chunks, 4, 16)
        return np.ascontiguousarray(tiled.transpose(0, 3, 1, 2, 4, 5)).view(np.uint8).reshape(-1)
    planes = np.stack([square > 0, square < 0])
    words = np.packbits(planes, axis=2, bitorder="little").view("<u4")
    tiled = words.reshape(2, rows // 16, 2, 8, chunks, 4, 2)
    bits = np.ascontiguousarray(tiled.transpose(1, 4, 0, 3, 5, 6, 2)).view(np.uint8).reshape(-1)
    constants = np.zeros(rows, "<i4")
    constants[:n] = couplings.sum(axis=1, dtype=np.int32)
    return np.concatenate([bits, constants.view(np.uint8)])
