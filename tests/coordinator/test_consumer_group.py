"""A consumer group's rules, one by one. How members move, the stories tell and the simulation tries."""

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
    """The reply to a request that is not refused."""
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
        pytest.param(JOIN, {"rebalance_timeout_ms": 0}, "not positive", id="no time at all"),
        pytest.param(JOIN, {"rebalance_timeout_ms": -5}, "not positive", id="negative timeout"),
        pytest.param(JOIN, {"owned": None}, "owns no partitions", id="join that does not say what it owns"),
        pytest.param(JOIN, {"owned": {TOPIC_A: frozenset({0})}}, "owns no", id="join with partitions"),
        pytest.param(JOIN, {"subscribed_topics": None}, "subscribes to", id="join without subscription"),
        pytest.param(JOIN, {"subscribed_topics": ("a" * 300_000,)}, "characters", id="too much to store"),
        pytest.param(BEAT, {"member_id": ""}, "leave its id", id="heartbeat without member id"),
        pytest.param(
            BEAT, {"member_id": "", "member_epoch": -1}, "leave its id", id="leave without member id"
        ),
        pytest.param(BEAT, {"member_epoch": -3}, "has no meaning", id="unknown epoch"),
        pytest.param(BEAT, {"member_epoch": -2}, "instance id", id="static leave without instance id"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
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
        ({"subscribed_regex": "a" * 1000}, InvalidRegularExpression),
        ({"member_epoch": 1}, UnknownMember),
        ({"member_epoch": -1}, UnknownMember),
        ({"member_epoch": -2, "instance_id": "i1"}, UnknownMember),
    ],
)
def test_what_is_refused_leaves_no_trace(
    host: Host, changes: dict[str, object], error: type[AlpacaError]
) -> None:
    with pytest.raises(error):
        ask(host, JOIN, **changes)
    assert not host.group.exists
    assert not host.log
    assert host.group.next_deadline_ms is None


def test_a_member_that_joins_without_id_is_given_one(host: Host) -> None:
    assert ask(host, JOIN, member_id="").member_id == "generated-1"
    assert ask(host, BEAT, member_id="generated-1").member_epoch == 1


def test_a_full_group_takes_nobody_in_but_lets_members_join_again() -> None:
    host = Host(Topics(a=4), ConsumerGroupSettings(max_members=1))
    ask(host, JOIN)
    with pytest.raises(GroupMaxSizeReached, match="1 members"):
        ask(host, JOIN, member_id="m2")
    assert ask(host, JOIN).member_epoch == 1


def test_a_heartbeat_with_nothing_new_stores_nothing(host: Host) -> None:
    ask(host, JOIN)
    stored = len(host.log)
    assert ask(host, BEAT).member_epoch == 1
    assert len(host.log) == stored


def test_topics_that_nobody_reads_do_not_disturb_the_group(host: Host) -> None:
    ask(host, JOIN)
    stored = len(host.log)
    host.topics.put("b", 3)
    assert ask(host, BEAT).member_epoch == 1
    assert len(host.log) == stored


def test_a_topic_made_anew_is_another_topic(host: Host) -> None:
    first = ask(host, JOIN).assignment
    host.topics.delete("a")
    host.topics.put("a", 4)
    ask(host, BEAT, owned=first)
    again = ask(host, BEAT, owned={})
    assert again.member_epoch == 2
    assert again.assignment is not None
    assert again.assignment.keys() == {UUID(int=2)}


def test_names_and_pattern_add_up(host: Host) -> None:
    host.topics.put("b1", 1)
    host.topics.put("b2", 1)
    host.topics.put("other", 1)
    reply = ask(host, JOIN, subscribed_regex="b.")
    assert reply.assignment is not None
    assert len(reply.assignment) == 3
    assert [host.group.subscribes(name) for name in ("a", "b2", "other", "b33")] == [True, True, False, False]


def test_who_joins_again_subscribes_to_what_it_says_now(host: Host) -> None:
    host.topics.put("b", 1)
    ask(host, JOIN, subscribed_topics=None, subscribed_regex="a|b")
    ask(host, JOIN)
    assert [host.group.subscribes(name) for name in ("a", "b")] == [True, False]


