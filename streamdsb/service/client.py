"""The Python client of a request service.

with streamdsb.Client("127.0.0.1:8686") as client:
    model = client.load(J)
    client.solve(model, h, replicas=8, steps=100, seed=1).spins
    client.solve_many(model, fields, seeds=range(1000)).two_energy
"""

from __future__ import annotations

import queue
import random
import socket
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import numpy as np

from streamdsb import native
from streamdsb.errors import RunFailed, UserError
from streamdsb.links import parse_address
from streamdsb.service.exchange import REPLY_ROOM, exchange, exchange_plainly
from streamdsb.service.limits import DEFAULT_ETHER_TYPE, DEFAULT_PORT, SLOTS, check_request
from streamdsb.service.messages import (
    LOAD_ACK,
    RESULT,
    MessageType,
    Status,
    check_field,
    load_frames,
    solve_frames,
    spins_of,
)
from streamdsb.service.models import Format, Model, pack
from streamdsb.service.replies import LoadedModel, Replies, Reply, RequestRefused, check_statuses
from streamdsb.service.segments import can_join, take_joined
from streamdsb.service.sockets import open_raw, widen
from streamdsb.service.solve import check_gain, check_seed

_BURST = 32
"""LOAD fragments sent in one go before the server gets a moment."""


def _connect(address: str) -> tuple[socket.socket, bytes]:
    """A socket to `address` and the Ethernet header of its frames, zero for UDP."""
    if address.startswith("eth:"):
        interface, _, remote = address.removeprefix("eth:").partition("/")
        made = open_raw(interface, DEFAULT_ETHER_TYPE)
        try:
            target = bytes.fromhex(remote.replace(":", "")) if remote else bytes(6)
        except ValueError:
            target = b""
        if len(target) != 6:
            made.close()
            raise UserError(f"address {address!r}: expected eth:INTERFACE/aa:bb:cc:dd:ee:ff")
        own = made.getsockname()[4][:6].ljust(6, b"\0")
        return made, target + own + DEFAULT_ETHER_TYPE.to_bytes(2, "big")
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        made = socket.socket(family, kind, protocol)
        made.connect(place)
    except OSError as error:
        raise UserError(f"cannot reach {address}: {error.strerror or error}") from None
    widen(made)
    take_joined(made)
    return made, bytes(14)


