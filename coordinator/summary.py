"""summary.json: everything about a run that is not a record, and its last words to the user."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np

import streamdsb
from coordinator.outcome import Outcome, input_hash, planted_two_energy
from coordinator.plan import bytes_text, duration_text
from streamdsb.config import Config
from streamdsb.machine import describe_machine
from streamdsb.run_directory import RECORDS

_LIBRARIES = ("numpy", "numba", "llvmlite", "pydantic", "xxhash")


def make_summary(
    config: Config,
    outcome: Outcome,
    field_values: np.ndarray | None,
    peak_memory: dict[str, int],
    started: datetime,
    cause: str | None,
) -> dict[str, Any]:
    """The summary of a run that has ended, by itself or (with `cause`) not."""
    layout = config.layout
    passes = len(outcome.energies)
    return {
        "status": "completed" if cause is None else "failed",
        "cause": cause,
        "problem": config.problem.model_dump()
        | {"input_hash": input_hash(config, outcome.couplings_hash, field_values)},
        "solver": config.solver.model_dump() | {"xi": float(config.xi)},
        "stream": config.stream.model_dump(),
        "volumes": {
            "passes": passes,
            "payload_per_pass": layout.payload_per_pass,
            "payload_total": layout.payload_per_pass * passes,
            "frames_per_pass": layout.frames_per_pass,
        },
        "energy": _energy(config, outcome),
        "rates": _rates(config, outcome),
        "peak_memory": peak_memory,
        "checkpoints": {
            "count": len(outcome.checkpoint_s),
            "bytes_each": max(outcome.checkpoint_bytes, default=0),
            "seconds_each": round(float(np.mean(outcome.checkpoint_s)), 6) if outcome.checkpoint_s else 0.0,
            "waited_s": round(outcome.checkpoint_wait_s, 6),
        },
        "versions": {"streamdsb": streamdsb.__version__, "python": platform.python_version()}
        | {name: version(name) for name in _LIBRARIES},
        "machine": describe_machine(),
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _energy(config: Config, outcome: Outcome) -> dict[str, Any] | None:
    if not outcome.energies:
        return None
    planted = planted_two_energy(config)
    best = outcome.best_two_energy
    return {
        "best_two_energy": best,
        "best_pass": next(k for k, row in enumerate(outcome.energies) if best in row),
        "final_two_energy": outcome.energies[-1],
        "planted_two_energy": planted,
        "planted_reached": None if planted is None else best == planted,
    }


def _rates(config: Config, outcome: Outcome) -> dict[str, Any] | None:
    if not outcome.total_s:
        return None
    payload = config.layout.payload_per_pass
    total = sum(outcome.total_s)
    return {
        "seconds": round(total, 6),
        "seconds_per_pass_median": round(float(np.median(outcome.total_s)), 6),
        "payload_bytes_per_second": round(payload * len(outcome.total_s) / total),
        "receive_gbps_median": round(payload * 8e-9 / float(np.median(outcome.receive_s)), 3),
    }


def last_words(config: Config, outcome: Outcome, directory: str) -> list[str]:
    """A completed run in a few sentences."""
    seconds, passes = sum(outcome.total_s), len(outcome.total_s)
    payload = config.layout.payload_per_pass * passes
    lines = [
        f"{passes:,} passes and {bytes_text(payload)} of payload in {duration_text(seconds)},"
        f" {bytes_text(payload / seconds)}/s"
    ]
    if outcome.checkpoint_s:
        lines.append(
            f"{len(outcome.checkpoint_s):,} checkpoints of {bytes_text(outcome.checkpoint_bytes[-1])}, each"
            f" {duration_text(float(np.mean(outcome.checkpoint_s)))} beside a pass; updates waited"
            f" {duration_text(outcome.checkpoint_wait_s)} for them in all"
        )
    best, planted = outcome.best_two_energy, planted_two_energy(config)
    if planted is None:
        lines.append(f"lowest energy: 2E = {best:,}")
    elif best == planted:
        reached = sum(energy == planted for energy in outcome.energies[-1])
        first = next(k for k, row in enumerate(outcome.energies) if planted in row)
        lines.append(
            f"the planted ground state was reached: 2E = {best:,} = -n (n - 1), in pass {first} first,"
            f" by {reached} of {config.solver.replicas} replicas in the end"
        )
    else:
        lines.append(f"the planted ground state was NOT reached: lowest 2E = {best:,}, planted {planted:,}")
    lines.append(f"records: {directory}/{RECORDS}")
    return lines
