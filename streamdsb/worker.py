"""What a generator and a receiver have in common: their side of the control connection, start and end."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, wait
from typing import TypeVar

from pydantic import BaseModel

from streamdsb.channel import Channel, PeerGone
from streamdsb.errors import RunFailed, StreamdsbError, UserError
from streamdsb.join import Origin
from streamdsb.machine import peak_memory
from streamdsb.messages import Failed, Farewell, Stop

_LAST_RESORT_S = 3.0
"""How long a process that has lost its coordinator may take to end by itself."""

_TICK_S = 0.25

T = TypeVar("T")


class Cancelled(Exception):
    """The coordinator has called the run off; nothing needs to be said."""


class Control:
    """A worker's end of the control connection, read by a thread of its own.

    `cancelled` is set when the coordinator says Stop or is gone; every wait of the worker looks at it.
    """

    def __init__(self, channel: Channel) -> None:
        self.cancelled = threading.Event()
        self._channel = channel
        self._inbox: queue.SimpleQueue[BaseModel | StreamdsbError] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin to read; until then the channel may be used directly."""
        self._channel.set_timeout(None)
        threading.Thread(target=self._read, name="control", daemon=True).start()

    def send(self, message: BaseModel, data: bytes | memoryview = b"") -> None:
        self._channel.send(message, data)

    def next(self) -> BaseModel:
        """The coordinator's next message; raises PeerGone if the coordinator is gone."""
        message = self._inbox.get()
        if isinstance(message, StreamdsbError):
            raise message
        return message

    def _read(self) -> None:
        try:
            while True:
                message, _ = self._channel.receive()
                if isinstance(message, Stop):
                    self.cancelled.set()
                self._inbox.put(message)
                if isinstance(message, Stop):
                    return
        except StreamdsbError as error:
            self.cancelled.set()
            self._inbox.put(error)
            timer = threading.Timer(_LAST_RESORT_S, os._exit, (RunFailed.exit_status,))
            timer.daemon = True
            timer.start()


def share_out(items: Sequence[T], threads: int) -> list[list[T]]:
    """Deal `items` to at most `threads` shares, none empty."""
    return [list(items[t::threads]) for t in range(min(threads, len(items)))]


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


def run_worker(origin: Origin, work: Callable[[Origin, Channel], None]) -> int:
    """Do `work` and report how it ended to the coordinator; the exit status."""
    channel = Channel(origin.connection, origin.peer)
    try:
        work(origin, channel)
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
