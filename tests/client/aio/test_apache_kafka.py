"""The asyncio clients against Apache Kafka, if its jars are here."""

from collections.abc import AsyncIterator, Iterator

import pytest
from benchmarks.apache_kafka import ApacheKafka
from benchmarks.servers import Server, running

from alpacamq.client.aio.cluster import Cluster
from alpacamq.client.aio.consumer import Consumer
from alpacamq.client.aio.producer import Producer
from alpacamq.client.aio.reader import Reader
from alpacamq.client.aio.transactions import TransactionalProducer
from alpacamq.client.connect import parse_address
from alpacamq.client.errors import ClientError, ProducerFenced
from alpacamq.model.ids import TopicName, TopicPartition
from tests.kafka_tools import JARS, require_kafka

COUNT = 1000


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_kafka()
    with running(ApacheKafka(JARS), tmp_path_factory.mktemp("kafka") / "data") as server:
        yield server


@pytest.fixture
async def cluster(kafka: Server) -> AsyncIterator[Cluster]:
    async with Cluster([parse_address(kafka.address)]) as cluster:
        yield cluster


async def test_records_are_written_read_and_consumed_in_a_group(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster) as producer:
        for number in range(COUNT):
            await producer.put(topic, b"%d" % number, key=b"%d" % number)
    async with Reader(cluster, topic, until="now") as reader:
        assert sorted([int(record.value or b"") async for record in reader]) == list(range(COUNT))
    async with Consumer(cluster, topic, topics=[topic]) as consumer:
        found = [int((await anext(consumer)).value or b"") for _ in range(COUNT)]
        assert sorted(found) == list(range(COUNT))
        await consumer.commit()
        assert sum((await consumer.committed(consumer.assignment)).values()) == COUNT  # type: ignore[arg-type]
    async with Consumer(cluster, topic, topics=[topic]) as consumer:
        while not consumer.assignment:
            assert await consumer.take(wait_s=0.2) == []


async def test_transactions_commit_abort_and_fence(cluster: Cluster, topic: str) -> None:
    source, target = f"{topic}-in", f"{topic}-out"
    async with Producer(cluster) as writer:
        for number in range(20):
            await writer.put(source, b"%02d" % number, partition=0)
    place = TopicPartition(TopicName(source), 0)
    async with TransactionalProducer(cluster, topic) as producer:
        for should_commit in (False, True):
            async with Consumer(cluster, topic, topics=[source]) as consumer:
                transaction = producer.transaction()
                for _ in range(10):
                    await transaction.put(target, (await anext(consumer)).value)
                await transaction.send_offsets(consumer)
                await (transaction.commit() if should_commit else transaction.abort())
                assert await consumer.committed([place]) == {place: 10 if should_commit else None}
        stale = producer.transaction()
        await (await stale.put(target, b"zombie"))
        async with TransactionalProducer(cluster, topic):
            with pytest.raises(ClientError) as fenced:
                await stale.commit()
            assert isinstance(fenced.value.__cause__ or fenced.value, ProducerFenced)
    async with Reader(cluster, target, until="now") as reader:
        assert sorted([record.value or b"" async for record in reader]) == [
            b"%02d" % number for number in range(10)
        ]
