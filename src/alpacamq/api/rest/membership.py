"""Members of consumer groups (KIP-848) whose side of the protocol the API takes over.

A Kafka client follows epochs and confirms what it gives up. Over HTTP a member says who it is,
and whoever asks again has taken note of the last answer: so the API speaks with the epoch the group knows,
and confirms for the member what it has been told. A member that is no longer one is refused by its id.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from alpacamq.broker.broker import Broker
from alpacamq.coordinator.consumer.messages import (
    ConsumerGroupDescription,
    ConsumerHeartbeatReply,
    ConsumerHeartbeatRequest,
    ConsumerMemberDescription,
    Partitions,
)
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.messages import DescribeRequest
from alpacamq.model.errors import GroupIdNotFound, StaleMemberEpoch, UnknownMember
from alpacamq.model.ids import TopicPartition

from .coordination import ask_group


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Where a member stands."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assigned: tuple[TopicPartition, ...]


async def joined(broker: Broker, request: ConsumerHeartbeatRequest) -> Membership:
    """Join, or join again."""
    reply: ConsumerHeartbeatReply = await ask_group(broker, GroupCoordinator.consumer_heartbeat, request)
    return _membership(broker, reply, reply.assignment or {})


async def heard(broker: Broker, group: str, known: ConsumerMemberDescription) -> Membership:
    """A member, as it was a moment ago, is alive and has taken note of what it was last told."""
    request = ConsumerHeartbeatRequest(
        group=group,
        member_id=known.member_id,
        member_epoch=known.member_epoch,
        instance_id=known.instance_id,
        owned=known.assignment,
        client_id=known.client_id,
        client_host=known.client_host,
    )
    reply: ConsumerHeartbeatReply = await ask_group(broker, GroupCoordinator.consumer_heartbeat, request)
    return _membership(broker, reply, known.assignment if reply.assignment is None else reply.assignment)


async def member(
    broker: Broker, group: str, member_id: str, member_epoch: int | None = None
) -> ConsumerMemberDescription:
    """A member as the group knows it; UnknownMember if it is none, StaleMemberEpoch if it is further on."""
    try:
        found = await ask_group(broker, GroupCoordinator.describe, DescribeRequest(group=group))
    except GroupIdNotFound:
        raise UnknownMember(f"there is no group {group!r}") from None
    if isinstance(found, ConsumerGroupDescription):
        for each in found.members:
            if each.member_id != member_id:
                continue
            if member_epoch not in (None, each.member_epoch):
                raise StaleMemberEpoch(
                    f"member {member_id!r} is at epoch {each.member_epoch}, not {member_epoch}"
                )
            return each
    raise UnknownMember(f"{member_id!r} is not a member of group {group!r}; it is to join again")


def partitions_by_topic(broker: Broker, partitions: Partitions) -> Mapping[str, list[int]]:
    """Partitions under the names of their topics; a topic that has been deleted has none."""
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
