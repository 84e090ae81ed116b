"""The processes of a run as the coordinator sees them: one control channel each, all events in one queue."""

from __future__ import annotations

import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel

from streamdsb.channel import Channel, PeerGone
from streamdsb.errors import Interrupted, RunFailed, StreamdsbError, UserError
from streamdsb.messages import Busy, Compiling, Failed, Farewell, Hello, Progress, Saved, Stop

M = TypeVar("M", bound=BaseModel)

_PATIENCE_S = 2.5
"""How long an interrupt or a failure may wait for what is near its end."""
_STOP_S = 1.0
"""How long to wait for a peer that does not take in that the run ends."""
_ROOT_CAUSE_S = 1.0
"""How long to wait for the cause of a failure that looks like a consequence."""


@dataclass
class Peer:
    """A generator or receiver: its channel, and its process if this coordinator started it."""

    hello: Hello
    channel: Channel
    process: subprocess.Popen[bytes] | None = None
    own_host: str = ""
    """The address at which it reached this coordinator, if it came over a network."""

    @property
    def name(self) -> str:
        return f"the {self.hello.role} (pid {self.hello.pid} on {self.hello.host})"

    def turn_away(self, reason: str) -> None:
        """Tell it why it cannot take part, if it still listens, and close its channel."""
        with suppress(PeerGone):
            self.channel.send(Failed(message=reason, exit_status=UserError.exit_status))
        self.channel.close()

    def obituary(self) -> str:
        """How it ended, as far as can be told."""
        if self.process is None:
            return f"{self.name} has closed its connection"
        return f"{self.name} {describe_end(self.process)}"


