"""A million records: written, read back in order, each checked."""

import time

import pytest
from confluent_kafka import Producer, TopicPartition

from tests.compat.confluent import Confluent
from tests.conftest import NewBroker
from tests.sealed import seal, unseal

from .traffic import consumer_of

COUNT = 1_000_000
PARTITIONS = 4
DEADLINE_S = 120


@pytest.mark.heavy
def test_a_million_records_are_read_back_in_order(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    Confluent(broker.address).create_topic("million", partitions=PARTITIONS)
    write_a_million(broker.address)
    broker.stop()
    broker.start()

    following = [0] * PARTITIONS
    deadline = time.monotonic() + DEADLINE_S
    with consumer_of(broker.address) as consumer:
        consumer.assign([TopicPartition("million", partition, 0) for partition in range(PARTITIONS)])
        while sum(following) < COUNT:
            assert time.monotonic() < deadline, f"read to {following}"
            for message in consumer.consume(10_000, 1.0):
                assert message.error() is None, message.error()
                partition = message.partition()
                offset = message.offset()
                assert offset == following[partition]
                assert unseal(message.value()) == offset * PARTITIONS + partition
                following[partition] = offset + 1
    assert following == [COUNT // PARTITIONS] * PARTITIONS


def write_a_million(address: str) -> None:
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 200_000,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(str(error)),
        }
    )
    for number in range(COUNT):
        while True:
            try:
                producer.produce("million", seal(number), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(DEADLINE_S) == 0
    assert not failures, failures[:5]
