"""The request service: a solve alone, requests over the network, and on a GPU the rings without a network.

solve    one request in process, the whole table, beside a NumPy loop of the same solve
network  a server in a process of its own: closed loop with 1, 4, 16, 64 outstanding, open loop with Poisson
         arrivals; round trips, what the server says of them, and sampled replies checked; and what packets
         alone allow, by requests that the server refuses at once
check    replies of a server to small requests of every kind, every one against the NumPy oracle
gpu      the same table in the kernel and as a launch, beside the published one, and the rings on the device

Round trips run from just before a datagram is handed to the system to just after its reply came back.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

from streamdsb.machine import describe_machine
from streamdsb.service.solve import solve_model
from validation.bench_service_gpu import measure_gpu
from validation.bench_service_network import measure_check, measure_network
from validation.bench_service_requests import REFERENCE, Figures, instance
from validation.bench_service_solve import measure_solve

PARTS = ("solve", "network", "check", "gpu")


def plot(figures: Figures, output: Path) -> None:
    """Latency against load, closed and open loop."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    runs = figures["network"]["runs"]
    for kind, marker in (("closed", "o"), ("open", "s")):
        chosen = [run for run in runs if (run["outstanding"] is not None) == (kind == "closed")]
        for mark, style in (("p50_us", "-"), ("p99_us", "--"), ("p999_us", ":")):
            axes.plot(
                [run["achieved"] for run in chosen], [run["round_trip"][mark] for run in chosen],
                style + marker, label=f"{kind} loop, {mark.removesuffix('_us').replace('p999', 'p99.9')}",
                color="tab:blue" if kind == "closed" else "tab:orange",
            )  # fmt: skip
    axes.set(xlabel="achieved requests a second", ylabel="round trip, us", yscale="log",
             title="cpu server on loopback, INT8 n 128 B 8 K 100")  # fmt: skip
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(output, dpi=140)
    pyplot.close(figure)


def main(parts: list[str], count: int, output: Path | None, picture: Path | None) -> None:
    """Measure `parts`, print tables, and write JSON and a plot where asked."""
    figures: Figures = {
        "command": " ".join(["streamdsb", *sys.argv[1:]]),
        "machine": describe_machine(),
        "load_average_before": os.getloadavg()[0],
        "versions": {name: version(name) for name in ("streamdsb", "numpy", "numba", "llvmlite")},
    }
    solve_model(instance(*REFERENCE[:2]), None)  # compiles
    if "solve" in parts:
        figures["solve"] = measure_solve()
    if "network" in parts:
        figures["network"] = measure_network(count)
    if "check" in parts:
        figures["check"] = measure_check(100_000)
    if "gpu" in parts:
        figures["gpu"] = measure_gpu(100 * count)
    if output is not None:
        output.write_text(json.dumps(figures, indent=1) + "\n")
        print(f"\nwritten to {output}")
    if picture is not None and "network" in figures:
        plot(figures, picture)
        print(f"plot written to {picture}")
