"""What a generator and a receiver have in common: their side of the control connection, start and end."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

import streamdsb
from streamdsb.channel import Channel, PeerGone
from streamdsb.config import Config, make_config
from streamdsb.errors import Cancelled, Interrupted, RunFailed, StreamdsbError, UserError
from streamdsb.join import Origin
from streamdsb.layout import MAX_N
from streamdsb.machine import peak_memory
from streamdsb.messages import PROTOCOL, Drop, Failed, Farewell, Hello, Role, Stop, Welcome

_LAST_RESORT_S = 3.0
"""How long a process that has lost its coordinator may take to end by itself."""

_TRIAL_S = 0.02

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Control:
    """A worker's end of the control connection, read by a thread of its own.

    `cancelled` is set when the coordinator says Stop or is gone; every wait of the worker looks at it.
    """

    def __init__(self, channel: Channel, tells_user: bool = False) -> None:
        self.cancelled = threading.Event()
        self.end: Stop | StreamdsbError | None = None
        """The coordinator's last word, or how it was lost."""
        self._channel = channel
        self._tells_user = tells_user
        self._inbox: queue.SimpleQueue[tuple[BaseModel, bytes] | StreamdsbError] = queue.SimpleQueue()
        self._done = threading.Event()
        channel.set_timeout(None)
        channel.max_bytes = 4 * MAX_N  # a field
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

    def is_waiting(self) -> bool:
        """Whether the coordinator has said something that `next` would return at once."""
        return not self._inbox.empty()

    def leave(self) -> None:
        """The work is over: the process will end by itself."""
        self._done.set()

    @property
    def ending(self) -> StreamdsbError:
        """Why the coordinator does not lead the run any more, for the user."""
        if isinstance(self.end, StreamdsbError):
            return self.end
        cause = self.end.cause if self.end else ""
        return RunFailed(f"{self.peer} has called the run off" + (f": {cause}" if cause else ""))

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
                    self.end = message
                if isinstance(message, Stop | Drop):
                    self.cancelled.set()
                self._inbox.put((message, data))
                if isinstance(message, Stop):
                    break
        except Exception as error:
            self.end = error if isinstance(error, StreamdsbError) else RunFailed(f"control: {error!r}")
            self.cancelled.set()
            self._inbox.put(self.end)
        if not (isinstance(self.end, Stop) and self.end.completed):
            self._done.wait(_LAST_RESORT_S)
            if not self._done.is_set():
                if self._tells_user:
                    print(f"streamdsb: {self.ending}", file=sys.stderr, flush=True)
                os._exit(RunFailed.exit_status)


@dataclass(frozen=True)
class Membership:
    """What the coordinator answered: the run's id and configuration, whose n may still be open."""

    run: int
    config: Config


def say_hello(role: Role, origin: Origin, control: Control) -> Membership:
    """Introduce this process; raises UserError if the coordinator refuses it, or what it expects."""
    control.send(
        Hello(
            role=role,
            protocol=PROTOCOL,
            version=streamdsb.__version__,
            pid=os.getpid(),
            host=socket.gethostname(),
            expected=origin.expected,
        )
    )
    welcome, _ = control.expect(Welcome)
    config = make_config(welcome.config, "the coordinator's configuration")
    if config.digest() != welcome.digest:
        raise UserError(f"{control.peer} and this {role} understand the configuration differently")
    return Membership(welcome.run, config)


def shortest_time(work: Callable[[], None]) -> float:
    """Seconds that `work` takes at its fastest, tried for 20 ms and at least twice."""
    times: list[float] = []
    while len(times) < 2 or sum(times) < _TRIAL_S:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


class Shares(Generic[T]):
    """Work that is dealt to a few threads; the first share is done by the thread that calls."""

    def __init__(self, items: Sequence[T], threads: int, cancelled: threading.Event) -> None:
        self._shares = [list(items[t::threads]) for t in range(min(threads, len(items)))]
        self._pool = ThreadPoolExecutor(len(self._shares))
        self._cancelled = cancelled

    def __len__(self) -> int:
        return len(self._shares)

    def each(self, work: Callable[[Sequence[T]], None]) -> None:
        """Do `work` on every share at once; if it fails on one, all end and its error is raised."""

        def guarded(share: Sequence[T]) -> None:
            try:
                work(share)
            except BaseException:
                self._cancelled.set()
                raise

        futures = [self._pool.submit(guarded, share) for share in self._shares[1:]]
        failures: list[BaseException | None] = []
        try:
            guarded(self._shares[0])
        except BaseException as failure:
            failures.append(failure)
        failures += [future.exception() for future in futures]
        # that the others were cancelled only follows from the one that failed
        for cause in sorted(filter(None, failures), key=lambda cause: isinstance(cause, Cancelled)):
            raise cause


class Background:
    """Work in a thread of its own, whose error is raised where it is waited for."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(work)

    def wait(self) -> None:
        """Wait for the end of the work; raises what it raised."""
        try:
            self._future.result()
        finally:
            self._pool.shutdown()


def every(seconds: float, work: Callable[[], None]) -> None:
    """Do `work` again and again in a thread of its own, until it raises PeerGone or the process ends."""

    def repeat() -> None:
        with contextlib.suppress(PeerGone):
            while True:
                time.sleep(seconds)
                work()

    threading.Thread(target=repeat, daemon=True).start()


def run_worker(origin: Origin, work: Callable[[Origin, Control], None]) -> int:
    """`serve` for a process whose coordinator is the one to tell the user; the exit status."""
    try:
        serve(origin, work)
    except StreamdsbError as error:
        return error.exit_status
    return 0


def serve(origin: Origin, work: Callable[[Origin, Control], None]) -> None:
    """Do `work` and report how it ended to the coordinator; raises UserError or RunFailed if not well."""
    channel = Channel(origin.connection, origin.peer)
    control = Control(channel, origin.is_remote)
    try:
        work(origin, control)
        if not (isinstance(control.end, Stop) and control.end.completed):
            raise Cancelled
        channel.send(Farewell(peak_memory=peak_memory()))
        return
    except Cancelled:
        raise control.ending from None
    except StreamdsbError as error:
        failure = error
    except KeyboardInterrupt:
        failure = Interrupted("interrupted")
    except MemoryError:
        failure = UserError("out of memory; lower solver.replicas or problem.n")
    except Exception as error:
        _report(channel, RunFailed(f"unexpected {type(error).__name__}: {error}"))
        raise
    finally:
        control.leave()
    _report(channel, failure)
    raise failure


def _report(channel: Channel, failure: StreamdsbError) -> None:
    with contextlib.suppress(PeerGone):
        channel.send(
            Failed(
                message=str(failure),
                exit_status=failure.exit_status,
                is_consequence=isinstance(failure, PeerGone),
            )
        )
