"""Where share groups are in their partitions."""

from collections.abc import Mapping
from dataclasses import dataclass

from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.messages.share_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)

from .cluster import Cluster, Coordinates, patient
from .errors import check, only


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlace:
    """A share group in a partition: all before `start` is done, and of the rest `lag` messages are not."""

    start: int
    lag: int


@patient
def shared_places(cluster: Cluster, group: str) -> dict[TopicPartition, SharedPlace]:
    """Every partition that a share group has been in."""
    coordinator = cluster.coordinator(Coordinates.GROUP, group)
    request = DescribeShareGroupOffsetsRequest(groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group)])
    described = only(f"group {group!r}", coordinator.call(request, DescribeShareGroupOffsetsResponse).groups)
    check(f"group {group!r}", described.error_code, described.error_message)
    return {
        TopicPartition(TopicName(topic.topic_name), each.partition_index): SharedPlace(
            start=each.start_offset, lag=each.lag
        )
        for topic in described.topics
        for each in topic.partitions
        if not each.error_code and each.start_offset >= 0
    }


@patient
def move_shared(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Let a share group without members begin again at these offsets."""
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
