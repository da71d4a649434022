"""High watermark, in-sync set and acknowledgements of a leader."""

from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.log.epochs import EpochHistory, EpochStart
from alpacamq.model.errors import (
    AlpacaError,
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    OffsetOutOfRange,
    StaleBrokerEpoch,
    UnknownLeaderEpoch,
)
from alpacamq.model.ids import BrokerId
from alpacamq.replication.leader import RETRY_MS, CommittedState, KnownBrokers, PartitionLeader

LAG_MS = 10_000
ONE, TWO, THREE, FOUR = (BrokerId(number) for number in (1, 2, 3, 4))
EPOCHS = {ONE: 11, TWO: 12, THREE: 13}


def committed(
    partition_epoch: int = 8,
    isr: Collection[BrokerId] = (ONE, TWO, THREE),
    *,
    replicas: Sequence[BrokerId] = (ONE, TWO, THREE),
    min_isr: int = 2,
    leader_epoch: int = 5,
) -> CommittedState:
    return CommittedState(
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        replicas=replicas,
        isr=isr,
        min_isr=min_isr,
    )


def leader(
    isr: Collection[BrokerId] = (ONE, TWO, THREE), *, start: int = 0, watermark: int = 0, **options: Any
) -> PartitionLeader:
    """Return broker 1 as leader of brokers 1, 2 and 3, with a flushed log that ends at `start`."""
    of_state = {key: options.pop(key) for key in ("replicas", "min_isr", "leader_epoch") if key in options}
    settings: dict[str, Any] = {
        "broker_id": ONE,
        "state": committed(7, isr, **of_state),
        "log_end": start,
        "flushed_end": start,
        "high_watermark": watermark,
        "replica_lag_ms": LAG_MS,
        "brokers": KnownBrokers(dict(EPOCHS), set(EPOCHS)),
        "now_ms": 0,
    }
    return PartitionLeader(**(settings | options))


def write(partition: PartitionLeader, end: int, now_ms: int = 0) -> None:
    partition.appended(end, now_ms)
    partition.flushed(end)


def fetch(partition: PartitionLeader, broker_id: BrokerId, offset: int, now_ms: int = 0) -> bool:
    return partition.fetched(broker_id, EPOCHS[broker_id], offset, now_ms)


def proposed(partition: PartitionLeader) -> list[int]:
    """Take the proposal and return its members."""
    return [member.broker_id for member in partition.take_proposal().isr]


@pytest.mark.parametrize(
    ("isr", "ends", "expected"),
    [
        pytest.param([1, 2, 3], [9, 9, 9], 9, id="all caught up"),
        pytest.param([1, 2, 3], [9, 7, 4], 4, id="the slowest in-sync follower decides"),
        pytest.param([1, 2, 3], [3, 7, 4], 3, id="the leader counts by what it has flushed"),
        pytest.param([1, 2], [9, 7, 4], 7, id="a replica that is not in sync does not count"),
        pytest.param([1, 2], [9, 7, -1], 7, id="nor if it never fetched"),
        pytest.param([1, 2, 3], [9, 7, -1], 0, id="an in-sync follower that never fetched holds it back"),
        pytest.param([1], [9, 9, 9], 0, id="frozen below min.insync.replicas"),
    ],
)
def test_high_watermark(isr: list[BrokerId], ends: Sequence[int], expected: int) -> None:
    partition = leader(isr, brokers=KnownBrokers({}, ()))
    partition.appended(9, 0)
    partition.flushed(ends[0])
    for follower, end in zip((TWO, THREE), ends[1:], strict=True):
        if end >= 0:
            fetch(partition, follower, end)
    assert partition.high_watermark == expected


def test_high_watermark_advances_are_reported_once() -> None:
    partition = leader([ONE, TWO])
    write(partition, 5)
    assert fetch(partition, TWO, 3)
    assert not fetch(partition, TWO, 3)
    assert fetch(partition, TWO, 5)
    assert partition.high_watermark == 5


def test_what_does_not_advance_the_high_watermark_is_not_reported() -> None:
    partition = leader([ONE, TWO], flush_counts=False)
    fetch(partition, TWO, 0)
    assert not partition.appended(5, 0)  # broker 2 lacks it
    assert fetch(partition, TWO, 5)
    assert not partition.appended(5, 0)  # a duplicate
    assert not partition.flushed(5)
    assert not partition.flushed(5)
    partition.updated(committed(8, [ONE]), 0)
    assert not partition.appended(9, 0)  # below min.insync.replicas
    assert partition.high_watermark == 5


