"""Several receivers under mpiexec: the records do not depend on how many, and no failure is a hang."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest

from streamdsb.config import Config
from streamdsb.cuda import device_count
from streamdsb.errors import UserError
from streamdsb.run_directory import read_lines
from tests.harness import (
    COMMAND,
    MPIEXEC,
    Started,
    config_of,
    expected_records,
    run_command,
    started_run,
    written_config,
)
from validation import oracle

pytestmark = pytest.mark.mpi

HANG_S = 30.0
START_S = 60.0
"""For jobs that end by themselves soon after they have started, on a machine that may be busy."""
LONG_RUN = config_of(n=2000, replicas=2, updates=100_000)


class Job(Started):
    """The ranks of one mpiexec."""

    def rank(self, number: int) -> psutil.Process:
        return next(
            process
            for process in self.processes()
            if process.environ().get("PMI_RANK") == str(number) and "run" in process.cmdline()
        )

    def generator(self, rank: int) -> psutil.Process:
        return self.rank(rank).children()[0]


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts jobs, and sees to it that nothing of them is left."""
    with ExitStack() as jobs:

        def start_job(ranks: int, config: Config, *settings: str) -> Job:
            launcher: list[str | Path] = [MPIEXEC, "-n", str(ranks)]
            run = jobs.enter_context(started_run(tmp_path, config, *settings, launcher=launcher))
            return Job(run.command, run.out, run.mark)

        yield start_job


def assert_records(job: Job, expected: str) -> str:
    """The job's records are these; what it said."""
    status, err = job.end(timeout_s=90)
    assert status == 0, err
    assert (job.out / "records.jsonl").read_text() == expected
    return err


# --- records --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "n"), [(1, 1000), (3, 4097), (8, 1000)])
def test_records_do_not_depend_on_the_number_of_receivers(ranks: int, n: int, start: Start) -> None:
    config = config_of(n=n, replicas=3, updates=6, stream={"queues": 2, "burst_frames": 64})
    err = assert_records(start(ranks, config), expected_records(config))
    assert ranks == 1 or all(f"rank {rank} on " in err for rank in range(ranks))


@pytest.mark.parametrize(("receivers", "generators", "transport"), [(3, 2, "tcp"), (2, 1, "udp")])
def test_records_do_not_depend_on_where_frames_are_made(
    receivers: int, generators: int, transport: str, start: Start
) -> None:
    stream = {"queues": 2, "burst_frames": 64, "transport": transport}
    config = config_of(n=4097, replicas=3, updates=6, stream=stream, generators=generators)
    err = assert_records(start(receivers + generators, config), expected_records(config))
    assert f"rank {receivers} on " in err


def test_more_receivers_than_groups_of_rows(start: Start) -> None:
    config = config_of(n=65, updates=6)
    err = assert_records(start(5, config, "stream.queues=3"), expected_records(config))
    assert err.count("idle, as n = 65 has 2 groups of 64 rows") == 3


def test_fewer_receivers_than_ranks_and_a_field(start: Start, tmp_path: Path) -> None:
    field = np.random.default_rng(1).integers(-(2**31), 2**31, 500).astype(np.int32)
    np.save(tmp_path / "h.npy", field)
    config = config_of("mattis", 500, updates=6, problem={"field": str(tmp_path / "h.npy")})
    err = assert_records(start(3, config, "receivers=2"), expected_records(config, field))
    assert "idle, as receivers is 2" in err


