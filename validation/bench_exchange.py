"""How long receivers take to exchange their signs: run by each rank of an mpiexec."""

from __future__ import annotations

import json
import socket
import statistics
import time
from pathlib import Path

import numpy as np

from receiver.exchange import SignExchange
from streamdsb import cuda
from streamdsb.communicator import Communicator, be_rank, started_by_mpi
from streamdsb.errors import RunFailed, UserError
from streamdsb.layout import GROUP_ROWS, Layout, RowRange, ceil_div
from streamdsb.machine import describe_machine

_EXCHANGES = 50


def main(n: int, replicas: int, output: Path | None, on_gpu: bool = False) -> None:
    """Measure, print and write JSON on rank 0; raises UserError if this process is not a rank.

    on_gpu: between GPUs, which the ranks of a host take in turn.
    """
    if not started_by_mpi():
        raise UserError("bench exchange measures between ranks: mpiexec -n 2 streamdsb bench exchange")
    be_rank(lambda ranks, _: _report(measure(ranks, n, replicas, on_gpu), output))


def _report(figures: dict[str, float] | None, output: Path | None) -> None:
    if figures is None:
        return
    print(
        f"{figures['bytes'] / 1e6:.1f} MB of signs between {figures['ranks']} ranks: median"
        f" {figures['median_ms']:.2f} ms, best {figures['best_ms']:.2f} ms, worst {figures['worst_ms']:.2f}"
    )
    if output is not None:
        output.write_text(json.dumps(figures | {"machine": describe_machine()}, indent=2) + "\n")


def measure(ranks: Communicator, n: int, replicas: int, on_gpu: bool = False) -> dict[str, float] | None:
    """On rank 0: times of whole exchanges, copies included, each as long as at the slowest rank.

    on_gpu: from pinned host memory, where an update on a GPU leaves its signs, to the memory of each GPU.
    """
    if ceil_div(n, GROUP_ROWS) < ranks.size:
        raise UserError(f"--n {n}: {ranks.size} ranks need {GROUP_ROWS * (ranks.size - 1) + 1} rows at least")
    rows = RowRange(0, n).split(ranks.size)
    shape = replicas, Layout(n, replicas, 1).bitmap_words
    copy = _GpuCopy(ranks, shape) if on_gpu else None
    signs = np.zeros(shape, np.uint64) if copy is None else copy.signs
    own = slice(rows[ranks.rank].start // GROUP_ROWS, ceil_div(rows[ranks.rank].stop, GROUP_ROWS))
    exchange = SignExchange(ranks, rows, replicas)
    seconds = []
    for turn in range(_EXCHANGES + 1):
        signs[:, own] = turn + 1
        ranks.barrier()
        start = time.perf_counter()
        exchange.exchange(signs)
        if copy is not None:
            copy.take()
        seconds.append(max(ranks.gather(time.perf_counter() - start)))
        if not ((signs if copy is None else copy.taken) == turn + 1).all():
            raise RunFailed(f"exchange {turn} left other signs at rank {ranks.rank}")
    if ranks.rank:
        return None
    times = [1e3 * s for s in seconds[1:]]  # the first one connects
    return {
        "n": n,
        "replicas": replicas,
        "ranks": ranks.size,
        "gpus": on_gpu,
        "bytes": signs.nbytes,
        "exchanges": len(times),
        "median_ms": round(statistics.median(times), 3),
        "best_ms": round(min(times), 3),
        "worst_ms": round(max(times), 3),
    }


class _GpuCopy:
    """Signs in pinned host memory, uint64 of `shape`, and their copy on this rank's GPU."""

    def __init__(self, ranks: Communicator, shape: tuple[int, int]) -> None:
        hosts = ranks.gather(socket.gethostname())
        cuda.use_device(hosts[: ranks.rank].count(hosts[ranks.rank]) % cuda.device_count())
        import cupy
        import cupyx

        self.signs: np.ndarray = cupyx.zeros_pinned(shape, np.uint64)
        self._on_device = cuda.zeros(shape, np.uint64)
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def take(self) -> None:
        self._on_device.set(self.signs, stream=self._stream)
        self._stream.synchronize()

    @property
    def taken(self) -> np.ndarray:
        """What is on the GPU."""
        values: np.ndarray = self._on_device.get()
        return values
