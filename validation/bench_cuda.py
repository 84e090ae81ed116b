"""Rates on a GPU: accumulation and synthesis alone, the whole run, a table and JSON.

    python -m validation.bench_cuda [--json FILE] [--only accumulate,synthesize,run]

Stages alone are timed by device events around one launch over 4 GB of frames that the synthesis kernel
filled; the whole run by the wall clock around passes, all boundary work (drain, energies, update, checksum,
record, release) included.  GB are 10^9 bytes of payload, padding included.  Numbers are medians of repeats.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xxhash

from generator.synthesize_cuda import SOURCES, GenerateKernel
from receiver.accumulate_cuda import ReceiveKernel, load_kernel, shared_memory, sign_tile_bytes
from receiver.update_cpu import Dynamics
from receiver.update_cuda import CudaState
from streamdsb import cuda
from streamdsb.hashing import key_of
from streamdsb.layout import PAYLOAD_BYTES, Layout, RowRange
from streamdsb.queues.peer import PLACE_BYTES, PeerRing

RING_BYTES = 64 << 20
ACCUMULATE = [
    *((b, path, 256, blocks) for b in (1, 2, 3) for path in ("popc", "mma") for blocks in (2, 4)),
    *((b, "mma", 256, 2) for b in (8, 16, 32, 64)),
    *((b, "mma", 512, 1) for b in (1, 8, 16, 32, 64)),
    (8, "popc", 256, 4),
]
"""Replicas, path, threads a block and blocks a multiprocessor of what is measured."""
SEED = 42


class Loop:
    """Generator and receiver in one process on one device, without a coordinator: a run's inner loop."""

    def __init__(
        self,
        n: int,
        replicas: int,
        updates: int,
        source: str,
        queues: int,
        ring_bytes: int = RING_BYTES,
        path: str | None = None,
    ) -> None:
        self.layout = Layout(n, replicas, queues)
        rows, queue_rows = RowRange(0, n), self.layout.queue_rows
        xi = np.float32(0.5 / np.sqrt(np.float64(n)))
        ring = PeerRing.allocate(queues, ring_bytes)
        self.state = CudaState(self.layout, rows, Dynamics(updates, xi, np.float32(1.1)), SEED, None)
        self.receiver = ReceiveKernel(self.layout, queue_rows, 1, 0, ring, self.state, path)
        self.generator = GenerateKernel(
            self.layout, queue_rows, source, SEED, 1, 0, updates + 1, ring, shared_memory(replicas)
        )

    def __enter__(self) -> Loop:
        self.receiver.start()
        self.generator.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.generator.stop()
        self.receiver.stop()

    def record(self, k: int) -> str:
        """Pass k from its release to its line of records.jsonl."""
        self.generator.release(k + 1)
        self.receiver.wait_drained(k + 1, timeout=10)
        energies = self.receiver.finish_pass(k, k + 1).tolist()
        best = min(energies)
        record = {
            "pass": k,
            "best_two_energy": best,
            "best_replica": energies.index(best),
            "two_energy": energies,
            "checksum": xxhash.xxh64_hexdigest(self.state.host_signs.data),
        }
        return json.dumps(record, separators=(",", ":"))


def event_seconds(launch: Any, repeats: int = 7) -> float:
    """Median seconds of `launch()` by device events, after two that warm up."""
    import cupy

    times = []
    for _ in range(repeats + 2):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        launch()
        stop.record()
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3)
    return statistics.median(times[2:])


