"""The field h of a problem, from a user's file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from streamdsb.errors import UserError
from streamdsb.npy_file import load_npy


def load_field(path: Path, n: int | None = None) -> np.ndarray:
    """The field h of a .npy of integers, as int32 (n,); raises UserError if it is anything else.

    n is None as long as it is not known.
    """
    where = f"problem.field {path}"
    values = load_npy(path, "problem.field")
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise UserError(f"{where}: {values.dtype} {values.shape}, but one dimension of n integers is needed")
    if n is not None and values.shape != (n,):
        raise UserError(f"{where} has shape {values.shape}, but n is {n}: ({n},) is needed")
    limits = np.iinfo(np.int32)
    outside = np.flatnonzero((values < limits.min) | (values > limits.max))
    if outside.size:
        i = int(outside[0])
        raise UserError(f"{where}: h[{i}] is {values[i]}, but it should be from {limits.min} to {limits.max}")
    return values.astype(np.int32)
