"""How far groups have come: reading, setting and forgetting committed offsets."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter

from alpacamq.model.ids import TopicName, TopicPartition
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
)

from .cluster import Cluster, Coordinates, patient
from .errors import check


@patient
def committed_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """Every offset the group has committed."""
    coordinator = cluster.coordinator(Coordinates.GROUP, group)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    committed = {}
    for answer in coordinator.call(request, OffsetFetchResponse).groups:
        check(f"reading the offsets of group {group!r}", answer.error_code)
        for topic in answer.topics:
            for result in topic.partitions:
                partition = TopicPartition(TopicName(topic.name), result.partition_index)
                check(f"reading the offset of group {group!r} in {partition}", result.error_code)
                if result.committed_offset >= 0:
                    committed[partition] = result.committed_offset
    return dict(sorted(committed.items()))


@patient
def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set where a group without members goes on."""
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


@patient
def delete_offsets(cluster: Cluster, group: str, partitions: Iterable[TopicPartition]) -> None:
    """Forget how far a group has come in partitions that its members do not read."""
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
