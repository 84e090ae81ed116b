"""The GPU's answers against the CPU's, bit for bit, alone and through the rings."""

import numpy as np
import pytest

from streamdsb.service.gpu import GpuSolver, items_of
from streamdsb.service.limits import max_replicas
from streamdsb.service.messages import RESULT, solve_frames, spins_of
from streamdsb.service.models import Format, Model, pack
from streamdsb.service.solve import solve_model

pytestmark = pytest.mark.gpu

VALUES = {Format.PM1: [-1, 1], Format.TERNARY: [-1, 0, 0, 1], Format.INT8: list(range(-128, 128))}


def model_of(n: int, format: Format) -> Model:  # noqa: A002
    upper = np.triu(np.random.default_rng(n).choice(VALUES[format], (n, n)).astype(np.int8), 1)
    return pack(upper + upper.T, format)


def assert_answers(reply: np.ndarray, model: Model, h: np.ndarray | None, **request: int) -> None:
    header = reply[:64].view(RESULT)[0]
    expected = solve_model(model, h, **request)
    assert (header["type"], header["status"]) == (19, 0)
    assert (header["two_energy"], header["replica"]) == (expected.two_energy, expected.replica)
    words = reply[64 : 64 + 4 * -(-model.n // 32)].view("<u4")
    assert np.array_equal(spins_of(words, model.n), expected.spins)


@pytest.mark.parametrize("format", list(Format))
@pytest.mark.parametrize("n", [1, 2, 31, 33, 63, 65, 96, 127, 128, 129, 192, 255, 257, 300, 512, 700])
@pytest.mark.parametrize("with_field", [False, True])
def test_every_shape(n: int, format: Format, with_field: bool) -> None:  # noqa: A002
    model = model_of(n, format)
    h = np.random.default_rng(1).integers(-(2**15), 2**15, n).astype(np.int16) if with_field else None
    solver = GpuSolver([model_of(5, format), model])
    for replicas in sorted({1, min(8, max_replicas(n)), min(11, max_replicas(n)), max_replicas(n)}):
        for updates in (1, 2, 40):
            seeds = np.array([updates + 2**63], np.uint64)
            fields = None if h is None else h[None]
            frames = solve_frames(0, 1, n, fields, seeds, replicas=replicas, updates=updates)
            reply = solver.solve(items_of(frames, 1, model))[0]
            assert_answers(reply, model, h, replicas=replicas, steps=updates, seed=int(seeds[0]))


@pytest.mark.parametrize(("n", "format"), [(724, Format.INT8), (2048, Format.PM1), (1440, Format.TERNARY)])
def test_the_largest_models(n: int, format: Format) -> None:  # noqa: A002
    model, replicas = model_of(n, format), max_replicas(n)
    frames = solve_frames(0, 1, n, None, np.zeros(1, np.uint64), replicas=replicas, updates=10)
    reply = GpuSolver([model]).solve(items_of(frames, 0, model))[0]
    assert_answers(reply, model, None, replicas=replicas, steps=10, seed=0)


@pytest.mark.parametrize(("xi", "dt"), [(1e-42, 0.7), (2.0, 1e-41), (3e38, 1.0)])
def test_subnormal_and_huge_parameters(xi: float, dt: float) -> None:
    model = model_of(100, Format.INT8)
    frames = solve_frames(0, 1, 100, None, np.zeros(1, np.uint64), replicas=8, updates=30)
    reply = GpuSolver([model]).solve(items_of(frames, 0, model, xi, dt))[0]
    expected = solve_model(model, None, replicas=8, steps=30, seed=0, xi=xi, dt=dt)
    assert reply[:64].view(RESULT)[0]["two_energy"] == expected.two_energy


def test_through_the_rings() -> None:
    model = model_of(128, Format.INT8)
    fields = np.random.default_rng(2).integers(-300, 300, (3, 128)).astype(np.int16)
    frames = solve_frames(0, 1, 128, fields, np.zeros(3, np.uint64), replicas=8, updates=20)
    count = 20_000
    replies = GpuSolver([model]).saturate(items_of(frames, 0, model), count).replies
    tickets = replies[:, 480:488].view("<u8")[:, 0]
    assert len(np.unique(tickets)) == 4096
    for reply, ticket in zip(replies[:200], tickets[:200].tolist(), strict=True):
        assert_answers(reply, model, fields[ticket % 3], replicas=8, steps=20, seed=ticket)