class Client:
    """A connection to a server at HOST:PORT (UDP) or eth:INTERFACE/MAC (raw Ethernet).

    timeout: seconds after which a silent server is given up; requests are sent again on the way there.
    One thread uses a client at a time; `submit` may be called from any.
    """

    def __init__(self, address: str = f"127.0.0.1:{DEFAULT_PORT}", timeout: float = 5.0) -> None:
        self.address = address
        self.timeout = timeout
        self._socket, self._ethernet = _connect(address)
        self.joins = can_join(self._socket)
        self._next_slot = 0
        self._next_request = random.getrandbits(62)
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._submitted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._sender: threading.Thread | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Answer what was submitted, and close the socket."""
        if self._sender is not None:
            self._submitted.put(None)
            self._sender.join()
            self._sender = None
        self._socket.close()

    def _require_open(self) -> None:
        if self._socket.fileno() < 0:
            raise UserError(f"this client of {self.address} is closed; open another one")

    def load(
        self,
        J: Any,  # noqa: N803
        *,
        slot: int | None = None,
        generation: int | None = None,
        format: Format | None = None,  # noqa: A002
        xi: float = 0.0,
    ) -> LoadedModel:
        """Make a model resident: integer couplings (n, n) or a packed Model; replaces what the slot held.

        slot None takes the next of the 64 slots in turn. generation None makes one up that no other load has.
        """
        self._require_open()
        model = J if isinstance(J, Model) else pack(J, format, xi)
        if slot is None:
            slot = self._next_slot
            self._next_slot = (slot + 1) % SLOTS
        if generation is None:
            generation = random.getrandbits(32)
        frames = load_frames(slot, generation, model, self.take_requests(1))
        deadline = time.monotonic() + self.timeout
        with self._lock:
            while time.monotonic() < deadline:
                status = self._load_once(frames)
                if status == Status.OK:
                    return LoadedModel(slot, generation, model.n)
                if status not in (None, Status.OVERLOADED):
                    raise RequestRefused(status, f"the model for slot {slot}")
                time.sleep(0.02)
        raise RunFailed(f"no answer from {self.address} to LOAD within {self.timeout:g} s")

    def _load_once(self, frames: list[bytes]) -> int | None:
        """Send all fragments; the status of the first acknowledgement, None if none came."""
        for index, frame in enumerate(frames):
            self._send(frame)
            if index % _BURST == _BURST - 1:
                time.sleep(0.0005)
        until = time.monotonic() + min(0.5, self.timeout)
        while (left := until - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                message = self._socket.recv(2048)
            except TimeoutError:
                break
            except OSError as error:
                raise RunFailed(f"no server at {self.address}: {error.strerror}") from None
            if len(message) < LOAD_ACK.itemsize or message[15] != MessageType.LOAD_ACK:
                continue
            ack = np.frombuffer(message, LOAD_ACK, 1)[0]
            if message[16:32] == frames[0][16:32]:
                return int(ack["status"])
        return None

    def _send(self, frame: bytes) -> None:
        try:
            self._socket.send(self._ethernet + frame[14:])
        except ConnectionRefusedError:
            raise RunFailed(f"no server at {self.address}: connection refused") from None

    def fileno(self) -> int:
        """The socket's descriptor, for who exchanges messages without this class."""
        return self._socket.fileno()

    def take_requests(self, count: int) -> int:
        """The first of `count` request ids that no other request of this client has."""
        first = self._next_request
        self._next_request += count
        return first

    def solve(
        self,
        model: LoadedModel,
        h: Any = None,
        *,
        replicas: int = 8,
        steps: int = 100,
        seed: int = 0,
        xi: float | None = None,
        dt: float | None = None,
    ) -> Reply:
        """Solve for one field h, integers (n,) of 16 bits or None. xi None is the model's, dt None is 1.0."""
        fields = None if h is None else check_field(h, model.n).reshape(1, model.n)
        return self.solve_many(
            model, fields, seeds=[seed], replicas=replicas, steps=steps, xi=xi, dt=dt, window=1
        )[0]

    def solve_many(
        self,
        model: LoadedModel,
        fields: Any = None,
        *,
        seeds: Iterable[int],
        replicas: int = 8,
        steps: int = 100,
        xi: float | None = None,
        dt: float | None = None,
        window: int = 64,
    ) -> Replies:
        """Solve once for each seed, with `fields` integers (m, n) or None, at most `window` at a time.

        Requests that are lost, or refused because the server is overloaded, are sent again until `timeout`
        passes without progress. RequestRefused if the server refuses for another reason.
        """
        self._require_open()
        frames = self._frames(model, fields, list(seeds), replicas, steps, xi, dt)
        sizes = np.full(len(frames), frames.shape[1])
        with self._lock:
            headers, words, sent, received = self._exchange(frames, sizes, window)
        check_statuses(headers)
        return Replies(headers, spins_of(words[:, : -(-model.n // 32)], model.n), sent, received)

    def submit(
        self,
        model: LoadedModel,
        h: Any = None,
        *,
        replicas: int = 8,
        steps: int = 100,
        seed: int = 0,
        xi: float | None = None,
        dt: float | None = None,
    ) -> Future[Reply]:
        """`solve` without waiting; what is submitted meanwhile travels together."""
        self._require_open()
        parameters = (seed, replicas, steps, xi, dt)
        fields = None if h is None else check_field(h, model.n).reshape(1, model.n)
        future: Future[Reply] = Future()
        with self._starting:
            if self._sender is None:
                self._sender = threading.Thread(target=self._send_submitted, daemon=True)
                self._sender.start()
        self._submitted.put((model, fields, parameters, future))
        return future

    def _send_submitted(self) -> None:
        ended = False
        while not ended:
            waiting = [self._submitted.get()]
            while not self._submitted.empty():
                waiting.append(self._submitted.get())
            ended = None in waiting
            self._answer_submitted([item for item in waiting if item is not None])

    def _answer_submitted(self, items: list[Any]) -> None:
        made, kept = [], []
        for model, fields, (seed, *parameters), future in items:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                made.append(self._frames(model, fields, [seed], *parameters)[0])
                kept.append((model, future))
            except Exception as error:
                future.set_exception(error)
        if not made:
            return
        sizes = np.array([len(frame) for frame in made])
        frames = np.zeros((len(made), -(-sizes.max() // 8) * 8), np.uint8)
        for index, frame in enumerate(made):
            frames[index, : len(frame)] = frame
        try:
            with self._lock:
                headers, words, sent, received = self._exchange(frames, sizes, 64)
        except Exception as error:
            for _, future in kept:
                future.set_exception(error)
            return
        for index, (model, future) in enumerate(kept):
            one = slice(index, index + 1)
            try:
                check_statuses(headers[one])
                spins = spins_of(words[one, : -(-model.n // 32)], model.n)
                future.set_result(Replies(headers[one], spins, sent[one], received[one])[0])
            except Exception as error:
                future.set_exception(error)

    def _frames(
        self,
        model: LoadedModel,
        fields: Any,
        seeds: list[int],
        replicas: int,
        steps: int,
        xi: float | None,
        dt: float | None,
    ) -> np.ndarray:
        check_request(model.n, replicas, steps)
        if fields is not None:
            fields = check_field(fields, model.n)
            if fields.shape != (len(seeds), model.n):
                raise UserError(
                    f"fields have the shape {fields.shape}, but for these seeds it should be"
                    f" ({len(seeds)}, {model.n})"
                )
        return solve_frames(
            model.slot,
            model.generation,
            model.n,
            fields,
            np.array([check_seed(seed) for seed in seeds], np.uint64),
            replicas=replicas,
            updates=steps,
            xi=check_gain("xi", xi),
            dt=check_gain("dt", dt),
        )

    def _exchange(
        self, frames: np.ndarray, sizes: np.ndarray, window: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Send until all are answered: headers (m,), spin words uint32 (m, ...), times sent and received."""
        count = len(frames)
        own = self._addressed(frames)
        replies = np.zeros((count, REPLY_ROOM), np.uint8)
        sent, received = np.zeros(count, np.int64), np.zeros(count, np.int64)
        headers = replies[:, :64]
        todo, deadline = np.arange(count), time.monotonic() + self.timeout
        while len(todo):
            answers = self._exchange_once(own, sizes, todo, window, replies, sent, received)
            status = np.ascontiguousarray(headers[todo]).view(RESULT)["status"][:, 0]
            again = (received[todo] == 0) | (status == Status.OVERLOADED)
            if answers and not again.all():
                deadline = time.monotonic() + self.timeout
            todo = todo[again]
            if not len(todo):
                break
            if time.monotonic() > deadline:
                if not received[todo].all():
                    raise RunFailed(f"no answer from {self.address} within {self.timeout:g} s")
                raise RequestRefused(Status.OVERLOADED, f"{len(todo)} requests")
            received[todo] = 0
            time.sleep(0.005)
        made = np.ascontiguousarray(headers).view(RESULT)[:, 0]
        return made, np.ascontiguousarray(replies[:, 64:]).view("<u4"), sent, received

    def _addressed(self, frames: np.ndarray) -> np.ndarray:
        """Frames with the Ethernet part and request ids of this client, in rows of whole 64-bit words."""
        first = self.take_requests(len(frames))
        own = np.zeros((len(frames), -(-frames.shape[1] // 8) * 8), np.uint8)
        own[:, : frames.shape[1]] = frames
        own[:, :14] = np.frombuffer(self._ethernet, np.uint8)
        own.view("<u8")[:, 3] = np.uint64(first) + np.arange(len(frames), dtype=np.uint64)
        return own

    def _exchange_once(
        self,
        frames: np.ndarray,
        sizes: np.ndarray,
        order: np.ndarray,
        window: int,
        replies: np.ndarray,
        sent: np.ndarray,
        received: np.ndarray,
    ) -> int:
        """Send the frames in `order` and wait for a quarter of the timeout at most; returns the answers."""
        due = np.zeros(len(order), np.int64)
        patience = int(self.timeout / 4 * 1e9)
        self._socket.settimeout(None)
        if not native.AVAILABLE:
            return exchange_plainly(
                self._socket, frames, sizes, order, due, window, patience, replies, sent, received
            )
        return int(
            exchange(
                self._socket.fileno(),
                frames,
                sizes,
                order,
                due,
                window,
                patience,
                False,
                self.joins,
                replies,
                sent,
                received,
            )
        )
