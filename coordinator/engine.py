"""The coordinator: the only one who knows where a run stands.

It resolves the configuration, releases each pass, decides that a pass counts, and keeps the records.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import BaseModel

from coordinator.outcome import Outcome, input_hash, require_same_input
from coordinator.peers import Peer, Peers, is_news
from coordinator.plan import Plan, bytes_text, duration_text
from coordinator.progress import Display
from coordinator.schedule import SaveSchedule
from coordinator.timings import timing
from streamdsb.channel import Channel
from streamdsb.checkpoint import path_of
from streamdsb.config import Config
from streamdsb.errors import RunFailed, UserError
from streamdsb.messages import (
    Begin,
    Busy,
    Compiling,
    DeviceRing,
    Drop,
    Dropped,
    Finish,
    Listening,
    Opened,
    PassReceived,
    PassSent,
    Progress,
    Ready,
    Resolved,
    Restored,
    Save,
    Saved,
    Updated,
    Welcome,
)
from streamdsb.run_directory import RunDirectory, record_line

M = TypeVar("M", bound=BaseModel)

_START_TIMEOUT_S = 180.0
"""Longest time for opening couplings and compiling."""
_SAVE_TIMEOUT_S = 600.0
_DROP_TIMEOUT_S = 2.5
_MARGIN_S = 5.0
"""A worker says itself what it waits for in vain; the coordinator waits this much longer."""


def welcome(channel: Channel, config: Config, run: int) -> None:
    """Tell a process that said hello what the run is."""
    channel.send(Welcome(config=config.model_dump(), digest=config.digest(), run=run))


def described(config: Config) -> str:
    """Which couplings a run streams, for messages about waiting for them."""
    problem = config.problem
    return f"problem.source {problem.source}" + (f", problem.path {problem.path}" if problem.path else "")


class CoordinatorEngine:
    """Leads the peers of one run through all its passes."""

    def __init__(self, config: Config, peers: Peers, display: Display) -> None:
        self.config = config
        self.outcome = Outcome()
        self._peers = peers
        self._display = display
        self._timeout_s = config.stream.timeout_s + _MARGIN_S
        self._field: np.ndarray | None = None
        self._next_pass = 0
        self._is_updating = False
        """True while the receiver may or may not have left the state that entered the next pass."""
        self._schedule = SaveSchedule(config)
        self._said: Busy | None = None
        self._expected_hash: str | None = None
        self.begun_anew: Counter[int] = Counter()
        """How often each pass was begun again because a process had died."""

    @property
    def next_pass(self) -> int:
        """The first pass that does not count yet."""
        return self._next_pass

    def prepare(self, field_values: np.ndarray | None, checkpoints: Sequence[Path] = ()) -> None:
        """Bring all peers to the point where the first pass can be released.

        field_values: int32 (n,) or None; checkpoints: where to continue from, the newest first.
        """
        self._field = field_values
        couplings = described(self.config)
        opened = self._await(Opened, f"the generator to open the couplings of {couplings}", _START_TIMEOUT_S)
        self.config = self.config.with_n(opened.n)
        for peer in self._peers.of_role("receiver"):
            peer.channel.max_bytes = 8 * (self.config.solver.replicas + 1) * self.config.layout.bitmap_words
        if field_values is not None and field_values.shape != (opened.n,):
            raise UserError(
                f"problem.field has shape {field_values.shape}, but n is {opened.n}: ({opened.n},) is needed"
            )
        plan = Plan.of(self.config)
        for line in plan.lines():
            self._display.say(line)
        self._peers.send(
            Resolved(n=opened.n, checkpoints=[str(path) for path in checkpoints]),
            "receiver",
            b"" if field_values is None else field_values.tobytes(),
        )
        if checkpoints:
            self._continue_from(self._await(Restored, "the receiver to restore its state", _START_TIMEOUT_S))
        self._peers.send(Resolved(n=opened.n, first_pass=self._next_pass), role="generator")
        if self.config.stream.is_networked:
            self._peers.send(self._await(Listening, "the receiver to listen", _START_TIMEOUT_S), "generator")
        if self.config.stream.transport == "peer":
            ring = self._await(DeviceRing, "the receiver to allocate its ring", _START_TIMEOUT_S)
            self._peers.send(ring, "generator")
        rate = self._await_ready()
        seconds = plan.seconds_per_pass(rate)
        self._display.say(
            f"expected {duration_text(seconds)} a pass and {duration_text(seconds * plan.passes)} in all, at"
            f" the {bytes_text(rate)}/s that the slower side reached alone"
        )

    def _await_ready(self) -> float:
        """The bytes of payload a second that the slower side reached alone."""
        rates: dict[str, float] = {}
        deadline = time.monotonic() + _START_TIMEOUT_S
        while missing := [peer.hello.role for peer in self._peers.members if peer.hello.role not in rates]:
            waiting_for = (
                f"the {' and the '.join(missing)} to compile and to try how fast it is, with the couplings of"
                f" {described(self.config)}"
            )
            peer, message = self._next(max(0.0, deadline - time.monotonic()), waiting_for)
            if isinstance(message, Ready) and peer is not None:
                rates[peer.hello.role] = message.payload_per_second
            elif not is_news(message):
                raise RunFailed(f"{type(message).__name__} came while waiting for {waiting_for}")
        return min(rates.values())

    def _continue_from(self, restored: Restored) -> None:
        self._next_pass, self._expected_hash = restored.next_pass, restored.input_hash
        self._display.say(f"continuing with pass {restored.next_pass} from a checkpoint")
        if self.config.problem.source in ("mattis", "random"):
            self._require_same_input()

    def _require_same_input(self) -> None:
        """Once the couplings are known: refuse to continue a run of others."""
        require_same_input(self._expected_hash, self._input_hash())

    def _input_hash(self) -> str:
        return input_hash(self.config, self.outcome.couplings_hash, self._field)

    def run_passes(self, directory: RunDirectory) -> None:
        """All passes up to K; a record and a timing stand in `directory` for each that counts."""
        self._display.start(self.config, self._next_pass)
        for k in range(self._next_pass, self.config.solver.updates + 1):
            start = time.perf_counter()
            self._peers.send(Begin(pass_index=k))
            sent, received = self._await_pass(k)
            if sent.couplings_hash is not None:
                self.outcome.couplings_hash = sent.couplings_hash
                self._require_same_input()
            self._is_updating = True
            self._peers.send(Finish(pass_index=k, advance=k < self.config.solver.updates), role="receiver")
            updated = self._await_update(k)
            directory.append_record(record_line(k, updated.two_energy, updated.checksum))
            self._next_pass = k + 1
            self._is_updating = False
            total_s = time.perf_counter() - start
            directory.append_timing(
                timing(
                    received,
                    update_s=updated.update_s,
                    exchange_s=0.0,
                    checkpoint_wait_s=updated.checkpoint_wait_s,
                    total_s=total_s,
                    restarted=self.begun_anew[k],
                )
            )
            self.outcome.add(updated.two_energy, received.receive_s, total_s)
            self.outcome.checkpoint_wait_s += updated.checkpoint_wait_s
            self._display.show_frames(k, received.frames)
            self._display.show_energy(self.outcome.best_two_energy)
            if self._schedule.is_due(k + 1):
                self._save(directory)

    def save_before_leaving(self, directory: RunDirectory) -> None:
        """Drop the current pass and save the state that entered it.

        Raises RunFailed if there is no such state any more, Interrupted if the user does not want to wait.
        """
        if self._next_pass > self.config.solver.updates:
            return
        if self._is_updating:
            raise RunFailed(f"the receiver has not finished pass {self._next_pass}")
        self._peers.send(Drop(), role="receiver")
        self._skip_to(Dropped, "the receiver to drop the pass", _DROP_TIMEOUT_S)
        self._save(directory)
        while self._skip_to(Saved, "the last checkpoint", _SAVE_TIMEOUT_S).next_pass != self._next_pass:
            pass

    def _skip_to(self, kind: type[M], waiting_for: str, timeout_s: float) -> M:
        """The next message of `kind`; whatever comes before it does not matter any more."""
        deadline = time.monotonic() + timeout_s
        while True:
            _, message = self._next(max(0.0, deadline - time.monotonic()), waiting_for)
            if isinstance(message, kind):
                return message

    def _save(self, directory: RunDirectory) -> None:
        path = path_of(directory.path.absolute(), self._next_pass)
        order = Save(path=str(path), next_pass=self._next_pass, input_hash=self._input_hash())
        self._peers.send(order, role="receiver")

    def _await_update(self, k: int) -> Updated:
        """The receiver's word that pass k is finished; it is near, and whatever else happens waits for it."""
        with self._peers.patient_with("receiver"):
            return self._await(Updated, f"the receiver to finish pass {k}", self._timeout_s)

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
            _, message = self._next(remaining, waiting_for)
            if isinstance(message, Progress):
                if message.pass_index != k:
                    continue
                moved, frames = message.frames > frames, message.frames
                self._display.show_frames(k, frames)
            elif isinstance(message, PassSent):
                moved, sent = True, message
            elif isinstance(message, PassReceived):
                moved, received = True, message
            elif is_news(message):
                moved = isinstance(message, Busy)
            else:
                raise RunFailed(f"{type(message).__name__} came in the middle of pass {k}")
            if moved:
                deadline = time.monotonic() + self._timeout_s
        return sent, received

    def _await(self, kind: type[M], waiting_for: str, timeout_s: float) -> M:
        """The next message, which has to be of `kind`; news on the way there is shown to the user."""
        deadline = time.monotonic() + timeout_s
        while True:
            _, message = self._next(max(0.0, deadline - time.monotonic()), waiting_for)
            if isinstance(message, kind):
                return message
            if not is_news(message):
                raise RunFailed(f"{type(message).__name__} came while waiting for {waiting_for}")

    def _next(self, timeout_s: float, waiting_for: str) -> tuple[Peer | None, BaseModel]:
        peer, message, _ = self._peers.next(timeout_s, waiting_for)
        if isinstance(message, Saved):
            self.outcome.checkpoint_bytes.append(message.size)
            self.outcome.checkpoint_s.append(message.seconds)
        if isinstance(message, Compiling) and peer is not None:
            self._display.say(
                f"{peer.hello.role}: compiling {message.what} (the first run on a machine takes some seconds)"
            )
        if isinstance(message, Busy) and peer is not None and message != self._said:
            self._said = message
            self._display.say(f"{peer.hello.role}: {message.what}")
        return peer, message