def signal_name(number: int) -> str:
    """SIGKILL for 9; real-time signals have no names of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def describe_end(process: subprocess.Popen[bytes]) -> str:
    """In words, how a local process ended or that it lost its connection."""
    try:
        status = process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        return "has closed its connection"
    if status < 0:
        return f"was killed by signal {-status} ({signal_name(-status)})"
    return f"ended with status {status}"


class ProcessDied(RunFailed):
    """A process that this coordinator started has ended before the run."""

    def __init__(self, text: str, role: str) -> None:
        super().__init__(text)
        self.role = role


class TurnedAway(BaseModel):
    """Somebody who wanted to join and may not."""

    reason: str


class Left(BaseModel):
    """Somebody who had joined and went again before the run began."""

    reason: str


@dataclass(frozen=True)
class _Event:
    peer: Peer | None
    message: BaseModel | StreamdsbError
    data: bytes = b""


class Peers:
    """All processes of a run; messages are awaited by kind, anybody's failure ends any wait."""

    def __init__(self, trouble: threading.Event | None = None) -> None:
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self.members: list[Peer] = []
        self._patient_with: str | None = None
        self._held: _Event | None = None
        self._held_until = 0.0
        self.trouble = trouble or threading.Event()
        """Set once anybody has failed or the user wants an end, for waits that do not go through `next`."""
        self.admits = False
        """True while newcomers are heard, and members may leave; whoever comes later is sent away."""

    def add(self, peer: Peer) -> None:
        """Begin to listen to `peer`."""
        self.members.append(peer)
        peer.channel.set_timeout(None)
        threading.Thread(target=self._read, args=(peer,), name=peer.hello.role, daemon=True).start()

    def of_role(self, role: str) -> list[Peer]:
        return [peer for peer in self.members if peer.hello.role == role]

    def announce(self, arrival: Peer | TurnedAway) -> None:
        """Put somebody at the door among the events; may be called from any thread."""
        if isinstance(arrival, TurnedAway):
            self._events.put(_Event(None, arrival))
        else:
            self._events.put(_Event(arrival, arrival.hello))

    def interrupt(self, signal_number: int) -> None:
        """End whatever is awaited because of a signal; safe to call from a signal handler."""
        self.fail(Interrupted(f"stopped by {signal_name(signal_number)}"))

    def fail(self, failure: StreamdsbError) -> None:
        """End whatever is awaited because of `failure`; may be called from any thread."""
        self._events.put(_Event(None, failure))
        self.trouble.set()

    @contextmanager
    def patient_with(self, role: str) -> Iterator[None]:
        """Within, what ends a wait, but is not a failure of `role`, does so only after a while.

        It ends the next wait if this one has come to a good end by then; a second signal is not put off.
        """
        self._patient_with = role
        try:
            yield
        finally:
            self._patient_with = None

    def send(self, message: BaseModel, role: str | None = None, data: bytes = b"") -> None:
        """Send to all peers, or to those of one role; a peer that is gone will be noticed by its silence.

        Bytes, which may be many, are sent by a thread: nobody who takes them in slowly holds up the rest.
        """
        for peer in self.members:
            if role is None or peer.hello.role == role:
                if data:
                    _in_background(peer, message, data)
                else:
                    _send(peer, message)

    def call_off(self, cause: str) -> None:
        """Tell all why the run ends before its time; whoever does not take it in is not waited for."""
        threads = [_in_background(peer, Stop(completed=False, cause=cause)) for peer in self.members]
        deadline = time.monotonic() + _STOP_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def next(self, timeout_s: float, waiting_for: str) -> tuple[Peer | None, BaseModel, bytes]:
        """The next message and who sent it; raises the failure of anybody, RunFailed after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            until = deadline if self._held is None else min(deadline, self._held_until)
            if self._held is not None and (self._patient_with is None or now >= until):
                event, self._held = self._held, None
                raise self._cause(event)
            try:
                event = self._events.get(timeout=max(0.0, until - now))
            except queue.Empty:
                if self._held is not None:
                    continue
                raise RunFailed(f"waited {timeout_s:g} s for {waiting_for}") from None
            if isinstance(event.message, StreamdsbError | Failed):
                if self.admits and event.peer is not None:
                    return event.peer, self._dismiss(event.peer, event), b""
                if not self._puts_off(event):
                    raise self._cause(event)
                if self._held is None:
                    self._held, self._held_until = event, time.monotonic() + _PATIENCE_S
                continue
            if self.admits or not isinstance(event.message, Hello | TurnedAway):
                return event.peer, event.message, event.data
            if event.peer is not None:
                event.peer.turn_away("the run has begun without this process")

    def _dismiss(self, peer: Peer, event: _Event) -> Left:
        self.members.remove(peer)
        peer.channel.close()
        return Left(reason=str(_error_of(event)))

    def _puts_off(self, event: _Event) -> bool:
        if self._patient_with is None:
            return False
        if event.peer is None:
            return self._held is None or not isinstance(self._held.message, Interrupted)
        return event.peer.hello.role != self._patient_with

    def _read(self, peer: Peer) -> None:
        try:
            while True:
                message, data = peer.channel.receive()
                if isinstance(message, Failed):
                    self._note_trouble()
                self._events.put(_Event(peer, message, data))
                if isinstance(message, Failed | Farewell):
                    return
        except Exception as error:
            failure = error if isinstance(error, StreamdsbError) else RunFailed(f"{peer.name}: {error!r}")
            self._note_trouble()
            self._events.put(_Event(peer, failure))

    def _note_trouble(self) -> None:
        if not self.admits:
            self.trouble.set()

    def cause_of(self, consequence: StreamdsbError) -> StreamdsbError:
        """The failure behind `consequence`, if somebody reports one soon; else that itself."""
        deadline = time.monotonic() + _ROOT_CAUSE_S
        while (remaining := deadline - time.monotonic()) > 0:
            try:
                event = self._events.get(timeout=remaining)
            except queue.Empty:
                break
            if isinstance(event.message, StreamdsbError | Failed):
                return self._cause(event)
        return consequence

    def _cause(self, event: _Event) -> StreamdsbError:
        """The failure to report: of one that may be a consequence, the cause if it shows up soon."""
        deadline = time.monotonic() + _ROOT_CAUSE_S
        while _is_consequence(event) and (remaining := deadline - time.monotonic()) > 0:
            try:
                other = self._events.get(timeout=remaining)
            except queue.Empty:
                break
            if isinstance(other.message, StreamdsbError | Failed):
                event = other
        return _error_of(event)


def _send(peer: Peer, message: BaseModel, data: bytes = b"") -> None:
    with suppress(PeerGone):
        peer.channel.send(message, data)


def _in_background(peer: Peer, message: BaseModel, data: bytes = b"") -> threading.Thread:
    thread = threading.Thread(target=_send, args=(peer, message, data), daemon=True)
    thread.start()
    return thread


def _is_consequence(event: _Event) -> bool:
    return isinstance(event.message, Failed) and event.message.is_consequence


def _error_of(event: _Event) -> StreamdsbError:
    if isinstance(event.message, Failed):
        kind = UserError if event.message.exit_status == UserError.exit_status else RunFailed
        role = event.peer.hello.role if event.peer else "coordinator"
        return kind(f"{role}: {event.message.message}")
    assert isinstance(event.message, StreamdsbError)
    if event.peer is not None and isinstance(event.message, PeerGone):
        obituary = event.peer.obituary()
        if event.peer.process is not None:
            return ProcessDied(obituary, event.peer.hello.role)
        return RunFailed(obituary)
    return event.message


def is_news(message: BaseModel) -> bool:
    """True for messages that only tell the user how far things are."""
    return isinstance(message, Progress | Compiling | Busy | Saved)
