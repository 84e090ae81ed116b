"""What the servers on a GPU do beyond what every server does: stop, refuse, fault, fill their rings."""

import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from streamdsb.errors import UserError
from streamdsb.service.client import Client
from streamdsb.service.config import make_service_config
from streamdsb.service.messages import RESULT, Status, solve_frames
from streamdsb.service.replies import LoadedModel
from streamdsb.service.server import Server
from streamdsb.service.servers import make_server
from validation import bench_service_gpu, oracle_solve

pytestmark = pytest.mark.gpu


def couplings_for(n: int, seed: int = 0) -> np.ndarray:
    upper = np.triu(np.random.default_rng(seed).integers(-128, 128, (n, n)).astype(np.int8), 1)
    return upper + upper.T


def server_of(name: str, **settings: int) -> Server:
    return make_server(make_service_config({"server": name, "listen": "127.0.0.1:0", **settings}))


def send(address: str, model: LoadedModel, count: int, updates: int) -> socket.socket:
    """A socket over which `count` long requests have gone."""
    host, port = address.rsplit(":", 1)
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    wire.connect((host, int(port)))
    wire.settimeout(10)
    seeds = np.arange(count, dtype=np.uint64)
    frames = solve_frames(
        model.slot, model.generation, model.n, None, seeds, replicas=32, updates=updates
    )  # fmt: skip
    for frame in frames:
        wire.send(frame.tobytes())
    return wire


@pytest.mark.parametrize("name", ["launch", "proxy"])
def test_overload_is_answered_at_once(name: str) -> None:
    with server_of(name, queue=4) as small, Client(small.address) as client:
        model = client.load(couplings_for(128))
        with send(small.address, model, 40, 20_000) as wire:
            first = np.frombuffer(wire.recv(2048)[:64], RESULT)[0]
        assert first["status"] == Status.OVERLOADED
        assert small.counters["overloaded"] > 0


@pytest.mark.parametrize("name", ["launch", "proxy"])
def test_stop_with_requests_inside_leaves_the_device_as_it_was(name: str) -> None:
    couplings = couplings_for(100)
    for _ in range(2):
        server = server_of(name)
        with server, Client(server.address) as client:
            model = client.load(couplings)
            expected = oracle_solve.solve(couplings, None, replicas=8, updates=100, seed=5)
            assert client.solve(model, seed=5).two_energy == expected.two_energy
            send(server.address, model, 300, 2000).close()
        server.check()


def test_more_workers_than_fit_are_refused() -> None:
    with pytest.raises(UserError, match="workers is 1024, but this GPU has room for 1 to"):
        server_of("proxy", workers=1024).start()


def test_a_single_worker_answers_everything() -> None:
    couplings = couplings_for(60)
    with server_of("proxy", workers=1) as server, Client(server.address) as client:
        replies = client.solve_many(client.load(couplings), seeds=range(5000), steps=10, replicas=2)
    for seed in range(0, 5000, 97):
        expected = oracle_solve.solve(couplings, None, replicas=2, updates=10, seed=seed)
        assert np.array_equal(replies.spins[seed], expected.spins)


def test_rings_filled_without_a_network() -> None:
    for measure in (bench_service_gpu.measure_proxy_rings, bench_service_gpu.measure_launch_rings):
        runs = measure(3000)
        assert [run["inside"] for run in runs] == [1, 64, 512, 4096]
        assert all(run["checked"] == 300 and run["wrong"] == 0 for run in runs)


def test_a_fault_ends_the_server_with_its_message() -> None:
    """In a process of its own, whose context the fault spoils."""
    script = """
        import time
        import numpy as np
        from streamdsb.service.config import make_service_config
        from streamdsb.service.rings import PLACE_AT, PUBLISHED
        from streamdsb.service.servers import make_server

        with make_server(make_service_config({"server": "proxy", "listen": "127.0.0.1:0"})) as server:
            server.rings.work[0, PLACE_AT : PLACE_AT + 4].view("<u4")[0] = 0x7FFFFFFF
            server.rings.work[0, 32:36].view("<u4")[0] = 64
            server.rings.control[PUBLISHED] = 1
            for _ in range(50):
                time.sleep(0.1)
                server.check()
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "RunFailed: the worker kernel stopped with a device fault" in done.stderr
