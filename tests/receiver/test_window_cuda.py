"""Lossy device queues: records stay the oracle's whatever becomes of frames, on a GPU or on a CPU instead."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generator.resend_cuda import orders_of
from receiver.check import Count
from receiver.window_cuda import Look, window_words
from streamdsb.channel import Channel
from streamdsb.errors import RunFailed
from streamdsb.feedback import MAX_RANGES
from streamdsb.messages import Begin, Ready, Stop
from streamdsb.queues.faulty import Faults, FaultyRing
from streamdsb.worker import Control
from tests import cuda_on_host
from tests.harness import config_of
from tests.lossy_loop import LossyLoop
from validation import oracle
from validation.gpu_check import REFERENCES

FAULTS = {
    "nothing": Faults(),
    "loss of 0.1 %": Faults(lose=0.001),
    "loss of 1 %": Faults(lose=0.01),
    "loss of 10 %": Faults(lose=0.1),
    "repetition": Faults(repeat=0.2),
    "delay": Faults(delay=0.3),
    "alteration": Faults(alter=0.05),
    "everything": Faults(lose=0.1, repeat=0.1, delay=0.2, alter=0.1),
}


@cache
def expected_records(n: int, replicas: int, updates: int, source: str) -> list[str]:
    couplings = getattr(oracle, f"{source}_couplings")(n, 42)
    return oracle.solve(couplings, replicas=replicas, updates=updates, seed=42).records


@pytest.fixture(
    params=[
        pytest.param(
            "cpu", marks=pytest.mark.skipif(not cuda_on_host.AVAILABLE, reason="needs g++ on x86-64")
        ),
        pytest.param("gpu", marks=pytest.mark.gpu),
    ]
)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the kernels run."""
    if request.param == "cpu":
        cuda_on_host.install(monkeypatch)
    return request.param


# --- on a GPU ---------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.timeout(60)
@pytest.mark.parametrize("queues", [1, 4, 8])
@pytest.mark.parametrize("name", FAULTS)
def test_records_are_the_oracles(name: str, queues: int) -> None:
    with LossyLoop(5000, 8, 3, "random", queues, FAULTS[name], slots=2048, window=1024) as loop:
        got = [loop.record(k) for k in range(4)]
        counts = loop.receiver.counts.sum(axis=0)
    assert got == expected_records(5000, 8, 3, "random")
    assert counts[Count.ACCEPTED] == 4 * 5000
    assert (counts[Count.DUPLICATE] > 0) >= (name == "repetition")
    assert (counts[Count.CORRUPT] > 0) >= (name == "alteration")


@pytest.mark.gpu
@pytest.mark.timeout(60)
@pytest.mark.parametrize("replicas", [1, 33, 64])
@pytest.mark.parametrize(("source", "n"), [("mattis", 4097), ("random", 65), ("random", 2)])
def test_replicas_of_any_number(source: str, n: int, replicas: int) -> None:
    with LossyLoop(n, replicas, 3, source, 2, FAULTS["everything"]) as loop:
        got = [loop.record(k) for k in range(4)]
    assert got == expected_records(n, replicas, 3, source)


@pytest.mark.gpu
@pytest.mark.timeout(60)
@pytest.mark.parametrize("queues", [1, 4])
def test_two_column_blocks_and_many_windows(queues: int) -> None:
    faults = Faults(lose=0.01, repeat=0.01, delay=0.01, alter=0.01)
    with LossyLoop(33_001, 8, 20, "random", queues, faults, slots=16_384, window=8192) as loop:
        lines = "".join(loop.record(k) + "\n" for k in range(21))
    expected = json.loads(REFERENCES.read_text())["random-33001-8"]
    assert hashlib.sha256(lines.encode()).hexdigest() == expected


@pytest.mark.gpu
@pytest.mark.multi_gpu
@pytest.mark.timeout(60)
@pytest.mark.parametrize("queues", [1, 8])
def test_from_one_gpu_to_another(queues: int) -> None:
    faults = FAULTS["everything"]
    with LossyLoop(5000, 8, 3, "random", queues, faults, slots=2048, window=1024, generator_device=1) as loop:
        got = [loop.record(k) for k in range(4)]
    assert got == expected_records(5000, 8, 3, "random")


# --- on a GPU and on a CPU --------------------------------------------------------------------------


@pytest.mark.timeout(60)
@pytest.mark.parametrize("queues", [1, 3])
def test_everything_that_can_go_wrong(device: str, queues: int) -> None:
    with LossyLoop(500, 3, 2, "random", queues, FAULTS["everything"], slots=256, window=128) as loop:
        got = [loop.record(k) for k in range(3)]
        counts = loop.receiver.counts.sum(axis=0)
    assert got == expected_records(500, 3, 2, "random")
    assert counts[Count.ACCEPTED] == 3 * 500
    assert counts[Count.DUPLICATE] > 0
    assert counts[Count.CORRUPT] > 0


