"""Records that were deleted before they were read: named, or skipped, but never returned."""

import re
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from alpacamq.client.kafka.cluster import Cluster
from tests.brokers import Broker

from .test_spark import load
from .topics import make_topic, produce


def delete_records(broker: Broker, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    [deleted] = admin.delete_records([Place(topic, 0, before)]).values()
    assert deleted.result(30).low_watermark == before


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def archive(spark: SparkSession, broker: Broker, topic: str, directory: Path, fail: str) -> list[int]:
    """Stream what is new into files; return the offsets of all that they hold."""
    reader = spark.readStream.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    writer = reader.option("failOnDataLoss", fail).load().select("offset").writeStream.format("parquet")
    writer = writer.option("path", str(directory / "files"))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    return offsets(spark.read.parquet(str(directory / "files")))


def test_a_stream_never_returns_records_that_were_deleted_before_it_reached_them(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Deleted records stay in a batch of which later records are left."""
    make_topic(cluster, topic, partitions=1)
    one_batch = {"linger.ms": 1000}
    produce(broker, topic, [f"{n}" for n in range(100)], **one_batch)
    assert archive(spark, broker, topic, tmp_path, "true") == [*range(100)]
    produce(broker, topic, [f"{n}" for n in range(100, 1000)], **one_batch)
    delete_records(broker, topic, before=600)
    lost = re.escape(f"the records 100 to 599 of {topic}-0 are gone")
    with pytest.raises(StreamingQueryException, match=lost):
        archive(spark, broker, topic, tmp_path, "true")
    assert archive(spark, broker, topic, tmp_path, "false") == [*range(100), *range(600, 1000)]


def test_a_frame_never_returns_records_that_were_deleted_after_it_was_planned(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    produce(broker, topic, [f"{n}" for n in range(1000)], **{"linger.ms": 1000})
    frame = load(spark, broker, topic, failOnDataLoss="false")
    assert frame.count() == 1000
    delete_records(broker, topic, before=600)
    assert offsets(frame) == [*range(600, 1000)]
    from_start = load(
        spark, broker, topic, startingOffsets=f'{{"{topic}":{{"0":0}}}}', failOnDataLoss="false"
    )
    assert offsets(from_start) == [*range(600, 1000)]
