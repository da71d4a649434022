"""Two thousand partitions on one node: served and restarted, with little memory and few descriptors."""

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer, TopicPartition

from tests.brokers import Broker
from tests.compat.confluent import Confluent
from tests.conftest import NewBroker
from tests.waiting import eventually

from .traffic import consumer_of

TOPICS = 20
PARTITIONS = 100
MAX_RESIDENT_BYTES = 300 << 20
MAX_OPEN_FILES = 1000

CONFIG = "[log]\nopen_files = 500\n"


def test_two_thousand_partitions_are_served_in_little_memory(new_broker: NewBroker) -> None:
    broker = new_broker(config=CONFIG).start()
    client = Confluent(broker.address)
    places = []
    for number in range(TOPICS):
        client.create_topic(f"topic-{number}", partitions=PARTITIONS)
        places += [(f"topic-{number}", partition) for partition in range(PARTITIONS)]

    write_to_each(broker.address, places, b"before")
    assert read_from_each(broker.address, places, 0) == dict.fromkeys(places, b"before")
    assert_cheap(broker)

    broker.stop()
    broker.start()

    write_to_each(broker.address, places, b"after")
    assert read_from_each(broker.address, places, 0) == dict.fromkeys(places, b"before")
    assert read_from_each(broker.address, places, 1) == dict.fromkeys(places, b"after")
    assert_cheap(broker)

    broker.kill()
    broker.start()

    assert read_from_each(broker.address, places, 1) == dict.fromkeys(places, b"after")
    assert_cheap(broker)


def assert_cheap(broker: Broker) -> None:
    assert broker.resident_bytes < MAX_RESIDENT_BYTES
    # Files that are being sent from stay open until the response is sent.
    eventually(lambda: broker.open_files < MAX_OPEN_FILES, what="descriptors are closed")


def write_to_each(address: str, places: Sequence[tuple[str, int]], value: bytes) -> None:
    failures: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": address,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(error),
        }
    )
    for topic, partition in places:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(60) == 0
    assert not failures, failures[:3]


def read_from_each(
    address: str, places: Sequence[tuple[str, int]], offset: int
) -> dict[tuple[str, int], bytes]:
    """Return the record at `offset` of every partition."""
    found: dict[tuple[str, int], bytes] = {}
    with consumer_of(address) as consumer:
        consumer.assign([TopicPartition(topic, partition, offset) for topic, partition in places])

        def read_more() -> bool:
            for message in consumer.consume(5000, 0.2):
                assert message.error() is None, message.error()
                if message.offset() == offset:
                    found[message.topic(), message.partition()] = message.value()
            return len(found) == len(places)

        eventually(read_more, what=f"{len(places)} partitions are read", within_s=60)
    return found
