"""The servers by name."""

from __future__ import annotations

from streamdsb.service.config import ServiceConfig
from streamdsb.service.server import Server


def make_server(config: ServiceConfig) -> Server:
    """The server that `config` asks for, its socket bound, not yet started."""
    return Server(config)
