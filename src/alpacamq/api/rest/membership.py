"""Runs the client side of the consumer group protocol (KIP-848) for members over HTTP.

A Kafka client tracks epochs and confirms revoked partitions. Over HTTP a member sends its id only, and its
next request implies that it has read the last response: the API uses the epoch that the group has, and
confirms the last assignment for the member. Former members are refused by their id.
"""

from collections.abc import Mapping

import msgspec

from alpacamq.broker.broker import Broker
from alpacamq.coordinator.consumer.messages import (
    ConsumerGroupDescription,
    ConsumerHeartbeatReply,
    ConsumerHeartbeatRequest,
    ConsumerMemberDescription,
    Partitions,
)
from alpacamq.coordinator.groups import DescribeRequest
from alpacamq.model.errors import GroupIdNotFound, StaleMemberEpoch, UnknownMember
from alpacamq.model.ids import TopicPartition


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a member."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assigned: tuple[TopicPartition, ...]


async def join_group(broker: Broker, request: ConsumerHeartbeatRequest) -> Membership:
    """Join or rejoin a group."""
    reply: ConsumerHeartbeatReply = await broker.groups.ask(request)
    return _membership(broker, reply, reply.assignment or {})


async def send_heartbeat(broker: Broker, group: str, known: ConsumerMemberDescription) -> Membership:
    """Send a heartbeat for a member that has read its last assignment."""
    request = ConsumerHeartbeatRequest(
        group=group,
        member_id=known.member_id,
        member_epoch=known.member_epoch,
        instance_id=known.instance_id,
        owned=known.assignment,
        client_id=known.client_id,
        client_host=known.client_host,
    )
    reply: ConsumerHeartbeatReply = await broker.groups.ask(request)
    return _membership(broker, reply, known.assignment if reply.assignment is None else reply.assignment)


async def member(
    broker: Broker, group: str, member_id: str, member_epoch: int | None = None
) -> ConsumerMemberDescription:
    """Return a member of a group; raise UnknownMember, or StaleMemberEpoch for another epoch."""
    try:
        found = await broker.groups.ask(DescribeRequest(group=group))
    except GroupIdNotFound:
        raise UnknownMember(f"unknown group {group!r}") from None
    if isinstance(found, ConsumerGroupDescription):
        for each in found.members:
            if each.member_id != member_id:
                continue
            if member_epoch not in (None, each.member_epoch):
                raise StaleMemberEpoch(
                    f"member {member_id!r} is at epoch {each.member_epoch}, not {member_epoch}"
                )
            return each
    raise UnknownMember(f"{member_id!r} is not a member of group {group!r}; join again")


def partitions_by_topic(broker: Broker, partitions: Partitions) -> Mapping[str, list[int]]:
    """Return partitions by topic name, without deleted topics."""
    image = broker.topics.image
    return {
        topic.name: sorted(indexes)
        for topic_id, indexes in partitions.items()
        if indexes and (topic := image.topic_by_id(topic_id)) is not None
    }


def _membership(broker: Broker, reply: ConsumerHeartbeatReply, assigned: Partitions) -> Membership:
    return Membership(
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assigned=tuple(
            TopicPartition(broker.topics.image.topic(name).name, index)
            for name, indexes in partitions_by_topic(broker, assigned).items()
            for index in indexes
        ),
    )
