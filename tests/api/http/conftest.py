"""Listeners and clients for the tests of HTTP."""

from collections.abc import Iterator

import pytest

from .serving import Client, Server, served


@pytest.fixture
def server() -> Iterator[Server]:
    with served() as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client
