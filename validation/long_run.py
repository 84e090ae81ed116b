"""A long run, with the memory of its processes watched from outside.

By default 10^9 frames and more: 311 passes over 10 column blocks of 322,560 rows.  The memory of each process
is read from /proc, so Linux only, whenever a pass more is on record, but for the last one, after which the
spins are collected.  What it is after the second pass it has to be in the end.

    python -m validation.long_run --out long_run.json
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from streamdsb.config import Config, make_config
from streamdsb.errors import RunFailed
from streamdsb.run_directory import RECORDS, TIMINGS
from validation.provenance import provenance

_COMMAND = (sys.executable, "-P", "-c", "from streamdsb.cli import main; main()")
_POLL_S = 0.02
_HANG_S = 600.0
_FLAT = 2 << 20
"""Bytes that a process may grow by: steps of the allocator, and what the coordinator keeps of each pass."""
_KEPT_SAMPLES = 60


@click.command()
@click.option("--n", type=click.IntRange(64, 10_000_000), default=322_560, show_default=True)
@click.option("--replicas", type=click.IntRange(1, 1024), default=1, show_default=True)
@click.option("--passes", type=click.IntRange(4, 1_000_000), default=311, show_default=True)
@click.option("--transport", type=click.Choice(["shm", "tcp", "udp"]), default="shm", show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures here.")
def main(n: int, replicas: int, passes: int, transport: str, out: Path | None) -> None:
    """Run over Mattis couplings and show that memory is flat from the second pass on."""
    config = make_config(
        {
            "problem": {"source": "mattis", "n": n, "seed": 42},
            "solver": {"replicas": replicas, "updates": passes - 1, "seed": 42},
            "stream": {"transport": transport},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        figures = _watch(config, Path(folder))
    click.echo(f"{figures['frames']:,} frames in {passes:,} passes, {figures['seconds']:,.0f} s")
    click.echo(f"  {'memory, MB':14}{'pass 2':>12}{'end':>12}")
    for role, at_first in figures["memory_at_pass_2"].items():
        click.echo(f"  {role:14}{at_first / 1e6:12.2f}{figures['memory_at_the_end'][role] / 1e6:12.2f}")
    if out is not None:
        figures = provenance("python -m validation.long_run", out) | figures
        out.write_text(json.dumps(figures, indent=1) + "\n")
        click.echo(f"written to {out}")
    if not figures["is_flat"]:
        raise click.ClickException(f"a process grew by more than {_FLAT:,} bytes")


def _watch(config: Config, folder: Path) -> dict[str, Any]:
    """Run and take a sample of everybody's memory after each pass."""
    path, run, log = folder / "run.yaml", folder / "run", folder / "log"
    path.write_text(config.to_yaml())
    began = time.monotonic()
    samples: list[dict[str, int]] = []
    with open(log, "w") as file:
        command = subprocess.Popen(
            [*_COMMAND, "run", str(path), "--out", str(run)], stdout=subprocess.DEVNULL, stderr=file
        )
    try:
        moved = time.monotonic()
        while command.poll() is None:
            passes = _lines(run / RECORDS)
            if passes > (samples[-1]["passes"] if samples else 0):
                moved = time.monotonic()
                memory = _memory_of(command.pid)
                if len(memory) == 3:  # the others leave before the coordinator
                    samples.append({"passes": passes, **memory})
            if time.monotonic() > moved + _HANG_S:
                raise RunFailed(f"no pass was recorded for {_HANG_S:g} s")
            time.sleep(_POLL_S)
    finally:
        command.kill()
        status = command.wait()
    if status:
        raise RunFailed(f"the run ended with status {status}:\n{log.read_text()}")
    timings = [json.loads(line) for line in (run / TIMINGS).read_text().splitlines()]
    samples = [sample for sample in samples if 2 <= sample["passes"] < len(timings)]
    if not samples:
        raise RunFailed("the run was over before its memory could be looked at; give it more passes")
    first, last = samples[0], samples[-1]
    roles = [role for role in last if role != "passes"]
    return {
        "config": config.model_dump(mode="json"),
        "seconds": round(time.monotonic() - began, 1),
        "passes": len(timings),
        "frames": sum(timing["frames"] for timing in timings),
        "dropped": sum(timing["dropped"] for timing in timings),
        "resent": sum(timing["resent"] for timing in timings),
        "memory_at_pass_2": {role: first[role] for role in roles},
        "memory_at_the_end": {role: last[role] for role in roles},
        "passes_at_the_end": last["passes"],
        "largest_from_pass_2": {role: max(sample[role] for sample in samples) for role in roles},
        "is_flat": all(last[role] <= first[role] + _FLAT for role in roles),
        "samples": samples[:: -(-len(samples) // _KEPT_SAMPLES)],
    }


def _lines(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.read_bytes().count(b"\n")
    return 0


def _memory_of(coordinator: int) -> dict[str, int]:
    """Resident bytes of the coordinator and its children, by role."""
    memory: dict[str, int] = {}
    with suppress(FileNotFoundError, ProcessLookupError):
        memory["coordinator"] = _resident(coordinator)
        children = Path(f"/proc/{coordinator}/task/{coordinator}/children").read_text()
        for child in children.split():
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
            for role in ("generator", "receiver"):
                if role in words:
                    memory[role] = _resident(int(child))
    return memory


def _resident(process: int) -> int:
    """Bytes that a process holds in memory, with what it shares; raises if it has ended."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise ProcessLookupError


if __name__ == "__main__":
    main()
