"""Queue kind `gpunetio` on the software card: records stay the oracle's, on a GPU or on a CPU instead."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import TracebackType

import numpy as np
import pytest

from receiver.accumulate_cuda import shared_memory
from receiver.check import Count
from streamdsb.channel import Channel
from streamdsb.errors import RunFailed
from streamdsb.gpunetio.ends import AnswerEnd, FeedbackEnd, mac_of
from streamdsb.gpunetio.queue import address_words, check_faults, frame_picoseconds, source_address
from streamdsb.gpunetio.software import LinkFaults, SoftwareRing
from streamdsb.messages import Begin, Ready, Stop
from streamdsb.worker import Control
from tests import cuda_on_host, lossy_loop
from tests.harness import config_of
from validation import oracle
from validation.bench_cuda import Loop

FAULTS = {
    "nothing": LinkFaults(),
    "loss of 1 %": LinkFaults(lose=0.01),
    "repetition": LinkFaults(repeat=0.2),
    "delay": LinkFaults(delay=0.3),
    "everything": LinkFaults(lose=0.1, repeat=0.1, delay=0.2),
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
    """Where the kernels and the card run."""
    if request.param == "cpu":
        cuda_on_host.install(monkeypatch)
    return request.param


class CardLoop(lossy_loop.LossyLoop):
    """The same loop as over queue kind `faulty`, over the software card, whose faults end it."""

    ring: SoftwareRing

    def look_up(self) -> None:
        self.ring.check()
        super().look_up()

    def __enter__(self) -> CardLoop:
        super().__enter__()
        self.ring.start(shared_memory(self.layout.replicas))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.ring.stop()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch, device: str) -> type[CardLoop]:
    monkeypatch.setattr(lossy_loop, "FaultyRing", SoftwareRing)
    return CardLoop


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "queues"), [("nothing", 1), ("everything", 3)])
def test_records_are_the_oracles(loop: type[CardLoop], name: str, queues: int) -> None:
    with loop(500, 3, 2, "random", queues, FAULTS[name], slots=256, window=128) as run:
        got = [run.record(k) for k in range(3)]
        counts = run.receiver.counts.sum(axis=0)
        run.ring.check()
    assert got == expected_records(500, 3, 2, "random")
    assert counts[Count.ACCEPTED] == 3 * 500
    lost, repeated = (run.ring.counters()[name] for name in ("lost", "repeated"))
    assert (lost > 0) == (repeated > 0) == (name == "everything")
    assert (counts[Count.DUPLICATE] > 0) >= (name == "everything")


@pytest.mark.timeout(60)
def test_ring_that_is_overrun(loop: type[CardLoop]) -> None:
    with loop(500, 3, 1, "random", 1, LinkFaults(), slots=64, window=512, budget=1000) as run:
        got = [run.record(k) for k in range(2)]
    assert got == expected_records(500, 3, 1, "random")


@pytest.mark.timeout(60)
def test_completion_with_an_error_is_named(loop: type[CardLoop]) -> None:
    # the sender looks at completions only when it sends, so the error may show passes later
    with (
        loop(500, 3, 19, "random", 2, LinkFaults(fail=1)) as run,
        pytest.raises(
            RunFailed, match=r"^queue [01]: the card could not send: a completion reports an error$"
        ),
    ):
        list(map(run.record, range(20)))


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return socket.create_connection(server.getsockname()), server.accept()[0]


@pytest.mark.timeout(60)
def test_engines_with_the_way_back_over_tcp(device: str) -> None:
    from streamdsb.gpunetio.runs import CardCudaReceiver, make_generator, open_queues

    process = {"backend": "cuda", "nic": "software"}
    stream = {"transport": "gpunetio", "queues": 2, "window_frames": 128, "slots": 512, "timeout_s": 20}
    config = config_of("random", 300, stream=stream, generator=process, receiver=process)
    ours, theirs = socket.socketpair()
    coordinator, control = Channel(ours, "the generator"), Control(Channel(theirs, "the coordinator"))
    coordinator.set_timeout(20)
    pairs = [connected() for _ in range(2)]
    answers = [AnswerEnd(one) for one, _ in pairs]
    feedback = [FeedbackEnd(other, mac_of("software"), 128) for _, other in pairs]
    receiver = CardCudaReceiver(config, 7, None, open_queues(config, 7), threading.Event(), 0, answers)
    generator = make_generator(config, 7, feedback, control)
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
    for end in (*answers, *feedback):
        end.close()


# --- on a GPU ---------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.timeout(60)
@pytest.mark.parametrize("queues", [1, 4, 8])
@pytest.mark.parametrize("name", FAULTS)
def test_larger_runs(loop: type[CardLoop], device: str, name: str, queues: int) -> None:
    if device == "cpu":
        pytest.skip("takes a GPU")
    with loop(5000, 8, 3, "random", queues, FAULTS[name], slots=2048, window=1024) as run:
        got = [run.record(k) for k in range(4)]
        counts = run.receiver.counts.sum(axis=0)
    assert got == expected_records(5000, 8, 3, "random")
    assert counts[Count.ACCEPTED] == 4 * 5000


@pytest.mark.gpu
@pytest.mark.timeout(120)
@pytest.mark.parametrize("queues", [1, 4])
def test_larger_ring_that_is_overrun(loop: type[CardLoop], device: str, queues: int) -> None:
    if device == "cpu":
        pytest.skip("takes a GPU")
    with Loop(33_001, 32, 2, "random", queues) as peer:
        expected = [peer.record(k) for k in range(3)]
    with loop(33_001, 32, 2, "random", queues, LinkFaults(), slots=64, window=512, budget=1000) as run:
        got = [run.record(k, timeout_s=60) for k in range(3)]
        corrupt = run.receiver.counts[:, Count.CORRUPT].sum()
    assert got == expected
    assert run.ring.counters()["dropped"] + corrupt > 0


# --- what kernels are told --------------------------------------------------------------------------


def test_addresses_tell_queues_apart() -> None:
    mac = bytes.fromhex("b8cef6010203")
    sources = [source_address(mac, queue) for queue in range(8)]
    assert [source.hex() for source in sources[:2]] == ["02cef6010203", "12cef6010203"]
    assert len(set(sources)) == 8
    assert all(source[0] & 0b11 == 0b10 for source in sources)  # locally administered, one host
    low, high = address_words(mac, sources[1])
    assert (low.to_bytes(8, "little") + high.to_bytes(4, "little")).hex() == "b8cef601020312cef6010203"


def test_pace() -> None:
    assert frame_picoseconds(None, 4) == 0
    assert frame_picoseconds(400, 1) == 82_400  # 4120 bytes
    assert frame_picoseconds(400, 8) == 8 * 82_400


def test_faults() -> None:
    check_faults(np.zeros(2, np.uint64))
    with pytest.raises(RunFailed, match=r"^queue 1: the card could not receive"):
        check_faults(np.array([0, 2], np.uint64))
    with pytest.raises(RunFailed, match=r"^queue 0: fault 9 of the card$"):
        check_faults(np.array([9], np.uint64))
