"""One SQS API for all tests of a worker, and boto3 clients for both protocols."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import query_model
from .serving import Client, SqsBroker, client, served


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsBroker]:
    with served(tmp_path_factory.mktemp("sqs") / "data") as broker:
        yield broker


@pytest.fixture(scope="session")
def query_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return query_model.write(tmp_path_factory.mktemp("query-model"))


@pytest.fixture(scope="session")
def clients(server: SqsBroker, query_path: Path) -> dict[str, Client]:
    return {"json": client(server.url), "query": client(server.url, data_path=query_path)}


@pytest.fixture(params=["json", "query"])
def sqs(request: pytest.FixtureRequest, clients: dict[str, Client]) -> Client:
    """boto3, in each protocol in turn."""
    return clients[request.param]


@pytest.fixture
def either(clients: dict[str, Client]) -> Client:
    """boto3, where the protocol makes no difference."""
    return clients["json"]


@pytest.fixture
def name(topic: str) -> str:
    """A queue name of the test's own."""
    return topic[-75:].strip("-_")


@pytest.fixture
def queue(either: Client, name: str) -> str:
    """The URL of a standard queue of the test's own."""
    url: str = either.create_queue(QueueName=name)["QueueUrl"]
    return url


@pytest.fixture
def fifo(either: Client, name: str) -> str:
    """The URL of a FIFO queue of the test's own."""
    url: str = either.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    return url
