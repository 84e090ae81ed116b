"""A live server over UDP: answers against the oracle, statuses, loading, replacing, a million bad frames."""

import socket
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest

from streamdsb.errors import RunFailed, UserError
from streamdsb.service.client import Client
from streamdsb.service.config import load_service_config, make_service_config
from streamdsb.service.messages import RESULT, Status, load_frames, solve_frames
from streamdsb.service.models import Format, Model, pack
from streamdsb.service.replies import LoadedModel, RequestRefused
from streamdsb.service.server import Server
from streamdsb.service.servers import make_server
from validation import oracle_solve
from validation.bench_service_network import exchange_all
from validation.bench_service_requests import requests_for

pytestmark = pytest.mark.processes

VALUES = {Format.PM1: [-1, 1], Format.TERNARY: [-1, 0, 0, 1], Format.INT8: list(range(-128, 128))}


def couplings_for(n: int, format: Format, seed: int = 0) -> np.ndarray:  # noqa: A002
    upper = np.triu(np.random.default_rng(seed).choice(VALUES[format], (n, n)).astype(np.int8), 1)
    return upper + upper.T


@pytest.fixture
def wire(server: Server) -> Iterator[socket.socket]:
    """A bare socket to the server."""
    host, port = server.address.rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect((host, int(port)))
        made.settimeout(10)
        yield made


def ask(wire: socket.socket, frame: bytes) -> np.void:
    wire.send(frame)
    return np.frombuffer(wire.recv(2048)[:64], RESULT)[0]


def frame_for(model: LoadedModel, **changes: int) -> bytes:
    values = {"slot": model.slot, "generation": model.generation, "n": model.n, "replicas": 1, "updates": 1}
    values.update(changes)
    return solve_frames(  # type: ignore[misc]
        values.pop("slot"), values.pop("generation"), values.pop("n"), None, np.zeros(1, np.uint64), **values
    )[0].tobytes()


@pytest.mark.parametrize("format", list(Format))
@pytest.mark.parametrize(("n", "replicas", "steps"), [(1, 1, 1), (31, 3, 50), (64, 64, 7), (128, 8, 100)])
@pytest.mark.parametrize("with_field", [False, True])
def test_answers_are_the_oracles(
    client: Client,
    format: Format,  # noqa: A002
    n: int,
    replicas: int,
    steps: int,
    with_field: bool,
) -> None:
    couplings = couplings_for(n, format)
    h = np.random.default_rng(1).integers(-(2**15), 2**15, n) if with_field else None
    model = client.load(couplings, format=format)
    reply = client.solve(model, h, replicas=replicas, steps=steps, seed=2**63 + n)
    reference = oracle_solve.solve(couplings, h, replicas=replicas, updates=steps, seed=2**63 + n)
    assert (reply.two_energy, reply.replica) == (reference.two_energy, reference.replica)
    assert np.array_equal(reply.spins, reference.spins)
    assert reply.round_trip_ns >= reply.queue_ns + reply.solve_ns


def test_xi_and_dt_of_model_and_request(client: Client) -> None:
    couplings = couplings_for(40, Format.INT8)
    model = client.load(couplings, xi=0.125)
    for xi, dt in ((0.0, 0.0), (0.25, 0.75)):
        reply = client.solve(model, steps=30, xi=xi or None, dt=dt or None)
        reference = oracle_solve.solve(couplings, None, replicas=8, updates=30, seed=0, xi=xi or 0.125, dt=dt)
        assert np.array_equal(reply.spins, reference.spins)


def test_many_at_once(client: Client) -> None:
    couplings = couplings_for(48, Format.INT8)
    rng = np.random.default_rng(3)
    fields = rng.integers(-500, 500, (600, 48))
    model = client.load(couplings)
    replies = client.solve_many(model, fields, seeds=range(600), steps=20, replicas=4)
    assert len(replies) == 600
    for index in range(0, 600, 37):
        reference = oracle_solve.solve(couplings, fields[index], replicas=4, updates=20, seed=index)
        assert replies.two_energy[index] == reference.two_energy
        assert np.array_equal(replies.spins[index], reference.spins)


