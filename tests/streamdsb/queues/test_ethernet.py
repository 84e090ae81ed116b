"""What only queues of raw Ethernet frames do: filters, interfaces that cannot be used, and real links."""

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from streamdsb.errors import UserError
from streamdsb.frame import ETHERTYPE, FrameType, empty_frames, headers_of
from streamdsb.queues import wait_for_any
from streamdsb.queues.ethernet import EthernetReceiver, EthernetSender, mac_of, require_usable
from tests.namespaces import Namespace
from tests.queue_pairs import QUEUE, RUN, WINDOW, Pair, open_ethernet_pair, queue_of
from tests.streamdsb.queues.test_lossy import BURST, ends_of, number, numbers_of, pump, send, take_all


class Link:
    """Two namespaces with an interface each, "left" and "right", that are one link."""

    def __init__(self, left: Namespace, right: Namespace) -> None:
        self.left, self.right = left, right
        left.ip("link", "add", "left", "mtu", 9000, "type", "veth", "peer", "right", "mtu", 9000)
        left.ip("link", "set", "dev", "right", "netns", right.path)
        left.ip("link", "set", "dev", "left", "up")
        right.ip("link", "set", "dev", "right", "up")
        while " state UP " not in left.ip("link", "show", "dev", "left"):
            time.sleep(0.001)
        self.left_mac, self.right_mac = left.call(mac_of, "left"), right.call(mac_of, "right")

    def open_pair(self, queue: int = QUEUE, run: int = RUN) -> Pair:
        receiver = self.right.call(EthernetReceiver, "right", self.left_mac, run, queue, BURST, WINDOW)
        sender = self.left.call(EthernetSender, "left", self.right_mac, run, queue, BURST, receiver.window)
        return Pair(sender, receiver)


@pytest.fixture
def link() -> Iterator[Link]:
    with ExitStack() as stack:
        left = stack.enter_context(closing(Namespace()))
        right = stack.enter_context(closing(Namespace()))
        yield Link(left, right)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with closing(Namespace()) as made:
        made.ip("link", "add", "left", "mtu", 9000, "type", "veth", "peer", "right", "mtu", 9000)
        yield made


def test_frames_lie_on_cache_lines_and_name_both_ends(link: Link) -> None:
    pair = link.open_pair()
    sender, receiver = ends_of(pair)
    send(sender, range(5))
    assert wait_for_any([receiver], 10)
    frames = receiver.receive()
    assert frames is not None
    assert frames.ctypes.data % 64 == frames.strides[0] % 64 == 0
    headers = headers_of(frames)
    assert bytes(headers["destination"][0]) == link.right_mac
    assert bytes(headers["source"][0]) == link.left_mac
    assert headers["ethertype"][0] == ETHERTYPE
    receiver.answer(number(empty_frames(1), FrameType.PASS_ACK, [9]))
    while (back := sender.feedback()) is None:
        assert wait_for_any([sender], 10)
    assert bytes(headers_of(back)["destination"][0]) == link.left_mac
    assert bytes(headers_of(back)["source"][0]) == link.right_mac
    pair.close()


def test_across_a_link(link: Link) -> None:
    pair = link.open_pair()
    pump(*ends_of(pair), 20_000)
    pair.close()


def test_each_queue_of_each_run_gets_its_own(link: Link) -> None:
    pairs = {(queue, run): link.open_pair(queue, run) for queue in (0, 1, 256) for run in (1, 1 << 24)}
    for (queue, run), pair in pairs.items():
        frames = pair.sender.acquire()
        assert frames is not None
        number(frames, FrameType.PASS_END, [queue])
        headers_of(frames)["queue"], headers_of(frames)["run"] = queue, run
        pair.sender.commit(1)
    for (queue, run), pair in pairs.items():
        sender, receiver = ends_of(pair)
        assert wait_for_any([receiver], 10)
        received = receiver.receive()
        assert received is not None
        assert numbers_of(received) == [queue]
        assert headers_of(received)["run"] == run
        receiver.release()
        assert take_all(receiver, 0.01) == []
        assert sender.feedback() is None
        pair.close()


def test_only_whole_frames_of_the_peer_in_the_right_direction_pass(link: Link) -> None:
    pair = link.open_pair()
    sender, receiver = ends_of(pair)
    good = bytearray(number(empty_frames(1), FrameType.TILE, [1]).tobytes())
    good[:12] = link.right_mac + link.left_mac

    def altered(at: int, *octets: int) -> bytes:
        frame = bytearray(good)
        frame[at : at + len(octets)] = octets
        return bytes(frame)

    with link.left.open_packet_socket("left", 0) as wire:
        for bad in (
            altered(0, good[0] ^ 2),  # to another: one that is not broadcast
            altered(5, good[5] ^ 1),
            altered(6, good[6] ^ 2),
            altered(11, good[11] ^ 1),
            altered(12, 0x88, 0xB6),
            altered(14, 2),
            altered(15, 3),
            altered(15, 4),
            altered(15, 0),
            altered(16, good[16] ^ 1),
            altered(19, good[19] ^ 1),
            altered(44, good[44] ^ 1),
            altered(45, good[45] ^ 1),
            bytes(good[:4095]),
            bytes(good) + b"\0",
            bytes(good[:60]),
        ):
            wire.send(bad)
            assert take_all(receiver, 0.005) == []
        wire.send(good)
        assert take_all(receiver) == [1]
    assert sender.feedback() is None
    pair.close()


