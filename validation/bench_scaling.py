"""Strong and weak scaling of several receivers on this machine, the model's prediction beside each pass.

Every point is a real run under mpiexec, a generator beside each receiver, and the fastest of its passes but
the first, since the speed of a shared machine drifts within seconds.  The model is that of `streamdsb plan
--receivers`.  Its terms are measured here: what a receiver takes in with a core for itself and one for its
generator, and with one core for both (of G receivers on c cores, each takes in the lower of the former and
c / G of the latter); updates a second; and latency and bandwidth between two ranks, from exchanges of few and
of many signs.

On GPUs, each with its generator, what holds for cores holds for them: ranks that share one take turns.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.scaling import Network, PassTime
from streamdsb import cuda
from streamdsb.config import make_config
from streamdsb.errors import RunFailed, UserError
from streamdsb.layout import Layout
from streamdsb.machine import describe_machine, usable_cores
from streamdsb.run_directory import TIMINGS, read_lines

_UPDATES = 12
_LIMIT_S = 600.0
_FEW, _MANY = (1_000, 1), (10_000_000, 8)
"""Spins and replicas of the exchanges that tell latency and bandwidth."""
_ON_GPU: dict[str, Any] = {
    "stream": {"transport": "peer", "queues": 8},
    "generator": {"backend": "cuda"},
    "receiver": {"backend": "cuda"},
}

Timing = dict[str, float]


def main(n: int, replicas: int, receivers: Sequence[int], output: Path | None, on_gpu: bool = False) -> None:
    """Measure, print the tables and write JSON; raises UserError if there is no mpiexec, or no GPU."""
    bench = _Bench(_mpiexec(), cuda.device_count() if on_gpu else usable_cores(), replicas, on_gpu)
    alone = bench.best_pass(n, 1)
    one_core = alone if on_gpu else bench.best_pass(n, 1, cores=1)
    terms = _Terms.of(n, replicas, alone, one_core, bench.exchange_s(*_FEW), bench.exchange_s(*_MANY))
    print(terms.text)
    print(f"the model with these terms: streamdsb plan CONFIG --receivers 1,2,4 {terms.options}")
    what = "gpus" if on_gpu else "cores"
    figures: dict[str, Any] = {"terms": vars(terms), what: bench.cores, "machine": describe_machine()}
    weak = [(math.isqrt(n * n * count), count) for count in receivers]
    for name, sizes in (("strong", [(n, count) for count in receivers]), ("weak", weak)):
        print(f"\n{name:6}  receivers           n     measured        model  measured / model        GB/s")
        figures[name] = [bench.point(size, count, terms) for size, count in sizes]
    if output is not None:
        output.write_text(json.dumps(figures, indent=2) + "\n")


def _mpiexec() -> str:
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise UserError("bench scaling needs an mpiexec; get one with: pip install mpich")
    return found


@dataclass(frozen=True)
class _Terms:
    """What the model is given; bytes, updates of one spin, and seconds."""

    alone_rate: float
    """Payload a second into a receiver that has a core, and its generator another; or both a GPU."""
    one_core_rate: float
    """The same if both share one core, or a GPU."""
    update_rate: float
    latency_s: float
    bandwidth: float

    @classmethod
    def of(
        cls, n: int, replicas: int, alone: Timing, one_core: Timing, few_s: float, many_s: float
    ) -> _Terms:
        spins, signed = _MANY
        received = Layout(spins, signed, 1).bitmap_words * 8 * signed / 2
        return cls(
            alone["payload_bytes"] / alone["receive_s"],
            one_core["payload_bytes"] / one_core["receive_s"],
            n * replicas / alone["update_s"],
            few_s,
            received / max(many_s - few_s, 1e-9),
        )

    def network(self, receivers: int, cores: int) -> Network:
        """What each of `receivers` on `cores` meets."""
        rate = min(self.alone_rate, self.one_core_rate * cores / receivers)
        return Network(rate, self.latency_s, self.bandwidth, self.update_rate)

    @property
    def options(self) -> str:
        """The terms as `streamdsb plan` takes them."""
        gigabits = 8e-9
        return (
            f"--rate {self.alone_rate * gigabits:.3g} --latency-us {self.latency_s * 1e6:.3g}"
            f" --bandwidth {self.bandwidth * gigabits:.3g} --update-rate {self.update_rate:.3g}"
        )

    @property
    def text(self) -> str:
        return (
            f"a receiver and its generator: {self.alone_rate / 1e9:.2f} GB/s alone,"
            f" {self.one_core_rate / 1e9:.2f} GB/s on one core or GPU;"
            f" {self.update_rate / 1e6:.0f} M updates/s; between ranks {self.latency_s * 1e6:.0f} us and"
            f" {self.bandwidth / 1e9:.2f} GB/s"
        )


@dataclass(frozen=True)
class _Bench:
    mpiexec: str
    cores: int
    """Or GPUs."""
    replicas: int
    on_gpu: bool

    def point(self, n: int, receivers: int, terms: _Terms) -> dict[str, float]:
        """Measure one row of a table and print it."""
        model = PassTime.of(Layout(n, self.replicas, 1), receivers, terms.network(receivers, self.cores))
        timing = self.best_pass(n, receivers)
        measured = timing["total_s"]
        rate = timing["payload_bytes"] / measured
        print(
            f"{receivers:>17,}{n:>12,}{1e3 * measured:>10.1f} ms{1e3 * model.total_s:>10.1f} ms"
            f"{measured / model.total_s:>18.2f}{rate / 1e9:>12.2f}",
            flush=True,
        )
        return {"n": n, "model_s": model.total_s} | vars(model) | {f"measured_{k}": timing[k] for k in timing}

    def best_pass(self, n: int, receivers: int, cores: int | None = None) -> Timing:
        """Of the fastest pass of a run but the first; on the first `cores` of those allowed, or on all."""
        problem = {"source": "random", "n": n, "seed": 42}
        solver = {"replicas": self.replicas, "updates": _UPDATES, "seed": 42}
        config = make_config({"problem": problem, "solver": solver, **(_ON_GPU if self.on_gpu else {})})
        with tempfile.TemporaryDirectory() as folder:
            path, out = Path(folder) / "run.yaml", Path(folder) / "run"
            path.write_text(config.to_yaml())
            self._start(receivers, ["run", str(path), "--out", str(out)], cores)
            passes = read_lines(out / TIMINGS)[1:]
        best = min(passes, key=lambda line: line["total_s"])
        keys = ("receive_s", "update_s", "exchange_s", "total_s", "payload_bytes")
        return {key: best[key] for key in keys}

    def exchange_s(self, n: int, replicas: int) -> float:
        """Seconds of a sign exchange between two ranks."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "exchange.json"
            options = ["--n", str(n), "--replicas", str(replicas), *(["--gpu"] if self.on_gpu else [])]
            self._start(2, ["bench", "exchange", *options, "--json", str(path)])
            milliseconds: float = json.loads(path.read_text())["median_ms"]
        return milliseconds / 1e3

    def _start(self, ranks: int, arguments: list[str], cores: int | None = None) -> None:
        command = str(Path(sys.executable).with_name("streamdsb"))
        allowed = sorted(os.sched_getaffinity(0))[:cores]
        done = subprocess.run(
            [self.mpiexec, "-n", str(ranks), command, *arguments],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            preexec_fn=partial(os.sched_setaffinity, 0, allowed),
        )
        if done.returncode:
            raise RunFailed(f"{ranks} ranks of {' '.join(arguments)} failed: {done.stderr[-500:].strip()}")
