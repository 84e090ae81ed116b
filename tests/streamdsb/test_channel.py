"""Control connections: whole messages, the token, and peers that are gone, silent or speak nonsense."""

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdsb.channel import Channel, PeerGone, prove_token
from streamdsb.errors import RunFailed, StreamdsbError, UserError
from streamdsb.messages import Begin, Hello, Joined, Opened, Spins

HANG_S = 10.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair()
    a.settimeout(HANG_S)
    b.settimeout(HANG_S)
    with a, b:
        yield a, b


@pytest.mark.parametrize("data", [b"", b"x", os.urandom(3_000_000)], ids=["none", "one byte", "3 MB"])
def test_a_message_and_its_bytes(ends: tuple[socket.socket, socket.socket], data: bytes) -> None:
    sender, receiver = Channel(ends[0], "a"), Channel(ends[1], "b")
    receiver.max_bytes = len(data)
    message = Spins(best_pass=3, best_replica=1, best_two_energy=-(2**53) - 1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(sender.send, message, data)
        assert receiver.receive() == (message, data)


def test_messages_of_several_threads_do_not_mix(ends: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = Channel(ends[0], "a"), Channel(ends[1], "b")
    receiver.max_bytes = 300
    with ThreadPoolExecutor(8) as pool:
        for n in range(200):
            pool.submit(sender.send, Opened(n=n), str(n).encode() * 100)
        received = [receiver.receive() for _ in range(200)]
    assert sorted(message.n for message, _ in received) == list(range(200))  # type: ignore[attr-defined]
    assert all(data == str(message.n).encode() * 100 for message, data in received)  # type: ignore[attr-defined]


def test_another_message_than_expected(ends: tuple[socket.socket, socket.socket]) -> None:
    Channel(ends[0], "a").send(Joined())
    with pytest.raises(RunFailed, match="the peer sent Joined where Begin was expected"):
        Channel(ends[1], "the peer").expect(Begin)


@pytest.mark.parametrize(
    "cut", [0, 3, 8, 12], ids=["nothing", "half the lengths", "the lengths", "half the message"]
)
def test_a_peer_that_goes_in_the_middle(ends: tuple[socket.socket, socket.socket], cut: int) -> None:
    text = Joined().model_dump_json().encode()
    ends[0].sendall((struct.pack("<II", len(text), 0) + text)[:cut])
    ends[0].close()
    with pytest.raises(PeerGone, match="the peer has closed the connection"):
        Channel(ends[1], "the peer").receive()


def test_sending_to_nobody(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[1].close()
    with pytest.raises(PeerGone, match="the peer has closed the control connection"):
        Channel(ends[0], "the peer").send(Joined())


def test_a_silent_peer(ends: tuple[socket.socket, socket.socket]) -> None:
    channel = Channel(ends[0], "the peer")
    channel.set_timeout(0.05)
    with pytest.raises(RunFailed, match=r"the peer said nothing for 0.05 s"):
        channel.receive()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (struct.pack("<II", 1 << 30, 0), "announced a control message of 1073741824 bytes"),
        (struct.pack("<II", 2, 1 << 30), "announced a control message of 1073741824 bytes, over 0"),
        (struct.pack("<II", 2, 0) + b"{}", "cannot be read"),
        (struct.pack("<II", 4, 0) + b"\xff\xfe\xfd\xfc", "cannot be read"),
        (struct.pack("<II", 19, 0) + b'{"type":"joined","}', "cannot be read"),
        (struct.pack("<II", 27, 0) + b'{"type":"opened","n":"few"}', "cannot be read"),
        (struct.pack("<II", 26, 0) + b'{"type":"joined","more":1}', "cannot be read"),
    ],
)
def test_nonsense(ends: tuple[socket.socket, socket.socket], raw: bytes, words: str) -> None:
    ends[0].sendall(raw)
    with pytest.raises(RunFailed, match=words):
        Channel(ends[1], "the peer").receive()


@settings(deadline=None, max_examples=200)
@given(raw=st.binary(max_size=200))
def test_any_bytes_raise_nothing_but_our_errors(raw: bytes) -> None:
    a, b = socket.socketpair()
    with a, b:
        a.sendall(raw)
        a.close()
        channel = Channel(b, "the peer")
        with pytest.raises(StreamdsbError):
            _receive_all(channel)


def _receive_all(channel: Channel) -> None:
    while True:
        channel.receive()


# --- the token ------------------------------------------------------------------------------------


def _both(
    ends: tuple[socket.socket, socket.socket], asking: Callable[[], None], answering: Callable[[], None]
) -> list[BaseException | None]:
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(asking), pool.submit(answering)]
        return [future.exception(HANG_S) for future in futures]


def test_the_same_token(ends: tuple[socket.socket, socket.socket]) -> None:
    assert _both(
        ends,
        lambda: prove_token(ends[0], "token", "a", asking=True),
        lambda: prove_token(ends[1], "token", "b", asking=False),
    ) == [None, None]


@pytest.mark.parametrize("other", ["", "Token", "token ", "x" * 10_000])
def test_another_token_is_noticed_by_both(ends: tuple[socket.socket, socket.socket], other: str) -> None:
    errors = _both(
        ends,
        lambda: prove_token(ends[0], "token", "a", asking=True),
        lambda: prove_token(ends[1], other, "b", asking=False),
    )
    assert all(isinstance(error, UserError) for error in errors)
    assert all("STREAMDSB_TOKEN" in str(error) for error in errors)
    assert all("token " not in str(error).replace("another token", "") for error in errors)


def test_a_proof_cannot_be_sent_back(ends: tuple[socket.socket, socket.socket]) -> None:
    """An echo, which returns the nonce and the proof that it gets, does not pass for the other side."""
    stop = threading.Event()

    def echo() -> None:
        while not stop.is_set():
            try:
                data = ends[1].recv(4096)
                if not data:
                    return
                ends[1].sendall(data)
            except OSError:
                return

    thread = threading.Thread(target=echo)
    thread.start()
    try:
        with pytest.raises(UserError, match="another token"):
            prove_token(ends[0], "token", "the echo", asking=True)
    finally:
        stop.set()
        ends[0].close()
        thread.join()


def test_another_protocol(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[1].sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    with pytest.raises(UserError, match="another program listening there"):
        prove_token(ends[0], "token", "the peer", asking=True)


def test_messages_are_validated_when_they_are_made() -> None:
    with pytest.raises(ValueError, match="role"):
        Hello(role="spectator", protocol=1, version="1", pid=1, host="h")  # type: ignore[arg-type]


def test_a_token_that_is_no_text(ends: tuple[socket.socket, socket.socket]) -> None:
    """As the environment brings it, whatever its bytes are."""
    token = os.fsdecode(b"\xff\xfe")
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(prove_token, ends[1], token, "b", asking=False)
        prove_token(ends[0], token, "a", asking=True)
        other.result(timeout=10)