def test_a_link_that_goes_down_and_up(link: Link) -> None:
    pair = link.open_pair()
    sender, receiver = ends_of(pair)
    send(sender, range(3))
    assert take_all(receiver) == [0, 1, 2]
    link.right.ip("link", "set", "dev", "right", "down")
    wait_for_any([receiver], 0.01)  # which may wake once
    assert not wait_for_any([receiver], 0.01), "it wakes for ever"
    send(sender, range(3, 5))  # is lost
    link.right.ip("link", "set", "dev", "right", "up")
    while " state UP " not in link.left.ip("link", "show", "dev", "left"):
        time.sleep(0.001)
    assert take_all(receiver) == []
    pump(sender, receiver, 1000)
    pair.close()


def test_frames_without_room_are_counted() -> None:
    with queue_of("ethernet", BURST) as pair:
        assert isinstance(pair.receiver, EthernetReceiver)
        sender, receiver = ends_of(pair)
        send(sender, range(sender.window))
        assert pair.receiver.dropped == 0
        send(sender, range(10))
        assert pair.receiver.dropped == 10
        assert len(take_all(receiver)) == sender.window
        send(sender, range(10))
        assert take_all(receiver) == list(range(10))
        assert pair.receiver.dropped == 10


def test_closing_ends_the_reception() -> None:
    """Memory that is shared with the system must not keep the socket alive."""
    pair = open_ethernet_pair(BURST, WINDOW)
    pair.close()
    with open("/proc/net/packet") as listed:
        mine = [line for line in listed.readlines()[1:] if int(line.split()[3], 16) == ETHERTYPE]
    inodes = {os.stat(f"/proc/self/fd/{fd}").st_ino for fd in os.listdir("/proc/self/fd") if _is_open(fd)}
    assert not [line for line in mine if int(line.split()[8]) in inodes]


def _is_open(descriptor: str) -> bool:
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def test_the_address_of_an_interface(namespace: Namespace) -> None:
    assert namespace.call(mac_of, "lo") == bytes(6)
    shown = namespace.ip("-br", "link", "show", "dev", "left").split()
    assert bytes.fromhex(shown[2].replace(":", "")) == namespace.call(mac_of, "left")


@pytest.mark.parametrize("name", ["nowhere", "", "a name of many letters", "lo\0"])
def test_an_unknown_interface_is_refused(name: str) -> None:
    with pytest.raises(
        UserError, match=re.escape(f"interface is {name!r}") + ", but it should be one of .*: .*lo"
    ):
        require_usable(name)


def test_an_interface_that_is_down_is_refused(namespace: Namespace) -> None:
    with pytest.raises(UserError, match=r"interface is left, which is down.*ip link set dev left up"):
        namespace.call(require_usable, "left")


def test_an_interface_that_carries_no_whole_frames_is_refused(namespace: Namespace) -> None:
    namespace.ip("link", "set", "dev", "left", "mtu", 4081, "up")
    with pytest.raises(
        UserError, match=r"interface is left, whose MTU is 4081, but .* needs 4082 .*left mtu"
    ):
        namespace.call(require_usable, "left")
    namespace.ip("link", "set", "dev", "left", "mtu", 4082)
    namespace.call(require_usable, "left")


def test_an_interface_that_is_not_of_ethernet_is_refused(namespace: Namespace) -> None:
    try:
        namespace.ip("tuntap", "add", "dev", "tunnel", "mode", "tun")
    except OSError as error:
        pytest.skip(f"this system has no tunnels: {error}")
    with pytest.raises(UserError, match=r"interface is tunnel, which is not an Ethernet interface"):
        namespace.call(require_usable, "tunnel")


def test_without_the_capability_it_is_refused() -> None:
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        try:
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
            pytest.skip("even nobody may open raw sockets here")
        except PermissionError:
            pass
        with pytest.raises(
            UserError, match=r"interface is lo, on which .* needs the capability CAP_NET_RAW; .*setcap"
        ):
            require_usable("lo")
    finally:
        os.seteuid(user)


def test_a_ring_without_memory_is_refused() -> None:
    try:
        open_ethernet_pair(BURST, 1).close()
    except UserError as error:
        pytest.skip(str(error))
    with pytest.raises(UserError, match=r"stream.window_frames is 1000000000.* set it lower"):
        EthernetReceiver("lo", bytes(6), RUN, QUEUE, BURST, 10**9)
