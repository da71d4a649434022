"""Share groups (KIP-932): members, descriptions and start offsets; deleting groups of any kind.

A group that uses topics as queues over another API has no members, but is a share group too.
"""

from collections.abc import Collection, Sequence
from uuid import UUID

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.api.kafka.operations import (
    check_described,
    check_group_topics,
    group_operations,
    not_allowed,
)
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.coordinator.groups import DescribeRequest
from alpacamq.coordinator.messages import DeleteGroupRequest, ListedGroup
from alpacamq.coordinator.share.group import ASSIGNOR
from alpacamq.coordinator.share.messages import (
    SHARE_PROTOCOL,
    ShareGroupDescription,
    ShareGroupState,
    ShareHeartbeatReply,
    ShareHeartbeatRequest,
    ShareMemberDescription,
)
from alpacamq.model.errors import (
    AlpacaError,
    GroupIdNotFound,
    InvalidGroupId,
    NonEmptyGroup,
    OffsetOutOfRange,
    UnknownTopic,
)
from alpacamq.model.ids import TopicName
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages import consumer_groups as consumer_wire
from alpacamq.protocol.messages import share as wire
from alpacamq.protocol.notation import ZERO_UUID
from alpacamq.queues.messages import PartitionTotals, QueueId
from alpacamq.security.acls import Operation

from .consumer_groups import MAX_TOPICS, described_assignment


async def share_group_heartbeat(
    backend: Backend, request: wire.ShareGroupHeartbeatRequest, call: Call
) -> wire.ShareGroupHeartbeatResponse:
    topics = request.subscribed_topic_names
    if len(topics or ()) > MAX_TOPICS:
        return wire.ShareGroupHeartbeatResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"a member must not name more than {MAX_TOPICS} topics",
        )
    asked = ShareHeartbeatRequest(
        group=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        subscribed_topics=None if topics is None else tuple(topics),
        client_id=call.client_id,
        client_host=call.caller.host,
    )
    try:
        backend.broker.access.check_group(call.caller, Operation.READ, request.group_id)
        await check_described(backend, call, topics or ())
        reply: ShareHeartbeatReply = await backend.broker.groups.ask_here(asked)
    except AlpacaError as error:
        return wire.ShareGroupHeartbeatResponse(error_code=code_of(error), error_message=text_of(error))
    assignment = None
    if reply.assignment is not None:
        assignment = consumer_wire.HeartbeatAssignment(
            topic_partitions=[
                consumer_wire.HeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in reply.assignment.items()
            ]
        )
    return wire.ShareGroupHeartbeatResponse(
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assignment=assignment,
    )


async def share_group_describe(
    backend: Backend, request: wire.ShareGroupDescribeRequest, call: Call
) -> wire.ShareGroupDescribeResponse:
    groups = []
    for group in await call.each_once(request.group_ids, str):
        groups.append(await _described(backend, request, group, call))
        await call.pause()
    return wire.ShareGroupDescribeResponse(groups=groups)


async def queue_topics(backend: Backend, group: str) -> list[str]:
    """Return the topics that a group uses as queues, over any API."""
    return sorted(queue.topic for queue in await backend.broker.queues.queues() if queue.group == group)


async def unlisted_share_groups(backend: Backend, known: Collection[str]) -> list[ListedGroup]:
    """Return groups that exist only because they use topics as queues, and would be coordinated here."""
    groups = backend.broker.groups
    names = {queue.group for queue in await backend.broker.queues.queues() if groups.is_here(queue.group)}
    return [
        ListedGroup(
            group=name, protocol_type=SHARE_PROTOCOL, state=ShareGroupState.EMPTY, type=SHARE_PROTOCOL
        )
        for name in sorted(names.difference(known))
    ]


async def find_share_group(backend: Backend, group: str) -> ShareGroupDescription:
    """Return the share group of this name; raise GroupIdNotFound."""
    try:
        found = await backend.broker.groups.ask_here(DescribeRequest(group=group))
        if isinstance(found, ShareGroupDescription):
            return found
    except GroupIdNotFound:
        if await queue_topics(backend, group):
            return ShareGroupDescription(
                group=group,
                state=ShareGroupState.EMPTY,
                epoch=0,
                assignment_epoch=0,
                assignor=ASSIGNOR,
                members=(),
            )
        raise
    raise GroupIdNotFound(f"group {group!r} is not a share group")


async def delete_group(backend: Backend, group: str) -> None:
    """Delete a group of any kind without members, and the queues of a share group."""
    topics: list[str] = []
    try:
        found = await backend.broker.groups.ask_here(DescribeRequest(group=group))
    except GroupIdNotFound:
        if not (topics := await queue_topics(backend, group)):
            raise
    else:
        await backend.broker.groups.ask_here(DeleteGroupRequest(group=group))
        if isinstance(found, ShareGroupDescription):
            topics = await queue_topics(backend, group)
    for topic in topics:
        await backend.broker.queues.delete(QueueId(group, topic))


async def _described(
    backend: Backend, request: wire.ShareGroupDescribeRequest, group: str, call: Call
) -> wire.DescribedShareGroup:
    try:
        backend.broker.access.check_group(call.caller, Operation.DESCRIBE, group)
        found = await find_share_group(backend, group)
        members = [_member(backend, member) for member in found.members]
        await check_group_topics(backend, call, _topics_of(members))
    except AlpacaError as error:
        return wire.DescribedShareGroup(
            group_id=group, error_code=code_of(error), error_message=text_of(error)
        )
    return wire.DescribedShareGroup(
        group_id=group,
        group_state=found.state,
        group_epoch=found.epoch,
        assignment_epoch=found.assignment_epoch,
        assignor_name=found.assignor,
        members=members,
        authorized_operations=group_operations(
            backend, call, group, asked=request.include_authorized_operations
        ),
    )


