"""Streaming reads by a real Spark: limits, new partitions, progress for operators, lost data."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from alpacamq.client.cluster import Cluster
from alpacamq.client.committed import committed_offsets
from alpacamq.client.offsets import extents
from alpacamq.client.topics import delete_topic, find_topic, widen_topic
from tests.brokers import Broker
from tests.waiting import eventually

from .topics import make_topic, produce

try:
    import alpacamq_spark.admission
except ImportError:
    HAS_ADMISSION_CONTROL = False
else:
    HAS_ADMISSION_CONTROL = alpacamq_spark.admission is not None

needs_admission_control = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="this version of Spark lets no source limit its batches"
)


class Archive:
    """A query from a topic to Parquet files, run to the end of the topic again and again."""

    def __init__(self, spark: SparkSession, broker: Broker, directory: Path, **options: Any) -> None:
        self._spark = spark
        self._files = str(directory / "files")
        self._checkpoint = str(directory / "checkpoint")
        reader = spark.readStream.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
        for name, value in {"startingOffsets": "earliest", **options}.items():
            reader = reader.option(name, value)
        self._frame = reader.load()

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self._frame.selectExpr("CAST(value AS STRING) value", "topic", "partition", "offset")
        writing = writer.writeStream.format("parquet").option("checkpointLocation", self._checkpoint)
        return writing.trigger(**trigger).start(self._files)

    def run(self) -> list[int]:
        """Read everything there is; the rows of each batch."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(60)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def rows(self) -> DataFrame:
        # Spark finds no schema where no batch has been written yet.
        schema = "value string, topic string, partition int, offset bigint"
        return self._spark.read.schema(schema).parquet(self._files)

    def values(self) -> list[str]:
        return sorted(row.value for row in self.rows().collect())


def numbers(*some: int) -> list[str]:
    return [f"{n:04}" for n in some]


@needs_admission_control
def test_batches_are_limited_and_every_partition_moves(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic, partitions=3)
    produce(broker, topic, numbers(*range(100)), partition=0)
    produce(broker, topic, numbers(*range(100, 106)), partition=1)
    produce(broker, topic, numbers(*range(106, 112)), partition=2)
    archive = Archive(spark, broker, tmp_path, subscribe=topic, maxOffsetsPerTrigger="40")
    batches = archive.run()
    assert max(batches) <= 40
    assert archive.values() == numbers(*range(112))
    # The small partitions were through with the first batch, in spite of the big one.
    assert len(batches) == 3


def test_a_query_goes_on_where_it_was_and_finds_new_partitions(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic, partitions=1)
    produce(broker, topic, numbers(1, 2))
    archive = Archive(spark, broker, tmp_path, subscribe=topic, groupId=f"of-{topic}")
    archive.run()
    produce(broker, topic, numbers(3))
    widen_topic(cluster, topic, 2)
    produce(broker, topic, numbers(4), partition=1)
    archive.run()
    assert archive.values() == numbers(1, 2, 3, 4)


def test_partitions_added_while_a_query_runs_are_read_from_their_first_record(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic, partitions=1)
    archive = Archive(spark, broker, tmp_path, subscribePattern=f"{topic}.*", startingOffsets="latest")
    query = archive.start(processingTime="0 seconds")
    try:
        produce(broker, topic, numbers(1))
        eventually(lambda: (tmp_path / "files").exists() and archive.values() == numbers(1), within_s=60)
        widen_topic(cluster, topic, 2)
        make_topic(cluster, f"{topic}-too", partitions=1)
        produce(broker, topic, numbers(2), partition=1)
        produce(broker, f"{topic}-too", numbers(3))
        eventually(lambda: archive.values() == numbers(1, 2, 3), within_s=60)
    finally:
        query.stop()


def test_progress_is_a_groups_so_that_lag_is_seen(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic, partitions=2)
    produce(broker, topic, numbers(1, 2, 3), partition=0)
    produce(broker, topic, numbers(4), partition=1)
    archive = Archive(spark, broker, tmp_path, subscribe=topic, groupId=f"lag-of-{topic}")
    query = archive.start(processingTime="0 seconds")
    first, second = find_topic(cluster, topic).all_partitions()
    try:
        # On Spark before 4.2 the last batch of an idle query is published with the next.
        expected = {first: 3, second: 1}
        if not HAS_ADMISSION_CONTROL:
            eventually(lambda: (tmp_path / "files").exists() and len(archive.values()) == 4, within_s=60)
            produce(broker, topic, numbers(5), partition=0)
        eventually(lambda: committed_offsets(cluster, f"lag-of-{topic}") == expected, within_s=60)
    finally:
        query.stop()


def test_a_group_with_members_is_not_taken_over(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    from confluent_kafka import Consumer

    make_topic(cluster, topic, partitions=1)
    produce(broker, topic, numbers(1))
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": f"taken-{topic}", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.5))
        archive = Archive(spark, broker, tmp_path, subscribe=topic, groupId=f"taken-{topic}")
        with pytest.raises(PySparkException, match="belongs to a consumer group with members"):
            archive.run()
    finally:
        consumer.close()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_retention_that_passed_a_checkpoint_is_named_or_skipped(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path, fail: str
) -> None:
    make_topic(cluster, topic, partitions=1, segment_bytes="1024", retention_bytes="4096")
    produce(broker, topic, numbers(1))
    archive = Archive(spark, broker, tmp_path, subscribe=topic, failOnDataLoss=fail)
    archive.run()
    produce(broker, topic, [f"{n:0400}" for n in range(60)], **{"batch.num.messages": 1})
    [place] = find_topic(cluster, topic).all_partitions()
    eventually(lambda: extents(cluster, [place])[place].start > 1)
    if fail == "true":
        with pytest.raises(PySparkException, match=f"the records 1 to [0-9]+ of {topic}-0 are gone"):
            archive.run()
    else:
        archive.run()
        kept = archive.values()
        assert {numbers(1)[0], f"{59:0400}"} < set(kept)
        assert f"{0:0400}" not in kept


def test_a_topic_that_was_deleted_is_named(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic, partitions=1)
    make_topic(cluster, f"{topic}-too", partitions=1)
    produce(broker, topic, numbers(1))
    archive = Archive(spark, broker, tmp_path, subscribePattern=f"{topic}.*")
    archive.run()
    delete_topic(cluster, topic)
    with pytest.raises(PySparkException, match=f"{topic}-0 was read to 1 and is no more"):
        archive.run()
