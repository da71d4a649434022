"""Share groups looked at and administered: describing, listing, moving, forgetting, deleting, configuring."""

from typing import Any

import pytest

from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from alpacamq.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from alpacamq.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    ListGroupsRequest,
)
from alpacamq.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    ShareGroupDescribeRequest,
)

from .share_member import GROUP, Member, batch, configure, publish
from .test_committed_offsets import commit
from .wire import Wire

LOCK = "share.record.lock.duration.ms"


@pytest.fixture
def member(wire: Wire, made: str) -> Member:
    """A member whose group begins at the beginning of a topic with three messages."""
    configure(wire, made, auto_offset_reset="earliest")
    publish(wire, made, b"0", b"1", b"2")
    return Member(wire, made, made).join()


def described(wire: Wire, group: str) -> Any:
    (found,) = wire.ask(ShareGroupDescribeRequest(group_ids=[group])).groups
    return found


def offsets(wire: Wire, group: str, topics: dict[str, list[int]] | None = None, version: int = 1) -> Any:
    """The group's part of the answer."""
    named = None
    if topics is not None:
        named = [
            DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ]
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=named)
    (found,) = wire.ask(DescribeShareGroupOffsetsRequest(groups=[asked]), version).groups
    return found


def alter(wire: Wire, group: str, topic: str, **partitions: int) -> Any:
    asked = [
        AlterShareGroupOffsetsRequestPartition(partition_index=int(index[1:]), start_offset=offset)
        for index, offset in partitions.items()
    ]
    return wire.ask(
        AlterShareGroupOffsetsRequest(
            group_id=group, topics=[AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=asked)]
        )
    )


def listed(wire: Wire, group: str, **filters: Any) -> list[tuple[str, str, str]]:
    response = wire.ask(ListGroupsRequest(**filters))
    return [
        (each.protocol_type, each.group_state, each.group_type)
        for each in response.groups
        if each.group_id == group
    ]


def test_a_group_is_described_with_its_members(wire: Wire, member: Member) -> None:
    group = described(wire, member.group)
    assert (group.group_state, group.assignor_name) == ("Stable", "simple")
    assert group.group_epoch == group.assignment_epoch > 0
    (found,) = group.members
    assert (found.member_id, found.client_id, found.client_host) == ("member", "wire", "127.0.0.1")
    assert found.subscribed_topic_names == [member.topic]
    (assigned,) = found.assignment.topic_partitions
    assert (assigned.topic_name, assigned.topic_id, assigned.partitions) == (
        member.topic,
        member.topic_id,
        [0, 1],
    )
    member.heartbeat(-1)
    assert (described(wire, member.group).group_state, described(wire, member.group).members) == ("Empty", [])


def test_other_groups_are_not_described_as_share_groups(wire: Wire, made: str) -> None:
    assert described(wire, "unheard of").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    commit(wire, made, made, 0)
    assert described(wire, made).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_duplicate_groups_are_described_once(wire: Wire, member: Member) -> None:
    groups = wire.ask(ShareGroupDescribeRequest(group_ids=[member.group] * 3)).groups
    assert [group.group_id for group in groups] == [member.group]
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=member.group, topics=None)
    places = wire.ask(DescribeShareGroupOffsetsRequest(groups=[asked] * 3)).groups
    assert [group.group_id for group in places] == [member.group]


def test_a_share_group_is_not_described_as_another(wire: Wire, member: Member) -> None:
    (found,) = wire.ask(DescribeGroupsRequest(groups=[member.group])).groups
    assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_groups_are_listed_by_type_and_state(wire: Wire, member: Member) -> None:
    stable = [("share", "Stable", "share")]
    assert listed(wire, member.group) == stable
    assert listed(wire, member.group, types_filter=["Share"]) == stable
    assert listed(wire, member.group, types_filter=["consumer"]) == []
    assert listed(wire, member.group, states_filter=["empty"]) == []


