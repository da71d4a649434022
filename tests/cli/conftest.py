"""One broker for all tests of a worker, and the command to try on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from alpacamq.client.kafka.connection import Connection
from alpacamq.protocol.apis import Api
from tests.brokers import Broker

from .command import Command, InProcess

CONFIG = """
[topics]
auto_create = false
"""


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that makes no topic by itself."""
    broker = Broker(tmp_path_factory.mktemp("cli") / "data", config=CONFIG)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def alpacactl(broker: Broker) -> Command:
    return Command(broker.address, broker.http_address)


@pytest.fixture
def ctl(broker: Broker) -> Command:
    return InProcess(broker.address, broker.http_address)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the Kafka requests that commands of this process have sent; to be cleared at will."""
    sent: list[str] = []
    exchange = Connection._exchange

    def counting(connection: Connection, api: Api, version: int, body: bytes) -> memoryview:
        sent.append(api.name)
        return exchange(connection, api, version, body)

    monkeypatch.setattr(Connection, "_exchange", counting)
    return sent


@pytest.fixture(autouse=True)
def no_contexts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the user who runs the tests has chosen to talk to is not what they are about."""
    monkeypatch.setenv("ALPACACTL_CONFIG", str(tmp_path / "alpacactl.toml"))
    monkeypatch.delenv("ALPACAMQ_ADDRESS", raising=False)