def test_submit(client: Client) -> None:
    couplings = {n: couplings_for(n, Format.INT8) for n in (20, 50)}
    models = {n: client.load(couplings[n]) for n in couplings}
    futures = [
        (n, seed, client.submit(models[n], steps=10, seed=seed)) for seed in range(20) for n in couplings
    ]
    refused = client.submit(LoadedModel(60, 1, 20))
    for n, seed, future in futures:
        reference = oracle_solve.solve(couplings[n], None, replicas=8, updates=10, seed=seed)
        assert future.result(timeout=10).two_energy == reference.two_energy
    with pytest.raises(RequestRefused, match="unknown model"):
        refused.result(timeout=10)


def test_statuses(client: Client, wire: socket.socket, server: Server) -> None:
    model = client.load(couplings_for(33, Format.TERNARY), slot=5)
    good = frame_for(model)
    cases = {
        frame_for(model, generation=model.generation ^ 1): Status.UNKNOWN_MODEL,
        frame_for(model, slot=63): Status.UNKNOWN_MODEL,
        good[:16] + struct.pack("<I", 64) + good[20:]: Status.UNKNOWN_MODEL,
        frame_for(model, n=34): Status.WRONG_N,
        frame_for(model, replicas=0): Status.OUT_OF_RANGE,
        frame_for(model, replicas=65): Status.OUT_OF_RANGE,
        frame_for(model, updates=0): Status.OUT_OF_RANGE,
        frame_for(model, updates=100_001): Status.OUT_OF_RANGE,
        good[:44] + struct.pack("<f", float("nan")) + good[48:]: Status.OUT_OF_RANGE,
        good[:48] + struct.pack("<f", -1.0) + good[52:]: Status.OUT_OF_RANGE,
        good[:48] + struct.pack("<f", float("inf")) + good[52:]: Status.OUT_OF_RANGE,
        good + b"\0": Status.MALFORMED,
        good + bytes(1500): Status.MALFORMED,
        good[:38] + b"\1" + good[39:]: Status.MALFORMED,
        good[:38] + b"\2" + good[39:]: Status.MALFORMED,
        good[:15] + b"\7" + good[16:]: Status.MALFORMED,
        good: Status.OK,
    }
    for frame, status in cases.items():
        reply = ask(wire, frame)
        assert (reply["version"], reply["type"], reply["status"]) == (1, 19, status)
    before = server.counters
    for silent in (b"", good[:63], good[:14] + b"\2" + good[15:], good[:15] + b"\x13" + good[16:]):
        wire.send(silent)
    assert ask(wire, good)["status"] == Status.OK  # the next thing that comes back answers this
    after = server.counters
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    expected = {"too_short": 2, "wrong_version": 1, "wrong_type": 1, "received": 5, "solves_accepted": 1}
    assert {name: grown[name] for name in expected} == expected