def test_high_watermark_never_goes_back() -> None:
    partition = leader([ONE, TWO])
    write(partition, 5)
    fetch(partition, TWO, 5)
    partition.fetched(TWO, EPOCHS[TWO] + 1, 0, 0)  # it came back with an empty disk
    write(partition, 8)
    assert partition.high_watermark == 5


def test_a_single_replica_commits_what_it_flushes_whatever_min_insync_says() -> None:
    partition = leader([ONE], replicas=(ONE,), min_isr=2)
    partition.check_writable()
    partition.appended(5, 0)
    assert partition.high_watermark == 0
    assert partition.flushed(4)
    assert partition.high_watermark == 4
    assert partition.next_deadline_ms is None


def test_data_counts_before_its_flush_if_the_setting_says_so() -> None:
    partition = leader([ONE], replicas=(ONE,), flush_counts=False)
    assert partition.appended(5, 0)
    assert partition.high_watermark == 5


def test_a_new_leader_commits_its_log_only_once_its_followers_have_fetched() -> None:
    partition = leader(start=10, watermark=4)
    assert partition.high_watermark == 4
    assert not partition.covers_former_epochs
    fetch(partition, TWO, 10)
    assert partition.high_watermark == 4
    fetch(partition, THREE, 8)
    assert partition.high_watermark == 8
    assert not partition.covers_former_epochs
    fetch(partition, THREE, 10)
    assert partition.covers_former_epochs


@pytest.mark.parametrize(
    ("offset", "joins"),
    [
        pytest.param(3, False, id="below the high watermark"),
        pytest.param(4, False, id="a new leader's watermark lags: the start of its epoch counts too"),
        pytest.param(10, True, id="holds all that former leaders may have committed"),
    ],
)
def test_joining_needs_the_watermark_and_the_start_of_the_epoch(offset: int, joins: bool) -> None:
    partition = leader([ONE, TWO], start=10, watermark=4)
    fetch(partition, THREE, offset)
    assert (partition.unsent is not None) == joins


def test_joining_needs_the_watermark_beyond_the_start_of_the_epoch() -> None:
    partition = leader([ONE, TWO], start=10, watermark=10)
    write(partition, 20)
    fetch(partition, TWO, 15)
    fetch(partition, THREE, 14)
    assert partition.unsent is None
    fetch(partition, THREE, 15)
    assert proposed(partition) == [1, 2, 3]


@pytest.mark.parametrize(
    ("epoch", "joinable"),
    [
        pytest.param(13, {ONE, TWO}, id="fenced or shutting down"),
        pytest.param(14, {ONE, TWO, THREE}, id="restarted since"),
    ],
)
def test_joining_needs_the_running_incarnation(epoch: int, joinable: set[BrokerId]) -> None:
    brokers = KnownBrokers(EPOCHS | {THREE: epoch}, joinable)
    partition = leader([ONE, TWO], brokers=brokers)
    fetch(partition, THREE, 0)
    assert partition.unsent is None
    brokers.epochs, brokers.joinable = EPOCHS, [ONE, TWO, THREE]
    partition.tick(1)
    assert proposed(partition) == [1, 2, 3]


def test_a_replica_joins_with_any_fetch_once_it_may() -> None:
    brokers = KnownBrokers(EPOCHS, {ONE, TWO})
    partition = leader([ONE, TWO], brokers=brokers)
    assert not fetch(partition, THREE, 0)
    brokers.joinable = {ONE, TWO, THREE}
    assert not fetch(partition, THREE, 0)
    assert proposed(partition) == [1, 2, 3]


def test_a_replica_that_was_rejected_is_proposed_again_later() -> None:
    partition = leader([ONE, TWO])
    fetch(partition, THREE, 0)
    partition.alter_rejected(partition.take_proposal().request_id, 0)
    assert partition.next_deadline_ms == RETRY_MS
    fetch(partition, THREE, 0, RETRY_MS - 1)
    assert partition.unsent is None
    fetch(partition, THREE, 0, RETRY_MS)
    assert proposed(partition) == [1, 2, 3]


def test_a_member_that_has_not_fetched_yet_is_named_with_its_registration() -> None:
    partition = leader([ONE, TWO])
    fetch(partition, THREE, 0)
    assert partition.take_proposal().isr == ((1, 11), (2, 12), (3, 13))


