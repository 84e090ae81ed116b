"""Everything that a GPU machine is asked to show, in one run: records equal to the CPU's, runs, rates.

    python -m validation.gpu_check [--out FOLDER] [--parts records,records2,runs,card,sanitizer,rates,large]

records    the resident kernels against the hashes of the CPU backend's records.jsonl (references.json):
           mattis and random, n = 1000 to 100,000, B = 1, 8, 32, 20 updates, 1, 4 and 8 queues
records2   the same with the generator on a second GPU, if there is one
runs       whole `streamdsb run`s, each beside its twin on the CPU: one GPU, a CPU generator before a GPU, and
           two GPUs in two processes, if there are two
card       whole runs over transport gpunetio on the software card: n = 1000, 33,001 and 100,000 against the
           same hashes, n = 10^6 against transport peer; B = 1, 8, 32, over 1, 4 and 8 queues
sanitizer  compute-sanitizer, memcheck and racecheck, on a small run
rates      validation.bench_cuda
large      n = 10^7: a planted instance to its ground state, and random couplings

The exit status is 0 if every check passed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from streamdsb import cuda
from streamdsb.layout import Layout, RowRange
from streamdsb.queues.peer import PeerRing
from validation.bench_cuda import Loop, describe_machine, measure

REFERENCES = Path(__file__).parent / "results" / "cuda" / "references.json"
UPDATES = 20
QUEUES = (1, 4, 8)


class Log:
    """Lines for the terminal and a file, and whether all checks passed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self.passed = True

    def say(self, line: str) -> None:
        """Print and keep a line."""
        print(line, flush=True)
        self._file.write(line + "\n")
        self._file.flush()

    def check(self, what: str, passed: bool) -> None:
        """Note a check."""
        self.passed &= passed
        self.say(f"{'ok  ' if passed else 'FAIL'} {what}")


def digest(records: Iterable[str]) -> str:
    """SHA-256 of records.jsonl with these lines."""
    return hashlib.sha256("".join(line + "\n" for line in records).encode()).hexdigest()


def check_records(log: Log, generator_device: int) -> None:
    """The matrix of problems and queues against the references."""
    where = "one GPU" if generator_device == 0 else "two GPUs"
    for case, expected in json.loads(REFERENCES.read_text()).items():
        source, n, replicas = case.split("-")
        for queues in QUEUES:
            start = time.perf_counter()
            got = digest(records(int(n), int(replicas), source, queues, generator_device))
            seconds = time.perf_counter() - start
            what = f"records {where} {source} n={n} B={replicas} queues={queues} ({seconds:.2f} s)"
            log.check(what, got == expected)


def records(n: int, replicas: int, source: str, queues: int, generator_device: int) -> list[str]:
    """The lines of a run by the resident kernels; its memory is free again when this returns."""
    with Loop(n, replicas, UPDATES, source, queues, generator_device=generator_device) as loop:
        return [loop.record(k) for k in range(UPDATES + 1)]


CARD = [
    *("stream.transport=gpunetio", "generator.backend=cuda", "receiver.backend=cuda"),
    *("generator.nic=software", "receiver.nic=software"),
]
"""Settings of runs on the software card."""

RUNS: dict[str, list[str]] = {
    "cpu": [],
    "one GPU": [
        "stream.transport=peer",
        "generator.backend=cuda",
        "receiver.backend=cuda",
        "stream.queues=8",
    ],
    "CPU to GPU": ["receiver.backend=cuda", "generator.threads=4", "stream.queues=4"],
    "CPU to GPU over TCP": ["receiver.backend=cuda", "stream.transport=tcp"],
    "software card": [*CARD, "stream.queues=4"],
    "two GPUs": [
        *("stream.transport=peer", "generator.backend=cuda", "receiver.backend=cuda"),
        *("generator.device=1", "stream.queues=4"),
    ],
}
"""Settings of whole runs."""


def check_runs(log: Log, folder: Path) -> None:
    """Whole runs, whose records have to be the same."""
    for source, n, replicas in (("random", 33001, 8), ("mattis", 4097, 33)):
        problem = [f"problem.source={source}", f"problem.n={n}", "problem.seed=42"]
        solver = ["solver.seed=42", f"solver.replicas={replicas}", "solver.updates=20"]
        expected = b""
        for name, settings in RUNS.items():
            if name == "two GPUs" and cuda.device_count() < 2:
                continue
            out = folder / f"run-{source}-{n}-{name.replace(' ', '-')}"
            start = time.perf_counter()
            status, error = run(out, [*problem, *solver, *settings])
            records = (out / "records.jsonl").read_bytes() if status == 0 else b""
            expected = expected or records
            what = f"run {name} {source} n={n} B={replicas} ({time.perf_counter() - start:.1f} s)"
            log.check(what, status == 0 and records == expected)
            if status:
                log.say(error)


