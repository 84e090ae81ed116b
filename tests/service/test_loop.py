"""The packet loop with workers elsewhere, as a device would have them: uploads, polling, another clock.

The workers here are a Python thread behind the same rings.
"""

import os
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from streamdsb import native
from streamdsb.service.client import Client
from streamdsb.service.limits import RING_ITEMS
from streamdsb.service.loop import serve
from streamdsb.service.loop_state import COUNTERS, Loop, make_loop
from streamdsb.service.messages import RESULT, SOLVE, solve_frames, spin_words
from streamdsb.service.models import Format, Model, pack
from streamdsb.service.rings import ARRIVED, PLACE_AT, SIZE_AT, STOP, TICKET_AT, UPLOADED, Rings, make_rings
from streamdsb.service.server import compile_for
from streamdsb.service.solve import solve_model
from streamdsb.service.store import FORMAT, TOTAL, XI_BITS, N, Store, make_store

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason="the packet loop needs Linux")

SOLVE_NS = 1000


class Elsewhere:
    """A packet loop, and a thread that uploads and solves.

    Replies of `together` requests at a time become ready at once.
    """

    def __init__(self, together: int = 1) -> None:
        self.together = together
        self.rings: Rings = make_rings()
        self.store: Store = make_store()
        self.loop: Loop = make_loop()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.upload_event = os.eventfd(0)
        self.uploaded: dict[int, Model] = {}
        self.hold = threading.Event()
        self.arguments = (
            self.socket.fileno(), -1, -1, self.upload_event, RING_ITEMS, False, together > 1, self.loop,
            self.rings, self.store,
        )  # fmt: skip
        compile_for(serve, self.arguments)  # which threads that wait busily would hold up
        self.threads = [threading.Thread(target=part) for part in (self.serve, self.work, self.upload)]
        for thread in self.threads:
            thread.start()

    def serve(self) -> None:
        serve(*self.arguments)

    def upload(self) -> None:
        while os.eventfd_read(self.upload_event) and not self.rings.control[STOP]:
            place = int(self.rings.control[ARRIVED]) - 1
            row = self.store.table[place]
            packed = self.store.models[place, : row[TOTAL]].tobytes()
            xi = float(np.uint32(row[XI_BITS]).view(np.float32))
            self.uploaded[place] = Model(int(row[N]), Format(int(row[FORMAT])), packed, xi)
            self.rings.control[UPLOADED] = place + 1

    def work(self) -> None:
        ticket = 0
        while not self.rings.control[STOP]:
            last = ticket + self.together - 1
            if self.hold.is_set() or self.rings.work_sequence[last % RING_ITEMS] != last + 1:
                continue
            for each in range(last, ticket - 1, -1):  # nothing is sent before the first one
                self.answer(each, self.rings.work[each % RING_ITEMS])
            ticket = last + 1

    def answer(self, ticket: int, item: np.ndarray) -> None:
        request = item[:64].view(SOLVE)[0]
        answer = solve_model(
            self.uploaded[int(item[PLACE_AT : PLACE_AT + 4].view("<u4")[0])],
            replicas=int(request["replicas"]), steps=int(request["updates"]), seed=int(request["seed"]),
        )  # fmt: skip
        reply, header = self.rings.replies[ticket % RING_ITEMS], np.zeros(1, RESULT)
        for name in ("version", "model", "generation", "request"):
            header[name] = request[name]
        header["type"], header["two_energy"], header["replica"] = 19, answer.two_energy, answer.replica
        header["solve_ns"] = SOLVE_NS
        words = spin_words(answer.spins).view(np.uint8)
        reply[:64], reply[64 : 64 + words.size] = header.view(np.uint8), words
        reply[TICKET_AT : TICKET_AT + 16].view("<u8")[:] = ticket, 0
        reply[SIZE_AT : SIZE_AT + 4].view("<u4")[0] = 64 + words.size
        self.rings.reply_sequence[ticket % RING_ITEMS] = ticket + 1

    def stop(self) -> None:
        self.rings.control[STOP] = 1
        os.eventfd_write(self.upload_event, 1)
        for thread in self.threads:
            thread.join()
        self.socket.close()
        os.close(self.upload_event)


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    made = Elsewhere()
    yield made
    made.stop()


def couplings_for(n: int, seed: int) -> np.ndarray:
    upper = np.triu(np.random.default_rng(seed).integers(-99, 100, (n, n)), 1)
    return upper + upper.T


def test_models_are_used_only_once_uploaded(elsewhere: Elsewhere) -> None:
    with Client(f"127.0.0.1:{elsewhere.socket.getsockname()[1]}", timeout=60) as client:
        for turn in range(4):  # places of a slot in turn
            couplings = couplings_for(40 + turn, turn)
            model = client.load(couplings, slot=3)
            assert 6 + turn % 2 in elsewhere.uploaded
            for seed in range(5):
                reply = client.solve(model, replicas=2, steps=10, seed=seed)
                expected = solve_model(pack(couplings), replicas=2, steps=10, seed=seed)
                assert (reply.two_energy, reply.replica) == (expected.two_energy, expected.replica)
                assert np.array_equal(reply.spins, expected.spins)
                assert (reply.solve_ns, reply.transmit_ns) == (SOLVE_NS, 0)
                assert 0 < reply.queue_ns <= reply.round_trip_ns


@pytest.mark.parametrize("senders", ["AABABB", "ABABAB", "AAABBB", "ABCCBA"])
def test_replies_to_several_clients_go_out_at_once(senders: str) -> None:
    elsewhere = Elsewhere(together=len(senders))
    place = elsewhere.socket.getsockname()
    sockets = {sender: socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for sender in set(senders)}
    try:
        with Client(f"127.0.0.1:{place[1]}", timeout=60) as client:
            model = client.load(couplings_for(40, 1))
        seeds = np.arange(len(senders), dtype=np.uint64)
        frames = solve_frames(model.slot, model.generation, model.n, None, seeds, replicas=1, updates=1)
        frames.view("<u8")[:, 3] = np.arange(len(senders))
        for sender, frame in zip(senders, frames, strict=True):
            sockets[sender].sendto(frame.tobytes(), place)
        for sender, each in sockets.items():
            each.settimeout(10)
            asked = [request for request in range(len(senders)) if senders[request] == sender]
            assert [int.from_bytes(each.recv(2048)[24:32], "little") for _ in asked] == asked
    finally:
        elsewhere.stop()
        for each in sockets.values():
            each.close()


def test_a_request_admitted_before_keeps_the_model_that_it_was_admitted_with(elsewhere: Elsewhere) -> None:
    port = elsewhere.socket.getsockname()[1]
    with (
        Client(f"127.0.0.1:{port}", timeout=60) as waiting,
        Client(f"127.0.0.1:{port}", timeout=0.4) as loader,
    ):
        first = waiting.load(couplings_for(50, 1), slot=0)
        elsewhere.hold.set()
        future = waiting.submit(first, replicas=2, steps=10)
        while elsewhere.loop.counters[COUNTERS.index("solves_accepted")] == 0:
            pass
        loader.load(couplings_for(50, 2), slot=0)  # goes to the other place
        with pytest.raises(Exception, match="no answer"):
            loader.load(couplings_for(50, 3), slot=0)  # would overwrite the first
        elsewhere.hold.clear()
        expected = solve_model(pack(couplings_for(50, 1)), replicas=2, steps=10, seed=0)
        assert future.result(timeout=10).two_energy == expected.two_energy
        loader.load(couplings_for(50, 3), slot=0)