def test_a_proposal_names_broker_epochs_and_is_the_only_one() -> None:
    partition = leader([ONE])
    fetch(partition, TWO, 0)
    proposal = partition.take_proposal()
    assert (proposal.leader_epoch, proposal.partition_epoch) == (5, 7)
    assert proposal.isr == ((1, 11), (2, 12))
    fetch(partition, THREE, 0)
    partition.tick(99 * LAG_MS)
    assert partition.unsent is None
    partition.altered(proposal.request_id, committed(8, [ONE, TWO]), 0)
    partition.tick(0)
    assert proposed(partition) == [1, 2, 3]


def test_a_proposed_member_counts_at_once_and_min_insync_only_once_committed() -> None:
    partition = leader([ONE, TWO], min_isr=3)
    fetch(partition, TWO, 0)
    fetch(partition, THREE, 0)
    request_id = partition.take_proposal().request_id
    write(partition, 5)
    fetch(partition, TWO, 5)
    fetch(partition, THREE, 4)
    assert partition.high_watermark == 0  # the committed set is too small
    assert partition.altered(request_id, committed(8, [ONE, TWO, THREE]), 0)
    assert partition.high_watermark == 4


def joining(partition: PartitionLeader) -> int:
    """Propose broker 3 into the ISR of 1 and 2, with 5 records that 3 does not have."""
    fetch(partition, THREE, 0)
    request_id = partition.take_proposal().request_id
    write(partition, 5)
    fetch(partition, TWO, 5)
    assert partition.high_watermark == 0
    return request_id


def test_a_rejected_member_no_longer_counts() -> None:
    partition = leader([ONE, TWO])
    assert partition.alter_rejected(joining(partition), 0)
    assert partition.high_watermark == 5


def test_a_proposal_in_doubt_counts_and_is_repeated_unchanged() -> None:
    partition = leader([ONE, TWO])
    partition.alter_unknown(joining(partition), 0)
    assert partition.high_watermark == 0
    assert partition.next_deadline_ms == RETRY_MS
    partition.tick(RETRY_MS - 1)
    assert partition.unsent is None
    partition.tick(RETRY_MS)
    again = partition.take_proposal()
    assert [member.broker_id for member in again.isr] == [1, 2, 3]
    assert again.partition_epoch == 7
    partition.altered(again.request_id, committed(8, [ONE, TWO, THREE]), RETRY_MS)
    assert partition.isr == {1, 2, 3}


def test_a_proposal_in_doubt_is_repeated_for_the_process_that_had_caught_up() -> None:
    """One that has lost its disk and restarted meanwhile must not join with what the former one had."""
    brokers = KnownBrokers(dict(EPOCHS), set(EPOCHS))
    partition = leader([ONE, TWO], brokers=brokers)
    partition.alter_unknown(joining(partition), 0)
    brokers.epochs = {**EPOCHS, THREE: EPOCHS[THREE] + 10}
    partition.fetched(THREE, EPOCHS[THREE] + 10, 0, 0)
    partition.tick(RETRY_MS)
    assert [(each.broker_id, each.broker_epoch) for each in partition.take_proposal().isr] == [
        (broker_id, EPOCHS[broker_id]) for broker_id in (ONE, TWO, THREE)
    ]


def test_a_rejection_after_an_attempt_in_doubt_proves_nothing_until_the_partition_epoch_moves() -> None:
    brokers = KnownBrokers(EPOCHS, set(EPOCHS))
    partition = leader([ONE, TWO], brokers=brokers)
    partition.alter_unknown(joining(partition), 0)
    partition.tick(RETRY_MS)
    assert not partition.alter_rejected(partition.take_proposal().request_id, RETRY_MS)
    assert partition.high_watermark == 0
    brokers.joinable = [ONE, TWO]
    assert partition.next_deadline_ms == 2 * RETRY_MS
    partition.tick(2 * RETRY_MS)
    fence = partition.take_proposal()
    assert [member.broker_id for member in fence.isr] == [1, 2]
    assert partition.altered(fence.request_id, committed(8, [ONE, TWO]), 0)
    assert partition.high_watermark == 5


