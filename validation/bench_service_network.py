"""Requests over the network, to servers in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from streamdsb.errors import RunFailed
from streamdsb.machine import usable_cores
from streamdsb.service.client import Client
from streamdsb.service.exchange import REPLY_ROOM, collect, exchange, send_when_due
from streamdsb.service.limits import max_replicas
from streamdsb.service.messages import RESULT
from streamdsb.service.models import Format, Model, unpack
from streamdsb.service.replies import LoadedModel
from validation import oracle_solve
from validation.bench_service_requests import REFERENCE, Figures, check_replies, instance, requests_for

_WARM = 200
_PATIENCE_NS = 2_000_000_000


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
    clients: Sequence[Client],
    frames: np.ndarray,
    due: np.ndarray,
    window: int | None,
    spin: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Send frames as told, once each, in turn by each client; each client has a thread and its share of the
    window, or without a window, if it waits busily, a thread that sends and one that takes replies.
    Returns replies uint8 (m, REPLY_ROOM), times sent and received, ns.
    """
    count, senders = len(frames), len(clients)
    own = np.zeros((count, -(-frames.shape[1] // 8) * 8), np.uint8)
    own[:, : frames.shape[1]] = frames
    replies = np.zeros((count, REPLY_ROOM), np.uint8)
    sent, received = np.zeros((2, count), np.int64)

    def send(client: Client, mine: slice) -> None:
        part, times = np.ascontiguousarray(own[mine]), np.zeros((2, len(own[mine])), np.int64)
        part.view("<u8")[:, 3] = np.uint64(client.take_requests(len(part))) + np.arange(
            len(part), dtype=np.uint64
        )
        answers = np.zeros((len(part), REPLY_ROOM), np.uint8)
        sizes, order = np.full(len(part), frames.shape[1]), np.arange(len(part))
        fd, their_due = client.fileno(), np.ascontiguousarray(due[mine])
        if window is None and spin:
            first = part.view("<u8")[0, 3]
            taking = threading.Thread(target=collect, args=(fd, first, _PATIENCE_NS, answers, times[1]))
            taking.start()
            send_when_due(fd, part, sizes, their_due, client.joins, times[0])
            taking.join()
        else:
            share = max(1, (window or count) // senders)
            exchange(
                fd, part, sizes, order, their_due, share, _PATIENCE_NS, spin, client.joins, answers, times[0],
                times[1],
            )  # fmt: skip
        replies[mine], sent[mine], received[mine] = answers, times[0], times[1]

    threads = [
        threading.Thread(target=send, args=(client, slice(index, None, senders)))
        for index, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies, sent, received


def _percentiles(values: np.ndarray) -> dict[str, float]:
    marks = np.percentile(values / 1000.0, [50, 99, 99.9]) if len(values) else [float("nan")] * 3
    return dict(zip(("p50_us", "p99_us", "p999_us"), (float(mark) for mark in marks), strict=True))


def measure_loop(
    clients: Sequence[Client], model: Model, loaded: LoadedModel, count: int, *, window: int | None,
    rate: float | None, replicas: int, updates: int, spin: bool,
) -> Figures:  # fmt: skip
    """One run: closed loop with `window` outstanding, or open loop at `rate` requests a second."""
    total = count + _WARM
    frames = requests_for(loaded, total, replicas, updates)
    due = np.zeros(total, np.int64)
    if rate is not None:
        due = np.cumsum(np.random.default_rng(5).exponential(1e9 / rate, total)).astype(np.int64)
    replies, sent, received = exchange_all(clients, frames, due, window, spin)
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
        "clients": len(clients),
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
        f"  {load:13} {run['clients']} clients {run['achieved']:9.0f}/s"
        f"  p50 {trip['p50_us']:8.1f}  p99 {trip['p99_us']:8.1f}"
        f"  p99.9 {trip['p999_us']:8.1f}  lost {run['lost']}  refused {run['refused']}"
        f"  queue {run['queue']['p50_us']:8.1f}  solve {run['solve']['p50_us']:7.1f}"
        f"  transmit {run['transmit']['p50_us']:6.1f}  rest {run['rest']['p50_us']:6.1f}"
        f"  wrong {run['mismatches']} of {run['energies_checked']}+{run['solves_checked']}",
        flush=True,
    )


def measure_packets(clients: Sequence[Client], count: int, spin: bool) -> Figures:
    """Requests for a model that nobody loaded: what sockets, loops and clients carry without any solve."""
    nobody = LoadedModel(63, 1, REFERENCE[1])
    rates = {}
    for senders in sorted({1, len(clients)}):
        for window in (1, 64, 512):
            if window < senders:
                continue
            frames = requests_for(nobody, count if window > 1 else count // 10, 8, 100)
            _, sent, received = exchange_all(
                clients[:senders], frames, np.zeros(len(frames), np.int64), window, spin
            )
            rate = float(np.count_nonzero(received) / ((received.max() - sent.min()) / 1e9))
            rates[f"{senders} clients, {window} outstanding"] = rate
            print(f"  packets alone, {senders} clients, {window:3} outstanding: {rate:9.0f}/s", flush=True)
    return rates


def measure_network(server: str, count: int, rates: Sequence[float] = ()) -> Figures:
    """A server on loopback, in a process of its own, with the reference request.

    Closed loop from one client, and above 64 outstanding from as many as there are cores to spare for them;
    then open loop from one client at shares of the best closed one, and at `rates` from one and from as many.
    With many cores, clients wait busily.
    """
    form, n, replicas, updates = REFERENCE
    model = instance(form, n)
    runs: list[Figures] = []
    spin = usable_cores() >= 8
    senders = min(4, max(1, usable_cores() // 4))
    print(
        f"\n  {server} server: {form.name} n {n} B {replicas} K {updates} over UDP on loopback; times in us"
    )
    with ExitStack() as stack:
        address = stack.enter_context(server_process(f"server={server}", "queue=4096"))
        clients = [stack.enter_context(Client(address)) for _ in range(senders)]
        loaded = clients[0].load(model)
        packets = measure_packets(clients, 10 * count, spin)

        def measure(window: int | None, rate: float | None, taking_part: int = 1) -> None:
            requests = count if rate is None else max(count, min(int(rate), 20 * count))
            runs.append(
                measure_loop(clients[:taking_part], model, loaded, requests, window=window, rate=rate,
                             replicas=replicas, updates=updates, spin=spin)
            )  # fmt: skip
            _show(runs[-1])

        for window in (1, 4, 16, 64):
            measure(window, None)
        for window in (256, 1024) if server != "cpu" else ():
            measure(window, None, senders)
        most = max(run["achieved"] for run in runs)
        for share in (0.1, 0.25, 0.5, 0.75, 0.9):
            measure(None, share * most)
        for taking_part in sorted({1, senders}):
            for rate in rates:
                measure(None, rate, taking_part)
    return {"packets_alone": packets, "runs": runs}


def measure_check(server: str, count: int) -> Figures:
    """`count` replies of a server, each compared with the NumPy oracle: 2E, replica and spins."""
    rng = np.random.default_rng(12)
    checked = wrong = 0
    with server_process(f"server={server}") as address, Client(address) as client:
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
    print(f"\n  {server} server: {checked} replies against the oracle: {wrong} wrong")
    return {"checked": checked, "wrong": wrong}
