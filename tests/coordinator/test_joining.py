"""Processes that are started apart and join over TCP: any order, one token, one version, one of each."""

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from streamdsb.channel import Channel, prove_token
from streamdsb.config import Config
from streamdsb.messages import PROTOCOL, Failed, Hello
from tests.harness import (
    END_S,
    HANG_S,
    config_of,
    expected_records,
    run_command,
    sentence_of,
    start_command,
    wait_until,
    written_config,
)
from validation import oracle

pytestmark = pytest.mark.processes

TOKEN = "correct horse battery staple"
WITH_TOKEN = {"STREAMDSB_TOKEN": TOKEN}
SMALL = config_of(n=500, updates=4, stream={"transport": "tcp"})
LONG = config_of(n=3000, updates=400, stream={"transport": "tcp"})
ENDLESS = config_of(n=3000, updates=1_000_000, stream={"transport": "tcp"})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Party:
    """Commands that belong to one run; whatever is left of them in the end is killed."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.config = config
        self.out = folder / "run"
        self.path = written_config(folder, config)
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.commands: list[subprocess.Popen[str]] = []

    def start(self, role: str, token: str = TOKEN) -> subprocess.Popen[str]:
        arguments = {
            "coordinate": ["coordinate", self.path, "--listen", self.address, "--out", self.out],
            "generate": ["generate", "--connect", self.address],
            "receive": ["receive", "--connect", self.address],
        }[role]
        self.commands.append(start_command(*arguments, environment={"STREAMDSB_TOKEN": token}))
        return self.commands[-1]

    def knock(self) -> socket.socket:
        """A connection to the coordinator, once it listens."""
        deadline = time.monotonic() + HANG_S
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=HANG_S)
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, "the coordinator does not listen"
                time.sleep(0.05)

    def wait_for_passes(self, count: int) -> None:
        records = self.out / "records.jsonl"
        deadline = time.monotonic() + HANG_S
        while not records.exists() or records.read_text().count("\n") < count:
            assert time.monotonic() < deadline, "no pass comes to its end"
            time.sleep(0.01)

    def assert_completes(self, coordinator: subprocess.Popen[str]) -> str:
        """All end well and the records are those of the oracle; what the coordinator said."""
        _, err = coordinator.communicate(timeout=HANG_S)
        assert coordinator.returncode == 0, err
        assert (self.out / "records.jsonl").read_text() == expected_records(self.config)
        return err


def wait_for_line(file: IO[str], words: str) -> None:
    """Read lines of a command that still runs, up to the one with these words."""
    assert any(words in line for line in iter(file.readline, "")), f"no line says {words!r}"


@contextmanager
def party_of(folder: Path, config: Config) -> Iterator[Party]:
    party = Party(folder, config)
    try:
        yield party
    finally:
        for command in party.commands:
            command.kill()
            command.communicate()


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    with party_of(tmp_path, SMALL) as made:
        yield made


@pytest.mark.parametrize(
    "order",
    [
        ("coordinate", "generate", "receive"),
        ("receive", "coordinate", "generate"),
        ("generate", "receive", "coordinate"),
    ],
)
def test_any_order(party: Party, order: tuple[str, ...]) -> None:
    started = {}
    for role in order:
        started[role] = party.start(role)
        time.sleep(0.3)
    party.assert_completes(started["coordinate"])
    for role, name in (("generate", "generator"), ("receive", "receiver")):
        _, err = started[role].communicate(timeout=HANG_S)
        assert started[role].returncode == 0, err
        assert err == f"connected to the coordinator at {party.address} as its {name}\n"


def test_a_wrong_token_keeps_strangers_out(party: Party) -> None:
    coordinator = party.start("coordinate")
    stranger = party.start("generate", token="guessed")
    _, err = stranger.communicate(timeout=HANG_S)
    assert stranger.returncode == 2
    assert "token" in sentence_of(err)
    assert TOKEN not in err
    party.start("generate")
    party.start("receive")
    said = party.assert_completes(coordinator)
    assert "turned away" in said
    assert TOKEN not in said


def test_no_token_at_all(party: Party) -> None:
    status, _, err = run_command("generate", "--connect", party.address, environment={"STREAMDSB_TOKEN": ""})
    assert status == 2
    assert "STREAMDSB_TOKEN is not set" in sentence_of(err)


def test_a_token_is_made_and_shown_if_there_is_none(party: Party) -> None:
    coordinator = party.start("coordinate", token="")
    assert coordinator.stderr is not None
    line = coordinator.stderr.readline()
    assert "export STREAMDSB_TOKEN=" in line
    token = line.strip().rpartition("=")[2]
    assert len(token) == 32
    for role in ("generate", "receive"):
        party.start(role, token=token)
    party.assert_completes(coordinator)


@pytest.mark.parametrize(("version", "protocol"), [("0.0.0", PROTOCOL), (None, PROTOCOL + 1)])
def test_another_version_is_refused_by_name(party: Party, version: str | None, protocol: int) -> None:
    import streamdsb

    coordinator = party.start("coordinate")
    with party.knock() as connection:
        prove_token(connection, TOKEN, "the coordinator", asking=True)
        channel = Channel(connection, "the coordinator")
        channel.send(
            Hello(
                role="generator",
                protocol=protocol,
                version=version or streamdsb.__version__,
                pid=1,
                host="elsewhere",
            )
        )
        refusal, _ = channel.expect(Failed)
    assert refusal.exit_status == 2
    assert f"streamdsb {version or streamdsb.__version__} (protocol {protocol})" in refusal.message
    assert "install the same version" in refusal.message
    for role in ("generate", "receive"):
        party.start(role)
    party.assert_completes(coordinator)


def test_a_second_generator_is_refused(party: Party) -> None:
    coordinator = party.start("coordinate")
    first = party.start("generate")
    assert coordinator.stderr is not None
    while "has joined" not in coordinator.stderr.readline():
        assert coordinator.poll() is None
    second = party.start("generate")
    _, err = second.communicate(timeout=HANG_S)
    assert second.returncode == 2
    assert "has joined already; a run has one generator" in sentence_of(err)
    party.start("receive")
    party.assert_completes(coordinator)
    first.communicate(timeout=HANG_S)
    assert first.returncode == 0


def test_strangers_at_the_door_delay_nobody(party: Party) -> None:
    coordinator = party.start("coordinate")
    silent, talkative, gone = party.knock(), party.knock(), party.knock()
    gone.close()
    with silent, talkative:
        talkative.sendall(b"GET / HTTP/1.1\r\nHost: coordinator\r\n\r\n" * 10)
        for role in ("generate", "receive"):
            party.start(role)
        party.assert_completes(coordinator)


def test_strangers_who_come_in_the_middle_of_a_run_do_not_end_it(tmp_path: Path) -> None:
    with party_of(tmp_path, LONG) as party:
        coordinator = party.start("coordinate")
        waiting = party.knock()
        for role in ("generate", "receive"):
            party.start(role)
        party.wait_for_passes(1)
        waiting.sendall(b"a stranger who has waited " * 10)
        waiting.close()
        for _ in range(3):
            try:
                with socket.create_connection(("127.0.0.1", party.port), timeout=1) as late:
                    late.sendall(b"a stranger who is late " * 10)
            except OSError:
                continue
        _, err = coordinator.communicate(timeout=HANG_S)
        assert coordinator.returncode == 0, err


def test_a_configuration_that_differs_is_named_and_costs_nobody_else_anything(
    party: Party, tmp_path: Path
) -> None:
    coordinator = party.start("coordinate")
    other = tmp_path / "other.yaml"
    other.write_text(SMALL.to_yaml().replace("updates: 4", "updates: 5"))
    expecting = ("generate", "--connect", party.address, "--expect", other)
    refused = start_command(*expecting, environment=WITH_TOKEN)
    party.commands.append(refused)
    _, err = refused.communicate(timeout=HANG_S)
    assert refused.returncode == 2
    assert sentence_of(err) == f"streamdsb: {other}: solver.updates is 5, but the coordinator has 4"
    party.start("receive")
    party.start("generate")
    assert "turned away: " in party.assert_completes(coordinator)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_who_leaves_before_the_run_begins_may_be_followed_by_another(
    party: Party, number: signal.Signals
) -> None:
    coordinator = party.start("coordinate")
    leaver = party.start("generate")
    assert coordinator.stderr is not None
    wait_for_line(coordinator.stderr, "has joined")
    leaver.send_signal(number)
    leaver.wait(timeout=HANG_S)
    wait_for_line(coordinator.stderr, "left again: ")
    party.start("generate")
    party.start("receive")
    party.assert_completes(coordinator)


@pytest.mark.parametrize("transport", ["shm", "udp"])
def test_a_file_that_says_the_same_is_taken(tmp_path: Path, transport: str) -> None:
    """Shared memory, which only processes of one command have, becomes TCP on both sides; UDP stays."""
    with party_of(tmp_path, config_of(n=500, updates=4, stream={"transport": transport})) as party:
        coordinator = party.start("coordinate")
        party.start("receive")
        expecting = ("generate", "--connect", party.address, "--expect", party.path)
        party.commands.append(start_command(*expecting, environment=WITH_TOKEN))
        party.assert_completes(coordinator)
        used = "tcp" if transport == "shm" else transport
        assert f"transport: {used}" in (party.out / "config.yaml").read_text()


def test_files_that_another_opens_may_lie_elsewhere(tmp_path: Path) -> None:
    np.save(tmp_path / "J.npy", oracle.random_couplings(500, 42))
    written = SMALL.to_yaml().replace("source: random", "source: file").replace("path: null", "path: J.npy")
    (tmp_path / "elsewhere").mkdir()
    other = tmp_path / "elsewhere" / "run.yaml"
    other.write_text(written)
    with party_of(tmp_path, SMALL) as party:
        party.path.write_text(written)
        coordinator = party.start("coordinate")
        expecting = ("receive", "--connect", party.address, "--expect", other)
        party.commands.append(start_command(*expecting, environment=WITH_TOKEN))
        party.start("generate")
        party.assert_completes(coordinator)


@pytest.mark.parametrize("role", ["generate", "receive"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_is_interrupted(tmp_path: Path, role: str, number: signal.Signals) -> None:
    with party_of(tmp_path, ENDLESS) as party:
        started = {role: party.start(role) for role in ("coordinate", "generate", "receive")}
        party.wait_for_passes(2)
        started[role].send_signal(number)
        _, err = started[role].communicate(timeout=HANG_S)
        assert started[role].returncode == 130, err
        assert "interrupted" in sentence_of(err)
        _, err = started["coordinate"].communicate(timeout=HANG_S)
        assert started["coordinate"].returncode == 1
        assert "interrupted" in sentence_of(err)


def test_a_worker_is_told_why_the_run_ends(tmp_path: Path) -> None:
    with party_of(tmp_path, ENDLESS) as party:
        coordinator, _, receiver = (party.start(role) for role in ("coordinate", "generate", "receive"))
        party.wait_for_passes(2)
        coordinator.send_signal(signal.SIGTERM)
        _, err = receiver.communicate(timeout=HANG_S)
        assert receiver.returncode == 1
        assert "stopped by SIGTERM" in sentence_of(err)


def test_a_worker_that_hears_nothing_ends_with_the_cause(tmp_path: Path) -> None:
    """Its own couplings keep it from looking up."""
    (tmp_path / "hangs.py").write_text(
        "import pathlib, time\n"
        "class Hangs:\n"
        "    n = 100\n"
        "    def fill(self, rows, column_block, out):\n"
        f"        pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        "        time.sleep(600)\n"
    )
    problem = {"path": f"{tmp_path}/hangs.py:Hangs"}
    config = config_of("python", 100, problem=problem, stream={"transport": "tcp"})
    with party_of(tmp_path, config) as party:
        coordinator, generator, _ = (party.start(role) for role in ("coordinate", "generate", "receive"))
        wait_until((tmp_path / "begun").exists)
        coordinator.send_signal(signal.SIGTERM)
        _, err = generator.communicate(timeout=END_S)
        assert generator.returncode == 1
        assert "has called the run off: stopped by SIGTERM" in sentence_of(err)


@pytest.mark.parametrize("address", ["nowhere", "localhost:", "localhost:65536", "localhost:-1", ":x"])
def test_addresses_that_are_none(address: str) -> None:
    status, _, err = run_command("generate", "--connect", address, environment=WITH_TOKEN)
    assert status == 2
    assert "HOST:PORT" in sentence_of(err)


@pytest.mark.parametrize("victim", ["generate", "receive", "coordinate"])
def test_one_that_is_killed_ends_the_others(tmp_path: Path, victim: str) -> None:
    with party_of(tmp_path, ENDLESS) as party:
        started = {role: party.start(role) for role in ("coordinate", "generate", "receive")}
        party.wait_for_passes(2)
        started[victim].kill()
        for role, command in started.items():
            if role == victim:
                continue
            _, err = command.communicate(timeout=END_S)
            assert command.returncode == 1, err
            assert sentence_of(err), f"{role} ended without a word"
            if role == "coordinate":
                name = {"generate": "generator", "receive": "receiver"}[victim]
                assert f"the {name} (pid {started[victim].pid}" in sentence_of(err)
