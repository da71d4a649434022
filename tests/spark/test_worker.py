"""What a Python worker of Spark keeps from one task to the next."""

import gc
from collections.abc import Iterator

import pytest

from alpacamq.client.connect import parse_addresses
from alpacamq.client.kafka.connection import Connection
from alpacamq_spark import worker
from tests.brokers import Broker


@pytest.fixture
def collector() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
def test_garbage_collections_skip_what_is_loaded() -> None:
    worker.skip_modules_in_collections()
    frozen = gc.get_freeze_count()
    assert frozen > 10 * len(gc.get_objects())


@pytest.mark.usefixtures("collector")
def test_what_a_task_leaves_is_still_collected() -> None:
    worker.skip_modules_in_collections()
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    worker.skip_modules_in_collections()
    assert gc.collect() >= 1


def test_the_next_task_uses_the_connections_of_the_last(broker: Broker) -> None:
    servers = parse_addresses(broker.address)
    with worker.connected(servers, None, None) as cluster:
        connection = cluster.any_broker()
    with worker.connected(servers, None, None) as cluster:
        assert cluster.any_broker() is connection


def test_two_tasks_at_once_use_connections_of_their_own(broker: Broker) -> None:
    servers = parse_addresses(broker.address)
    with worker.connected(servers, None, None) as one, worker.connected(servers, None, None) as other:
        assert one.any_broker() is not other.any_broker()


def test_a_failed_task_leaves_no_connection(broker: Broker) -> None:
    """A response to one of its requests may still arrive."""

    def fail() -> None:
        with worker.connected(parse_addresses(broker.address), None, None) as cluster:
            connections.append(cluster.any_broker())
            raise RuntimeError

    connections: list[Connection] = []
    with pytest.raises(RuntimeError):
        fail()
    assert not connections[0].is_open
