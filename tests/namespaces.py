"""Network namespaces for tests, which end with their process at the latest: nothing has a name to be left."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import pytest

_CLONE_NEWNET = 0x4000_0000

P = ParamSpec("P")
T = TypeVar("T")


def _enter_new_namespace() -> int:
    """Put the calling thread alone into a namespace of its own; its thread id."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return threading.get_native_id()


class Namespace:
    """A network namespace that lives as long as its thread, its sockets and the processes in it.

    Skips the test where there can be none.
    """

    def __init__(self) -> None:
        if sys.platform != "linux" or shutil.which("ip") is None:
            pytest.skip("network namespaces need Linux and the ip command of iproute2")
        self._thread = ThreadPoolExecutor(1)
        try:
            self._thread_id = self.call(_enter_new_namespace)
        except OSError as error:
            self._thread.shutdown()
            pytest.skip(f"network namespaces need root: {error.strerror}")

    @property
    def path(self) -> str:
        """What `ip ... netns` and `nsenter --net=` take, while this process runs."""
        return f"/proc/{os.getpid()}/task/{self._thread_id}/ns/net"

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function inside; sockets, threads and processes that it starts are and stay in here."""
        return self._thread.submit(function, *args, **kwargs)

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function inside, as `submit` does, and wait for it."""
        return self.submit(function, *args, **kwargs).result()

    def ip(self, *arguments: Any) -> str:
        """Run the `ip` command inside; what it printed."""
        command = ["ip", *map(str, arguments)]
        done = self.call(subprocess.run, command, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
        return str(done.stdout)

    def open_packet_socket(self, interface: str, ether_type: int, room: int = 1 << 28) -> socket.socket:
        """A raw socket inside that gets the frames of `interface` and holds `room` bytes of them."""
        opened = self.call(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0)
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, room // 2)
        opened.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        opened.bind((interface, ether_type))
        return opened

    def close(self) -> None:
        self._thread.shutdown()


# of Linux, where the socket module does not name them
_SO_RCVBUFFORCE = 33
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
