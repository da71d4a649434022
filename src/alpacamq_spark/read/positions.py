"""Start and end of a read: the beginning or end of the log, offsets or timestamps.

Does not import Spark: validating a pipeline needs it.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import Extent, offsets_at
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq_spark.errors import InvalidOption

from .subscription import parse_by_partition, show

Offsets = Mapping[TopicPartition, int]

# Numbers for the beginning and the end in per-partition JSON.
LATEST, EARLIEST = -1, -2
_OFFSETS = '{"orders":{"0":23,"1":-2}}'
_TIMES = '{"orders":{"0":1700000000000}}'


class Edge(Enum):
    """The beginning or the end of the log."""

    EARLIEST = "earliest"
    LATEST = "latest"

    def of(self, extent: Extent) -> int:
        return extent.start if self is Edge.EARLIEST else extent.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """One rule for all partitions, or one for each; `option` is the option that set it."""

    option: str
    edge: Edge | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    # Whether a time later than every record is an error; otherwise it means the end.
    must_be_reached: bool = False

    def resolve(
        self, cluster: Cluster, extents: Mapping[TopicPartition, Extent]
    ) -> dict[TopicPartition, int]:
        """Return the offset for each existing partition. Raises InvalidOption."""
        if self.edge is not None:
            return {partition: self.edge.of(extent) for partition, extent in extents.items()}
        if self.offsets:
            self._check_all_named(self.offsets, extents)
            return {partition: self._offset(partition, extent) for partition, extent in extents.items()}
        if self.timestamp_ms is not None:
            return self._at(cluster, extents, dict.fromkeys(extents, self.timestamp_ms))
        self._check_all_named(self.timestamps_ms, extents)
        return self._at(cluster, extents, self.timestamps_ms)

    def _offset(self, partition: TopicPartition, extent: Extent) -> int:
        offset = self.offsets[partition]
        if offset == EARLIEST:
            return extent.start
        return extent.end if offset == LATEST else offset

    def _at(
        self,
        cluster: Cluster,
        extents: Mapping[TopicPartition, Extent],
        timestamps_ms: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for timestamp_ms in sorted(set(timestamps_ms.values())):
            those = [each for each in extents if timestamps_ms[each] == timestamp_ms]
            for partition, offset in offsets_at(cluster, those, timestamp_ms).items():
                if offset is None and self.must_be_reached:
                    raise InvalidOption(
                        f"{self.option}: {partition} has no record of {timestamp_ms} or later; "
                        "startingOffsetsByTimestampStrategy=latest starts at the end instead"
                    )
                end = extents[partition].end
                found[partition] = end if offset is None else min(offset, end)
        return found

    def _check_all_named(self, named: Iterable[TopicPartition], there: Iterable[TopicPartition]) -> None:
        missing, unknown = set(there) - set(named), set(named) - set(there)
        if missing:
            raise InvalidOption(
                f"{self.option} does not name {_list(missing)}: name every partition, "
                "-2 for its beginning and -1 for its end"
            )
        if unknown:
            raise InvalidOption(f"{self.option} names {_list(unknown)}, which the read does not cover")


def read_positions(get: Callable[[str], str | None], side: str, otherwise: Edge) -> Positions:
    """Parse the options for the start or the end; as in Spark's Kafka source, times take precedence."""
    must_be_reached = side == "starting" and _strategy(get) == "error"
    if (text := get(option := f"{side}Timestamp")) is not None:
        if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
            raise InvalidOption(f"{option}={text!r} is not a time in milliseconds since 1970")
        return Positions(option=option, timestamp_ms=int(text), must_be_reached=must_be_reached)
    if (text := get(option := f"{side}OffsetsByTimestamp")) is not None:
        times = parse_by_partition(option, text, _TIMES)
        return Positions(option=option, timestamps_ms=times, must_be_reached=must_be_reached)
    if (text := get(option := f"{side}Offsets")) is None:
        return Positions(option=option, edge=otherwise)
    if not text.lstrip().startswith("{"):
        return Positions(option=option, edge=_edge(option, side, text))
    offsets = parse_by_partition(option, text, _OFFSETS)
    if not offsets:
        raise InvalidOption(f"{option} names no partition; the format is {_OFFSETS}")
    if side == "ending" and EARLIEST in offsets.values():
        raise InvalidOption(f"{option}: a read cannot end at the beginning (-2)")
    return Positions(option=option, offsets=offsets)


def _strategy(get: Callable[[str], str | None]) -> str:
    strategy = get("startingOffsetsByTimestampStrategy") or "error"
    if strategy not in ("error", "latest"):
        raise InvalidOption(f"startingOffsetsByTimestampStrategy={strategy!r} is not one of error, latest")
    return strategy


def _edge(option: str, side: str, text: str) -> Edge:
    word = text.strip().lower()
    allowed = [edge.value for edge in Edge if side == "starting" or edge is Edge.LATEST]
    if word not in allowed:
        raise InvalidOption(f"{option}={show(text)} is not {' or '.join(allowed)}, nor JSON like {_OFFSETS}")
    return Edge(word)


def _list(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions)))


# Offsets as Spark stores them, by topic and partition.
Json = dict[str, dict[str, int]]


def to_json(offsets: Mapping[TopicPartition, int]) -> Json:
    """Convert offsets to Spark's stored form."""
    by_topic: Json = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return by_topic


def from_json(stored: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """Convert offsets from Spark's stored form."""
    return {
        TopicPartition(TopicName(topic), int(partition)): int(offset)
        for topic, offsets in stored.items()
        for partition, offset in offsets.items()
    }


def offsets_option(offsets: Mapping[TopicPartition, int]) -> str:
    """Format start or end offsets as an option."""
    return json.dumps(to_json(offsets))


def assign_option(partitions: Iterable[TopicPartition]) -> str:
    """Format the partitions to read as an option."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return json.dumps(by_topic)
