"""What is known of a run so far, and what identifies it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from streamdsb.config import Config
from streamdsb.errors import UserError


@dataclass
class Outcome:
    """What is known of a run so far."""

    energies: list[list[int]] = field(default_factory=list)
    """2E of each replica, a row a pass."""
    best_two_energy: int = 2**62
    """The lowest of all `energies`."""
    receive_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    couplings_hash: str | None = None
    checkpoint_bytes: list[int] = field(default_factory=list)
    checkpoint_s: list[float] = field(default_factory=list)
    """Seconds that each checkpoint took beside the pass."""
    checkpoint_wait_s: float = 0.0
    """Seconds that updates waited for checkpoints, all together."""

    def recall(self, records: list[dict[str, Any]], timings: list[dict[str, Any]]) -> None:
        """The passes that an earlier part of the run recorded."""
        for record, timing in zip(records, timings, strict=True):
            self.add(record["two_energy"], timing["receive_s"], timing["total_s"])

    def add(self, two_energy: list[int], receive_s: float, total_s: float) -> None:
        """One more pass counts."""
        self.energies.append(two_energy)
        self.receive_s.append(receive_s)
        self.total_s.append(total_s)
        self.best_two_energy = min(self.best_two_energy, *two_energy)


def input_hash(config: Config, couplings_hash: str | None, field_values: np.ndarray | None) -> str:
    """XXH64 of what the solver is given: source and seed or the hash of the couplings, n, and the field."""
    problem = config.problem
    identity: dict[str, Any] = {"n": problem.n}
    if couplings_hash is None:
        identity |= {"source": problem.source, "seed": problem.seed}
    else:
        identity |= {"couplings": couplings_hash}
    if field_values is not None:
        identity["field"] = xxhash.xxh64_hexdigest(field_values.tobytes())
    return xxhash.xxh64_hexdigest(json.dumps(identity, sort_keys=True).encode())


def require_same_input(expected: str | None, found: str) -> None:
    """Refuse to continue a run of other couplings; expected: the hash in the checkpoint, if there is one."""
    if expected not in (None, found):
        raise UserError(
            f"the couplings or the field are not those the run began with: they hash to {found}, the"
            f" checkpoint belongs to {expected}"
        )


def planted_two_energy(config: Config) -> int | None:
    """The known lowest 2E of the instance, or None: -n (n - 1) for Mattis couplings without a field."""
    if config.problem.source == "mattis" and config.problem.field is None:
        return -config.n * (config.n - 1)
    return None
