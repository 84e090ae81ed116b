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
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from streamdsb.errors import RunFailed
from streamdsb.machine import describe_machine
from streamdsb.service.client import Client, LoadedModel
from streamdsb.service.exchange import REPLY_ROOM, exchange
from streamdsb.service.limits import max_replicas
from streamdsb.service.messages import RESULT, solve_frames, spins_of
from streamdsb.service.models import Format, Model, pack, unpack
from streamdsb.service.solve import gain_of, solve_model
from validation import oracle_solve, published_solves

PARTS = ("solve", "network", "check", "gpu")
SIZES, REPLICAS, UPDATES = (64, 128, 192, 256, 512), (1, 8, 32), (50, 100, 200, 400)
REFERENCE = (Format.INT8, 128, 8, 100)

_WARM = 200
_ENERGIES_CHECKED = 3000
_SOLVES_CHECKED = 100
_PATTERNS = 256

Figures = dict[str, Any]


def instance(format: Format, n: int) -> Model:  # noqa: A002
    """Random couplings of a format: dense ±1, 5 % ternary, or dense int8."""
    rng = np.random.default_rng(1000 + n)
    values = {
        Format.PM1: rng.choice([-1, 1], (n, n)),
        Format.TERNARY: rng.choice([-1, 0, 1], (n, n), p=[0.025, 0.95, 0.025]),
        Format.INT8: rng.integers(-127, 128, (n, n)),
    }
    upper = np.triu(values[format].astype(np.int8), 1)
    return pack(upper + upper.T, format)


def fields_for(n: int) -> np.ndarray:
    """A pool of fields, int16 (256, n)."""
    return np.random.default_rng(n).integers(-300, 301, (_PATTERNS, n)).astype(np.int16)


def table() -> Iterator[tuple[Format, int, int, int]]:
    """(format, n, B, K) of every configuration that the limits admit."""
    for form in Format:
        for n in SIZES:
            for replicas in REPLICAS:
                if replicas <= max_replicas(n):
                    yield from ((form, n, replicas, updates) for updates in UPDATES)


# --- a solve alone ----------------------------------------------------------------------------------


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


# --- over the network -------------------------------------------------------------------------------


@contextmanager
def server_process(*settings: str) -> Iterator[str]:
    """`streamdsb serve` in a process of its own; gives its address."""
    options = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-P", "-c", "from streamdsb.cli import main; main()", "serve",
               "--set", "listen=127.0.0.1:0", *options]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"serving on (\S+);", line):
                yield found[1]
                break
        else:
            raise RunFailed("the server to be measured did not start")
    finally:
        process.terminate()
        process.wait(30)


