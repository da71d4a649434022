"""ShareFetch and ShareAcknowledge: exactly what is sent for what, and what is refused."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.protocol.messages.share import (
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    SharePartition,
    ShareTopic,
)
from alpacamq.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.brokers import Broker
from tests.waiting import eventually

from .share_member import (
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Got,
    Member,
    batch,
    configure,
    publish,
)
from .wire import Wire, wired

PATIENT_MS = 20_000


@pytest.fixture
def earliest(wire: Wire, made: str) -> str:
    """A topic, and a group of the same name that begins at its beginning."""
    configure(wire, made, auto_offset_reset="earliest")
    return made


@pytest.fixture
def member(wire: Wire, earliest: str) -> Member:
    return Member(wire, earliest, earliest).join()


@pytest.fixture
def other(broker: Broker, earliest: str) -> Iterator[Member]:
    """Another member on a connection of its own."""
    with wired(broker.host_and_port) as second:
        yield Member(second, earliest, earliest, id="other").join()


def values(count: int, size: int = 1) -> list[bytes]:
    return [str(number).encode() * size for number in range(count)]


def test_records_are_acquired_sent_and_done_once_accepted(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, *values(5))
    got = member.fetch(0, 1)[0]
    assert got.ranges == [(0, 4, 1)]
    assert got.values == values(5)
    assert member.acknowledge({0: [batch(0, 4)]}) == {0: 0}
    assert member.fetch() == {}


def test_the_response_has_the_lock_timeout(wire: Wire, member: Member) -> None:
    configure(wire, member.group, record_lock_duration_ms="12000")
    assert member.ask_fetch(0).acquisition_lock_timeout_ms == 12_000


def test_whole_batches_are_sent_with_acquired_ranges(wire: Wire, member: Member, other: Member) -> None:
    publish(wire, member.topic, *values(10))
    first = member.fetch(0, max_records=4)[0]
    second = other.fetch(0, max_records=4)[0]
    assert (first.ranges, second.ranges) == ([(0, 3, 1)], [(4, 7, 1)])
    assert len(first.records) == len(second.records) == 10
    assert second.values == values(10)[4:8]


def test_acknowledgements_come_with_the_next_fetch(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, *values(3))
    member.fetch(0)
    got = member.fetch(acknowledge={0: [batch(0, 2, 1, RELEASE, 1)]})[0]
    assert (got.acknowledge_error, got.ranges, got.values) == (0, [(1, 1, 2)], [b"1"])


def test_acquired_ranges_respect_the_requested_maximum(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, *values(10))
    assert member.fetch(0, batch_size=4)[0].ranges == [(0, 3, 1), (4, 7, 1), (8, 9, 1)]


def test_records_beyond_max_bytes_are_released_without_counting_a_delivery(
    wire: Wire, member: Member
) -> None:
    for value in values(10, size=10_000):
        publish(wire, member.topic, value)
    seen: list[int] = []
    while len(seen) < 10:
        got = member.fetch(*(() if member.epoch else (0,)), max_bytes=35_000)[0]
        assert got.sent_bytes <= 35_000
        assert {count for _, _, count in got.ranges} == {1}
        seen += got.offsets
    assert seen == list(range(10))


def test_at_least_one_batch_is_sent_however_large_it_is(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, b"x" * 50_000)
    assert member.fetch(0, max_bytes=10)[0].offsets == [0]


def test_urgent_records_are_found_among_others(wire: Wire, member: Member) -> None:
    for number in range(30):
        publish(wire, member.topic, b"%d" % number, lane="critical" if number % 10 == 5 else "normal")
    seen: list[int] = []
    while len(seen) < 30:
        got = member.fetch(*(() if member.epoch else (0,)), max_records=3)[0]
        assert got.values == [b"%d" % offset for offset in got.offsets]
        seen += got.offsets
    assert sorted(seen) == list(range(30))
    assert seen.index(25) < seen.index(20), "the urgent went ahead"


def test_a_fetch_waits_for_records_and_no_longer_than_needed(
    wire: Wire, member: Member, broker: Broker
) -> None:
    member.fetch(0)
    member.send_fetch(max_wait_ms=PATIENT_MS)
    with wired(broker.host_and_port) as second:
        publish(second, member.topic, b"late")
    response = member.receive_fetch()
    assert response.responses[0].partitions[0].acquired_records[0].first_offset == 0


def test_a_fetch_waits_for_enough_bytes(wire: Wire, member: Member, broker: Broker) -> None:
    publish(wire, member.topic, b"x" * 1000)
    member.fetch(0, 1, max_records=0)
    member.send_fetch(max_wait_ms=PATIENT_MS, min_bytes=2500)
    with wired(broker.host_and_port) as second:
        publish(second, member.topic, b"y" * 1000, partition=1)
        publish(second, member.topic, b"z" * 1000)
    response = member.receive_fetch()
    acquired = {
        part.partition_index: (part.acquired_records[0].first_offset, part.acquired_records[-1].last_offset)
        for part in response.responses[0].partitions
    }
    assert acquired == {0: (0, 1), 1: (0, 0)}


def test_a_fetch_of_nothing_acknowledges_only(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, *values(2))
    member.fetch(0, max_records=1)
    got = member.fetch(acknowledge={0: [batch(0)]}, max_records=0, max_wait_ms=PATIENT_MS)
    assert got[0].ranges == []
    assert member.fetch()[0].offsets == [1]


def test_records_of_others_cannot_be_acknowledged(wire: Wire, member: Member, other: Member) -> None:
    publish(wire, member.topic, *values(4))
    member.fetch(0, max_records=2)
    other.fetch(0, max_records=2)
    invalid = ErrorCode.INVALID_RECORD_STATE
    assert member.acknowledge({0: [batch(2)]}) == {0: invalid}
    assert member.acknowledge({0: [batch(4)]}) == {0: invalid}
    assert member.acknowledge({1: [batch(0)]}) == {1: invalid}
    assert member.acknowledge({0: [batch(0), batch(1)]}) == {0: 0}
    assert member.acknowledge({0: [batch(0)]}) == {0: invalid}
    assert other.acknowledge({0: [batch(2, 3)]}) == {0: 0}


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([batch(3, 1)], id="backwards"),
        pytest.param([batch(-1, 1)], id="before the beginning"),
        pytest.param([batch(0, 1), batch(1, 2)], id="overlapping"),
        pytest.param([batch(2), batch(0)], id="out of order"),
        pytest.param([batch(0, 2, 1, 1)], id="two types for three offsets"),
        pytest.param([batch(0, 0, 9)], id="an unknown type"),
        pytest.param([batch(0, 0, -1)], id="a negative type"),
    ],
)
def test_acknowledgements_that_make_no_sense_are_refused(
    wire: Wire, member: Member, batches: list[Any]
) -> None:
    publish(wire, member.topic, *values(4))
    member.fetch(0)
    assert member.acknowledge({0: batches}) == {0: ErrorCode.INVALID_REQUEST}
    assert member.acknowledge({0: [batch(0, 3)]}) == {0: 0}


def test_a_partition_named_twice_is_in_error_if_either_part_is(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, b"a")
    member.fetch(0)
    parts = [
        SharePartition(partition_index=0, acknowledgement_batches=[each]) for each in (batch(7), batch(0))
    ]
    request = ShareAcknowledgeRequest(
        group_id=member.group,
        member_id=member.id,
        share_session_epoch=member.epoch,
        topics=[ShareTopic(topic_id=member.topic_id, partitions=parts)],
    )
    (topic,) = wire.ask(request).responses
    assert [part.error_code for part in topic.partitions] == [ErrorCode.INVALID_RECORD_STATE]


def test_a_range_of_all_offsets_costs_nothing(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, *values(4))
    member.fetch(0)
    response = member.acknowledge({0: [batch(0, 2**63 - 1)]})
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert "more than" in response.error_message
    assert member.acknowledge({0: [batch(0, 500_000)]}) == {0: ErrorCode.INVALID_RECORD_STATE}


def test_a_gap_is_done(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, *values(2))
    member.fetch(0)
    assert member.acknowledge({0: [batch(0, 1, GAP, 1)]}) == {0: 0}
    assert member.fetch() == {}


def test_a_lock_is_renewed_from_version_2_on(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, b"a")
    member.fetch(0)
    assert member.acknowledge({0: [batch(0, 0, RENEW)]}) == {0: 0}
    assert member.acknowledge({0: [batch(0)]}) == {0: 0}
    member.version = 1
    assert member.acknowledge({0: [batch(0, 0, RENEW)]}) == {0: ErrorCode.INVALID_REQUEST}


def test_a_fetch_that_renews_brings_nothing_else(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, *values(2))
    member.fetch(0, max_records=1)
    got = member.fetch(acknowledge={0: [batch(0, 0, RENEW)]}, is_renew_ack=True, max_wait_ms=PATIENT_MS)
    assert (got[0].acknowledge_error, got[0].ranges) == (0, [])


@pytest.mark.parametrize("epoch", [2, 7, -2, 2**31 - 1])
def test_an_epoch_out_of_order_is_refused_and_changes_nothing(wire: Wire, member: Member, epoch: int) -> None:
    publish(wire, member.topic, *values(2))
    member.fetch(0)
    expected = ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.ask_fetch(epoch=epoch).error_code == expected
    assert member.acknowledge({0: [batch(0)]}, epoch=epoch).error_code == expected
    assert member.acknowledge({0: [batch(0, 1)]}) == {0: 0}


def test_a_session_begins_with_a_fetch_that_acknowledges_nothing(wire: Wire, member: Member) -> None:
    response = member.acknowledge({0: [batch(0)]}, epoch=0)
    assert response.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    response = member.ask_fetch(acknowledge={0: [batch(0)]})
    assert response.error_code == ErrorCode.INVALID_REQUEST
    for request in (member.ask_fetch(epoch=5), member.acknowledge({0: [batch(0)]}, epoch=-1)):
        assert request.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_only_members_fetch(wire: Wire, earliest: str) -> None:
    stranger = Member(wire, earliest, earliest, id="stranger")
    assert stranger.ask_fetch(0).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    stranger.join()
    assert stranger.ask_fetch(0).error_code == 0
    stranger.heartbeat(-1)
    assert stranger.ask_fetch().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.acknowledge({0: [batch(0)]}).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


@pytest.mark.parametrize("request_", [ShareFetchRequest, ShareAcknowledgeRequest])
def test_a_group_and_a_member_have_names(wire: Wire, request_: Any) -> None:
    assert wire.ask(request_(group_id=None, member_id="m")).error_code == ErrorCode.INVALID_GROUP_ID
    assert wire.ask(request_(group_id="g", member_id="")).error_code == ErrorCode.INVALID_REQUEST


def test_unknown_and_internal_topics_are_errors_of_their_partitions(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, b"a")
    internal = wire.ask(MetadataRequest(topics=[MetadataRequestTopic(name="__consumer_offsets")])).topics[0]
    response = member.ask_fetch(0, topic_id=UUID(int=7))
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    response = member.ask_fetch(0, topic_id=internal.topic_id)
    codes = {topic.topic_id: part.error_code for topic in response.responses for part in topic.partitions}
    assert codes[internal.topic_id] == ErrorCode.POLICY_VIOLATION
    got = member.fetch(0, 99)
    assert got[99].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert got[0].offsets == [0]


def test_forgotten_partitions_are_not_fetched_but_can_be_acknowledged(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, *values(2))
    member.fetch(0, max_records=1)
    assert member.fetch(forget=[0]) == {}
    assert member.acknowledge({0: [batch(0)]}) == {0: 0}


def test_closing_a_session_settles_acknowledged_records_and_releases_the_rest(
    wire: Wire, member: Member, other: Member
) -> None:
    publish(wire, member.topic, *values(3))
    member.fetch(0)
    got = member.fetch(acknowledge={0: [batch(1)]}, epoch=-1, max_records=0)
    assert got[0].acknowledge_error == 0
    again = other.fetch(0)[0]
    assert again.ranges == [(0, 0, 2), (2, 2, 2)]
    assert member.ask_fetch(epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_records_are_released_when_the_connection_closes(wire: Wire, member: Member, broker: Broker) -> None:
    publish(wire, member.topic, b"a")
    with wired(broker.host_and_port) as second:
        holder = Member(second, member.topic, member.group, id="holder").join()
        assert holder.fetch(0)[0].offsets == [0]
    assert member.fetch(0, max_wait_ms=PATIENT_MS)[0].ranges == [(0, 0, 2)]


def test_records_of_all_members_of_a_connection_are_released_when_it_closes(
    wire: Wire, member: Member, broker: Broker
) -> None:
    publish(wire, member.topic, b"a", b"b", b"c")
    with wired(broker.host_and_port) as second:
        for offset in range(3):
            holder = Member(second, member.topic, member.group, id=f"holder{offset}").join()
            assert holder.fetch(0, max_records=1)[0].offsets == [offset]
    found: list[int] = []

    def all_are_here() -> bool:
        found.extend(member.fetch(0).get(0, Got()).offsets)
        return sorted(found) == [0, 1, 2]

    # Sooner than their locks end.
    eventually(all_are_here, within_s=15)


def test_records_are_released_when_the_member_times_out(wire: Wire, other: Member, earliest: str) -> None:
    configure(wire, earliest, session_timeout_ms="1000", heartbeat_interval_ms="500")
    publish(wire, earliest, b"a")
    silent = Member(wire, earliest, earliest, id="silent").join()
    assert silent.fetch(0)[0].offsets == [0]
    assert other.fetch(0, max_wait_ms=15_000)[0].ranges == [(0, 0, 2)]
    assert silent.ask_fetch().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_session_keeps_the_records_of_its_member(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, b"a")
    member.fetch(0)
    member.epoch = 0
    assert member.fetch(0) == {}
    assert member.acknowledge({0: [batch(0)]}) == {0: 0}


def test_a_member_with_its_hands_full_is_given_nothing_until_it_settles(
    wire: Wire, member: Member, broker: Broker
) -> None:
    publish(wire, member.topic, *values(1200))
    held = member.fetch(0, max_records=2000)[0].offsets
    assert len(held) == 1000  # queue.max.in.flight
    assert member.fetch() == {}
    assert member.acknowledge({0: [batch(0, 999)]}) == {0: 0}
    assert len(member.fetch()[0].offsets) == 200


def test_a_rejected_record_is_not_delivered_again(wire: Wire, member: Member) -> None:
    publish(wire, member.topic, *values(2))
    member.fetch(0)
    assert member.acknowledge({0: [batch(0, 1, REJECT, RELEASE)]}) == {0: 0}
    assert member.fetch()[0].ranges == [(1, 1, 2)]


def test_records_deleted_meanwhile_are_passed_over(wire: Wire, member: Member) -> None:
    for value in values(4):
        publish(wire, member.topic, value)
    member.fetch(0, max_records=1)
    wanted = DeleteRecordsPartition(partition_index=0, offset=3)
    wire.ask(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=member.topic, partitions=[wanted])]))
    assert eventually(lambda: member.fetch())[0].offsets == [3]


@pytest.mark.parametrize("version", [1, 2])
def test_every_version_fetches_and_acknowledges(wire: Wire, earliest: str, version: int) -> None:
    publish(wire, earliest, *values(2))
    member = Member(wire, earliest, earliest, version=version).join()
    assert member.fetch(0)[0].values == values(2)
    assert member.acknowledge({0: [batch(0, 1)]}) == {0: 0}