def test_fragments_in_any_order_and_twice(wire: socket.socket) -> None:
    couplings = couplings_for(90, Format.INT8)
    frames = load_frames(7, 100, pack(couplings), request=9)
    order = [*np.random.default_rng(0).permutation(len(frames)).tolist() * 1]
    for index in order[:-1]:
        wire.send(frames[index])
        wire.send(frames[index])
    wire.settimeout(0.2)
    with pytest.raises(TimeoutError):
        wire.recv(2048)
    wire.settimeout(10)
    for frame in (frames[order[-1]], frames[0], frames[order[-1]]):  # retransmission is acknowledged again
        wire.send(frame)
        ack = wire.recv(2048)
        assert len(ack) == 64
        assert struct.unpack_from("<BBIIQI", ack, 14) == (1, 17, 7, 100, 9, Status.OK)
    model = LoadedModel(7, 100, 90)
    reference = oracle_solve.solve(couplings, None, replicas=1, updates=1, seed=0)
    assert ask(wire, frame_for(model))["two_energy"] == reference.two_energy


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda frame: frame[:16] + struct.pack("<I", 64) + frame[20:], Status.OUT_OF_RANGE),
        (lambda frame: frame[:36] + struct.pack("<H", 4) + frame[38:], Status.OUT_OF_RANGE),
        (lambda frame: frame[:52] + struct.pack("<I", 17) + frame[56:], Status.OUT_OF_RANGE),
        (lambda frame: frame[:40] + struct.pack("<I", 1) + frame[44:], Status.OUT_OF_RANGE),
        (lambda frame: frame[:56] + struct.pack("<f", -1.0) + frame[60:], Status.OUT_OF_RANGE),
        (lambda frame: frame[:48] + struct.pack("<I", 1) + frame[52:], Status.MALFORMED),
        (lambda frame: frame + b"\0", Status.MALFORMED),
        (lambda frame: frame[:64], Status.MALFORMED),
    ],
)
def test_bad_loads_are_refused(wire: socket.socket, change, status: Status) -> None:  # type: ignore[no-untyped-def]
    (frame,) = load_frames(8, 1, pack(np.array([[0, 9], [9, 0]])))
    wire.send(change(frame))
    assert struct.unpack_from("<I", wire.recv(2048), 32)[0] == status


@pytest.mark.parametrize(
    "model",
    [
        Model(2, Format.INT8, bytes([0, 1, 2, 0])),
        Model(2, Format.INT8, bytes([1, 0, 0, 0])),
        Model(2, Format.PM1, struct.pack("<2I", 1, 0)),
        Model(2, Format.PM1, struct.pack("<2I", 4, 0)),
        Model(2, Format.PM1, struct.pack("<2I", 2, 0)),
        Model(2, Format.TERNARY, struct.pack("<4I2i", 2, 1, 2, 1, 0, 0)),
        Model(2, Format.TERNARY, struct.pack("<4I2i", 2, 1, 0, 0, 1, 0)),
    ],
)
def test_models_that_are_none_are_refused(client: Client, model: Model) -> None:
    with pytest.raises(RequestRefused, match="malformed"):
        client.load(model, slot=9)


def test_replacing_a_model_under_load_gives_no_mixture(client: Client, server: Server) -> None:
    rng = np.random.default_rng(8)
    n, asked = 100, 40
    generations = [couplings_for(n, Format.INT8, seed) for seed in range(4)]
    expected = [
        [oracle_solve.solve(J, None, replicas=2, updates=60, seed=seed).two_energy for seed in range(asked)]
        for J in generations
    ]
    assert len(set(map(tuple, expected))) == 4
    answered = 0
    with Client(server.address) as loader:
        for turn in range(12):
            index = turn % 4
            model = loader.load(generations[index], slot=11, generation=turn + 1)
            futures = [client.submit(model, replicas=2, steps=60, seed=seed) for seed in range(asked)]
            if turn % 2:
                futures[0].result(timeout=10)
            else:
                time.sleep(float(rng.uniform(0, 0.004)))
            loader.load(generations[(index + 1) % 4], slot=11, generation=turn + 1000)
            for seed, future in enumerate(futures):
                refusal = future.exception(timeout=10)
                if refusal is None:
                    assert future.result().two_energy == expected[index][seed]
                    answered += 1
                else:
                    assert isinstance(refusal, RequestRefused)
                    assert refusal.status == Status.UNKNOWN_MODEL
    assert answered >= 6


