"""How long receivers take to exchange their signs: run by each rank of an mpiexec."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import numpy as np

from receiver.exchange import SignExchange
from streamdsb.communicator import Communicator, be_rank, started_by_mpi
from streamdsb.errors import RunFailed, UserError
from streamdsb.layout import GROUP_ROWS, Layout, RowRange, ceil_div
from streamdsb.machine import describe_machine

_EXCHANGES = 50


def main(n: int, replicas: int, output: Path | None) -> None:
    """Measure, print and write JSON on rank 0; raises UserError if this process is not a rank."""
    if not started_by_mpi():
        raise UserError("bench exchange measures between ranks: mpiexec -n 2 streamdsb bench exchange")
    be_rank(lambda ranks, _: _report(measure(ranks, n, replicas), output))


def _report(figures: dict[str, float] | None, output: Path | None) -> None:
    if figures is None:
        return
    print(
        f"{figures['bytes'] / 1e6:.1f} MB of signs between {figures['ranks']} ranks: median"
        f" {figures['median_ms']:.2f} ms, best {figures['best_ms']:.2f} ms, worst {figures['worst_ms']:.2f}"
    )
    if output is not None:
        output.write_text(json.dumps(figures | {"machine": describe_machine()}, indent=2) + "\n")


def measure(ranks: Communicator, n: int, replicas: int) -> dict[str, float] | None:
    """On rank 0: times of whole exchanges, copies included, each as long as at the slowest rank."""
    if ceil_div(n, GROUP_ROWS) < ranks.size:
        raise UserError(f"--n {n}: {ranks.size} ranks need {GROUP_ROWS * (ranks.size - 1) + 1} rows at least")
    rows = RowRange(0, n).split(ranks.size)
    signs = np.zeros((replicas, Layout(n, replicas, 1).bitmap_words), np.uint64)
    own = slice(rows[ranks.rank].start // GROUP_ROWS, ceil_div(rows[ranks.rank].stop, GROUP_ROWS))
    exchange = SignExchange(ranks, rows, replicas)
    seconds = []
    for turn in range(_EXCHANGES + 1):
        signs[:, own] = turn + 1
        ranks.barrier()
        start = time.perf_counter()
        exchange.exchange(signs)
        seconds.append(max(ranks.gather(time.perf_counter() - start)))
        if not (signs == turn + 1).all():
            raise RunFailed(f"exchange {turn} left other signs at rank {ranks.rank}")
    if ranks.rank:
        return None
    times = [1e3 * s for s in seconds[1:]]  # the first one connects
    return {
        "n": n,
        "replicas": replicas,
        "ranks": ranks.size,
        "bytes": signs.nbytes,
        "exchanges": len(times),
        "median_ms": round(statistics.median(times), 3),
        "best_ms": round(min(times), 3),
        "worst_ms": round(max(times), 3),
    }
