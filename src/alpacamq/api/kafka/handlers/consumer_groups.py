"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848)."""

from collections.abc import Sequence

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.api.kafka.operations import check_described, check_group_topics, group_operations
from alpacamq.coordinator.consumer.messages import (
    ConsumerGroupDescription,
    ConsumerHeartbeatReply,
    ConsumerHeartbeatRequest,
    ConsumerMemberDescription,
    Partitions,
)
from alpacamq.coordinator.groups import DescribeRequest
from alpacamq.model.errors import AlpacaError, GroupIdNotFound, InvalidRequest
from alpacamq.model.ids import TopicId
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages import consumer_groups as wire
from alpacamq.security.acls import Operation

_MEMBERS_NAME_THEMSELVES_FROM = 1
_USES_CONSUMER_PROTOCOL = 1
# Topics that a member may subscribe to by name, or own partitions of.
MAX_TOPICS = 10_000


async def consumer_group_heartbeat(
    backend: Backend, request: wire.ConsumerGroupHeartbeatRequest, call: Call
) -> wire.ConsumerGroupHeartbeatResponse:
    topics = request.subscribed_topic_names
    if len(topics or ()) > MAX_TOPICS or len(request.topic_partitions or ()) > MAX_TOPICS:
        return wire.ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"a member must not name more than {MAX_TOPICS} topics",
        )
    asked = ConsumerHeartbeatRequest(
        group=request.group_id,
        member_epoch=request.member_epoch,
        member_id=request.member_id,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topics=None if topics is None else tuple(topics),
        subscribed_regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=_owned(request.topic_partitions),
        client_id=call.client_id,
        client_host=call.caller.host,
    )
    try:
        backend.broker.access.check_group(call.caller, Operation.READ, request.group_id)
        await check_described(backend, call, topics or ())
        if call.version >= _MEMBERS_NAME_THEMSELVES_FROM and not request.member_id:
            raise InvalidRequest("member id must not be empty")
        reply: ConsumerHeartbeatReply = await backend.broker.groups.ask_here(asked)
    except AlpacaError as error:
        return wire.ConsumerGroupHeartbeatResponse(error_code=code_of(error), error_message=text_of(error))
    assignment = None
    if reply.assignment is not None:
        assignment = wire.HeartbeatAssignment(
            topic_partitions=[
                wire.HeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in reply.assignment.items()
                if _is_visible(backend, topic_id, call)
            ]
        )
    return wire.ConsumerGroupHeartbeatResponse(
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assignment=assignment,
    )


async def consumer_group_describe(
    backend: Backend, request: wire.ConsumerGroupDescribeRequest, call: Call
) -> wire.ConsumerGroupDescribeResponse:
    groups = []
    for group in await call.each_once(request.group_ids, str):
        groups.append(await _described(backend, request, group, call))
        await call.pause()
    return wire.ConsumerGroupDescribeResponse(groups=groups)


def _owned(held: Sequence[wire.HeartbeatTopicPartitions] | None) -> Partitions | None:
    if held is None:
        return None
    return {each.topic_id: frozenset(each.partitions) for each in held}


def _is_visible(backend: Backend, topic_id: TopicId, call: Call) -> bool:
    """Return whether the client may know of a topic, which may match its pattern although it does not."""
    topic = backend.broker.topics.image.topic_by_id(topic_id)
    return topic is None or backend.broker.access.sees_topic(call.caller, Operation.DESCRIBE, topic.name)


async def _described(
    backend: Backend, request: wire.ConsumerGroupDescribeRequest, group: str, call: Call
) -> wire.DescribedConsumerGroup:
    try:
        backend.broker.access.check_group(call.caller, Operation.DESCRIBE, group)
        found = await backend.broker.groups.ask_here(DescribeRequest(group=group))
        if not isinstance(found, ConsumerGroupDescription):
            raise GroupIdNotFound(f"group {group!r} does not use the consumer protocol")
        members = [_member(backend, member) for member in found.members]
        await check_group_topics(backend, call, _topics_of(members))
    except AlpacaError as error:
        return wire.DescribedConsumerGroup(
            group_id=group, error_code=code_of(error), error_message=text_of(error)
        )
    return wire.DescribedConsumerGroup(
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


def _topics_of(members: Sequence[wire.DescribedConsumer]) -> set[str]:
    """Return the topics that members subscribe to or are assigned."""
    topics: set[str] = set()
    for member in members:
        topics.update(member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            topics.update(each.topic_name for each in assignment.topic_partitions)
    return topics


def _member(backend: Backend, member: ConsumerMemberDescription) -> wire.DescribedConsumer:
    return wire.DescribedConsumer(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscribed_topics),
        subscribed_topic_regex=member.subscribed_regex or None,
        assignment=described_assignment(backend, member.assignment),
        target_assignment=described_assignment(backend, member.target_assignment),
        member_type=_USES_CONSUMER_PROTOCOL,
    )


def described_assignment(backend: Backend, partitions: Partitions) -> wire.DescribedAssignment:
    """Return partitions with topic names; topics deleted meanwhile are left out."""
    image = backend.broker.topics.image
    return wire.DescribedAssignment(
        topic_partitions=[
            wire.DescribedTopicPartitions(
                topic_id=topic_id, topic_name=topic.name, partitions=sorted(indexes)
            )
            for topic_id, indexes in partitions.items()
            if (topic := image.topic_by_id(topic_id)) is not None
        ]
    )
