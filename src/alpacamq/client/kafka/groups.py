"""Lists, describes and deletes groups of every protocol."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from alpacamq.client.errors import NotFound, Refused, check
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.error_codes import ErrorCode
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
    assigned_partitions,
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

from .cluster import NAMES_PER_REQUEST, Cluster, Coordinates, batched, retry_transient
from .connection import Connection
from .topics import list_topics

CONSUMER = "consumer"
SHARE = "share"
STREAMS = "streams"
EMPTY = "Empty"


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
    [group] = find_groups(cluster, [name])
    return group


def find_groups(cluster: Cluster, names: Sequence[str] = ()) -> list[Group]:
    """Describe groups, by default all; NotFound if one of `names` does not exist."""
    groups = _listed(cluster, names)
    return _find(cluster, names, groups, {})


def find_groups_with_members(cluster: Cluster, names: Sequence[str] = ()) -> list[Group]:
    """Describe groups as `find_groups` does, but those without members only as they are listed.

    That is, without assignor and coordinator. Most of many groups have no members.
    """
    groups = _listed(cluster, names)
    empty = {
        name: Group(name=name, kind=group.kind, state=group.state, assignor="", coordinator="", members=())
        for name, group in groups.items()
        if group.state == EMPTY
    }
    return _find(cluster, names, groups, empty)


def _listed(cluster: Cluster, names: Sequence[str]) -> dict[str, GroupSummary]:
    groups = {group.name: group for group in list_groups(cluster)}
    for name in names:
        if name not in groups:
            raise NotFound("group", name, groups)
    return groups


def _find(
    cluster: Cluster, names: Sequence[str], groups: Mapping[str, GroupSummary], known: Mapping[str, Group]
) -> list[Group]:
    """Describe the groups that are not known."""
    kinds: dict[str, list[str]] = {}
    for name in names or groups:
        if name not in known:
            kinds.setdefault(groups[name].kind, []).append(name)
    found = dict(known)
    for kind, theirs in kinds.items():
        for described in _describe(cluster, kind, theirs):
            try:
                check(f"group {described.name!r}", described.error_code, described.error_message)
            except Refused:
                # Deleted since it was listed.
                if names or described.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                    raise
            else:
                found[described.name] = described.group
    return [found[name] for name in names or sorted(found)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    name: str
    error_code: int
    error_message: str | None
    group: Group


@retry_transient
def _describe(cluster: Cluster, kind: str, names: Sequence[str]) -> list[_Described]:
    ways = {CONSUMER: _describe_consumer, SHARE: _describe_share, STREAMS: _describe_streams}
    describe = ways.get(kind, _describe_classic)
    found: list[_Described] = []
    for coordinator, theirs in cluster.by_coordinator(Coordinates.GROUP, names):
        for some in batched(theirs, NAMES_PER_REQUEST):
            found += describe(cluster, coordinator, some)
    for each in found:
        if each.error_code and (error := Refused(f"group {each.name!r}", each.error_code)).retriable:
            raise error
    return found


def delete_groups(cluster: Cluster, names: Sequence[str]) -> None:
    """Delete groups without members and their offsets; NotFound if one does not exist, and then none is."""
    known = {group.name for group in list_groups(cluster)}
    for name in names:
        if name not in known:
            raise NotFound("group", name, sorted(known))
    for coordinator, theirs in cluster.by_coordinator(Coordinates.GROUP, names):
        for some in batched(theirs, NAMES_PER_REQUEST):
            answer = coordinator.call(DeleteGroupsRequest(groups_names=some), DeleteGroupsResponse)
            for result in answer.results:
                check(f"deleting group {result.group_id!r}", result.error_code)


def _describe_classic(_cluster: Cluster, coordinator: Connection, names: Sequence[str]) -> list[_Described]:
    answer = coordinator.call(DescribeGroupsRequest(groups=names), DescribeGroupsResponse)
    return [
        _Described(
            name=each.group_id,
            error_code=each.error_code,
            error_message=each.error_message,
            group=Group(
                name=each.group_id,
                kind="classic",
                state=each.group_state,
                assignor=each.protocol_data,
                coordinator=_place(coordinator),
                members=tuple(_classic_member(member) for member in each.members),
            ),
        )
        for each in answer.groups
    ]


def _classic_member(member: DescribedGroupMember) -> Member:
    return Member(
        id=member.member_id,
        instance=member.group_instance_id,
        client=member.client_id,
        host=member.client_host.removeprefix("/"),
        partitions=tuple(
            sorted(
                TopicPartition(TopicName(topic), index)
                for topic, indexes in assigned_partitions(member.member_assignment).items()
                for index in indexes
            )
        ),
    )


def _describe_consumer(_cluster: Cluster, coordinator: Connection, names: Sequence[str]) -> list[_Described]:
    request = ConsumerGroupDescribeRequest(group_ids=names)
    found = coordinator.call(request, ConsumerGroupDescribeResponse).groups
    return [_described(coordinator, CONSUMER, each) for each in found]


def _describe_share(_cluster: Cluster, coordinator: Connection, names: Sequence[str]) -> list[_Described]:
    request = ShareGroupDescribeRequest(group_ids=names)
    found = coordinator.call(request, ShareGroupDescribeResponse).groups
    return [_described(coordinator, SHARE, each) for each in found]


def _describe_streams(cluster: Cluster, coordinator: Connection, names: Sequence[str]) -> list[_Described]:
    request = StreamsGroupDescribeRequest(group_ids=names)
    answer = coordinator.call(request, StreamsGroupDescribeResponse)
    existing = {place for topic in list_topics(cluster) for place in topic.all_partitions()}
    return [
        _Described(
            name=found.group_id,
            error_code=found.error_code,
            error_message=found.error_message,
            group=Group(
                name=found.group_id,
                kind=STREAMS,
                state=found.group_state,
                assignor="",
                coordinator=_place(coordinator),
                members=tuple(_streams_member(member, found.topology, existing) for member in found.members),
            ),
        )
        for found in answer.groups
    ]


def _streams_member(
    member: DescribedStreamsMember, topology: DescribedTopology | None, existing: set[TopicPartition]
) -> Member:
    return Member(
        id=member.member_id,
        instance=member.instance_id,
        client=member.client_id,
        host=member.client_host.removeprefix("/"),
        partitions=tuple(sorted(existing.intersection(_task_partitions(member, topology)))),
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
    coordinator: Connection, kind: str, group: DescribedConsumerGroup | DescribedShareGroup
) -> _Described:
    return _Described(
        name=group.group_id,
        error_code=group.error_code,
        error_message=group.error_message,
        group=Group(
            name=group.group_id,
            kind=kind,
            state=group.group_state,
            assignor=group.assignor_name,
            coordinator=_place(coordinator),
            members=tuple(_consumer(member) for member in group.members),
        ),
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
