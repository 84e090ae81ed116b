"""Float Ising and QUBO models as the integers that a service solves, and what that costs.

An Ising model is E(s) = - 1/2 sum_ij J_ij s_i s_j - sum_i h_i s_i over spins ±1, a QUBO f(x) = x'Qx + c'x
over 0 and 1. With x = (1 + s) / 2 and symmetric Q, f(x) = E(s) + offset for

    J_ij = - Q_ij / 2 (i != j),   h_i = - (sum_j Q_ij + c_i) / 2,
    offset = (sum_ij Q_ij + sum_i Q_ii) / 4 + sum_i c_i / 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamdsb.errors import UserError
from streamdsb.service.limits import FIELD_MAX, FIELD_MIN

COUPLING_MAX = 127


@dataclass(frozen=True)
class Quantized:
    """Integer couplings int8 (n, n) and field int16 (n,) or (m, n), near scale * J and scale * h.

    The errors are the largest |J - couplings / scale| and |h - field / scale|, in the units of J and h.
    """

    couplings: np.ndarray
    field: np.ndarray
    scale: float
    coupling_error: float
    field_error: float


def _floats(values: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if np.asarray(values).dtype == bool:
        raise UserError(f"{name} holds bool, but it should hold numbers; 2.0 * {name} - 1 has ±1")
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise UserError(f"{name} should hold numbers, found {type(values).__name__}") from None
    if array.shape != shape:
        raise UserError(f"{name} has the shape {array.shape}, but it should be {shape}")
    if not np.isfinite(array).all():
        raise UserError(f"{name} holds a value that is not finite")
    return array


def _square(values: Any, name: str) -> np.ndarray:
    shape = np.shape(values)
    if len(shape) != 2 or shape[0] != shape[1] or not shape[0]:
        raise UserError(f"{name} has the shape {shape}, but it should be a square matrix")
    return _floats(values, name, (shape[0], shape[0]))


def _is_integral(values: np.ndarray, low: int, high: int) -> bool:
    return bool(np.all(values == np.rint(values)) and np.all((values >= low) & (values <= high)))


def quantize(J: Any, h: Any = None) -> Quantized:  # noqa: N803
    """Round J (n, n), symmetric with zero diagonal, to int8 and h to int16 with a common scale.

    h is one field (n,), several (m, n), or None, which stands for zeros.

    The scale is the largest that fits both; integers that fit already are kept, with scale 1.
    """
    couplings = _square(J, "J")
    n = len(couplings)
    field = np.zeros(n) if h is None else _floats(h, "h", (*np.shape(h)[:-1][:1], n))
    if np.diagonal(couplings).any():
        raise UserError("J should have a zero diagonal; s_i s_i is 1, so the diagonal only shifts the energy")
    if not np.allclose(couplings, couplings.T, rtol=1e-9, atol=0):
        raise UserError("J should be symmetric; (J + J.T) / 2 has the same energies")
    couplings = (couplings + couplings.T) / 2
    if _is_integral(couplings, -128, COUPLING_MAX) and _is_integral(field, FIELD_MIN, FIELD_MAX):
        return Quantized(couplings.astype(np.int8), field.astype(np.int16), 1.0, 0.0, 0.0)
    bounds = [COUPLING_MAX / np.abs(couplings).max(initial=0)] if couplings.any() else []
    bounds += [FIELD_MAX / np.abs(field).max(initial=0)] if field.any() else []
    scale = float(min(bounds))
    if not (np.isfinite(scale) and scale > 0):
        raise UserError("J and h are too large or too small to be scaled to integers")
    rounded_couplings, rounded_field = np.rint(couplings * scale), np.rint(field * scale)
    return Quantized(
        rounded_couplings.astype(np.int8),
        rounded_field.astype(np.int16),
        scale,
        float(np.abs(couplings - rounded_couplings / scale).max()),
        float(np.abs(field - rounded_field / scale).max(initial=0)),
    )


def ising_of_qubo(Q: Any, c: Any = None) -> tuple[np.ndarray, np.ndarray, float]:  # noqa: N803
    """(J, h, offset) of the QUBO x'Qx + c'x; Q (n, n) need not be symmetric."""
    quadratic = _square(Q, "Q")
    linear = np.zeros(len(quadratic)) if c is None else _floats(c, "c", (len(quadratic),))
    quadratic = (quadratic + quadratic.T) / 2
    offset = float((quadratic.sum() + np.trace(quadratic)) / 4 + linear.sum() / 2)
    field = -(quadratic.sum(axis=1) + linear) / 2
    couplings = -quadratic / 2
    np.fill_diagonal(couplings, 0)
    return couplings, field, offset
