"""The service's parts on a GPU without a network: kernel, launch and copies, and the rings."""

from __future__ import annotations

import os
import statistics
import threading

import numpy as np

from streamdsb import cuda
from streamdsb.errors import RunFailed
from streamdsb.service.limits import HEADER_BYTES
from streamdsb.service.messages import RESULT, solve_frames
from streamdsb.service.models import Format, Model
from streamdsb.service.rings import STOP, Rings, make_rings
from streamdsb.service.solve import solve_model
from validation import published_solves
from validation.bench_service_requests import (
    PATTERNS,
    REFERENCE,
    UPDATES,
    Figures,
    fields_for,
    instance,
    table,
)

_CHECKED = 300
_PATIENCE_NS = 5_000_000_000
_INSIDE = (1, 64, 512, 4096)
_STREAMS = 8


def _items(updates: int | None = None) -> tuple[Model, np.ndarray]:
    """The reference model, and work items for it, one a field of the pool, uint8 (256, WORK_BYTES)."""
    from streamdsb.service.gpu import items_of

    form, n, replicas, usual = REFERENCE
    model = instance(form, n)
    seeds = np.zeros(PATTERNS, np.uint64)
    frames = solve_frames(0, 1, n, fields_for(n), seeds, replicas=replicas, updates=updates or usual)
    return model, items_of(frames, 0, model)


def _wrong(model: Model, tickets: np.ndarray, energies: np.ndarray) -> int:
    """How many requests of the reference, whose seeds are their tickets, have another 2E on the CPU."""
    _, n, replicas, updates = REFERENCE
    fields = fields_for(n)
    wrong = 0
    for ticket, energy in zip(tickets.tolist(), energies.tolist(), strict=True):
        h = fields[ticket % PATTERNS]
        wrong += solve_model(model, h, replicas=replicas, steps=updates, seed=ticket).two_energy != energy
    return wrong


def _solve_time(form: Format, n: int, replicas: int, updates: int, repeats: int) -> Figures:
    """Median us in the kernel of one configuration, beside the published one, answers checked."""
    from streamdsb.service.gpu import GpuSolver, items_of

    model, h = instance(form, n), fields_for(n)[:1]
    solver = GpuSolver([model])
    frames = solve_frames(0, 1, n, h, np.array([7], np.uint64), replicas=replicas, updates=updates)
    items = items_of(frames, 0, model)
    expected = solve_model(model, h[0], replicas=replicas, steps=updates, seed=7)
    replies = [solver.solve(items)[0, :64].view(RESULT)[0] for _ in range(repeats)]
    times = [int(reply["solve_ns"]) / 1000 for reply in replies]
    known = published_solves.microseconds(form, n, replicas, updates)
    return {"format": form.name, "n": n, "B": replicas, "K": updates, "published_us": known,
            "median_us": statistics.median(times), "fastest_us": min(times),
            "wrong": sum(int(reply["two_energy"]) != expected.two_energy for reply in replies)}  # fmt: skip


def measure_kernel(quick: bool) -> list[Figures]:
    """The whole table in the kernel; where it is to be quick, for K = 100 alone."""
    rows: list[Figures] = []
    print("\n  in the kernel, us (median), and published (another GPU)")
    for configuration in table():
        if quick and configuration[-1] != UPDATES[1]:
            continue
        row = _solve_time(*configuration, repeats=21)
        rows.append(row)
        slower = row["published_us"] is not None and row["median_us"] > row["published_us"]
        print(f"  {row['format']:7} {row['n']:4} {row['B']:3} {row['K']:4} {row['median_us']:9.1f}"
              f" {row['published_us'] or '':>9}{'  slower' if slower else ''}"
              f"{'  WRONG' if row['wrong'] else ''}", flush=True)  # fmt: skip
    return rows


def measure_launch(count: int) -> Figures:
    """One reference request after the other: copies and launch, launch alone, and the kernel's own time."""
    from streamdsb.service import driver
    from streamdsb.service.gpu import DeviceStore
    from streamdsb.service.server_gpu import LaunchLanes
    from validation.bench_service_loops import round_trips

    driver.connect()
    model, items = _items()
    store = DeviceStore(1)
    store.upload(0, model)
    made = LaunchLanes(store, 1)
    medians = {}
    for name, copies in (("copies_and_launch", True), ("launch", False)):
        times = np.zeros(count, np.int64)
        if status := round_trips(made.lanes, items[0], copies, times):
            raise RunFailed(f"a launch failed: {driver.describe(status)}")
        medians[name] = float(np.median(times)) / 1000
    kernel = int(made.lanes.staged[0, :HEADER_BYTES].view(RESULT)[0]["solve_ns"]) / 1000
    figures = {"copies_and_launch_us": medians["copies_and_launch"], "launch_us": medians["launch"],
               "kernel_us": kernel}  # fmt: skip
    print(
        f"\n  one request at a time, us (median): {kernel:.1f} in the kernel, {medians['launch']:.1f} with a"
        f" launch, {medians['copies_and_launch']:.1f} with copies too", flush=True,
    )  # fmt: skip
    return figures


