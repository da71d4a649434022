"""Rules of consumer groups, one by one. Transcripts and the simulation cover reconciliation."""

from uuid import UUID

import msgspec
import pytest

from alpacamq.coordinator.consumer.group import ConsumerGroup
from alpacamq.coordinator.consumer.messages import (
    ConsumerGroupSettings,
    ConsumerGroupState,
    ConsumerHeartbeatReply,
    ConsumerHeartbeatRequest,
    ConsumerMemberDescription,
)
from alpacamq.coordinator.records import parts_of
from alpacamq.model.errors import (
    AlpacaError,
    FencedInstanceId,
    GroupMaxSizeReached,
    InvalidRegularExpression,
    InvalidRequest,
    NonEmptyGroup,
    StaleMemberEpoch,
    UnknownMember,
    UnsupportedAssignor,
)

from .consumer_clients import GROUP, Host, Topics

JOIN = ConsumerHeartbeatRequest(
    group=GROUP,
    member_id="m1",
    member_epoch=0,
    rebalance_timeout_ms=60_000,
    subscribed_topics=("a",),
    owned={},
)
BEAT = ConsumerHeartbeatRequest(group=GROUP, member_id="m1", member_epoch=1)
TOPIC_A = UUID(int=1)


@pytest.fixture
def host() -> Host:
    return Host(Topics(a=4))


def ask(host: Host, request: ConsumerHeartbeatRequest, **changes: object) -> ConsumerHeartbeatReply:
    """Return the reply to a valid request."""
    answer = host.ask(msgspec.structs.replace(request, **changes))
    if isinstance(answer, AlpacaError):
        raise answer
    return answer


@pytest.mark.parametrize(
    ("request_", "changes", "text"),
    [
        pytest.param(JOIN, {"group": ""}, "group id", id="no group"),
        pytest.param(JOIN, {"instance_id": ""}, "instance id", id="empty instance id"),
        pytest.param(JOIN, {"rack_id": ""}, "rack id", id="empty rack id"),
        pytest.param(JOIN, {"rebalance_timeout_ms": -1}, "rebalance timeout", id="join without timeout"),
        pytest.param(JOIN, {"rebalance_timeout_ms": 0}, "must be positive", id="zero timeout"),
        pytest.param(JOIN, {"rebalance_timeout_ms": -5}, "must be positive", id="negative timeout"),
        pytest.param(JOIN, {"owned": None}, "owned partitions", id="join without owned partitions"),
        pytest.param(
            JOIN, {"owned": {TOPIC_A: frozenset({0})}}, "owned partitions", id="join with partitions"
        ),
        pytest.param(JOIN, {"subscribed_topics": None}, "subscription", id="join without subscription"),
        pytest.param(JOIN, {"subscribed_topics": ("a" * 300_000,)}, "characters", id="too much to store"),
        pytest.param(BEAT, {"member_id": ""}, "only in a join", id="heartbeat without member id"),
        pytest.param(
            BEAT, {"member_id": "", "member_epoch": -1}, "only in a join", id="leave without member id"
        ),
        pytest.param(BEAT, {"member_epoch": -3}, "invalid member epoch", id="unknown epoch"),
        pytest.param(BEAT, {"member_epoch": -2}, "instance id", id="static leave without instance id"),
    ],
)
def test_an_invalid_request_is_rejected(
    host: Host, request_: ConsumerHeartbeatRequest, changes: dict[str, object], text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        ask(host, request_, **changes)
    assert host.group.is_empty
    assert not host.log


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"assignor": "fastest"}, UnsupportedAssignor),
        ({"subscribed_regex": "(a"}, InvalidRegularExpression),
        ({"subscribed_regex": "a" * 5000}, InvalidRegularExpression),
        ({"member_epoch": 1}, UnknownMember),
        ({"member_epoch": -1}, UnknownMember),
        ({"member_epoch": -2, "instance_id": "i1"}, UnknownMember),
    ],
)
def test_a_failed_join_changes_nothing(
    host: Host, changes: dict[str, object], error: type[AlpacaError]
) -> None:
    with pytest.raises(error):
        ask(host, JOIN, **changes)
    assert not host.group.exists
    assert not host.log
    assert host.group.next_deadline_ms is None


