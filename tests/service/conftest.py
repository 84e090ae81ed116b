"""Servers for the tests of this folder: real ones, on loopback, on a GPU too where there is one."""

from collections.abc import Iterator

import pytest

from streamdsb import native
from streamdsb.service.client import Client
from streamdsb.service.config import make_service_config
from streamdsb.service.server import Server
from streamdsb.service.servers import make_server

SETTINGS = {"cpu": {"workers": 2}, "launch": {"streams": 4}, "proxy": {}}
ON_GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in ("launch", "proxy")]


@pytest.fixture(scope="module", params=["cpu", *ON_GPU])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each server in turn; one at a time, since workers that stay leave no room on a GPU for others."""
    if not native.AVAILABLE:
        pytest.skip("the server needs Linux")
    settings = {"server": request.param, "listen": "127.0.0.1:0", **SETTINGS[request.param]}
    with make_server(make_service_config(settings)) as started:
        yield started
        started.check()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as connected:
        yield connected
