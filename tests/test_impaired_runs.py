"""Runs whose frames cross a link between two machines that impairs them: the records are the same bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any, get_args

import pytest

from streamdsb.config import Config, Stream
from streamdsb.links import TOKEN_VARIABLE
from tests.harness import HANG_S, config_of, expected_records, run_in_threads, start_command, written_config
from tests.impaired_link import INTERFACE, Counts, Host, ImpairedLink

pytestmark = pytest.mark.processes

PORT = 7000
INTERFACES = {"interface": INTERFACE}
TOKEN = {TOKEN_VARIABLE: "a token for tests"}

TRANSPORTS = [
    name for name in get_args(Stream.model_fields["transport"].annotation) if Stream(transport=name).is_lossy
]
IMPAIRMENTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "loss of 0.1 %": {"loss": 0.001},
    "loss of 1 %": {"loss": 0.01},
    "loss of 10 %": {"loss": 0.1},
    "duplicates": {"duplicate": 0.1},
    "reordering": {"reorder": 0.1},
    "corruption": {"corrupt": 0.05},
    "corruption that the system sees": {"corrupt": 0.05, "hides_corruption": False},
    "delay": {"delay_ms": 2.0},
    "delay of some": {"delay": 0.05, "delay_ms": 5.0},
    "all together": {
        "loss": 0.05,
        "duplicate": 0.05,
        "reorder": 0.05,
        "corrupt": 0.05,
        "delay": 0.05,
        "delay_ms": 2.0,
    },
}


def config_for(transport: str, queues: int) -> Config:
    return config_of(
        n=4097,
        replicas=3,
        updates=3,
        stream={"transport": transport, "queues": queues},
        generator=INTERFACES if transport == "ethernet" else {},
        receiver=INTERFACES if transport == "ethernet" else {},
    )


@contextmanager
def processes(link: ImpairedLink, path: Path, out: Path) -> Iterator[dict[str, Popen[str]]]:
    """The three processes of a run, which are killed if they have not ended by themselves."""
    address = f"{link.sender.address}:{PORT}"
    started: dict[str, Popen[str]] = {}

    def start(host: Host, name: str, *arguments: str | Path) -> None:
        started[name] = host.call(start_command, name, *arguments, environment=TOKEN)

    try:
        start(link.sender, "coordinate", path, "--listen", address, "--out", out)
        start(link.sender, "generate", "--connect", address)
        start(link.receiver, "receive", "--connect", address)
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


def run_across(link: ImpairedLink, config: Config, folder: Path) -> str:
    """The text of records.jsonl of three processes, of which the receiver is alone on its side."""
    out = folder / "run"
    with processes(link, written_config(folder, config), out) as started:
        for name, process in started.items():
            _, err = process.communicate(timeout=HANG_S)
            assert process.returncode == 0, f"{name}: {err}"
    return (out / "records.jsonl").read_text()


def assert_was_impaired(counts: Counts, impairment: str) -> None:
    """That the link did what it was to do, and nothing else."""
    assert counts.overflowed == counts.refused == 0
    for name, hits in (
        ("loss", counts.lost),
        ("duplicate", counts.duplicated),
        ("reorder", counts.reordered),
        ("corrupt", counts.corrupted),
        ("delay_ms", counts.delayed),
    ):
        assert (hits > 0) == (name in IMPAIRMENTS[impairment]), counts


@pytest.mark.parametrize("queues", [1, 4])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("impairment", IMPAIRMENTS)
def test_the_link_does_not_matter(impairment: str, transport: str, queues: int, tmp_path: Path) -> None:
    config = config_for(transport, queues)
    with ImpairedLink(seed=queues, **IMPAIRMENTS[impairment]) as link:
        assert run_in_threads(config, tmp_path / "run", link=link) == expected_records(config)
        assert_was_impaired(link.counts, impairment)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_processes_on_both_sides(transport: str, tmp_path: Path) -> None:
    config = config_for(transport, 2)
    with ImpairedLink(**IMPAIRMENTS["all together"]) as link:
        assert run_across(link, config, tmp_path) == expected_records(config)
        assert_was_impaired(link.counts, "all together")
