"""Pipelines that end in their first batch repeat that batch, wherever the log begins or ends by then."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.topics import add_topic_partitions
from alpacamq_spark.pipelines import Pipeline, read_archive
from alpacamq_spark.pipelines.checkpoint import Checkpoint
from alpacamq_spark.pipelines.errors import PipelineFailed

from .pipeline_files import Sent, Workshop, send
from .test_data_loss import delete_records
from .topics import make_topic, values

ARCHIVE = """
kind = "archive"

[source]
topics = ["{topic}"]
start = "{start}"
on_data_loss = "{loss}"

[sink]
path = "archive"
"""
TRANSFORM = """
kind = "transform"
sql = "SELECT value FROM orders"

[sources.orders]
topic = "{topic}"
format = "text"
start = "latest"

[sink]
topic = "{topic}-copy"
"""


def archive(workshop: Workshop, topic: str, start: str, loss: str = "fail") -> Pipeline:
    return workshop.pipeline(ARCHIVE.format(topic=topic, start=start, loss=loss))


def sent(first: int, last: int) -> list[Sent]:
    return [Sent(value=str(number)) for number in range(first, last)]


def archived(workshop: Workshop, spark: SparkSession) -> Counter[int]:
    rows = read_archive(spark, str(workshop.directory / "archive")).select("value").collect()
    return Counter(int(bytes(row.value)) for row in rows)


def begun(pipeline: Pipeline) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = json.loads(
        (Path(pipeline.checkpoint_place) / "begin.json").read_text()
    )
    return found


def forget_completion(pipeline: Pipeline) -> None:
    """Leave what a driver leaves that was killed after its first batch and before Spark noted that."""
    shutil.rmtree(Path(pipeline.checkpoint_place) / "stream" / "commits")


def test_records_that_are_deleted_before_the_first_batch_is_repeated_are_missed(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession
) -> None:
    make_topic(cluster, topic, partitions=1)
    send(workshop.broker, topic, sent(0, 100))
    pipeline = archive(workshop, topic, "earliest")
    workshop.run(pipeline)
    assert begun(pipeline) == {"stream": {topic: {"0": 0}}}
    forget_completion(pipeline)
    # The driver was killed before any of it was in the archive.
    [segment] = (workshop.directory / "archive").glob("batches=*")
    segment.rename(workshop.directory / "segment")
    delete_records(workshop.broker, topic, before=40)
    with pytest.raises(PipelineFailed, match=f"the records 0 to 39 of {topic}-0 are gone"):
        workshop.run(pipeline)
    # As before, but the archive has them.
    shutil.rmtree(segment, ignore_errors=True)
    (workshop.directory / "segment").rename(segment)
    with pytest.raises(PipelineFailed, match=f"the records 0 to 39 of {topic}-0 are gone"):
        workshop.run(pipeline)
    assert archived(workshop, spark) == Counter(range(100))
    send(workshop.broker, topic, sent(100, 110))
    workshop.run(archive(workshop, topic, "earliest", "skip"))
    assert archived(workshop, spark) == Counter(range(110))


def test_a_first_batch_that_started_at_the_end_is_repeated(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession
) -> None:
    make_topic(cluster, topic, partitions=1)
    send(workshop.broker, topic, sent(0, 5))
    pipeline = archive(workshop, topic, "latest")
    workshop.run(pipeline)
    # A batch without records is repeated like any other.
    forget_completion(pipeline)
    workshop.run(pipeline)
    # As if the driver had been killed before it planned a batch.
    stream = Path(pipeline.checkpoint_place) / "stream"
    shutil.rmtree(stream)
    shutil.rmtree(workshop.directory / "archive")
    send(workshop.broker, topic, sent(5, 10))
    add_topic_partitions(cluster, topic, 2)
    send(workshop.broker, topic, [Sent(value="10", partition=1)])
    workshop.run(pipeline)
    assert begun(pipeline) == {"stream": {topic: {"0": 5, "1": 0}}}
    assert archived(workshop, spark) == Counter(range(5, 11))
    # And again, with the batch planned and not written.
    forget_completion(pipeline)
    shutil.rmtree(next((workshop.directory / "archive").glob("batches=*")))
    send(workshop.broker, topic, sent(11, 13))
    workshop.run(pipeline)
    assert archived(workshop, spark) == Counter(range(5, 13))


def test_queries_begin_each_table_where_it_was_first_read(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    make_topic(cluster, f"{topic}-copy", partitions=1)
    send(workshop.broker, topic, sent(0, 3))
    pipeline = workshop.pipeline(TRANSFORM.format(topic=topic))
    workshop.run(pipeline)
    assert begun(pipeline) == {"orders": {topic: {"0": 3}}}
    shutil.rmtree(Path(pipeline.checkpoint_place) / "stream")
    send(workshop.broker, topic, sent(3, 5))
    workshop.run(pipeline)
    assert values(cluster, f"{topic}-copy") == ["3", "4"]


def test_a_checkpoint_that_has_batches_continues_without_stored_offsets(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession
) -> None:
    """As all that were begun by an earlier version."""
    make_topic(cluster, topic, partitions=1)
    send(workshop.broker, topic, sent(0, 5))
    pipeline = archive(workshop, topic, "earliest")
    workshop.run(pipeline)
    stored = Path(pipeline.checkpoint_place) / "begin.json"
    stored.unlink()
    delete_records(workshop.broker, topic, before=5)
    send(workshop.broker, topic, sent(5, 8))
    workshop.run(pipeline)
    assert archived(workshop, spark) == Counter(range(8))
    assert not stored.exists()
    assert Checkpoint(pipeline.checkpoint_place).position() is not None
