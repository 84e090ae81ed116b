"""The command line."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

import streamdsb
from streamdsb.cli_bench import bench, receiver_counts
from streamdsb.cli_types import OutputFile, Positive
from streamdsb.errors import StreamdsbError, UserError
from streamdsb.service.cli import request, serve
from streamdsb.standard_streams import open_missing

if TYPE_CHECKING:
    from streamdsb.communicator import Communicator


class _Commands(click.Group):
    """Turns the errors that streamdsb raises on purpose into one sentence and their exit status."""

    _is_interrupted = False

    def invoke(self, ctx: click.Context) -> object:
        open_missing()
        if threading.current_thread() is threading.main_thread():
            self._is_interrupted = False
            signal.signal(signal.SIGTERM, self._interrupt)  # until a command does more about it
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._interrupt)
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            # while modules are imported, an interrupt can come out as any other exception
            if self._is_interrupted or isinstance(error, KeyboardInterrupt):
                click.echo("streamdsb: interrupted", err=True)
                sys.exit(130)
            if not isinstance(error, StreamdsbError):
                raise
            click.echo(f"streamdsb: {error}", err=True)
            sys.exit(error.exit_status)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._is_interrupted = True
        signal.default_int_handler(number, frame)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(streamdsb.__version__, prog_name="streamdsb")
def main() -> None:
    """Discrete simulated bifurcation on dense Ising couplings that stream past instead of being stored."""


_config = click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
_run_directory = click.argument("directory", type=click.Path(path_type=Path))
_settings = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key, e.g. solver.updates=50."
)
_out = click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Run directory; by default a new one under runs/.",
)
_overwrite = click.option("--overwrite", is_flag=True, help="Replace the run that --out holds.")


_positive = Positive(1e-9, 1e15)


def _host_and_port(_: click.Context, option: click.Parameter, address: str) -> str:
    """Refuse what neither a resolver nor an integer takes, with the option's name."""
    host, _colon, port = address.rpartition(":")
    try:
        host.encode("idna")
    except UnicodeError:
        raise UserError(f"{option.opts[0]} {address}: {host!r} is not a host name or an address") from None
    if len(port) > 5:
        raise UserError(f"{option.opts[0]} {address[:80]}: expected HOST:PORT with a port from 0 to 65535")
    return address


def _address(name: str, help_text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        name, "address", required=True, metavar="HOST:PORT", callback=_host_and_port, help=help_text
    )


_connect = _address("--connect", "The coordinator.")
_expect = click.option(
    "--expect",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Refuse a coordinator whose configuration differs from this file.",
)


def _out_or_default(out: Path | None, config: Path) -> Path:
    return out or Path("runs") / f"{config.stem}-{datetime.now():%Y%m%d-%H%M%S}"


@main.command()
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False), required=False)
@_settings
@_out
@_overwrite
@click.option(
    "--resume",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Go on with the interrupted run in DIR; --set may change how it runs, not what it solves.",
)
def run(
    config: Path | None, settings: tuple[str, ...], out: Path | None, overwrite: bool, resume: Path | None
) -> None:
    """Run CONFIG on this machine: a generator, a receiver and a coordinator as separate processes.

    Under mpiexec or srun, each rank is a receiver of some of the rows with a generator of its own.
    """
    from streamdsb.communicator import be_rank, started_by_mpi

    if (config is None) == (resume is None):
        raise UserError("run takes either CONFIG or --resume DIR")
    if resume is not None and (out is not None or overwrite):
        raise UserError("--resume goes on in its own directory; --out and --overwrite do not go with it")
    if started_by_mpi():
        be_rank(partial(_run_as_rank, config, settings, out, overwrite, resume))
        return
    from coordinator.main import resume_here, run_here
    from coordinator.progress import TerminalDisplay
    from streamdsb.config import load_config

    if resume is not None:
        resume_here(resume, settings, TerminalDisplay())
    if config is not None:
        loaded = load_config(config, settings)
        run_here(loaded, _out_or_default(out, config), overwrite, TerminalDisplay())


def _run_as_rank(
    config: Path | None,
    settings: tuple[str, ...],
    out: Path | None,
    overwrite: bool,
    resume: Path | None,
    ranks: Communicator,
    trouble: threading.Event,
) -> None:
    from coordinator.progress import TerminalDisplay
    from coordinator.ranks import run_as_rank
    from coordinator.resume import load_began
    from streamdsb.config import load_config

    display = TerminalDisplay()
    if resume is not None:
        began = partial(load_began, resume, settings)
        run_as_rank(began, resume, False, True, display, ranks, trouble)
    if config is not None:
        load = partial(load_config, config, settings)
        run_as_rank(load, _out_or_default(out, config), overwrite, False, display, ranks, trouble)


@main.command()
@_config
@_settings
@_out
@_overwrite
@_address("--listen", "Where the others connect.")
def coordinate(
    config: Path, settings: tuple[str, ...], out: Path | None, overwrite: bool, address: str
) -> None:
    """Lead a run of CONFIG whose generator and receiver are started apart and join over TCP.

    All three need the same token in the environment variable STREAMDSB_TOKEN; without one, a new token
    is made and shown. Waits up to 600 s for the two to join.
    """
    from coordinator.main import coordinate as lead
    from coordinator.progress import TerminalDisplay
    from streamdsb.config import load_config_for_apart
    from streamdsb.links import parse_address

    loaded = load_config_for_apart(config, settings)
    host, port = parse_address(address)
    lead(loaded, _out_or_default(out, config), overwrite, TerminalDisplay(), host, port)


