"""Errors of a query say why it failed, wherever in it that happened."""

import json
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.transactions import list_transactions
from tests.brokers import Broker
from tests.waiting import eventually

from .topics import make_topic, produce, values


def copy(spark: SparkSession, broker: Broker, topic: str, checkpoint: Path, **options: str) -> StreamingQuery:
    """Start a query that copies a topic to its sink."""
    reader = spark.readStream.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
    frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
    writer = frame.select("value").writeStream.format("alpacamq").options(**options)
    writer = writer.option("kafka.bootstrap.servers", broker.address).option("topic", f"{topic}-sink")
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="100 milliseconds").start()


def has_written(query: StreamingQuery) -> bool:
    return any(json.loads(each.json)["numInputRows"] for each in query.recentProgress)


def test_a_fenced_query_says_which_other_one_writes_under_its_name(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic, partitions=1)
    make_topic(cluster, f"{topic}-sink", partitions=1)
    produce(broker, topic, ["a"])
    older = copy(spark, broker, topic, tmp_path / "older", transactionalId=topic)
    try:
        eventually(lambda: has_written(older), within_s=60)
        newer = copy(spark, broker, topic, tmp_path / "newer", transactionalId=topic)
        try:
            eventually(lambda: has_written(newer), within_s=60)
        finally:
            newer.stop()
        produce(broker, topic, ["b"])
        eventually(older.exception, within_s=60)
    finally:
        older.stop()
    reason = f"another query or job writes under transactionalId '{topic}'"
    assert reason in str(older.exception())
    assert values(cluster, f"{topic}-sink") == ["a", "a"]
    # Otherwise readers would wait for its transactions until they time out.
    assert [each.id for each in list_transactions(cluster, "Ongoing") if topic in each.id] == []
