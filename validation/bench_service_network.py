"""Requests over the network, to servers in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from streamdsb.errors import RunFailed
from streamdsb.service.client import Client
from streamdsb.service.exchange import REPLY_ROOM, exchange
from streamdsb.service.limits import max_replicas
from streamdsb.service.messages import RESULT
from streamdsb.service.models import Format, Model, unpack
from streamdsb.service.replies import LoadedModel
from validation import oracle_solve
from validation.bench_service_requests import REFERENCE, Figures, check_replies, instance, requests_for

_WARM = 200


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


def _percentiles(values: np.ndarray) -> dict[str, float]:
    marks = np.percentile(values / 1000.0, [50, 99, 99.9]) if len(values) else [float("nan")] * 3
    return dict(zip(("p50_us", "p99_us", "p999_us"), (float(mark) for mark in marks), strict=True))


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
        **check_replies(model, replies, good, replicas, updates),
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
