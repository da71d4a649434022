"""A broker without free file descriptors refuses clients; writes continue or resume by themselves."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import psutil
import pytest

from alpacamq.model.records import Record, write_batch
from tests.brokers import Broker
from tests.conftest import NewBroker

from .raw import connected, produce_request

LIMIT = 256
STORAGE_ERROR = 56
FLUSHED = {"flush.messages": "1", "segment.bytes": "1024"}


def create(broker: Broker, topic: str) -> None:
    answer = httpx.post(
        f"http://{broker.http_address}/topics", json={"name": topic, "partitions": 1, "settings": FLUSHED}
    )
    assert answer.status_code == 201, answer.text


def batch() -> bytearray:
    return write_batch([Record(0, 1000, None, b"x" * 600)])


def test_connections_leave_the_log_the_descriptors_it_needs(new_broker: NewBroker, topic: str) -> None:
    broker = new_broker("low", open_files_limit=LIMIT).start()
    assert broker.errors.has("the limit of 256 open files is too low", within_s=20)
    create(broker, topic)
    addresses = [tuple(each.split(":")) for each in (broker.kafka, broker.http_address, broker.sqs_address)]
    with ExitStack() as stack:
        producer = stack.enter_context(connected(broker.host_and_port))
        for _ in range(LIMIT):
            for host, port in addresses:
                stack.enter_context(socket.create_connection((host, int(port)), timeout=20))

        for number in range(100):  # each but the first in its own segment
            assert producer.produce(topic, batch()) == (0, number)

        assert broker.open_files < LIMIT
    lines = broker.errors.text()
    assert "flush_failed" not in lines
    assert "writes_refused" not in lines
    broker.stop()


@pytest.fixture
def broker(new_broker: NewBroker) -> Broker:
    return new_broker().start()


@contextmanager
def without_descriptors(broker: Broker) -> Iterator[None]:
    """Leave the broker without free descriptors for the duration of the block."""
    process = psutil.Process(broker.process.pid)
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_NOFILE, before)


def test_a_flush_without_a_descriptor_is_retried(broker: Broker, topic: str) -> None:
    create(broker, topic)  # the first flush syncs the directory
    with connected(broker.host_and_port) as producer:
        assert producer.api_versions()
        with without_descriptors(broker):
            producer.send(produce_request(topic, batch()))
            broker.errors.wait_for("flush_postponed", within_s=20)

        assert producer.produced(topic) == (0, 0)
        assert producer.produce(topic, batch()) == (0, 1)
    assert "flush_failed" not in broker.errors.text()
    broker.stop()


def test_writes_are_refused_without_descriptors_and_resume_by_themselves(broker: Broker, topic: str) -> None:
    create(broker, topic)
    with connected(broker.host_and_port) as producer:
        assert producer.produce(topic, batch()) == (0, 0)
        with without_descriptors(broker):
            assert producer.produce(topic, batch()).error == STORAGE_ERROR  # a new segment cannot be created

        assert producer.produce(topic, batch()) == (0, 1)
    broker.stop()
