"""What these clients write is read by confluent-kafka, and the other way round."""

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition

from alpacamq.client.aio.cluster import Cluster
from alpacamq.client.aio.consumer import Consumer
from alpacamq.client.aio.producer import Producer, ProducerSettings
from alpacamq.client.aio.reader import Reader
from alpacamq.model.batch import Codec
from alpacamq.model.records import Header
from tests.brokers import Broker

DEADLINE_S = 30.0
COUNT = 500
CODECS = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())

# Key, value and headers of a record.
Content = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def contents() -> list[Content]:
    """Return records of all kinds, which compress well."""
    plain: list[Content] = [(b"key %d" % number, b"value %d" % number, []) for number in range(COUNT)]
    return [
        *plain,
        (None, b"no key", []),
        (b"tombstone", None, []),
        (b"", b"", [("empty", b""), ("none", None), ("größer", "ä".encode())]),
        (b"large", bytes(100_000), []),
    ]


@CODECS
async def test_confluent_kafka_reads_what_we_write(
    cluster: Cluster, broker: Broker, topic: str, codec: Codec
) -> None:
    async with Producer(cluster, ProducerSettings(compression=codec)) as producer:
        for number, (key, value, headers) in enumerate(contents()):
            await producer.put(
                topic,
                value,
                key=key,
                headers=[Header(*each) for each in headers],
                partition=0,
                timestamp_ms=1_700_000_000_000 + number,
            )
    consumer = ConfluentConsumer(
        {"bootstrap.servers": broker.address, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    found: list[Content] = []
    try:
        for number in range(len(contents())):
            message = consumer.poll(DEADLINE_S)
            assert message is not None
            assert not message.error()
            assert message.offset() == number
            assert message.timestamp()[1] == 1_700_000_000_000 + number
            found.append((message.key(), message.value(), message.headers() or []))
    finally:
        consumer.close()
    assert found == contents()


@CODECS
async def test_we_read_what_confluent_kafka_writes(
    cluster: Cluster, broker: Broker, topic: str, codec: Codec
) -> None:
    producer = ConfluentProducer(
        {"bootstrap.servers": broker.address, "compression.type": codec.name.lower(), "linger.ms": 50}
    )
    for number, (key, value, headers) in enumerate(contents()):
        producer.produce(topic, value, key, 0, headers=headers or None, timestamp=1_700_000_000_000 + number)
    assert producer.flush(DEADLINE_S) == 0
    async with Reader(cluster, topic, until="now") as reader:
        records = [record async for record in reader]
    assert [record.timestamp_ms - 1_700_000_000_000 for record in records] == list(range(len(records)))
    found = [(record.key, record.value, [tuple(each) for each in record.headers]) for record in records]
    assert found == contents()


async def test_keys_go_to_the_partitions_that_confluent_kafka_chooses(
    cluster: Cluster, broker: Broker, topic: str
) -> None:
    chosen: dict[bytes, int] = {}
    producer = ConfluentProducer({"bootstrap.servers": broker.address, "partitioner": "murmur2_random"})
    for number in range(100):
        producer.produce(
            topic, b"", b"%d" % number, on_delivery=lambda _, m: chosen.update({m.key(): m.partition()})
        )
    assert producer.flush(DEADLINE_S) == 0
    async with Producer(cluster) as ours:
        for key, partition in chosen.items():
            assert (await (await ours.put(topic, b"", key=key))).partition == partition


async def test_a_group_is_shared_with_confluent_kafka(cluster: Cluster, broker: Broker, topic: str) -> None:
    """Offsets that one member has committed count for the other."""
    async with Producer(cluster) as producer:
        for number in range(10):
            await producer.put(topic, b"%d" % number, partition=0)
    async with Consumer(cluster, topic, topics=[topic]) as ours:
        for _ in range(4):
            await anext(ours)
        await ours.commit()
    theirs = ConfluentConsumer(
        {"bootstrap.servers": broker.address, "group.id": topic, "group.protocol": "consumer"}
    )
    theirs.subscribe([topic])
    try:
        message = theirs.poll(DEADLINE_S)
        assert message is not None
        assert message.value() == b"4"
        theirs.commit(message, asynchronous=False)
    finally:
        theirs.close()
    async with Consumer(cluster, topic, topics=[topic]) as ours:
        assert (await anext(ours)).value == b"5"
