"""Solve one small problem in process, with the solver that the service runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from streamdsb.errors import UserError
from streamdsb.jit import compile_kernels
from streamdsb.service import solve_cpu
from streamdsb.service.limits import check_request, require_integers
from streamdsb.service.messages import check_field, spins_of
from streamdsb.service.models import Model, default_xi, pack, unpack
from streamdsb.service.quantize import Quantized, ising_of_qubo, quantize

DEFAULT_DT = 1.0


@dataclass(frozen=True)
class Answer:
    """The best replica of one solve: its doubled energy 2E, its index and its spins ±1, int8 (n,)."""

    two_energy: int
    replica: int
    spins: np.ndarray


@dataclass(frozen=True)
class Solution(Answer):
    """An answer in the units of the model given: its energy, and how the model was quantized.

    energy: E(s) = - 1/2 s'Js - h's of the J and h that were given, before rounding.
    """

    energy: float
    quantized: Quantized


@dataclass(frozen=True)
class QuboSolution:
    """The best x found, int8 (n,) of 0 and 1, its value x'Qx + c'x, and the Ising solution behind it."""

    x: np.ndarray
    value: float
    ising: Solution


@cache
def _compiled() -> Any:
    compile_kernels(*solve_cpu.KERNELS)
    return solve_cpu.solve


def gain_of(model: Model) -> np.float32:
    """The model's own xi, or the default one of its couplings."""
    if model.xi:
        return np.float32(model.xi)
    return default_xi(model.n, int(np.square(unpack(model), dtype=np.int64).sum()))


def check_gain(name: str, value: float | None) -> float:
    """A gain or step as a float32 above 0, or 0 for the default; UserError otherwise."""
    if value is None:
        return 0.0
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.float32(value))
    if not (math.isfinite(rounded) and rounded > 0):
        raise UserError(f"{name} is {value}, but it should be a number above 0 that float32 holds")
    return rounded


def check_seed(seed: int) -> int:
    """A seed of 64 bits; UserError otherwise."""
    require_integers(seed=seed)
    if not 0 <= seed < 2**64:
        raise UserError(f"seed is {seed}, but it should be an integer from 0 to 2**64 - 1")
    return seed


def solve_model(
    model: Model,
    h: Any = None,
    *,
    replicas: int = 8,
    steps: int = 100,
    seed: int = 0,
    xi: float | None = None,
    dt: float | None = None,
) -> Answer:
    """What a server answers to the same request: bit for bit, on the CPU of this process.

    h: integers (n,) of 16 bits, or None; xi None is the model's gain, dt None is 1.0.
    """
    n = model.n
    check_request(n, replicas, steps)
    field = np.zeros(0, np.int16) if h is None else check_field(h, n).reshape(n)
    gain = np.float32(check_gain("xi", xi) or gain_of(model))
    step = np.float32(check_gain("dt", dt) or DEFAULT_DT)
    answer, words = np.zeros(2, np.int64), np.zeros(-(-n // 32), np.uint32)
    packed = np.frombuffer(bytearray(model.packed), np.uint8)
    scratch = np.empty(solve_cpu.SCRATCH_BYTES, np.uint8)
    _compiled()(
        int(model.format), n, packed, field, replicas, steps, gain, step, np.uint64(check_seed(seed)),
        scratch, answer, words,
    )  # fmt: skip
    return Answer(int(answer[0]), int(answer[1]), spins_of(words, n))


def solve(
    J: Any,  # noqa: N803
    h: Any = None,
    *,
    replicas: int = 8,
    steps: int = 100,
    seed: int = 0,
    xi: float | None = None,
    dt: float | None = None,
) -> Solution:
    """Minimize E(s) = - 1/2 s'Js - h's over spins ±1, in this process.

    J (n, n), symmetric with zero diagonal, and h (n,): integers of 8 and 16 bits are solved as they are, all
    else is quantized first (see `quantize`). xi None is 0.5 sqrt(n - 1) / ||J||_F, dt None is 1.0.
    """
    with _in_range():
        quantized = quantize(J, h)
    model = pack(quantized.couplings)
    field = quantized.field if h is not None else None
    answer = solve_model(model, field, replicas=replicas, steps=steps, seed=seed, xi=xi, dt=dt)
    s = answer.spins.astype(np.float64)
    energy = -0.5 * s @ np.asarray(J, np.float64) @ s
    if h is not None:
        energy -= np.asarray(h, np.float64) @ s
    return Solution(answer.two_energy, answer.replica, answer.spins, float(energy), quantized)


def solve_qubo(Q: Any, c: Any = None, **parameters: Any) -> QuboSolution:  # noqa: N803
    """Minimize x'Qx + c'x over 0 and 1; the parameters are those of `solve`."""
    couplings, field, _ = ising_of_qubo(Q, c)
    solution = solve(couplings, field, **parameters)
    x = (solution.spins > 0).astype(np.int8)
    value = x @ np.asarray(Q, np.float64) @ x + (0.0 if c is None else np.asarray(c, np.float64) @ x)
    return QuboSolution(x, float(value), solution)


@contextmanager
def _in_range() -> Iterator[None]:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        yield
