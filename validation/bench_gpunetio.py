"""Queue kind `gpunetio` on the software card, on one GPU or between two: records, and rates beside `peer`.

    python -m validation.bench_gpunetio [--json FILE] [--n 1000000]

records   against the hashes of the CPU backend's records.jsonl (results/cuda/references.json), over 1, 4 and
          8 queues, and with 1 % of frames lost, repeated and delayed
rates     wall clock of whole passes at n, random couplings, B = 8, over `peer` and over the software card
receive   one receive warp alone, on a ring that generator and card filled before they ended
link      what 400 and 800 Gb/s of 4120-byte frames ask of a card and of the kernels, beside what they did

These are the loops of a run; `validation.gpu_check --parts card` makes whole runs.  No network card is
involved.  The exit status is 0 if all records are right.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import statistics
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from generator.resend_cuda import Repairs
from generator.synthesize_cuda import GenerateKernel
from receiver.accumulate_cuda import ReceiveKernel, shared_memory
from receiver.check import Count
from receiver.intake_cuda import LossyIntake
from receiver.update_cpu import Dynamics, checksum
from receiver.update_cuda import CudaState
from streamdsb import cuda
from streamdsb.errors import RunFailed
from streamdsb.gpunetio.queue import WIRE_BYTES
from streamdsb.gpunetio.software import LinkFaults, SoftwareRing
from streamdsb.layout import FRAME_BYTES, Layout, RowRange
from streamdsb.queues.peer import BURST_FRAMES
from streamdsb.run_directory import record_line
from validation.bench_cuda import Loop, describe_machine

REFERENCES = Path(__file__).parent / "results" / "cuda" / "references.json"
SEED, UPDATES = 42, 20
SLOTS, WINDOW = 16_384, 8192
QUEUES = (1, 4, 8)
WORST = LinkFaults(lose=0.01, repeat=0.01, delay=0.01)
_NAP_S = 2e-4


class CardLoop:
    """A run's inner loop over the software card: receiver on device 0, generator and card on any."""

    def __init__(
        self,
        n: int,
        replicas: int,
        updates: int,
        source: str,
        queues: int,
        faults: LinkFaults | None = None,
        generator_device: int = 0,
        slots: int = SLOTS,
        window: int = WINDOW,
    ) -> None:
        self.layout = Layout(n, replicas, queues)
        rows, xi = self.layout.queue_rows, np.float32(0.5 / np.sqrt(np.float64(n)))
        cuda.use_device(0)
        sender = generator_device or None
        self.ring = SoftwareRing(queues, slots, window, faults, sender=sender)
        self.state = CudaState(
            self.layout, RowRange(0, n), Dynamics(updates, xi, np.float32(1.1)), SEED, None
        )
        self.intake = LossyIntake(self.layout, 1, window, 100.0, self.ring.lines)
        self.receiver = ReceiveKernel(
            self.layout, rows, 1, 0, self.ring, self.state, windows=self.intake.windows
        )
        self._beside = beside = None if sender else shared_memory(replicas)
        with self.ring.on_sender():
            _reach_receiver(sender)
            self.generator = GenerateKernel(
                self.layout, rows, source, SEED, 1, 0, updates + 1, self.ring, beside
            )
        self.repairs = Repairs(self.layout, 1, self.generator, self.ring.lines, window)

    def __enter__(self) -> CardLoop:
        self.receiver.start()
        with self.ring.on_sender():
            self.generator.start()
        self.ring.start(self._beside)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self.ring.on_sender():
                self.generator.stop()
        finally:
            self.receiver.stop()
            self.ring.stop()

    def record(self, k: int, timeout_s: float = 60.0) -> str:
        """Pass k from its release to its line of records.jsonl."""
        self.intake.begin_pass(k)
        self.repairs.begin_pass(k, k)
        self.generator.release(k + 1)
        deadline = time.monotonic() + timeout_s
        while self.receiver.drained < k + 1 or not self.repairs.complete:
            self.receiver.check()
            self.ring.check()
            self.intake.step(self.receiver, k + 1)
            self.repairs.step(time.monotonic())
            if time.monotonic() > deadline:
                raise RunFailed(f"pass {k} did not end within {timeout_s:g} s: {self.receiver.describe()}")
            time.sleep(_NAP_S)
        energies = [int(e) for e in self.receiver.finish_pass(k, k + 1, self.state.host_signs)]
        return record_line(k, energies, checksum(self.state.host_signs))


def _reach_receiver(device: int | None) -> None:
    """Let the current device write into the memory of device 0, if it is another."""
    if device is not None:
        import cupy

        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):  # it can already
            cupy.cuda.runtime.deviceEnablePeerAccess(0)


def check_records(say: Any, device: int) -> bool:
    """Whether all records are those of the CPU backend."""
    right = True
    for case, expected in json.loads(REFERENCES.read_text()).items():
        source, n, replicas = case.split("-")
        if n not in ("1000", "33001", "100000"):
            continue
        for queues, faults in [*((queues, None) for queues in QUEUES), (4, WORST)]:
            text, counters = _records(int(n), int(replicas), source, queues, faults, device)
            same = hashlib.sha256(text.encode()).hexdigest() == expected
            right &= same
            what = "1 % lost, repeated, delayed" if faults else "nothing lost"
            say(f"{'ok  ' if same else 'FAIL'} {case}, {queues} queues, {what}: {counters}")
    return right


