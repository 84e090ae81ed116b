"""Whole runs over transport gpunetio on the software card, on a GPU or on a CPU instead; what is refused."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.engine import CoordinatorEngine, welcome
from coordinator.partition import refuse_what_ranks_cannot
from coordinator.peers import Peers
from coordinator.progress import SilentDisplay
from streamdsb.checkpoint import find_checkpoints, load
from streamdsb.config import Config
from streamdsb.errors import Interrupted, UserError
from streamdsb.gpunetio import library
from streamdsb.run_directory import RECORDS, TIMINGS, RunDirectory
from tests import cuda_on_host
from tests.harness import (
    RUN_ID,
    config_of,
    expected_records,
    prepared,
    run_command,
    run_in_threads,
    sentence_of,
    started_run,
    wait_until,
    workers,
    written_config,
)

SOFTWARE = {"backend": "cuda", "nic": "software"}
CARDS = {
    "generator": {"backend": "cuda", "nic": "0000:17:00.0"},
    "receiver": {"backend": "cuda", "nic": "18:00.0"},
}


def over_software(*arguments: Any, **keys: Any) -> Config:
    stream = {"transport": "gpunetio"} | keys.pop("stream", {})
    return config_of(*arguments, **keys, stream=stream, generator=SOFTWARE, receiver=SOFTWARE)


def go_on_in_threads(config: Config, out: Path) -> str:
    """Go on with the run in `out`, in this process; the text of records.jsonl."""
    peers = Peers()
    engine = CoordinatorEngine(config, peers, SilentDisplay())
    with workers(config, peers):
        for peer in peers.members:
            welcome(peer.channel, config, RUN_ID + 1)
        engine.prepare(None, find_checkpoints(out))
        directory = RunDirectory.resume(out, engine.next_pass)
        try:
            engine.run_passes(directory)
        finally:
            directory.close()
    return (out / RECORDS).read_text()


# --- on a CPU in place of the GPU -------------------------------------------------------------------


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if not cuda_on_host.AVAILABLE:
        pytest.skip("needs g++ on x86-64")
    cuda_on_host.install(monkeypatch)


# small rings: most of them go round several times
SMALL = {"queues": 2, "slots": 512, "window_frames": 128}


@pytest.mark.parametrize(("queues", "window"), [(1, 64), (3, 256)])
def test_whole_runs(on_cpu: None, queues: int, window: int, tmp_path: Path) -> None:
    config = over_software("random", 700, stream={"queues": queues, "slots": 512, "window_frames": window})
    assert run_in_threads(config, tmp_path) == expected_records(config)
    for line in (tmp_path / TIMINGS).read_text().splitlines():
        timing = json.loads(line)
        assert timing["frames"] == 700
        assert {"resent", "duplicated", "corrupt", "late", "overrun", "rejected", "dropped"} <= timing.keys()


def test_mattis_couplings_and_a_field(on_cpu: None, tmp_path: Path) -> None:
    field = np.random.default_rng(3).integers(-(2**31), 2**31 - 1, 300).astype(np.int32)
    config = over_software("mattis", 300, stream=SMALL)
    assert run_in_threads(config, tmp_path, field) == expected_records(config, field)


@pytest.mark.parametrize("began", ["cpu", "card"])
def test_a_checkpoint_of_another_transport(on_cpu: None, began: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"updates": 5, "checkpoint": {"every": 2}}
    configs = {
        "cpu": config_of("random", 300, **keys),
        "card": over_software("random", 300, **keys, stream=SMALL),
    }
    first, then = configs.pop(began), *configs.values()
    expected = expected_records(first)
    assert run_in_threads(first, tmp_path) == expected
    assert load(find_checkpoints(tmp_path)[0]).header.next_pass == 4
    (tmp_path / RECORDS).write_text("".join(expected.splitlines(keepends=True)[:4]))
    assert go_on_in_threads(then, tmp_path) == expected


def test_an_interrupt_drops_the_pass_and_saves_its_state(on_cpu: None, tmp_path: Path) -> None:
    config = over_software("random", 300, updates=300, stream=SMALL)
    with prepared(config, tmp_path) as (engine, peers, directory):
        interrupting = threading.Thread(
            target=lambda: (wait_until(lambda: engine.next_pass > 2), peers.interrupt(signal.SIGINT))
        )
        interrupting.start()
        with pytest.raises(Interrupted):
            engine.run_passes(directory)
        interrupting.join()
        engine.save_before_leaving(directory)
    assert 2 < engine.next_pass < 300
    assert find_checkpoints(tmp_path)
    on_the_cpu = config_of("random", 300, updates=300)
    assert go_on_in_threads(on_the_cpu, tmp_path) == expected_records(on_the_cpu)


# --- what is refused --------------------------------------------------------------------------------


def test_a_host_without_the_library_says_so_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load_from = library.load
    monkeypatch.setattr(library, "load", lambda: load_from(tmp_path / "none.so"))
    config = config_of(stream={"transport": "gpunetio"}, **CARDS)
    said = r"^(generator|receiver): stream.transport gpunetio needs its library .*, which is not built: "
    with pytest.raises(UserError, match=said):
        run_in_threads(config, tmp_path)


@pytest.mark.skipif(library.LIBRARY.exists(), reason="the library is there")
@pytest.mark.parametrize("command", ["generate", "receive"])
def test_a_host_that_knows_what_comes_does_not_wait_to_say_so(command: str, tmp_path: Path) -> None:
    path = written_config(tmp_path, config_of(stream={"transport": "gpunetio"}, **CARDS))
    token = {"STREAMDSB_TOKEN": "a token"}
    status, _, err = run_command(command, "--connect", "127.0.0.1:9", "--expect", path, environment=token)
    assert status == 2
    assert "stream.transport gpunetio needs its library" in sentence_of(err)


def test_the_software_card_is_not_for_processes_apart(tmp_path: Path) -> None:
    path = written_config(tmp_path, over_software())
    status, _, err = run_command("coordinate", path, "--listen", "127.0.0.1:0", "--out", tmp_path / "run")
    assert status == 2
    assert "generator.nic and receiver.nic are software, a card inside one process of" in sentence_of(err)
    assert "processes started apart need the PCI addresses of network cards" in sentence_of(err)


@pytest.mark.parametrize("generators", [None, 1])
def test_ranks_are_told_what_to_use(generators: int | None) -> None:
    config = over_software(generators=generators)
    with pytest.raises(
        UserError, match=r"^stream.transport is gpunetio, which joins one .* take shm or peer"
    ):
        refuse_what_ranks_cannot(config)


# --- on a GPU ---------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("queues", [1, 4, 8])
@pytest.mark.parametrize("replicas", [1, 8, 32])
@pytest.mark.parametrize("source", ["random", "mattis"])
@pytest.mark.parametrize("n", [1000, 4097])
def test_the_oracles_records(source: str, n: int, replicas: int, queues: int, tmp_path: Path) -> None:
    config = over_software(source, n, replicas=replicas, updates=20, stream={"queues": queues})
    assert run_in_threads(config, tmp_path) == expected_records(config)


@pytest.mark.gpu
@pytest.mark.parametrize(("replicas", "queues"), [(1, 8), (8, 1), (8, 4), (32, 8)])
@pytest.mark.parametrize("source", ["random", "mattis"])
def test_what_peer_records(source: str, replicas: int, queues: int, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"replicas": replicas, "updates": 20}
    config = over_software(source, 33_001, **keys, stream={"queues": queues})
    peer = config_of(
        source,
        33_001,
        **keys,
        stream={"transport": "peer", "queues": queues},
        generator={"backend": "cuda"},
        receiver={"backend": "cuda"},
    )
    assert run_in_threads(config, tmp_path / "card") == run_in_threads(peer, tmp_path / "peer")


@pytest.mark.gpu
def test_checkpoints_beside_resident_kernels(tmp_path: Path) -> None:
    config = over_software("random", 5000, updates=10, checkpoint={"every": 2}, stream={"queues": 4})
    assert run_in_threads(config, tmp_path) == expected_records(config)


@pytest.mark.gpu
@pytest.mark.parametrize("began", ["cpu", "card"])
def test_a_checkpoint_of_another_transport_on_a_gpu(began: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"updates": 9, "replicas": 8, "checkpoint": {"every": 2}}
    configs = {"cpu": config_of("random", 4097, **keys), "card": over_software("random", 4097, **keys)}
    first, then = configs.pop(began), *configs.values()
    expected = expected_records(first)
    assert run_in_threads(first, tmp_path) == expected
    assert load(find_checkpoints(tmp_path)[0]).header.next_pass == 8
    (tmp_path / RECORDS).write_text("".join(expected.splitlines(keepends=True)[:8]))
    assert go_on_in_threads(then, tmp_path) == expected


# long enough to be interrupted: some seconds a pass
LONG = over_software("random", 1_000_000, replicas=8, updates=1000, stream={"queues": 4})


@pytest.mark.gpu
@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_with_a_checkpoint(number: signal.Signals, tmp_path: Path) -> None:
    with started_run(tmp_path, LONG) as run:
        run.wait_for_passes(2)
        run.command.send_signal(number)
        status, err = run.end()
    assert status == 130
    assert number.name in sentence_of(err)
    assert f"go on with: streamdsb run --resume {run.out}" in err
    assert len(find_checkpoints(run.out)) == 1


@pytest.mark.gpu
@pytest.mark.processes
def test_the_process_of_both_is_killed(tmp_path: Path) -> None:
    with started_run(tmp_path, LONG) as run:
        run.wait_for_passes(2)
        (process,) = (p for p in run.processes() if p.pid != run.command.pid)
        process.kill()
        status, err = run.end()
    assert status == 1
    assert "was killed by signal 9 (SIGKILL)" in sentence_of(err)
    assert run.recorded().endswith("\n")


@pytest.mark.gpu
@pytest.mark.processes
def test_a_run_that_is_resumed_after_a_kill(tmp_path: Path) -> None:
    """Killed under the software card, it goes on over peer and ends as if nothing had happened."""
    keys: dict[str, Any] = {"updates": 300, "replicas": 8, "checkpoint": {"every": 5}}
    config = over_software("random", 4097, **keys, stream={"queues": 4})
    with started_run(tmp_path, config) as run:
        wait_until(lambda: len(find_checkpoints(run.out)) > 0)
        run.command.kill()
        run.end()
        assert run.passes() <= 300
    settings = ["--set", "stream.transport=peer"]
    status, _, err = run_command("run", "--resume", run.out, *settings)
    assert status == 0, err
    assert run.recorded() == expected_records(config)


@pytest.mark.gpu
def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    device = SOFTWARE | {"device": 1000}
    config = config_of(stream={"transport": "gpunetio"}, generator=device, receiver=device)
    with pytest.raises(UserError, match=r"CUDA device 1000 was asked for; this machine has devices 0 to"):
        run_in_threads(config, tmp_path)
