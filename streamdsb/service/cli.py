"""The commands of the request service."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import click

from streamdsb.cli_types import OutputFile, Positive
from streamdsb.errors import UserError
from streamdsb.service.limits import DEFAULT_PORT, SUMMARY

_SHOWN = ("received", "solves_accepted", "replies", "overloaded", "models_loaded")


@click.command(epilog=SUMMARY)
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key, e.g. queue=256.")
@click.option("--counters", is_flag=True, help="Print a line of counters a second.")
def serve(config: Path | None, settings: tuple[str, ...], counters: bool) -> None:
    """Serve solves of resident models until stopped; without CONFIG, on the CPU, over UDP on localhost."""
    from streamdsb.service.config import load_service_config
    from streamdsb.service.servers import make_server

    loaded = load_service_config(config, settings)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    server = make_server(loaded)
    click.echo(f"preparing the {loaded.server} server; the first start on a machine compiles for some 20 s")
    with server:
        click.echo(f"serving on {server.address}; stop with Ctrl-C")
        before = server.counters
        while not stopped.wait(1.0):
            server.check()
            if counters:
                now = server.counters
                rare = {name for name in now if name not in _SHOWN and now[name] != before[name]}
                names = [*_SHOWN, *(name for name in now if name in rare and name != "batches")]
                click.echo("  ".join(f"{name} {now[name]} (+{now[name] - before[name]})" for name in names))
                before = now
    totals = {name: count for name, count in server.counters.items() if count}
    click.echo("stopped; " + (", ".join(f"{name} {count}" for name, count in totals.items()) or "no frames"))


def _load_array(path: Path) -> Any:
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError):
        raise UserError(f"{path}: not a .npy file of numbers") from None


@click.command(epilog=SUMMARY)
@click.argument("couplings", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--field", type=click.Path(path_type=Path, dir_okay=False), help="A .npy of h, (n,) or (m, n).")
@click.option("--to", "address", default=f"127.0.0.1:{DEFAULT_PORT}", show_default=True, metavar="ADDRESS",
              help="HOST:PORT, or eth:INTERFACE/MAC for raw Ethernet.")  # fmt: skip
@click.option("--replicas", default=8, show_default=True)
@click.option("--steps", default=100, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--xi", type=float, help="Coupling gain; 0.5 sqrt(n - 1) / ||J|| if absent.")
@click.option("--dt", type=float, help="Time step; 1.0 if absent.")
@click.option("--timeout", type=Positive(1e-3, 86400), default=5.0, show_default=True, help="Seconds.")
@click.option("--spins", type=OutputFile(), help="Write the spins to this .npy.")
def request(
    couplings: Path,
    field: Path | None,
    address: str,
    replicas: int,
    steps: int,
    seed: int,
    xi: float | None,
    dt: float | None,
    timeout: float,
    spins: Path | None,
) -> None:
    """Have a server solve the model in COUPLINGS, a .npy of J (n, n), for one field or several.

    What is not integers of 8 and 16 bits is quantized with a common scale, which is said. Several fields take
    the seeds from --seed on.
    """
    import numpy as np

    from streamdsb.service.client import Client
    from streamdsb.service.limits import check_request
    from streamdsb.service.quantize import quantize
    from streamdsb.service.solve import check_gain, check_seed

    fields = None if field is None else _load_array(field)
    made = quantize(_load_array(couplings), fields)
    if made.scale != 1.0:
        click.echo(
            f"quantized with scale {made.scale:.6g}; largest error {made.coupling_error:.3g} in J,"
            f" {made.field_error:.3g} in h"
        )
    check_request(len(made.couplings), replicas, steps)
    check_seed(seed)
    for name, gain in (("xi", xi), ("dt", dt)):
        check_gain(name, gain)
    fields = None if fields is None else made.field.reshape(-1, len(made.couplings))
    count = 1 if fields is None else len(fields)
    with Client(address, timeout) as client:
        model = client.load(made.couplings)
        replies = client.solve_many(
            model, fields, seeds=range(seed, seed + count), replicas=replicas, steps=steps, xi=xi, dt=dt
        )
    for index in range(count):
        reply = replies[index]
        click.echo(
            f"2E {reply.two_energy}  replica {reply.replica}  round trip {reply.round_trip_ns / 1000:.1f} us"
            f" (queue {reply.queue_ns / 1000:.1f}, solve {reply.solve_ns / 1000:.1f},"
            f" transmit {reply.transmit_ns / 1000:.1f})"
        )
    if spins is not None:
        try:
            with spins.open("wb") as file:
                np.save(file, replies.spins[0] if count == 1 else replies.spins)
        except OSError as error:
            raise UserError(f"--spins {spins}: cannot be written ({error.strerror})") from None
        click.echo(f"spins written to {spins}")


def _choices(name: str, text: str, allowed: tuple[str, ...]) -> list[str]:
    """The words of a comma-separated option; UserError if one is not allowed."""
    words = text.split(",")
    if unknown := [word for word in words if word not in allowed]:
        raise UserError(f"{name} {unknown[0]}: it should be some of {', '.join(allowed)}")
    return words


def _rates(text: str) -> list[float]:
    try:
        rates = [float(word) for word in text.split(",") if word]
    except ValueError:
        rates = [0.0]
    if not all(1 <= rate <= 1e8 for rate in rates):
        raise UserError(f"--rates is {text!r}, but it should be numbers from 1 to 1e8 with commas between")
    return rates


@click.command("service", epilog=SUMMARY)
@click.option(
    "--only", default="solve,network", show_default=True, help="Parts to measure: solve, network, check, gpu."
)
@click.option("--servers", default="cpu", show_default=True, help="Of network and check: cpu, launch, proxy.")
@click.option("--rates", default="", help="Further arrivals a second of the open loop, e.g. 100000,600000.")
@click.option("--requests", "count", default=10_000, show_default=True, help="Requests of each network run.")
@click.option("--quick", is_flag=True, help="K = 100 alone in the kernel, and fewer replies checked.")
@click.option("--json", "output", type=OutputFile(), help="Write the figures here.")
@click.option("--plot", type=OutputFile(), help="Draw latency against load here.")
def bench_service(
    only: str, servers: str, rates: str, count: int, quick: bool, output: Path | None, plot: Path | None
) -> None:
    """One request alone, requests over the network, replies checked, and on a GPU the parts of it."""
    from validation.bench_service import PARTS, main

    parts = _choices("--only", only, PARTS)
    names = _choices("--servers", servers, ("cpu", "launch", "proxy"))
    if not 100 <= count <= 10_000_000:
        raise UserError(f"--requests is {count}, but it should be an integer from 100 to 10000000")
    main(parts, names, _rates(rates), count, quick, output, plot)
