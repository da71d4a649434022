"""A broker for the tests of the JSON API, and an HTTP client that knows its address."""

from collections.abc import Iterator

import httpx
import pytest

from tests.brokers import KEPT, Broker

PARTITIONS = 2


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("rest") / "data", config=KEPT)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture(scope="session")
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as client:
        yield client


@pytest.fixture
def made(http: httpx.Client, topic: str) -> str:
    """A topic of the test's own, made."""
    http.post("/topics", json={"name": topic, "partitions": PARTITIONS}).raise_for_status()
    return topic
