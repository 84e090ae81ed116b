"""Servers for the tests of this folder: real ones, on loopback."""

from collections.abc import Iterator

import pytest

from streamdsb import native
from streamdsb.service.client import Client
from streamdsb.service.config import make_service_config
from streamdsb.service.server import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    if not native.AVAILABLE:
        pytest.skip("the server needs Linux")
    with Server(make_service_config({"listen": "127.0.0.1:0", "workers": 2})) as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as connected:
        yield connected
