"""The sockets that servers and clients speak over."""

from __future__ import annotations

import socket
from contextlib import suppress

from streamdsb.errors import UserError
from streamdsb.links import parse_address
from streamdsb.service.config import ServiceConfig

_SOCKET_BUFFER = 16 << 20
_SO_RCVBUFFORCE = 33  # Linux; allowed to administrators, it ignores net.core.rmem_max


def open_socket(config: ServiceConfig) -> socket.socket:
    """The socket to serve on: UDP at config.listen, or raw Ethernet on config.interface."""
    if config.interface is not None:
        return open_raw(config.interface, config.ether_type)
    host, port = parse_address(config.listen)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        made = socket.socket(family, kind, protocol)
        made.bind(place)
    except OSError as error:
        raise UserError(f"cannot listen on {config.listen}: {error.strerror or error}") from None
    widen(made)
    return made


def open_raw(interface: str, ether_type: int) -> socket.socket:
    """A socket for whole Ethernet frames of one EtherType on one interface (Linux, CAP_NET_RAW)."""
    if not hasattr(socket, "AF_PACKET"):
        raise UserError("raw Ethernet needs Linux; leave out the interface to use UDP")
    try:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ether_type))
    except PermissionError:
        raise UserError(
            f"raw Ethernet on {interface} needs the capability CAP_NET_RAW; without an interface, UDP is used"
        ) from None
    try:
        made.bind((interface, ether_type))
    except OSError as error:
        made.close()
        known = ", ".join(name for _, name in socket.if_nameindex())
        raise UserError(
            f"cannot use the interface {interface}: {error.strerror}; there are {known}"
        ) from None
    widen(made)
    return made


def widen(made: socket.socket) -> None:
    """Ask for room for a burst of frames; the system may grant less."""
    for option in (socket.SO_RCVBUF, _SO_RCVBUFFORCE, socket.SO_SNDBUF):
        with suppress(OSError):
            made.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)
