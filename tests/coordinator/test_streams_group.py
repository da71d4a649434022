"""Rules of streams groups, one by one, and their place among groups of other protocols."""

import msgspec
import pytest

from alpacamq.coordinator.consumer.messages import ConsumerHeartbeatRequest
from alpacamq.coordinator.groups import DescribeRequest
from alpacamq.coordinator.messages import (
    CommitRequest,
    DeleteGroupRequest,
    DeleteOffsetsRequest,
    FetchOffsetsRequest,
    LeaveReply,
    LeaveRequest,
    LeavingMember,
    ListReply,
    ListRequest,
    OffsetToCommit,
    PartitionResults,
    TxnCommitRequest,
)
from alpacamq.coordinator.share.config import ConfigureGroupRequest
from alpacamq.coordinator.streams.messages import (
    CreateInternalTopics,
    InternalTopicsFailed,
    StreamsGroupDescription,
    StreamsGroupState,
    StreamsHeartbeatReply,
    StreamsHeartbeatRequest,
    Subtopology,
    Tasks,
    Topology,
)
from alpacamq.model.errors import (
    AlpacaError,
    GroupIdNotFound,
    GroupMaxSizeReached,
    GroupSubscribedToTopic,
    InvalidConfig,
    InvalidRequest,
    NonEmptyGroup,
    StaleMemberEpoch,
    StreamsInvalidTopology,
    UnknownMember,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.state_machine import Outcome

from .consumer_clients import Topics
from .group_host import GROUP, GroupHost
from .streams_clients import WORD_COUNT, Host

JOIN = StreamsHeartbeatRequest(
    group=GROUP,
    member_id="m1",
    member_epoch=0,
    rebalance_timeout_ms=60_000,
    topology=WORD_COUNT,
    process_id="p1",
    owned=Tasks(),
)
BEAT = StreamsHeartbeatRequest(group=GROUP, member_id="m1", member_epoch=1)
OTHER = Topology(epoch=0, subtopologies=(Subtopology(id="0", source_topics=("lines",)),))
OFFSET = OffsetToCommit(topic="lines", partition=0, offset=5)
LINES_0 = TopicPartition(TopicName("lines"), 0)


@pytest.fixture
def host() -> Host:
    return Host(Topics(lines=2, words=2, counts=2))


def ask(host: Host, request: StreamsHeartbeatRequest, **changes: object) -> StreamsHeartbeatReply:
    """Return the reply to a valid request."""
    answer = host.ask(msgspec.structs.replace(request, **changes))
    if isinstance(answer, AlpacaError):
        raise answer
    return answer


@pytest.mark.parametrize(
    ("request_", "changes", "error"),
    [
        pytest.param(JOIN, {"member_id": ""}, InvalidRequest, id="no member id"),
        pytest.param(JOIN, {"group": ""}, InvalidRequest, id="no group id"),
        pytest.param(JOIN, {"instance_id": ""}, InvalidRequest, id="empty instance id"),
        pytest.param(JOIN, {"rack_id": ""}, InvalidRequest, id="empty rack id"),
        pytest.param(JOIN, {"rebalance_timeout_ms": -1}, InvalidRequest, id="no rebalance timeout"),
        pytest.param(JOIN, {"rebalance_timeout_ms": 0}, InvalidRequest, id="zero rebalance timeout"),
        pytest.param(JOIN, {"owned": None}, InvalidRequest, id="no owned tasks"),
        pytest.param(JOIN, {"owned": Tasks({"0": frozenset({0})})}, InvalidRequest, id="owns tasks"),
        pytest.param(JOIN, {"process_id": None}, InvalidRequest, id="no process id"),
        pytest.param(JOIN, {"topology": None}, InvalidRequest, id="no topology"),
        pytest.param(JOIN, {"client_tags": (("k", "v" * 20_000),)}, InvalidRequest, id="large tags"),
        pytest.param(
            JOIN,
            {"topology": Topology(epoch=0, subtopologies=())},
            StreamsInvalidTopology,
            id="empty topology",
        ),
        pytest.param(BEAT, {"topology": WORD_COUNT}, InvalidRequest, id="topology after the join"),
        pytest.param(BEAT, {"member_epoch": -3}, InvalidRequest, id="unknown epoch"),
        pytest.param(BEAT, {"member_epoch": -2}, InvalidRequest, id="static leave without instance id"),
        pytest.param(BEAT, {}, UnknownMember, id="not a member"),
    ],
)
def test_invalid_heartbeats_change_nothing(
    host: Host, request_: StreamsHeartbeatRequest, changes: dict[str, object], error: type[AlpacaError]
) -> None:
    with pytest.raises(error):
        ask(host, request_, **changes)
    assert not host.log
    assert not host.group.exists


def test_another_topology_of_the_same_epoch_is_refused_while_there_are_members(host: Host) -> None:
    ask(host, JOIN)
    with pytest.raises(InvalidRequest, match="another topology of epoch 0"):
        ask(host, JOIN, member_id="m2", topology=OTHER)
    ask(host, BEAT, member_epoch=-1)
    reply = ask(host, JOIN, member_id="m2", topology=OTHER)
    assert reply.tasks == Tasks({"0": frozenset({0, 1})})


def test_a_group_has_a_limited_number_of_members(host: Host) -> None:
    for number in range(10):
        ask(host, JOIN, member_id=f"m{number}")
    with pytest.raises(GroupMaxSizeReached):
        ask(host, JOIN, member_id="m11")


def test_a_revocation_that_takes_too_long_ends_the_membership(host: Host) -> None:
    ask(host, JOIN)
    ask(host, JOIN, member_id="m2")
    ask(host, BEAT)
    for _ in range(3):
        host.advance(20_000)
        host.ask(BEAT)
        host.ask(msgspec.structs.replace(BEAT, member_id="m2", member_epoch=2))
    with pytest.raises(UnknownMember):
        ask(host, BEAT)


def test_a_failed_creation_is_part_of_the_status(host: Host) -> None:
    host.topics.delete("words")
    ask(host, JOIN)
    host.group.creation_failed("cannot create topic 'words': no room")
    (status,) = ask(host, BEAT).statuses
    assert status.detail == "missing internal topics: words; cannot create topic 'words': no room"
    host.topics.put("other", 1)
    (status,) = ask(host, BEAT).statuses
    assert status.detail == "missing internal topics: words"


def test_a_restarted_group_is_described_as_before(host: Host) -> None:
    ask(host, JOIN)
    ask(host, JOIN, member_id="m2", process_id="p2")
    before = host.group.describe()
    for restart in (host.restart, host.restart_from_compacted, host.restart_from_snapshot):
        restart()
        assert host.group.describe() == before
    assert before.state is StreamsGroupState.RECONCILING


class StreamsHost(GroupHost):
    """A coordinator with topics; keeps the effects."""

    def __init__(self) -> None:
        self.effects: list[object] = []
        super().__init__(topics=Topics(lines=2))

    def take(self, outcome: Outcome) -> None:
        self.effects += outcome.effects
        super().take(outcome)


@pytest.fixture
def groups() -> StreamsHost:
    return StreamsHost()


def committing(**changes: object) -> CommitRequest:
    request = CommitRequest(group=GROUP, offsets=(OFFSET,), member_id="m1", generation=1)
    return msgspec.structs.replace(request, **changes)


def test_the_host_creates_missing_internal_topics(groups: StreamsHost) -> None:
    groups.ask(JOIN)
    (effect,) = groups.effects
    assert isinstance(effect, CreateInternalTopics)
    assert [(topic.name, topic.partitions) for topic in effect.topics] == [("counts", 2), ("words", 2)]
    groups.send(InternalTopicsFailed(group=GROUP, reason="no room"))
    reply = groups.ask(BEAT)
    assert isinstance(reply, StreamsHeartbeatReply)
    assert reply.statuses[0].detail.endswith("; no room")


def test_a_heartbeat_does_not_create_a_group(groups: StreamsHost) -> None:
    assert groups.error_of(BEAT) is GroupIdNotFound
    assert groups.machine.group_ids() == []


def test_streams_groups_are_listed_by_type_and_described(groups: StreamsHost) -> None:
    groups.ask(JOIN)
    listed = groups.ask(ListRequest(types=frozenset({"Streams"})))
    assert isinstance(listed, ListReply)
    assert [(each.group, each.type, each.protocol_type) for each in listed.groups] == [
        (GROUP, "streams", "streams")
    ]
    found = groups.ask(DescribeRequest(group=GROUP))
    assert isinstance(found, StreamsGroupDescription)
    assert found.state is StreamsGroupState.NOT_READY
    assert found.topology == WORD_COUNT


def test_commits_need_the_epoch_of_the_member(groups: StreamsHost) -> None:
    groups.ask(JOIN)
    assert isinstance(groups.ask(committing()), PartitionResults)
    assert groups.error_of(committing(generation=7)) is StaleMemberEpoch
    assert groups.error_of(committing(member_id="m2")) is UnknownMember
    transactional = TxnCommitRequest(
        group=GROUP, offsets=(OFFSET,), producer_id=1, producer_epoch=0, member_id="m1", generation=7
    )
    assert groups.error_of(transactional) is StaleMemberEpoch
    fetching = FetchOffsetsRequest(group=GROUP, partitions=(LINES_0,), member_id="m1", member_epoch=7)
    assert groups.error_of(fetching) is StaleMemberEpoch
    groups.check_log()


def test_offsets_of_source_topics_are_kept_while_there_are_members(groups: StreamsHost) -> None:
    groups.ask(JOIN)
    groups.ask(committing())
    results = groups.ask(DeleteOffsetsRequest(group=GROUP, partitions=(LINES_0,)))
    assert isinstance(results, PartitionResults)
    assert isinstance(results.partitions[0].error, GroupSubscribedToTopic)


def test_a_group_without_members_can_be_deleted(groups: StreamsHost) -> None:
    groups.ask(JOIN)
    assert groups.error_of(DeleteGroupRequest(group=GROUP)) is NonEmptyGroup
    removed = groups.ask(LeaveRequest(group=GROUP, members=(LeavingMember(member_id="m1"),)))
    assert isinstance(removed, LeaveReply)
    assert removed.members[0].error is None
    groups.ask(DeleteGroupRequest(group=GROUP))
    groups.check_log()
    groups.restart()
    assert groups.machine.group_ids() == []


def test_an_empty_group_can_change_its_protocol_and_keeps_its_offsets(groups: StreamsHost) -> None:
    groups.ask(committing(member_id="", generation=-1))
    groups.ask(JOIN)
    consumer = ConsumerHeartbeatRequest(
        group=GROUP,
        member_epoch=0,
        member_id="c1",
        rebalance_timeout_ms=60_000,
        subscribed_topics=("lines",),
        owned={},
    )
    assert groups.error_of(consumer) is GroupIdNotFound
    groups.ask(msgspec.structs.replace(BEAT, member_epoch=-1))
    groups.ask(consumer)
    assert groups.error_of(JOIN) is GroupIdNotFound
    groups.restart()
    assert groups.error_of(JOIN) is GroupIdNotFound
    groups.ask(msgspec.structs.replace(consumer, member_epoch=-1))
    groups.ask(JOIN)
    groups.check_log()
    groups.restart()
    assert isinstance(groups.ask(DescribeRequest(group=GROUP)), StreamsGroupDescription)
    assert groups.machine.partitions_in(GROUP, {"lines"}) == {"lines": [LINES_0]}


def test_settings_of_a_group_take_effect(groups: StreamsHost) -> None:
    names = ("streams.session.timeout.ms", "streams.heartbeat.interval.ms", "streams.num.standby.replicas")
    values = ("2000", "300", "1")
    groups.ask(ConfigureGroupRequest(group=GROUP, overrides=dict(zip(names, values, strict=True))))
    reply = groups.ask(JOIN)
    assert isinstance(reply, StreamsHeartbeatReply)
    assert reply.heartbeat_interval_ms == 300
    groups.advance(2000)
    assert groups.error_of(BEAT) is UnknownMember


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("streams.num.standby.replicas", "3"),
        ("streams.num.standby.replicas", "one"),
        ("streams.session.timeout.ms", "10"),
        ("streams.heartbeat.interval.ms", "50000"),
    ],
)
def test_invalid_settings_are_refused(groups: StreamsHost, name: str, value: str) -> None:
    assert groups.error_of(ConfigureGroupRequest(group=GROUP, overrides={name: value})) is InvalidConfig


def test_rebalances_are_recorded_with_their_causes(host: Host) -> None:
    ask(host, JOIN)
    ask(host, JOIN, member_id="m2", process_id="p2")
    host.advance(500)
    ask(host, BEAT)  # revokes
    ask(host, BEAT, owned=Tasks(active={"0": frozenset({0}), "1": frozenset({0})}))
    ask(host, BEAT, member_id="m2", member_epoch=2, owned=Tasks())
    host.topics.put("lines", 4)
    ask(host, BEAT, member_epoch=2)
    newer = Topology(epoch=1, subtopologies=WORD_COUNT.subtopologies)
    ask(host, JOIN, topology=newer)
    host.advance(1_000_000)
    assert [
        (each.state, each.cause, each.generation, each.members) for each in host.group.history.newest_first()
    ] == [
        ("completed", "session-expired", 5, ("m1", "m2")),
        ("interrupted", "topology-changed", 4, ("m1",)),
        ("interrupted", "topics-changed", 3, ()),
        ("completed", "member-joined", 2, ("m2",)),
        ("completed", "member-joined", 1, ("m1",)),
    ]
