"""Rates on a GPU: accumulation and synthesis alone, the whole run, a table and JSON.

    streamdsb bench cuda [--json FILE] [--only accumulate,synthesize,run,host,peer]

Stages alone are timed by device events around one launch over 4 GB of frames that the synthesis kernel
filled; the whole run by the wall clock around passes, all boundary work (drain, energies, update, checksum,
record, release) included.  GB are 10^9 bytes of payload, padding included.  Numbers are medians of repeats.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from generator.send import QueueFeeder, send_pass
from generator.synthesize_cuda import SOURCES, GenerateKernel
from receiver.accumulate_cuda import ReceiveKernel, load_kernel, shared_memory, sign_tile_bytes
from receiver.feed_cuda import HostFeed
from receiver.update_cpu import Dynamics, checksum
from receiver.update_cuda import CudaState
from streamdsb import cuda
from streamdsb.frame import CouplingFormat
from streamdsb.hashing import key_of
from streamdsb.layout import FRAME_BYTES, PAYLOAD_BYTES, Layout, RowRange
from streamdsb.queues.peer import PLACE_BYTES, PeerRing
from streamdsb.queues.shm import ShmLink, ShmReceiver, ShmSender
from streamdsb.run_directory import record_line

RING_BYTES = 64 << 20
PARTS = ("accumulate", "synthesize", "run", "host", "peer")
ACCUMULATE = [
    *((b, path, 256, blocks) for b in (1, 2, 3) for path in ("popc", "mma") for blocks in (2, 4)),
    *((b, "mma", 256, 2) for b in (8, 16, 32, 64)),
    *((b, "mma", 512, 1) for b in (1, 8, 16, 32, 64)),
    (8, "popc", 256, 4),
]
"""Replicas, path, threads a block and blocks a multiprocessor of what is measured."""
SEED = 42


class Loop:
    """Generator and receiver in one process, without a coordinator: a run's inner loop.

    The receiver is on device 0, the generator on `generator_device`.
    """

    def __init__(
        self,
        n: int,
        replicas: int,
        updates: int,
        source: str,
        queues: int,
        ring_bytes: int = RING_BYTES,
        path: str | None = None,
        generator_device: int = 0,
        solver_seed: int = SEED,
    ) -> None:
        self.layout = Layout(n, replicas, queues)
        self._generator_device = generator_device
        rows, queue_rows = RowRange(0, n), self.layout.queue_rows
        xi = np.float32(0.5 / np.sqrt(np.float64(n)))
        cuda.use_device(0)
        self.ring = PeerRing.allocate(queues, ring_bytes)
        self.state = CudaState(self.layout, rows, Dynamics(updates, xi, np.float32(1.1)), solver_seed, None)
        self.receiver = ReceiveKernel(self.layout, queue_rows, 1, 0, self.ring, self.state, path)
        beside = None if generator_device else shared_memory(replicas)
        with self._on_generator_device():
            self.generator = GenerateKernel(
                self.layout, queue_rows, source, SEED, 1, 0, updates + 1, self.ring, beside
            )

    def _on_generator_device(self) -> Any:
        import cupy

        if self._generator_device:
            with (
                cupy.cuda.Device(self._generator_device),
                contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError),
            ):
                cupy.cuda.runtime.deviceEnablePeerAccess(0)
        return cupy.cuda.Device(self._generator_device)

    def __enter__(self) -> Loop:
        self.receiver.start()
        with self._on_generator_device():
            self.generator.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._on_generator_device():
            self.generator.stop()
        self.receiver.stop()

    def record(self, k: int) -> str:
        """Pass k from its release to its line of records.jsonl."""
        self.generator.release(k + 1)
        self.receiver.wait_drained(k + 1, timeout=10)
        energies = [int(e) for e in self.receiver.finish_pass(k, k + 1, self.state.host_signs)]
        return record_line(k, energies, checksum(self.state.host_signs))


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
        return cuda.event_seconds(lambda: kernel(grid, (256,), arguments), 7)

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
        return cuda.event_seconds(lambda: kernel(grid, (workers,), arguments, shared_mem=shared), 7)


def bench_stages(say: Callable[[str], None], results: list[dict[str, Any]], only: set[str]) -> None:
    import cupy

    frames = Frames()

    def note(stage: str, seconds: float, **what: object) -> None:
        rate = frames.payload / seconds / 1e9
        results.append(
            {"stage": stage, **what, "seconds": seconds, "gb_per_s": rate, "clock": "device events"}
        )
        say(f"{stage:12} {' '.join(f'{k}={v}' for k, v in what.items()):45} {rate:8.0f} GB/s")

    half = frames.frames.size // 2
    copy = cuda.event_seconds(
        lambda: cupy.copyto(frames.frames[: 15625 // 2], frames.frames[15625 // 2 : 15625 // 2 * 2]), 7
    )
    say(f"copy ceiling {2 * half / copy / 1e9:.0f} GB/s read and written")
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
    say: Callable[[str], None],
    results: list[dict[str, Any]],
    n: int,
    replicas: int,
    passes: int,
    queues: int,
    ring: int = RING_BYTES,
    generator_device: int = 0,
) -> None:
    """Time `passes` whole passes of random couplings, after one that warms up."""
    with Loop(n, replicas, passes, "random", queues, ring, generator_device=generator_device) as loop:
        loop.record(0)
        times = []
        for k in range(1, passes + 1):
            start = time.perf_counter()
            loop.record(k)
            times.append(time.perf_counter() - start)
    cycles = sum(times) * 1e3 * cuda.clock_khz() * cuda.multiprocessors()
    starved, blocked = loop.receiver.starved_cycles / cycles, loop.generator.blocked_cycles / cycles
    seconds, payload = statistics.median(times), Layout(n, replicas, queues).payload_per_pass
    what = {"gpus": 1 + generator_device, "n": n, "B": replicas, "queues": queues, "ring_mib": ring >> 20}
    rate = payload / seconds / 1e9
    results.append(
        {"stage": "run", **what, "passes": passes, "seconds": seconds, "gb_per_s": rate, "clock": "wall"}
    )
    say(
        f"run          {' '.join(f'{k}={v}' for k, v in what.items()):45} {1e3 * seconds:9.3f} ms a pass"
        f" ({1e3 * min(times):.3f} to {1e3 * max(times):.3f}) {rate:5.0f} GB/s;"
        f" workers starved {starved:.0%}, generator blocked {blocked:.0%}"
    )


def bench_peer(say: Callable[[str], None], results: list[dict[str, Any]]) -> None:
    """Plain stores of a kernel on device 1 into device 0, then whole runs between the two."""
    import cupy

    target = cuda.empty(RING_BYTES, np.uint8)
    with cupy.cuda.Device(1):
        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
            cupy.cuda.runtime.deviceEnablePeerAccess(0)
        kernel = cuda.load("store.cu", "store")
        size, rounds, grid = np.uint64(RING_BYTES), np.uint64(64), (4 * cuda.multiprocessors(),)
        seconds = cuda.event_seconds(lambda: kernel(grid, (512,), (target, size, rounds)), 5)
    rate = RING_BYTES * 64 / seconds / 1e9
    say(f"plain stores from one GPU into the other's memory, all bytes: {rate:.1f} GB/s")
    results.append({"stage": "peer stores", "gb_per_s": rate, "clock": "device events"})
    for queues in (1, 4, 8):
        bench_run(say, results, 1_000_000, 8, 3, queues, generator_device=1)


class Unwritten:
    """Couplings whose frames hold whatever was there: a source that costs nothing."""

    coupling_format = CouplingFormat.PM1
    symmetric = True

    def __init__(self, n: int) -> None:
        self.n = n

    def fill(self, rows: RowRange, column_block: int, out: np.ndarray) -> None:
        """Leave `out` as it is."""


def bench_host(say: Callable[[str], None], results: list[dict[str, Any]]) -> None:
    """Frames of a sender on the host, through rings in shared memory, into the resident kernel on the GPU."""
    n, queues, burst, bursts, passes = 200_000, 4, 2048, 4, 5
    layout = Layout(n, 8, queues)
    links = [ShmLink.create(burst, bursts) for _ in range(queues)]
    # an end closes the descriptor that it is given
    senders = [ShmSender(os.dup(link.ring), link.sender_bell, burst, bursts, "us") for link in links]
    ends = [ShmReceiver(link.ring, link.receiver_bell, burst, bursts, "the sender") for link in links]
    rows, source, cancelled = layout.queue_rows, Unwritten(n), threading.Event()
    feeders = [QueueFeeder(q, rows[q], layout, 1, source, senders[q]) for q in range(queues)]
    ring = PeerRing.allocate(queues, 128 << 20, host_sends=True)
    state = CudaState(layout, RowRange(0, n), Dynamics(1, np.float32(1), np.float32(1)), SEED, None)
    receiver = ReceiveKernel(layout, rows, 1, 0, ring, state)
    feed = HostFeed(ends, ring)
    ceiling = _pinned_copy_rate()
    receiver.start()
    times = []
    try:
        for k in range(passes):
            for feeder in feeders:
                feeder.begin_pass(k, None)
            start = time.perf_counter()
            thread = threading.Thread(target=send_pass, args=(feeders, 10.0, cancelled))
            thread.start()
            feed.forward_pass(10.0, lambda: None)
            receiver.wait_drained(k + 1, 10.0)
            times.append(time.perf_counter() - start)
            thread.join()
    finally:
        receiver.stop()
    rate = layout.frames_per_pass * FRAME_BYTES / statistics.median(times[1:]) / 1e9
    say(
        f"host to GPU, n={n}: {rate:.1f} GB/s of frames, {rate / ceiling:.0%} of a pinned copy's"
        f" {ceiling:.1f} GB/s"
    )
    results.append(
        {"stage": "host to GPU", "gb_per_s": rate, "pinned_copy_gb_per_s": ceiling, "clock": "wall"}
    )


def _pinned_copy_rate() -> float:
    import cupyx

    host = cupyx.empty_pinned(256 << 20, np.uint8)
    device = cuda.empty(host.size, np.uint8)
    return float(host.size / cuda.event_seconds(lambda: device.set(host), 5) / 1e9)


def measure(say: Callable[[str], None], only: Iterable[str] = PARTS) -> list[dict[str, Any]]:
    """Measure the parts named in `only` on the current device; a line each to `say`."""
    results: list[dict[str, Any]] = []
    parts = set(only)
    if parts & {"accumulate", "synthesize"}:
        bench_stages(say, results, parts)
    if "run" in parts:
        for queues, ring in ((8, 64), (4, 64), (1, 64)):
            bench_run(say, results, 1_000_000, 8, 5, queues, ring << 20)
        for replicas in (1, 32):
            bench_run(say, results, 1_000_000, replicas, 5, 8)
        for n, passes in ((10_000, 200), (100_000, 50)):
            bench_run(say, results, n, 8, passes, 8)
    if "host" in parts:
        bench_host(say, results)
    if "peer" in parts and cuda.device_count() > 1:
        bench_peer(say, results)
    return results


def describe_machine(say: Callable[[str], None], command: str) -> None:
    """Machine, driver, versions, date and command, for the head of a log."""
    import cupy

    runtime = cupy.cuda.runtime
    names = [runtime.getDeviceProperties(d)["name"].decode() for d in range(runtime.getDeviceCount())]
    say(f"date     {datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    say(f"machine  {platform.node()}, {platform.platform()}, {', '.join(names)}")
    say(f"driver   {_driver()}, CUDA {runtime.driverGetVersion()}, NVRTC {cupy.cuda.nvrtc.getVersion()}")
    say(f"versions Python {platform.python_version()}, CuPy {cupy.__version__}")
    say(f"command  {command}")


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main(only: Iterable[str], output: Path | None) -> None:
    """Measure on device 0, with a second GPU also from that one to it; a table, and JSON into `output`."""

    def say(line: str) -> None:
        print(line, flush=True)

    cuda.use_device(0)
    describe_machine(say, f"streamdsb bench cuda --only {','.join(only)}")
    results = measure(say, only)
    if output:
        output.write_text(json.dumps(results, indent=1) + "\n")
