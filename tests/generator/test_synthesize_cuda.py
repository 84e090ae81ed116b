"""The synthesis kernels against a host loop over the definition, on frames that held garbage."""

import numpy as np
import pytest

from generator.synthesize_cuda import SOURCES
from streamdsb import cuda
from validation.oracle import hash_key, hash_words, mattis_spins

pytestmark = pytest.mark.gpu

SEED = 42
GARBAGE = 0xA5A5A5A5A5A5A5A5


def random_bits(n: int, row: int) -> np.ndarray:
    """A row of the random couplings, uint8 (n,): hash bits right of the diagonal, mirrored left of it."""
    key = hash_key(SEED, 0)
    columns = np.arange(n, dtype=np.uint64)
    right = hash_words(key, row, columns // np.uint64(64)) >> columns % np.uint64(64)
    left = hash_words(key, columns, row // 64) >> np.uint64(row % 64)
    bits = (np.where(columns > row, right, left) & np.uint64(1)).astype(np.uint8)
    bits[row] = 1
    return bits


def mattis_bits(n: int, row: int) -> np.ndarray:
    eta = mattis_spins(n, SEED)
    return (eta == eta[row]).astype(np.uint8)


def packed(bits: np.ndarray, words: int) -> np.ndarray:
    padded = np.zeros(64 * words, np.uint8)
    padded[: bits.size] = bits
    return np.packbits(padded, bitorder="little").view("<u8")


@pytest.mark.parametrize("n", [1, 2, 63, 65, 1000, 4097, 32256, 32257, 33001, 70001])
@pytest.mark.parametrize("source", ["random", "mattis"])
def test_frames_hold_the_couplings(source: str, n: int) -> None:
    import cupy

    groups, blocks = -(-n // 64), -(-n // 32256)
    chosen = sorted({g for g in (0, 1, 200, 503, 504, 505, 1008, groups - 2, groups - 1) if 0 <= g < groups})
    tiles = [(g, c) for g in chosen for c in range(blocks)]
    frames = cupy.full((len(tiles), 64, 512), GARBAGE, np.uint64)
    kernel = cuda.load("synthesize.cu", "synthesize", {"SOURCE": source})
    group_list, block_list = (
        cupy.asarray(np.array(column, np.uint64)) for column in zip(*tiles, strict=True)
    )
    key = np.uint64(hash_key(SEED, int(SOURCES[source])))
    kernel((7,), (256,), (frames, group_list, block_list, np.uint64(len(tiles)), np.uint64(n), key))
    got = frames.get()
    bits_of = {"random": random_bits, "mattis": mattis_bits}[source]
    for index, (group, block) in enumerate(tiles):
        columns = min(n - block * 32256, 32256)
        words = -(-columns // 64)
        for row in range(64):
            payload = got[index, row, 8:]
            if 64 * group + row >= n:
                assert (payload == GARBAGE).all()
                continue
            bits = bits_of(n, 64 * group + row)[block * 32256 : block * 32256 + columns]
            even = words + words % 2
            np.testing.assert_array_equal(payload[:even], packed(bits, even))
            assert (payload[even:] == GARBAGE).all()