@pytest.mark.timeout(60)
def test_ring_that_is_overwritten_before_it_is_read(device: str) -> None:
    with LossyLoop(500, 3, 1, "random", 1, Faults(), slots=64, window=256, budget=1000) as loop:
        got = [loop.record(k) for k in range(2)]
    assert got == expected_records(500, 3, 1, "random")


@pytest.mark.timeout(60)
def test_resumed_in_the_middle(device: str) -> None:
    with LossyLoop(130, 3, 2, "random", 1, Faults(lose=0.2), first_pass=1) as loop:
        assert '"pass":1' in loop.record(1)
        assert '"pass":2' in loop.record(2)
        assert loop.receiver.counts[0, Count.ACCEPTED] == 2 * 130


@pytest.mark.timeout(60)
def test_nothing_arrives(device: str) -> None:
    with (
        LossyLoop(500, 3, 1, "random", 1, Faults(lose=1.0), slots=128, window=64, budget=0.0) as loop,
        pytest.raises(AssertionError),
    ):
        loop.record(0, timeout_s=0.5)


@pytest.mark.timeout(60)
def test_too_much_that_has_to_be_sent_again(device: str) -> None:
    with (
        LossyLoop(500, 3, 1, "random", 1, Faults(alter=1.0), slots=128, window=64, budget=0.0) as loop,
        pytest.raises(RunFailed, match=r"pass 0, queue 0: .* asked for again \(stream\.resend_budget\)"),
    ):
        loop.record(0)


@pytest.mark.timeout(60)
def test_engines(device: str) -> None:
    from generator.engine_cuda import CudaGeneratorEngine
    from receiver.engine_cuda import CudaReceiver

    cuda_section = {"backend": "cuda"}
    stream = {"transport": "peer", "queues": 2, "timeout_s": 20}
    config = config_of("random", 300, stream=stream, generator=cuda_section, receiver=cuda_section)
    ring = FaultyRing(2, 256, 128, FAULTS["everything"])
    ours, theirs = socket.socketpair()
    coordinator, control = Channel(ours, "the generator"), Control(Channel(theirs, "the coordinator"))
    coordinator.set_timeout(20)
    receiver = CudaReceiver(config, 7, None, ring, [], threading.Event(), 0, ring.lines)
    generator = CudaGeneratorEngine(config, 7, ring, control, 0, ring.lines)
    energies = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(generator.run)
        assert isinstance(coordinator.receive()[0], Ready)
        receiver.start()
        for k in range(3):
            coordinator.send(Begin(pass_index=k))
            receiver.receive_pass(k)
            coordinator.receive()
            energies.append(receiver.measure(k))
            receiver.advance(k)
        coordinator.send(Stop(completed=True))
        running.result(timeout=20)
        receiver.stop()
    records = expected_records(300, config.solver.replicas, 2, "random")
    assert energies == [json.loads(record)["two_energy"] for record in records]
    assert receiver.count_resent() > 0


# --- what the host reads and writes -----------------------------------------------------------------


@pytest.mark.parametrize("frames", [1, 64, 4032, 4033, 8192])
def test_window_has_room_for_all_frames_on_the_way(frames: int) -> None:
    words = window_words(frames)
    assert words >= 64
    assert words & (words - 1) == 0
    assert 64 * (words - 1) >= frames


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 2**32), st.integers(0, 300), st.integers(0, 300))
def test_what_is_missing_is_found(base: int, seed: int, ahead: int, length: int) -> None:
    added = set((base + 1 + np.flatnonzero(np.random.default_rng(seed).random(900) < 0.7)).tolist())
    bits = np.zeros(64, np.uint64)
    for frame in added:
        bits[frame // 64 % 64] |= np.uint64(1) << np.uint64(frame % 64)
    first, stop = base + ahead - 50, base + ahead + length
    ranges = Look(base, 0, 0, bits).missing(first, stop)
    found = [first + k for first, count in ranges.tolist() for k in range(count)]
    assert found == [frame for frame in range(max(first, base), stop) if frame not in added]


def test_more_gaps_than_a_request_holds() -> None:
    look = Look(0, 0, 0, np.full(64, 0xAAAA_AAAA_AAAA_AAAA, np.uint64))
    assert look.missing(0, 4000).tolist() == [[2 * k, 1] for k in range(MAX_RANGES)]


@pytest.mark.parametrize("rows", [1, 64, 80, 128, 200])
def test_orders_are_the_tiles_of_what_is_missing(rows: int) -> None:
    ranges = np.array([[0, 1], [rows - 1, 2], [3 * rows, 70], [3 * rows + 60, 20]])
    wanted = {first + k for first, count in ranges.tolist() for k in range(count)}
    groups = -(-rows // 64)
    got = set()
    for order in orders_of(ranges, rows, 2, 5):
        assert (order["queue"], order["pass"]) == (2, 5)
        block, group = divmod(int(order["tile"]), groups)
        got |= {block * rows + group * 64 + bit for bit in range(64) if int(order["rows"]) >> bit & 1}
    assert got == wanted
