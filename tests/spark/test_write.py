"""Writes by a real Spark: rows become records, once."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from alpacamq.client.cluster import Cluster
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.records import Header
from tests.brokers import Broker

from .topics import by_partition, deliveries, make_topic, produce, values


def save(frame: DataFrame, broker: Broker, **options: str) -> None:
    writer = frame.write.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.mode("append").save()


def test_rows_are_written_where_every_client_puts_their_keys(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=3)
    frame = spark.range(1000).selectExpr("CAST(id AS STRING) key", "CAST(id * 7 AS STRING) value")
    save(frame, broker, topic=topic, kafka__compression__type="zstd")
    assert values(cluster, topic) == sorted(str(n * 7) for n in range(1000))
    for partition, keys in by_partition(cluster, topic).items():
        assert all(key is not None and partition_for_key(key, 3) == partition for key in keys)


def test_columns_say_topic_partition_time_headers_delay_and_priority(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=3)
    frame = spark.sql(
        f"""SELECT 'v' value, '{topic}' topic, 2 partition, TIMESTAMP_MILLIS(1700000000123) timestamp,
            array(struct('h' AS key, CAST('1' AS BINARY) AS value)) headers,
            TIMESTAMP_MILLIS(1800000000000) deliver_at, 'high' priority"""
    )
    save(frame, broker)
    [found] = deliveries(cluster, topic)
    assert found.partition.partition == 2
    assert found.record.timestamp_ms == 1_700_000_000_123
    assert found.record.headers == (
        Header("h", b"1"),
        Header("alpacamq-lane", b"high"),
        Header("alpacamq-deliver-at", b"1800000000000"),
    )


def test_what_is_written_can_be_copied_as_it_is_read(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    make_topic(cluster, f"{topic}-copy")
    producer = Producer({"bootstrap.servers": broker.address})
    for n in range(100):
        producer.produce(
            topic, f"{n}", f"{n % 9}", headers={"n": f"{n}"} if n % 2 else None, timestamp=1000 + n
        )
    assert producer.flush(30) == 0
    reader = spark.read.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
    frame = reader.option("subscribe", topic).option("includeHeaders", "true").load()
    save(frame.drop("topic"), broker, topic=f"{topic}-copy")
    copied = sorted((each.partition.partition, each.record) for each in deliveries(cluster, f"{topic}-copy"))
    original = sorted((each.partition.partition, each.record) for each in deliveries(cluster, topic))
    assert [(p, record[1:]) for p, record in copied] == [(p, record[1:]) for p, record in original]


def test_a_job_that_fails_leaves_nothing(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    bad = spark.range(0, 1000, 1, 4).selectExpr(
        "CAST(IF(id = 999, raise_error('no more'), id) AS STRING) value"
    )
    with pytest.raises(PySparkException, match="no more"):
        save(bad, broker, topic=topic)
    save(spark.sql("SELECT 'good' value"), broker, topic=topic)
    assert values(cluster, topic) == ["good"]


def test_a_job_repeated_under_its_number_writes_once(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    for batch in ("1", "1", "2", "1"):
        frame = spark.sql(f"SELECT '{batch}' value")
        save(frame, broker, topic=topic, transactionalId=f"jobs-of-{topic}", batchId=batch)
    assert values(cluster, topic) == ["1", "2"]


def test_a_stream_goes_from_topic_to_topic_exactly_once_across_restarts(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic)
    make_topic(cluster, f"{topic}-sink")
    for batch in range(3):
        produce(broker, topic, [f"{batch}.{n}" for n in range(50)], partition=batch % 2)
        reader = spark.readStream.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
        frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
        writer = frame.selectExpr("upper(CAST(value AS STRING)) value").writeStream.format("alpacamq")
        writer = writer.option("kafka.bootstrap.servers", broker.address).option("topic", f"{topic}-sink")
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
    expected = sorted(f"{batch}.{n}" for batch in range(3) for n in range(50))
    assert values(cluster, f"{topic}-sink") == expected


def test_rows_that_cannot_be_written_are_refused_before_any_is(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    with pytest.raises(PySparkException, match="'vlue' has no meaning for a record; did you mean 'value'"):
        save(spark.sql("SELECT 'x' vlue"), broker, topic=topic)
    with pytest.raises(PySparkException, match="there is no topic 'nowhere'"):
        save(spark.sql("SELECT 'x' value"), broker, topic="nowhere")
    writer = spark.sql("SELECT 'x' value").write.format("alpacamq").mode("overwrite")
    writer = writer.option("kafka.bootstrap.servers", broker.address).option("topic", topic)
    with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
        writer.save()
