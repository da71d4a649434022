"""The group coordinator: validation, limits, expiry and lists."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from alpacamq.coordinator.classic.roster import NEXT_STATES, ClassicState
from alpacamq.coordinator.consumer.messages import ConsumerGroupDescription, ConsumerHeartbeatRequest
from alpacamq.coordinator.groups import DescribeRequest, TopicDeleted
from alpacamq.coordinator.messages import (
    NO_OFFSET,
    Accepted,
    CommitRequest,
    CompleteTransactionRequest,
    DeleteOffsetsRequest,
    FetchedOffset,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    GroupDescription,
    GroupSettings,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    LeavingMember,
    ListReply,
    ListRequest,
    OffsetToCommit,
    PartitionResults,
    Protocol,
    ResetOffsetsRequest,
    SyncReply,
    SyncRequest,
    TxnCommitRequest,
)
from alpacamq.coordinator.rebalances import KEPT, RebalancesReply, RebalancesRequest
from alpacamq.coordinator.records import key
from alpacamq.coordinator.share.messages import ShareHeartbeatRequest
from alpacamq.coordinator.streams.messages import StreamsHeartbeatRequest, Subtopology, Tasks, Topology
from alpacamq.model.errors import (
    AlpacaError,
    FencedProducer,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    MemberIdRequired,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    StaleMemberEpoch,
    TooManyGroups,
    UnknownMember,
    UnknownTopic,
    UnstableOffsetCommit,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.state_machine import Change, Request

from .group_host import GROUP, AnyTopic, GroupHost

NO_DELAY = GroupSettings(initial_rebalance_delay_ms=0)


def joining(**fields: Any) -> JoinRequest:
    usual: dict[str, Any] = {
        "group": GROUP,
        "protocol_type": "consumer",
        "protocols": (Protocol("range", b""),),
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "client_id": "app",
    }
    return JoinRequest(**usual | fields)


def member_of(host: GroupHost, **fields: Any) -> JoinReply:
    """Join and sync the only member of a group."""
    joined = host.ask(joining(**fields))
    assert isinstance(joined, JoinReply)
    request = SyncRequest(
        group=fields.get("group", GROUP), generation=joined.generation, member_id=joined.member_id
    )
    assert isinstance(host.ask(request), SyncReply)
    return joined


def committing(*, group: str = GROUP, offset: int = 5, metadata: str = "", **fields: Any) -> CommitRequest:
    offsets = (OffsetToCommit(topic="orders", partition=0, offset=offset, metadata=metadata),)
    return CommitRequest(group=group, offsets=offsets, **fields)


def consumer_join(group: str = GROUP) -> ConsumerHeartbeatRequest:
    return ConsumerHeartbeatRequest(
        group=group,
        member_epoch=0,
        member_id="k",
        rebalance_timeout_ms=60_000,
        subscribed_topics=("orders",),
        owned={},
    )


def listed(host: GroupHost, request: ListRequest | None = None) -> dict[str, str]:
    answer = host.ask(request or ListRequest())
    assert isinstance(answer, ListReply)
    return {each.group: f"{each.type} {each.state}" for each in answer.groups}


@pytest.mark.parametrize(
    ("request_", "error_of"),
    [
        pytest.param(joining(group=""), InvalidGroupId, id="a group without a name"),
        pytest.param(joining(session_timeout_ms=999), InvalidSessionTimeout, id="too short a session"),
        pytest.param(joining(session_timeout_ms=1_800_001), InvalidSessionTimeout, id="too long a session"),
        pytest.param(joining(member_id="who"), UnknownMember, id="an id we never gave"),
        pytest.param(joining(member_id="who", instance_id="i"), UnknownMember, id="an instance not there"),
        pytest.param(joining(protocols=()), InconsistentGroupProtocol, id="no protocol"),
        pytest.param(joining(protocol_type=""), InconsistentGroupProtocol, id="no protocol type"),
    ],
)
def test_an_invalid_join_is_rejected_and_creates_no_group(
    request_: JoinRequest, error_of: type[AlpacaError]
) -> None:
    host = GroupHost()
    assert host.error_of(request_) is error_of
    assert listed(host) == {}
    assert host.machine.next_deadline_ms is None


@pytest.mark.parametrize("event", ["sync", "heartbeat"])
def test_requests_for_an_unknown_group_fail(event: str) -> None:
    request = {"sync": SyncRequest, "heartbeat": HeartbeatRequest}[event]
    host = GroupHost()
    assert host.error_of(request(group=GROUP, generation=1, member_id="a")) is UnknownMember
    leaving = LeaveRequest(group=GROUP, members=(LeavingMember(member_id="a"),))
    assert host.error_of(leaving) is UnknownMember


def test_a_single_consumer_waits_only_for_the_initial_delay() -> None:
    host = GroupHost()
    handle = host.send(joining())
    host.advance(199)
    assert handle not in host.answers
    host.advance(1)
    assert isinstance(host.answers[handle], JoinReply)


def test_a_leader_that_rejoins_starts_a_rebalance_without_delay() -> None:
    host = GroupHost(NO_DELAY)
    member = member_of(host)
    again = host.ask(joining(member_id=member.member_id))
    assert isinstance(again, JoinReply)
    assert again.generation == member.generation + 1


def test_each_new_member_of_an_empty_group_extends_the_initial_delay() -> None:
    host = GroupHost()
    first = host.send(joining())
    host.advance(150)
    second = host.send(joining())
    host.advance(150)
    assert first not in host.answers
    host.advance(50)
    answers = [host.answers[first], host.answers[second]]
    assert [answer.generation for answer in answers if isinstance(answer, JoinReply)] == [1, 1]


def test_a_sync_with_another_protocol_is_rejected() -> None:
    host = GroupHost(NO_DELAY)
    member = member_of(host)
    base = SyncRequest(group=GROUP, generation=1, member_id=member.member_id, protocol_type="consumer")
    assert isinstance(host.ask(base), SyncReply)
    for other in ({"protocol_type": "connect"}, {"protocol_name": "sticky"}):
        request = msgspec.structs.replace(base, **other)
        assert host.error_of(request) is InconsistentGroupProtocol


def test_a_full_group_accepts_only_rejoins() -> None:
    host = GroupHost(GroupSettings(initial_rebalance_delay_ms=0, max_members=1))
    member = member_of(host)
    assert host.error_of(joining()) is GroupMaxSizeReached
    assert host.error_of(joining(require_known_member_id=True)) is GroupMaxSizeReached
    assert host.error_of(joining(instance_id="i")) is GroupMaxSizeReached
    assert isinstance(host.ask(joining(member_id=member.member_id)), JoinReply)


def test_a_tenant_can_allow_its_groups_fewer_members_at_any_time() -> None:
    host = GroupHost(NO_DELAY)
    member = member_of(host)
    host.member_limit = 1
    assert host.error_of(joining()) is GroupMaxSizeReached
    host.restart()
    assert host.error_of(joining()) is GroupMaxSizeReached
    assert isinstance(host.ask(joining(member_id=member.member_id)), JoinReply)
    host.member_limit = 2
    assert host.error_of(joining(require_known_member_id=True)) is MemberIdRequired


@pytest.mark.parametrize("kind", [ConsumerHeartbeatRequest, ShareHeartbeatRequest, StreamsHeartbeatRequest])
def test_the_member_limit_of_a_tenant_holds_for_every_kind_of_group(kind: Any) -> None:
    host = GroupHost(member_limit=1)
    topology = Topology(epoch=0, subtopologies=(Subtopology(id="0", source_topics=("orders",)),))
    fields: dict[type[Any], dict[str, Any]] = {
        ConsumerHeartbeatRequest: {
            "rebalance_timeout_ms": 1000,
            "subscribed_topics": ("orders",),
            "owned": {},
        },
        ShareHeartbeatRequest: {"subscribed_topics": ("orders",)},
        StreamsHeartbeatRequest: {
            "rebalance_timeout_ms": 9,
            "topology": topology,
            "process_id": "p",
            "owned": Tasks(),
        },
    }

    def joins(member_id: str) -> Any:
        return host.ask(kind(group=GROUP, member_id=member_id, member_epoch=0, **fields[kind]))

    assert not isinstance(joins("first"), AlpacaError)
    assert isinstance(joins("second"), GroupMaxSizeReached)
    host.member_limit = None
    assert not isinstance(joins("second"), AlpacaError)


def test_reserved_ids_count_towards_the_member_limit() -> None:
    host = GroupHost(GroupSettings(max_members=3))
    for _ in range(3):
        assert host.error_of(joining(require_known_member_id=True)) is MemberIdRequired
    assert host.error_of(joining(require_known_member_id=True)) is GroupMaxSizeReached
    host.advance(10_000)
    assert host.error_of(joining(require_known_member_id=True)) is MemberIdRequired


@pytest.mark.parametrize(
    "request_",
    [
        joining(group="third"),
        committing(group="third"),
        consumer_join("third"),
        ResetOffsetsRequest(group="third", offsets=(OffsetToCommit(topic="orders", partition=0, offset=0),)),
    ],
    ids=lambda request: type(request).__name__,
)
def test_the_number_of_groups_is_limited(request_: Request[Any]) -> None:
    host = GroupHost(GroupSettings(max_groups=2))
    host.send(committing(group="first"))
    host.send(committing(group="second"))
    assert host.error_of(request_) is TooManyGroups
    assert isinstance(host.ask(committing(group="second")), PartitionResults)


def test_a_group_without_members_and_offsets_is_deleted() -> None:
    host = GroupHost()
    assert host.error_of(joining(require_known_member_id=True)) is MemberIdRequired
    host.advance(3_600_000)
    assert listed(host) == {}
    assert host.log == []
    assert host.machine.next_deadline_ms is None


def test_a_group_whose_members_left_without_commits_is_deleted_from_the_log_too() -> None:
    host = GroupHost(NO_DELAY)
    member_of(host)
    host.advance(3_600_000)
    assert listed(host) == {}
    assert [*host.machine.snapshot()] == []
    host.restart()
    assert listed(host) == {}


def test_a_commit_with_a_generation_of_an_unknown_group_is_rejected() -> None:
    host = GroupHost()
    assert host.error_of(committing(generation=3, member_id="a")) is IllegalGeneration
    assert listed(host) == {}


def test_a_commit_of_another_generation_is_rejected() -> None:
    host = GroupHost(NO_DELAY)
    member = member_of(host)
    assert host.error_of(committing(generation=9, member_id=member.member_id)) is IllegalGeneration


@pytest.mark.parametrize(
    ("offset", "metadata", "error_of"),
    [
        pytest.param(5, "ä" * 2048, None, id="metadata as long as allowed"),
        pytest.param(5, "ä" * 2049, OffsetMetadataTooLarge, id="metadata is measured in bytes"),
        pytest.param(-1, "", None, id="a negative offset, which clients take for none"),
    ],
)
def test_invalid_offsets_are_not_stored(
    offset: int, metadata: str, error_of: type[AlpacaError] | None
) -> None:
    host = GroupHost()
    answer = host.ask(committing(offset=offset, metadata=metadata))
    assert isinstance(answer, PartitionResults)
    assert [type(each.error) for each in answer.partitions] == [error_of or type(None)]
    assert len(host.log) == (error_of is None)


def test_any_non_empty_group_id_is_valid() -> None:
    host = GroupHost()
    for offset, name in enumerate(["a", "a/orders", "a\x00", "日本", "offset"]):
        host.send(committing(group=name, offset=offset))
    host.restart()
    for offset, name in enumerate(["a", "a/orders", "a\x00", "日本", "offset"]):
        answer = host.ask(FetchOffsetsRequest(group=name))
        assert isinstance(answer, FetchOffsetsReply)
        assert [each.offset for each in answer.offsets] == [offset]


def test_a_commit_renews_the_session() -> None:
    host = GroupHost(NO_DELAY)
    member = member_of(host)
    for _ in range(3):
        host.advance(9_000)
        request = committing(generation=1, member_id=member.member_id)
        assert isinstance(host.ask(request), PartitionResults)
    beat = HeartbeatRequest(group=GROUP, generation=1, member_id=member.member_id)
    assert host.ask(beat) == Accepted()


def test_transactional_commits_of_older_clients_need_no_member_id() -> None:
    host = GroupHost(NO_DELAY)
    member_of(host)
    assert host.error_of(committing()) is UnknownMember
    anonymous = TxnCommitRequest(
        producer_id=7, producer_epoch=0, group=GROUP, offsets=committing(offset=8).offsets
    )
    assert isinstance(host.ask(anonymous), PartitionResults)
    stranger = msgspec.structs.replace(anonymous, member_id="who", generation=1)
    assert host.error_of(stranger) is UnknownMember


def test_a_fenced_producer_cannot_commit_offsets_or_end_a_later_transaction() -> None:
    host = GroupHost()
    new = TxnCommitRequest(producer_id=7, producer_epoch=2, group=GROUP, offsets=committing(offset=8).offsets)
    host.send(new)
    old = msgspec.structs.replace(new, producer_epoch=1)
    assert host.error_of(old) is FencedProducer
    late = CompleteTransactionRequest(producer_id=7, producer_epoch=1, committed=False)
    host.send(late)
    host.send(msgspec.structs.replace(late, producer_epoch=3, committed=True))
    answer = host.ask(FetchOffsetsRequest(group=GROUP, require_stable=True))
    assert isinstance(answer, FetchOffsetsReply)
    assert [each.offset for each in answer.offsets] == [8]


def test_offsets_do_not_expire_while_a_transaction_may_change_them() -> None:
    host = GroupHost()
    host.send(committing(offset=1))
    host.advance(1)
    pending = TxnCommitRequest(producer_id=7, producer_epoch=0, group=GROUP, offsets=committing().offsets)
    host.send(pending)
    host.advance(30 * 24 * 3_600_000)
    answer = host.ask(FetchOffsetsRequest(group=GROUP))
    assert isinstance(answer, FetchOffsetsReply)
    assert [each.offset for each in answer.offsets] == [1]


def test_offsets_cannot_be_deleted_while_subscriptions_are_unknown() -> None:
    host = GroupHost(NO_DELAY)
    member_of(host, protocol_type="connect")
    partitions = (TopicPartition(TopicName("orders"), 0),)
    request = DeleteOffsetsRequest(group=GROUP, partitions=partitions)
    assert host.error_of(request) is NonEmptyGroup


def test_deleting_a_topic_deletes_its_offsets() -> None:
    host = GroupHost()
    offsets = (
        OffsetToCommit(topic="orders", partition=0, offset=1),
        OffsetToCommit(topic="payments", partition=0, offset=2),
    )
    host.send(CommitRequest(group="a", offsets=offsets))
    host.send(CommitRequest(group="b", offsets=offsets[:1]))
    host.send(TxnCommitRequest(producer_id=7, producer_epoch=0, group="c", offsets=offsets[:1]))
    host.any_topic.recreate("orders")
    host.send(CommitRequest(group="d", offsets=offsets[:1]))
    host.send(TopicDeleted(topic="orders", current_id=host.topic_id("orders")))
    host.check_log()
    for group, left in (("a", [2]), ("b", []), ("c", []), ("d", [1])):
        answer = host.ask(FetchOffsetsRequest(group=group))
        assert isinstance(answer, FetchOffsetsReply)
        assert [each.offset for each in answer.offsets] == left


ORDERS_0 = TopicPartition(TopicName("orders"), 0)


def fetched(host: GroupHost, **fields: Any) -> FetchedOffset:
    """Return the committed offset of the current topic."""
    answer = host.ask(FetchOffsetsRequest(group=GROUP, partitions=(ORDERS_0,), **fields))
    assert isinstance(answer, FetchOffsetsReply)
    (found,) = answer.offsets
    return found


def test_a_topic_does_not_inherit_the_offsets_of_a_deleted_one_of_its_name() -> None:
    """The coordinator did not hear of the deletion."""
    host = GroupHost()
    host.send(committing(offset=5))
    host.any_topic.recreate("orders")
    assert fetched(host).offset == NO_OFFSET
    host.restart()
    assert fetched(host).offset == NO_OFFSET
    host.send(committing(offset=2))
    assert fetched(host).offset == 2


def test_a_transaction_of_a_deleted_topic_does_not_affect_the_next_of_its_name() -> None:
    host = GroupHost()
    for producer_id in (7, 8):
        request = TxnCommitRequest(
            producer_id=producer_id, producer_epoch=0, group=GROUP, offsets=committing(offset=5).offsets
        )
        host.send(request)
    assert isinstance(fetched(host, require_stable=True).error, UnstableOffsetCommit)
    host.any_topic.recreate("orders")
    assert fetched(host, require_stable=True).error is None
    host.send(CompleteTransactionRequest(producer_id=7, producer_epoch=0, committed=True))
    assert fetched(host).offset == NO_OFFSET
    host.send(committing(offset=1))
    host.send(CompleteTransactionRequest(producer_id=8, producer_epoch=0, committed=True))
    assert fetched(host).offset == 1


def test_offsets_of_topics_that_the_coordinator_does_not_know_are_refused() -> None:
    """They may be of a topic that was deleted since, or of one that the coordinator is yet to hear of."""
    host = GroupHost()
    (offset,) = committing(offset=5).offsets
    other = msgspec.structs.replace(offset, topic_id=UUID(int=9))
    for request in (
        CommitRequest(group=GROUP, offsets=(other,)),
        ResetOffsetsRequest(group=GROUP, offsets=(other,)),
        TxnCommitRequest(group=GROUP, offsets=(other,), producer_id=7, producer_epoch=0),
    ):
        answer = host.ask(request)
        assert isinstance(answer, PartitionResults)
        assert [type(each.error) for each in answer.partitions] == [UnknownTopic]
    assert fetched(host, topic_ids={"orders": UUID(int=9)}).offset == NO_OFFSET


def test_offsets_of_deleted_topics_are_removed_after_a_load() -> None:
    host = GroupHost()
    host.send(committing(offset=5))
    pending = TxnCommitRequest(producer_id=7, producer_epoch=0, group=GROUP, offsets=committing().offsets)
    host.send(pending)
    host.any_topic.recreate("orders")
    host.send(committing(group="other", offset=3))
    host.restart()
    host.trim_offsets()
    assert [group for group, _ in host.machine.groups_with_offsets()] == ["other"]
    host.check_log()


def test_stored_offsets_without_a_topic_id_are_of_the_topic_that_exists_at_the_load() -> None:
    """Version 0.1 stored offset, time, leader epoch and metadata."""
    host = GroupHost()
    stored = msgspec.msgpack.encode((5, host.now_ms, -1, "note"))
    host.log = [
        Change(key("offset", GROUP, "orders", 0), stored),
        Change(key("pending-offset", GROUP, "orders", 0, 7), msgspec.msgpack.encode((0, 0, (9, 0, -1, "")))),
    ]
    host.restart()
    host.trim_offsets(last_offset=8)
    assert (fetched(host).offset, fetched(host).metadata) == (5, "note")
    host.restart()
    host.any_topic.recreate("orders")
    assert fetched(host).offset == NO_OFFSET
    host.any_topic = AnyTopic()
    host.topics = host.any_topic
    host.restart()
    host.send(CompleteTransactionRequest(producer_id=7, producer_epoch=0, committed=True))
    assert fetched(host).offset == 8
    host.check_log()


def test_groups_are_listed_by_state_and_type() -> None:
    host = GroupHost(NO_DELAY)
    member_of(host, group="classic")
    host.send(joining(group="joining"))
    host.send(committing(group="simple"))
    host.send(consumer_join("modern"))
    assert listed(host) == {
        "classic": "classic Stable",
        "joining": "classic CompletingRebalance",
        "simple": "classic Empty",
        "modern": "consumer Stable",
    }
    assert [*listed(host, ListRequest(states=frozenset({"stable"})))] == ["classic", "modern"]
    assert [*listed(host, ListRequest(types=frozenset({"Consumer"})))] == ["modern"]
    stable_classic = ListRequest(states=frozenset({"Stable"}), types=frozenset({"classic"}))
    assert [*listed(host, stable_classic)] == ["classic"]


def test_groups_are_described_by_protocol() -> None:
    host = GroupHost(NO_DELAY)
    member_of(host, group="classic", protocols=(Protocol("range", b"meta"),), client_host="10.0.0.1")
    host.send(consumer_join("modern"))
    described = host.ask(DescribeRequest(group="classic"))
    assert isinstance(described, GroupDescription)
    assert (described.protocol_type, described.protocol_name) == ("consumer", "range")
    assert [(each.metadata, each.client_host) for each in described.members] == [(b"meta", "10.0.0.1")]
    modern = host.ask(DescribeRequest(group="modern"))
    assert isinstance(modern, ConsumerGroupDescription)


def test_a_member_of_a_consumer_group_commits_and_fetches_with_its_epoch() -> None:
    host = GroupHost()
    host.send(consumer_join())
    assert isinstance(host.ask(committing(generation=1, member_id="k")), PartitionResults)
    assert host.error_of(committing(generation=0, member_id="k")) is StaleMemberEpoch
    assert host.error_of(committing(generation=1, member_id="x")) is UnknownMember
    fetch = FetchOffsetsRequest(group=GROUP, member_id="k", member_epoch=1)
    assert isinstance(host.ask(fetch), FetchOffsetsReply)
    stale = msgspec.structs.replace(fetch, member_epoch=0)
    assert host.error_of(stale) is StaleMemberEpoch
    assert isinstance(host.ask(FetchOffsetsRequest(group=GROUP)), FetchOffsetsReply)


def test_offsets_of_a_consumer_group_expire_after_its_last_member_left_also_across_restarts() -> None:
    host = GroupHost()
    host.send(consumer_join())
    host.send(committing(generation=1, member_id="k"))
    host.advance(40_000)
    assert listed(host) == {GROUP: "consumer Empty"}
    for _ in range(6):
        host.advance(24 * 3_600_000)
        host.restart()
    assert listed(host) == {GROUP: "consumer Empty"}
    host.advance(25 * 3_600_000)
    assert listed(host) == {}
    host.check_log()


def test_records_of_unknown_kinds_are_ignored() -> None:
    host = GroupHost()
    host.machine.replay(key("future-group", GROUP), b"\x01")
    host.machine.loaded(host.now_ms)
    assert listed(host) == {}


def test_cancelling_without_a_pending_request_does_nothing() -> None:
    host = GroupHost()
    handle = host.send(committing())
    host.machine.cancel(handle)
    host.machine.cancel("unheard of")


def test_dead_is_reachable_from_every_state() -> None:
    def reachable(state: ClassicState) -> set[ClassicState]:
        found = {state}
        while more := {each for known in found for each in NEXT_STATES[known]} - found:
            found |= more
        return found

    assert NEXT_STATES.keys() == {*ClassicState}
    assert all(ClassicState.DEAD in reachable(state) for state in ClassicState)
    assert reachable(ClassicState.EMPTY) == {*ClassicState}


def rebalances(host: GroupHost, group: str = GROUP) -> list[tuple[str, str, int | None, int | None]]:
    """State, cause, generation and duration of recent rebalances, newest first."""
    reply = host.ask(RebalancesRequest(group=group))
    assert isinstance(reply, RebalancesReply)
    return [
        (each.state, each.cause, each.generation, each.ended_ms and each.ended_ms - each.started_ms)
        for each in reply.rebalances
    ]


def test_rebalances_of_a_classic_group_are_remembered_with_their_causes() -> None:
    host = GroupHost(NO_DELAY)
    first = member_of(host)
    assert rebalances(host) == [("completed", "member-joined", 1, 0)]
    pending = host.send(joining(client_id="other"))
    host.advance(500)
    assert rebalances(host)[0] == ("running", "member-joined", None, None)
    host.send(joining(member_id=first.member_id))
    second = host.answers[pending]
    assert isinstance(second, JoinReply)
    assert rebalances(host)[0] == ("running", "member-joined", 2, None)
    host.ask(SyncRequest(group=GROUP, generation=2, member_id=first.member_id))
    host.ask(SyncRequest(group=GROUP, generation=2, member_id=second.member_id))
    assert rebalances(host)[0] == ("completed", "member-joined", 2, 500)
    host.ask(LeaveRequest(group=GROUP, members=(LeavingMember(member_id=second.member_id),)))
    assert rebalances(host)[0][:2] == ("running", "member-left")
    host.advance(100_000)
    assert rebalances(host)[0][:3] == ("completed", "member-left", 3)


def test_an_expired_session_and_an_interruption_are_causes_of_rebalances() -> None:
    host = GroupHost(NO_DELAY)
    member_of(host)
    host.advance(10_000)
    assert rebalances(host)[0] == ("completed", "session-expired", 2, 0)
    joined = host.ask(joining())
    assert isinstance(joined, JoinReply)
    host.send(joining(client_id="other"))
    assert [each[:3] for each in rebalances(host)[:2]] == [
        ("running", "member-joined", None),
        ("interrupted", "member-joined", 3),
    ]


def test_rebalances_of_a_consumer_group_are_remembered_with_their_causes() -> None:
    host = GroupHost(NO_DELAY)

    def beat(member_id: str, epoch: int, **fields: Any) -> Any:
        return host.ask(
            ConsumerHeartbeatRequest(group=GROUP, member_id=member_id, member_epoch=epoch, **fields)
        )

    joining_fields = {"subscribed_topics": ("t",), "owned": {}, "rebalance_timeout_ms": 1000}
    beat("a", 0, **joining_fields)
    assert rebalances(host) == [("completed", "member-joined", 1, 0)]
    beat("b", 0, **joining_fields)
    assert rebalances(host)[0] == ("running", "member-joined", 2, None)
    host.advance(700)
    beat("a", 1)
    assert rebalances(host)[0] == ("completed", "member-joined", 2, 700)
    beat("a", 2, subscribed_topics=("t", "u"))
    assert rebalances(host)[0][:3] == ("running", "subscription-changed", 3)
    beat("b", -1)
    assert [each[:2] for each in rebalances(host)[:2]] == [
        ("running", "member-left"),
        ("interrupted", "subscription-changed"),
    ]
    host.advance(100_000)
    assert rebalances(host)[0] == ("completed", "session-expired", 5, 0)


def test_only_the_last_rebalances_are_kept() -> None:
    host = GroupHost(NO_DELAY)
    for _ in range(KEPT):
        joined = member_of(host)
        host.ask(LeaveRequest(group=GROUP, members=(LeavingMember(member_id=joined.member_id),)))
    assert len(rebalances(host)) == KEPT
    assert rebalances(host)[0][1:3] == ("member-left", 2 * KEPT)
