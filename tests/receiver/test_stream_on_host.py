"""The resident kernels over lossless queues, on a CPU in place of a GPU."""

from __future__ import annotations

import pytest

from tests import cuda_on_host
from validation import oracle

pytestmark = pytest.mark.skipif(not cuda_on_host.AVAILABLE, reason="needs g++ on x86-64")


@pytest.mark.parametrize(("n", "queues"), [(300, 2), (65, 1), (2, 3)])
def test_records_are_the_oracles(n: int, queues: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from validation.bench_cuda import Loop

    cuda_on_host.install(monkeypatch)
    expected = oracle.solve(oracle.random_couplings(n, 42), replicas=3, updates=3, seed=42).records
    with Loop(n, 3, 3, "random", queues, ring_bytes=1 << 20) as loop:
        assert [loop.record(k) for k in range(4)] == expected
