"""A running request service: its socket, packet loop and workers."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import numba
import numpy as np

from streamdsb import native
from streamdsb.errors import RunFailed, UserError
from streamdsb.jit import compile_kernels
from streamdsb.links import parse_address
from streamdsb.service import solve_cpu
from streamdsb.service.config import ServiceConfig
from streamdsb.service.loop import COUNTERS, make_loop, serve
from streamdsb.service.rings import STOP, make_rings
from streamdsb.service.store import make_store
from streamdsb.service.worker_cpu import work

_SOCKET_BUFFER = 16 << 20
_STOP_S = 2.0
_SO_RCVBUFFORCE = 33  # Linux; allowed to administrators, it ignores net.core.rmem_max


def open_socket(config: ServiceConfig) -> socket.socket:
    """The socket to serve on: UDP at config.listen, or raw Ethernet on config.interface."""
    if config.interface is not None:
        return open_raw(config.interface, config.ether_type)
    host, port = parse_address(config.listen)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        made = socket.socket(family, kind, protocol)
        made.bind(place)
    except OSError as error:
        raise UserError(f"cannot listen on {config.listen}: {error.strerror or error}") from None
    widen(made)
    return made


def open_raw(interface: str, ether_type: int) -> socket.socket:
    """A socket for whole Ethernet frames of one EtherType on one interface (Linux, CAP_NET_RAW)."""
    if not hasattr(socket, "AF_PACKET"):
        raise UserError("raw Ethernet needs Linux; leave out the interface to use UDP")
    try:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ether_type))
    except PermissionError:
        raise UserError(
            f"raw Ethernet on {interface} needs the capability CAP_NET_RAW; without an interface, UDP is used"
        ) from None
    try:
        made.bind((interface, ether_type))
    except OSError as error:
        made.close()
        known = ", ".join(name for _, name in socket.if_nameindex())
        raise UserError(
            f"cannot use the interface {interface}: {error.strerror}; there are {known}"
        ) from None
    widen(made)
    return made


def widen(made: socket.socket) -> None:
    """Ask for room for a burst of frames; the system may grant less."""
    for option in (socket.SO_RCVBUF, _SO_RCVBUFFORCE, socket.SO_SNDBUF):
        with suppress(OSError):
            made.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)


def _compile(function: Any, *arguments: Any) -> None:
    function.compile(tuple(numba.typeof(argument) for argument in arguments))


class Server:
    """The `cpu` server; others put different workers behind the same rings.

    with Server(ServiceConfig()) as server:
        server.address
    """

    def __init__(self, config: ServiceConfig) -> None:
        if not native.AVAILABLE:
            raise UserError("streamdsb serve needs Linux; streamdsb.solve() works in process everywhere")
        self.config = config
        self.rings = make_rings()
        self.store = make_store()
        self._loop = make_loop()
        self._socket = open_socket(config)
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
        self._work_event = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._reply_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        workers = [
            (self.rings, self.store, self._work_event, self._reply_event, index, self._scratch())
            for index in range(self.config.workers)
        ]
        compile_kernels(*solve_cpu.KERNELS)
        _compile(work, *workers[0])
        packets = (
            self._socket.fileno(), self._work_event, self._reply_event, self.config.queue,
            self.config.interface is not None, False, self._loop, self.rings, self.store,
        )  # fmt: skip
        _compile(serve, *packets)
        for arguments in workers:
            self._spawn(work, arguments)
        self._spawn(serve, packets)

    @staticmethod
    def _scratch() -> np.ndarray:
        return np.zeros(solve_cpu.SCRATCH_BYTES, np.uint8)

    def _spawn(self, function: Any, arguments: tuple[Any, ...]) -> None:
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
        if self._threads:
            os.eventfd_write(self._work_event, self.config.workers)
            os.eventfd_write(self._reply_event, 1)
            deadline = time.monotonic() + _STOP_S
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            if not any(thread.is_alive() for thread in self._threads):
                os.close(
                    self._work_event
                )  # a worker that goes on would write to whatever has the number next
                os.close(self._reply_event)
            self._threads.clear()
        self._socket.close()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
