"""Kills at random: whatever dies, and whenever, the records of a run are the same bytes in the end.

Each run of the campaign is killed up to KILLS_PER_RUN times: the coordinator, the generator or the receiver,
while it starts, in a pass, between passes or while a checkpoint is written.  A run that ends of it goes on
with `streamdsb run --resume`, perhaps over another transport and with other queues; one that may start a
process again does so.  In some launches the frames cross a link that loses some and lets others overtake;
others are jobs of mpiexec with several receivers, which end if any process of theirs is killed: rank 0 counts
as the coordinator, the other ranks as receivers.  The seed decides what is killed and when, as far as a
machine lets anybody decide it.

    python -m validation.fault_campaign --seed 1 --runs 30 --out fault_campaign.json
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil

from coordinator.resume import is_completed
from streamdsb.checkpoint import FOLDER
from streamdsb.config import Config, make_config
from streamdsb.errors import RunFailed
from streamdsb.run_directory import CONFIG, RECORDS, TIMINGS
from validation import impairment
from validation.provenance import provenance

KILLS_PER_RUN = 6
ROLES = ("coordinator", "generator", "receiver")
MOMENTS = ("start", "pass", "boundary", "checkpoint")
_LOSS, _HOLD = 0.01, 0.01

_COMMAND = (sys.executable, "-P", "-c", "from streamdsb.cli import main; main()")
_START_S = 5.0
"""A run has started by then, mostly."""
_PASS_S = 0.005
"""About how long a pass takes."""
_POLL_S = 0.0005
_LAUNCHES_PER_RUN = 4 * KILLS_PER_RUN
_END_S = 30.0
_HANG_S = 120.0


@dataclass(frozen=True)
class Way:
    """How a launch of the run goes."""

    transport: str
    receivers: int = 1
    generators: int | None = None
    """Ranks that do nothing but generate."""
    loses: bool = False
    """Whether frames get lost and overtake each other."""

    @property
    def ranks(self) -> int:
        """Of mpiexec; 1 for none."""
        return self.receivers + (self.generators or 0)

    def __str__(self) -> str:
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        return self.transport + ", impaired" * self.loses + ranks


WAYS = (
    Way("shm"),
    Way("tcp"),
    Way("udp"),
    Way("udp", loses=True),
    Way("shm", receivers=2),
    Way("udp", receivers=2, generators=1, loses=True),
)
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
if not Path(MPIEXEC).exists():
    MPIEXEC = shutil.which("mpiexec") or ""


@dataclass
class Kill:
    """A process that was killed."""

    role: str
    moment: str
    recorded: int
    """Passes that were on record by then."""
    way: str
    partial_checkpoint: bool
    """Whether a checkpoint lay there half written."""


@dataclass
class Course:
    """What happened to a run until it was complete."""

    kills: list[Kill] = field(default_factory=list)
    resumes: int = 0
    """By the command."""
    recoveries: int = 0
    """By the run itself."""
    beginnings: int = 0
    """From nothing: there was no run yet that could be resumed."""
    outlived_s: float = 0.0
    """The longest that the others lived on after the coordinator had been killed."""


@click.command()
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--runs", type=click.IntRange(1, 10_000), default=2, show_default=True)
@click.option("--n", type=click.IntRange(64, 100_000), default=3000, show_default=True)
@click.option("--updates", type=click.IntRange(1, 100_000), default=600, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures here.")
def main(seed: int, runs: int, n: int, updates: int, out: Path | None) -> None:
    """Kill processes of runs at random and compare the records with those of an undisturbed run."""
    config = make_config(
        {
            "problem": {"source": "random", "n": n, "seed": 42},
            "solver": {"replicas": 2, "updates": updates, "seed": 42},
            "checkpoint": {"every": 5},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        figures = _campaign(Path(folder), config, seed, runs)
    if out is not None:
        figures = provenance("python -m validation.fault_campaign", out) | figures
        out.write_text(json.dumps(figures, indent=1) + "\n")
        click.echo(f"written to {out}")


def _campaign(folder: Path, config: Config, seed: int, runs: int) -> dict[str, Any]:
    path = folder / "run.yaml"
    path.write_text(config.to_yaml())
    undisturbed = folder / "undisturbed"
    with _Launch(path, undisturbed, Way("shm")) as launch:
        launch.end()
    expected = (undisturbed / RECORDS).read_bytes()
    courses: list[Course] = []
    counts: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(runs):
        out = folder / f"run-{number}"
        courses.append(_disturb(path, out, config.solver.updates + 1, random.Random(f"{seed} {number}")))
        if (out / RECORDS).read_bytes() != expected:
            raise RunFailed(f"run {number}: its records differ from the undisturbed run's: {courses[-1]}")
        counts["records_compared"] += expected.count(b"\n")
        for line in (out / TIMINGS).read_text().splitlines():
            counts.update({key: json.loads(line)[key] for key in ("frames", "resent")})
        click.echo(
            f"run {number}: {len(courses[-1].kills)} kills, the same {len(expected):,} bytes of records"
        )
    return _figures(config, seed, courses, counts, time.monotonic() - began)


def _figures(
    config: Config,
    seed: int,
    courses: list[Course],
    counts: Counter[str],
    seconds: float,
) -> dict[str, Any]:
    """Print what came out; the same for JSON."""
    kills = [kill for course in courses for kill in course.kills]
    totals: dict[str, Any] = {
        "kills_survived": len(kills),
        **{name: sum(getattr(course, name) for course in courses) for name in ("resumes", "recoveries")},
        "begun_again": sum(course.beginnings - 1 for course in courses),
        "checkpoints_half_written": sum(kill.partial_checkpoint for kill in kills),
        "longest_outlived_s": round(max(course.outlived_s for course in courses), 3),
        **counts,
    }
    click.echo(f"\n{len(courses)} runs of n = {config.n:,} in {seconds:.0f} s, seed {seed}")
    for name, value in totals.items():
        click.echo(f"  {name.replace('_', ' '):28}{value:>14,}")
    ways = Counter(kill.way for kill in kills)
    for way in map(str, WAYS):
        click.echo(f"  {'kills over ' + way:36}{ways[way]:6}")
    click.echo("  kills        " + "".join(f"{moment:>12}" for moment in MOMENTS))
    table = Counter((kill.role, kill.moment) for kill in kills)
    for role in ROLES:
        click.echo(f"  {role:13}" + "".join(f"{table[role, moment]:12}" for moment in MOMENTS))
    return {
        "seed": seed,
        "config": config.model_dump(mode="json"),
        "seconds": round(seconds, 1),
        "totals": totals,
        "courses": [asdict(course) for course in courses],
    }


def _disturb(path: Path, out: Path, passes: int, rng: random.Random) -> Course:
    """Start a run in `out`, kill and resume until it is complete."""
    course = Course()
    ways = [way for way in WAYS if way.ranks == 1 or MPIEXEC]
    for _ in range(_LAUNCHES_PER_RUN):
        resumes = (out / CONFIG).exists()
        course.resumes += resumes
        course.beginnings += not resumes
        way, queues, restarts = rng.choice(ways), rng.randint(1, 4), rng.choice((0, 2))
        seed = rng.randrange(2**32)
        with _Launch(None if resumes else path, out, way, queues, restarts, seed) as launch:
            killed = _kill_some(launch, passes, course, rng)
            launch.end(may_fail=killed)
            course.recoveries += launch.recoveries
        if is_completed(out):
            return course
    raise RunFailed(f"{out.name}: not complete after {_LAUNCHES_PER_RUN} launches: {course}")


def _kill_some(launch: _Launch, passes: int, course: Course, rng: random.Random) -> bool:
    """Kill processes until the run ends or has had its share; whether any was."""
    killed = False
    while len(course.kills) < KILLS_PER_RUN and launch.is_alive:
        role, moment = rng.choice(ROLES), rng.choice(MOMENTS)
        left = passes - launch.recorded()
        target = launch.recorded() + rng.randint(0, max(0, left // (KILLS_PER_RUN - len(course.kills))))
        launch.wait_for(moment, target, rng)
        victim = launch.process(role)
        if victim is None:
            continue
        with suppress(psutil.Error):
            victim.suspend()  # everything stands still soon, and can be looked at
            kill = Kill(role, moment, launch.recorded(), str(launch.way), launch.has_partial_checkpoint())
            victim.kill()
            killed = True
            if role == "coordinator" or kill.recorded < passes:  # the others have no work left by then
                course.kills.append(kill)
        if role == "coordinator":
            course.outlived_s = max(course.outlived_s, launch.wait_for_orphans())
    return killed


class _Launch:
    """One `streamdsb run`, and all that it started; a run that goes on has no configuration of its own."""

    def __init__(
        self, path: Path | None, out: Path, way: Way, queues: int = 1, restarts: int = 0, seed: int = 0
    ) -> None:
        launcher = [MPIEXEC, "-n", str(way.ranks)] if way.ranks > 1 else []
        environment = dict(os.environ)
        if way.loses:
            environment = impairment.entered(out.with_suffix(".hook"), _LOSS, _HOLD, seed)
        begin = ["--resume", str(out)] if path is None else [str(path), "--out", str(out), "--overwrite"]
        settings = (
            f"stream.transport={way.transport}",
            f"stream.queues={queues}",
            f"recovery.restarts={0 if launcher else restarts}",
            f"receivers={way.receivers if launcher else 'null'}",
            f"generators={way.generators or 'null'}",
        )
        options = [word for setting in settings for word in ("--set", setting)]
        self.way = way
        self._out = out
        self._log = out.with_suffix(".log")
        with open(self._log, "w") as log:
            self._command = subprocess.Popen(
                [*launcher, *_COMMAND, "run", *begin, *options],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment,
            )
        self._others: dict[int, psutil.Process] = {}

    def __enter__(self) -> _Launch:
        return self

    def __exit__(self, *_: object) -> None:
        self._look()
        for process in self._others.values():
            with suppress(psutil.Error):
                process.kill()
        self._command.kill()
        self._command.wait()

    @property
    def is_alive(self) -> bool:
        return self._command.poll() is None

    def recorded(self) -> int:
        """Passes on record."""
        path = self._out / RECORDS
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def has_partial_checkpoint(self) -> bool:
        return any((self._out / FOLDER).glob("*.partial"))

    def wait_for(self, moment: str, target: int, rng: random.Random) -> None:
        """Until it is `moment`, and `target` passes are on record, or there is nothing to wait for."""
        if moment == "start":
            started = time.monotonic() + rng.uniform(0.0, _START_S)
            self._wait_until(lambda: time.monotonic() >= started)
            return
        self._wait_until(lambda: self.recorded() >= target)
        if moment == "pass":
            time.sleep(rng.uniform(0.0, _PASS_S))
        if moment == "checkpoint":
            self._wait_until(self.has_partial_checkpoint)

    def process(self, role: str) -> psutil.Process | None:
        """The process of `role` if it is there."""
        self._look()
        if not self.is_alive:
            return None
        with suppress(psutil.Error):
            if role == "coordinator" and self.way.ranks == 1:
                return psutil.Process(self._command.pid)
            for process in self._others.values():
                if self._is_of_role(process, role):
                    return process
        return None

    def _is_of_role(self, process: psutil.Process, role: str) -> bool:
        words = process.cmdline()
        if self.way.ranks == 1 or role == "generator":
            return role in words
        is_rank_0 = process.environ().get("PMI_RANK") == "0"
        return "run" in words and MPIEXEC not in words and is_rank_0 == (role == "coordinator")

    def wait_for_orphans(self) -> float:
        """Wait until nothing is left of the run, whose coordinator is dead; the seconds that took."""
        start = time.monotonic()
        while any(_lives(process) for process in self._others.values()):
            if time.monotonic() > start + _END_S:
                raise RunFailed(f"{self._out.name}: processes live on {_END_S:g} s after their coordinator")
            time.sleep(_POLL_S)
        return time.monotonic() - start

    def end(self, may_fail: bool = False) -> None:
        """Wait for the command, which may only fail if something was killed."""
        try:
            status = self._command.wait(_HANG_S)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"{self._out.name} hangs:\n{self.said()}") from None
        if status and not (may_fail and (self.way.ranks > 1 or status in (1, -signal.SIGKILL))):
            raise RunFailed(f"{self._out.name} ended with status {status}:\n{self.said()}")

    def said(self) -> str:
        """What the command wrote to standard error."""
        return self._log.read_text()

    @property
    def recoveries(self) -> int:
        return self.said().count(": starting again, ")

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        """Or until the command ends."""
        deadline = time.monotonic() + _HANG_S
        while self.is_alive and not is_so():
            if time.monotonic() > deadline:
                raise RunFailed(f"{self._out.name} hangs:\n{self.said()}")
            time.sleep(_POLL_S)

    def _look(self) -> None:
        """Remember what runs now, to see that it ends."""
        if not self.is_alive:
            return  # its pid may be somebody else's by now
        with suppress(psutil.Error):
            children = psutil.Process(self._command.pid).children(recursive=self.way.ranks > 1)
            self._others |= {process.pid: process for process in children}


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


if __name__ == "__main__":
    main()
