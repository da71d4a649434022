"""Topics for Spark tests, filled and read without Spark."""

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from operator import itemgetter

from confluent_kafka import Producer

from alpacamq.client.fetched import fetched_batches
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import Extent, Isolation, extents
from alpacamq.client.kafka.reader import Delivery, Reader
from alpacamq.client.kafka.topics import create_topic, find_topic
from alpacamq.model.batch import Codec
from alpacamq.model.ids import TopicPartition
from tests.brokers import Broker
from tests.waiting import eventually


def make_topic(cluster: Cluster, name: str, partitions: int = 2, **settings: str) -> str:
    """Create a topic that accepts records of any age; settings with underscores for dots."""
    named = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in settings.items()}}
    create_topic(cluster, name, partitions=partitions, replicas=-1, settings=named)
    return name


def produce(
    broker: Broker, topic: str, values: Iterable[str], partition: int = 0, **settings: object
) -> None:
    """Write values to one partition with a client that is not ours."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 50, **settings})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def settled_extents(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Extent]:
    """Return start and end of partitions once no transaction is open in them.

    The markers of a transaction that was ended may still be on their way to the leaders of its partitions.
    """

    def settled() -> dict[TopicPartition, Extent] | None:
        committed = extents(cluster, partitions, Isolation.COMMITTED)
        return committed if committed == extents(cluster, partitions) else None

    return eventually(settled, what="the end of every transaction") or {}


def deliveries(cluster: Cluster, topic: str) -> list[Delivery]:
    """Everything that a reader of committed records sees; fails if a transaction stays open."""
    partitions = find_topic(cluster, topic).all_partitions()
    ends = settled_extents(cluster, partitions)
    reader = Reader(cluster, {each: ends[each].start for each in partitions}, Isolation.COMMITTED)
    found: list[Delivery] = []
    while any(reader.positions[each] < ends[each].end for each in partitions):
        found += reader.read()
    return found


def values(cluster: Cluster, topic: str) -> list[str]:
    """The values of a topic, sorted."""
    return sorted((each.record.value or b"").decode() for each in deliveries(cluster, topic))


def codecs(cluster: Cluster, topic: str) -> set[Codec]:
    """The compression of the stored batches of records, of one fetch."""
    partitions = find_topic(cluster, topic).all_partitions()
    starts = {each: extent.start for each, extent in settled_extents(cluster, partitions).items()}
    fetched = Reader(cluster, starts, Isolation.COMMITTED)._fetch(0)
    headers = [
        header
        for _, data in fetched
        for header, _, _ in fetched_batches(memoryview(data.records or b""), data.aborted_transactions)
    ]
    return {header.codec for header in headers if not header.is_control}


def by_partition(cluster: Cluster, topic: str) -> Mapping[int, list[bytes | None]]:
    """Keys by the partition they are in."""
    found = sorted((each.partition.partition, each.record.key) for each in deliveries(cluster, topic))
    return {number: [key for _, key in those] for number, those in groupby(found, itemgetter(0))}
