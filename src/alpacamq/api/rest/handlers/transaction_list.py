"""Looking at transactions: a list of them, and how many are in which state."""

from collections import Counter
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.broker import Broker
from alpacamq.coordinator.transaction import Transaction, TransactionState
from alpacamq.coordinator.transaction_messages import ListTransactions

from .producers import ProducerIdNumber, TransactionalIdText, TransactionAnswer, transaction_answer


class State(StrEnum):
    """How far a transaction is."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARE_COMMIT = "prepare-commit"
    PREPARE_ABORT = "prepare-abort"
    COMPLETE_COMMIT = "complete-commit"
    COMPLETE_ABORT = "complete-abort"


class TransactionsWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which transactions to list."""

    transactional_id: TransactionalIdText | UnsetType = UNSET
    producer_id: ProducerIdNumber | UnsetType = UNSET
    state: State | UnsetType = UNSET
    after: Annotated[str, Meta(description="go on after this transactional id")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class TransactionList(msgspec.Struct, frozen=True, kw_only=True):
    """Transactions by their ids; `next` is the id to go on after where there are more."""

    transactions: list[TransactionAnswer]
    next: str | None


class TransactionStats(msgspec.Struct, frozen=True, kw_only=True):
    """Transactional ids by the state of their transaction, and when the oldest open one began."""

    transactional_ids: int
    by_state: dict[str, int]
    oldest_started: int | None


async def list_transactions(call: Call[TransactionsWanted, Nothing]) -> TransactionList:
    wanted = call.parameters
    request = ListTransactions(
        states=frozenset() if wanted.state is UNSET else frozenset({TransactionState(wanted.state.value)}),
        producer_ids=frozenset() if wanted.producer_id is UNSET else frozenset({wanted.producer_id}),
        id_matches=None if wanted.transactional_id is UNSET else wanted.transactional_id.__eq__,
    )
    found = sorted(
        (
            each
            for each in await all_transactions(call.backend.broker, request)
            if each.transactional_id > wanted.after
        ),
        key=lambda each: each.transactional_id,
    )
    shown = found[: wanted.limit]
    return TransactionList(
        transactions=[transaction_answer(each) for each in shown],
        next=shown[-1].transactional_id if len(found) > len(shown) else None,
    )


async def transaction_stats(call: Call[Nothing, Nothing]) -> TransactionStats:
    return stats_of(await all_transactions(call.backend.broker, ListTransactions()))


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


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/transactions",
        summary="List transactions",
        handler=list_transactions,
        parameters=TransactionsWanted,
        body=Nothing,
        answers=(TransactionList,),
    ),
    Route(
        method="GET",
        path="/transactions/stats",
        summary="Figures of transactions",
        handler=transaction_stats,
        parameters=Nothing,
        body=Nothing,
        answers=(TransactionStats,),
    ),
)
