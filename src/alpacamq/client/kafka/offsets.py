"""Committed offsets of groups, start offsets of share groups, and offsets of partitions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from alpacamq.client.errors import check
from alpacamq.client.options import Isolation as Isolation
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.messages.committed_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from alpacamq.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from alpacamq.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)

from .cluster import NAMES_PER_REQUEST, Cluster, Coordinates, batched, retry_transient
from .connection import Connection


def committed_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """Return all committed offsets of a group."""
    return committed_offsets_of(cluster, [group])[group]


@retry_transient
def committed_offsets_of(cluster: Cluster, groups: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """Return all committed offsets of each group."""
    committed: dict[str, dict[TopicPartition, int]] = {group: {} for group in groups}
    for coordinator, theirs in cluster.by_coordinator(Coordinates.GROUP, groups):
        for some in batched(theirs, NAMES_PER_REQUEST):
            request = OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in some]
            )
            for answer in coordinator.call(request, OffsetFetchResponse).groups:
                committed[answer.group_id] = _committed(answer)
    return committed


def _committed(group: OffsetFetchResponseGroup) -> dict[TopicPartition, int]:
    check(f"reading the offsets of group {group.group_id!r}", group.error_code)
    committed = {}
    for topic in group.topics:
        for result in topic.partitions:
            partition = TopicPartition(TopicName(topic.name), result.partition_index)
            check(f"reading the offset of group {group.group_id!r} in {partition}", result.error_code)
            if result.committed_offset >= 0:
                committed[partition] = result.committed_offset
    return dict(sorted(committed.items()))


@retry_transient
def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without members."""
    coordinator = cluster.coordinator(Coordinates.GROUP, group)
    topics = [
        OffsetCommitRequestTopic(
            name=name,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=wanted.partition, committed_offset=offsets[wanted], committed_metadata=""
                )
                for wanted in those
            ],
        )
        for name, those in groupby(sorted(offsets), attrgetter("topic"))
    ]
    answer = coordinator.call(OffsetCommitRequest(group_id=group, topics=topics), OffsetCommitResponse)
    for topic in answer.topics:
        for result in topic.partitions:
            about = f"setting the offset of group {group!r} in {topic.name}-{result.partition_index}"
            check(about, result.error_code)


@retry_transient
def delete_offsets(cluster: Cluster, group: str, partitions: Iterable[TopicPartition]) -> None:
    """Delete committed offsets of partitions that are not assigned."""
    coordinator = cluster.coordinator(Coordinates.GROUP, group)
    topics = [
        OffsetDeleteRequestTopic(
            name=name,
            partitions=[OffsetDeleteRequestPartition(partition_index=wanted.partition) for wanted in those],
        )
        for name, those in groupby(sorted(partitions), attrgetter("topic"))
    ]
    answer = coordinator.call(OffsetDeleteRequest(group_id=group, topics=topics), OffsetDeleteResponse)
    check(f"deleting offsets of group {group!r}", answer.error_code)
    for topic in answer.topics:
        for result in topic.partitions:
            about = f"deleting the offset of group {group!r} in {topic.name}-{result.partition_index}"
            check(about, result.error_code)


_EARLIEST, _LATEST = -2, -1
_NONE = -1


@dataclass(frozen=True, slots=True)
class Extent:
    """Start and end offset of a log."""

    start: int
    end: int

    def nearest(self, offset: int) -> int:
        return min(max(offset, self.start), self.end)


@retry_transient
def extents(
    cluster: Cluster, partitions: Iterable[TopicPartition], isolation: Isolation = Isolation.UNCOMMITTED
) -> dict[TopicPartition, Extent]:
    """Return start and end of each partition; for read_committed the end is the last stable offset."""
    wanted = list(partitions)
    leaders = cluster.by_leader(wanted)
    starts = _offsets(leaders, _EARLIEST, isolation)
    ends = _offsets(leaders, _LATEST, isolation)
    return {partition: Extent(starts[partition], ends[partition]) for partition in wanted}


@retry_transient
def ends(
    cluster: Cluster, partitions: Iterable[TopicPartition], isolation: Isolation = Isolation.UNCOMMITTED
) -> dict[TopicPartition, int]:
    """Return the end of each partition; for read_committed it is the last stable offset."""
    return _offsets(cluster.by_leader(partitions), _LATEST, isolation)


@retry_transient
def offsets_at(
    cluster: Cluster, partitions: Iterable[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int | None]:
    """Return the offset of the first record at or after a time by partition, or None."""
    leaders = cluster.by_leader(partitions)
    found = _offsets(leaders, max(0, timestamp_ms), Isolation.UNCOMMITTED)
    return {partition: None if offset == _NONE else offset for partition, offset in found.items()}


def log_edge(leader: Connection, partition: TopicPartition, *, is_end: bool) -> int:
    """Return the start or the end of a partition by its leader."""
    at = _LATEST if is_end else _EARLIEST
    return _offsets([(leader, [partition])], at, Isolation.UNCOMMITTED)[partition]


def _offsets(
    leaders: Sequence[tuple[Connection, Sequence[TopicPartition]]], at: int, isolation: Isolation
) -> dict[TopicPartition, int]:
    found = {}
    for leader, theirs in leaders:
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
        if missing := set(theirs) - found.keys():
            raise ProtocolError(f"the response lacks the offsets of {', '.join(map(str, sorted(missing)))}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupOffset:
    """Progress of a share group in a partition: start offset and number of unprocessed messages."""

    start: int
    lag: int


def share_group_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, ShareGroupOffset]:
    """Return the progress of a share group by partition."""
    return share_group_offsets_of(cluster, [group])[group]


@retry_transient
def share_group_offsets_of(
    cluster: Cluster, groups: Sequence[str]
) -> dict[str, dict[TopicPartition, ShareGroupOffset]]:
    """Return the progress of each share group by partition."""
    found: dict[str, dict[TopicPartition, ShareGroupOffset]] = {group: {} for group in groups}
    for coordinator, theirs in cluster.by_coordinator(Coordinates.GROUP, groups):
        for some in batched(theirs, NAMES_PER_REQUEST):
            request = DescribeShareGroupOffsetsRequest(
                groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group) for group in some]
            )
            for described in coordinator.call(request, DescribeShareGroupOffsetsResponse).groups:
                check(f"group {described.group_id!r}", described.error_code, described.error_message)
                found[described.group_id] = {
                    TopicPartition(TopicName(topic.topic_name), each.partition_index): ShareGroupOffset(
                        start=each.start_offset, lag=each.lag
                    )
                    for topic in described.topics
                    for each in topic.partitions
                    if not each.error_code and each.start_offset >= 0
                }
    return found


@retry_transient
def alter_share_group_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set the start offsets of a share group without members."""
    coordinator = cluster.coordinator(Coordinates.GROUP, group)
    topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
    for place, offset in sorted(offsets.items()):
        topics.setdefault(place.topic, []).append(
            AlterShareGroupOffsetsRequestPartition(partition_index=place.partition, start_offset=offset)
        )
    request = AlterShareGroupOffsetsRequest(
        group_id=group,
        topics=[
            AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )
    answer = coordinator.call(request, AlterShareGroupOffsetsResponse)
    check(f"moving group {group!r}", answer.error_code, answer.error_message)
    for topic in answer.responses:
        for each in topic.partitions:
            what = f"moving group {group!r} in {topic.topic_name}-{each.partition_index}"
            check(what, each.error_code, each.error_message)
