"""Models in tensor-core order: the sums that the kernel's products take, done here lane by lane in NumPy."""

import numpy as np
import pytest

from streamdsb.service.fragments import FRAGMENT_BYTES, fragments_of
from streamdsb.service.limits import padded
from streamdsb.service.models import Format, pack

VALUES = {Format.PM1: [-1, 1], Format.TERNARY: [-1, 0, 0, 1], Format.INT8: list(range(-128, 128))}


def column_of(place: int) -> int:
    """The column at a place of a row of signs in shared memory."""
    return place // 16 * 16 + place % 16 // 2 + 8 * (place % 2)


def int8_sums(fragments: np.ndarray, signs: np.ndarray, n: int) -> np.ndarray:
    rows, chunks = padded(n), -(-n // 64)
    lanes = fragments.view(np.int8).reshape(rows // 16, chunks, 2, 32, 16).astype(int)
    sums = np.zeros(rows, int)
    for tile, chunk, half, lane in np.ndindex(rows // 16, chunks, 2, 32):
        places = [chunk * 64 + lane % 4 * 16 + byte for byte in range(16)]
        operand = np.array([signs[column] if (column := column_of(q)) < n else 99 for q in places])
        sums[tile * 16 + lane // 4 + 8 * half] += lanes[tile, chunk, half, lane] @ operand
    return sums[:n]


def bit_sums(fragments: np.ndarray, signs: np.ndarray, n: int) -> np.ndarray:
    rows, chunks = padded(n), -(-n // 256)
    size = rows // 16 * chunks * 2 * 32 * 16
    words = fragments[:size].view("<u4").reshape(rows // 16, chunks, 2, 32, 4)
    constants = fragments[size:].view("<i4")
    counts = np.zeros((2, rows), int)
    for tile, chunk, plane, lane, word in np.ndindex(rows // 16, chunks, 2, 32, 4):
        first = chunk * 256 + (lane % 4 * 2 + word // 2) * 32
        columns = [column_of(first + bit) for bit in range(32)]
        operand = sum(1 << bit for bit, c in enumerate(columns) if c >= n or signs[c] > 0)
        row = tile * 16 + lane // 4 + 8 * (word % 2)
        counts[plane, row] += (int(words[tile, chunk, plane, lane, word]) & operand).bit_count()
    return (2 * (counts[0] - counts[1]) - constants)[:n]


@pytest.mark.parametrize("format", list(Format))
@pytest.mark.parametrize("n", [1, 33, 100, 260])
def test_sums(n: int, format: Format) -> None:  # noqa: A002
    rng = np.random.default_rng(n)
    upper = np.triu(rng.choice(VALUES[format], (n, n)).astype(np.int8), 1)
    couplings, signs = upper + upper.T, rng.choice([-1, 1], n)
    sums = int8_sums if format is Format.INT8 else bit_sums
    assert np.array_equal(
        sums(fragments_of(pack(couplings, format)), signs, n), couplings.astype(int) @ signs
    )


@pytest.mark.parametrize(("n", "format"), [(2048, Format.PM1), (1440, Format.TERNARY), (724, Format.INT8)])
def test_the_largest_models_fit(n: int, format: Format) -> None:  # noqa: A002
    couplings = np.ones((n, n), np.int8) - np.eye(n, dtype=np.int8)
    assert len(fragments_of(pack(couplings, format))) <= FRAGMENT_BYTES