def check_card(log: Log, folder: Path) -> None:
    """Whole runs on the software card, whose records have to be those of others."""
    references = json.loads(REFERENCES.read_text())
    for source, n, replicas in itertools.product(("random", "mattis"), (1000, 33001, 100_000), (1, 8, 32)):
        settings = _problem(source, n, replicas, UPDATES)
        # queues carry all sources alike
        for queues in QUEUES if source == "random" else QUEUES[-1:]:
            _check_card_run(log, folder, settings, queues, references[f"{source}-{n}-{replicas}"])
    for replicas in (1, 8, 32):
        settings = _problem("random", 1_000_000, replicas, 2)
        status, error = run(folder / "peer", [*settings, *RUNS["one GPU"]])
        if status:
            log.check(f"run over peer: {error}", False)
            continue
        expected = _file_digest(folder / "peer")
        for queues in QUEUES:
            _check_card_run(log, folder, settings, queues, expected)


def _problem(source: str, n: int, replicas: int, updates: int) -> list[str]:
    problem = [f"problem.source={source}", f"problem.n={n}", "problem.seed=42"]
    return [*problem, "solver.seed=42", f"solver.replicas={replicas}", f"solver.updates={updates}"]


def _file_digest(directory: Path) -> str:
    """SHA-256 of the records of a run; "" if it has none."""
    records = directory / "records.jsonl"
    return hashlib.sha256(records.read_bytes()).hexdigest() if records.exists() else ""


def _check_card_run(log: Log, folder: Path, settings: list[str], queues: int, expected: str) -> None:
    start, out = time.perf_counter(), folder / "card"
    status, error = run(out, [*settings, *CARD, f"stream.queues={queues}"], timeout_s=120)
    words = [setting.partition(".")[2] for setting in settings if "seed" not in setting]
    what = f"software card {' '.join(words)} queues={queues} ({time.perf_counter() - start:.1f} s)"
    log.check(what, status == 0 and _file_digest(out) == expected)
    if status:
        log.say(error)
        return
    timings = [json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines()]
    counts = {
        key: sum(timing[key] for timing in timings) for key in ("resent", "duplicated", "late", "overrun")
    }
    if any(counts.values()):
        log.say(f"     {counts}")


def run(out: Path, settings: list[str], timeout_s: float = 60) -> tuple[int, str]:
    """`streamdsb run` with these settings: its exit status and the end of what it said."""
    config = out.parent / "empty.yaml"
    config.write_text("problem: {}\n")
    program = "from streamdsb.cli import main; main()"
    command = [sys.executable, "-P", "-c", program, "run", str(config), "--out", str(out), "--overwrite"]
    for setting in settings:
        command += ["--set", setting]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        return -1, f"no end after {error.timeout} s: {error.stderr!r}"
    return done.returncode, (done.stdout + done.stderr)[-2000:]


def run_kernels_in_turn(replicas: int, queues: int) -> None:
    """A pass through generate kernel and then receive kernel, for tools that run one kernel at a time.

    Raises RuntimeError if its energies are not the oracle's.
    """
    from generator.synthesize_cuda import GenerateKernel
    from receiver.accumulate_cuda import ReceiveKernel
    from receiver.update_cpu import Dynamics
    from receiver.update_cuda import CudaState
    from validation import oracle

    n, seed = 1000, 42
    layout = Layout(n, replicas, queues)
    xi = np.float32(0.5 / np.sqrt(np.float64(n)))
    ring = PeerRing.allocate(queues, 16 << 20)  # room for the whole pass
    state = CudaState(layout, RowRange(0, n), Dynamics(1, xi, np.float32(1.1)), seed, None)
    receiver = ReceiveKernel(layout, layout.queue_rows, 1, 0, ring, state)
    generator = GenerateKernel(layout, layout.queue_rows, "random", seed, 1, 0, 1, ring)
    generator.release(1)
    generator.start()
    cuda.settle()
    energies = []

    def lead() -> None:
        receiver.wait_drained(1, timeout=60)
        energies.extend(receiver.finish_pass(0, 1, state.host_signs).tolist())
        receiver.stop()

    thread = threading.Thread(target=lead)
    thread.start()
    receiver.start()
    thread.join()
    couplings = oracle.random_couplings(n, seed)
    expected = next(oracle.passes(couplings, replicas=replicas, updates=1, seed=seed))
    if json.loads(expected.record)["two_energy"] != energies:
        raise RuntimeError(f"the energies of {replicas} replicas are not the oracle's")