def test_a_name_is_of_one_kind_of_group(wire: Wire, member: Member, made: str) -> None:
    joining = JoinGroupRequest(
        group_id=member.group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    assert wire.ask(joining).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    consumer = ConsumerGroupHeartbeatRequest(
        group_id=member.group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[made],
        topic_partitions=[],
    )
    assert wire.ask(consumer).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert commit(wire, member.group, made, 0) == ErrorCode.GROUP_ID_NOT_FOUND
    taken = f"{made}-taken"
    commit(wire, taken, made, 0)
    assert Member(wire, made, taken).heartbeat(0, [made]).error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("version", [0, 1])
def test_offsets_tell_where_a_group_is_and_how_much_is_left(wire: Wire, member: Member, version: int) -> None:
    member.fetch(0, 1)
    member.acknowledge({0: [batch(0), batch(2)]})
    found = offsets(wire, member.group, version=version)
    (topic,) = found.topics
    assert (topic.topic_name, topic.topic_id) == (member.topic, member.topic_id)
    lags = (1, 0) if version else (-1, -1)
    assert [(each.partition_index, each.start_offset, each.lag) for each in topic.partitions] == [
        (0, 1, lags[0]),
        (1, 0, lags[1]),
    ]


def test_offsets_of_partitions_that_a_group_has_not_used(wire: Wire, member: Member) -> None:
    (topic,) = offsets(wire, member.group, {member.topic: [0, 9]}).topics
    assert [(each.start_offset, each.error_code) for each in topic.partitions] == [
        (-1, 0),
        (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    (topic,) = offsets(wire, member.group, {"unheard-of": [0]}).topics
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offsets(wire, "unheard of").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_a_group_without_members_can_be_altered(wire: Wire, member: Member) -> None:
    member.fetch(0)
    member.acknowledge({0: [batch(0, 2)]})
    assert alter(wire, member.group, member.topic, p0=1).error_code == ErrorCode.NON_EMPTY_GROUP
    member.heartbeat(-1)
    response = alter(wire, member.group, member.topic, p0=1, p1=5, p9=0)
    assert [(each.partition_index, each.error_code) for each in response.responses[0].partitions] == [
        (0, 0),
        (1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    member.join()
    member.epoch = 0
    assert member.fetch(0)[0].ranges == [(1, 2, 1)]
    assert alter(wire, "unheard of", member.topic, p0=0).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_forgets_a_topic(wire: Wire, member: Member) -> None:
    member.fetch(0)
    request = DeleteShareGroupOffsetsRequest(
        group_id=member.group,
        topics=[
            DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in (member.topic, "unheard-of")
        ],
    )
    assert wire.ask(request).error_code == ErrorCode.NON_EMPTY_GROUP
    member.heartbeat(-1)
    codes = [each.error_code for each in wire.ask(request).responses]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert offsets(wire, member.group).topics == []
    assert wire.ask(request).responses[0].error_code == 0


def test_a_deleted_group_begins_anew(wire: Wire, member: Member) -> None:
    member.fetch(0)
    member.acknowledge({0: [batch(0, 2)]})
    (result,) = wire.ask(DeleteGroupsRequest(groups_names=[member.group])).results
    assert result.error_code == ErrorCode.NON_EMPTY_GROUP
    member.heartbeat(-1)
    (result,) = wire.ask(DeleteGroupsRequest(groups_names=[member.group])).results
    assert result.error_code == 0
    assert listed(wire, member.group) == []
    (result,) = wire.ask(DeleteGroupsRequest(groups_names=[member.group])).results
    assert result.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    member.join()
    member.epoch = 0
    assert member.fetch(0)[0].ranges == [(0, 2, 1)]


def test_the_coordinator_of_share_groups_is_found(wire: Wire) -> None:
    (found,) = wire.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=["g:topic:0"])).coordinators
    assert (found.error_code, found.node_id) == (0, 1)


def config(wire: Wire, group: str, *names: str) -> dict[str, tuple[str, int]]:
    """Value and source of a group's settings."""
    resource = DescribeConfigsResource(
        resource_type=GROUP, resource_name=group, configuration_keys=names or None
    )
    (result,) = wire.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True)).results
    assert result.error_code == 0, result.error_message
    return {each.name: (each.value, each.config_source) for each in result.configs}


def test_settings_of_a_group_are_described_with_their_sources(wire: Wire, topic: str) -> None:
    configure(wire, topic, record_lock_duration_ms="2000")
    assert config(wire, topic, LOCK) == {LOCK: ("2000", 8)}
    assert config(wire, topic)["share.auto.offset.reset"] == ("latest", 5)
    assert len(config(wire, topic)) == 10


def test_settings_of_a_group_are_replaced_and_deleted(wire: Wire, topic: str) -> None:
    configure(wire, topic, record_lock_duration_ms="2000")
    resource = AlterConfigsResource(
        resource_type=GROUP,
        resource_name=topic,
        configs=[AlterableConfig(name="share.auto.offset.reset", value="earliest")],
    )
    (result,) = wire.ask(AlterConfigsRequest(resources=[resource])).responses
    assert result.error_code == 0
    assert config(wire, topic, LOCK) == {LOCK: ("30000", 5)}
    deletion = IncrementallyAlterableConfig(name="share.auto.offset.reset", config_operation=1)
    assert change(wire, topic, deletion) == 0
    assert config(wire, topic, "share.auto.offset.reset") == {"share.auto.offset.reset": ("latest", 5)}


def change(wire: Wire, group: str, entry: IncrementallyAlterableConfig, *, dry_run: bool = False) -> int:
    resource = IncrementalAlterConfigsResource(resource_type=GROUP, resource_name=group, configs=[entry])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry_run)
    (result,) = wire.ask(request).responses
    return int(result.error_code)


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        pytest.param({"name": LOCK, "value": "1"}, ErrorCode.INVALID_CONFIG, id="out of bounds"),
        pytest.param({"name": LOCK, "value": None}, ErrorCode.INVALID_CONFIG, id="no value"),
        pytest.param({"name": "retention.ms", "value": "1"}, ErrorCode.INVALID_CONFIG, id="not a group's"),
        pytest.param(
            {"name": LOCK, "value": "1", "config_operation": 2}, ErrorCode.INVALID_REQUEST, id="not a list"
        ),
    ],
)
def test_a_bad_setting_is_refused(wire: Wire, topic: str, entry: dict[str, Any], code: ErrorCode) -> None:
    assert change(wire, topic, IncrementallyAlterableConfig(**{"config_operation": 0, **entry})) == code
    assert config(wire, topic, LOCK) == {LOCK: ("30000", 5)}


def test_a_dry_run_changes_no_setting(wire: Wire, topic: str) -> None:
    entry = IncrementallyAlterableConfig(name=LOCK, config_operation=0, value="5000")
    assert change(wire, topic, entry, dry_run=True) == 0
    assert config(wire, topic, LOCK) == {LOCK: ("30000", 5)}
