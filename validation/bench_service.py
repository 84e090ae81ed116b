"""The request service: a solve alone, requests over the network, and on a GPU the parts without a network.

solve    one request in process, the whole table, beside a NumPy loop of the same solve
network  servers in processes of their own: closed loop with 1, 4, 16, 64 outstanding, open loop with Poisson
         arrivals; round trips, what the server says of them, and sampled replies checked; and what packets
         alone allow, by requests that the server refuses at once
check    replies of servers to small requests of every kind, every one against the NumPy oracle
gpu      the same table in the kernel, beside the published one; launch and copies; the rings, filled on the
         device and by a thread of the CPU

Round trips run from just before a datagram is handed to the system to just after its reply came back.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import streamdsb
from streamdsb.machine import describe_machine
from streamdsb.service.solve import solve_model
from validation.bench_service_gpu import measure_gpu
from validation.bench_service_network import measure_check, measure_network
from validation.bench_service_requests import REFERENCE, Figures, instance
from validation.bench_service_solve import measure_solve

PARTS = ("solve", "network", "check", "gpu")


_COLORS = {"cpu": "tab:blue", "launch": "tab:orange", "proxy": "tab:green"}
_STYLES = {"p50_us": "-", "p99_us": "--", "p999_us": ":"}


def plot(networks: Figures, output: Path) -> None:
    """Latency of each server against what a closed loop achieves (left) and an open one offers (right).

    Open loops from several clients are drawn paler than those from one.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for axes, kind in zip(both, ("closed", "open"), strict=True):
        for server, network in networks.items():
            runs = [run for run in network["runs"] if (run["outstanding"] is None) == (kind == "open")]
            runs.sort(key=lambda run: run["outstanding"] or run["offered"])
            for several in (False, True):
                chosen = [run for run in runs if several == (kind == "open" and run["clients"] > 1)]
                for mark, style in _STYLES.items() if chosen else ():
                    axes.plot(
                        [run["offered"] or run["achieved"] for run in chosen],
                        [run["round_trip"][mark] for run in chosen],
                        f"{style}o", markersize=3, color=_COLORS[server],
                        alpha=0.3 if several else 1.0,
                        label=f"{server}, {mark.removesuffix('_us').replace('p999', 'p99.9')}"
                        + (", several clients" if several else ""),
                    )  # fmt: skip
        word = {"closed": "achieved", "open": "offered"}[kind]
        axes.set(xlabel=f"requests a second, {word}", xscale="log", yscale="log", title=f"{kind} loop")
        axes.grid(alpha=0.3, which="both")
    both[0].set_ylabel("round trip, us")
    both[1].legend(fontsize=8)
    figure.suptitle("on loopback, INT8 n 128 B 8 K 100")
    figure.tight_layout()
    figure.savefig(output, dpi=140)
    pyplot.close(figure)


def main(
    parts: list[str], servers: list[str], rates: list[float], count: int, quick: bool, output: Path | None,
    picture: Path | None,
) -> None:  # fmt: skip
    """Measure `parts`, print tables, and write JSON and a plot where asked."""
    figures: Figures = {
        "command": " ".join(["streamdsb", *sys.argv[1:]]),
        "machine": describe_machine(),
        "load_average_before": os.getloadavg()[0],
        "versions": {"streamdsb": streamdsb.__version__}
        | {name: version(name) for name in ("numpy", "numba", "llvmlite")},
    }

    def keep() -> None:
        if output is not None:
            output.write_text(json.dumps(figures, indent=1) + "\n")

    solve_model(instance(*REFERENCE[:2]), None)  # compiles
    if "solve" in parts:
        figures["solve"] = measure_solve()
        keep()
    if "gpu" in parts:
        figures["gpu"] = measure_gpu(100 * count, quick)
        keep()
    for server in servers:
        if "network" in parts:
            figures.setdefault("network", {})[server] = measure_network(server, count, rates)
            keep()
        if "check" in parts:
            checked = 10_000 if quick else 100_000
            figures.setdefault("check", {})[server] = measure_check(server, checked)
            keep()
    if output is not None:
        print(f"\nwritten to {output}")
    if picture is not None and "network" in figures:
        plot(figures["network"], picture)
        print(f"plot written to {picture}")
