"""Adds up the stats of queues and transactions, for the HTTP API and /metrics."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from alpacamq.coordinator.transactions.transaction import Transaction
from alpacamq.queues.messages import DescribeReply, PartitionTotals
from alpacamq.wire.queues import LaneStats, QueueTotals, sum_of_lanes


class TransactionStats(msgspec.Struct, frozen=True, kw_only=True):
    """Transactional ids by transaction state, and the start of the oldest open transaction."""

    transactional_ids: int
    by_state: dict[str, int]
    oldest_started: int | None


class State(StrEnum):
    """States of a transaction."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARE_COMMIT = "prepare-commit"
    PREPARE_ABORT = "prepare-abort"
    COMPLETE_COMMIT = "complete-commit"
    COMPLETE_ABORT = "complete-abort"


def totals_of(queues: Iterable[DescribeReply]) -> QueueTotals:
    """Add up the stats of queues."""
    queues = list(queues)
    partitions = [partition for queue in queues for partition in queue.partitions]
    return QueueTotals(
        ready=sum(each.ready for each in partitions),
        in_flight=sum(each.in_flight for each in partitions),
        resting=sum(each.backoff for each in partitions),
        dead_lettering=sum(each.dead_lettering for each in partitions),
        received_total=sum(each.received_total for each in queues),
        acked_total=sum(each.acked_total for each in queues),
        nacked_total=sum(each.nacked_total for each in queues),
        rejected_total=sum(each.rejected_total for each in queues),
        expired_leases_total=sum(each.expired_leases_total for each in queues),
        dead_lettered_total=sum(each.dead_lettered_total for each in queues),
        redelivered_total=sum(each.redelivered_total for each in queues),
        waiting_receives=sum(each.waiting_receives for each in queues),
    )


def lanes_of(partitions: Iterable[PartitionTotals]) -> dict[str, LaneStats]:
    """Add up the lanes of partitions by name."""
    by_name: dict[str, list[LaneStats]] = {}
    for partition in partitions:
        for name, lane in partition.lanes.items():
            by_name.setdefault(name, []).append(
                LaneStats(
                    ready=lane.ready,
                    in_flight=lane.in_flight,
                    resting=lane.backoff,
                    enqueued_total=lane.enqueued_total,
                    delivered_total=lane.delivered_total,
                )
            )
    return {name: sum_of_lanes(lanes) for name, lanes in by_name.items()}


def stats_of(transactions: list[Transaction]) -> TransactionStats:
    by_state = Counter({state.value: 0 for state in State})
    by_state.update(each.state.value for each in transactions)
    return TransactionStats(
        transactional_ids=len(transactions),
        by_state=dict(by_state),
        oldest_started=min(
            (each.started_ms for each in transactions if each.started_ms is not None), default=None
        ),
    )
