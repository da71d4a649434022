"""A broker that the tests of the asyncio clients share, and a cluster that must leave nothing behind."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from alpacamq.client.aio.cluster import Cluster
from alpacamq.client.connect import parse_address
from tests.brokers import KEPT, Broker


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("aio") / "data", config=KEPT)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
async def cluster(broker: Broker) -> AsyncIterator[Cluster]:
    """A client of the shared broker; no task is left when it is closed."""
    others = asyncio.all_tasks()
    async with Cluster([parse_address(broker.address)]) as cluster:
        yield cluster
    assert not {task for task in asyncio.all_tasks() - others if not task.done()} - {asyncio.current_task()}


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of this test, which the broker creates with three partitions."""
    module = request.module.__name__.rpartition(".")[2].removeprefix("test_")
    return f"{module}-{request.node.name}".replace("[", "-").replace("]", "")[:200]
