"""Fetching, truncation and the watermark of a follower."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from alpacamq.log.epochs import EpochHistory, EpochStart
from alpacamq.model.errors import OffsetOutOfRange
from alpacamq.model.ids import BrokerId
from alpacamq.replication.follower import (
    FIRST_BACKOFF_MS,
    MAX_BACKOFF_MS,
    FetchError,
    FetchPosition,
    FlushTo,
    PartitionFollower,
    RestartAt,
    TruncateTo,
)
from alpacamq.replication.leader import CommittedState, KnownBrokers, PartitionLeader

ONE, TWO = BrokerId(1), BrokerId(2)


def follower(*entries: tuple[int, int], end: int = 0, **options: Any) -> PartitionFollower:
    """Return a follower of broker 1 in epoch 9 whose flushed log has these epochs."""
    partition = PartitionFollower(
        EpochHistory(EpochStart(*entry) for entry in entries),
        flush_counts=options.pop("flush_counts", True),
    )
    state = {"log_end": end, "flushed_end": end, "high_watermark": 0} | options
    partition.follow(ONE, 9, **state)
    return partition


def fetch(partition: PartitionFollower, now_ms: int = 0) -> FetchPosition:
    step = partition.next_step(now_ms)
    assert isinstance(step, FetchPosition)
    return step


def receive(partition: PartitionFollower, request_id: int, end: int, **options: Any) -> bool:
    state = {"last_epoch": 9, "high_watermark": 0, "start_offset": 0, "now_ms": 0} | options
    return partition.received(request_id, end_offset=end, **state)


def test_a_fetch_names_the_flushed_end_and_the_epoch_before_it() -> None:
    assert fetch(follower((3, 0), (7, 4), end=6)) == FetchPosition(1, ONE, 9, 6, 7)
    assert fetch(follower()) == FetchPosition(1, ONE, 9, 0, -1)


def test_one_fetch_at_a_time_and_none_before_the_flush() -> None:
    partition = follower()
    request = fetch(partition)
    assert partition.next_step(0) is None
    assert receive(partition, request.request_id, 3)
    assert partition.next_step(0) is None  # being appended
    partition.appended(request.request_id, 3)
    assert partition.next_step(0) == partition.next_step(0) == FlushTo(3)
    partition.flushed(2)
    assert partition.next_step(0) == FlushTo(3)
    partition.flushed(3)
    assert fetch(partition).offset == 3


def test_a_log_with_an_unflushed_end_is_flushed_before_the_first_fetch() -> None:
    partition = follower((3, 0), end=5, flushed_end=4)
    assert partition.next_step(0) == FlushTo(5)


def test_nothing_waits_for_the_flush_if_it_does_not_count() -> None:
    partition = follower((3, 0), end=5, flushed_end=4, flush_counts=False)
    request = fetch(partition)
    assert request.offset == 5
    receive(partition, request.request_id, 5, high_watermark=5)
    assert partition.high_watermark == 5


def test_an_empty_response_is_followed_by_the_next_fetch() -> None:
    partition = follower((3, 0), end=5)
    assert not receive(partition, fetch(partition).request_id, 5, high_watermark=4, start_offset=2)
    assert (partition.high_watermark, partition.leader_start) == (4, 2)
    assert fetch(partition).request_id == 2


def test_only_the_response_to_the_outstanding_fetch_counts() -> None:
    partition = follower((3, 0), end=5)
    first = fetch(partition).request_id
    partition.failed(first, FetchError.UNREACHABLE, 0)
    assert not receive(partition, first, 8)
    partition.diverged(first, 2, 1, 0)
    partition.out_of_range(first, 7, 8, 0)
    partition.failed(first, FetchError.UNREACHABLE, 0)
    assert partition.next_step(0) is None
    assert partition.next_deadline_ms == FIRST_BACKOFF_MS
    second = fetch(partition, FIRST_BACKOFF_MS)
    assert not receive(partition, first, 8)
    assert receive(partition, second.request_id, 8)


def test_a_response_of_a_former_leader_is_ignored() -> None:
    partition = follower((3, 0), end=5)
    former = fetch(partition).request_id
    partition.follow(TWO, 10, log_end=5, flushed_end=5, high_watermark=0)
    assert not receive(partition, former, 8)
    request = fetch(partition)
    assert (request.leader_id, request.leader_epoch) == (TWO, 10)
    partition.diverged(former, 2, 1, 0)
    assert partition.next_step(0) is None


def test_metadata_never_goes_back() -> None:
    partition = follower()
    assert not partition.is_newer_leader(9)
    with pytest.raises(AssertionError):
        partition.follow(TWO, 9, log_end=0, flushed_end=0, high_watermark=0)


def test_without_a_leader_there_is_nothing_to_do() -> None:
    partition = follower()
    partition.follow(None, 10, log_end=0, flushed_end=0, high_watermark=0)
    assert partition.next_step(0) is None
    assert partition.next_deadline_ms is None


@pytest.mark.parametrize(
    ("end", "last_epoch"),
    [
        pytest.param(4, 9, id="ends before this log"),
        pytest.param(8, 6, id="an epoch older than the last one here"),
        pytest.param(8, 10, id="an epoch newer than the leader's"),
    ],
)
def test_a_response_that_does_not_continue_the_log_is_refused(end: int, last_epoch: int) -> None:
    partition = follower((7, 0), end=5)
    assert not receive(partition, fetch(partition).request_id, end, last_epoch=last_epoch)
    assert partition.last_error is FetchError.INVALID
    assert partition.next_deadline_ms == FIRST_BACKOFF_MS


@pytest.mark.parametrize("last_epoch", [7, 9])
def test_a_response_continues_the_last_epoch_or_begins_one_up_to_that_of_the_leader(last_epoch: int) -> None:
    partition = follower((7, 0), end=5)
    assert receive(partition, fetch(partition).request_id, 8, last_epoch=last_epoch)


def test_failures_back_off_until_a_response_or_a_new_leader() -> None:
    partition = follower()
    now_ms, waits = 0, []
    for _ in range(7):
        partition.failed(fetch(partition, now_ms).request_id, FetchError.UNKNOWN_LEADER_EPOCH, now_ms)
        assert partition.next_deadline_ms is not None
        waits.append(partition.next_deadline_ms - now_ms)
        now_ms = partition.next_deadline_ms
    assert waits[:3] == [FIRST_BACKOFF_MS, 2 * FIRST_BACKOFF_MS, 4 * FIRST_BACKOFF_MS]
    assert waits[-1] == MAX_BACKOFF_MS
    receive(partition, fetch(partition, now_ms).request_id, 0)
    partition.failed(fetch(partition, now_ms).request_id, FetchError.FENCED_LEADER_EPOCH, now_ms)
    assert partition.next_deadline_ms == now_ms + FIRST_BACKOFF_MS
    partition.follow(TWO, 10, log_end=0, flushed_end=0, high_watermark=0)
    assert fetch(partition, now_ms).leader_id == TWO


def test_the_watermark_follows_the_leader_as_far_as_the_log_is_flushed() -> None:
    partition = follower()
    request_id = fetch(partition).request_id
    receive(partition, request_id, 5, high_watermark=4)
    assert partition.high_watermark == 0
    partition.appended(request_id, 5)
    assert partition.high_watermark == 0
    partition.flushed(3)
    assert partition.high_watermark == 3
    partition.flushed(5)
    assert partition.high_watermark == 4
    receive(partition, fetch(partition).request_id, 5, high_watermark=2)  # a new leader's may lag
    assert partition.high_watermark == 4


def test_a_checkpointed_watermark_beyond_the_log_is_cut_to_it() -> None:
    assert follower((3, 0), end=5, high_watermark=8).high_watermark == 5


# Epochs here: 1 at 0, 3 at 10, 6 at 20; the log ends at 30.
@pytest.mark.parametrize(
    ("epoch", "end_offset", "target"),
    [
        pytest.param(6, 25, 25, id="the leader has less of the same epoch"),
        pytest.param(3, 15, 15, id="the leader has less of a former epoch"),
        pytest.param(3, 25, 20, id="the leader has more of a former epoch"),
        pytest.param(5, 25, 20, id="the leader's epoch is unknown here: cut to the one before"),
        pytest.param(2, 18, 10, id="the same with an older epoch"),
        pytest.param(0, 4, 0, id="nothing in common"),
    ],
)
def test_truncation(epoch: int, end_offset: int, target: int) -> None:
    partition = follower((1, 0), (3, 10), (6, 20), end=30)
    partition.diverged(fetch(partition).request_id, epoch, end_offset, 0)
    assert partition.next_step(0) == partition.next_step(0) == TruncateTo(target, lost_committed=False)
    partition.truncated(target)
    assert fetch(partition).offset == target


def test_an_epoch_without_records_is_dropped() -> None:
    partition = follower((1, 0), (6, 30), end=30)
    partition.diverged(fetch(partition).request_id, 3, 40, 0)
    assert partition.next_step(0) == TruncateTo(30, lost_committed=False)


def test_a_leader_that_contradicts_itself_is_asked_again_later() -> None:
    partition = follower((1, 0), (6, 20), end=30)
    partition.diverged(fetch(partition).request_id, 6, 30, 0)
    assert partition.next_step(0) is None
    assert partition.last_error is FetchError.INVALID


def test_truncation_below_the_watermark_is_flagged() -> None:
    partition = follower((1, 0), (6, 20), end=30, high_watermark=25)
    partition.diverged(fetch(partition).request_id, 6, 25, 0)
    assert partition.next_step(0) == TruncateTo(25, lost_committed=False)
    partition.truncated(25)
    assert not partition.lost_committed
    partition.diverged(fetch(partition).request_id, 6, 24, 0)
    assert partition.next_step(0) == TruncateTo(24, lost_committed=True)
    partition.truncated(24)
    assert partition.lost_committed
    assert partition.high_watermark == 24
    partition.out_of_range(fetch(partition).request_id, 50, 60, 0)
    assert partition.next_step(0) == RestartAt(50, lost_committed=False)
    assert partition.lost_committed, "it is not forgotten"


def test_truncation_commits_nothing() -> None:
    partition = follower((1, 0), (6, 20), end=30, high_watermark=10)
    partition.diverged(fetch(partition).request_id, 6, 25, 0)
    partition.truncated(25)
    assert partition.high_watermark == 10


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(50, 60, RestartAt(50, lost_committed=False), id="retention has passed this replica"),
        pytest.param(0, 20, RestartAt(0, lost_committed=True), id="the leader lost committed records"),
        pytest.param(10, 27, RestartAt(10, lost_committed=False), id="no common epoch"),
        pytest.param(0, 40, None, id="in range by now"),
        pytest.param(30, 40, None, id="at the start by now"),
        pytest.param(0, 30, None, id="at the end by now"),
    ],
)
def test_out_of_range(start: int, end: int, expected: RestartAt | None) -> None:
    partition = follower((6, 20), end=30, high_watermark=25)
    partition.out_of_range(fetch(partition).request_id, start, end, 0)
    assert partition.next_step(0) == expected


# Logs of two replicas as lists of epochs, one per record, as leaders in turn would have written them.
LOGS = st.lists(st.integers(0, 6), max_size=12).map(sorted)


def history(log: list[int]) -> EpochHistory:
    starts: dict[int, int] = {}
    for offset, epoch in enumerate(log):
        starts.setdefault(epoch, offset)
    return EpochHistory(EpochStart(*entry) for entry in starts.items())


@given(LOGS, LOGS)
def test_any_two_logs_converge_and_keep_what_they_have_in_common(here: list[int], there: list[int]) -> None:
    """Run the leader's check against the follower's truncation until they agree.

    Two logs with the same epoch at an offset are equal up to there, so epochs stand for records.
    """
    common = max(size for size in range(len(here) + 1) if here[:size] == there[:size])
    # An epoch has one leader: behind the point where the logs part, no epoch is in both.
    assume(not set(here[common:]) & set(there[common:]))
    leader = PartitionLeader(
        broker_id=ONE,
        state=CommittedState(leader_epoch=9, partition_epoch=0, replicas=[ONE, TWO], isr=[ONE], min_isr=1),
        log_end=len(there),
        flushed_end=len(there),
        high_watermark=0,
        replica_lag_ms=1,
        brokers=KnownBrokers({}, ()),
        now_ms=0,
    )
    epochs = history(here)
    partition = PartitionFollower(epochs)
    partition.follow(ONE, 9, log_end=len(here), flushed_end=len(here), high_watermark=0)
    log = list(here)
    for _ in range(10):
        request = fetch(partition)
        try:
            found = leader.check_fetch(9, request.last_epoch, request.offset, 0, history(there))
        except OffsetOutOfRange:
            partition.out_of_range(request.request_id, 0, len(there), 0)
        else:
            if found is None:
                break
            partition.diverged(request.request_id, *found, 0)
        step = partition.next_step(0)
        assert isinstance(step, TruncateTo | RestartAt)
        offset = 0 if isinstance(step, RestartAt) else step.offset
        del log[offset:]
        epochs.truncate_from(offset)
        partition.truncated(offset)
    else:
        pytest.fail("the logs did not converge")
    assert log == there[: len(log)]
    assert len(log) == common
