"""The tables that topics enable with their settings; needs no Spark."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import extents
from alpacamq.client.kafka.topics import Topic, list_topics, own_settings
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.topics import check_setting
from alpacamq_spark.pipelines.definition import TableSink

ENABLE, NAME, MODE, KEY = SETTINGS = ("table.enable", "table.name", "table.mode", "table.key")
# Names of topics' pipelines begin with this.
TOPIC_PIPELINE = "table-"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTable:
    """A topic, and the table that is kept in step with it."""

    topic: str
    topic_id: str
    partitions: int
    table: str
    mode: str = "append"
    # Columns of the value; empty for the key of the record.
    key: tuple[str, ...] = ()

    @property
    def pipeline(self) -> str:
        """The name under which the table's progress is reported."""
        return f"{TOPIC_PIPELINE}{self.topic}"

    @property
    def sink(self) -> TableSink:
        return TableSink(format="iceberg", table=self.table, mode=self.mode)

    @property
    def checkpoint(self) -> str:
        """The directory of its position: another topic of the same name, or another table, begins anew."""
        told = sha256(f"{self.topic_id} {self.table}".encode()).hexdigest()[:12]
        return f"{_NOT_IN_NAMES.sub('_', self.topic)[:100]}-{told}"


def enabled_tables(cluster: Cluster, namespace: str) -> list[TopicTable]:
    """Return the tables of all topics that enable one, by topic."""
    topics = {topic.name: topic for topic in list_topics(cluster) if not topic.is_internal}
    found = own_settings(cluster, sorted(topics), SETTINGS)
    return [
        table_of(topics[TopicName(name)], settings, namespace)
        for name, settings in found.items()
        if check_setting(ENABLE, settings.get(ENABLE, "false"))
    ]


def table_of(topic: Topic, settings: Mapping[str, str], namespace: str) -> TopicTable:
    """Return the table that a topic's own settings describe, enabled or not."""
    own = _NOT_IN_NAMES.sub("_", topic.name)
    return TopicTable(
        topic=topic.name,
        topic_id=topic.id,
        partitions=len(topic.partitions),
        table=settings.get(NAME) or f"{namespace}.{own}",
        mode=check_setting(MODE, settings.get(MODE) or "append"),
        key=check_setting(KEY, settings.get(KEY) or ""),
    )


def lags(
    cluster: Cluster, tables: Iterable[tuple[TopicTable, Mapping[TopicPartition, int]]]
) -> dict[str, int]:
    """Return how many records each table is behind its topic, by the topic and the positions reached."""
    wanted = [(table, reached, _places(table)) for table, reached in tables]
    there = extents(cluster, [place for _, _, places in wanted for place in places])
    return {
        table.topic: sum(
            max(0, there[place].end - max(reached.get(place, 0), there[place].start)) for place in places
        )
        for table, reached, places in wanted
    }


def _places(table: TopicTable) -> Sequence[TopicPartition]:
    return [TopicPartition(TopicName(table.topic), number) for number in range(table.partitions)]