def _fill(
    rings: Rings, model: Model, items: np.ndarray, count: int, work_event: int, what: str
) -> list[Figures]:
    """Rings filled by one thread, with so many requests inside; energies of sampled replies checked."""
    from validation.bench_service_loops import fill

    runs: list[Figures] = []
    patterns = np.ascontiguousarray(items).view(np.uint64)
    frame_words = (HEADER_BYTES + 2 * model.n + 7) // 8
    for inside in _INSIDE:
        total = max(2000, count // (64 if inside == 1 else 4 if inside == 64 else 1))
        energies, times = np.zeros((2, total), np.int64)
        took = fill(rings, patterns, frame_words, inside, work_event, _PATIENCE_NS, energies, times)
        if took < 0:
            raise RunFailed(f"no reply came out of the rings of {what} for 5 s")
        tickets = np.unique(np.linspace(0, total - 1, _CHECKED).astype(int))
        marks = np.percentile(times, [50, 99]) / 1000
        runs.append({"inside": inside, "requests": total, "rate": total / took * 1e9, "p50_us": marks[0],
                     "p99_us": marks[1], "checked": len(tickets),
                     "wrong": _wrong(model, tickets, energies[tickets])})  # fmt: skip
        run = runs[-1]
        print(f"  {what}, {inside:4} inside: {run['rate'] / 1e6:6.3f} M/s  p50 {marks[0]:8.1f} us"
              f"  p99 {marks[1]:8.1f} us  wrong {run['wrong']} of {run['checked']}", flush=True)  # fmt: skip
    return runs


def measure_device_rings(count: int) -> Figures:
    """Producer warps and a consumer warp on the device."""
    from streamdsb.service.gpu import PRODUCED_AT_ONCE, GpuSolver
    from streamdsb.service.rings import TICKET_AT

    model, items = _items()
    solver = GpuSolver([model])
    runs = []
    print("\n  rings filled without a network, INT8 n 128 B 8 K 100")
    for workers in (None, cuda.multiprocessors() - 1):
        saturated = solver.saturate(items, count // PRODUCED_AT_ONCE * PRODUCED_AT_ONCE, workers)
        tickets = saturated.replies[:, TICKET_AT : TICKET_AT + 8].view("<u8")[:, 0].astype(np.int64)
        energies = saturated.replies[:, 32:40].view("<i8")[:, 0]
        runs.append({"workers": workers, "rate": saturated.rate, "checked": _CHECKED,
                     "wrong": _wrong(model, tickets[:_CHECKED], energies[:_CHECKED])})  # fmt: skip
        print(f"  on the device, {workers or 'all'} workers: {saturated.rate / 1e6:.3f} M/s"
              f"  wrong {runs[-1]['wrong']} of {_CHECKED}", flush=True)  # fmt: skip
    return {"runs": runs}


def measure_proxy_rings(count: int) -> list[Figures]:
    """The rings of the `proxy` server, filled by a thread of the CPU."""
    from streamdsb.service.gpu import DeviceStore, ResidentWorkers, mapped_array

    model, items = _items()
    store = DeviceStore(1)
    store.upload(0, model)
    rings = make_rings(mapped_array)
    workers = ResidentWorkers(rings, store)
    workers.start()
    try:
        return _fill(rings, model, items, count, -1, "proxy")
    finally:
        workers.stop()


def measure_launch_rings(count: int) -> list[Figures]:
    """The rings of the `launch` server, filled by a thread of the CPU, beside the one that launches."""
    from streamdsb.service import driver
    from streamdsb.service.gpu import DeviceStore, mapped_array
    from streamdsb.service.server_gpu import LaunchLanes, launch_requests

    driver.connect()
    model, items = _items()
    store = DeviceStore(1)
    store.upload(0, model)
    rings = make_rings(mapped_array)
    events = os.eventfd(0, os.EFD_CLOEXEC), os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    made = LaunchLanes(store, _STREAMS)
    worker = threading.Thread(target=launch_requests, args=(0, rings, made.lanes, *events), daemon=True)
    worker.start()
    try:
        return _fill(rings, model, items, count, events[0], f"launch on {_STREAMS} streams")
    finally:
        rings.control[STOP] = 1
        os.eventfd_write(events[0], 1)
        worker.join()
        made.finish()
        for event in events:
            os.close(event)


def measure_gpu(count: int, quick: bool) -> Figures:
    """All of it; `count` requests through rings at a time."""
    cuda.use_device(0)
    return {
        "kernel": measure_kernel(quick),
        "launch": measure_launch(2000),
        "device_rings": measure_device_rings(count),
        "proxy_rings": measure_proxy_rings(count),
        "launch_rings": measure_launch_rings(count // 8),
    }
