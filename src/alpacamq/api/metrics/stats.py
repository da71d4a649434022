"""Adds up the stats of queues and transactions, for the JSON API and for /metrics."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from alpacamq.broker.broker import Broker
from alpacamq.coordinator.transactions.transaction import ListTransactions, Transaction
from alpacamq.queues.messages import DescribeReply, LaneTotals, PartitionTotals


class LaneStats(msgspec.Struct, frozen=True, kw_only=True):
    """One lane. Totals count since the broker started."""

    ready: int
    in_flight: int
    resting: int
    enqueued_total: int
    delivered_total: int


class QueueTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue holds, and what has happened since the broker started."""

    ready: int
    in_flight: int
    resting: int
    dead_lettering: int
    received_total: int
    acked_total: int
    nacked_total: int
    rejected_total: int
    expired_leases_total: int
    dead_lettered_total: int
    redelivered_total: int
    waiting_receives: int


class TransactionStats(msgspec.Struct, frozen=True, kw_only=True):
    """Transactional ids by the state of their transaction, and when the oldest open one began."""

    transactional_ids: int
    by_state: dict[str, int]
    oldest_started: int | None


class State(StrEnum):
    """How far a transaction is."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARE_COMMIT = "prepare-commit"
    PREPARE_ABORT = "prepare-abort"
    COMPLETE_COMMIT = "complete-commit"
    COMPLETE_ABORT = "complete-abort"


def totals_of(queues: Iterable[DescribeReply]) -> QueueTotals:
    """The figures of some queues, added up."""
    queues = list(queues)
    partitions = [partition for queue in queues for partition in queue.partitions]
    return QueueTotals(
        ready=sum(each.ready for each in partitions),
        in_flight=sum(each.in_flight for each in partitions),
        resting=sum(each.resting for each in partitions),
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
    """The lanes of some partitions, added up by name."""
    by_name: dict[str, list[LaneTotals]] = {}
    for partition in partitions:
        for name, stats in partition.lanes.items():
            by_name.setdefault(name, []).append(stats)
    return {
        name: LaneStats(
            ready=sum(each.ready for each in stats),
            in_flight=sum(each.in_flight for each in stats),
            resting=sum(each.resting for each in stats),
            enqueued_total=sum(each.enqueued_total for each in stats),
            delivered_total=sum(each.delivered_total for each in stats),
        )
        for name, stats in by_name.items()
    }


async def all_transactions(broker: Broker, request: ListTransactions) -> list[Transaction]:
    """The transactions of every shard that are asked for."""
    found: list[tuple[Transaction, ...]] = await broker.coordinators.ask_every_transaction_shard(
        lambda machine, ticket, now_ms: machine.list(request, ticket, now_ms)
    )
    return [each for of_shard in found for each in of_shard]


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