def test_a_success_that_changed_nothing_leaves_earlier_attempts_in_doubt() -> None:
    partition = leader([ONE, TWO])
    partition.altered(joining(partition), committed(7, [ONE, TWO]), 0)
    assert partition.high_watermark == 0
    partition.tick(RETRY_MS)
    assert proposed(partition) == [1, 2, 3]


def test_only_the_response_to_the_last_attempt_counts() -> None:
    partition = leader([ONE, TWO])
    first = joining(partition)
    partition.alter_unknown(first, 0)
    partition.tick(RETRY_MS)
    assert not partition.alter_rejected(first, RETRY_MS)
    assert not partition.altered(first, committed(9, [ONE]), RETRY_MS)
    assert (partition.isr, partition.high_watermark) == (frozenset([ONE, TWO]), 0)


def test_the_committed_image_decides_a_proposal_in_doubt() -> None:
    partition = leader([ONE, TWO])
    request_id = joining(partition)
    assert not partition.updated(committed(7, [ONE]), 0)  # older than what is known
    assert partition.updated(committed(8, [ONE, TWO]), 0)
    assert partition.high_watermark == 5
    assert not partition.altered(request_id, committed(8, [ONE, TWO, THREE]), 0)
    assert partition.isr == {1, 2}


def test_a_state_of_another_leader_epoch_is_not_adopted() -> None:
    partition = leader([ONE, TWO])
    request_id = joining(partition)
    assert not partition.updated(committed(8, [ONE, TWO], leader_epoch=6), 0)
    assert not partition.altered(request_id, committed(8, [ONE, TWO], leader_epoch=6), 0)
    assert (partition.partition_epoch, partition.high_watermark) == (7, 0)


def test_a_lagging_member_is_proposed_out_and_counts_until_that_is_committed() -> None:
    partition = leader()
    write(partition, 5, now_ms=1000)
    fetch(partition, TWO, 5, 1000)
    assert partition.next_deadline_ms == LAG_MS + 1  # never heard of broker 3: counted from the start
    partition.tick(LAG_MS)
    assert partition.unsent is None
    partition.tick(LAG_MS + 1)
    proposal = partition.take_proposal()
    assert [member.broker_id for member in proposal.isr] == [1, 2]
    assert proposal.isr[1].broker_epoch == 12
    assert partition.high_watermark == 0
    assert partition.altered(proposal.request_id, committed(8, [ONE, TWO]), LAG_MS)
    assert partition.high_watermark == 5


def test_a_removal_that_was_rejected_waits() -> None:
    partition = leader([ONE, TWO], replicas=(ONE, TWO))
    write(partition, 5)
    late_ms = LAG_MS + 1
    partition.tick(late_ms)
    partition.alter_rejected(partition.take_proposal().request_id, late_ms)
    assert partition.next_deadline_ms == late_ms + RETRY_MS


def test_a_removal_in_doubt_is_repeated_although_the_member_has_caught_up() -> None:
    partition = leader([ONE, TWO], replicas=(ONE, TWO))
    write(partition, 5)
    late_ms = LAG_MS + 1
    partition.tick(late_ms)
    partition.alter_unknown(partition.take_proposal().request_id, late_ms)
    fetch(partition, TWO, 5, late_ms)
    assert partition.next_deadline_ms == late_ms + RETRY_MS
    partition.tick(late_ms + RETRY_MS)
    assert proposed(partition) == [1]


def test_there_is_no_deadline_while_all_members_hold_everything() -> None:
    partition = leader([ONE, TWO], replicas=(ONE, TWO), start=5)
    assert partition.next_deadline_ms == LAG_MS + 1
    fetch(partition, TWO, 5)
    assert partition.next_deadline_ms is None


def test_the_leader_never_removes_itself() -> None:
    partition = leader(flushed_end=0, start=0)
    partition.appended(5, 0)  # and its disk does not answer
    partition.tick(100 * LAG_MS)
    assert proposed(partition) == [1]


def test_a_silent_member_that_holds_everything_stays() -> None:
    partition = leader(start=5, watermark=5)
    fetch(partition, TWO, 5)
    fetch(partition, THREE, 5)
    partition.tick(100 * LAG_MS)
    assert partition.unsent is None
    # Its time begins when there is something that it lacks.
    write(partition, 6, now_ms=100 * LAG_MS)
    partition.tick(101 * LAG_MS)
    assert partition.unsent is None
    partition.tick(101 * LAG_MS + 1)
    assert proposed(partition) == [1]


