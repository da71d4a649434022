"""Finds dead-letter topics and reads their records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from alpacamq.client.errors import NotFound
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import Isolation, extents
from alpacamq.client.kafka.topics import Topic, list_topics, topic_settings
from alpacamq.model import headers as names
from alpacamq.model.dead_letters import SETTING, SUFFIX, dead_letter_topic, is_dead_letter_name
from alpacamq.model.ids import TopicPartition
from alpacamq_spark.pipelines.archive.table import DATA
from alpacamq_spark.pipelines.definition import DeadLetterSource
from alpacamq_spark.pipelines.run import ANYONE, BrokerAccess, PipelineRun
from alpacamq_spark.pipelines.sources import FORMAT, matching_topics, reach
from alpacamq_spark.pipelines.values import readable
from alpacamq_spark.read.positions import assign_option, offsets_option

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """Dead-letter topics, and the end offset of each partition for this run."""

    topics: Sequence[Topic]
    ends: Mapping[TopicPartition, int]

    def ids(self) -> dict[str, str]:
        return {topic.name: topic.id for topic in self.topics}


def dead_letter_topics(broker: str, source: DeadLetterSource, access: BrokerAccess = ANYONE) -> Letters:
    """Return the dead-letter topics of a pipeline. Raises NotFound if there are none."""
    with reach(broker, access) as cluster:
        topics = (
            matching_topics(cluster, source)
            if source.pattern is not None
            else [_dead_letter_topic(cluster, name) for name in source.topics]
        )
        places = [each for topic in topics for each in topic.all_partitions()]
        spans = extents(cluster, places, Isolation.COMMITTED)
    return Letters(topics=topics, ends={place: spans[place].end for place in places})


def _dead_letter_topic(cluster: Cluster, name: str) -> Topic:
    """Return the dead-letter topic of a topic, or the topic itself if it is one."""
    every = {topic.name: topic for topic in list_topics(cluster)}
    configured = ""
    if name in every and not is_dead_letter_name(name):
        settings = {setting.name: setting.value for setting in topic_settings(cluster, name)}
        configured = settings.get(SETTING) or ""
    wanted = dead_letter_topic(name, configured) or name
    if wanted not in every:
        raise NotFound("dead-letter topic", wanted, [each for each in every if is_dead_letter_name(each)])
    return every[wanted]  # type: ignore[index]


def letters_frame(
    run: PipelineRun,
    letters: Letters,
    data: "StructType | None",
    now_ms: int,
    spans: Mapping[str, str] | None = None,
) -> "DataFrame":
    """Read dead letters with their headers as columns; `spans` limits the offsets."""
    from pyspark.sql import functions as f

    options = spans or {
        # By partitions, because one may be added to the topics during the run.
        "assign": assign_option(letters.ends),
        "startingOffsets": "earliest",
        "endingOffsets": offsets_option(letters.ends),
    }
    records = run.spark.read.format(FORMAT).options(**run.servers(), includeHeaders="true", **options).load()

    def header(name: str, kind: str = "STRING") -> "Column":
        # The last header of a name is the one that counts.
        values = f"transform(filter(headers, h -> h.key = '{name}'), h -> h.value)"
        return f.expr(f"try_cast(CAST(try_element_at({values}, -1) AS STRING) AS {kind})")

    dead_lettered_ms = f.coalesce(header(names.DEAD_LETTERED_AT, "BIGINT"), f.unix_millis("timestamp"))
    columns = [
        f.coalesce(header(names.DEAD_LETTER_REASON), f.lit("unknown")).alias("reason"),
        f.coalesce(
            header(names.ORIGIN_TOPIC), f.regexp_extract("topic", rf"^(.+){SUFFIX.replace('.', '[.]')}$", 1)
        ).alias("origin_topic"),
        header(names.ORIGIN_PARTITION, "INT").alias("origin_partition"),
        header(names.ORIGIN_OFFSET, "BIGINT").alias("origin_offset"),
        f.timestamp_millis(header(names.ORIGIN_TIMESTAMP, "BIGINT")).alias("origin_timestamp"),
        header(names.ORIGIN_GROUP).alias("origin_group"),
        header(names.DELIVERY_COUNT, "INT").alias("delivery_count"),
        f.timestamp_millis(dead_lettered_ms).alias("dead_lettered_at"),
        (f.lit(now_ms) - dead_lettered_ms).alias("age_ms"),
        f.col("key").cast("string").alias("key"),
        f.col("value").cast("string").alias("value"),
    ]
    if data is not None:
        columns.append(readable(f.col("value"), data).alias(DATA))
    raw = [f.col("key").alias("_key"), f.col("value").alias("_value"), f.col("headers").alias("_headers")]
    return records.select(*columns, "topic", "partition", "offset", "timestamp", *raw)
