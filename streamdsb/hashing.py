"""The counter-based hash from which couplings, Mattis signs and initial states are made.

All arithmetic is unsigned 64-bit with wrap-around:

    mix(z):  z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9;  z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31
    key(seed, domain) = mix(seed + (domain + 1) * A)
    H(key, i, w)      = mix(key + i * A + w * C)

mix is the finalizer of SplitMix64 (Steele, Lea and Flood, 2014; constants by Stafford).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from streamdsb.jit import inline

A = np.uint64(0x9E3779B97F4A7C15)
C = np.uint64(0xD1342543DE82EF95)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


class Domain(IntEnum):
    """What a key is for; keys of different domains are unrelated."""

    RANDOM_COUPLINGS = 0
    MATTIS_SIGNS = 1
    INITIAL_POSITIONS = 2
    INITIAL_MOMENTA = 3


@inline
def mix(z: np.uint64) -> np.uint64:
    """Scramble one 64-bit word."""
    z = (z ^ (z >> np.uint64(30))) * _M1
    z = (z ^ (z >> np.uint64(27))) * _M2
    return z ^ (z >> np.uint64(31))


@inline
def hash_word(key: np.uint64, i: np.uint64, w: np.uint64) -> np.uint64:
    """H(key, i, w), one 64-bit word."""
    return mix(key + i * A + w * C)


def key_of(seed: int, domain: Domain) -> np.uint64:
    """The key of `seed` (0 to 2**64 - 1) in `domain`."""
    mask = 0xFFFF_FFFF_FFFF_FFFF
    z = (seed + (int(domain) + 1) * int(A)) & mask
    z = ((z ^ (z >> 30)) * int(_M1)) & mask
    z = ((z ^ (z >> 27)) * int(_M2)) & mask
    return np.uint64(z ^ (z >> 31))
