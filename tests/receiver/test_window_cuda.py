"""Lossy device queues: records stay the oracle's whatever becomes of frames, on a GPU or on a CPU instead."""

from __future__ import annotations

import pytest

from streamdsb.queues.faulty import Faults
from tests import cuda_on_host
from tests.lossy_loop import LossyLoop
from validation import oracle

needs_compiler = pytest.mark.skipif(not cuda_on_host.AVAILABLE, reason="needs g++ on x86-64")


def expected_records(n: int, replicas: int, updates: int, source: str) -> list[str]:
    couplings = getattr(oracle, f"{source}_couplings")(n, 42)
    return oracle.solve(couplings, replicas=replicas, updates=updates, seed=42).records


@needs_compiler
@pytest.mark.parametrize("queues", [1, 3])
def test_on_the_cpu(queues: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_on_host.install(monkeypatch)
    faults = Faults(lose=0.1, repeat=0.1, delay=0.1, alter=0.1)
    with LossyLoop(700, 3, 3, "random", queues, faults, slots=256, window=128) as loop:
        got = [loop.record(k) for k in range(4)]
        print(loop.receiver.describe(), loop.intake.resent)
    assert got == expected_records(700, 3, 3, "random")
