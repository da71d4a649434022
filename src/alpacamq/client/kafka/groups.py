"""Lists, describes and deletes groups of every protocol."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from alpacamq.client.errors import NotFound, check, only
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from alpacamq.protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from alpacamq.protocol.messages.share import (
    DescribedShareGroup,
    DescribedShareMember,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from alpacamq.protocol.messages.streams import (
    DescribedStreamsMember,
    DescribedTopology,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from alpacamq.protocol.notation import Bytes, Int16, Int32, Message, String
from alpacamq.protocol.schema import decode

from .cluster import Cluster, Coordinates, retry_transient
from .connection import Connection
from .topics import list_topics

CONSUMER = "consumer"
SHARE = "share"
STREAMS = "streams"


class _AssignedTopic(Message):
    topic: String
    partitions: Sequence[Int32] = []


class _Assignment(Message):
    """Assignment written by a classic group's leader; opaque to the broker."""

    version: Int16
    topics: Sequence[_AssignedTopic] = []
    user_data: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A group as listed."""

    name: str
    kind: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a group and its assignment."""

    id: str
    instance: str | None
    client: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group with its members."""

    name: str
    kind: str
    state: str
    assignor: str
    coordinator: str
    members: tuple[Member, ...]


@retry_transient
def list_groups(cluster: Cluster) -> list[GroupSummary]:
    """List all groups of all brokers by name."""
    groups = {}
    for broker in cluster.all_brokers():
        answer = broker.call(ListGroupsRequest(), ListGroupsResponse)
        check(f"listing the groups of {broker.address}", answer.error_code)
        for group in answer.groups:
            kind = group.group_type.lower() or "classic"
            groups[group.group_id] = GroupSummary(name=group.group_id, kind=kind, state=group.group_state)
    return [groups[name] for name in sorted(groups)]


def find_group(cluster: Cluster, name: str) -> Group:
    """Describe a group; NotFound if it does not exist."""
    groups = {group.name: group for group in list_groups(cluster)}
    if name not in groups:
        raise NotFound("group", name, groups)
    ways = {CONSUMER: _describe_consumer, SHARE: _describe_share, STREAMS: _describe_streams}
    return ways.get(groups[name].kind, _describe_classic)(cluster, name)


@retry_transient
def delete_group(cluster: Cluster, name: str) -> None:
    """Delete a group without members and its offsets; NotFound if it does not exist."""
    known = [group.name for group in list_groups(cluster)]
    if name not in known:
        raise NotFound("group", name, known)
    coordinator = cluster.coordinator(Coordinates.GROUP, name)
    for result in coordinator.call(DeleteGroupsRequest(groups_names=[name]), DeleteGroupsResponse).results:
        check(f"deleting group {name!r}", result.error_code)


@retry_transient
def _describe_classic(cluster: Cluster, name: str) -> Group:
    coordinator = cluster.coordinator(Coordinates.GROUP, name)
    answer = coordinator.call(DescribeGroupsRequest(groups=[name]), DescribeGroupsResponse)
    described = only(f"group {name!r}", answer.groups)
    check(f"group {name!r}", described.error_code, described.error_message)
    return Group(
        name=name,
        kind="classic",
        state=described.group_state,
        assignor=described.protocol_data,
        coordinator=_place(coordinator),
        members=tuple(_classic_member(member) for member in described.members),
    )


def _classic_member(member: DescribedGroupMember) -> Member:
    return Member(
        id=member.member_id,
        instance=member.group_instance_id,
        client=member.client_id,
        host=member.client_host.removeprefix("/"),
        partitions=_assigned(member.member_assignment),
    )


def _assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    try:
        topics = decode(_Assignment, 0, memoryview(assignment)).topics if assignment else ()
    except ProtocolError:
        # Groups of other protocol types have their own format.
        return ()
    return tuple(
        sorted(
            TopicPartition(TopicName(topic.topic), index) for topic in topics for index in topic.partitions
        )
    )


@retry_transient
def _describe_consumer(cluster: Cluster, name: str) -> Group:
    coordinator = cluster.coordinator(Coordinates.GROUP, name)
    request = ConsumerGroupDescribeRequest(group_ids=[name])
    found = coordinator.call(request, ConsumerGroupDescribeResponse).groups
    return _described(coordinator, CONSUMER, name, only(f"group {name!r}", found))


@retry_transient
def _describe_share(cluster: Cluster, name: str) -> Group:
    coordinator = cluster.coordinator(Coordinates.GROUP, name)
    request = ShareGroupDescribeRequest(group_ids=[name])
    found = coordinator.call(request, ShareGroupDescribeResponse).groups
    return _described(coordinator, SHARE, name, only(f"group {name!r}", found))


@retry_transient
def _describe_streams(cluster: Cluster, name: str) -> Group:
    coordinator = cluster.coordinator(Coordinates.GROUP, name)
    request = StreamsGroupDescribeRequest(group_ids=[name])
    found = only(f"group {name!r}", coordinator.call(request, StreamsGroupDescribeResponse).groups)
    check(f"group {name!r}", found.error_code, found.error_message)
    existing = {place for topic in list_topics(cluster) for place in topic.all_partitions()}
    return Group(
        name=name,
        kind=STREAMS,
        state=found.group_state,
        assignor="",
        coordinator=_place(coordinator),
        members=tuple(
            Member(
                id=member.member_id,
                instance=member.instance_id,
                client=member.client_id,
                host=member.client_host.removeprefix("/"),
                partitions=tuple(sorted(existing.intersection(_task_partitions(member, found.topology)))),
            )
            for member in found.members
        ),
    )


def _task_partitions(
    member: DescribedStreamsMember, topology: DescribedTopology | None
) -> Iterator[TopicPartition]:
    """Yield the source partitions of the active tasks of a member; a topic may have fewer of them."""
    inputs: dict[str, list[str]] = {}
    for each in (topology.subtopologies or ()) if topology is not None else ():
        repartition = (topic.name for topic in each.repartition_source_topics)
        inputs[each.subtopology_id] = [*each.source_topics, *repartition]
    for tasks in member.assignment.active_tasks:
        for name in inputs.get(tasks.subtopology_id, ()):
            for index in tasks.partitions:
                yield TopicPartition(TopicName(name), index)


def _described(
    coordinator: Connection, kind: str, name: str, group: DescribedConsumerGroup | DescribedShareGroup
) -> Group:
    check(f"group {name!r}", group.error_code, group.error_message)
    return Group(
        name=name,
        kind=kind,
        state=group.group_state,
        assignor=group.assignor_name,
        coordinator=_place(coordinator),
        members=tuple(_consumer(member) for member in group.members),
    )


def _consumer(member: DescribedConsumer | DescribedShareMember) -> Member:
    return Member(
        id=member.member_id,
        instance=member.instance_id if isinstance(member, DescribedConsumer) else None,
        client=member.client_id,
        host=member.client_host.removeprefix("/"),
        partitions=tuple(
            sorted(
                TopicPartition(TopicName(topic.topic_name), index)
                for topic in member.assignment.topic_partitions
                for index in topic.partitions
            )
        ),
    )


def _place(broker: Connection) -> str:
    return str(broker.address)