def test_overload_is_answered_at_once() -> None:
    config = make_service_config({"listen": "127.0.0.1:0", "workers": 1, "queue": 4})
    with make_server(config) as small, Client(small.address) as client:
        model = client.load(couplings_for(128, Format.INT8))
        host, port = small.address.rsplit(":", 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
            wire.connect((host, int(port)))
            wire.settimeout(5)
            for _ in range(40):
                wire.send(frame_for(model, replicas=32, updates=20000))
            first = np.frombuffer(wire.recv(2048)[:64], RESULT)[0]
            assert first["status"] == Status.OVERLOADED
        assert small.counters["overloaded"] > 0
        with pytest.raises(RequestRefused, match="overloaded"), Client(small.address, timeout=0.1) as hasty:
            hasty.solve(model)


def test_no_server_is_said_so() -> None:
    with Client("127.0.0.1:1", timeout=0.5) as client:
        with pytest.raises(RunFailed, match=r"no server|no answer"):
            client.load(np.zeros((2, 2), int))
        with pytest.raises(RunFailed, match="no answer"):
            client.solve(LoadedModel(0, 1, 2))


def test_a_million_mutated_frames(client: Client, wire: socket.socket, server: Server) -> None:
    """Frames with random bytes changed, cut or prolonged; the server answers afterwards as before."""
    couplings = couplings_for(32, Format.INT8)
    model = client.load(couplings, slot=20)
    rng = np.random.default_rng(2)
    seeds = [
        frame_for(model),
        solve_frames(20, model.generation, 32, np.ones((1, 32), np.int16), np.ones(1, np.uint64), replicas=2,
                     updates=2)[0].tobytes(),
        *load_frames(21, 5, pack(couplings)),
        *load_frames(20, 6, pack(couplings_for(40, Format.PM1))),
    ]  # fmt: skip
    rounds, each = 250, 4000
    before = server.counters["received"]
    sent = 0
    for turn in range(rounds):
        base = np.frombuffer(seeds[turn % len(seeds)], np.uint8)
        batch = np.tile(base, (each, 1))
        rows = np.arange(each)
        for _ in range(int(rng.integers(1, 4))):
            places = rng.integers(14, min(len(base), 80), each) % len(base)
            batch[rows, places] = rng.integers(0, 256, each)
        cuts = np.where(rng.random(each) < 0.1, rng.integers(0, len(base) + 1, each), len(base))
        batch[:, 40:44] = np.where(rng.random((each, 1)) < 0.9, np.minimum(batch[:, 40:44], [9, 0, 0, 0]),
                                   batch[:, 40:44])  # fmt: skip
        raw = batch.tobytes()
        width = len(base)
        for index in range(each):
            wire.send(raw[index * width : index * width + int(cuts[index])])
        sent += each
    assert sent == 1_000_000
    with Client(server.address, timeout=20) as after:
        fresh = after.load(couplings, slot=22)
        reference = oracle_solve.solve(couplings, None, replicas=8, updates=100, seed=3)
        assert np.array_equal(after.solve(fresh, seed=3).spins, reference.spins)
    server.check()
    print(server.counters)
    assert server.counters["received"] - before > 100_000


def test_configuration_says_what_is_wrong(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "service.yaml"
    path.write_text("workers: 3\nqueue: 10\n")
    assert load_service_config(path, ["queue=20"]).queue == 20
    path.write_text("worker: 3\n")
    with pytest.raises(UserError, match="unknown key worker; valid keys: server, listen"):
        load_service_config(path)
    with pytest.raises(UserError, match="server is 'gpunetio', which this version does not have yet"):
        make_service_config({"server": "gpunetio"})
    with pytest.raises(UserError, match="queue is '5000'"):
        make_service_config({"queue": 5000})
    with pytest.raises(UserError, match=r"cannot use the interface nosuch|CAP_NET_RAW"):
        make_server(make_service_config({"interface": "nosuch"}))


def test_raw_ethernet() -> None:
    """The same service on whole Ethernet frames, where the system permits raw sockets."""
    try:
        server = make_server(make_service_config({"interface": "lo", "workers": 1}))
    except UserError as error:
        pytest.skip(str(error))
    couplings = couplings_for(40, Format.INT8)
    with server, Client("eth:lo") as client:
        assert server.address == "lo (EtherType 0x88b6)"
        model = client.load(couplings)
        replies = client.solve_many(model, seeds=range(50), steps=20)
        for seed in range(50):
            reference = oracle_solve.solve(couplings, None, replicas=8, updates=20, seed=seed)
            assert replies.two_energy[seed] == reference.two_energy
            assert np.array_equal(replies.spins[seed], reference.spins)
        # on lo the server also sees its own answers, and must not answer them
        assert server.counters["wrong_type"] >= 50
        with pytest.raises(UserError, match="aa:bb:cc:dd:ee:ff"):
            Client("eth:lo/nonsense")


def test_a_client_that_vanishes_costs_nothing_but_its_replies(client: Client, server: Server) -> None:
    couplings = couplings_for(60, Format.INT8)
    model = client.load(couplings)
    host, port = server.address.rsplit(":", 1)
    before = server.counters["replies"]
    for _ in range(5):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
            gone.connect((host, int(port)))
            for _ in range(20):
                gone.send(frame_for(model, updates=200))
    expected = oracle_solve.solve(couplings, None, replicas=8, updates=100, seed=4)
    assert client.solve(model, seed=4).two_energy == expected.two_energy
    deadline = time.monotonic() + 10
    while server.counters["replies"] < before + 101 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.counters["replies"] >= before + 101


def test_the_client_without_batched_system_calls(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    couplings = couplings_for(30, Format.PM1)
    model = client.load(couplings)
    batched = client.solve_many(model, seeds=range(200), steps=20)
    monkeypatch.setattr("streamdsb.service.client.native.AVAILABLE", False)
    plain = client.solve_many(model, seeds=range(200), steps=20)
    assert np.array_equal(plain.two_energy, batched.two_energy)
    assert np.array_equal(plain.spins, batched.spins)
    assert (plain.round_trip_ns > 0).all()


def test_an_answer_that_takes_longer_than_a_retransmission_is_taken(client: Client, server: Server) -> None:
    couplings = couplings_for(128, Format.INT8)
    model = client.load(couplings)
    with Client(server.address, timeout=0.4) as hasty:  # sends again after 0.1 s
        replies = hasty.solve_many(model, seeds=range(2), replicas=32, steps=3000, window=2)
    assert (replies.headers["status"] == Status.OK).all()
    assert replies.two_energy[1] == client.solve(model, replicas=32, steps=3000, seed=1).two_energy


def test_cancelled_requests_disturb_no_others(server: Server) -> None:
    with Client(server.address) as client:
        model = client.load(np.array([[0, 1], [1, 0]], np.int8))
        futures = [client.submit(model, seed=seed) for seed in range(100)]
        cancelled = [future for future in futures[50:] if future.cancel()]
        assert client.submit(model, seed=5).result(timeout=10).two_energy == -2
        for future in set(futures) - set(cancelled):
            assert future.result(timeout=10).two_energy == -2


def test_parameters_that_there_are_not_are_refused(server: Server) -> None:
    with Client(server.address) as client:
        model = client.load(np.array([[0, 1], [1, 0]], np.int8))
        with pytest.raises(TypeError, match="stepz"):
            client.submit(model, stepz=3)
        with pytest.raises(UserError, match=r"^steps is 10\.5, but it should be an integer$"):
            client.submit(model, steps=10.5).result(timeout=10)


def test_a_client_that_is_closed_says_so(server: Server) -> None:
    with Client(server.address) as client:
        model = client.load(couplings_for(8, Format.PM1))
    for use in (
        lambda: client.load(couplings_for(8, Format.PM1)),
        lambda: client.solve(model),
        lambda: client.submit(model),
    ):
        with pytest.raises(UserError, match=r"^this client of .* is closed; open another one$"):
            use()


def test_requests_that_come_together_are_all_refused(server: Server) -> None:
    """More of them in a message than refusals go out at once, from several clients."""
    count = 1000
    nobody = LoadedModel(63, 1, 20)
    frames = requests_for(nobody, count, 1, 1)
    with Client(server.address) as one, Client(server.address) as other:
        replies, _, received = exchange_all([one, other], frames, np.zeros(count, np.int64), count, False)
    assert (received > 0).all()
    statuses = np.ascontiguousarray(replies[:, :64]).view(RESULT)["status"]
    assert (statuses == Status.UNKNOWN_MODEL).all()