def test_a_file_is_the_same_problem_as_for_one_receiver(start: Start, tmp_path: Path) -> None:
    np.save(tmp_path / "couplings.npy", oracle.random_couplings(300, 42))
    config = config_of("file", 300, updates=5, problem={"path": str(tmp_path / "couplings.npy"), "n": None})
    assert_records(start(3, config), expected_records(config_of(n=300, updates=5)))
    assert run_command("run", tmp_path / "run.yaml", "--out", tmp_path / "alone")[0] == 0
    summaries = [(tmp_path / name / "summary.json").read_text() for name in ("run", "alone")]
    hashes = [text.partition('"input_hash": ')[2].partition("\n")[0] for text in summaries]
    assert hashes[0]
    assert hashes[0] == hashes[1]
    for name in ("best_spins.npy", "final_spins.npy"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    ranks, alone = (read_lines(tmp_path / name / "timings.jsonl") for name in ("run", "alone"))
    unequal = ("_s", "gbps")
    assert [list(line) for line in ranks] == [list(line) for line in alone]
    for key in (key for key in alone[0] if not key.endswith(unequal)):
        assert [line[key] for line in ranks] == [line[key] for line in alone], key


# --- what goes wrong ------------------------------------------------------------------------------


def test_asymmetric_couplings_whose_halves_go_to_different_receivers(start: Start, tmp_path: Path) -> None:
    couplings = np.ones((300, 300), np.int8)
    couplings[200, 7] = -1
    np.save(tmp_path / "couplings.npy", couplings)
    status, err = start(2, config_of("file", 300, problem={"path": str(tmp_path / "couplings.npy")})).end(
        START_S
    )
    assert status == 2
    assert "J[7, 200] is +1, but J[200, 7] is -1" in err


@pytest.mark.parametrize("settings", [(), ("generators=1", "stream.transport=tcp")])
def test_a_source_that_raises_for_one_rank(settings: Sequence[str], start: Start, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "class Fails:\n"
        "    n = 300\n"
        "    def fill(self, rows, column_block, out):\n"
        "        if rows.stop > 192:\n"
        "            raise OSError('the tape is torn')\n"
        "        out[:] = 2**64 - 1\n"
    )
    config = config_of("python", 300, problem={"path": f"{tmp_path}/fails.py:Fails"})
    status, err = start(2 + bool(settings), config, *settings).end(START_S)
    assert status == 2
    assert "streamdsb: rank 1 on " in err
    assert "the tape is torn" in err


@pytest.mark.parametrize("victim", ["rank 0", "rank 1", "generator 1"])
def test_a_killed_process_ends_the_job(victim: str, start: Start) -> None:
    job = start(2, LONG_RUN)
    job.wait_for_passes(3)
    role, number = victim.split()
    (job.rank if role == "rank" else job.generator)(int(number)).kill()
    status, err = job.end()
    assert status != 0
    if role == "generator":
        assert "rank 1 on " in err
        assert "signal 9 (SIGKILL)" in err
    summary = json.loads((job.out / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["cause"]


def test_a_rank_that_generates_is_killed(start: Start) -> None:
    job = start(3, LONG_RUN, "generators=1", "stream.transport=tcp")
    job.wait_for_passes(3)
    job.rank(2).kill()
    assert job.end()[0] != 0
    assert json.loads((job.out / "summary.json").read_text())["status"] == "failed"


@pytest.mark.parametrize("victim", [0, 1])
def test_a_suspended_rank_is_named(victim: int, start: Start) -> None:
    job = start(3, LONG_RUN)
    job.wait_for_passes(3)
    job.rank(victim).suspend()
    status, err = job.end(timeout_s=60)
    assert status != 0
    assert re.search(rf"streamdsb: rank \d on .*: rank {victim} on .* has shown no life for 10 s", err), err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(number: signal.Signals, start: Start) -> None:
    job = start(2, LONG_RUN)
    job.wait_for_passes(3)
    job.command.send_signal(number)
    status, _ = job.end()
    assert status != 0
    text = (job.out / "records.jsonl").read_text()
    assert text.endswith("\n")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("receivers=3", "receivers is 3, but 2 ranks were started"),
        ("stream.transport=tcp", "stream.transport is tcp"),
    ],
)
def test_what_ranks_cannot_do_is_refused(setting: str, words: str, start: Start) -> None:
    job = start(2, config_of(n=100), setting)
    status, err = job.end(START_S)
    assert status == 2
    assert "streamdsb: rank 0 on " in err
    assert words in err
    assert not job.out.exists()


def _why_no_gpu() -> str | None:
    try:
        device_count()
    except UserError as error:
        return str(error)
    return None


@pytest.mark.skipif(_why_no_gpu() is None, reason="there is a GPU")
def test_a_rank_without_a_gpu(start: Start) -> None:
    status, err = start(2, config_of(n=100), "receiver.backend=cuda").end(START_S)
    assert status == 2
    words = f": there is no GPU for this rank: {_why_no_gpu()}"
    assert any(line.startswith("streamdsb: rank ") and words in line for line in err.splitlines()), err


def test_a_rank_that_never_starts() -> None:
    """One that ends before it meets the others, as where the installation of a host is broken."""
    waiting = (
        "import threading, streamdsb.communicator as c\n"
        "c._START_S = 3.0\n"
        "c.MpiRanks.world(threading.Event())\n"
    )
    done = subprocess.run(
        [MPIEXEC, "-n", "1", sys.executable, "-c", waiting, ":", "-n", "1", "false"],
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode != 0
    assert "Timeout" in done.stderr


# --- checkpoints ----------------------------------------------------------------------------------

SAVED_RUN = config_of(n=1500, replicas=3, updates=150, checkpoint={"every": 5})
TO_ITS_END = ("records.jsonl", "best_spins.npy", "final_spins.npy")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SAVED_RUN with one receiver, to its end."""
    folder = tmp_path_factory.mktemp("undisturbed")
    status, _, err = run_command("run", written_config(folder, SAVED_RUN), "--out", folder / "run")
    assert status == 0, err
    return folder / "run"


def launcher(ranks: int) -> list[str]:
    return [] if ranks == 1 else [MPIEXEC, "-n", str(ranks)]


@pytest.mark.parametrize(("before", "after"), [(3, 2), (1, 3), (3, 1)])
def test_a_run_goes_on_with_another_number_of_receivers(
    before: int, after: int, tmp_path: Path, undisturbed: Path
) -> None:
    out, path = tmp_path / "run", written_config(tmp_path, SAVED_RUN)
    first = subprocess.Popen(
        [*launcher(before), *COMMAND, "run", path, "--out", out], stderr=subprocess.DEVNULL
    )
    records, deadline = out / "records.jsonl", time.monotonic() + 60
    while not records.exists() or records.read_bytes().count(b"\n") < 12:
        assert time.monotonic() < deadline, "hangs"
        time.sleep(0.005)
    first.send_signal(signal.SIGKILL if before == 1 else signal.SIGTERM)
    first.wait(timeout=HANG_S)
    assert records.read_bytes().count(b"\n") <= SAVED_RUN.solver.updates, "it was over too soon"
    second = subprocess.run(
        [*launcher(after), *COMMAND, "run", "--resume", out],
        stderr=subprocess.PIPE,
        text=True,
        timeout=90,
        check=False,
    )
    assert second.returncode == 0, second.stderr
    assert "continuing with pass" in second.stderr
    for name in TO_ITS_END:
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes(), name
    assert not (out / "checkpoints").exists()