def test_a_join_without_member_id_gets_one(host: Host) -> None:
    assert ask(host, JOIN, member_id="").member_id == "generated-1"
    assert ask(host, BEAT, member_id="generated-1").member_epoch == 1


def test_a_full_group_accepts_only_rejoins() -> None:
    host = Host(Topics(a=4), ConsumerGroupSettings(max_members=1))
    ask(host, JOIN)
    with pytest.raises(GroupMaxSizeReached, match="the limit is 1"):
        ask(host, JOIN, member_id="m2")
    assert ask(host, JOIN).member_epoch == 1


def test_an_unchanged_heartbeat_stores_nothing(host: Host) -> None:
    ask(host, JOIN)
    stored = len(host.log)
    assert ask(host, BEAT).member_epoch == 1
    assert len(host.log) == stored


def test_changes_of_unsubscribed_topics_do_not_affect_the_group(host: Host) -> None:
    ask(host, JOIN)
    stored = len(host.log)
    host.topics.put("b", 3)
    assert ask(host, BEAT).member_epoch == 1
    assert len(host.log) == stored


def test_a_recreated_topic_is_another_topic(host: Host) -> None:
    first = ask(host, JOIN).assignment
    host.topics.delete("a")
    host.topics.put("a", 4)
    ask(host, BEAT, owned=first)
    again = ask(host, BEAT, owned={})
    assert again.member_epoch == 2
    assert again.assignment is not None
    assert again.assignment.keys() == {UUID(int=2)}


def test_names_and_pattern_are_combined(host: Host) -> None:
    host.topics.put("b1", 1)
    host.topics.put("b2", 1)
    host.topics.put("other", 1)
    reply = ask(host, JOIN, subscribed_regex="b.")
    assert reply.assignment is not None
    assert len(reply.assignment) == 3
    assert [host.group.subscribes(name) for name in ("a", "b2", "other", "b33")] == [True, True, False, False]


def test_a_rejoin_replaces_the_subscription(host: Host) -> None:
    host.topics.put("b", 1)
    ask(host, JOIN, subscribed_topics=None, subscribed_regex="a|b")
    ask(host, JOIN)
    assert [host.group.subscribes(name) for name in ("a", "b")] == [True, False]


def test_fields_missing_in_a_heartbeat_are_unchanged(host: Host) -> None:
    ask(host, JOIN, rack_id="r1", client_id="c1", client_host="h1", assignor="range", subscribed_regex="z")
    ask(host, BEAT, client_id="c1", client_host="h2")
    assert host.group.describe().members == (
        ConsumerMemberDescription(
            member_id="m1",
            instance_id=None,
            rack_id="r1",
            member_epoch=1,
            client_id="c1",
            client_host="h2",
            subscribed_topics=("a",),
            subscribed_regex="z",
            assignment={TOPIC_A: frozenset(range(4))},
            target_assignment={TOPIC_A: frozenset(range(4))},
        ),
    )
    assert host.group.describe().assignor == "range"


def test_the_most_preferred_assignor_is_used(host: Host) -> None:
    ask(host, JOIN, member_id="m1", assignor="range")
    ask(host, JOIN, member_id="m2", assignor="uniform")
    ask(host, JOIN, member_id="m3", assignor="uniform")
    ask(host, JOIN, member_id="m4")
    assert host.group.describe().assignor == "uniform"


def test_a_member_cannot_change_its_instance_id(host: Host) -> None:
    ask(host, JOIN, instance_id="i1")
    with pytest.raises(FencedInstanceId):
        ask(host, JOIN, instance_id="i2")
    with pytest.raises(FencedInstanceId):
        ask(host, JOIN, instance_id=None)


def test_a_static_member_may_come_back_with_the_same_member_id(host: Host) -> None:
    first = ask(host, JOIN, instance_id="i1")
    ask(host, BEAT, member_epoch=-2, instance_id="i1")
    again = ask(host, JOIN, instance_id="i1")
    assert (again.member_epoch, again.assignment) == (first.member_epoch, first.assignment)


