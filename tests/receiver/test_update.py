"""Dynamics on the CPU against the oracle, bit for bit: energies, the update step, signs and checksums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from receiver.update_cpu import CpuState, Dynamics, checksum
from streamdsb.layout import Layout, RowRange
from validation import oracle

INT32 = np.iinfo(np.int32)
SUBNORMAL = np.float32(1e-45)


def state_of(
    n: int,
    replicas: int,
    *,
    updates: int = 3,
    xi: float = 0.05,
    dt: float = 1.1,
    seed: int = 42,
    field: np.ndarray | None = None,
    threads: int = 1,
) -> CpuState:
    dynamics = Dynamics(updates, np.float32(xi), np.float32(dt))
    return CpuState(Layout(n, replicas, 1), RowRange(0, n), dynamics, seed, field, threads)


def counts_for(state: CpuState, sums: np.ndarray) -> np.ndarray:
    """Mismatch counts that stand for coupling sums a, int64 (B, n), which have the parity of n - s."""
    n = sums.shape[1]
    return ((n - spins_of(state) - sums) // 2).astype(np.int32)


def spins_of(state: CpuState) -> np.ndarray:
    return oracle.spins_of(state.signs, state.positions.shape[1]).astype(np.int64)


def random_sums(state: CpuState, rng: np.random.Generator) -> np.ndarray:
    """Any sums that a matrix of ±1 could have."""
    replicas, n = state.positions.shape
    return n - 2 * rng.integers(0, n + 1, (replicas, n)) - spins_of(state)


def put(state: CpuState, x: np.ndarray, y: np.ndarray) -> None:
    state.positions[:], state.momenta[:] = x, y
    state.signs[:] = oracle.sign_bitmap(state.positions)


def assert_advances_like_the_oracle(
    state: CpuState, sums: np.ndarray, k: int, field: np.ndarray | None = None
) -> None:
    x, y = state.positions.copy(), state.momenta.copy()
    force = sums if field is None else sums + field.astype(np.int64)
    updates = state.dynamics.updates
    decay = 1.0 - (k / (updates - 1) if updates > 1 else 0.0)
    x, y = oracle.update(x, y, force, xi=float(state.dynamics.xi), decay=decay, dt=float(state.dynamics.dt))
    state.advance(counts_for(state, sums), k)
    assert (state.positions.view(np.uint32) == x.view(np.uint32)).all()
    assert (state.momenta.view(np.uint32) == y.view(np.uint32)).all()
    assert (state.signs == oracle.sign_bitmap(x)).all()
    assert checksum(state.signs) == oracle.checksum(x)


def test_the_first_values_of_seed_42() -> None:
    state = state_of(4, 1)
    assert [f"{bits:08x}" for bits in state.positions.view(np.uint32)[0]] == [
        "bd5d1f67",
        "bc518180",
        "3d5d67cd",
        "3d377a37",
    ]
    assert [f"{bits:08x}" for bits in state.momenta.view(np.uint32)[0]] == [
        "3c73ee67",
        "3ce67acd",
        "bd9f33b2",
        "bda6873d",
    ]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("n", "replicas"), [(1, 1), (63, 3), (64, 8), (65, 2), (1000, 32)])
@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_initial_state(n: int, replicas: int, seed: int, threads: int) -> None:
    state = state_of(n, replicas, seed=seed, threads=threads)
    x, y = oracle.initial_state(n, replicas, seed)
    assert (state.positions.view(np.uint32) == x.view(np.uint32)).all()
    assert (state.momenta.view(np.uint32) == y.view(np.uint32)).all()
    assert (state.signs == oracle.sign_bitmap(x)).all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_many_updates(n: int, threads: int) -> None:
    rng = np.random.default_rng(n)
    state = state_of(n, 4, updates=12, threads=threads)
    for k in range(12):
        assert_advances_like_the_oracle(state, random_sums(state, rng), k)


def test_detuning() -> None:
    assert Dynamics(1, np.float32(1), np.float32(1)).detuning(0) == 1
    dynamics = Dynamics(8, np.float32(1), np.float32(1))
    assert [dynamics.detuning(k) for k in range(8)] == [np.float32(1 - k / 7) for k in range(8)]
    assert dynamics.detuning(7) == 0


def test_a_single_update() -> None:
    state = state_of(100, 3, updates=1)
    assert_advances_like_the_oracle(state, random_sums(state, np.random.default_rng(1)), 0)


@pytest.mark.parametrize(("xi", "dt"), [(1e-39, 1.1), (1e-45, 1e-3), (0.5, 1e-38), (1e-42, 1e-42)])
def test_subnormal_operands_and_results(xi: float, dt: float) -> None:
    rng = np.random.default_rng(2)
    state = state_of(256, 2, updates=4, xi=xi, dt=dt)
    tiny = (rng.integers(-(2**22), 2**22, (2, 2, 256)) * SUBNORMAL.astype(np.float64)).astype(np.float32)
    put(state, tiny[0], tiny[1])
    subnormal = (np.abs(state.positions) < np.finfo(np.float32).tiny) & (state.positions != 0)
    assert subnormal.any()
    for k in range(4):
        assert_advances_like_the_oracle(state, random_sums(state, rng), k)


def test_positions_outside_the_walls_and_on_them() -> None:
    state = state_of(8, 1, updates=2, xi=1e-20, dt=1.0)
    edge = np.float32(1)
    beyond = np.nextafter(edge, np.float32(2))
    x = np.array([[edge, -edge, beyond, -beyond, 5, -5, 3e38, 0]], np.float32)
    put(state, x, np.zeros_like(x))
    assert_advances_like_the_oracle(state, random_sums(state, np.random.default_rng(3)), 1)
    assert state.positions[0].tolist()[:7] == [1, -1, 1, -1, 1, -1, 1]


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_the_sign_of_zero_is_minus(zero: float) -> None:
    state = state_of(2, 1, updates=2, xi=1e-20, dt=1e-20)
    x = np.array([[zero, SUBNORMAL]], np.float32)
    put(state, x, np.zeros_like(x))
    assert_advances_like_the_oracle(state, np.array([[1, -1]]), 1)
    assert spins_of(state).tolist() == [[-1, 1]]


@pytest.mark.parametrize("threads", [1, 2])
def test_fields_at_the_ends_of_their_range(threads: int) -> None:
    rng = np.random.default_rng(4)
    n = 200
    field = rng.choice(np.array([INT32.min, INT32.max, 0, 1, -1], np.int32), n)
    field.flags.writeable = False  # as it is when it has come over a connection
    state = state_of(n, 3, field=field, threads=threads)
    sums = random_sums(state, rng)
    spins = spins_of(state)
    expected = -((sums + 2 * field.astype(np.int64)) * spins).sum(axis=1)
    assert state.measure(counts_for(state, sums)).tolist() == expected.tolist()
    for k in range(3):
        assert_advances_like_the_oracle(state, random_sums(state, rng), k, field)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 2, 64, 65, 700])
def test_energies_of_an_explicit_matrix(n: int, threads: int) -> None:
    couplings = oracle.random_couplings(n, 7)
    field = np.random.default_rng(n).integers(-100, 100, n).astype(np.int32)
    state = state_of(n, 5, field=field, threads=threads)
    spins = spins_of(state)
    sums = oracle.coupling_sums(couplings, spins)
    energies = state.measure(counts_for(state, sums))
    assert energies.dtype == np.int64
    assert energies.tolist() == oracle.two_energy(couplings, spins, field).tolist()


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
inside = st.floats(-1, 1, width=32)


@settings(deadline=None, max_examples=150)
@given(
    x=hnp.arrays(np.float32, (2, 67), elements=inside, fill=inside),
    y=hnp.arrays(np.float32, (2, 67), elements=finite, fill=finite),
    counts=hnp.arrays(np.int64, (2, 67), elements=st.integers(0, 67), fill=st.integers(0, 67)),
    field=hnp.arrays(
        np.int32, 67, elements=st.integers(INT32.min, INT32.max), fill=st.integers(INT32.min, INT32.max)
    ),
    xi=st.floats(1e-10, 1e3),
    dt=st.floats(1e-10, 1e3),
    k=st.integers(0, 4),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # infinities are part of the arithmetic
def test_any_values(
    x: np.ndarray, y: np.ndarray, counts: np.ndarray, field: np.ndarray, xi: float, dt: float, k: int
) -> None:
    state = state_of(67, 2, updates=5, xi=xi, dt=dt, field=field)
    put(state, x, y)
    sums = 67 - 2 * counts - spins_of(state)
    assert_advances_like_the_oracle(state, sums, k, field)