def test_what_a_heartbeat_leaves_out_stays_as_it_was(host: Host) -> None:
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


def test_the_assignor_most_members_ask_for_is_used(host: Host) -> None:
    ask(host, JOIN, member_id="m1", assignor="range")
    ask(host, JOIN, member_id="m2", assignor="uniform")
    ask(host, JOIN, member_id="m3", assignor="uniform")
    ask(host, JOIN, member_id="m4")
    assert host.group.describe().assignor == "uniform"


def test_a_member_cannot_become_another_instance(host: Host) -> None:
    ask(host, JOIN, instance_id="i1")
    with pytest.raises(FencedInstanceId):
        ask(host, JOIN, instance_id="i2")
    with pytest.raises(FencedInstanceId):
        ask(host, JOIN, instance_id=None)


def test_a_static_member_may_come_back_under_its_own_id(host: Host) -> None:
    first = ask(host, JOIN, instance_id="i1")
    ask(host, BEAT, member_epoch=-2, instance_id="i1")
    again = ask(host, JOIN, instance_id="i1")
    assert (again.member_epoch, again.assignment) == (first.member_epoch, first.assignment)


class TestCommits:
    def test_a_group_without_members_takes_commits_of_those_without_epoch(self, host: Host) -> None:
        host.group.validate_commit("", -1)
        with pytest.raises(UnknownMember):
            host.group.validate_commit("", 0)
        ask(host, JOIN)
        with pytest.raises(UnknownMember):
            host.group.validate_commit("", -1)

    def test_a_member_commits_at_its_epoch(self, host: Host) -> None:
        ask(host, JOIN)
        host.group.validate_commit("m1", 1)
        for epoch in (-1, 0, 2):
            with pytest.raises(StaleMemberEpoch):
                host.group.validate_commit("m1", epoch)

    def test_one_that_is_away_commits_nothing(self, host: Host) -> None:
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
        host.log += host.group.remove(member_id, instance_id)
        assert host.group.is_empty
        assert host.group.next_deadline_ms is None
        with pytest.raises(UnknownMember):
            ask(host, BEAT)

    def test_whoever_is_not_there_cannot_be_removed(self, host: Host) -> None:
        ask(host, JOIN, instance_id="i1")
        with pytest.raises(UnknownMember):
            host.group.remove("m2", None)
        with pytest.raises(UnknownMember):
            host.group.remove("m1", "i2")
        with pytest.raises(FencedInstanceId):
            host.group.remove("m2", "i1")

    def test_only_a_group_without_members_can_be_deleted_and_nothing_stays(self, host: Host) -> None:
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

    def test_keys_tell_groups_apart_whatever_their_names(self, host: Host) -> None:
        ask(host, JOIN, group="a/b")
        assert {parts_of(change.key)[:2] for change in host.log} == {("consumer-group", GROUP)}

    def test_a_snapshot_says_what_the_log_says(self, host: Host) -> None:
        ask(host, JOIN, instance_id="i1")
        ask(host, JOIN, member_id="m2")
        ask(host, BEAT)
        newest = {change.key: change.value for change in host.log}
        assert dict(host.group.snapshot()) == newest

    def test_records_of_kinds_not_known_yet_are_passed_over(self, host: Host) -> None:
        group = ConsumerGroup(GROUP, ConsumerGroupSettings(), str)
        group.replay(("consumer-group", GROUP, "mood", "m1"), b"\x00")
        group.replay(("consumer-group", GROUP, "mood", "m1", "more"), b"\x00")
        assert group.loaded(0) == []
        assert group.is_empty


@pytest.mark.parametrize(
    ("members", "expected_ms"),
    [
        pytest.param(1, 500, id="a small group notices a change at once"),
        pytest.param(100, 1000, id="the larger the group, the less often each reports"),
        pytest.param(1000, 3000, id="but never less often than the setting says"),
    ],
)
def test_how_often_members_report_depends_on_their_number(members: int, expected_ms: int) -> None:
    assert ConsumerGroupSettings().interval_ms(members) == expected_ms