def test_a_follower_is_caught_up_as_of_its_former_fetch_under_constant_load() -> None:
    partition = leader([ONE, TWO], replicas=(ONE, TWO))
    fetch(partition, TWO, 0, 0)
    for turn in range(1, 50):
        now_ms = turn * LAG_MS // 2
        write(partition, turn * 10, now_ms)
        fetch(partition, TWO, (turn - 1) * 10, now_ms)  # never at the end, but never a fetch behind
        partition.tick(now_ms)
        assert partition.unsent is None
    for turn in range(50, 60):
        now_ms = turn * LAG_MS // 2
        write(partition, turn * 10, now_ms)
        fetch(partition, TWO, 480 + turn - 50, now_ms)  # slower than the load
        partition.tick(now_ms)
    assert proposed(partition) == [1]


def test_a_member_that_just_joined_has_the_whole_lag_to_catch_up() -> None:
    partition = leader([ONE, TWO])
    write(partition, 9)
    fetch(partition, TWO, 5)
    late_ms = 50 * LAG_MS
    fetch(partition, TWO, 5, late_ms)
    fetch(partition, THREE, 5, late_ms)  # at the watermark, behind the end
    request_id = partition.take_proposal().request_id
    partition.altered(request_id, committed(8, [ONE, TWO, THREE]), late_ms)
    partition.tick(late_ms)
    assert partition.unsent is None or THREE in proposed(partition)


def test_a_lagging_member_gets_no_more_time_when_another_one_joins() -> None:
    partition = leader([ONE, TWO])
    write(partition, 5)
    partition.updated(committed(8, [ONE, TWO, THREE]), LAG_MS)
    assert partition.next_deadline_ms == LAG_MS + 1
    partition.tick(LAG_MS + 1)
    assert proposed(partition) == [1, 3]


def test_fetches_of_a_former_incarnation_and_of_strangers_are_refused() -> None:
    partition = leader()
    write(partition, 5)
    partition.fetched(TWO, 20, 0, 0)
    with pytest.raises(StaleBrokerEpoch):
        partition.fetched(TWO, 12, 5, 0)
    with pytest.raises(UnknownLeaderEpoch):
        partition.fetched(FOUR, 14, 5, 0)
    assert partition.followers(0)[0].end_offset == 0


def test_reassignment_adds_and_removes_followers() -> None:
    partition = leader()
    fetch(partition, TWO, 0)
    partition.updated(committed(8, [ONE, TWO], replicas=[ONE, TWO, FOUR]), 0)
    assert [status.broker_id for status in partition.followers(0)] == [2, 4]
    assert [status.end_offset for status in partition.followers(0)] == [0, -1]


def test_acknowledgements() -> None:
    partition = leader([ONE, TWO])
    partition.check_writable()
    write(partition, 5)
    assert not partition.is_replicated(5)
    fetch(partition, TWO, 4)
    assert partition.is_replicated(4)
    partition.updated(committed(8, [ONE]), 0)
    assert partition.is_below_min_isr
    with pytest.raises(NotEnoughReplicas):
        partition.check_writable()
    with pytest.raises(NotEnoughReplicasAfterAppend):
        partition.is_replicated(5)
    assert partition.is_replicated(4)
    assert partition.configure(1, flush_counts=True)
    assert partition.is_replicated(5)


HISTORY = EpochHistory([EpochStart(1, 0), EpochStart(3, 10), EpochStart(4, 20)])


@pytest.mark.parametrize(
    ("last_epoch", "offset", "expected"),
    [
        pytest.param(4, 30, None, id="at the end"),
        pytest.param(4, 25, None, id="behind"),
        pytest.param(3, 20, None, id="at the end of a former epoch"),
        pytest.param(1, 5, None, id="in an old epoch"),
        pytest.param(-1, 0, None, id="empty"),
        pytest.param(4, 31, (4, 30), id="more in the last epoch than the leader has"),
        pytest.param(3, 25, (3, 20), id="more in a former epoch"),
        pytest.param(2, 15, (1, 10), id="an epoch that the leader never saw"),
        pytest.param(2, 5, (1, 10), id="the same, but before its end"),
        pytest.param(5, 30, (4, 30), id="led an epoch before ours that reached no follower"),
        pytest.param(6, 31, (4, 30), id="records of our epoch that are not ours"),
    ],
)
def test_divergence(last_epoch: int, offset: int, expected: tuple[int, int] | None) -> None:
    partition = leader(start=30, watermark=20, leader_epoch=6)
    assert partition.check_fetch(6, last_epoch, offset, 0, HISTORY) == expected


