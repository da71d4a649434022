"""Finds dead-letter topics and reads what lies in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from alpacamq.client.errors import NotFound
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import Isolation, extents
from alpacamq.client.kafka.topics import Topic, every_topic, topic_settings
from alpacamq.model import headers as names
from alpacamq.model.ids import TopicPartition
from alpacamq_spark.pipelines.archive.table import DATA
from alpacamq_spark.pipelines.definition import DeadLetterSource
from alpacamq_spark.pipelines.run import Run
from alpacamq_spark.pipelines.sources import FORMAT, matching_topics, reach
from alpacamq_spark.pipelines.values import readable
from alpacamq_spark.read.offset_json import assign_option, offsets_option

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

SUFFIX = ".dlq"
_SETTING = "queue.dead.letter.topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """Dead-letter topics, and before which offset each partition ends for this run."""

    topics: Sequence[Topic]
    ends: Mapping[TopicPartition, int]

    def ids(self) -> dict[str, str]:
        return {topic.name: topic.id for topic in self.topics}


def dead_letter_topics(broker: str, source: DeadLetterSource) -> Letters:
    """The dead-letter topics that a pipeline means; NotFound if there is none."""
    with reach(broker) as cluster:
        topics = (
            matching_topics(cluster, source)
            if source.pattern is not None
            else [_dead_letter_topic(cluster, name) for name in source.topics]
        )
        places = [each for topic in topics for each in topic.all_partitions()]
        spans = extents(cluster, places, Isolation.COMMITTED)
    return Letters(topics=topics, ends={place: spans[place].end for place in places})


def _dead_letter_topic(cluster: Cluster, name: str) -> Topic:
    """The dead-letter topic of a topic, or the one that is named itself."""
    every = {topic.name: topic for topic in every_topic(cluster)}
    wanted = name if name.endswith(SUFFIX) else name + SUFFIX
    if name in every and not name.endswith(SUFFIX):
        settings = {setting.name: setting.value for setting in topic_settings(cluster, name)}
        wanted = settings.get(_SETTING) or wanted
    if wanted not in every:
        raise NotFound("dead-letter topic", wanted, [each for each in every if each.endswith(SUFFIX)])
    return every[wanted]  # type: ignore[index]


def letters_frame(
    run: Run, letters: Letters, data: "StructType | None", now_ms: int, spans: Mapping[str, str] | None = None
) -> "DataFrame":
    """Dead letters with what their headers say in columns; `spans` narrows what is read."""
    from pyspark.sql import functions as f

    options = spans or {
        # Not the topics, to which a partition may be added during the run.
        "assign": assign_option(letters.ends),
        "startingOffsets": "earliest",
        "endingOffsets": offsets_option(letters.ends),
    }
    records = run.spark.read.format(FORMAT).options(**run.servers(), includeHeaders="true", **options).load()

    def header(name: str, kind: str = "STRING") -> "Column":
        # The last one counts, as for everyone who reads headers.
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
