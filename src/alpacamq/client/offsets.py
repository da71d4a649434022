"""Where logs begin and end, and where they were at a time."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from operator import attrgetter

from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

from .cluster import Cluster, patient
from .errors import check

_EARLIEST, _LATEST = -2, -1
_NONE = -1


class Isolation(IntEnum):
    """What of unfinished transactions is seen."""

    UNCOMMITTED = 0
    COMMITTED = 1


@dataclass(frozen=True, slots=True)
class Extent:
    """The first offset of a log and the one behind its last."""

    start: int
    end: int

    def nearest(self, offset: int) -> int:
        return min(max(offset, self.start), self.end)


def extents(
    cluster: Cluster, partitions: Iterable[TopicPartition], isolation: Isolation = Isolation.UNCOMMITTED
) -> dict[TopicPartition, Extent]:
    """Where each partition begins and ends; for committed readers the end is where they stop."""
    wanted = list(partitions)
    starts = _ask(cluster, wanted, _EARLIEST, isolation)
    ends = _ask(cluster, wanted, _LATEST, isolation)
    return {partition: Extent(starts[partition], ends[partition]) for partition in wanted}


def offsets_at(
    cluster: Cluster, partitions: Iterable[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int | None]:
    """In each partition the first record of this time or later; None where there is none."""
    found = _ask(cluster, list(partitions), max(0, timestamp_ms), Isolation.UNCOMMITTED)
    return {partition: None if offset == _NONE else offset for partition, offset in found.items()}


@patient
def _ask(
    cluster: Cluster, partitions: list[TopicPartition], at: int, isolation: Isolation
) -> dict[TopicPartition, int]:
    found = {}
    for leader, theirs in cluster.by_leader(partitions):
        topics = [
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(partition_index=wanted.partition, timestamp=at) for wanted in those
                ],
            )
            for name, those in groupby(theirs, attrgetter("topic"))
        ]
        answer = leader.call(
            ListOffsetsRequest(isolation_level=isolation, topics=topics), ListOffsetsResponse
        )
        for topic in answer.topics:
            for result in topic.partitions:
                partition = TopicPartition(TopicName(topic.name), result.partition_index)
                check(f"reading the offsets of {partition}", result.error_code)
                found[partition] = result.offset
    if missing := set(partitions) - found.keys():
        raise ProtocolError(
            f"the offsets of {', '.join(map(str, sorted(missing)))} were asked for and not told"
        )
    return found
