"""Data connections: strangers delay nobody, and whoever does not come is named."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from streamdsb import door
from streamdsb.channel import Channel, PeerGone, prove_token, receive_exactly
from streamdsb.errors import Cancelled, RunFailed, UserError
from streamdsb.links import accept_receivers, connect, connect_senders, listen, parse_address
from streamdsb.messages import Failed, Join
from streamdsb.queues import wait_for_any
from tests.harness import config_of

TOKEN, RUN, HANG_S = "a token", 77, 30.0


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0) as made:
        yield made


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_strangers_delay_nobody(server: socket.socket, transport: str) -> None:
    config = config_of(n=500, stream={"transport": transport, "queues": 3})
    host, port = server.getsockname()
    strangers = [socket.create_connection((host, port)) for _ in range(5)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept_receivers, config, RUN, server, TOKEN, threading.Event())
        senders = connect_senders(config, RUN, host, port, TOKEN)
        receivers = accepting.result(timeout=door.HANDSHAKE_TIMEOUT_S / 2)
    assert len(senders) == len(receivers) == 3
    for number, sender in enumerate(senders):
        frames = sender.acquire()
        assert frames is not None
        frames[0] = number
        sender.commit(1)
    for number, receiver in enumerate(receivers):
        while (frames := receiver.receive()) is None:
            assert wait_for_any([receiver], HANG_S)
        assert (frames[0] == number).all()
    for end in (*senders, *receivers, *strangers):
        end.close()


def test_a_queue_that_does_not_come_is_named(server: socket.socket) -> None:
    config = config_of(n=500, stream={"transport": "tcp", "queues": 2, "timeout_s": 0.5})
    with pytest.raises(RunFailed, match=r"did not connect queue 0, 1 within 0\.5 s"):
        accept_receivers(config, RUN, server, TOKEN, threading.Event())


def test_an_end_that_cannot_be_had_is_named_at_both(server: socket.socket) -> None:
    config = config_of(n=500, stream={"transport": "udp", "queues": 2})
    with ThreadPoolExecutor(1) as pool, socket.create_connection(server.getsockname()) as connection:
        accepting = pool.submit(accept_receivers, config, RUN, server, TOKEN, threading.Event())
        prove_token(connection, TOKEN, "the receiver", asking=True)
        channel = Channel(connection, "the receiver")
        channel.send(Join(run=RUN, queue=1, digest=config.digest(), address="nowhere"))
        with pytest.raises(RunFailed, match=r"a UDP port was expected .* not 'nowhere'"):
            accepting.result(timeout=door.HANDSHAKE_TIMEOUT_S / 2)
        failed, _ = channel.expect(Failed)
        assert "not 'nowhere'" in failed.message


def test_a_run_that_is_called_off_is_not_waited_for(server: socket.socket) -> None:
    cancelled = threading.Event()
    cancelled.set()
    config = config_of(n=500, stream={"transport": "tcp", "timeout_s": 600})
    with pytest.raises(Cancelled):
        accept_receivers(config, RUN, server, TOKEN, cancelled)


def test_one_who_speaks_slowly_is_hung_up_on(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte comes in time, all of them together do not."""
    monkeypatch.setattr(door, "HANDSHAKE_TIMEOUT_S", 0.5)
    ended = threading.Event()

    def hear(connection: socket.socket, peer: str) -> None:
        try:
            receive_exactly(connection, 1_000_000, peer)
        except PeerGone:
            ended.set()

    with door.open_door(server, hear), socket.create_connection(server.getsockname()) as slow:
        while not ended.wait(0.1):
            slow.send(b"a")


@pytest.mark.parametrize(
    "address", ["..:7000", f"{'a' * 70}:7000", "a\0b:7000", f"localhost:{'7' * 5000}", "localhost:70000", "x"]
)
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(UserError, match=r"expected HOST:PORT|is not a host name or an address") as caught:
        parse_address(address)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("host", ["..", "a\0b", "a" * 70])
def test_a_host_that_is_none_is_named(host: str) -> None:
    with pytest.raises(UserError, match="is not a host name or an address"):
        listen(host, 0)
    with pytest.raises(UserError, match="is not a host name or an address"):
        connect(host, 7000, "receiver", 0)


def test_a_port_in_use_is_named_once(server: socket.socket) -> None:
    port = server.getsockname()[1]
    with pytest.raises(UserError, match=rf"^cannot listen on 127\.0\.0\.1:{port}: Address already in use$"):
        listen("127.0.0.1", port)


def test_a_host_that_nobody_knows_is_named_once() -> None:
    with pytest.raises(UserError, match=r"^cannot listen on nowhere\.invalid:0: [^:]*$"):
        listen("nowhere.invalid", 0)
