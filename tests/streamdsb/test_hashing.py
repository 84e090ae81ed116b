"""The counter-based hash against its published vectors and against unbounded Python integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from streamdsb.hashing import Domain, hash_word, key_of

U64 = st.integers(0, 2**64 - 1)
WRAP = 2**64


@njit
def _hash(key: np.uint64, i: np.uint64, w: np.uint64) -> np.uint64:
    return hash_word(key, i, w)


def _python_mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WRAP
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WRAP
    return z ^ (z >> 31)


@pytest.mark.parametrize(
    ("seed", "domain", "key"),
    [(42, Domain.RANDOM_COUPLINGS, 0xBDD732262FEB6E95), (42, Domain.MATTIS_SIGNS, 0x28EFE333B266F103)],
)
def test_key_vectors(seed: int, domain: Domain, key: int) -> None:
    assert key_of(seed, domain) == key


@pytest.mark.parametrize(
    ("domain", "i", "w", "word"),
    [
        (Domain.RANDOM_COUPLINGS, 0, 0, 0xB29ED950786F5AE3),
        (Domain.RANDOM_COUPLINGS, 3, 7, 0xFA55AB45507FD2DD),
        (Domain.MATTIS_SIGNS, 0, 0, 0x6A829AA58CBB5BE2),
    ],
)
def test_word_vectors(domain: Domain, i: int, w: int, word: int) -> None:
    assert _hash(key_of(42, domain), np.uint64(i), np.uint64(w)) == word


def test_domains() -> None:
    assert [domain.value for domain in Domain] == [0, 1, 2, 3]


@settings(deadline=None)
@given(seed=U64, domain=st.sampled_from(Domain))
def test_key_against_python(seed: int, domain: Domain) -> None:
    assert int(key_of(seed, domain)) == _python_mix((seed + (domain + 1) * 0x9E3779B97F4A7C15) % WRAP)


@settings(deadline=None)
@given(key=U64, i=U64, w=U64)
def test_word_against_python(key: int, i: int, w: int) -> None:
    expected = _python_mix((key + i * 0x9E3779B97F4A7C15 + w * 0xD1342543DE82EF95) % WRAP)
    assert int(_hash(np.uint64(key), np.uint64(i), np.uint64(w))) == expected
