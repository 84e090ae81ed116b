"""Quantization: what it promises of scale and error, and QUBO against all of its states."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdsb
from streamdsb.errors import UserError
from streamdsb.service.quantize import ising_of_qubo, quantize


@given(n=st.integers(1, 12), seed=st.integers(0, 2**32), size=st.floats(1e-20, 1e20))
def test_errors_are_within_half_a_step(n: int, seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    J = rng.normal(size=(n, n)) * size  # noqa: N806
    J = J + J.T  # noqa: N806
    np.fill_diagonal(J, 0)
    h = rng.normal(size=n) * size * 50
    made = quantize(J, h)
    assert made.couplings.dtype == np.int8
    assert made.field.dtype == np.int16
    assert np.array_equal(made.couplings, made.couplings.T)
    assert np.abs(J - made.couplings / made.scale).max() == made.coupling_error
    assert made.coupling_error <= 0.500001 / made.scale
    assert made.field_error <= 0.500001 / made.scale
    largest = max(np.abs(made.couplings).max() / 127, np.abs(made.field).max() / 32767)
    assert largest == pytest.approx(1, abs=0.01)


def test_integers_are_kept() -> None:
    J = np.array([[0, -128.0], [-128.0, 0]])  # noqa: N806
    made = quantize(J, [-32768, 5])
    assert (made.scale, made.coupling_error, made.field_error) == (1.0, 0.0, 0.0)
    assert made.field.tolist() == [-32768, 5]


@given(n=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_qubo_has_the_energies_of_its_ising_model(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    Q, c = rng.normal(size=(n, n)), rng.normal(size=n)  # noqa: N806
    J, h, offset = ising_of_qubo(Q, c)  # noqa: N806
    for bits in itertools.product([0, 1], repeat=n):
        x = np.array(bits)
        s = 2 * x - 1
        assert x @ Q @ x + c @ x == pytest.approx(-0.5 * s @ J @ s - h @ s + offset, abs=1e-9)


def test_a_small_qubo_is_solved() -> None:
    rng = np.random.default_rng(4)
    Q, c = rng.normal(size=(10, 10)), rng.normal(size=10)  # noqa: N806
    values = [np.array(x) @ Q @ np.array(x) + c @ np.array(x) for x in itertools.product([0, 1], repeat=10)]
    solution = streamdsb.solve_qubo(Q, c, replicas=32, steps=200)
    assert solution.value == pytest.approx(min(values))
    assert solution.value == pytest.approx(solution.x @ Q @ solution.x + c @ solution.x)


@pytest.mark.parametrize(
    ("J", "h", "words"),
    [
        ([[0, 1.5]], None, "square"),
        ([[0.5]], None, "zero diagonal"),
        ([[0, 1.0], [2.0, 0]], None, "symmetric"),
        ([[0, np.inf], [np.inf, 0]], None, "not finite"),
        ([[0, 1.0], [1.0, 0]], [1.0], r"\(2,\)"),
    ],
)
def test_what_cannot_be_quantized(J: list[list[float]], h: list[float] | None, words: str) -> None:  # noqa: N803
    with pytest.raises(UserError, match=words):
        quantize(J, h)


def test_bool_is_not_taken_for_0_and_1() -> None:
    with pytest.raises(UserError, match="J holds bool"):
        quantize(np.zeros((2, 2), bool))
