"""One broker, or cluster, for all compat tests of a worker, and the clients to test with it."""

from collections.abc import Iterator

import kafka.codec
import pytest

from tests.broker_cluster import make_broker
from tests.brokers import Broker

from . import kcat
from .aio import AioKafka
from .client import Admin, Client
from .confluent import Confluent
from .kafka_python import KafkaPython
from .kcat import Kcat

ADMINS: tuple[type[Admin], ...] = (Confluent, KafkaPython, AioKafka)
CLIENTS: tuple[type[Client], ...] = (*ADMINS, Kcat)

# No member that a test does not kill is to lose its session, however busy the machine.
CONFIG = """
[groups]
session_timeout_ms = 120000

[topics]
auto_create = false

[log]
retention_check_ms = 200
"""


def name_of(kind: type[Client]) -> str:
    return kind.name


def skip_if_unable(kind: type[Client], compression: str = "none") -> None:
    """Skip if this machine lacks the client or a library it needs."""
    if kind is Kcat and not kcat.installed():
        pytest.skip("kcat is not installed")
    if kind is KafkaPython and compression == "snappy" and not kafka.codec.has_snappy():
        pytest.skip("kafka-python needs python-snappy for snappy, which is not installed")


@pytest.fixture(scope="session")
def node_count(request: pytest.FixtureRequest) -> int:
    count: int = request.config.getoption("nodes")
    return count


@pytest.fixture(scope="session")
def broker(node_count: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker without automatic topic creation."""
    broker = make_broker(tmp_path_factory.mktemp("compat") / "data", node_count, config=CONFIG)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture(params=CLIENTS, ids=name_of)
def client(request: pytest.FixtureRequest, broker: Broker) -> Client:
    """Each client in turn."""
    kind: type[Client] = request.param
    skip_if_unable(kind)
    return kind(broker.address)


@pytest.fixture(params=ADMINS, ids=name_of)
def admin(request: pytest.FixtureRequest, broker: Broker) -> Admin:
    """Each client with an admin API in turn."""
    kind: type[Admin] = request.param
    return kind(broker.address)


@pytest.fixture
def confluent(broker: Broker) -> Confluent:
    """The client that prepares the data for the client under test."""
    return Confluent(broker.address)


@pytest.fixture
def kafka_python(broker: Broker) -> KafkaPython:
    return KafkaPython(broker.address)
