"""A broker and clients for the tests of the public client."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from alpacamq import aio
from tests.brokers import KEPT, Broker
from tests.integration.nodes import Nodes, running_nodes


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("client") / "data", config=KEPT)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def url(broker: Broker) -> str:
    return f"alpaca://{broker.grpc_address}"


@pytest.fixture
async def mq(url: str) -> AsyncIterator[aio.Client]:
    """A client; the test fails if it leaves a task behind."""
    before = asyncio.all_tasks()
    async with aio.connect(url) as client:
        yield client
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    root: Path = tmp_path_factory.mktemp("nodes")
    with running_nodes(root) as nodes:
        yield nodes
