"""The update kernel against NumPy, bit for bit, subnormal operands included."""

import numpy as np
import pytest

from receiver.update_cpu import Dynamics
from receiver.update_cuda import CudaState
from streamdsb.layout import Layout, RowRange
from validation import oracle

pytestmark = pytest.mark.gpu


def state_of(
    n: int, replicas: int, updates: int, field: np.ndarray | None = None, xi: float = 0.01
) -> CudaState:
    dynamics = Dynamics(updates, np.float32(xi), np.float32(1.1))
    return CudaState(Layout(n, replicas, 1), RowRange(0, n), dynamics, 42, field)


@pytest.mark.parametrize("n", [1, 64, 1000, 4097])
def test_initial_state_is_that_of_the_hash(n: int) -> None:
    state = state_of(n, 3, 5)
    x, y = oracle.initial_state(n, 3, 42)
    np.testing.assert_array_equal(state.positions.get().view(np.uint32), x.view(np.uint32))
    np.testing.assert_array_equal(state.momenta.get().view(np.uint32), y.view(np.uint32))
    np.testing.assert_array_equal(state.host_signs, oracle.sign_bitmap(x))


@pytest.mark.parametrize("field", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-38, 3e-39, 1e-45])
def test_update_is_that_of_numpy(scale: float, field: bool) -> None:
    n, replicas, updates = 4097, 3, 7
    rng = np.random.default_rng(7)
    h = rng.integers(-(2**31), 2**31 - 1, n).astype(np.int32) if field else None
    state = state_of(n, replicas, updates, h, xi=0.01 * scale)
    x = (rng.uniform(-1, 1, (replicas, n)) * scale).astype(np.float32)
    y = (rng.uniform(-1, 1, (replicas, n)) * scale).astype(np.float32)
    x[:, :3] = np.array([0.0, -0.0, 1e-45], np.float32)
    state.positions.set(x)
    state.momenta.set(y)
    for k in (0, 3, 6):
        counts = rng.integers(0, n + 1, (replicas, n)).astype(np.int32)
        state.counts.set(counts)
        energies = state.update_alone(k)
        spins = np.where(x > 0, 1, -1)
        sums = n - 2 * counts.astype(np.int64) - spins
        force = sums if h is None else sums + h.astype(np.int64)
        doubled = sums if h is None else sums + 2 * h.astype(np.int64)
        np.testing.assert_array_equal(energies, -(spins * doubled).sum(axis=1))
        decay = 1.0 - k / (updates - 1)
        x, y = oracle.update(x, y, force, xi=0.01 * scale, decay=decay, dt=1.1)
        np.testing.assert_array_equal(state.positions.get().view(np.uint32), x.view(np.uint32))
        np.testing.assert_array_equal(state.momenta.get().view(np.uint32), y.view(np.uint32))
        np.testing.assert_array_equal(state.signs.get(), oracle.sign_bitmap(x))
        assert not state.counts.get().any()


def test_last_pass_only_evaluates() -> None:
    state = state_of(1000, 2, 4)
    before = state.positions.get()
    state.update_alone(4)
    np.testing.assert_array_equal(state.positions.get(), before)
    np.testing.assert_array_equal(state.signs.get(), oracle.sign_bitmap(before))
