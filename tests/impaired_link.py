"""A link between two network namespaces that loses, repeats, reorders, corrupts and delays frames.

    sender's namespace: eth0 -- veth -- this process -- veth -- eth0: receiver's namespace

The MTU is 9000 and nothing is offloaded, so that every frame passes alone and with its checksums.  Frames of
EtherType 0x88B5 and UDP datagrams of 4096 bytes or more over IPv4 are impaired, in both directions; what
remains (ARP, TCP, small datagrams) passes untouched.  What happens to the k-th such frame of a direction
depends on the seed alone.

    with ImpairedLink(loss=0.01, seed=1) as link:
        process = link.sender.call(start_command, "generate", ...)
        assert link.counts.lost
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from types import TracebackType

import pytest

from streamdsb.jit import compile_kernels
from tests.impairment import Work, forward
from tests.namespaces import Namespace

MTU = 9000
INTERFACE = "eth0"
_PATIENCE_S = 20.0
_ETH_P_ALL = 3
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_SIOCETHTOOL, _SIOCGIFHWADDR = 0x8946, 0x8927
_SET_RX_CHECKSUMS, _SET_TX_CHECKSUMS, _SET_SG = 0x15, 0x17, 0x19
_SET_TSO, _SET_GSO, _SET_GRO = 0x1F, 0x24, 0x2C


@dataclass(frozen=True)
class Counts:
    """What happened to frames so far."""

    forwarded: int
    """Those that went out at the other end, duplicates too."""
    lost: int
    duplicated: int
    corrupted: int
    reordered: int
    delayed: int
    refused: int
    """Those that the system did not send."""
    overflowed: int
    """Those that came too fast for this process: a fault of the emulator, not of its rates."""


class Host(Namespace):
    """A namespace with an interface at one end of the link, or two in the middle."""

    address: str
    interface = INTERFACE

    def set_up(self, interface: str) -> None:
        """Bring an interface up, without offloads."""
        self.call(_switch_off_offloads, interface)
        self.ip("link", "set", "dev", interface, "up")

    def wait_for_carrier(self, interface: str) -> None:
        """Until then the system drops silently what is sent."""
        deadline = time.monotonic() + _PATIENCE_S
        while " state UP " not in self.ip("link", "show", "dev", interface):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{interface} has had no carrier for {_PATIENCE_S:g} s")
            time.sleep(0.001)

    @property
    def mac(self) -> bytes:
        return self.call(_mac_of, self.interface)


class _Direction:
    """A thread that forwards what one interface of the middle receives to the other."""

    def __init__(self, source: socket.socket, work: Work) -> None:
        self._source = source
        self._work = work
        self._overflowed = 0
        self._event = os.eventfd(0)
        arguments = (source.fileno(), self._event, work)
        self._thread = threading.Thread(target=forward, args=arguments, daemon=True)
        self._thread.start()

    def counts(self) -> Counts:
        # reading sets it back to 0
        packets_and_drops = self._source.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        self._overflowed += struct.unpack("II", packets_and_drops)[1]
        return Counts(*[*self._work.counts[:7].tolist(), self._overflowed])

    def close(self) -> None:
        self._work.stop()
        os.eventfd_write(self._event, 1)
        self._thread.join()
        os.close(self._event)


class ImpairedLink:
    """The link and both namespaces, for as long as the context lasts; skips the test where it cannot be.

    loss, duplicate, reorder, corrupt, delay: rates from 0 to 1; a frame that is reordered is not delayed.
    delay_ms: how long; a rate of delay below 1 lets other frames overtake.
    hides_corruption: corrupt datagrams go without the UDP checksum, by which the system would drop them.
    everything: all frames are impaired, ARP and TCP too.
    """

    def __init__(
        self,
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        corrupt: float = 0.0,
        delay: float = 1.0,
        delay_ms: float = 0.0,
        seed: int = 0,
        everything: bool = False,
        hides_corruption: bool = True,
    ) -> None:
        self._rates = (loss, duplicate, corrupt, reorder, delay if delay_ms else 0.0)
        self._delay_ns = round(delay_ms * 1e6)
        self._seed = seed
        self._flags = everything, hides_corruption
        self._open = ExitStack()

    def __enter__(self) -> ImpairedLink:
        with ExitStack() as stack:
            middle = self._add(stack)
            self.sender, self.receiver = self._add(stack), self._add(stack)
            for host, number in ((self.sender, 1), (self.receiver, 2)):
                host.address = f"10.88.181.{number}"
                _lay_cable(middle, f"end{number}", host)
            ends = [middle.open_packet_socket(f"end{number}", _ETH_P_ALL) for number in (1, 2)]
            for end in ends:
                stack.callback(end.close)
            compile_kernels(forward)
            self._directions = [
                self._start(stack, source, target, number)
                for number, (source, target) in enumerate((ends, ends[::-1]))
            ]
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    @property
    def counts(self) -> Counts:
        """Of both directions together."""
        return Counts(*map(sum, zip(*map(astuple, self.counts_of_directions), strict=True)))

    @property
    def counts_of_directions(self) -> Sequence[Counts]:
        """From the sender to the receiver, and back."""
        return [direction.counts() for direction in self._directions]

    @staticmethod
    def _add(stack: ExitStack) -> Host:
        host = Host()
        stack.callback(host.close)
        return host

    def _start(
        self, stack: ExitStack, source: socket.socket, target: socket.socket, number: int
    ) -> _Direction:
        work = Work.make(self._rates, self._delay_ns, 2 * self._seed + number, target.fileno(), *self._flags)
        direction = _Direction(source, work)
        stack.callback(direction.close)
        return direction


def _lay_cable(middle: Host, end: str, host: Host) -> None:
    """Join the interface `end` of the middle to the interface of `host`, which gets its address."""
    try:
        middle.ip(
            "link",
            "add",
            end,
            "mtu",
            MTU,
            "type",
            "veth",
            "peer",
            "name",
            INTERFACE,
            "mtu",
            MTU,
            "netns",
            host.path,
        )
    except OSError as error:
        pytest.skip(f"an impaired link needs veth interfaces: {error}")
    for namespace, interface in ((middle, end), (host, INTERFACE)):
        namespace.call(_switch_off_ipv6)
        namespace.set_up(interface)
    for namespace, interface in ((middle, end), (host, INTERFACE)):
        namespace.wait_for_carrier(interface)
    host.ip("link", "set", "dev", "lo", "up")
    host.ip("address", "add", f"{host.address}/24", "dev", INTERFACE)


def _switch_off_ipv6() -> None:
    """Its announcements would be frames that no test sent."""
    for name in ("all", "default"):
        path = f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6"
        if os.path.exists(path):
            with open(path, "w") as setting:
                setting.write("1")


def _switch_off_offloads(interface: str) -> None:
    """Let the system fill in every checksum and cut up every large datagram before it sends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in (_SET_GRO, _SET_GSO, _SET_TSO, _SET_SG, _SET_TX_CHECKSUMS, _SET_RX_CHECKSUMS):
            value = array.array("I", [command, 0])
            request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


def _mac_of(interface: str) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFHWADDR, struct.pack("16s24x", interface.encode()))
    return answer[18:24]
