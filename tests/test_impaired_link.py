"""The emulated link does to frames what its rates say, and nothing else."""

import math
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from tests.impaired_link import MTU, Host, ImpairedLink
from tests.impairment import REORDER_FRAMES

FRAMES = 20_000
CHUNK = 500
HEADER = 14
ETHER_TYPE = b"\x88\xb5"
ETH_P_ALL, UDP_SEGMENT = 3, 103
PORT = 5000
END = b"the end"
HANG_S = 20.0


def numbered_frames(source: Host, target: Host, count: int = FRAMES, size: int = 128) -> list[bytes]:
    """Ethernet frames of random bytes behind a number."""
    addresses = target.mac + source.mac + ETHER_TYPE
    bodies = np.random.default_rng(0).integers(0, 256, (count, size - HEADER - 8), np.uint8)
    return [addresses + k.to_bytes(8, "big") + body.tobytes() for k, body in enumerate(bodies)]


def number_of(frame: bytes) -> int:
    return int.from_bytes(frame[HEADER : HEADER + 8], "big")


def settle(link: ImpairedLink, sent: int) -> int:
    """Wait until the link has forwarded or lost `sent` frames and their copies; how many it forwarded."""
    deadline = time.monotonic() + HANG_S
    while True:
        counts = link.counts
        assert counts.refused == counts.overflowed == 0
        if counts.forwarded + counts.lost == sent + counts.duplicated:
            return counts.forwarded
        assert time.monotonic() < deadline, counts
        time.sleep(0.001)


def carry(link: ImpairedLink, frames: Sequence[bytes], source: Host, target: Host) -> list[bytes]:
    """Send frames and return what arrives."""
    arrived: list[bytes] = []
    with (
        source.open_packet_socket(source.interface, 0) as sending,
        target.open_packet_socket(target.interface, ETH_P_ALL) as receiving,
    ):
        receiving.settimeout(HANG_S)
        before = link.counts
        assert before.lost == before.duplicated == 0
        for first in range(0, len(frames), CHUNK):
            chunk = frames[first : first + CHUNK]
            for frame in chunk:
                sending.send(frame)
            due = settle(link, before.forwarded + first + len(chunk)) - before.forwarded
            arrived += [receiving.recv(2 * MTU) for _ in range(due - len(arrived))]
    return arrived


def carry_forward(link: ImpairedLink, frames: Sequence[bytes]) -> list[bytes]:
    return carry(link, frames, link.sender, link.receiver)


def assert_rate(hits: int, rate: float, of: int = FRAMES) -> None:
    """That so many hits are within five standard deviations."""
    assert abs(hits - rate * of) < 5 * math.sqrt(of * rate * (1 - rate))


# --- frames of our EtherType ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [60, 4096, HEADER + MTU])
def test_without_rates_nothing_changes(size: int) -> None:
    with ImpairedLink() as link:
        there = numbered_frames(link.sender, link.receiver, 700, size)
        assert carry(link, there, link.sender, link.receiver) == there
        back = numbered_frames(link.receiver, link.sender, 700, size)
        assert carry(link, back, link.receiver, link.sender) == back


@pytest.mark.parametrize("rate", [0.001, 0.1])
def test_loss(rate: float) -> None:
    with ImpairedLink(loss=rate, seed=1) as link:
        frames = numbered_frames(link.sender, link.receiver)
        arrived = carry_forward(link, frames)
        missing = set(frames) - set(arrived)
        assert arrived == [frame for frame in frames if frame not in missing]
        assert len(missing) == link.counts.lost
        assert_rate(link.counts.lost, rate)


def test_duplicates() -> None:
    with ImpairedLink(duplicate=0.01, seed=2) as link:
        frames = numbered_frames(link.sender, link.receiver)
        times = Counter(carry_forward(link, frames))
        assert set(times) == set(frames)
        assert Counter(times.values()) == {1: FRAMES - link.counts.duplicated, 2: link.counts.duplicated}
        assert_rate(link.counts.duplicated, 0.01)


