"""Whole runs write the records of the oracle, byte for byte, however they are cut, carried and threaded."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from streamdsb.config import Config, load_config
from tests.harness import config_of, expected_records, run_command, run_in_threads, written_config
from validation import oracle

THOUSAND_SPINS = {
    0: (-792, 0, [-792, 424, 204, -632], "57aad685f835c155"),
    1: (-1312, 2, [216, 1728, -1312, 56], "9ee777d15e84190a"),
    20: (-44980, 3, [-43300, -43380, -43580, -44980], "b720be6f8ca4c059"),
}


def assert_records(config: Config, tmp_path: Path) -> None:
    assert run_in_threads(config, tmp_path / "run") == expected_records(config)


def stream(**keys: Any) -> dict[str, Any]:
    return {"stream": keys}


# --- the published vectors ------------------------------------------------------------------------


def test_vectors_of_two_spins(tmp_path: Path) -> None:
    records = run_in_threads(config_of(n=2, replicas=1, updates=1, seed=3), tmp_path / "run")
    assert records == (
        '{"pass":0,"best_two_energy":-2,"best_replica":0,"two_energy":[-2],"checksum":"9f29cb17a2a49995"}\n'
        '{"pass":1,"best_two_energy":-2,"best_replica":0,"two_energy":[-2],"checksum":"9f29cb17a2a49995"}\n'
    )


@pytest.mark.parametrize("transport", ["shm", "tcp", "udp"])
def test_vectors_of_a_thousand_spins(transport: str, tmp_path: Path) -> None:
    config = config_of(n=1000, replicas=4, updates=20, **stream(transport=transport))
    records = run_in_threads(config, tmp_path / "run")
    assert len(records.splitlines()) == 21
    for k, (best, replica, energies, checksum) in THOUSAND_SPINS.items():
        assert records.splitlines()[k] == (
            f'{{"pass":{k},"best_two_energy":{best},"best_replica":{replica},'
            f'"two_energy":{json.dumps(energies, separators=(",", ":"))},"checksum":"{checksum}"}}'
        )
    assert records == expected_records(config)


# --- sizes, replicas and everything that must not matter -----------------------------------------


@pytest.mark.parametrize("source", ["mattis", "random"])
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 1000, 4097])
def test_sizes(source: str, n: int, tmp_path: Path) -> None:
    assert_records(config_of(source, n, updates=6), tmp_path)


@pytest.mark.parametrize(
    ("source", "n", "transport", "queues", "burst_frames"),
    [
        ("random", 32_256, "shm", 2, 256),
        ("mattis", 32_257, "tcp", 2, 64),
        ("random", 32_257, "shm", 8, 1024),
        ("random", 33_001, "tcp", 1, 256),
        ("random", 33_001, "udp", 4, 64),
    ],
)
def test_sizes_around_a_column_block(
    source: str, n: int, transport: str, queues: int, burst_frames: int, tmp_path: Path
) -> None:
    xi = 0.5 / np.sqrt(n)  # given, so that the oracle need not look for it
    config = config_of(
        source,
        n,
        updates=1,
        solver={"xi": float(xi)},
        **stream(transport=transport, queues=queues, burst_frames=burst_frames),
    )
    assert_records(config, tmp_path)


@pytest.mark.parametrize("replicas", [1, 3, 8, 32])
@pytest.mark.parametrize("source", ["mattis", "random"])
def test_replicas(source: str, replicas: int, tmp_path: Path) -> None:
    assert_records(config_of(source, 300, replicas=replicas, updates=8), tmp_path)


@pytest.mark.parametrize("transport", ["shm", "tcp", "udp"])
@pytest.mark.parametrize("burst_frames", [1, 7, 64, 256, 1024])
@pytest.mark.parametrize("queues", [1, 2, 8])
def test_queues_and_bursts(queues: int, burst_frames: int, transport: str, tmp_path: Path) -> None:
    config = config_of(
        n=1000, updates=3, **stream(transport=transport, queues=queues, burst_frames=burst_frames)
    )
    assert_records(config, tmp_path)


@pytest.mark.parametrize("transport", ["shm", "tcp", "udp"])
@pytest.mark.parametrize(("sending", "receiving"), [(1, 2), (2, 1), (2, 2), (4, 8)])
def test_threads(sending: int, receiving: int, transport: str, tmp_path: Path) -> None:
    config = config_of(
        n=1000,
        updates=4,
        generator={"threads": sending},
        receiver={"threads": receiving},
        **stream(transport=transport, queues=4, burst_frames=64),
    )
    assert_records(config, tmp_path)


def test_more_queues_than_groups_of_rows(tmp_path: Path) -> None:
    assert_records(config_of(n=65, **stream(queues=8, burst_frames=3)), tmp_path)


def test_the_smallest_ring(tmp_path: Path) -> None:
    assert_records(config_of(n=500, **stream(queues=2, burst_frames=1, ring_bursts=2)), tmp_path)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("source", ["mattis", "random"])
def test_a_field(source: str, threads: int, tmp_path: Path) -> None:
    field = np.random.default_rng(1).integers(-(2**31), 2**31, 500).astype(np.int32)
    config = config_of(source, 500, updates=6, receiver={"threads": threads})
    assert run_in_threads(config, tmp_path / "run", field) == expected_records(config, field)


def test_other_parameters(tmp_path: Path) -> None:
    config = config_of(n=200, updates=30, solver={"dt": 0.7, "xi": 0.02, "seed": 2**64 - 1})
    assert_records(config, tmp_path)


@pytest.mark.parametrize("kind", ["int8", "bool", "packed"])
def test_a_file_gives_the_records_of_the_couplings_it_holds(kind: str, tmp_path: Path) -> None:
    config = config_of(n=300, updates=5)
    couplings = oracle.random_couplings(300, 42)
    stored = {
        "int8": couplings,
        "bool": couplings > 0,
        "packed": np.packbits(couplings > 0, axis=1),
    }[kind]
    np.save(tmp_path / "couplings.npy", stored)
    from_file = config_of(
        "file", 300, updates=5, problem={"path": str(tmp_path / "couplings.npy")}, **stream(burst_frames=7)
    )
    assert run_in_threads(from_file, tmp_path / "run") == expected_records(config)


# --- as separate processes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "transport", "queues", "burst_frames", "threads"),
    [("random", "shm", 2, 256, 1), ("random", "tcp", 8, 7, 2), ("mattis", "shm", 1, 64, 2)],
)
def test_processes(
    source: str, transport: str, queues: int, burst_frames: int, threads: int, tmp_path: Path
) -> None:
    config = config_of(
        source,
        1000,
        replicas=4,
        updates=20,
        generator={"threads": threads},
        receiver={"threads": threads},
        **stream(transport=transport, queues=queues, burst_frames=burst_frames),
    )
    status, _, err = run_command("run", written_config(tmp_path, config), "--out", tmp_path / "run")
    assert status == 0, err
    assert (tmp_path / "run" / "records.jsonl").read_text() == expected_records(config)


def test_what_a_run_directory_holds(tmp_path: Path) -> None:
    field = np.arange(-100, 100, dtype=np.int64)
    np.save(tmp_path / "h.npy", field)
    config = config_of(n=200, updates=5, problem={"field": str(tmp_path / "h.npy")})
    out = tmp_path / "deep" / "run"
    status, _, err = run_command("run", written_config(tmp_path, config), "--out", out)
    assert status == 0, err
    assert sorted(path.name for path in out.iterdir()) == [
        "best_spins.npy",
        "config.yaml",
        "final_spins.npy",
        "records.jsonl",
        "summary.json",
        "timings.jsonl",
    ]
    records = (out / "records.jsonl").read_text()
    assert records == expected_records(config, field.astype(np.int32))
    assert load_config(out / "config.yaml") == config
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "completed"
    best = min(json.loads(line)["best_two_energy"] for line in records.splitlines())
    assert summary["energy"]["best_two_energy"] == best
    assert set(summary["peak_memory"]) == {"coordinator", "generator", "receiver"}
    spins = np.load(out / "best_spins.npy")
    assert oracle.two_energy(oracle.random_couplings(200, 42), spins, field) == best
    final = np.load(out / "final_spins.npy")
    assert json.loads(records.splitlines()[-1])["checksum"] == xxhash.xxh64_hexdigest(final.tobytes())
    timings = [json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines()]
    assert [line["pass"] for line in timings] == list(range(6))
    assert all(
        (line["frames"], line["dropped"], line["duplicated"], line["rejected"]) == (200, 0, 0, 0)
        for line in timings
    )
