"""What a generator and a receiver have in common: their side of the control connection, start and end."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

import streamdsb
from streamdsb.channel import Channel, PeerGone
from streamdsb.config import Config, load_config, make_config
from streamdsb.errors import RunFailed, StreamdsbError, UserError
from streamdsb.join import Origin
from streamdsb.machine import peak_memory
from streamdsb.messages import PROTOCOL, Failed, Farewell, Hello, Role, Stop, Welcome

_LAST_RESORT_S = 3.0
"""How long a process that has lost its coordinator may take to end by itself."""

_TICK_S = 0.25
_TRIAL_S = 0.02

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Cancelled(Exception):
    """The coordinator has called the run off; nothing needs to be said."""


class Control:
    """A worker's end of the control connection, read by a thread of its own.

    `cancelled` is set when the coordinator says Stop or is gone; every wait of the worker looks at it.
    """

    def __init__(self, channel: Channel) -> None:
        self.cancelled = threading.Event()
        self._channel = channel
        self._inbox: queue.SimpleQueue[tuple[BaseModel, bytes] | StreamdsbError] = queue.SimpleQueue()
        channel.set_timeout(None)
        threading.Thread(target=self._read, name="control", daemon=True).start()

    def send(self, message: BaseModel, data: bytes | memoryview = b"") -> None:
        self._channel.send(message, data)

    def next(self) -> BaseModel:
        """The coordinator's next message; raises PeerGone if the coordinator is gone."""
        return self._next()[0]

    def expect(self, kind: type[M]) -> tuple[M, bytes]:
        """The coordinator's next message, which has to be of `kind`, and its bytes.

        Raises UserError if the coordinator refuses this process, Cancelled if it calls the run off.
        """
        message, data = self._next()
        if isinstance(message, kind):
            return message, data
        if isinstance(message, Stop):
            raise Cancelled
        if isinstance(message, Failed):
            raise UserError(message.message)
        raise RunFailed(f"{self.peer} sent {type(message).__name__} where {kind.__name__} was expected")

    @property
    def peer(self) -> str:
        return self._channel.peer

    def _next(self) -> tuple[BaseModel, bytes]:
        entry = self._inbox.get()
        if isinstance(entry, StreamdsbError):
            raise entry
        return entry

    def _read(self) -> None:
        try:
            while True:
                message, data = self._channel.receive()
                if isinstance(message, Stop):
                    self.cancelled.set()
                self._inbox.put((message, data))
                if isinstance(message, Stop):
                    return
        except StreamdsbError as error:
            self.cancelled.set()
            self._inbox.put(error)
            timer = threading.Timer(_LAST_RESORT_S, os._exit, (RunFailed.exit_status,))
            timer.daemon = True
            timer.start()


@dataclass(frozen=True)
class Membership:
    """What the coordinator answered: the run's id and configuration, whose n may still be open."""

    run: int
    config: Config


def say_hello(role: Role, origin: Origin, control: Control) -> Membership:
    """Introduce this process; raises UserError if the coordinator refuses it or its configuration differs."""
    control.send(
        Hello(
            role=role,
            protocol=PROTOCOL,
            version=streamdsb.__version__,
            pid=os.getpid(),
            host=socket.gethostname(),
        )
    )
    welcome, _ = control.expect(Welcome)
    config = make_config(welcome.config, "the coordinator's configuration")
    if config.digest() != welcome.digest:
        raise UserError(f"{control.peer} and this {role} understand the configuration differently")
    if origin.expected is not None:
        _require_same(load_config(origin.expected), config, origin.expected)
    return Membership(welcome.run, config)


def _require_same(own: Config, theirs: Config, path: Path) -> None:
    ours, others = own.model_dump(), theirs.model_dump()
    for section, values in ours.items():
        for key, value in values.items():
            if value != others[section][key]:
                raise UserError(
                    f"{path}: {section}.{key} is {value!r}, but the coordinator has {others[section][key]!r}"
                )


def share_out(items: Sequence[T], threads: int) -> list[list[T]]:
    """Deal `items` to at most `threads` shares, none empty."""
    return [list(items[t::threads]) for t in range(min(threads, len(items)))]


def shortest_time(work: Callable[[], None]) -> float:
    """Seconds that `work` takes at its fastest, tried for 20 ms and at least twice."""
    times: list[float] = []
    while len(times) < 2 or sum(times) < _TRIAL_S:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def run_shares(
    pool: Executor,
    work: Callable[[T], None],
    shares: Sequence[T],
    cancelled: threading.Event,
    tick: Callable[[], None],
) -> None:
    """Do `work` on every share at once, calling `tick` now and then; if one fails, all end with its error."""

    def guarded(share: T) -> None:
        try:
            work(share)
        except BaseException:
            cancelled.set()
            raise

    futures = [pool.submit(guarded, share) for share in shares]
    try:
        while wait(futures, timeout=_TICK_S).not_done:
            tick()
    except BaseException:
        cancelled.set()
        raise
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, Cancelled)):
        raise error


def run_worker(origin: Origin, work: Callable[[Origin, Control], None]) -> int:
    """Do `work` and report how it ended to the coordinator; the exit status."""
    channel = Channel(origin.connection, origin.peer)
    try:
        work(origin, Control(channel))
        channel.send(Farewell(peak_memory=peak_memory()))
        return 0
    except Cancelled:
        return 0
    except PeerGone as error:
        failure: StreamdsbError = error
    except StreamdsbError as error:
        failure = error
    except KeyboardInterrupt:
        failure = RunFailed("interrupted")
    except MemoryError:
        failure = UserError("out of memory; lower solver.replicas or problem.n")
    except Exception as error:
        _report(channel, RunFailed(f"unexpected {type(error).__name__}: {error}"))
        raise
    _report(channel, failure)
    return failure.exit_status


def _report(channel: Channel, failure: StreamdsbError) -> None:
    with contextlib.suppress(PeerGone):
        channel.send(
            Failed(
                message=str(failure),
                exit_status=failure.exit_status,
                is_consequence=isinstance(failure, PeerGone),
            )
        )