class Frames:
    """4 GB of frames of one column block, as the stage benchmarks read and write them."""

    N = 1_000_000

    def __init__(self, bursts: int = 15625) -> None:
        self.bursts = bursts
        self.frames = cuda.empty((bursts, PLACE_BYTES), np.uint8)
        self.payload = bursts * 64 * PAYLOAD_BYTES

    def synthesize(self, source: str, where: str, blocks_per_sm: int) -> float:
        """Seconds to fill all frames: block 30 of rows "above" the diagonal, or block 0 of rows "below"."""
        import cupy

        # Column block 30 begins at row group 15,120; above the diagonal, groups repeat below that.
        groups = np.arange(self.bursts, dtype=np.uint64)
        groups = groups % 15000 if where == "above" else 600 + groups % 15000
        blocks = np.full(self.bursts, 30 if where == "above" else 0, np.uint64)
        kernel = cuda.load("synthesize.cu", "synthesize", {"SOURCE": source})
        key = np.uint64(key_of(SEED, SOURCES[source]))
        n, tiles = np.uint64(self.N), np.uint64(self.bursts)
        arguments = (self.frames, cupy.asarray(groups), cupy.asarray(blocks), tiles, n, key)
        grid = (blocks_per_sm * cuda.multiprocessors(),)
        return event_seconds(lambda: kernel(grid, (256,), arguments))

    def accumulate(self, replicas: int, path: str, workers: int, blocks_per_sm: int) -> float:
        """Seconds to accumulate all frames against `replicas` random sign tiles."""
        import cupy

        rng = np.random.default_rng(1)
        signs = cupy.asarray(rng.integers(0, 1 << 63, (replicas, self.N // 64), np.uint64))
        counts = cuda.zeros((replicas, self.N), np.int32)
        kernel = load_kernel("accumulate.cu", "accumulate", replicas, path, workers)
        arguments = (self.frames, signs, counts, np.uint64(self.N), np.uint64(self.bursts))
        grid = (blocks_per_sm * cuda.multiprocessors(),)
        shared = sign_tile_bytes(replicas)
        return event_seconds(lambda: kernel(grid, (workers,), arguments, shared_mem=shared))


def bench_stages(results: list[dict[str, Any]], only: set[str]) -> None:
    import cupy

    frames = Frames()

    def note(stage: str, seconds: float, **what: object) -> None:
        rate = frames.payload / seconds / 1e9
        results.append(
            {"stage": stage, **what, "seconds": seconds, "gb_per_s": rate, "clock": "device events"}
        )
        print(f"{stage:12} {' '.join(f'{k}={v}' for k, v in what.items()):45} {rate:8.0f} GB/s", flush=True)

    half = frames.frames.size // 2
    copy = event_seconds(
        lambda: cupy.copyto(frames.frames[: 15625 // 2], frames.frames[15625 // 2 : 15625 // 2 * 2])
    )
    print(f"copy ceiling {2 * half / copy / 1e9:.0f} GB/s read and written")
    results.append({"stage": "copy", "gb_per_s": 2 * half / copy / 1e9, "clock": "device events"})
    frames.synthesize("mattis", "above", 2)
    if "synthesize" in only:
        for source in ("random", "mattis"):
            for where in ("above", "below"):
                for per_sm in (1, 2):
                    seconds = frames.synthesize(source, where, per_sm)
                    note("synthesize", seconds, source=source, where=where, blocks_per_sm=per_sm)
    if "accumulate" in only:
        frames.synthesize("random", "above", 2)
        for replicas, path, workers, per_sm in ACCUMULATE:
            seconds = frames.accumulate(replicas, path, workers, per_sm)
            note("accumulate", seconds, B=replicas, path=path, workers=workers, blocks_per_sm=per_sm)


def bench_run(
    results: list[dict[str, Any]],
    n: int,
    replicas: int,
    passes: int,
    queues: int,
    source: str = "random",
    ring: int = RING_BYTES,
) -> list[str]:
    """Time `passes` whole passes of one run after one that warms up; returns its records."""
    with Loop(n, replicas, passes, source, queues, ring) as loop:
        records, times = [loop.record(0)], []
        for k in range(1, passes + 1):
            start = time.perf_counter()
            records.append(loop.record(k))
            times.append(time.perf_counter() - start)
    cycles = sum(times) * 1e3 * cuda.clock_khz() * cuda.multiprocessors()
    starved, blocked = loop.receiver.starved_cycles / cycles, loop.generator.blocked_cycles / cycles
    seconds, payload = statistics.median(times), Layout(n, replicas, queues).payload_per_pass
    what = {"source": source, "n": n, "B": replicas, "queues": queues, "ring_mib": ring >> 20}
    rate = payload / seconds / 1e9
    results.append(
        {"stage": "run", **what, "passes": passes, "seconds": seconds, "gb_per_s": rate, "clock": "wall"}
    )
    print(
        f"run          {' '.join(f'{k}={v}' for k, v in what.items()):55} {1e3 * seconds:9.3f} ms a pass"
        f" (least {1e3 * min(times):.3f}, most {1e3 * max(times):.3f}) {rate:7.0f} GB/s;"
        f" workers starved {starved:.0%}, generator blocked {blocked:.0%}",
        flush=True,
    )
    return records


def main() -> None:
    """Run the benchmark on the current device."""
    parser = argparse.ArgumentParser(prog="python -m validation.bench_cuda", description=main.__doc__)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument(
        "--only", default="accumulate,synthesize,run", help="parts to run (default: %(default)s)"
    )
    given = parser.parse_args()
    only: set[str] = set(given.only.split(","))
    results: list[dict[str, Any]] = []
    cuda.use_device(0)
    if only & {"accumulate", "synthesize"}:
        bench_stages(results, only)
    if "run" in only:
        for queues, ring in ((1, 64), (4, 64), (8, 64), (8, 48), (8, 32)):
            bench_run(results, 1_000_000, 8, 5, queues, ring=ring << 20)
        for replicas in (1, 32):
            bench_run(results, 1_000_000, replicas, 3, 8)
        for n, passes in ((10_000, 200), (100_000, 50)):
            bench_run(results, n, 8, passes, 4)
            bench_run(results, n, 8, passes, 8)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