def exchange_all(
    client: Client, frames: np.ndarray, due: np.ndarray, window: int, spin: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Send frames as told, once each; replies uint8 (m, REPLY_ROOM), times sent and received, ns."""
    count = len(frames)
    own = np.zeros((count, -(-frames.shape[1] // 8) * 8), np.uint8)
    own[:, : frames.shape[1]] = frames
    replies = np.zeros((count, REPLY_ROOM), np.uint8)
    sent, received = np.zeros((2, count), np.int64)
    sizes, order = np.full(count, frames.shape[1]), np.arange(count)
    exchange(client.fileno(), own, sizes, order, due, window, 2_000_000_000, spin, replies, sent, received)
    return replies, sent, received


def requests_for(model: LoadedModel, count: int, replicas: int, updates: int, first: int) -> np.ndarray:
    """`count` SOLVE frames, fields from the pool in turn, a seed each."""
    fields = fields_for(model.n)[np.arange(count) % _PATTERNS]
    seeds = np.arange(count, dtype=np.uint64) + np.uint64(7919)
    return solve_frames(
        model.slot, model.generation, model.n, fields, seeds, replicas=replicas, updates=updates,
        first_request=first,
    )  # fmt: skip


def _percentiles(values: np.ndarray) -> dict[str, float]:
    marks = np.percentile(values / 1000.0, [50, 99, 99.9]) if len(values) else [float("nan")] * 3
    return dict(zip(("p50_us", "p99_us", "p999_us"), (float(mark) for mark in marks), strict=True))


def _check(model: Model, replies: np.ndarray, good: np.ndarray, replicas: int, updates: int) -> Figures:
    """Energies of sampled replies from their spins, and whole solves of fewer against the CPU."""
    headers = np.ascontiguousarray(replies[:, :64]).view(RESULT)[:, 0]
    words = np.ascontiguousarray(replies[:, 64:]).view("<u4")[:, : -(-model.n // 32)]
    some = good[np.linspace(0, len(good) - 1, min(_ENERGIES_CHECKED, len(good))).astype(int)]
    spins = spins_of(words[some], model.n).astype(np.int64)
    h = fields_for(model.n)[some % _PATTERNS].astype(np.int64)
    energies = -np.sum(spins * (spins @ unpack(model).astype(np.int64) + 2 * h), axis=1)
    wrong = int(np.count_nonzero(energies != headers["two_energy"][some]))
    fewer = some[:: max(1, len(some) // _SOLVES_CHECKED)]
    for index in fewer.tolist():
        expected = solve_model(
            model, fields_for(model.n)[index % _PATTERNS], replicas=replicas, steps=updates, seed=7919 + index
        )
        same = np.array_equal(expected.spins, spins_of(words[index], model.n))
        wrong += not (same and expected.replica == headers["replica"][index])
    return {"energies_checked": len(some), "solves_checked": len(fewer), "mismatches": wrong}


def measure_loop(
    client: Client, model: Model, loaded: LoadedModel, count: int, *, window: int | None, rate: float | None,
    replicas: int, updates: int, spin: bool,
) -> Figures:  # fmt: skip
    """One run: closed loop with `window` outstanding, or open loop at `rate` requests a second."""
    total = count + _WARM
    frames = requests_for(loaded, total, replicas, updates, client.take_requests(total))
    due = np.zeros(total, np.int64)
    if rate is not None:
        due = np.cumsum(np.random.default_rng(5).exponential(1e9 / rate, total)).astype(np.int64)
    replies, sent, received = exchange_all(client, frames, due, window or total, spin)
    headers = np.ascontiguousarray(replies[:, :64]).view(RESULT)[:, 0]
    later = np.arange(total) >= _WARM
    answered = later & (received > 0)
    good = np.flatnonzero(answered & (headers["status"] == 0))
    times = received[good] - sent[good]
    parts = {name: headers[f"{name}_ns"][good].astype(np.int64) for name in ("queue", "solve", "transmit")}
    rest = times - sum(parts.values())
    seconds = (received[good].max() - sent[later].min()) / 1e9 if len(good) else float("nan")
    emitted = np.count_nonzero(later) / max((sent[later].max() - sent[later].min()) / 1e9, 1e-9)
    return {
        "outstanding": window,
        "offered": rate,
        "emitted": float(emitted) if rate else None,
        "achieved": len(good) / seconds,
        "lost": int(np.count_nonzero(later & (received == 0))),
        "refused": int(np.count_nonzero(answered & (headers["status"] != 0))),
        "round_trip": _percentiles(times),
        **{name: _percentiles(values) for name, values in {**parts, "rest": rest}.items()},
        **_check(model, replies, good, replicas, updates),
    }


def _show(run: Figures) -> None:
    load = f"closed {run['outstanding']:>4}" if run["outstanding"] else f"open {run['offered']:>6.0f}/s"
    trip = run["round_trip"]
    print(
        f"  {load:13} {run['achieved']:9.0f}/s  p50 {trip['p50_us']:8.1f}  p99 {trip['p99_us']:8.1f}"
        f"  p99.9 {trip['p999_us']:8.1f}  lost {run['lost']}  refused {run['refused']}"
        f"  queue {run['queue']['p50_us']:8.1f}  solve {run['solve']['p50_us']:7.1f}"
        f"  transmit {run['transmit']['p50_us']:6.1f}  rest {run['rest']['p50_us']:6.1f}"
        f"  wrong {run['mismatches']} of {run['energies_checked']}+{run['solves_checked']}",
        flush=True,
    )


def measure_packets(client: Client, count: int) -> Figures:
    """Requests for a model that nobody loaded: what sockets, loops and client carry without any solve."""
    nobody = LoadedModel(63, 1, REFERENCE[1])
    rates = {}
    for window in (1, 64, 512):
        frames = requests_for(nobody, count, 8, 100, client.take_requests(count))
        _, sent, received = exchange_all(client, frames, np.zeros(count, np.int64), window, False)
        rates[str(window)] = float(np.count_nonzero(received) / ((received.max() - sent.min()) / 1e9))
        print(f"  packets alone, {window:3} outstanding: {rates[str(window)]:9.0f}/s", flush=True)
    return rates


def measure_network(count: int) -> Figures:
    """The `cpu` server on loopback, in a process of its own, with the reference request."""
    form, n, replicas, updates = REFERENCE
    model = instance(form, n)
    runs: list[Figures] = []
    print(f"\n  {form.name} n {n} B {replicas} K {updates} over UDP on loopback; times in us")
    with server_process("queue=4096") as address, Client(address) as client:
        loaded = client.load(model)
        packets = measure_packets(client, 20 * count)
        for window in (1, 4, 16, 64):
            runs.append(
                measure_loop(client, model, loaded, count, window=window, rate=None, replicas=replicas,
                             updates=updates, spin=False)
            )  # fmt: skip
            _show(runs[-1])
        most = max(run["achieved"] for run in runs)
        for share in (0.1, 0.25, 0.5, 0.75, 0.9):
            runs.append(
                measure_loop(client, model, loaded, count, window=None, rate=share * most, replicas=replicas,
                             updates=updates, spin=False)
            )  # fmt: skip
            _show(runs[-1])
    return {"packets_alone": packets, "runs": runs}


# --- every reply checked ----------------------------------------------------------------------------


def measure_check(count: int) -> Figures:
    """`count` replies over the network, each compared with the NumPy oracle: 2E, replica and spins."""
    rng = np.random.default_rng(12)
    checked = wrong = 0
    with server_process() as address, Client(address) as client:
        while checked < count:
            form, n = Format(int(rng.integers(1, 4))), int(rng.integers(1, 49))
            replicas, updates = int(rng.integers(1, min(4, max_replicas(n)) + 1)), int(rng.integers(1, 9))
            model, fields = instance(form, n), rng.integers(-(2**15), 2**15, (500, n)).astype(np.int16)
            seeds = [int(seed) for seed in rng.integers(0, 2**63, 500)]
            with_field = bool(rng.integers(0, 2))
            replies = client.solve_many(
                client.load(model),
                fields if with_field else None,
                seeds=seeds,
                replicas=replicas,
                steps=updates,
            )
            couplings = unpack(model)
            for index, seed in enumerate(seeds):
                expected = oracle_solve.solve(
                    couplings,
                    fields[index] if with_field else None,
                    replicas=replicas,
                    updates=updates,
                    seed=seed,
                )
                same = np.array_equal(replies.spins[index], expected.spins)
                answer = int(replies.two_energy[index]), int(replies.replica[index])
                wrong += not (same and answer == (expected.two_energy, expected.replica))
            checked += len(seeds)
    print(f"\n  {checked} replies against the oracle: {wrong} wrong")
    return {"checked": checked, "wrong": wrong}


# --- on a GPU ---------------------------------------------------------------------------------------


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
    frames = solve_frames(0, 1, n, fields, np.zeros(_PATTERNS, np.uint64), replicas=replicas, updates=updates)
    saturated = GpuSolver([model]).saturate(items_of(frames, 0, model), count // 8 * 8)
    print(f"\n  rings on the device, INT8 n 128 B 8 K 100: {saturated.rate / 1e6:.2f} M requests/s")
    return {"table": rows, "rings": saturated.rate}


# --- all together -----------------------------------------------------------------------------------


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
