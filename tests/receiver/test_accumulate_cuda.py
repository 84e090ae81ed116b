"""Accumulation on the GPU against a host loop: both paths, every number of replicas that tiles apart."""

import numpy as np
import pytest

from receiver.accumulate_cuda import load_kernel, sign_tile_bytes

pytestmark = pytest.mark.gpu


def mismatches(rows: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """popc(row xor sign), int64 (B, rows), of words (rows, W) and (B, W)."""
    return np.array([[np.unpackbits((row ^ sign).view(np.uint8)).sum() for row in rows] for sign in signs])


def random_words(rng: np.random.Generator, n: int, rows: int) -> np.ndarray:
    bits = np.zeros((rows, 64 * -(-n // 64)), np.uint8)
    bits[:, :n] = rng.integers(0, 2, (rows, n))
    return np.packbits(bits, axis=-1, bitorder="little").view("<u8")


@pytest.mark.parametrize("path", ["mma", "popc"])
@pytest.mark.parametrize("replicas", [1, 2, 3, 7, 8, 9, 16, 31, 32, 33, 50, 64])
@pytest.mark.parametrize("n", [1, 63, 65, 200, 1000, 33001])
def test_counts_are_exact(n: int, replicas: int, path: str) -> None:
    import cupy

    rng = np.random.default_rng(n + replicas)
    rows = min(n, 130)  # of a matrix with more columns than rows: two whole bursts and a short one
    groups, blocks = -(-n // 64), -(-n // 32256)
    matrix = random_words(rng, n, rows)
    signs = random_words(rng, n, replicas)
    start = rng.integers(-1000, 1000, (replicas, n)).astype(np.int32)
    frames = rng.integers(0, 1 << 63, (blocks, groups, 64, 512), np.uint64) if groups < 20 else None
    if frames is None:
        frames = np.full((blocks, groups, 64, 512), 0x5A5A5A5A5A5A5A5A, np.uint64)
    for row in range(rows):
        for block in range(blocks):
            words = matrix[row, 504 * block : 504 * (block + 1)]
            payload = frames[block, row // 64, row % 64, 8:]
            payload[: words.size] = words
            payload[words.size : words.size + words.size % 2] = 0
    counts = cupy.asarray(start)
    kernel = load_kernel("accumulate.cu", "accumulate", replicas, path)
    arguments = (cupy.asarray(frames), cupy.asarray(signs), counts, np.uint64(n), np.uint64(blocks * groups))
    kernel((6,), (256,), arguments, shared_mem=sign_tile_bytes(replicas))
    expected = start[:, :rows] + mismatches(matrix, signs)
    np.testing.assert_array_equal(counts.get()[:, :rows], expected)
