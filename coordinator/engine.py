"""The coordinator: the only one who knows where a run stands.

It resolves the configuration, releases each pass, decides that a pass counts, and keeps the records.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

from coordinator.peers import Peers, is_news
from coordinator.plan import Plan, bytes_text, duration_text
from coordinator.progress import Display
from streamdsb.channel import Channel
from streamdsb.config import Config
from streamdsb.errors import RunFailed, UserError
from streamdsb.layout import PAYLOAD_BYTES
from streamdsb.messages import (
    Begin,
    Compiling,
    DeviceRing,
    Finish,
    Listening,
    Opened,
    PassReceived,
    PassSent,
    Progress,
    Ready,
    Resolved,
    Updated,
    Welcome,
)
from streamdsb.run_directory import RunDirectory, record_line

M = TypeVar("M", bound=BaseModel)

_START_TIMEOUT_S = 180.0
"""Longest time for opening couplings and compiling."""
_MARGIN_S = 5.0
"""A worker says itself what it waits for in vain; the coordinator waits this much longer."""


def welcome(channel: Channel, config: Config, run: int) -> None:
    """Tell a process that said hello what the run is."""
    channel.send(Welcome(config=config.model_dump(), digest=config.digest(), run=run))


@dataclass
class Outcome:
    """What is known of a run so far."""

    energies: list[list[int]] = field(default_factory=list)
    """2E of each replica, a row a pass."""
    receive_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    couplings_hash: str | None = None

    @property
    def best_two_energy(self) -> int:
        return min(min(row) for row in self.energies)


class CoordinatorEngine:
    """Leads the peers of one run through all its passes."""

    def __init__(self, config: Config, peers: Peers, display: Display) -> None:
        self.config = config
        self.outcome = Outcome()
        self._peers = peers
        self._display = display
        self._timeout_s = config.stream.timeout_s + _MARGIN_S

    def prepare(self, field_values: np.ndarray | None) -> None:
        """Bring all peers to the point where pass 0 can be released; field_values: int32 (n,) or None."""
        opened = self._await(Opened, "the generator to open the couplings", _START_TIMEOUT_S)
        self.config = self.config.with_n(opened.n)
        if field_values is not None and field_values.shape != (opened.n,):
            raise UserError(
                f"problem.field has shape {field_values.shape}, but n is {opened.n}: ({opened.n},) is needed"
            )
        plan = Plan.of(self.config)
        for line in plan.lines():
            self._display.say(line)
        self._peers.send(Resolved(n=opened.n), role="generator")
        self._peers.send(
            Resolved(n=opened.n), "receiver", b"" if field_values is None else field_values.tobytes()
        )
        if self.config.stream.transport == "tcp":
            self._peers.send(self._await(Listening, "the receiver to listen", _START_TIMEOUT_S), "generator")
        if self.config.stream.transport == "peer":
            ring = self._await(DeviceRing, "the receiver to allocate its ring", _START_TIMEOUT_S)
            self._peers.send(ring, "generator")
        ready = [
            self._await(Ready, "generator and receiver to compile", _START_TIMEOUT_S)
            for _ in self._peers.members
        ]
        rate = min(message.payload_per_second for message in ready)
        seconds = plan.seconds_per_pass(rate)
        self._display.say(
            f"expected {duration_text(seconds)} a pass and {duration_text(seconds * plan.passes)} in all, at"
            f" the {bytes_text(rate)}/s that the slower side reached alone"
        )

    def run_passes(self, directory: RunDirectory) -> None:
        """All K + 1 passes; a record and a timing stand in `directory` for each that counts."""
        self._display.start(self.config)
        for k in range(self.config.solver.updates + 1):
            start = time.perf_counter()
            self._peers.send(Begin(pass_index=k))
            sent, received = self._await_pass(k)
            if sent.couplings_hash is not None:
                self.outcome.couplings_hash = sent.couplings_hash
            self._peers.send(Finish(pass_index=k, advance=k < self.config.solver.updates), role="receiver")
            updated = self._await(Updated, f"the receiver to finish pass {k}", self._timeout_s)
            directory.append_record(record_line(k, updated.two_energy, updated.checksum))
            total_s = time.perf_counter() - start
            directory.append_timing(self._timing(received, updated, total_s))
            self.outcome.energies.append(updated.two_energy)
            self.outcome.receive_s.append(received.receive_s)
            self.outcome.total_s.append(total_s)
            self._display.show_frames(k, received.frames)
            self._display.show_energy(self.outcome.best_two_energy)

    def _await_pass(self, k: int) -> tuple[PassSent, PassReceived]:
        """Both sides' word that pass k is over; any progress starts the clock anew."""
        sent: PassSent | None = None
        received: PassReceived | None = None
        frames = 0
        deadline = time.monotonic() + self._timeout_s
        while sent is None or received is None:
            waiting_for = f"pass {k} to go on: {frames:,} of {self.config.layout.frames_per_pass:,} frames"
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise RunFailed(f"waited {self._timeout_s:g} s for {waiting_for}")
            message = self._next(remaining, waiting_for)
            if isinstance(message, Progress):
                if message.pass_index != k:
                    continue
                moved, frames = message.frames > frames, message.frames
                self._display.show_frames(k, frames)
            elif isinstance(message, PassSent):
                moved, sent = True, message
            elif isinstance(message, PassReceived):
                moved, received = True, message
            else:
                raise RunFailed(f"{type(message).__name__} came in the middle of pass {k}")
            if moved:
                deadline = time.monotonic() + self._timeout_s
        return sent, received

    def _timing(self, received: PassReceived, updated: Updated, total_s: float) -> dict[str, Any]:
        payload = received.frames * PAYLOAD_BYTES
        return {
            "pass": received.pass_index,
            "receive_s": round(received.receive_s, 6),
            "drain_s": round(received.drain_s, 6),
            "update_s": round(updated.update_s, 6),
            "total_s": round(total_s, 6),
            "payload_bytes": payload,
            "gbps": round(payload * 8e-9 / received.receive_s, 3),
            "frames": received.frames,
            "dropped": received.dropped,
            "duplicated": received.duplicated,
            "rejected": sum(received.rejected.values()),
        }

    def _await(self, kind: type[M], waiting_for: str, timeout_s: float) -> M:
        """The next message, which has to be of `kind`; news on the way there is shown to the user."""
        deadline = time.monotonic() + timeout_s
        while True:
            message = self._next(max(0.0, deadline - time.monotonic()), waiting_for)
            if isinstance(message, kind):
                return message
            if not is_news(message):
                raise RunFailed(f"{type(message).__name__} came while waiting for {waiting_for}")

    def _next(self, timeout_s: float, waiting_for: str) -> BaseModel:
        peer, message, _ = self._peers.next(timeout_s, waiting_for)
        if isinstance(message, Compiling) and peer is not None:
            self._display.say(
                f"{peer.hello.role}: compiling {message.what} (the first run on a machine takes some seconds)"
            )
        return message