def check_sanitizer(log: Log) -> None:
    """memcheck and racecheck on a small pass of the resident kernels."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        log.say("skip sanitizer: compute-sanitizer is not installed")
        return
    calls = "; ".join(f"run_kernels_in_turn({b}, {q})" for b, q in ((8, 2), (1, 1), (33, 1)))
    code = f"from validation.gpu_check import run_kernels_in_turn; {calls}"
    for check in ("memcheck", "racecheck"):
        command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-c", code]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired as error:
            log.check(f"sanitizer {check}: no end after {error.timeout:g} s", False)
            continue
        lines = (done.stdout + done.stderr).strip().split("\n")
        log.check(f"sanitizer {check}: {lines[-1]}", done.returncode == 0)
        if done.returncode:
            log.say("\n".join(lines[-30:]))


LARGE = {
    # of these seeds every replica's first overlap with the planted spins is large enough for one update
    "mattis": ["problem.seed=42", "solver.seed=6", "solver.updates=2"],
    "random": ["problem.seed=42", "solver.seed=42", "solver.updates=10"],
}
"""Settings of the runs of n = 10^7."""


def check_large(log: Log, folder: Path) -> None:
    """n = 10^7 as whole runs on one GPU: the planted ground state after one update, and seconds a pass."""
    n, replicas = 10_000_000, 8
    for source, settings in LARGE.items():
        out = folder / f"large-{source}"
        problem = [f"problem.source={source}", f"problem.n={n}", f"solver.replicas={replicas}"]
        peak = DeviceMemory()
        status, error = run(out, [*problem, *settings, *RUNS["one GPU"]], timeout_s=240)
        log.check(f"large {source}: device memory {peak.stop() / 1e9:.3f} GB at its peak", status == 0)
        if status:
            log.say(error)
            continue
        timings = [json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines()]
        log.say(f"large {source}: seconds a pass {[timing['total_s'] for timing in timings]}")
        records = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
        if source == "mattis":
            planted = [-n * (n - 1)] * replicas
            after = all(record["two_energy"] == planted for record in records[1:])
            log.check(f"large mattis: every replica at 2E = {planted[0]:,} after the first update", after)


class DeviceMemory:
    """Device memory taken since this was made, watched until `stop`."""

    def __init__(self) -> None:
        self._before = cuda.free_memory()
        self._least = self._before
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        cuda.use_device(0)
        while not self._over.wait(0.05):
            self._least = min(self._least, cuda.free_memory())

    def stop(self) -> int:
        """The most that was taken, in bytes."""
        self._over.set()
        self._thread.join()
        return self._before - self._least


def main() -> int:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(prog="python -m validation.gpu_check", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"))
    parser.add_argument("--parts", default="records,records2,runs,card,sanitizer,rates,large")
    given = parser.parse_args()
    parts = set(given.parts.split(","))
    given.out.mkdir(parents=True, exist_ok=True)
    log = Log(given.out / "gpu_check.log")
    devices = cuda.device_count()
    cuda.use_device(0)
    describe_machine(log.say, f"python -m validation.gpu_check {' '.join(sys.argv[1:])}")
    if "runs" in parts:
        check_runs(log, given.out)
    if "card" in parts:
        check_card(log, given.out)
    for device, part in enumerate(("records", "records2")[:devices]):
        if part in parts:
            check_records(log, device)
    if "large" in parts:
        check_large(log, given.out)
    if "rates" in parts:
        (given.out / "rates.json").write_text(json.dumps(measure(log.say), indent=1) + "\n")
    if "sanitizer" in parts:
        check_sanitizer(log)
    log.say("all checks passed" if log.passed else "some checks failed")
    return 0 if log.passed else 1


if __name__ == "__main__":
    sys.exit(main())
