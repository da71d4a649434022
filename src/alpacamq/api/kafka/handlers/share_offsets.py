"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets."""

from collections.abc import Sequence
from uuid import UUID

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.model.errors import (
    AlpacaError,
    GroupIdNotFound,
    NonEmptyGroup,
    OffsetOutOfRange,
    UnknownTopic,
)
from alpacamq.model.ids import TopicName
from alpacamq.protocol.messages import share_offsets as wire
from alpacamq.protocol.notation import ZERO_UUID
from alpacamq.queues.messages import PartitionTotals, QueueId

from .share_groups import find_share_group, queue_topics


async def describe_share_group_offsets(
    backend: Backend, request: wire.DescribeShareGroupOffsetsRequest, call: Call
) -> wire.DescribeShareGroupOffsetsResponse:
    described = []
    for group in await call.each_once(request.groups, lambda group: group.group_id):
        described.append(await _described_group(backend, group, call))
        await call.pause()
    return wire.DescribeShareGroupOffsetsResponse(groups=described)


async def alter_share_group_offsets(
    backend: Backend, request: wire.AlterShareGroupOffsetsRequest, call: Call
) -> wire.AlterShareGroupOffsetsResponse:
    try:
        await _check_empty(backend, request.group_id)
    except AlpacaError as error:
        return wire.AlterShareGroupOffsetsResponse(error_code=code_of(error), error_message=text_of(error))
    responses = []
    for topic in request.topics:
        responses.append(await _altered(backend, request.group_id, topic, call))
        await call.pause()
    return wire.AlterShareGroupOffsetsResponse(responses=responses)


async def delete_share_group_offsets(
    backend: Backend, request: wire.DeleteShareGroupOffsetsRequest, call: Call
) -> wire.DeleteShareGroupOffsetsResponse:
    try:
        await _check_empty(backend, request.group_id)
    except AlpacaError as error:
        return wire.DeleteShareGroupOffsetsResponse(error_code=code_of(error), error_message=text_of(error))
    responses = []
    for topic in request.topics:
        await call.pause()
        failure: AlpacaError | None = None
        try:
            backend.broker.topics.image.topic(topic.topic_name)
            await backend.broker.queues.delete(QueueId(request.group_id, topic.topic_name))
        except GroupIdNotFound:
            pass  # the topic or the queue does not exist
        except AlpacaError as error:
            failure = error
        responses.append(
            wire.DeleteShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                topic_id=_topic_id(backend, topic.topic_name),
                error_code=0 if failure is None else code_of(failure),
                error_message=None if failure is None else text_of(failure),
            )
        )
    return wire.DeleteShareGroupOffsetsResponse(responses=responses)


async def _described_group(
    backend: Backend, request: wire.DescribeShareGroupOffsetsRequestGroup, call: Call
) -> wire.DescribeShareGroupOffsetsResponseGroup:
    group = request.group_id
    try:
        await find_share_group(backend, group)
        described = []
        if request.topics is None:
            for name in await queue_topics(backend, group):
                described.append(await _described_topic(backend, group, name, None, call))
        else:
            for topic in await call.each_once(request.topics, lambda topic: topic.topic_name):
                described.append(
                    await _described_topic(backend, group, topic.topic_name, topic.partitions, call)
                )
    except AlpacaError as error:
        return wire.DescribeShareGroupOffsetsResponseGroup(
            group_id=group, error_code=code_of(error), error_message=text_of(error)
        )
    return wire.DescribeShareGroupOffsetsResponseGroup(group_id=group, topics=described)


async def _described_topic(
    backend: Backend, group: str, name: str, wanted: Sequence[int] | None, call: Call
) -> wire.DescribeShareGroupOffsetsResponseTopic:
    """Return the requested partitions of a topic, or all that the group has used."""
    try:
        stats = (await backend.broker.queues.describe(QueueId(group, name))).partitions
    except (GroupIdNotFound, UnknownTopic):
        stats = ()
    by_index = {each.partition: each for each in stats}
    partitions = []
    for index in sorted(by_index) if wanted is None else wanted:
        await call.pause()
        partitions.append(_described_partition(backend, name, index, by_index.get(index)))
    return wire.DescribeShareGroupOffsetsResponseTopic(
        topic_name=name, topic_id=_topic_id(backend, name), partitions=partitions
    )


def _described_partition(
    backend: Backend, name: str, index: int, stats: PartitionTotals | None
) -> wire.DescribeShareGroupOffsetsResponsePartition:
    try:
        partition = backend.broker.topics.partition(name, index)
    except AlpacaError as error:
        return wire.DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, error_code=code_of(error), error_message=text_of(error)
        )
    if stats is None:
        return wire.DescribeShareGroupOffsetsResponsePartition(partition_index=index)
    return wire.DescribeShareGroupOffsetsResponsePartition(
        partition_index=index,
        start_offset=stats.start_offset,
        leader_epoch=partition.leader_epoch,
        lag=stats.ready + stats.in_flight + stats.backoff + stats.dead_lettering,
    )


async def _altered(
    backend: Backend, group: str, topic: wire.AlterShareGroupOffsetsRequestTopic, call: Call
) -> wire.AlterShareGroupOffsetsResponseTopic:
    failures: dict[int, AlpacaError] = {}
    offsets: dict[int, int] = {}
    for each in topic.partitions:
        await call.pause()
        try:
            _check_offset(backend, topic.topic_name, each)
            offsets[each.partition_index] = each.start_offset
        except AlpacaError as error:
            failures[each.partition_index] = error
    if offsets:
        try:
            await backend.broker.queues.reset(QueueId(group, topic.topic_name), offsets)
        except AlpacaError as error:
            failures.update(dict.fromkeys(offsets, error))
    altered = []
    for each in topic.partitions:
        await call.pause()
        failure = failures.get(each.partition_index)
        altered.append(
            wire.AlterShareGroupOffsetsResponsePartition(
                partition_index=each.partition_index,
                error_code=0 if failure is None else code_of(failure),
                error_message=None if failure is None else text_of(failure),
            )
        )
    return wire.AlterShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name, topic_id=_topic_id(backend, topic.topic_name), partitions=altered
    )


def _check_offset(backend: Backend, name: str, wanted: wire.AlterShareGroupOffsetsRequestPartition) -> None:
    partition = backend.broker.topics.partition(name, wanted.partition_index)
    start, end = partition.start_offset, partition.high_watermark
    if not start <= wanted.start_offset <= end:
        raise OffsetOutOfRange(
            f"offset {wanted.start_offset} of {partition.identity} is outside of {start} to {end}"
        )


async def _check_empty(backend: Backend, group: str) -> None:
    found = await find_share_group(backend, group)
    if found.members:
        raise NonEmptyGroup(f"group {group!r} has {len(found.members)} members; stop them first")


def _topic_id(backend: Backend, name: str) -> UUID:
    topic = backend.broker.topics.image.topics.get(TopicName(name))
    return ZERO_UUID if topic is None else topic.id