def test_corruption_flips_one_bit_behind_the_addresses() -> None:
    with ImpairedLink(corrupt=0.05, seed=3) as link:
        frames = numbered_frames(link.sender, link.receiver)
        arrived = carry_forward(link, frames)
        flips = np.array([list(frame) for frame in frames], np.uint8)
        flips ^= np.array([list(frame) for frame in arrived], np.uint8)
        bits = np.bitwise_count(flips) if hasattr(np, "bitwise_count") else np.unpackbits(flips, axis=1)
        flipped = bits.sum(axis=1, dtype=np.int64)
        assert flipped.max() == 1
        assert flipped.sum() == link.counts.corrupted
        assert not flips[:, :12].any()
        assert flips[:, 12:].any(axis=0).all(), "not every byte was hit"
        assert_rate(link.counts.corrupted, 0.05)


def test_reordering() -> None:
    with ImpairedLink(reorder=0.01, seed=4) as link:
        frames = numbered_frames(link.sender, link.receiver)
        arrived = carry_forward(link, frames)
        assert sorted(arrived, key=number_of) == frames
        numbers = np.array([number_of(frame) for frame in arrived])
        late = np.maximum.accumulate(numbers) - numbers
        assert 0.9 * link.counts.reordered < np.count_nonzero(late) <= link.counts.reordered
        assert REORDER_FRAMES / 2 < late.max() <= REORDER_FRAMES
        assert_rate(link.counts.reordered, 0.01)


def test_frames_with_nothing_behind_them_are_not_held_for_ever() -> None:
    with ImpairedLink(reorder=1.0) as link:
        frames = numbered_frames(link.sender, link.receiver, 3)
        assert sorted(carry_forward(link, frames), key=number_of) == frames


def test_delay_of_all_keeps_the_order() -> None:
    with ImpairedLink(delay_ms=30.0) as link:
        frames = numbered_frames(link.sender, link.receiver, CHUNK)
        start = time.monotonic()
        assert carry_forward(link, frames) == frames
        assert time.monotonic() - start >= 0.03
        assert link.counts.delayed == CHUNK


def test_delay_of_some_lets_others_overtake() -> None:
    with ImpairedLink(delay=0.01, delay_ms=3.0, seed=5) as link:
        frames = numbered_frames(link.sender, link.receiver)
        arrived = carry_forward(link, frames)
        assert arrived != frames
        assert sorted(arrived, key=number_of) == frames
        assert_rate(link.counts.delayed, 0.01)


def test_all_together_lose_no_frame_that_is_not_counted() -> None:
    with ImpairedLink(
        loss=0.1, duplicate=0.1, corrupt=0.1, reorder=0.1, delay=0.1, delay_ms=1.0, seed=6
    ) as link:
        frames = numbered_frames(link.sender, link.receiver)
        arrived = carry_forward(link, frames)
        counts = link.counts
        assert len(arrived) == FRAMES - counts.lost + counts.duplicated
        changed = sum(frame not in set_of_sent for set_of_sent in [set(frames)] for frame in arrived)
        assert changed == counts.corrupted
        for hits in (counts.lost, counts.duplicated, counts.corrupted, counts.reordered, counts.delayed):
            assert hits > 0.05 * FRAMES


def lost_numbers(seed: int, back: bool = False) -> set[int]:
    with ImpairedLink(loss=0.1, seed=seed) as link:
        ends = (link.receiver, link.sender) if back else (link.sender, link.receiver)
        frames = numbered_frames(*ends, 2000)
        return {number_of(frame) for frame in set(frames) - set(carry(link, frames, *ends))}


def test_the_seed_decides() -> None:
    assert lost_numbers(1) == lost_numbers(1)
    assert lost_numbers(1) != lost_numbers(2)
    assert lost_numbers(1) != lost_numbers(1, back=True)


# --- traffic over IP ------------------------------------------------------------------------------


def udp_socket(host: Host, port: int = 0) -> socket.socket:
    opened = host.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind((host.address, port))
    opened.settimeout(HANG_S)
    return opened


def carry_datagrams(
    link: ImpairedLink, sending: socket.socket, receiving: socket.socket, messages: Sequence[bytes]
) -> list[bytes]:
    """Send datagrams in front of a small one, which nothing happens to; those that arrive before it."""
    target = receiving.getsockname()
    for message in (END, *messages, END):  # the first waits for the MAC address
        sending.sendto(message, target)
        if message == END:
            arrived = list(iter(lambda: receiving.recv(1 << 16), END))
    return arrived