@main.command()
@_connect
@_expect
def generate(address: str, expect: Path | None) -> None:
    """Be the generator of a run: connect to its coordinator and make its couplings.

    Waits up to 60 s for a coordinator that does not listen yet.
    """
    from generator.main import work
    from streamdsb.join import remote_origin
    from streamdsb.worker import serve

    origin = remote_origin(address, expected=expect)
    click.echo(f"connected to {origin.peer} as its generator", err=True)
    serve(origin, work)


@main.command()
@_connect
@_expect
@click.option("--data-host", help="Address the generator reaches this machine at, if not the obvious one.")
def receive(address: str, expect: Path | None, data_host: str | None) -> None:
    """Be the receiver of a run: connect to its coordinator, hold the replicas and accumulate.

    Waits up to 60 s for a coordinator that does not listen yet.
    """
    from receiver.main import work
    from streamdsb.join import remote_origin
    from streamdsb.worker import serve

    origin = remote_origin(address, data_host, expect)
    click.echo(f"connected to {origin.peer} as its receiver", err=True)
    serve(origin, work)


@main.command()
@_config
@_settings
@click.option(
    "--rate",
    type=_positive,
    default=400.0,
    show_default=True,
    help="Link rate in Gb/s; with --receivers, of payload into each of them.",
)
@click.option("--receivers", metavar="G,G,...", help="Also a table of pass times with so many receivers.")
@click.option(
    "--latency-us", type=_positive, default=10.0, show_default=True, help="Of a message between receivers."
)
@click.option("--bandwidth", type=_positive, default=100.0, show_default=True, help="Of signs, in Gb/s.")
@click.option(
    "--update-rate",
    type=_positive,
    default=5e8,
    show_default=True,
    help="Spin updates a second and receiver.",
)
@click.option(
    "--plot",
    "picture",
    type=OutputFile(),
    metavar="FILE.png",
    help="Also a picture of that table; needs '.[plot]'.",
)
def plan(
    config: Path,
    settings: tuple[str, ...],
    rate: float,
    receivers: str | None,
    latency_us: float,
    bandwidth: float,
    update_rate: float,
    picture: Path | None,
) -> None:
    """Say what a run of CONFIG would cost; no couplings are read and nothing is allocated.

    Only where CONFIG leaves problem.n open, the file or class that it names is opened and asked for it.
    """
    from coordinator.plan import plan_lines, with_known_n
    from coordinator.scaling import Network, scaling_lines
    from coordinator.scaling_plot import plot_scaling
    from streamdsb.config import load_config

    counts = [] if receivers is None else receiver_counts(receivers)
    if picture is not None and not counts:
        raise UserError(f"--plot {picture} draws the table of --receivers; say for which, such as 1,2,4")
    loaded = with_known_n(load_config(config, settings))
    for line in plan_lines(loaded, rate):
        click.echo(line)
    if counts:
        network = Network(rate / 8 * 1e9, latency_us * 1e-6, bandwidth / 8 * 1e9, update_rate)
        for line in scaling_lines(loaded.layout, counts, network):
            click.echo(line)
        if picture is not None:
            plot_scaling(loaded.layout, counts, network, picture)
            click.echo(picture)


@main.command()
@_run_directory
def validate(directory: Path) -> None:
    """Check a run: accounting, the planted ground state, checksums, energies recomputed by an oracle."""
    from validation.validate import lines, passed
    from validation.validate import validate as check

    checks = check(directory)
    for line in lines(checks):
        click.echo(line)
    sys.exit(0 if passed(checks) else 1)


@main.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
def compare(a: Path, b: Path) -> None:
    """Compare the records of two runs byte for byte; exit status 0 if they are equal, 1 if not."""
    from validation.compare import compare as compare_records

    comparison = compare_records(a, b)
    for line in comparison.lines():
        click.echo(line)
    sys.exit(0 if comparison.equal else 1)


@main.command()
@_run_directory
@click.option("--output", type=OutputFile(), help="The PNG to write.")
def report(directory: Path, output: Path | None) -> None:
    """Plot a run: energies and rate against pass."""
    from validation.report import report as draw

    click.echo(draw(directory, output))


@main.command()
@click.option("--gpunetio", is_flag=True, help="Look for what stream.transport=gpunetio needs, in detail.")
@click.option("--nic", metavar="PCI", help="Which network card, such as 17:00.0; else the closest to a GPU.")
@click.option("--gpu", metavar="PCI", help="Which GPU.")
def doctor(gpunetio: bool, nic: str | None, gpu: str | None) -> None:
    """Say what this machine has, what is missing for which feature, and how to get it."""
    from streamdsb import doctor as doctors
    from streamdsb import doctor_gpunetio as gpunetio_doctors

    if gpunetio:
        machine = gpunetio_doctors.Machine(nic=nic, gpu=gpu)
        click.echo(gpunetio_doctors.report(gpunetio_doctors.examine(machine)))
    else:
        click.echo(doctors.report(doctors.examine()))


main.add_command(serve)
main.add_command(request)
main.add_command(bench)
