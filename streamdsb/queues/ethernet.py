"""A queue of raw Ethernet frames between two network interfaces of one link, Linux only.

The link may lose, repeat and reorder them.  Each socket has a filter, which the system applies, so that it
gets only the frames that its peer sends it in this direction of this queue.

Frames are received in place: the system puts each into a slot of a ring that it shares with the receiver.
A slot is 4224 bytes, of which the frame is the last 4096, so that every frame begins on a cache line.  They
are not sent in place: the system gives a slot of a transmit ring back as soon as a virtual interface has
queued its frame, before anybody has read it, and what is composed there next would alter it on the way.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import select
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from streamdsb.config_words import shown
from streamdsb.errors import UserError
from streamdsb.frame import ETHERTYPE, VERSION, FrameType
from streamdsb.intrinsics import load_acquire, store_release
from streamdsb.jit import kernel
from streamdsb.layout import FRAME_BYTES, FRAME_WORDS, ceil_div
from streamdsb.queues import datagrams
from streamdsb.queues.datagrams import DatagramEnd, DatagramSender, Messages, send, widen

NEEDED_MTU = FRAME_BYTES - 14
"""The MTU does not count the Ethernet header."""

_SLOT_BYTES = 4224
_SLOT_WORDS = _SLOT_BYTES // 8
_FRAME_AT = (_SLOT_BYTES - FRAME_BYTES) // 8
_PLAIN_FRAME_AT = 66
"""Where the system would put a frame in its slot, in bytes, if nothing were reserved."""
_BLOCK_SLOTS = 224
"""Slots that the system allocates at once: 924 KiB, whole pages without a gap after the last slot."""
_BUFFER_BYTES = 4 << 20
"""For what is sent, and for what comes back: about 800 frames."""

# of Linux, where Python does not name them
_SOL_PACKET = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION, _PACKET_RESERVE = 5, 6, 10, 12
_TPACKET_V2 = 1
_TP_STATUS_USER = np.uint64(1)
_SO_ATTACH_FILTER = 26
_SIOCGIFFLAGS, _SIOCGIFMTU, _SIOCGIFHWADDR = 0x8913, 0x8921, 0x8927
_IFF_UP = 1
_ARPHRD_ETHER, _ARPHRD_LOOPBACK = 1, 772
_LOAD_WORD, _LOAD_HALF, _LOAD_LENGTH, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x28, 0x80, 0x15, 0x06

_Types = tuple[FrameType, FrameType]
FORWARD = (FrameType.TILE, FrameType.PASS_END)
BACK = (FrameType.RESEND, FrameType.PASS_ACK)


@kernel("int64(uint64[::1], int64, int64)")
def _count_filled(ring: np.ndarray, first: int, most: int) -> int:
    """How many slots from `first` on the system has filled, at most `most`."""
    count = 0
    while count < most and load_acquire(ring, (first + count) * _SLOT_WORDS) & _TP_STATUS_USER:
        count += 1
    return count


@kernel("void(uint64[::1], int64, int64)")
def _give_back(ring: np.ndarray, first: int, count: int) -> None:
    """Let the system fill `count` slots from `first` on again."""
    for slot in range(first, first + count):
        store_release(ring, slot * _SLOT_WORDS, np.uint64(0))


@kernel("void(uint64[:, ::1], int64, uint64, uint64)")
def _write_macs(frames: np.ndarray, count: int, word: np.uint64, half: np.uint64) -> None:
    """Write header word 0 and the lower half of header word 1 of the first `count` frames."""
    for i in range(count):
        frames[i, 0] = word
        frames[i, 1] = (frames[i, 1] & np.uint64(0xFFFF_FFFF_0000_0000)) | half


KERNELS = (*datagrams.KERNELS, _count_filled, _give_back, _write_macs)


def mac_of(interface: str, key: str = "interface") -> bytes:
    """The address of an interface, 6 bytes, all 0 for the loopback.

    Raises UserError if it has none; key: what its sentence calls the interface.
    """
    kind, mac = struct.unpack_from("H6s", _ask(_SIOCGIFHWADDR, interface, key))
    if kind not in (_ARPHRD_ETHER, _ARPHRD_LOOPBACK):
        raise UserError(
            f"{key} is {interface}, which is not an Ethernet interface: its hardware type is {kind}, but it"
            f" should be {_ARPHRD_ETHER}"
        )
    return bytes(mac)


def require_usable(interface: str, key: str = "interface") -> None:
    """Raise UserError if this process cannot exchange whole frames through `interface`, called `key`."""
    mac_of(interface, key)
    (flags,) = struct.unpack_from("H", _ask(_SIOCGIFFLAGS, interface, key))
    if not flags & _IFF_UP:
        raise UserError(
            f"{key} is {interface}, which is down, but it should be up (ip link set dev {interface} up)"
        )
    (mtu,) = struct.unpack_from("i", _ask(_SIOCGIFMTU, interface, key))
    if mtu < NEEDED_MTU:
        raise UserError(
            f"{key} is {interface}, whose MTU is {mtu}, but stream.transport ethernet needs {NEEDED_MTU} or"
            f" more; set it (ip link set dev {interface} mtu 9000) or use stream.transport tcp"
        )
    _open_raw(interface, key).close()


def _ask(request: int, interface: str, key: str) -> bytes:
    """What the system says about an interface, a union of 24 bytes."""
    if sys.platform != "linux":
        raise UserError("stream.transport ethernet needs Linux; use tcp or udp")
    known = [name for _, name in socket.if_nameindex()]
    if interface in known:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            return fcntl.ioctl(asking, request, struct.pack("16s24x", interface.encode()))[16:]
    raise UserError(
        f"{key} is {shown(interface)}, but it should be one of this machine's interfaces: {', '.join(known)}"
    )


def _open_raw(interface: str, key: str) -> socket.socket:
    """A raw socket that receives nothing yet."""
    try:
        return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except PermissionError:
        raise UserError(
            f"{key} is {interface}, on which stream.transport ethernet needs the capability CAP_NET_RAW; be"
            f" root, grant it (setcap cap_net_raw+ep {Path(sys.executable).resolve()}) or use udp or tcp"
        ) from None


def _attach_filter(
    opened: socket.socket, own: bytes, peer: bytes, run: int, queue: int, types: _Types
) -> None:
    """Let only frames of `types` on `queue` of `run` pass, which `peer` sends to `own`."""
    first, second = (VERSION << 8 | kind for kind in types)
    # what is loaded from where, and what it has to be; the network's byte order is big-endian, ours is not
    conditions = [
        (_LOAD_LENGTH, 0, FRAME_BYTES),
        (_LOAD_HALF, 44, _swapped(queue, 2)),
        (_LOAD_WORD, 16, _swapped(run, 4)),
        (_LOAD_WORD, 0, int.from_bytes(own[:4], "big")),
        (_LOAD_HALF, 4, int.from_bytes(own[4:], "big")),
        (_LOAD_WORD, 6, int.from_bytes(peer[:4], "big")),
        (_LOAD_HALF, 10, int.from_bytes(peer[4:], "big")),
    ]
    end = 2 * len(conditions) + 4  # where the frame is refused
    program = []
    for load, offset, value in conditions:
        program.append((load, 0, 0, offset))
        program.append((_JUMP_IF_EQUAL, 0, end - len(program) - 1, value))
    program += [
        (_LOAD_HALF, 0, 0, 14),
        (_JUMP_IF_EQUAL, 1, 0, first),
        (_JUMP_IF_EQUAL, 0, 1, second),
        (_RETURN, 0, 0, FRAME_BYTES),
        (_RETURN, 0, 0, 0),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    pointer = struct.pack("HP", len(program), ctypes.addressof(code))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


def _swapped(value: int, size: int) -> int:
    return int.from_bytes(value.to_bytes(size, "little"), "big")


def open_socket(
    interface: str,
    peer: bytes,
    run: int,
    queue: int,
    types: _Types,
    prepare: Callable[[socket.socket], None] = lambda _: None,
) -> socket.socket:
    """A raw socket for the frames of `types` that `peer` sends to `interface`.

    prepare: called before the first frame can come.
    """
    require_usable(interface)
    opened = _open_raw(interface, "interface")
    try:
        _attach_filter(opened, mac_of(interface), peer, run, queue, types)
        widen(opened, _BUFFER_BYTES)
        prepare(opened)
        # one type of frame, not all: so the system does not show it what goes out here
        opened.bind((interface, ETHERTYPE))
        opened.setblocking(False)
    except BaseException:
        opened.close()
        raise
    return opened


class Address:
    """What the first 12 bytes of a frame say: to whom, and from whom."""

    def __init__(self, destination: bytes, source: bytes) -> None:
        self._word, self._half = map(np.uint64, struct.unpack("<QI", destination + source))

    def write(self, frames: np.ndarray, count: int) -> None:
        """Address the first `count` of `frames`, uint64 (>= count, 512)."""
        _write_macs(frames, count, self._word, self._half)


class EthernetSender(DatagramSender):
    """The generator's end of a queue on `interface`; peer: the MAC of the receiver's interface.

    window: frames that the receiver's ring holds.  Raises UserError if the interface cannot be used.
    """

    def __init__(
        self, interface: str, peer: bytes, run: int, queue: int, burst_frames: int, window: int
    ) -> None:
        opened = open_socket(interface, peer, run, queue, BACK)
        super().__init__(opened, burst_frames, window)
        self._address = Address(peer, mac_of(interface))

    def commit(self, count: int) -> None:
        self._address.write(self._out.frames, count)
        super().commit(count)


class EthernetReceiver(DatagramEnd):
    """The receiver's end of a queue on `interface`; peer: the MAC of the generator's interface.

    It holds `window` frames or more.  Bursts are uint64 (count, 528) in the ring itself, and (1, 512) for its
    last slot, behind which there is nothing.  Raises UserError if the interface cannot be used.
    """

    poll_events = select.POLLIN

    def __init__(
        self, interface: str, peer: bytes, run: int, queue: int, burst_frames: int, window: int
    ) -> None:
        blocks = ceil_div(window, _BLOCK_SLOTS)
        self.window = blocks * _BLOCK_SLOTS
        block_bytes = _BLOCK_SLOTS * _SLOT_BYTES

        def make_ring(opened: socket.socket) -> None:
            opened.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
            opened.setsockopt(_SOL_PACKET, _PACKET_RESERVE, 8 * _FRAME_AT - _PLAIN_FRAME_AT)
            sizes = struct.pack("IIII", block_bytes, blocks, _SLOT_BYTES, self.window)
            try:
                opened.setsockopt(_SOL_PACKET, _PACKET_RX_RING, sizes)
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
                raise UserError(
                    f"stream.window_frames is {window}, but the system has no memory for a ring of"
                    f" {blocks * block_bytes} bytes a queue; set it lower"
                ) from None

        super().__init__(open_socket(interface, peer, run, queue, FORWARD, make_ring))
        memory = mmap.mmap(self._descriptor, blocks * block_bytes)
        self._ring = np.frombuffer(memory, np.uint64)
        self._last = self.window - 1
        frames = self._ring[_FRAME_AT:]
        self._frames = frames[: self._last * _SLOT_WORDS].reshape(self._last, _SLOT_WORDS)
        self._last_frame = frames[self._last * _SLOT_WORDS :].reshape(1, FRAME_WORDS)
        self._burst_frames = burst_frames
        self._at, self._held = 0, 0
        self._dropped = 0
        self._back = Messages(1)
        self._address = Address(peer, mac_of(interface))

    def close(self) -> None:
        super().close()
        # memory that is mapped keeps its socket open
        self._ring = self._frames = self._last_frame = np.empty((0, 0), np.uint64)

    def receive(self) -> np.ndarray | None:
        if not self._held:
            most = min(self._burst_frames, max(1, self._last - self._at))
            self._held = _count_filled(self._ring, self._at, most)
        if not self._held:
            return None
        return self._last_frame if self._at == self._last else self._frames[self._at : self._at + self._held]

    def release(self) -> None:
        _give_back(self._ring, self._at, self._held)
        self._at, self._held = (self._at + self._held) % self.window, 0

    def answer(self, frames: np.ndarray) -> None:
        for frame in frames:
            self._back.frames[0] = frame
            self._address.write(self._back.frames, 1)
            send(self._descriptor, self._back.headers, 0, 1)

    def arm(self) -> bool:
        return not self._held and not _count_filled(self._ring, self._at, 1)

    def disarm(self) -> None:
        """Take away what the interface reported, such as having gone down, or it wakes for ever."""
        self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    @property
    def dropped(self) -> int:
        """Frames that came while the ring was full."""
        # reading sets it back to 0
        counted = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        self._dropped += struct.unpack("II", counted)[1]
        return self._dropped
