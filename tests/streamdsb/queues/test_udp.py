"""What only queues over UDP do: paths, strangers, and systems that do not segment messages."""

import socket
from collections.abc import Iterator

import pytest

from streamdsb.errors import UserError
from streamdsb.queues import udp
from streamdsb.queues.udp import UdpReceiver, UdpSender
from tests.namespaces import Namespace
from tests.queue_pairs import HANG_S, Pair, open_udp_pair, udp_sockets
from tests.streamdsb.queues.test_lossy import BURST, ends_of, pump, send, take_all

_SO_NO_CHECK = 11


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """A namespace with a loopback interface of its own."""
    made = Namespace()
    try:
        made.ip("link", "set", "dev", "lo", "up")
        yield made
    finally:
        made.close()


def test_over_ipv6() -> None:
    try:
        pair = open_udp_pair(BURST, 1024, "::1")
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    pump(*ends_of(pair), 1000)
    pair.close()


@pytest.mark.parametrize(("host", "needed"), [("127.0.0.1", 4124), ("::1", 4144)])
def test_a_path_that_carries_no_whole_frames_is_refused(namespace: Namespace, host: str, needed: int) -> None:
    namespace.ip("link", "set", "dev", "lo", "mtu", needed - 1)
    with pytest.raises(
        UserError, match=rf"udp needs an MTU of {needed} .*{host} has {needed - 1};.*mtu 9000"
    ):
        namespace.call(udp_sockets, 100, host)


@pytest.mark.parametrize(("host", "needed"), [("127.0.0.1", 4124), ("::1", 4144)])
def test_a_path_that_just_carries_whole_frames_does(namespace: Namespace, host: str, needed: int) -> None:
    namespace.ip("link", "set", "dev", "lo", "mtu", needed)
    pair = namespace.call(open_udp_pair, BURST, 1024, host)
    pump(*ends_of(pair), 1000)
    pair.close()


def test_a_stranger_is_not_heard() -> None:
    pair = open_udp_pair(BURST, 100)
    place = pair.receiver._socket.getsockname()  # type: ignore[attr-defined]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(bytes(4096), place)
    sender, receiver = ends_of(pair)
    send(sender, range(3))
    assert take_all(receiver) == [0, 1, 2]
    pair.close()


@pytest.mark.parametrize("size", [0, 1, 64, 4095])
def test_a_datagram_that_is_no_frame_is_none(size: int) -> None:
    sending, receiving = udp_sockets(100)
    receiver = UdpReceiver(receiving, 4)
    sending.send(b"\xff" * 4096)
    frames = receiver.receive()
    assert frames is not None
    assert (frames == 2**64 - 1).all()
    receiver.release()
    sending.send(b"\xff" * size)
    frames = receiver.receive()
    assert frames is not None
    assert frames[0, 1] == 0, "it could be taken for the frame that lay there"
    sending.close()
    receiver.close()


def test_frames_go_one_by_one_where_messages_are_not_segmented() -> None:
    sending, receiving = udp_sockets(1024)
    sending.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)  # without checksums the system refuses to
    receiver = UdpReceiver(receiving, BURST)
    sender = UdpSender(sending, BURST, receiver.window)
    if udp.segment(sending):
        sending.settimeout(HANG_S)
        with pytest.raises(OSError, match="Invalid argument"):
            sending.send(bytes(2 * 4096))
        sending.setblocking(False)
    pair = Pair(sender, receiver)
    pump(*ends_of(pair), 1000)
    pair.close()