def _records(
    n: int, replicas: int, source: str, queues: int, faults: LinkFaults | None, device: int
) -> tuple[str, dict[str, int]]:
    """records.jsonl of a run, and what the card counted; its memory is free again when this returns."""
    with CardLoop(n, replicas, UPDATES, source, queues, faults, device) as loop:
        text = "".join(loop.record(k) + "\n" for k in range(UPDATES + 1))
    return text, loop.ring.counters()


def pass_seconds(loop: Loop | CardLoop, passes: int) -> float:
    """Median wall clock of the passes after the first."""
    times = []
    with loop:
        for k in range(passes):
            start = time.perf_counter()
            loop.record(k)
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def measure(say: Any, n: int, device: int, passes: int = 4) -> list[dict[str, float]]:
    """Passes over `peer` and over the software card, by queues."""
    rows = []
    for queues in QUEUES:
        layout = Layout(n, 8, queues)
        frames = layout.frames_per_pass
        peer = pass_seconds(Loop(n, 8, passes, "random", queues, generator_device=device), passes)
        card = pass_seconds(CardLoop(n, 8, passes, "random", queues, None, device), passes)
        rows.append({"queues": queues, "device": device, "peer_s": peer, "card_s": card})
        say(
            f"generator on device {device}, {queues} queues: peer {peer * 1e3:.1f} ms, software card"
            f" {card * 1e3:.1f} ms a pass ({100 * peer / card:.0f} %), {frames / card / 1e6:.1f} M frames/s,"
            f" {frames / card / queues / 1e6:.2f} M a receive warp,"
            f" {frames * FRAME_BYTES / card / 1e9:.0f} GB/s"
        )
    return rows


def receive_alone(
    say: Any, n: int = 64_000, slots: int = 2**18, window: int = 2**17, passes: int = 3
) -> list[float]:
    """Frames a second that one receive warp takes in, a pass each time, from a ring that holds all of it.

    From the first that the host sees counted to the last, B = 1; generator and card have ended by then.
    """
    rates = []
    for _ in range(passes):
        loop = CardLoop(n, 1, 0, "mattis", 1, None, 0, slots, window)
        frames = loop.layout.frames_per_pass
        loop.intake.begin_pass(0)
        loop.generator.start()
        loop.ring.start(None)
        loop.generator.permit(0, frames)
        loop.generator.release(1)
        deadline = time.monotonic() + 60
        while not loop.generator.wait_sent(1) and time.monotonic() < deadline:
            loop.ring.check()
        time.sleep(0.2)  # the card carries what was sent last
        loop.generator.stop()
        loop.ring.stop()
        loop.receiver.start()
        try:
            rates.append(_rate_of_counting(loop, frames))
        finally:
            loop.receiver.stop()
    say("one receive warp alone: " + ", ".join(f"{rate / 1e6:.2f}" for rate in rates) + " M frames/s")
    return rates


def _rate_of_counting(loop: CardLoop, frames: int, timeout_s: float = 30.0) -> float:
    seen: list[tuple[float, int]] = []
    deadline = time.monotonic() + timeout_s
    while not seen or seen[-1][1] < frames:
        count = int(loop.receiver.counts[0, Count.ACCEPTED])
        if count > (seen[-1][1] if seen else 0):
            seen.append((time.perf_counter(), count))
        if time.monotonic() > deadline:
            raise RunFailed(
                f"{frames} frames were not counted in {timeout_s:g} s: {loop.receiver.describe()}"
            )
    (start, first), (end, last) = seen[0], seen[-1]
    return (last - first) / (end - start) if end > start else float("nan")


def link_model(say: Any) -> None:
    """What links ask for, a second."""
    say("Gb/s  M frames and descriptors/s  k doorbells and completions/s")
    for gbps in (400, 800):
        frames = gbps * 1e9 / 8 / WIRE_BYTES
        say(f"{gbps:4}  {frames / 1e6:27.2f}  {frames / BURST_FRAMES / 1e3:30.0f}")


def main() -> int:
    """Check and measure on the GPUs there are."""
    parser = argparse.ArgumentParser(prog="python -m validation.bench_gpunetio", description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--n", type=int, default=1_000_000)
    given = parser.parse_args()
    devices = min(cuda.device_count(), 2)
    cuda.use_device(0)
    describe_machine(print, f"python -m validation.bench_gpunetio {' '.join(sys.argv[1:])}")
    link_model(print)
    right = True
    for device in range(devices):
        right &= check_records(print, device)
    alone = receive_alone(print)
    rows = [row for device in range(devices) for row in measure(print, given.n, device)]
    if given.json:
        figures = {"records": right, "n": given.n, "passes": rows, "receive_warp_frames_per_s": alone}
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    print("all records are right" if right else "some records are wrong")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
