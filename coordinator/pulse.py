"""Whether the ranks of a run are alive: one that is suspended, or whose machine hangs, tells nobody.

Datagrams apart from MPI, from a thread of each rank to rank 0 and back, four a second.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence

from coordinator.peers import Peers
from streamdsb.communicator import Communicator
from streamdsb.errors import RunFailed

_BEAT_S = 0.25
_SILENCE_S = 10.0
"""How long a rank that has been heard may say nothing."""
_LAST_RESORT_S = 3.0
"""How long the end of a run may take that waits inside MPI for a rank that is silent."""
_KEY_BYTES = 16


class Pulse:
    """Ends the run through `peers` once rank 0 misses another rank, or another rank misses rank 0.

    All ranks make one alike.  A rank that cannot reach rank 0 by datagrams is not watched.
    """

    def __init__(self, ranks: Communicator, hosts: Sequence[str], peers: Peers) -> None:
        self._rank, self._hosts, self._peers = ranks.rank, hosts, peers
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("", 0))
        self._socket.setblocking(False)
        own = secrets.token_bytes(_KEY_BYTES), self._socket.getsockname()[1]
        self._key, port = ranks.broadcast(own)
        self._to_first = _address_of(hosts[0], hosts[self._rank]), port
        self._heard: dict[int, float] = {}
        self._done = threading.Event()
        threading.Thread(target=self._watch, name="pulse", daemon=True).start()

    def close(self) -> None:
        self._done.set()

    def _watch(self) -> None:
        awake = time.monotonic()
        while not self._done.wait(_BEAT_S):
            if self._rank:
                self._say(self._to_first)
            self._hear()
            now = time.monotonic()
            if now - awake > _SILENCE_S / 2:  # it was this process that stood still
                self._heard = dict.fromkeys(self._heard, now)
            awake = now
            silent = [rank for rank, when in self._heard.items() if now - when > _SILENCE_S]
            if silent:
                self._end(silent)
                return

    def _say(self, address: tuple[str, int]) -> None:
        try:
            self._socket.sendto(self._key + struct.pack("<I", self._rank), address)
        except OSError:
            return

    def _hear(self) -> None:
        """All that has come; rank 0 answers it."""
        while True:
            try:
                said, address = self._socket.recvfrom(_KEY_BYTES + 5)
            except OSError:
                return
            if len(said) == _KEY_BYTES + 4 and said.startswith(self._key):
                self._heard[struct.unpack_from("<I", said, _KEY_BYTES)[0]] = time.monotonic()
                if self._rank == 0:
                    self._say(address)

    def _end(self, silent: Sequence[int]) -> None:
        names = " and ".join(f"rank {rank} on {self._hosts[rank]}" for rank in silent)
        failure = RunFailed(f"{names} has shown no life for {_SILENCE_S:g} s, as if suspended or cut off")
        self._peers.fail(failure)
        if not self._done.wait(_LAST_RESORT_S):
            host = self._hosts[self._rank]
            print(f"streamdsb: rank {self._rank} on {host}: {failure}", file=sys.stderr, flush=True)
            os._exit(RunFailed.exit_status)


def _address_of(host: str, own: str) -> str:
    if host == own:
        return "127.0.0.1"
    try:
        return socket.gethostbyname(host)
    except OSError:
        return "0.0.0.0"  # where nobody answers
