"""The CPU pipeline and its stages: each alone on one core, then generator and receiver together.

Rates are bytes of payload a second, padding included, as a pass counts them.  A stage alone sees the
bursts that a pass of this n would bring, evenly sampled; frames stay in a ring's worth of memory, and so
in the caches of that core.  The queue is the stage that moves every line of them from one core to the
other: one process writes each burst, a second one reads it, and neither does anything else.  The pipeline
is a real run, three processes; its rate is that of whole passes, wall clock, all boundary work included.
All rates are medians.  Since the speed of a shared host drifts within seconds, the stages are measured
again right before and after each pipeline, and its share is of the slowest by the mean of the two.  Each
pipeline has three turns, spread over the whole measurement; the table shows the fastest, since a neighbour
only slows, and the JSON all of them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.main import RunResult, run_here
from coordinator.progress import SilentDisplay
from generator import symmetry, synthesize_cpu
from generator.source import CouplingSource, MattisCouplings, RandomCouplings
from generator.symmetry import SymmetryCheck
from receiver import accumulate_cpu, check
from receiver.accumulate_cpu import CpuAccumulator
from receiver.check import FrameCheck
from streamdsb import frame
from streamdsb.config import make_config
from streamdsb.frame import FrameType, empty_frames, write_headers
from streamdsb.jit import compile_kernels, kernel
from streamdsb.layout import HEADER_WORDS, PAYLOAD_BYTES, Layout, RowRange
from streamdsb.machine import describe_machine
from streamdsb.queues import shm, wait_for_any
from streamdsb.queues.shm import ShmLink, ShmReceiver, ShmSender
from validation.bench_check import cost_of_check
from validation.provenance import provenance

_BURST = 256
_RING = 4
_QUEUES = 1
_STAGE_S = 0.5
_SAMPLED_BURSTS = 96
_QUEUE_BURSTS = 256
_QUEUE_ROUNDS = 20
_TURNS = 3

Figures = dict[str, Any]


def main(n: int, output: Path | None) -> None:
    """Measure, print a table and write JSON."""
    compile_kernels(
        *frame.KERNELS,
        *shm.KERNELS,
        *synthesize_cpu.KERNELS,
        *symmetry.KERNELS,
        *check.KERNELS,
        *accumulate_cpu.KERNELS,
        _write_words,
        _read_words,
    )
    figures: Figures = {**provenance("streamdsb", output), "n": n}
    print(f"{describe_machine()['cpu']}, {os.cpu_count()} cores, n = {n:,}; GB/s of payload\n")
    others = Others()
    figures["stages"] = _show(dict(_stages(n)))
    figures["pipeline"] = _pipelines(n)
    figures["sequence_check"] = _cost_of_check(figures["pipeline"])
    figures["between_passes"] = _between_passes()
    figures["step"] = _one_step()
    figures["other_processes"] = share = others.share()
    print(
        f"\n  other processes used {share:.0%} of the machine meanwhile"
        + (", too much to quote" * (share > 0.05))
    )
    if output is not None:
        output.write_text(json.dumps(figures, indent=2) + "\n")
        print(f"\nwritten to {output}")


class Others:
    """How much of the machine other processes use from now on; 0 where /proc does not tell."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._theirs = self._used()

    def share(self) -> float:
        """Their part of all cores' time since the start, 0 to 1."""
        elapsed = (time.monotonic() - self._start) * (os.cpu_count() or 1)
        return max(0.0, (self._used() - self._theirs) / elapsed)

    def _used(self) -> float:
        """Seconds that all processes but this one and its ended children have used so far."""
        try:
            user, nice, system = Path("/proc/stat").read_text().split()[1:4]
        except OSError:
            return 0.0
        everybody = (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")
        return everybody - sum(os.times()[:4])


def _show(stages: dict[str, float]) -> dict[str, float]:
    for name, rate in stages.items():
        print(f"  {name:44} {rate / 1e9:8.2f}")
    return stages


def _stages(n: int) -> Iterator[tuple[str, float]]:
    layout = Layout(n, 8, _QUEUES)
    random, mattis = RandomCouplings(n, 42), MattisCouplings(n, 42)
    yield "synthesis, random", _fill_rate(layout, random)
    yield "synthesis, mattis", _fill_rate(layout, mattis)
    yield "symmetry check (first pass of a file)", _symmetry_rate(layout, random)
    for replicas in (1, 8, 32):
        yield f"check and accumulation, B = {replicas}", _accumulate_rate(Layout(n, replicas, _QUEUES))
    yield "queue, each word written and read", _queue_rate()


def _bursts(layout: Layout) -> list[tuple[int, RowRange]]:
    """(column block, rows) of bursts spread evenly over a pass."""
    every = [
        (block, RowRange(start, min(start + _BURST, layout.n)))
        for block in range(layout.column_blocks)
        for start in range(0, layout.n, _BURST)
    ]
    return every[:: max(1, len(every) // _SAMPLED_BURSTS)]


def _rate(payload: int, work: Callable[[], None]) -> float:
    """Payload bytes a second of `work`, the median of as many rounds as half a second holds."""
    work()
    times: list[float] = []
    while sum(times) < _STAGE_S or len(times) < 3:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return payload / statistics.median(times)


def _payload_of(bursts: list[tuple[int, RowRange]]) -> int:
    return sum(len(rows) for _, rows in bursts) * PAYLOAD_BYTES


def _ring_frames() -> np.ndarray:
    """As many bursts as all rings together hold."""
    return empty_frames(_RING * _QUEUES * _BURST).reshape(_RING * _QUEUES, _BURST, -1)


def _fill_rate(layout: Layout, source: CouplingSource) -> float:
    bursts, ring = _bursts(layout), _ring_frames()

    def fill() -> None:
        for turn, (block, rows) in enumerate(bursts):
            words = layout.words_in(block)
            payload = ring[turn % len(ring), : len(rows), HEADER_WORDS : HEADER_WORDS + words]
            source.fill(rows, block, payload)

    return _rate(_payload_of(bursts), fill)


def _symmetry_rate(layout: Layout, source: CouplingSource) -> float:
    bursts = _bursts(layout)
    made = []
    for block, rows in bursts:
        words = np.zeros((len(rows), layout.words_in(block)), np.uint64)
        source.fill(rows, block, words)
        made.append((rows, block, words))

    def watch() -> None:
        check = SymmetryCheck()
        for rows, block, words in made:
            check.add(rows, block, words)

    return _rate(_payload_of(bursts), watch)


def _accumulate_rate(layout: Layout) -> float:
    bursts, ring = _bursts(layout), _ring_frames()
    whole = RowRange(0, layout.n)
    accumulator = CpuAccumulator(layout, whole)
    signs = np.random.default_rng(0).integers(0, 2**64, (layout.replicas, layout.bitmap_words), np.uint64)
    source = RandomCouplings(layout.n, 42)
    checks = FrameCheck(layout, 0, whole, 1, _BURST)
    for turn, (block, rows) in enumerate(bursts):
        source.fill(rows, block, ring[turn % len(ring), : len(rows), 8 : 8 + layout.words_in(block)])

    def accumulate() -> None:
        accumulator.begin_pass(signs)
        checks.begin_pass(0)
        for turn, (block, rows) in enumerate(bursts):
            frames = ring[turn % len(ring), : len(rows)]
            sequence = block * layout.n + rows.start
            columns = layout.columns_in(block)
            write_headers(frames, int(FrameType.TILE), 1, 0, sequence, rows.start, block, 0, columns)
            accumulator.feed_checked(checks, frames)

    return _rate(_payload_of(bursts), accumulate)


@kernel("void(uint64[:, ::1], uint64)")
def _write_words(frames: np.ndarray, word: np.uint64) -> None:
    frames[:] = word


@kernel("uint64(uint64[:, ::1])")
def _read_words(frames: np.ndarray) -> np.uint64:
    read = np.uint64(0)
    for f in range(frames.shape[0]):
        for w in range(frames.shape[1]):
            read ^= frames[f, w]
    return read


def _queue_rate() -> float:
    """Two processes: one writes every word of each burst, the other reads it."""
    link = ShmLink.create(_BURST, _RING)
    child = multiprocessing.get_context("fork").Process(target=_write_bursts, args=(link,))
    child.start()
    end = ShmReceiver(link.ring, link.receiver_bell, _BURST, _RING, "the sender")
    times = [_read_bursts(end) for _ in range(_QUEUE_ROUNDS)]
    child.join()
    end.close()
    os.close(link.sender_bell)
    return _QUEUE_BURSTS * _BURST * PAYLOAD_BYTES / statistics.median(times[1:])


def _read_bursts(end: ShmReceiver) -> float:
    start = time.perf_counter()
    for _ in range(_QUEUE_BURSTS):
        while (frames := end.receive()) is None:
            wait_for_any([end], 1.0)
        _read_words(frames)
        end.release()
    return time.perf_counter() - start


def _write_bursts(link: ShmLink) -> None:
    end = ShmSender(link.ring, link.sender_bell, _BURST, _RING, "the receiver")
    for burst in range(_QUEUE_BURSTS * _QUEUE_ROUNDS):
        while (frames := end.acquire()) is None:
            wait_for_any([end], 1.0)
        _write_words(frames, np.uint64(burst))
        end.commit(_BURST)


def _run(**sections: dict[str, Any]) -> RunResult:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        result = run_here(make_config(sections), directory, False, SilentDisplay())
        timings = (directory / "timings.jsonl").read_text().splitlines()
        result.summary["timings"] = [json.loads(line) for line in timings]
        return result


def _pipelines(n: int) -> Figures:
    turns = [dict(_pipeline_turn(n)) for _ in range(_TURNS)]
    stage_names = " ".join(f"{stage:>12}" for stage in ("synthesis", "accumulation", "queue"))
    print(f"\n  {'pipeline, three processes; stages':34} {'GB/s':>8} {stage_names} {'share of slowest':>18}")
    figures: Figures = {}
    for name in turns[0]:
        fastest = max((turn[name] for turn in turns), key=lambda figures: float(figures["rate"]))
        figures[name] = fastest | {"turns": [turn[name] for turn in turns]}
        stage_rates = " ".join(f"{stage / 1e9:12.2f}" for stage in fastest["stages"].values())
        print(f"  {name:34} {fastest['rate'] / 1e9:8.2f} {stage_rates} {fastest['share']:18.0%}")
    return figures


def _cost_of_check(pipelines: Figures) -> Figures:
    """Of a frame beside accumulating it, also as a share of its time in the fastest pipeline of that B."""
    print(f"\n  {'checking a frame before it is added':44} {'ns':>8} {'of its pass':>12}")
    figures: Figures = {}
    for replicas in (1, 8):
        name = f"B = {replicas}"
        rate = max(figures["rate"] for key, figures in pipelines.items() if key.endswith(name))
        cost = cost_of_check(replicas)
        share = cost.share(rate)
        figures[name] = {**asdict(cost), "share_of_pass_time": share}
        print(f"  {name:44} {1e9 * cost.check_s:8.1f} {share:12.1%}")
    return figures


def _pipeline_turn(n: int) -> Iterator[tuple[str, Figures]]:
    for source in (RandomCouplings(n, 42), MattisCouplings(n, 42)):
        kind = "random" if isinstance(source, RandomCouplings) else "mattis"
        for replicas in (1, 8, 32):
            layout = Layout(n, replicas, _QUEUES)
            before = _stages_of(layout, source)
            result = _run(
                problem={"source": kind, "n": n, "seed": 42},
                solver={"replicas": replicas, "updates": 12, "seed": 42},
            )
            after = _stages_of(layout, source)
            seconds = statistics.median(timing["total_s"] for timing in result.summary["timings"][1:])
            rate = layout.payload_per_pass / seconds
            stages = {stage: (before[stage] + after[stage]) / 2 for stage in before}
            share = rate / min(stages.values())
            yield f"{kind}, B = {replicas}", {"rate": rate, "stages": stages, "share": share}


def _stages_of(layout: Layout, source: CouplingSource) -> dict[str, float]:
    return {
        "synthesis": _fill_rate(layout, source),
        "accumulation": _accumulate_rate(layout),
        "queue": _queue_rate(),
    }


def _between_passes() -> Figures:
    """A pass at n = 2000, where the boundary is most of it."""
    print(f"\n  {'one iteration at n = 2000, ms':44} {'receive':>8} {'drain':>8} {'update':>8} {'whole':>8}")
    figures: Figures = {}
    for replicas in (8, 32):
        result = _run(
            problem={"source": "random", "n": 2000, "seed": 42},
            solver={"replicas": replicas, "updates": 500, "seed": 42},
        )
        keys = ("receive_s", "drain_s", "update_s", "total_s")
        timings = result.summary["timings"][1:]
        median = {key: statistics.median(timing[key] for timing in timings) for key in keys}
        figures[f"B = {replicas}"] = median
        print(f"  {f'B = {replicas}':44} " + " ".join(f"{1000 * median[key]:8.3f}" for key in keys))
    return figures


def _one_step() -> Figures:
    """A step of dSB at n = 32,256, B = 8, against what a user would reach for instead."""
    n, replicas = 32_256, 8
    result = _run(
        problem={"source": "random", "n": n, "seed": 42},
        solver={"replicas": replicas, "updates": 20, "seed": 42},
    )
    ours = statistics.median(timing["total_s"] for timing in result.summary["timings"][1:])
    figures: Figures = {"streamdsb_s": ours}
    print(f"\n  {'one step, n = 32,256, B = 8':44} {'ms':>8} {'against streamdsb':>22}")
    print(f"  {'streamdsb, the matrix made anew each pass':44} {1000 * ours:8.1f}")
    for name, seconds in _alternatives(n, replicas):
        figures[name] = seconds
        print(f"  {name:44} {1000 * seconds:8.1f} {seconds / ours:21.1f}x")
    return figures


def _alternatives(n: int, replicas: int) -> Iterator[tuple[str, float]]:
    generator = np.random.default_rng(0)
    couplings = generator.choice(np.array([-1, 1], np.float32), (n, n))
    signs = generator.choice(np.array([-1, 1], np.float32), (n, replicas))
    yield f"float32 matrix product, numpy {np.__version__}", 1 / _rate(1, lambda: _discard(couplings @ signs))
    try:
        import torch
        from simulated_bifurcation.core.ising import Ising
    except ImportError:
        print("  (the simulated-bifurcation package is not installed)")
        return
    model = Ising(torch.from_numpy(couplings), torch.zeros(n), dtype=torch.float32)

    def solve(steps: int) -> float:
        start = time.perf_counter()
        model.minimize(agents=replicas, max_steps=steps, mode="discrete", early_stopping=False, verbose=False)
        return time.perf_counter() - start

    solve(1)
    seconds = (solve(11) - solve(1)) / 10  # without what it sets up for each solve
    yield f"simulated-bifurcation {version('simulated-bifurcation')}, {platform.machine()}", seconds


def _discard(value: object) -> None:
    """Keep a result from being optimized away or shown."""