class TestCommits:
    def test_an_empty_group_accepts_commits_without_epoch(self, host: Host) -> None:
        host.group.validate_commit("", -1)
        with pytest.raises(UnknownMember):
            host.group.validate_commit("", 0)
        ask(host, JOIN)
        with pytest.raises(UnknownMember):
            host.group.validate_commit("", -1)

    def test_a_commit_requires_the_epoch_of_the_member(self, host: Host) -> None:
        ask(host, JOIN)
        host.group.validate_commit("m1", 1)
        for epoch in (-1, 0, 2):
            with pytest.raises(StaleMemberEpoch):
                host.group.validate_commit("m1", epoch)

    def test_a_static_member_that_is_away_cannot_commit(self, host: Host) -> None:
        ask(host, JOIN, instance_id="i1")
        ask(host, BEAT, member_epoch=-2, instance_id="i1")
        with pytest.raises(StaleMemberEpoch):
            host.group.validate_commit("m1", 1)


class TestAdministration:
    @pytest.mark.parametrize(
        ("member_id", "instance_id"), [("m1", None), ("m1", "i1"), ("", "i1")], ids=["id", "both", "instance"]
    )
    def test_a_member_can_be_removed(self, host: Host, member_id: str, instance_id: str | None) -> None:
        ask(host, JOIN, instance_id="i1")
        host.log += host.group.remove(member_id, instance_id, host.now_ms)
        assert host.group.is_empty
        assert host.group.next_deadline_ms is None
        with pytest.raises(UnknownMember):
            ask(host, BEAT)

    def test_removing_an_unknown_member_fails(self, host: Host) -> None:
        ask(host, JOIN, instance_id="i1")
        with pytest.raises(UnknownMember):
            host.group.remove("m2", None, host.now_ms)
        with pytest.raises(UnknownMember):
            host.group.remove("m1", "i2", host.now_ms)
        with pytest.raises(FencedInstanceId):
            host.group.remove("m2", "i1", host.now_ms)

    def test_only_an_empty_group_can_be_deleted_with_all_records(self, host: Host) -> None:
        ask(host, JOIN)
        with pytest.raises(NonEmptyGroup):
            host.group.delete()
        ask(host, BEAT, member_epoch=-1)
        host.log += host.group.delete()
        host.restart_from_compacted()
        assert not host.group.exists
        assert {change.value for change in host.log} == {None}
        assert not list(host.group.snapshot())


class TestStoring:
    def test_the_state_follows_the_members(self, host: Host) -> None:
        states = [host.group.state]
        ask(host, JOIN)
        states.append(host.group.state)
        ask(host, JOIN, member_id="m2")
        states.append(host.group.state)
        ask(host, BEAT, member_id="m2", member_epoch=-1)
        states.append(host.group.state)
        assert states == [
            ConsumerGroupState.EMPTY,
            ConsumerGroupState.STABLE,
            ConsumerGroupState.RECONCILING,
            ConsumerGroupState.ASSIGNING,
        ]

    def test_keys_are_unambiguous_for_any_group_name(self, host: Host) -> None:
        ask(host, JOIN, group="a/b")
        assert {parts_of(change.key)[:2] for change in host.log} == {("consumer-group", GROUP)}

    def test_a_snapshot_equals_the_log(self, host: Host) -> None:
        ask(host, JOIN, instance_id="i1")
        ask(host, JOIN, member_id="m2")
        ask(host, BEAT)
        newest = {change.key: change.value for change in host.log}
        assert dict(host.group.snapshot()) == newest

    def test_records_of_unknown_kinds_are_ignored(self, host: Host) -> None:
        group = ConsumerGroup(GROUP, ConsumerGroupSettings, lambda: 1, str)
        group.replay(("consumer-group", GROUP, "mood", "m1"), b"\x00")
        group.replay(("consumer-group", GROUP, "mood", "m1", "more"), b"\x00")
        assert group.loaded(0) == []
        assert group.is_empty


@pytest.mark.parametrize(
    ("members", "expected_ms"),
    [
        pytest.param(1, 500, id="small groups report often"),
        pytest.param(100, 1000, id="the interval grows with the group"),
        pytest.param(1000, 3000, id="up to the configured interval"),
    ],
)
def test_the_heartbeat_interval_depends_on_the_number_of_members(members: int, expected_ms: int) -> None:
    assert ConsumerGroupSettings().interval_ms(members) == expected_ms
