"""The command line."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import click

import streamdsb
from streamdsb.errors import StreamdsbError


class _Commands(click.Group):
    """Turns the errors that streamdsb raises on purpose into one sentence and their exit status."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except StreamdsbError as error:
            click.echo(f"streamdsb: {error}", err=True)
            sys.exit(error.exit_status)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(streamdsb.__version__, prog_name="streamdsb")
def main() -> None:
    """Discrete simulated bifurcation on dense Ising couplings that stream past instead of being stored."""


_config = click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
_settings = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key, e.g. solver.updates=50."
)
_out = click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Run directory; by default a new one under runs/.",
)
_overwrite = click.option("--overwrite", is_flag=True, help="Replace the run that --out holds.")


def _default_out(config: Path) -> Path:
    return Path("runs") / f"{config.stem}-{datetime.now():%Y%m%d-%H%M%S}"


@main.command()
@_config
@_settings
@_out
@_overwrite
def run(config: Path, settings: tuple[str, ...], out: Path | None, overwrite: bool) -> None:
    """Run CONFIG on this machine: a generator, a receiver and a coordinator as separate processes."""
    from coordinator.main import run_here
    from coordinator.progress import TerminalDisplay
    from streamdsb.config import load_config

    run_here(load_config(config, settings), out or _default_out(config), overwrite, TerminalDisplay())
