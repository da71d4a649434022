"""ShareGroupHeartbeat and ShareGroupDescribe (KIP-932); deleting groups of any kind.

A group that uses topics as queues over another API has no members, but is a share group too.
"""

from collections.abc import Collection

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
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
from alpacamq.model.errors import AlpacaError, GroupIdNotFound
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages import consumer_groups as consumer_wire
from alpacamq.protocol.messages import share_groups as wire
from alpacamq.queues.messages import QueueId

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
        client_host=call.client_host,
    )
    try:
        reply: ShareHeartbeatReply = await backend.broker.groups.ask(asked)
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
        groups.append(await _described(backend, group))
        await call.pause()
    return wire.ShareGroupDescribeResponse(groups=groups)


async def queue_topics(backend: Backend, group: str) -> list[str]:
    """Return the topics that a group uses as queues, over any API."""
    return sorted(queue.topic for queue in await backend.broker.queues.queues() if queue.group == group)


async def unlisted_share_groups(backend: Backend, known: Collection[str]) -> list[ListedGroup]:
    """Return groups that exist only because they use topics as queues."""
    names = {queue.group for queue in await backend.broker.queues.queues()}
    return [
        ListedGroup(
            group=name, protocol_type=SHARE_PROTOCOL, state=ShareGroupState.EMPTY, type=SHARE_PROTOCOL
        )
        for name in sorted(names.difference(known))
    ]


async def find_share_group(backend: Backend, group: str) -> ShareGroupDescription:
    """Return the share group of this name; raise GroupIdNotFound."""
    try:
        found = await backend.broker.groups.ask(DescribeRequest(group=group))
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
        found = await backend.broker.groups.ask(DescribeRequest(group=group))
    except GroupIdNotFound:
        if not (topics := await queue_topics(backend, group)):
            raise
    else:
        await backend.broker.groups.ask(DeleteGroupRequest(group=group))
        if isinstance(found, ShareGroupDescription):
            topics = await queue_topics(backend, group)
    for topic in topics:
        await backend.broker.queues.delete(QueueId(group, topic))


async def _described(backend: Backend, group: str) -> wire.DescribedShareGroup:
    try:
        found = await find_share_group(backend, group)
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
        members=[_member(backend, member) for member in found.members],
    )


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