@pytest.mark.parametrize(
    ("leader_epoch", "last_epoch", "offset", "error"),
    [
        (5, 4, 30, FencedLeaderEpoch),
        (7, 4, 30, UnknownLeaderEpoch),
        (6, 1, 4, OffsetOutOfRange),
        (6, 6, 4, OffsetOutOfRange),
        (6, -1, 31, OffsetOutOfRange),
    ],
)
def test_fetches_that_are_refused(
    leader_epoch: int, last_epoch: int, offset: int, error: type[AlpacaError]
) -> None:
    partition = leader(start=30, watermark=20, leader_epoch=6)
    with pytest.raises(error):
        partition.check_fetch(leader_epoch, last_epoch, offset, 5, HISTORY)


def test_a_follower_of_a_leader_without_records_starts_again() -> None:
    partition = leader()
    with pytest.raises(OffsetOutOfRange):
        partition.check_fetch(5, 4, 3, 0, EpochHistory([]))


EVENTS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("flush"), st.just(0)),
    st.tuples(st.just("fetch 2"), st.integers(0, 4)),
    st.tuples(st.just("fetch 3"), st.integers(0, 4)),
    st.tuples(st.just("tick"), st.integers(1, 2 * LAG_MS)),
    st.tuples(st.sampled_from(["commit", "reject", "lose", "late"]), st.just(0)),
)


@given(st.lists(EVENTS, max_size=60), st.integers(1, 3))
def test_whatever_happens_the_watermark_is_held_by_all_that_can_be_elected(
    events: list[tuple[str, int]], min_insync: int
) -> None:
    """Run a leader against a controller whose answers are lost and late, and check the electable set."""
    partition = leader([ONE, TWO], min_isr=min_insync)
    now_ms, ends = 0, {TWO: 0, THREE: 0}
    # The controller's own state, and the proposals that may still reach it.
    isr, partition_epoch = frozenset([ONE, TWO]), 7
    on_its_way: list[Any] = []
    before = 0
    for event, amount in events:
        match event:
            case "append":
                partition.appended(partition.log_end + amount, now_ms)
            case "flush":
                partition.flushed(partition.log_end)
            case "fetch 2" | "fetch 3":
                broker_id = BrokerId(int(event[-1]))
                ends[broker_id] = min(ends[broker_id] + amount, partition.log_end)
                fetch(partition, broker_id, ends[broker_id], now_ms)
            case "tick":
                now_ms += amount
                partition.tick(now_ms)
            case "late" if on_its_way:
                proposal = on_its_way.pop()
                if proposal.partition_epoch == partition_epoch:
                    isr = frozenset(member.broker_id for member in proposal.isr)
                    partition_epoch += 1
            case "commit" | "reject" | "lose" if partition.unsent is not None:
                proposal = partition.take_proposal()
                if event == "lose":
                    on_its_way.append(proposal)
                    partition.alter_unknown(proposal.request_id, now_ms)
                elif proposal.partition_epoch != partition_epoch:
                    partition.alter_unknown(proposal.request_id, now_ms)
                elif event == "reject":
                    partition.alter_rejected(proposal.request_id, now_ms)
                else:
                    isr = frozenset(member.broker_id for member in proposal.isr)
                    partition_epoch += 1
                    state = committed(partition_epoch, isr, min_isr=min_insync)
                    partition.altered(proposal.request_id, state, now_ms)
        watermark = partition.high_watermark
        assert before <= watermark <= partition.flushed_end
        if watermark > before:
            assert all(ends[BrokerId(member)] >= watermark for member in isr if member != 1)
            assert len([end for end in ends.values() if end >= watermark]) + 1 >= min_insync
        before = watermark


def test_a_follower_is_behind_since_it_last_had_everything_or_the_leader_began() -> None:
    partition = leader([ONE, TWO], now_ms=500)
    write(partition, 5, 600)
    assert [status.lag_ms for status in partition.followers(700)] == [200, 200]
    fetch(partition, TWO, 5, 800)
    assert [status.lag_ms for status in partition.followers(900)] == [0, 400]
    write(partition, 9, 950)
    partition.updated(committed(8, [ONE, TWO]), 970)
    assert [status.lag_ms for status in partition.followers(1000)] == [50, 500]
