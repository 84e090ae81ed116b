"""What a configuration has to say for stream.transport gpunetio."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

if TYPE_CHECKING:
    from streamdsb.config import Config, Process

SOFTWARE_CARD = "software"
"""In place of a network card's PCI address: the one that is a program, for GPUs without a card."""

SOFTWARE_MAC = bytes.fromhex("025342000001")
"""Its Ethernet address, a locally administered one."""

LEAST_WINDOW = 64
"""Frames on the way to which a queue cannot be held down: those of a burst."""

_PCI_ADDRESS = re.compile(r"([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]")


def _require_text(value: Any) -> Any:
    if isinstance(value, int | float):
        raise ValueError("generator.nic and receiver.nic go in quotes, or YAML takes them for times of day")
    return value


PciAddress = Annotated[str, BeforeValidator(_require_text)]


def require_cards(config: Config) -> None:
    """Raise ValueError, in one sentence, if the keys of transport gpunetio do not fit together."""
    for role in ("generator", "receiver"):
        _require_card(role, getattr(config, role))
    nics = config.generator.nic, config.receiver.nic
    if (nics[0] == SOFTWARE_CARD) != (nics[1] == SOFTWARE_CARD):
        raise ValueError(
            f"generator.nic is {nics[0]} and receiver.nic is {nics[1]}, but both or none can be"
            f" {SOFTWARE_CARD}"
        )
    devices = config.generator.device, config.receiver.device
    if nics[0] == SOFTWARE_CARD and devices[0] != devices[1]:
        raise ValueError(
            f"generator.device is {devices[0]} and receiver.device is {devices[1]}, but both have to be the"
            f" same GPU where generator.nic and receiver.nic are {SOFTWARE_CARD}"
        )
    slots, window = config.stream.slots, config.stream.window_frames
    if window < LEAST_WINDOW:
        raise ValueError(
            f"stream.window_frames is {window}, but stream.transport gpunetio takes {LEAST_WINDOW} or more,"
            " which a queue sends at once"
        )
    if slots & (slots - 1):
        raise ValueError(f"stream.slots is {slots}, but it should be a power of two from 512 to {2**19}")
    if 2 * window > slots:
        raise ValueError(
            f"stream.slots is {slots}, but it should be at least twice stream.window_frames, {window}: the"
            " card overwrites what has not been read"
        )


def _require_card(role: str, process: Process) -> None:
    if process.backend != "cuda":
        raise ValueError(f"stream.transport gpunetio needs {role}.backend cuda, not {process.backend}")
    if process.nic is None or not (process.nic == SOFTWARE_CARD or _PCI_ADDRESS.fullmatch(process.nic)):
        raise ValueError(
            f"stream.transport gpunetio needs {role}.nic, the PCI address of its network card such as"
            f" 0000:17:00.0 (see streamdsb doctor --gpunetio), or {SOFTWARE_CARD}, not {process.nic}"
        )
