"""The end of a process whose coordinator dies while it still imports what it needs to hear of it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Iterator

_LOOK_UP_MS = 200


@contextlib.contextmanager
def exits_on_hangup(connection: int) -> Iterator[None]:
    """Meanwhile, end the process with status 1 if the other end of this socket's descriptor is closed."""
    over = threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(connection, getattr(select, "POLLRDHUP", 0))
        while not over.is_set():
            if poll.poll(_LOOK_UP_MS) and not over.is_set():
                os._exit(1)

    threading.Thread(target=watch, name="hangup", daemon=True).start()
    try:
        yield
    finally:
        over.set()
