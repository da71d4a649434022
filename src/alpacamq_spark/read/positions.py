"""Where a read begins and ends: an edge of the log, offsets, or times, for all partitions or for each."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import Extent, offsets_at
from alpacamq.model.ids import TopicPartition
from alpacamq_spark.errors import InvalidOption

from .subscription import parse_by_partition, show

# Numbers that stand for an edge in per-partition JSON.
_LATEST, _EARLIEST = -1, -2
_OFFSETS = '{"orders":{"0":23,"1":-2}}'
_TIMES = '{"orders":{"0":1700000000000}}'


class Edge(Enum):
    """An end of the log."""

    EARLIEST = "earliest"
    LATEST = "latest"

    def of(self, extent: Extent) -> int:
        return extent.start if self is Edge.EARLIEST else extent.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """One rule for every partition, or one for each; `option` is where it was said."""

    option: str
    edge: Edge | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    # Whether it is an error that nothing is as late as the time asked for; else the end is meant.
    must_be_reached: bool = False

    def resolve(
        self, cluster: Cluster, extents: Mapping[TopicPartition, Extent]
    ) -> dict[TopicPartition, int]:
        """The offset of each partition there is, or InvalidOption."""
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
        if offset == _EARLIEST:
            return extent.start
        return extent.end if offset == _LATEST else offset

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
                        "startingOffsetsByTimestampStrategy=latest begins at its end then"
                    )
                end = extents[partition].end
                found[partition] = end if offset is None else min(offset, end)
        return found

    def _check_all_named(self, named: Iterable[TopicPartition], there: Iterable[TopicPartition]) -> None:
        missing, unknown = set(there) - set(named), set(named) - set(there)
        if missing:
            raise InvalidOption(
                f"{self.option} says nothing of {_list(missing)}: name every partition, "
                "-2 for its beginning and -1 for its end"
            )
        if unknown:
            raise InvalidOption(f"{self.option} names {_list(unknown)}, which the read does not cover")


def read_positions(get: Callable[[str], str | None], side: str, otherwise: Edge) -> Positions:
    """What the options of one side, starting or ending, say; as in Spark's Kafka source, times go first."""
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
        raise InvalidOption(f"{option} names no partition; it looks like {_OFFSETS}")
    if side == "ending" and _EARLIEST in offsets.values():
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