def _topics_of(members: Sequence[wire.DescribedShareMember]) -> set[str]:
    """Return the topics that members subscribe to or are assigned."""
    topics: set[str] = set()
    for member in members:
        topics.update(member.subscribed_topic_names)
        topics.update(each.topic_name for each in member.assignment.topic_partitions)
    return topics


def _member(backend: Backend, member: ShareMemberDescription) -> wire.DescribedShareMember:
    return wire.DescribedShareMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscribed_topics),
        assignment=described_assignment(backend, member.assignment),
    )


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
        backend.broker.access.check_group(call.caller, Operation.READ, request.group_id)
        await _check_new_or_empty(backend, request.group_id)
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
        backend.broker.access.check_group(call.caller, Operation.DELETE, request.group_id)
        await _check_empty(backend, request.group_id)
    except AlpacaError as error:
        return wire.DeleteShareGroupOffsetsResponse(error_code=code_of(error), error_message=text_of(error))
    responses = []
    for topic in request.topics:
        await call.pause()
        failure: AlpacaError | None = None
        topic_id = ZERO_UUID
        try:
            backend.broker.access.check_topic(call.caller, Operation.READ, topic.topic_name)
            topic_id = _topic_id(backend, topic.topic_name)
            backend.broker.topics.image.topic(topic.topic_name)
            await backend.broker.queues.delete(QueueId(request.group_id, topic.topic_name))
        except GroupIdNotFound:
            pass  # the topic or the queue does not exist
        except AlpacaError as error:
            failure = error
        responses.append(
            wire.DeleteShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                topic_id=topic_id,
                error_code=0 if failure is None else code_of(failure),
                error_message=None if failure is None else text_of(failure),
            )
        )
    return wire.DeleteShareGroupOffsetsResponse(responses=responses)


async def _described_group(
    backend: Backend, request: wire.DescribeShareGroupOffsetsRequestGroup, call: Call
) -> wire.DescribeShareGroupOffsetsResponseGroup:
    group = request.group_id
    access = backend.broker.access
    try:
        access.check_group(call.caller, Operation.DESCRIBE, group)
        await find_share_group(backend, group)
        described = []
        if request.topics is None:
            for name in await queue_topics(backend, group):
                if not access.sees_topic(call.caller, Operation.DESCRIBE, name):
                    continue
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
    if not backend.broker.access.may_topic(call.caller, Operation.DESCRIBE, name):
        error = not_allowed(Operation.DESCRIBE, name)
        return wire.DescribeShareGroupOffsetsResponseTopic(
            topic_name=name,
            topic_id=ZERO_UUID,
            partitions=[
                wire.DescribeShareGroupOffsetsResponsePartition(
                    partition_index=index, error_code=code_of(error), error_message=text_of(error)
                )
                for index in wanted or ()
            ],
        )
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
    topics = backend.broker.topics
    topic = topics.image.topics.get(TopicName(name))
    state = None if topic is None else topics.image.partition(PartitionId(topic.id, index))
    if state is None:
        error = topics.absence(name.encode(), index)
        return wire.DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, error_code=code_of(error), error_message=text_of(error)
        )
    if stats is None:
        return wire.DescribeShareGroupOffsetsResponsePartition(partition_index=index)
    return wire.DescribeShareGroupOffsetsResponsePartition(
        partition_index=index,
        start_offset=stats.start_offset,
        leader_epoch=state.leader_epoch,
        lag=stats.ready + stats.in_flight + stats.backoff + stats.dead_lettering,
    )


async def _altered(
    backend: Backend, group: str, topic: wire.AlterShareGroupOffsetsRequestTopic, call: Call
) -> wire.AlterShareGroupOffsetsResponseTopic:
    failures: dict[int, AlpacaError] = {}
    offsets: dict[int, int] = {}
    is_allowed = backend.broker.access.may_topic(call.caller, Operation.READ, topic.topic_name)
    for each in topic.partitions:
        await call.pause()
        try:
            if not is_allowed:
                raise not_allowed(Operation.READ, topic.topic_name)
            await _check_offset(backend, topic.topic_name, each)
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
        topic_name=topic.topic_name,
        topic_id=_topic_id(backend, topic.topic_name) if is_allowed else ZERO_UUID,
        partitions=altered,
    )


async def _check_offset(
    backend: Backend, name: str, wanted: wire.AlterShareGroupOffsetsRequestPartition
) -> None:
    topics, index = backend.broker.topics, wanted.partition_index
    if not topics.exists(name.encode(), index):
        raise topics.absence(name.encode(), index)
    bounds = await backend.broker.reads.bounds_at(PartitionId(topics.image.topic(name).id, index))
    start, end = bounds.start_offset, bounds.high_watermark
    if not start <= wanted.start_offset <= end:
        raise OffsetOutOfRange(
            f"offset {wanted.start_offset} of {name}-{index} is outside of {start} to {end}"
        )


async def _check_new_or_empty(backend: Backend, group: str) -> None:
    """Raise if the group has members, or is not a share group. A new one is created by its offsets."""
    if not group:
        raise InvalidGroupId("the group must have a name")
    try:
        await backend.broker.groups.ask_here(DescribeRequest(group=group))
    except GroupIdNotFound:
        return
    await _check_empty(backend, group)


async def _check_empty(backend: Backend, group: str) -> None:
    found = await find_share_group(backend, group)
    if found.members:
        raise NonEmptyGroup(f"group {group!r} has {len(found.members)} members; stop them first")


def _topic_id(backend: Backend, name: str) -> UUID:
    topic = backend.broker.topics.image.topics.get(TopicName(name))
    return ZERO_UUID if topic is None else topic.id
