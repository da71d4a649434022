"""A batch read brings exactly what was produced: compared by checksum, with all that topics can hold."""

import zlib
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import extents
from alpacamq.client.kafka.topics import find_topic
from tests.brokers import Broker
from tests.waiting import eventually

from .topics import deliveries, make_topic

if TYPE_CHECKING:
    from collections.abc import Callable

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADERS: list[list[tuple[str, bytes | None]]] = [[], [("trace", b"00-aa"), ("n", b"")], [("empty", None)]]
ABORTED_EVERY = 5000


@dataclass
class Sum:
    """Return a checksum of many records that does not depend on their order."""

    count: int = 0
    crcs: int = 0
    squares: int = 0

    def add(self, text: bytes) -> None:
        crc = zlib.crc32(text)
        self.count += 1
        self.crcs += crc
        self.squares += (crc % 65_521) ** 2


def text(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> bytes:
    """A record as one text; the same as Spark makes below."""
    named = ",".join(f"{name}={(value or b'').hex().upper()}" for name, value in headers)
    return b"|".join((key or b"-", value or b"-", named.encode()))


def sum_of(frame: DataFrame) -> Sum:
    headers = "array_join(transform(headers, h -> concat(h.key, '=', coalesce(hex(h.value), ''))), ',')"
    parts = ["coalesce(CAST(key AS STRING), '-')", "coalesce(CAST(value AS STRING), '-')"]
    crc = f"crc32(CAST(concat_ws('|', {', '.join(parts)}, coalesce({headers}, '')) AS BINARY))"
    row = frame.selectExpr("count(*)", f"sum({crc})", f"sum(pow({crc} % 65521, 2))").first()
    return Sum(row[0], row[1] or 0, int(row[2] or 0))


def load(spark: SparkSession, broker: Broker, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
    reader = reader.option("subscribe", topic).option("includeHeaders", "true")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def fill(broker: Broker, topic: str, count: int) -> Sum:
    """Records of every codec in one topic, four in five of one key, with aborted transactions between."""
    random = Random(count)
    total = Sum()
    per_codec = count // len(CODECS)
    doomed = Producer({"bootstrap.servers": broker.address, "transactional.id": f"doomed-{topic}"})
    doomed.init_transactions(30)
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "compression.type": codec,
                "linger.ms": 20,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1_000_000,
            }
        )
        for n in range(per_codec):
            kind = n % 10
            key = None if kind == 9 else b"hot" if kind < 8 else b"key-%d" % random.randrange(10_000)
            value = None if n % 997 == 0 else b"%s %d %s" % (codec.encode(), n, b"x" * (n % 120))
            headers = HEADERS[n % 3]
            producer.produce(topic, value, key, headers=headers)
            total.add(text(key, value, headers))
            if n % 5000 == 0:
                producer.flush(60)
            if n % ABORTED_EVERY == 0:
                abort(doomed, topic)
        assert producer.flush(120) == 0
    return total


def abort(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    for n in range(50):
        producer.produce(topic, f"aborted {n}", f"{n}")
    producer.flush(30)
    producer.abort_transaction(30)


@pytest.mark.parametrize(
    "count", [pytest.param(5_000_000, marks=pytest.mark.heavy, id="5M"), pytest.param(200_000, id="200k")]
)
def test_a_read_equals_what_was_produced(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, count: int
) -> None:
    make_topic(cluster, topic, partitions=4)
    produced = fill(broker, topic, count)
    assert produced.count == count
    assert sum_of(load(spark, broker, topic)) == produced
    # Split in the middle of batches and of transactions.
    assert sum_of(load(spark, broker, topic, minPartitions="13")) == produced


def test_a_read_of_a_compacted_topic_returns_the_remaining_records(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(
        cluster,
        topic,
        partitions=1,
        cleanup_policy="compact",
        segment_bytes="65536",
        min_cleanable_dirty_ratio="0.01",
    )
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "compression.type": "lz4"})
    last: dict[bytes, bytes] = {}
    for n in range(20_000):
        key, value = b"%d" % (n % 700), b"%d %s" % (n, b"y" * 40)
        producer.produce(topic, value, key)
        last[key] = value
        if n % 500 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0
    [place] = find_topic(cluster, topic).all_partitions()
    is_cleaned: Callable[[], bool] = lambda: len(deliveries(cluster, topic)) < 15_000  # noqa: E731
    eventually(is_cleaned, within_s=60)
    frame = load(spark, broker, topic)
    found = Sum()
    while found.count == 0 or found != sum_of(frame):  # cleaning may go on meanwhile
        found = Sum()
        for _, record in deliveries(cluster, topic):
            found.add(text(record.key, record.value, [(each.key, each.value) for each in record.headers]))
    assert found.count < extents(cluster, [place])[place].end
    newest = frame.selectExpr(
        "key", "value", "row_number() OVER (PARTITION BY key ORDER BY offset DESC) AS rank"
    )
    rows = newest.where("rank = 1").collect()
    assert {bytes(row.key): bytes(row.value) for row in rows} == last
