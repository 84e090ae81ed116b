"""A running request service: its socket, its packet loop, and workers behind the loop's rings."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba

from streamdsb import native
from streamdsb.errors import RunFailed, UserError
from streamdsb.service.config import ServiceConfig
from streamdsb.service.loop import serve
from streamdsb.service.loop_state import COUNTERS, make_loop
from streamdsb.service.rings import STOP, Rings
from streamdsb.service.segments import can_join, take_joined
from streamdsb.service.sockets import open_socket
from streamdsb.service.store import make_store

_STOP_S = 2.0


def compile_for(function: Any, arguments: tuple[Any, ...]) -> None:
    """Have numba compile `function` for these arguments now."""
    function.compile(tuple(numba.typeof(argument) for argument in arguments))


class Server(ABC):
    """A packet loop on a thread of its own; what solves is up to the subclass.

    with make_server(ServiceConfig()) as server:
        server.address
    """

    work_event = -1
    """eventfd that the loop adds published requests to, -1 if the workers look for themselves."""

    reply_event = -1
    """eventfd that the workers signal, -1 if the loop is to look for itself."""

    upload_event = -1
    """eventfd that the loop signals when a model has to be uploaded, -1 if workers read it where it is."""

    def __init__(self, config: ServiceConfig, rings: Rings) -> None:
        if not native.AVAILABLE:
            raise UserError("streamdsb serve needs Linux; streamdsb.solve() works in process everywhere")
        self.config = config
        self.rings = rings
        self.store = make_store()
        self._loop = make_loop()
        self._socket = open_socket(config)
        take_joined(self._socket)
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    @property
    def address(self) -> str:
        """host:port, or the interface and EtherType."""
        if self.config.interface is not None:
            return f"{self.config.interface} (EtherType {self.config.ether_type:#06x})"
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def counters(self) -> dict[str, int]:
        """What happened so far, by name; zeros included."""
        return dict(zip(COUNTERS, self._loop.counters.tolist(), strict=True))

    def start(self) -> None:
        """Compile, then serve on threads of their own."""
        try:
            self._start_workers()
            packets = (
                self._socket.fileno(), self.work_event, self.reply_event, self.upload_event,
                self.config.queue, self.config.interface is not None, can_join(self._socket), self._loop,
                self.rings, self.store,
            )  # fmt: skip
            compile_for(serve, packets)
            self._spawn(serve, *packets)
        except BaseException:
            self.stop()
            raise

    @abstractmethod
    def _start_workers(self) -> None:
        """Make the events, and have workers wait at the rings."""

    def _stop_workers(self) -> None:  # noqa: B027
        """Wait for workers that are no threads, once the stop flag is up."""

    def _spawn(self, function: Callable[..., Any], *arguments: Any) -> None:
        def run() -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self._failure = error

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)

    def check(self) -> None:
        """RunFailed if a part of the server has ended on its own."""
        if self._failure is not None:
            raise RunFailed(f"the server failed: {self._failure}") from self._failure

    def stop(self) -> None:
        """Stop at once and close; requests inside get no reply. A solve that takes long is not waited for."""
        self.rings.control[STOP] = 1
        events = [event for event in (self.work_event, self.reply_event, self.upload_event) if event >= 0]
        for event in events:
            with suppress(BlockingIOError):
                os.eventfd_write(event, max(1, len(self._threads)))
        deadline = time.monotonic() + _STOP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            # a worker that goes on would write to whatever has the number next
            for event in events:
                os.close(event)
            self.work_event = self.reply_event = self.upload_event = -1
        self._threads.clear()
        self._socket.close()
        self._stop_workers()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
