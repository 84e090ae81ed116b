"""Runs over raw Ethernet: interfaces that cannot be used, processes started apart, and resumed runs."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamdsb import probe
from streamdsb.config import Config
from streamdsb.errors import UserError
from streamdsb.queues.ethernet import require_usable
from tests.harness import (
    HANG_S,
    config_of,
    expected_records,
    run_command,
    run_in_threads,
    sentence_of,
    start_command,
    started_run,
    written_config,
)
from tests.impaired_link import INTERFACE, ImpairedLink

pytestmark = pytest.mark.processes


def over(generator: str | None, receiver: str | None, **sections: object) -> Config:
    """A run from one interface to the other."""
    return config_of(
        n=1000,
        stream={"transport": "ethernet", "queues": 2},
        generator={"interface": generator},
        receiver={"interface": receiver},
        **sections,
    )


@pytest.fixture
def link() -> Iterator[ImpairedLink]:
    with ImpairedLink() as opened:
        yield opened


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not try for long whether frames arrive."""
    monkeypatch.setattr(probe, "PROBE_S", 0.2)


def refusal(config: Config, link: ImpairedLink, folder: Path) -> str:
    """The sentence in which a run across `link` is refused as the user's mistake."""
    with pytest.raises(UserError) as caught:
        run_in_threads(config, folder / "run", link=link)
    assert caught.value.exit_status == 2
    assert not (folder / "run").exists()
    return str(caught.value)


@pytest.mark.parametrize("missing", ["generator", "receiver"])
def test_an_interface_that_is_not_given(missing: str) -> None:
    names = {"generator": "eth0", "receiver": "eth0", missing: None}
    with pytest.raises(UserError, match=rf"stream.transport ethernet needs {missing}\.interface, such as"):
        over(names["generator"], names["receiver"])


def test_several_receivers_are_refused() -> None:
    with pytest.raises(UserError, match=r"stream.transport is ethernet, but generators is 1: .* tcp or udp"):
        over("eth0", "eth0", generators=1, receivers=2)


def test_a_missing_interface(link: ImpairedLink, tmp_path: Path) -> None:
    assert "generator.interface is 'eth7', but it should be one of this machine's interfaces: lo, eth0" in (
        refusal(over("eth7", INTERFACE), link, tmp_path)
    )
    assert "receiver.interface is 'eth8', but it should be one of this machine's interfaces: lo, eth0" in (
        refusal(over(INTERFACE, "eth8"), link, tmp_path)
    )


def test_an_interface_that_is_down(link: ImpairedLink, tmp_path: Path) -> None:
    link.receiver.ip("link", "add", "idle0", "mtu", 9000, "type", "veth", "peer", "idle1")
    assert "receiver.interface is idle0, which is down, but it should be up (ip link set dev idle0 up)" in (
        refusal(over(INTERFACE, "idle0"), link, tmp_path)
    )


def test_an_interface_without_jumbo_frames(link: ImpairedLink, tmp_path: Path) -> None:
    link.sender.ip("link", "set", "dev", INTERFACE, "mtu", 4081)
    assert "generator.interface is eth0, whose MTU is 4081, but stream.transport ethernet needs 4082 or" in (
        refusal(over(INTERFACE, INTERFACE), link, tmp_path)
    )


def test_interfaces_that_are_not_on_one_link(link: ImpairedLink, tmp_path: Path, brief: None) -> None:
    """The two ends find each other over TCP, but not by Ethernet."""
    sentence = refusal(over("lo", INTERFACE), link, tmp_path)
    assert "generator.interface is lo (00:00:00:00:00:00) and receiver.interface is eth0 (" in sentence
    assert "they have to be on one Ethernet link" in sentence


@pytest.mark.parametrize(
    ("transport", "words"),
    [
        ("udp", "no datagram of 4096 bytes got to the receiver at 10."),
        ("ethernet", "no frame got from one to"),
    ],
)
def test_a_link_that_brings_nothing(transport: str, words: str, tmp_path: Path, brief: None) -> None:
    """Such as a firewall that lets small datagrams and TCP pass, or a switch without jumbo frames."""
    config = config_of(
        n=100,
        stream={"transport": transport},
        generator={"interface": INTERFACE},
        receiver={"interface": INTERFACE},
    )
    with ImpairedLink(loss=1.0) as link:
        assert words in refusal(config, link, tmp_path)
        assert link.counts.lost > 1


def test_the_command_says_it_and_ends_with_status_2(tmp_path: Path) -> None:
    status, _, err = run_command(
        "run", written_config(tmp_path, over("eth77", "lo")), "--out", tmp_path / "run"
    )
    assert status == 2, err
    assert "generator.interface is 'eth77', but it should be one of" in sentence_of(err)
    assert not (tmp_path / "run").exists()


def test_without_the_capability(tmp_path: Path) -> None:
    """As root is without it in many containers."""
    drop = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"]
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("taking a capability away needs root and the command setpriv")
    config = written_config(tmp_path, over("lo", "lo"))
    process = start_command("run", config, "--out", tmp_path / "run", launcher=drop)
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 2, err
    sentence = sentence_of(err)
    assert ".interface is lo, on which stream.transport ethernet needs the capability CAP_NET_RAW" in sentence
    assert "setcap cap_net_raw+ep /" in sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("before", ["shm", "tcp", "udp"])
def test_a_run_goes_on_over_ethernet(before: str, tmp_path: Path) -> None:
    try:
        require_usable("lo")
    except UserError as error:
        pytest.skip(str(error))
    config = config_of(n=2000, updates=150, stream={"transport": before}, checkpoint={"every": 1})
    with started_run(tmp_path, config) as run:
        run.wait_for_passes(5)
        assert run.kill(run.of_role("coordinator"), config.solver.updates), "it was over before it was killed"
        run.end()
    settings = ["stream.transport=ethernet", "generator.interface=lo", "receiver.interface=lo"]
    options = [word for setting in settings for word in ("--set", setting)]
    status, _, err = run_command("run", "--resume", run.out, *options)
    assert status == 0, err
    assert "continuing with pass" in err
    assert run.recorded() == expected_records(config)
