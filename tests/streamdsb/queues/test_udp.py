"""What only queues over UDP do: paths, strangers, and systems that do not segment messages."""

import socket
from collections.abc import Iterator

import numpy as np
import pytest

from streamdsb.errors import UserError
from streamdsb.frame import FrameType
from streamdsb.queues import udp
from streamdsb.queues.udp import UdpReceiver, UdpSender
from tests.namespaces import Namespace
from tests.queue_pairs import HANG_S, Pair, open_udp_pair, udp_sockets
from tests.streamdsb.queues.test_lossy import BURST, ends_of, number, numbers_of, pump, send, take_all

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


@pytest.mark.parametrize("burst_frames", [1, 4, BURST])
@pytest.mark.parametrize("size", [0, 1, 64, 4095])
def test_a_datagram_that_is_no_frame_is_none(size: int, burst_frames: int) -> None:
    sending, receiving = udp_sockets(100)
    receiver = UdpReceiver(receiving, burst_frames)
    sending.send(bytes(size))
    assert receiver.receive() is None
    received = []
    for octet in (1, 2):
        sending.send(bytes([octet]) * 4096)
        sending.send(bytes(size))
    while (frames := receiver.receive()) is not None:
        received += frames.copy().view(np.uint8).tolist()
        receiver.release()
    assert received == [[1] * 4096, [2] * 4096]
    sending.close()
    receiver.close()


def test_messages_of_any_number_of_frames() -> None:
    """However many frames a message brings, all lie in order and without a gap."""
    pair = open_udp_pair(BURST, 1024)
    sender, receiver = ends_of(pair)
    expected: list[int] = []
    for count in (1, 15, 16, 14, 64, 30, 2, 63):
        frames = sender.acquire()
        assert frames is not None
        number(frames, FrameType.TILE, range(len(expected), len(expected) + count))
        sender.commit(count)
        expected += range(len(expected), len(expected) + count)
    received, bursts = list[int](), 0
    while (burst := receiver.receive()) is not None:
        assert len(burst) <= BURST
        received += numbers_of(burst)
        receiver.release()
        bursts += 1
    assert received == expected
    assert bursts > 1
    pair.close()


def test_frames_that_come_one_by_one_are_a_burst() -> None:
    """As they do from networks whose interfaces join nothing."""
    pair = open_udp_pair(BURST, 1024)
    sender, receiver = ends_of(pair)
    for i in range(BURST):
        frames = sender.acquire()
        assert frames is not None
        number(frames, FrameType.TILE, range(i, i + 1))
        sender.commit(1)
    burst = receiver.receive()
    assert burst is not None
    assert numbers_of(burst) == list(range(len(burst)))
    assert BURST - len(burst) < udp.SEGMENTS
    pair.close()


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
