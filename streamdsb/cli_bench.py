"""The commands under `streamdsb bench`."""

from __future__ import annotations

from pathlib import Path

import click

from streamdsb.cli_types import OutputFile
from streamdsb.errors import UserError
from streamdsb.service.cli import bench_service

_json = click.option("--json", "output", type=OutputFile(), help="Write the figures here.")


def receiver_counts(text: str) -> list[int]:
    """Numbers of receivers, as --receivers takes them; UserError if they are none."""
    from streamdsb.layout import MAX_RECEIVERS

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 and 1 <= int(part) <= MAX_RECEIVERS for part in parts):
        raise UserError(f"--receivers {text}: expected numbers from 1 to {MAX_RECEIVERS} such as 1,2,4")
    return [int(part) for part in parts]


@click.group()
def bench() -> None:
    """Measure the parts of streamdsb on this machine, beside their ceilings."""


bench.add_command(bench_service)


@bench.command()
@click.option("--n", type=click.IntRange(64, 10_000_000), default=100_000, show_default=True)
@_json
def pipeline(n: int, output: Path | None) -> None:
    """Synthesis, symmetry check, accumulation and queue alone, and the whole pipeline, on the CPU."""
    from validation.bench_pipeline import main as measure

    measure(n, output)


@bench.command()
@click.option("--n", type=click.IntRange(64, 1_000_000), default=40_000, show_default=True)
@_json
def links(n: int, output: Path | None) -> None:
    """Passes over UDP, undisturbed and with losses, beside a plain sender of the same frames."""
    from validation.bench_links import main as measure

    measure(n, output)


@bench.command()
@click.option(
    "--only",
    default="accumulate,synthesize,run,host,peer",
    show_default=True,
    help="Parts to measure; peer needs a second GPU.",
)
@_json
def cuda(only: str, output: Path | None) -> None:
    """Synthesis and accumulation alone, and whole passes, on one GPU and between two."""
    from validation.bench_cuda import PARTS
    from validation.bench_cuda import main as measure

    parts = only.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        raise UserError(f"--only {unknown[0]}: the parts are {', '.join(PARTS)}")
    measure(parts, output)


@bench.command()
@click.option("--n", type=click.IntRange(64, 100_000_000), default=10_000_000, show_default=True)
@click.option("--replicas", type=click.IntRange(1, 1024), default=8, show_default=True)
@_json
@click.option("--gpu", "on_gpu", is_flag=True, help="Between GPUs, which the ranks of a host take in turn.")
def exchange(n: int, replicas: int, output: Path | None, on_gpu: bool) -> None:
    """Sign exchange between the ranks of an mpiexec: mpiexec -n 2 streamdsb bench exchange."""
    from validation.bench_exchange import main as measure

    measure(n, replicas, output, on_gpu)


@bench.command()
@click.option("--n", type=click.IntRange(64, 10_000_000), default=100_000, show_default=True)
@click.option("--replicas", type=click.IntRange(1, 1024), default=8, show_default=True)
@click.option("--receivers", default="1,2", show_default=True, metavar="G,G,...", help="How many, in turn.")
@_json
@click.option("--gpu", "on_gpu", is_flag=True, help="On this machine's GPUs instead of its cores.")
def scaling(n: int, replicas: int, receivers: str, output: Path | None, on_gpu: bool) -> None:
    """Passes with several receivers on this machine's cores, beside what the model of plan predicts."""
    from validation.bench_scaling import main as measure

    measure(n, replicas, receiver_counts(receivers), output, on_gpu)
