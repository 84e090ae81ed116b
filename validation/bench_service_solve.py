"""One request in process on one core: the whole table, and a NumPy loop of the same solve."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from streamdsb.service.models import Model, unpack
from streamdsb.service.solve import gain_of
from validation.bench_service_requests import REFERENCE, UPDATES, Figures, fields_for, instance, table


def numpy_loop(couplings: np.ndarray, h: np.ndarray, replicas: int, updates: int, xi: np.float32) -> int:
    """The same solve as a loop of float32 array operations, as a NumPy user would write it; returns 2E."""
    matrix, field = couplings.astype(np.float32), h.astype(np.float32)
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-0.1, 0.1, (2, replicas, len(couplings))).astype(np.float32)
    for k in range(updates):
        sums = np.where(x > 0, np.float32(1), np.float32(-1)) @ matrix
        y += xi * (sums + field) - np.float32(1 - k / max(updates - 1, 1)) * x
        x += y
        outside = np.abs(x) > 1
        x[outside] = np.sign(x[outside])
        y[outside] = 0
    s = np.where(x > 0, 1, -1)
    return int(-np.sum(s * (s @ couplings.astype(np.int64) + 2 * h), axis=1).min())


def _fastest(work: Any, seconds: float = 0.3) -> tuple[float, float]:
    """(median, fastest) time of one call, s."""
    work()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 5:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times), min(times)


def measure_solve() -> Figures:
    """Every configuration on one core, and the reference beside NumPy."""
    rows = []
    print(
        "\n  one solve on one core, us (median)\n  format     n   B "
        + "".join(f"  K={k:<7}" for k in UPDATES)
    )
    for form, n, replicas, updates in table():
        model, h = instance(form, n), fields_for(n)[0]
        median, fastest = _fastest(_solver(model, h, replicas, updates), 0.05)
        rows.append({"format": form.name, "n": n, "B": replicas, "K": updates, "median_us": 1e6 * median,
                     "fastest_us": 1e6 * fastest})  # fmt: skip
        if updates == UPDATES[-1]:
            last = rows[-len(UPDATES) :]
            times = "".join(f"{row['median_us']:10.1f}" for row in last)
            print(f"  {form.name:7} {n:4} {replicas:3} {times}", flush=True)
    form, n, replicas, updates = REFERENCE
    model, h = instance(form, n), fields_for(n)[0]
    ours = _fastest(_solver(model, h, replicas, updates), 1.0)
    couplings, xi = unpack(model), gain_of(model)
    theirs = _fastest(lambda: numpy_loop(couplings, h, replicas, updates, xi), 1.0)
    print(f"\n  INT8 n 128 B 8 K 100: {1e6 * ours[0]:.0f} us, NumPy loop {1e6 * theirs[0]:.0f} us:"
          f" {theirs[0] / ours[0]:.1f} times")  # fmt: skip
    return {
        "table": rows,
        "reference_s": {"median": ours[0], "fastest": ours[1]},
        "numpy_loop_s": {"median": theirs[0], "fastest": theirs[1]},
    }


def _solver(model: Model, h: np.ndarray, replicas: int, updates: int) -> Any:
    """A call that does nothing but solve: what a worker thread does."""
    from streamdsb.service import solve_cpu

    answer, spins = np.zeros(2, np.int64), np.zeros(128, np.uint32)
    packed, scratch = (
        np.frombuffer(bytearray(model.packed), np.uint8),
        np.zeros(solve_cpu.SCRATCH_BYTES, np.uint8),
    )
    xi, dt, seed = gain_of(model), np.float32(1), np.uint64(7)
    form = int(model.format)
    return lambda: solve_cpu.solve(
        form, model.n, packed, h, replicas, updates, xi, dt, seed, scratch, answer, spins
    )
