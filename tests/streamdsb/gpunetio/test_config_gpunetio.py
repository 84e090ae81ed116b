"""The keys of stream.transport gpunetio, and its ready configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamdsb.config import load_config, make_config
from streamdsb.errors import UserError

CONFIGS = Path(__file__).parents[3] / "configs"


def sections(**changes: Any) -> dict[str, Any]:
    """A configuration with two cards; changes by section__key."""
    made: dict[str, Any] = {
        "problem": {"n": 1000},
        "stream": {"transport": "gpunetio"},
        "generator": {"backend": "cuda", "nic": "0000:17:00.0"},
        "receiver": {"backend": "cuda", "nic": "17:00.1"},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        made[section][name] = value
    return made


def test_two_cards() -> None:
    config = make_config(sections())
    assert config.stream.slots == 16_384
    assert config.stream.pace_gbps is None
    assert config.stream.is_networked
    assert not config.has_software_card
    assert config.stream.device_ring_bytes == 16_384 * 4096


@pytest.mark.parametrize("nic", ["0000:17:00.0", "software"])
def test_on_one_gpu_both_are_threads_of_one_process(nic: str) -> None:
    nics = {"generator__nic": nic, "receiver__nic": nic}
    assert make_config(sections(**nics)).shares_process
    assert not make_config(sections(generator__device=1)).shares_process


def test_the_software_card() -> None:
    software = {"generator__nic": "software", "receiver__nic": "software"}
    config = make_config(sections(**software))
    assert config.has_software_card
    with pytest.raises(UserError, match=r"generator.device is 1 and receiver.device is 0, but"):
        make_config(sections(**software, generator__device=1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"generator__backend": "cpu"}, "stream.transport gpunetio needs generator.backend cuda, not cpu"),
        (
            {"receiver__nic": None},
            "stream.transport gpunetio needs receiver.nic, the PCI address .*, not None",
        ),
        ({"receiver__nic": "eth1"}, "stream.transport gpunetio needs receiver.nic, .* not eth1"),
        ({"receiver__nic": 1020.0}, "generator.nic and receiver.nic go in quotes, or YAML takes them"),
        (
            {"receiver__nic": "software"},
            "generator.nic is 0000:17:00.0 and receiver.nic is software, but both",
        ),
        ({"stream__slots": 1000}, "stream.slots is 1000, but it should be a power of two from 512 to 524288"),
        ({"stream__slots": 256}, "stream.slots"),
        ({"stream__window_frames": 63}, "stream.window_frames is 63, but .* takes 64 or more"),
        (
            {"stream__slots": 4096},
            "stream.slots is 4096, but it should be at least twice stream.window_frames",
        ),
        ({"stream__pace_gbps": 0}, "stream.pace_gbps"),
        ({"problem__source": "file", "problem__path": "J.npy"}, "generator.backend cuda makes"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_config(sections(**changes))


def test_the_two_hosts_have_the_same_run() -> None:
    configs = [load_config(CONFIGS / f"gpunetio_{side}.yaml") for side in ("generator", "receiver")]
    assert configs[0].digest() == configs[1].digest()
    assert configs[0].stream.transport == "gpunetio"
