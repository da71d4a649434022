"""What requests about offsets are answered, partition by partition, once the group has no objection."""

from collections.abc import Callable, Iterable

from alpacamq.model.errors import (
    AlpacaError,
    GroupSubscribedToTopic,
    InvalidRequest,
    OffsetMetadataTooLarge,
    UnstableOffsetCommit,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.outcome import Change

from .group_messages import (
    DeleteOffsetsRequest,
    FetchedOffset,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    OffsetToCommit,
    PartitionResult,
    PartitionResults,
)
from .group_records import CommittedOffset
from .offsets import Offsets

Answered = tuple[list[Change], object]


def stored(
    offsets: Iterable[OffsetToCommit],
    store: Callable[[TopicPartition, CommittedOffset], list[Change]],
    max_metadata_bytes: int,
    now_ms: int,
) -> Answered:
    """Have `store` take each offset that may be stored."""
    changes: list[Change] = []
    results = []
    for each in offsets:
        error: AlpacaError | None = None
        if each.offset < 0:
            error = InvalidRequest(f"{each.offset} is not an offset")
        elif len(each.metadata.encode()) > max_metadata_bytes:
            error = OffsetMetadataTooLarge(f"an offset's metadata has at most {max_metadata_bytes} bytes")
        else:
            committed = CommittedOffset(
                offset=each.offset,
                committed_at_ms=now_ms,
                leader_epoch=each.leader_epoch,
                metadata=each.metadata,
            )
            changes += store(TopicPartition(TopicName(each.topic), each.partition), committed)
        results.append(PartitionResult(topic=each.topic, partition=each.partition, error=error))
    return changes, PartitionResults(partitions=tuple(results))


def deleted(offsets: Offsets, request: DeleteOffsetsRequest, is_read: Callable[[str], bool]) -> Answered:
    """Delete the offsets of topics that no member reads."""
    changes: list[Change] = []
    results = []
    read = {topic for topic in {each.topic for each in request.partitions} if is_read(topic)}
    for partition in request.partitions:
        error = None
        if partition.topic in read:
            error = GroupSubscribedToTopic(f"members of {request.group!r} read {partition.topic!r}")
        else:
            changes += offsets.delete(request.group, partition)
        results.append(PartitionResult(topic=partition.topic, partition=partition.partition, error=error))
    return changes, PartitionResults(partitions=tuple(results))


def fetched(offsets: Offsets, request: FetchOffsetsRequest) -> FetchOffsetsReply:
    """The offsets asked for, or all there are."""
    partitions = request.partitions
    if partitions is None:
        partitions = tuple(offsets.partitions(request.group))
    return FetchOffsetsReply(offsets=tuple(_fetched(offsets, request, each) for each in partitions))


def _fetched(offsets: Offsets, request: FetchOffsetsRequest, partition: TopicPartition) -> FetchedOffset:
    topic, index = partition
    if request.require_stable and offsets.is_unstable(request.group, partition):
        error = UnstableOffsetCommit(f"a transaction that commits {partition} is open")
        return FetchedOffset(topic=topic, partition=index, error=error)
    if (found := offsets.get(request.group, partition)) is None:
        return FetchedOffset(topic=topic, partition=index)
    return FetchedOffset(
        topic=topic,
        partition=index,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )
