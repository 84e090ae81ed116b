"""What the service's benchmarks ask for: models, fields and requests, and the check of sampled replies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from streamdsb.service.limits import max_replicas
from streamdsb.service.messages import RESULT, solve_frames, spins_of
from streamdsb.service.models import Format, Model, pack, unpack
from streamdsb.service.replies import LoadedModel
from streamdsb.service.solve import solve_model

SIZES, REPLICAS, UPDATES = (64, 128, 192, 256, 512), (1, 8, 32), (50, 100, 200, 400)
REFERENCE = (Format.INT8, 128, 8, 100)
FIRST_SEED = 7919

_ENERGIES_CHECKED = 3000
_SOLVES_CHECKED = 100
PATTERNS = 256

Figures = dict[str, Any]


def instance(format: Format, n: int) -> Model:  # noqa: A002
    """Random couplings of a format: dense ±1, 5 % ternary, or dense int8."""
    rng = np.random.default_rng(1000 + n)
    values = {
        Format.PM1: rng.choice([-1, 1], (n, n)),
        Format.TERNARY: rng.choice([-1, 0, 1], (n, n), p=[0.025, 0.95, 0.025]),
        Format.INT8: rng.integers(-127, 128, (n, n)),
    }
    upper = np.triu(values[format].astype(np.int8), 1)
    return pack(upper + upper.T, format)


def fields_for(n: int) -> np.ndarray:
    """A pool of fields, int16 (256, n)."""
    return np.random.default_rng(n).integers(-300, 301, (PATTERNS, n)).astype(np.int16)


def table() -> Iterator[tuple[Format, int, int, int]]:
    """(format, n, B, K) of every configuration that the limits admit."""
    for form in Format:
        for n in SIZES:
            for replicas in REPLICAS:
                if replicas <= max_replicas(n):
                    yield from ((form, n, replicas, updates) for updates in UPDATES)


def requests_for(model: LoadedModel, count: int, replicas: int, updates: int) -> np.ndarray:
    """`count` SOLVE frames, fields from the pool in turn, a seed each."""
    fields = fields_for(model.n)[np.arange(count) % PATTERNS]
    seeds = np.arange(count, dtype=np.uint64) + np.uint64(FIRST_SEED)
    return solve_frames(
        model.slot, model.generation, model.n, fields, seeds, replicas=replicas, updates=updates,
    )  # fmt: skip


def check_replies(
    model: Model, replies: np.ndarray, good: np.ndarray, replicas: int, updates: int
) -> Figures:
    """Energies of sampled replies from their spins, and whole solves of fewer against the CPU."""
    headers = np.ascontiguousarray(replies[:, :64]).view(RESULT)[:, 0]
    words = np.ascontiguousarray(replies[:, 64:]).view("<u4")[:, : -(-model.n // 32)]
    some = good[np.linspace(0, len(good) - 1, min(_ENERGIES_CHECKED, len(good))).astype(int)]
    spins = spins_of(words[some], model.n).astype(np.int64)
    h = fields_for(model.n)[some % PATTERNS].astype(np.int64)
    energies = -np.sum(spins * (spins @ unpack(model).astype(np.int64) + 2 * h), axis=1)
    wrong = int(np.count_nonzero(energies != headers["two_energy"][some]))
    fewer = some[:: max(1, len(some) // _SOLVES_CHECKED)]
    for index in fewer.tolist():
        expected = solve_model(
            model,
            fields_for(model.n)[index % PATTERNS],
            replicas=replicas,
            steps=updates,
            seed=FIRST_SEED + index,
        )
        same = np.array_equal(expected.spins, spins_of(words[index], model.n))
        wrong += not (same and expected.replica == headers["replica"][index])
    return {"energies_checked": len(some), "solves_checked": len(fewer), "mismatches": wrong}
