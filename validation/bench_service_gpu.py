"""The service's parts on a GPU without a network."""

from __future__ import annotations

import statistics

import numpy as np

from streamdsb.service.messages import RESULT, solve_frames
from streamdsb.service.solve import solve_model
from validation import published_solves
from validation.bench_service_requests import PATTERNS, REFERENCE, Figures, fields_for, instance, table


def measure_gpu(count: int) -> Figures:
    """In-kernel time and launch of every configuration, every answer checked, and the rings on the device."""
    from streamdsb.service.gpu import GpuSolver, items_of

    rows: list[Figures] = []
    print("\n  in the kernel, us (median), and published (another GPU)")
    for form, n, replicas, updates in table():
        model, h = instance(form, n), fields_for(n)[:1]
        solver = GpuSolver([model])
        frames = solve_frames(0, 1, n, h, np.array([7], np.uint64), replicas=replicas, updates=updates)
        items = items_of(frames, 0, model)
        expected = solve_model(model, h[0], replicas=replicas, steps=updates, seed=7)
        replies = [solver.solve(items)[0, :64].view(RESULT)[0] for _ in range(21)]
        wrong = sum(int(reply["two_energy"]) != expected.two_energy for reply in replies)
        median = statistics.median(int(reply["solve_ns"]) for reply in replies) / 1000
        known = published_solves.microseconds(form, n, replicas, updates)
        rows.append({"format": form.name, "n": n, "B": replicas, "K": updates, "median_us": median,
                     "published_us": known, "wrong": wrong})  # fmt: skip
        print(f"  {form.name:7} {n:4} {replicas:3} {updates:4} {median:9.1f} {known or '':>9}", flush=True)
    form, n, replicas, updates = REFERENCE
    model = instance(form, n)
    fields = fields_for(n)
    frames = solve_frames(0, 1, n, fields, np.zeros(PATTERNS, np.uint64), replicas=replicas, updates=updates)
    saturated = GpuSolver([model]).saturate(items_of(frames, 0, model), count // 8 * 8)
    print(f"\n  rings on the device, INT8 n 128 B 8 K 100: {saturated.rate / 1e6:.2f} M requests/s")
    return {"table": rows, "rings": saturated.rate}
