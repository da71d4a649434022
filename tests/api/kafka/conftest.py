"""A broker for the tests of exact answers, and connections to it."""

from collections.abc import Iterator

import pytest

from alpacamq.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.brokers import KEPT, Broker

from .wire import Wire, wired

PARTITIONS = 2


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker") / "data", config=KEPT)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with wired(broker.host_and_port) as wire:
        yield wire


@pytest.fixture
def made(wire: Wire, topic: str) -> str:
    """A topic of the test's own, made."""
    new = CreatableTopic(name=topic, num_partitions=PARTITIONS, replication_factor=1)
    (result,) = wire.ask(CreateTopicsRequest(topics=[new])).topics
    assert result.error_code == 0
    return topic
