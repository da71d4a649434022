"""Offsets in the form of Spark's Kafka source: by topic, then by partition number.

Needs no Spark: pipelines are validated without it.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from alpacamq.model.ids import TopicName, TopicPartition

Json = dict[str, dict[str, int]]


def to_json(offsets: Mapping[TopicPartition, int]) -> Json:
    """Offsets as Spark stores them."""
    by_topic: Json = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return by_topic


def from_json(stored: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """Offsets that Spark stored."""
    return {
        TopicPartition(TopicName(topic), int(partition)): int(offset)
        for topic, offsets in stored.items()
        for partition, offset in offsets.items()
    }


def offsets_option(offsets: Mapping[TopicPartition, int]) -> str:
    """Where to begin or to end, as an option."""
    return json.dumps(to_json(offsets))


def assign_option(partitions: Iterable[TopicPartition]) -> str:
    """Which partitions to read, as an option."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return json.dumps(by_topic)
