"""Two processes whose cards are to talk: the Ethernet addresses they tell each other, and the way back.

Frames go from card to card.  What the receiver says back goes over the TCP connection, one a queue, over
which the two met.
"""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import cast

import numpy as np

from streamdsb.config import Config
from streamdsb.errors import RunFailed, UserError
from streamdsb.gpunetio.keys import SOFTWARE_CARD, SOFTWARE_MAC
from streamdsb.gpunetio.ring import CardReceiver, CardSender, open_card
from streamdsb.messages import Role
from streamdsb.queues import FrameReceiver, FrameSender
from streamdsb.queues.tcp import TcpReceiver, TcpSender

_ANSWERS = 4
"""Frames that go back at once at most."""


def mac_of(nic: str, root: Path = Path("/")) -> bytes:
    """The Ethernet address of the card at PCI address `nic`, 6 bytes; UserError if there is none."""
    if nic == SOFTWARE_CARD:
        return SOFTWARE_MAC
    full = nic.lower() if nic.count(":") == 2 else f"0000:{nic.lower()}"
    for file in sorted((root / "sys/bus/pci/devices" / full / "net").glob("*/address")):
        return bytes.fromhex(file.read_text().strip().replace(":", ""))
    raise UserError(
        f"no network interface is at PCI address {nic}; 'streamdsb doctor --gpunetio' says what there is"
    )


class FeedbackEnd:
    """The generator's end of the way back of one queue, and what it has to know of the receiver's card."""

    def __init__(self, connection: socket.socket, peer: bytes, window: int) -> None:
        self.peer = peer
        """The Ethernet address of the receiver's card."""
        self.window = window
        """Frames that may be on the way to it at most."""
        self._line = TcpReceiver(connection, _ANSWERS, "the receiver")
        self._holds = False

    def feedback(self) -> np.ndarray | None:
        """Frames that came back, uint64 (count, >= 512), or None; valid until the next call."""
        if self._holds:
            self._line.release()
        frames = self._line.receive()
        self._holds = frames is not None
        return frames

    def close(self) -> None:
        self._line.close()


class AnswerEnd:
    """The receiver's end of the way back of one queue."""

    def __init__(self, connection: socket.socket) -> None:
        self._line = TcpSender(connection, _ANSWERS, "the generator")

    def answer(self, frames: np.ndarray) -> None:
        """Send control frames, uint64 (count, 512), back now; those without room on the way are lost."""
        for first in range(0, len(frames), _ANSWERS):
            room = self._line.acquire()
            if room is None:
                return
            some = frames[first : first + _ANSWERS]
            room[: len(some)] = some
            self._line.commit(len(some))

    def close(self) -> None:
        self._line.close()


class CardEndpoint:
    """One end of a queue between two cards before it knows the other: what streamdsb.endpoints asks for.

    In place of senders and receivers of frames, which the kernels are, it makes the ends of the way back.
    """

    def __init__(self, config: Config, role: Role, connection: socket.socket, root: Path = Path("/")) -> None:
        process = config.generator if role == "generator" else config.receiver
        self._window = config.stream.window_frames
        self._connection = connection
        self.address = mac_of(process.nic or "", root).hex(":")

    def sender(self, address: str, window: int) -> FrameSender:
        return cast(FrameSender, FeedbackEnd(self._connection, _parse_mac(address), window))

    def receiver(self, address: str) -> tuple[FrameReceiver, int]:
        _parse_mac(address)
        return cast(FrameReceiver, AnswerEnd(self._connection)), self._window

    def silence(self, address: str) -> str:
        raise AssertionError("frames between cards are not tried before a run")


def _parse_mac(address: str) -> bytes:
    try:
        mac = bytes.fromhex(address.replace(":", ""))
    except ValueError:
        mac = b""
    if len(mac) != 6:
        raise RunFailed(f"an Ethernet address was expected from the other card, not {address!r}")
    return mac


def receiver_ring(config: Config, capability: int) -> CardReceiver:
    """The receiver's card, open on its GPU, which is current, and its queues; frames come from now on."""
    stream = config.stream
    card = open_card(config.receiver.nic or "", config.receiver.device)
    try:
        return CardReceiver(card, stream.queues, stream.slots, stream.window_frames, capability)
    except BaseException:
        card.close()
        raise


def sender_ring(
    config: Config, lines: list[FeedbackEnd], receiving: threading.Event | None = None
) -> CardSender:
    """The generator's card, open on its GPU, which is current, and its queues towards the card of `lines`.

    receiving: of the receiver's end, if that is in this process on the same GPU.
    """
    stream = config.stream
    card = open_card(config.generator.nic or "", config.generator.device)
    try:
        return CardSender(card, stream.queues, lines[0].window, lines[0].peer, stream.pace_gbps, receiving)
    except BaseException:
        card.close()
        raise
