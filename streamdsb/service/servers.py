"""The servers by name."""

from __future__ import annotations

from streamdsb.service.config import ServiceConfig
from streamdsb.service.server import Server


def make_server(config: ServiceConfig) -> Server:
    """The server that `config` asks for, its socket bound, not yet started; UserError if it needs a GPU."""
    if config.server == "launch":
        from streamdsb.service.server_gpu import LaunchServer

        return LaunchServer(config)
    if config.server == "proxy":
        from streamdsb.service.server_gpu import ProxyServer

        return ProxyServer(config)
    from streamdsb.service.server_cpu import CpuServer

    return CpuServer(config)