def send_and_close(sending: socket.socket, data: bytes) -> None:
    with sending:
        sending.sendall(data)


def carry_by_tcp(link: ImpairedLink, data: bytes) -> bytes:
    address = link.receiver.address, PORT
    arrived = bytearray()
    with link.receiver.call(socket.create_server, address) as server:
        sending = link.sender.call(socket.create_connection, address, HANG_S)
        receiving, _ = server.accept()
    with sending, receiving:
        receiving.settimeout(HANG_S)
        writer = threading.Thread(target=send_and_close, args=(sending, data))
        writer.start()
        while piece := receiving.recv(1 << 20):
            arrived += piece
        writer.join()
    return bytes(arrived)


def test_only_datagrams_that_hold_a_frame_are_impaired() -> None:
    with (
        ImpairedLink(loss=1.0) as link,
        udp_socket(link.sender) as sending,
        udp_socket(link.receiver, PORT) as receiving,
    ):
        datagrams = [bytes(4095), *10 * [bytes(4096)], bytes(4095)]
        assert carry_datagrams(link, sending, receiving, datagrams) == 2 * [bytes(4095)]
        data = np.random.default_rng(0).bytes(1 << 23)
        assert carry_by_tcp(link, data) == data
        assert link.counts.lost == 10


def test_everything_may_be_impaired() -> None:
    with ImpairedLink(loss=1.0, everything=True) as link, udp_socket(link.sender) as sending:
        sending.sendto(b"a question", (link.receiver.address, PORT))  # asks for the MAC address first
        deadline = time.monotonic() + HANG_S
        while not link.counts.lost:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert link.counts.forwarded == 0


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_datagrams_sent_as_one_message_pass_one_by_one(loss: float) -> None:
    with (
        ImpairedLink(loss=loss) as link,
        udp_socket(link.sender) as sending,
        udp_socket(link.receiver, PORT) as receiving,
    ):
        sending.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 4096)
        data = np.random.default_rng(0).bytes(15 * 4096)
        arrived = carry_datagrams(link, sending, receiving, [data])
        whole = [data[at : at + 4096] for at in range(0, len(data), 4096)]
        assert arrived == [datagram for datagram in whole if datagram in arrived]
        assert len(arrived) == 15 - link.counts.lost
        assert (link.counts.lost > 0) == (loss > 0)


def corrupted_datagrams(hides_corruption: bool) -> list[bytes]:
    """What arrives of 300 datagrams of zeros with a flipped bit each."""
    with (
        ImpairedLink(corrupt=1.0, hides_corruption=hides_corruption) as link,
        udp_socket(link.sender) as sending,
        udp_socket(link.receiver, PORT) as receiving,
    ):
        receiving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        arrived = carry_datagrams(link, sending, receiving, 300 * [bytes(4096)])
        assert link.counts.corrupted == 300
        return arrived


def test_corrupt_datagrams_arrive_if_that_is_hidden() -> None:
    arrived = corrupted_datagrams(hides_corruption=True)
    ones = Counter(int.from_bytes(datagram, "big").bit_count() for datagram in arrived)
    assert ones[1] > 280  # a few were hit in their headers
    assert set(ones) <= {0, 1}


def test_corrupt_datagrams_are_dropped_by_the_system_otherwise() -> None:
    assert corrupted_datagrams(hides_corruption=False) == []


# --- the end --------------------------------------------------------------------------------------


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def fail_on_a_link(paths: list[str]) -> None:
    with ImpairedLink(delay_ms=1e5) as link:
        paths.append(link.sender.path)
        assert os.path.exists(link.sender.path)
        with link.sender.open_packet_socket(link.sender.interface, 0) as sending:
            sending.send(numbered_frames(link.sender, link.receiver, 1)[0])
        raise ZeroDivisionError


def test_nothing_is_left_when_a_test_fails() -> None:
    before, paths = (threading.active_count(), len(open_descriptors())), list[str]()
    with pytest.raises(ZeroDivisionError):
        fail_on_a_link(paths)
    assert not os.path.exists(paths[0])
    assert (threading.active_count(), len(open_descriptors())) == before
