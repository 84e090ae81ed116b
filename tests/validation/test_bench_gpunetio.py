"""The loop of the benchmark on the software card, on a CPU."""

from __future__ import annotations

import pytest

from tests import cuda_on_host
from validation import bench_gpunetio, oracle


@pytest.mark.skipif(not cuda_on_host.AVAILABLE, reason="needs g++ on x86-64")
@pytest.mark.timeout(60)
def test_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_on_host.install(monkeypatch)
    loop = bench_gpunetio.CardLoop(200, 3, 1, "random", 2, bench_gpunetio.WORST, slots=512, window=128)
    with loop:
        got = [loop.record(k) for k in range(2)]
    assert got == oracle.solve(oracle.random_couplings(200, 42), replicas=3, updates=1, seed=42).records


@pytest.mark.skipif(not cuda_on_host.AVAILABLE, reason="needs g++ on x86-64")
@pytest.mark.timeout(60)
def test_receive_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cuda_on_host.install(monkeypatch)
    rates = bench_gpunetio.receive_alone(print, n=600, slots=2048, window=1024, passes=2)
    assert len(rates) == 2
    assert capsys.readouterr().out.startswith("one receive warp alone: ")


def test_link_model(capsys: pytest.CaptureFixture[str]) -> None:
    bench_gpunetio.link_model(print)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["400", "12.14", "190"]
    assert lines[2].split() == ["800", "24.27", "379"]
