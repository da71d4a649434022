"""The whole of it in a real Spark: found by name, batch and stream, read and written."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from alpacamq.client.connect import parse_addresses
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.records import Header
from tests.broker_cluster import make_broker
from tests.brokers import Broker

from .driving import HAS_ADMISSION_CONTROL
from .topics import by_partition, deliveries, make_topic, produce, values


def load(spark: SparkSession, broker: Broker, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
    for name, value in {"subscribe": topic, "includeHeaders": "true", **options}.items():
        reader = reader.option(name, value)
    return reader.load()


def save(frame: DataFrame, broker: Broker, **options: str) -> None:
    writer = frame.write.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.mode("append").save()


def test_columns_are_those_of_sparks_kafka_source(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce(topic, b"v", b"k", timestamp=1_700_000_000_123, headers=[("h", b"1"), ("h", None)])
    producer.produce(topic, None, None, timestamp=1_700_000_000_124)
    assert producer.flush(30) == 0
    frame = load(spark, broker, topic)
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


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_a_frame_that_is_filtered_several_times_gives_the_rows_of_each_filter(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, pushdown: str
) -> None:
    """Spark 4.1 to 4.3 confuses the filters that it pushes down for one frame."""
    make_topic(cluster, topic)
    producer = Producer({"bootstrap.servers": broker.address})
    for partition in (0, 1):
        for n in range(5):
            producer.produce(topic, f"{partition}.{n}", partition=partition, timestamp=1000 * (n + 1))
    assert producer.flush(30) == 0
    since = col("timestamp") >= lit(datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        frame = load(spark, broker, topic)
        first = frame.where(since & (col("partition") == 0) & (col("offset") != 3)).select("value")
        second = frame.where((col("topic") == topic) & (col("partition") == 1)).select("value")
        both = sorted(row.value for row in first.unionAll(second).collect())
        assert both == [b"0.2", b"0.4", *(b"1.%d" % n for n in range(5))]
        pairs = (
            frame.where("partition = 0").alias("a").join(frame.where("partition = 1").alias("b"), "offset")
        )
        joined = pairs.selectExpr("a.value", "b.value").collect()
        assert sorted(map(tuple, joined)) == [(b"0.%d" % n, b"1.%d" % n) for n in range(5)]
        assert [first.count(), frame.count(), second.count()] == [2, 10, 5]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_errors_reach_the_user_in_words(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    with pytest.raises(PySparkException, match=f"there is no topic '{topic}s'; did you mean '{topic}'"):
        load(spark, broker, f"{topic}s").count()
    with pytest.raises(PySparkException, match="unknown option 'subscibe'; did you mean subscribe"):
        spark.read.format("alpacamq").option("subscibe", topic).load()
    with pytest.raises(PySparkException, match="unknown column 'vlue'; did you mean 'value'"):
        save(spark.sql("SELECT 'x' vlue"), broker, topic=topic)


def test_rows_are_written_as_their_columns_say_and_once(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=3)
    frame = spark.range(1000).selectExpr(
        "CAST(id AS STRING) key",
        "'v' value",
        f"'{topic}' topic",
        "TIMESTAMP_MILLIS(id) timestamp",
        "array(struct('h' AS key, CAST('1' AS BINARY) AS value)) headers",
        "TIMESTAMP_MILLIS(1800000000000) deliver_at",
        "'high' priority",
    )
    for _ in range(2):
        save(frame, broker, transactionalId=f"job-of-{topic}", batchId="1")
    found = [each.record for each in deliveries(cluster, topic)]
    assert sorted((int(record.key or b""), record.timestamp_ms) for record in found) == [
        (n, n) for n in range(1000)
    ]
    assert {record.headers for record in found} == {
        (Header("h", b"1"), Header("alpacamq-lane", b"high"), Header("alpacamq-deliver-at", b"1800000000000"))
    }
    for partition, keys in by_partition(cluster, topic).items():
        assert all(key is not None and partition_for_key(key, 3) == partition for key in keys)


def test_tasks_that_write_first_to_a_topic_create_it_together(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every task finds that there is no topic, and asks for it."""
    creating = make_broker(tmp_path_factory.mktemp("creating") / "data", 1)
    try:
        creating.start()
        frame = spark.range(0, 400, 1, 8).selectExpr(
            "CAST(id AS STRING) value", "concat('new-', id % 5) topic"
        )
        save(frame, creating)
        with Cluster(*parse_addresses(creating.address)) as cluster:
            found = [values(cluster, f"new-{n}") for n in range(5)]
        assert found == [sorted(str(each) for each in range(n, 400, 5)) for n in range(5)]
    finally:
        creating.end()


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


def test_a_stream_goes_to_a_topic_and_to_files_exactly_once_across_restarts(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic)
    make_topic(cluster, f"{topic}-sink")
    for run in range(2):
        produce(broker, topic, [f"{run}.{n}" for n in range(50)], partition=run)
        reader = spark.readStream.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        frame = reader.option("maxOffsetsPerTrigger", "30").load()
        texts = frame.selectExpr("CAST(value AS STRING) value")
        to_topic = texts.writeStream.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
        to_topic = to_topic.option("topic", f"{topic}-sink").option("checkpointLocation", str(tmp_path / "a"))
        to_files = texts.writeStream.format("parquet").option("path", str(tmp_path / "files"))
        to_files = to_files.option("checkpointLocation", str(tmp_path / "b"))
        queries = [writer.trigger(availableNow=True).start() for writer in (to_topic, to_files)]
        assert all(query.awaitTermination(120) for query in queries)
        if HAS_ADMISSION_CONTROL:
            assert [progress["numInputRows"] for progress in queries[0].recentProgress][:2] == [30, 20]
    expected = sorted(f"{run}.{n}" for run in range(2) for n in range(50))
    assert values(cluster, f"{topic}-sink") == expected
    assert sorted(row.value for row in spark.read.parquet(str(tmp_path / "files")).collect()) == expected
