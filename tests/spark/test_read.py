"""Batch reads by a real Spark: options, columns, ranges and filters."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from alpacamq.client.cluster import Cluster
from alpacamq.client.offsets import extents
from alpacamq.client.topics import find_topic
from tests.brokers import Broker
from tests.waiting import eventually

from .topics import make_topic, produce


def load(spark: SparkSession, broker: Broker, **options: Any) -> DataFrame:
    reader = spark.read.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    return reader.load()


def values(frame: DataFrame) -> list[str]:
    return sorted(row.value.decode() for row in frame.select("value").collect())


@pytest.fixture
def filled(broker: Broker, cluster: Cluster, topic: str) -> str:
    """Two partitions with ten and five records, 1,000 ms apart from 1,000 on."""
    make_topic(cluster, topic)
    producer = Producer({"bootstrap.servers": broker.address})
    for partition, count in ((0, 10), (1, 5)):
        for n in range(count):
            producer.produce(topic, f"{partition}.{n}", partition=partition, timestamp=1000 * (n + 1))
    assert producer.flush(30) == 0
    return topic


def test_columns_are_those_of_sparks_kafka_source(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce(topic, b"v", b"k", timestamp=1_700_000_000_123, headers=[("h", b"1"), ("h", None)])
    producer.produce(topic, None, None, timestamp=1_700_000_000_124)
    assert producer.flush(30) == 0
    frame = load(spark, broker, subscribe=topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first, second = (row.asDict(recursive=True) for row in frame.orderBy("offset").collect())
    assert first | {"timestamp": None} == {
        "key": b"k", "value": b"v", "topic": topic, "partition": 0, "offset": 0, "timestamp": None,
        "timestampType": 0, "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }  # fmt: skip
    assert first["timestamp"].astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)


def test_a_schema_with_fewer_columns_reads_only_those(
    spark: SparkSession, broker: Broker, filled: str
) -> None:
    reader = spark.read.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
    frame = reader.option("subscribe", filled).schema("offset bigint, topic string").load()
    assert frame.agg({"offset": "sum"}).first()[0] == 45 + 10
    with pytest.raises(PySparkException, match="column 'offset' is bigint, not int"):
        reader.option("subscribe", filled).schema("offset int").load().count()


def test_a_pattern_and_partitions_by_number_say_what_is_read(
    spark: SparkSession, broker: Broker, filled: str
) -> None:
    assert load(spark, broker, subscribePattern=f"{filled[:-3]}.*").count() == 15
    assert load(spark, broker, assign=json.dumps({filled: [1]})).count() == 5


def test_offsets_and_times_bound_what_is_read(spark: SparkSession, broker: Broker, filled: str) -> None:
    bounds = {"startingOffsets": {filled: {"0": 8, "1": -2}}, "endingOffsets": {filled: {"0": -1, "1": 2}}}
    frame = load(spark, broker, subscribe=filled, **{name: json.dumps(each) for name, each in bounds.items()})
    assert values(frame) == ["0.8", "0.9", "1.0", "1.1"]
    since = load(spark, broker, subscribe=filled, startingTimestamp="3500", endingTimestamp="5000")
    assert values(since) == ["0.3", "1.3"]
    each = {"startingOffsetsByTimestamp": {filled: {"0": 10_000, "1": 6000}}}
    late = {name: json.dumps(times) for name, times in each.items()}
    with pytest.raises(PySparkException, match=f"{filled}-1 has no record of 6000 or later"):
        load(spark, broker, subscribe=filled, **late).count()
    lenient = load(spark, broker, subscribe=filled, startingOffsetsByTimestampStrategy="latest", **late)
    assert values(lenient) == ["0.9"]


def test_big_partitions_are_split(spark: SparkSession, broker: Broker, filled: str) -> None:
    frame = load(spark, broker, subscribe=filled, minPartitions="6")
    assert frame.rdd.getNumPartitions() == 6
    assert frame.count() == 15
    assert load(spark, broker, subscribe=filled, maxRecordsPerPartition="2").rdd.getNumPartitions() == 8


def test_an_empty_topic_has_no_rows(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    assert load(spark, broker, subscribe=make_topic(cluster, topic)).collect() == []


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters_give_the_same_rows_pushed_down_or_not(
    spark: SparkSession, broker: Broker, filled: str, pushdown: str
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        frame = load(spark, broker, subscribe=filled)
        tasks = frame.where(col("partition") == 0).rdd.getNumPartitions()
        assert tasks == (1 if pushdown == "true" else 2)
        assert values(frame.where((col("partition") == 0) & (col("offset") >= 8))) == ["0.8", "0.9"]
        assert values(frame.where(col("topic") == "another")) == []
        assert values(frame.where(col("partition").isin(1, 7) & (col("offset") < 2))) == ["1.0", "1.1"]
        late = lit(datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC))
        assert values(frame.where(col("timestamp") >= late)) == ["0.8", "0.9"]
        early = lit(datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC))
        assert values(frame.where((col("timestamp") < early) & (col("partition") != 1))) == ["0.0"]
        assert values(frame.where(col("timestamp").between(early, early))) == ["0.1", "1.1"]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_topic_that_is_not_there_is_named_with_the_nearest(
    spark: SparkSession, broker: Broker, filled: str
) -> None:
    with pytest.raises(PySparkException, match=f"there is no topic '{filled}s'; did you mean '{filled}'"):
        load(spark, broker, subscribe=f"{filled}s").count()


def test_a_broker_that_is_not_there_is_named(spark: SparkSession) -> None:
    reader = spark.read.format("alpacamq").option("kafka.bootstrap.servers", "127.0.0.1:1")
    with pytest.raises(PySparkException, match=r"no broker answers at 127\.0\.0\.1:1"):
        reader.option("subscribe", "orders").load().count()


def test_a_wrong_option_is_told_when_the_source_is_loaded(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(PySparkException, match="no option is named 'subscibe'; did you mean subscribe"):
        load(spark, broker, subscibe="orders")


def test_records_that_retention_took_are_lost_by_name_or_skipped(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1, segment_bytes="1024", retention_bytes="2048")
    produce(broker, topic, [f"{n:0400}" for n in range(40)], **{"batch.num.messages": 1})
    [place] = find_topic(cluster, topic).all_partitions()
    start = eventually(lambda: extents(cluster, [place])[place].start)
    lost = {"startingOffsets": json.dumps({topic: {"0": 0}})}
    with pytest.raises(PySparkException, match=f"asks for {topic}-0 from 0, but its log begins at [0-9]+"):
        load(spark, broker, subscribe=topic, **lost).count()
    kept = load(spark, broker, subscribe=topic, failOnDataLoss="false", **lost)
    assert 0 < kept.count() <= 40 - start
