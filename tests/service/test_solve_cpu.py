"""The CPU solver against the oracle, bit for bit, at ordinary sizes and at the limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamdsb
from streamdsb.errors import UserError
from streamdsb.service.models import Format, pack
from streamdsb.service.solve import Answer, solve_model
from validation import oracle, oracle_solve

VALUES = {Format.PM1: [-1, 1], Format.TERNARY: [-1, 0, 0, 1], Format.INT8: list(range(-128, 128))}


def problem(n: int, format: Format, seed: int) -> tuple[np.ndarray, np.ndarray]:  # noqa: A002
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.choice(VALUES[format], (n, n)).astype(np.int8), 1)
    return upper + upper.T, rng.integers(-(2**15), 2**15, n).astype(np.int16)


def assert_same(answer: Answer, reference: oracle_solve.Answer) -> None:
    assert (answer.two_energy, answer.replica) == (reference.two_energy, reference.replica)
    assert np.array_equal(answer.spins, reference.spins)


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 140),
    format=st.sampled_from(Format),
    replicas=st.integers(1, 9),
    updates=st.integers(1, 40),
    seed=st.integers(0, 2**64 - 1),
    with_field=st.booleans(),
    xi=st.sampled_from([0.0, 0.01, 3.0, 1e-42, 3e38]),
    dt=st.sampled_from([0.0, 0.5, 1.1, 1e-41, 3e38]),
)
def test_against_the_oracle(
    n: int,
    format: Format,  # noqa: A002
    replicas: int,
    updates: int,
    seed: int,
    with_field: bool,
    xi: float,
    dt: float,
) -> None:
    couplings, field = problem(n, format, seed % 2**32)
    h = field if with_field else None
    answer = solve_model(
        pack(couplings, format), h, replicas=replicas, steps=updates, seed=seed, xi=xi or None, dt=dt or None
    )
    with np.errstate(over="ignore"):
        reference = oracle_solve.solve(
            couplings, h, replicas=replicas, updates=updates, seed=seed, xi=xi, dt=dt
        )
    assert_same(answer, reference)


@pytest.mark.parametrize(
    ("n", "format", "replicas"),
    [
        (724, Format.INT8, 5),
        (2048, Format.PM1, 2),
        (1440, Format.TERNARY, 2),
        (1, Format.INT8, 128),
        (128, Format.INT8, 32),
    ],
)
def test_at_the_limits(n: int, format: Format, replicas: int) -> None:  # noqa: A002
    couplings, field = problem(n, format, 5)
    answer = solve_model(pack(couplings, format), field, replicas=replicas, steps=6, seed=2**64 - 1)
    assert_same(answer, oracle_solve.solve(couplings, field, replicas=replicas, updates=6, seed=2**64 - 1))


def test_extreme_couplings_and_fields() -> None:
    couplings = np.full((200, 200), -128, np.int8)
    np.fill_diagonal(couplings, 0)
    for h in (np.full(200, -(2**15)), np.full(200, 2**15 - 1)):
        answer = solve_model(pack(couplings), h, replicas=3, steps=30, seed=1)
        assert_same(answer, oracle_solve.solve(couplings, h, replicas=3, updates=30, seed=1))


def test_all_couplings_zero() -> None:
    couplings, h = np.zeros((5, 5), np.int8), np.array([3, -3, 0, 1, -1])
    answer = streamdsb.solve(couplings, h, replicas=2, steps=50)
    assert_same(answer, oracle_solve.solve(couplings, h, replicas=2, updates=50, seed=0))
    assert answer.two_energy == -2 * 8


def test_a_planted_ground_state_is_found() -> None:
    solution = streamdsb.solve(oracle.mattis_couplings(100, 3), seed=1)
    assert solution.two_energy == -100 * 99
    assert solution.energy == -100 * 99 / 2
    assert solution.quantized.scale == 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"replicas": 0}, "from 1 to 128"),
        ({"steps": 0}, "from 1 to 100000"),
        ({"seed": -1}, "from 0 to"),
        ({"dt": -1.0}, "above 0"),
        ({"xi": float("nan")}, "above 0"),
        ({"dt": 1e39}, "float32"),
    ],
)
def test_what_cannot_be_asked_for(change: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        solve_model(pack(np.zeros((4, 4), int)), **{"replicas": 1, "steps": 1, "seed": 0, **change})  # type: ignore[arg-type]
