"""A broker for the tests of the schema registry, and clients of both places where it is."""

from collections.abc import Iterator

import httpx
import pytest

from tests.brokers import KEPT, Broker

from .requests import Registry


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("registry") / "data", config=KEPT)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture(scope="session")
def client(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{broker.registry_address}", timeout=60) as client:
        yield client


@pytest.fixture
def registry(client: httpx.Client, topic: str) -> Registry:
    """The registry, and a subject of the test's own."""
    return Registry(client, f"{topic}-value")
