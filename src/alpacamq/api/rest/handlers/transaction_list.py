"""Looking at transactions: a list of them, and how many are in which state."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.metrics.stats import State, TransactionStats, all_transactions, stats_of
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.coordinator.transactions.transaction import ListTransactions, TransactionState

from .producers import ProducerIdNumber, TransactionalIdText, TransactionAnswer, transaction_answer


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
        summary="AnalyticsResults of transactions",
        handler=transaction_stats,
        parameters=Nothing,
        body=Nothing,
        answers=(TransactionStats,),
    ),
)
