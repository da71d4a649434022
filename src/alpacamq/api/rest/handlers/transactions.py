"""Transactions: publishing to several partitions and committing offsets atomically; listing them."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.metrics.stats import State, TransactionStats, all_transactions, stats_of
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.publishing import TransactionalProducer
from alpacamq.coordinator.messages import NO_GENERATION, PartitionResults, TxnCommitRequest
from alpacamq.coordinator.transactions.transaction import (
    AddPartitions,
    EndProtocol,
    EndTransaction,
    ListTransactions,
    ProducerIdentity,
    TransactionState,
)
from alpacamq.model.errors import (
    ConcurrentTransactions,
    FencedProducer,
    IllegalGeneration,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    ProducerFenced,
    StaleMemberEpoch,
    TooManyGroups,
    TransactionalIdNotFound,
    UnknownMember,
    UnknownTopic,
)
from alpacamq.model.topics import INT32_MAX

from .names import GroupText, MemberText, PartitionIndex, TopicText
from .offsets import (
    MAX_OFFSETS,
    NewOffset,
    OffsetResults,
    offset_results,
    to_commit,
    unknown_partitions,
)
from .producers import (
    EpochNumber,
    ProducerAnswer,
    ProducerIdNumber,
    TransactionalIdText,
    TransactionAnswer,
    current_transaction,
    known_transaction,
    transaction_answer,
)
from .publishing import (
    PUBLISH_ERRORS,
    PublishedMessages,
    SeveralMessages,
    publish_all,
    published_messages,
    to_messages,
)


class Producer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transactional producer with its latest id and epoch."""

    transactional_id: TransactionalIdText
    producer_id: ProducerIdNumber
    producer_epoch: EpochNumber

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)


class TransactionalMessages(Producer, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages to publish as part of a transaction."""

    topic: TopicText
    messages: SeveralMessages


class AddedPartition(Producer, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A partition to add to a transaction before writing to it."""

    topic: TopicText
    partition: PartitionIndex


class TransactionalOffsets(Producer, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Offsets that take effect if the transaction is committed."""

    group: GroupText
    offsets: Annotated[list[NewOffset], Meta(min_length=1, max_length=MAX_OFFSETS)]
    member_id: MemberText | UnsetType = UNSET
    member_epoch: Annotated[int, Meta(ge=0, le=INT32_MAX)] | UnsetType = UNSET


async def begin(call: Call[Nothing, Producer]) -> TransactionAnswer:
    """Check that a transaction can begin; it begins with the first write."""
    body = call.body
    known = await current_transaction(call.backend.broker, body.transactional_id, body.identity)
    if known.state is TransactionState.ONGOING:
        raise InvalidTransactionState(f"transactional id {body.transactional_id!r} has an open transaction")
    return transaction_answer(known)


async def publish(call: Call[Nothing, TransactionalMessages]) -> PublishedMessages:
    broker, body = call.backend.broker, call.body
    producer = TransactionalProducer(
        transactional_id=body.transactional_id,
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
    )
    messages = to_messages(body.messages, broker.clock.now_ms())
    results = await publish_all(call, body.topic, messages, producer)
    return published_messages(body.topic, results)


async def add_partition(call: Call[Nothing, AddedPartition]) -> TransactionAnswer:
    broker, body = call.backend.broker, call.body
    partition = broker.topics.partition(body.topic, body.partition)
    request = AddPartitions(
        transactional_id=body.transactional_id, producer=body.identity, partitions=(partition.identity,)
    )
    await broker.transactions.ask(request)
    return transaction_answer(await current_transaction(broker, body.transactional_id, body.identity))


async def add_offsets(call: Call[Nothing, TransactionalOffsets]) -> OffsetResults:
    broker, body = call.backend.broker, call.body
    joining = AddPartitions(
        transactional_id=body.transactional_id,
        producer=body.identity,
        partitions=(await broker.groups.offsets_partition(body.group),),
    )
    await broker.transactions.ask(joining)
    query = to_commit(body.offsets)
    unknown = unknown_partitions(broker, query)
    request = TxnCommitRequest(
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        group=body.group,
        offsets=tuple(each for each, error in zip(query, unknown, strict=True) if error is None),
        member_id="" if body.member_id is UNSET else body.member_id,
        generation=NO_GENERATION if body.member_epoch is UNSET else body.member_epoch,
    )
    results: PartitionResults = await broker.groups.ask(request)
    return offset_results(query, unknown, results)


async def commit(call: Call[Nothing, Producer]) -> ProducerAnswer:
    return await _ended(call, committed=True)


async def abort(call: Call[Nothing, Producer]) -> ProducerAnswer:
    return await _ended(call, committed=False)


async def _ended(call: Call[Nothing, Producer], *, committed: bool) -> ProducerAnswer:
    broker, body = call.backend.broker, call.body
    request = EndTransaction(
        transactional_id=body.transactional_id,
        producer=body.identity,
        committed=committed,
        protocol=EndProtocol.NEW_EPOCH,
    )
    try:
        producer = await broker.transactions.end(request)
    except InvalidTransactionState:
        known = await known_transaction(broker, body.transactional_id)
        if known.producer != body.identity or known.state is TransactionState.ONGOING:
            raise
        producer = known.producer  # begun without writes
    return ProducerAnswer(
        transactional_id=body.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


_ERRORS = (
    TransactionalIdNotFound,
    ProducerFenced,
    FencedProducer,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    ConcurrentTransactions,
)


class TransactionsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which transactions to list."""

    transactional_id: TransactionalIdText | UnsetType = UNSET
    producer_id: ProducerIdNumber | UnsetType = UNSET
    state: State | UnsetType = UNSET
    after: Annotated[str, Meta(description="continue after this transactional id")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class TransactionList(msgspec.Struct, frozen=True, kw_only=True):
    """Transactions by id. If there are more, `next` is the id to continue after."""

    transactions: list[TransactionAnswer]
    next: str | None


async def list_transactions(call: Call[TransactionsQuery, Nothing]) -> TransactionList:
    query = call.parameters
    request = ListTransactions(
        states=frozenset() if query.state is UNSET else frozenset({TransactionState(query.state.value)}),
        producer_ids=frozenset() if query.producer_id is UNSET else frozenset({query.producer_id}),
        id_matches=None if query.transactional_id is UNSET else query.transactional_id.__eq__,
    )
    found = sorted(
        (
            each
            for each in await all_transactions(call.backend.broker, request)
            if each.transactional_id > query.after
        ),
        key=lambda each: each.transactional_id,
    )
    shown = found[: query.limit]
    return TransactionList(
        transactions=[transaction_answer(each) for each in shown],
        next=shown[-1].transactional_id if len(found) > len(shown) else None,
    )


async def transaction_stats(call: Call[Nothing, Nothing]) -> TransactionStats:
    return stats_of(await all_transactions(call.backend.broker, ListTransactions()))


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="POST",
        path="/transactions/begin",
        summary="Check that a transaction can begin",
        handler=begin,
        parameters=Nothing,
        body=Producer,
        answers=(TransactionAnswer,),
        errors=_ERRORS,
    ),
    Route(
        method="POST",
        path="/transactions/publish",
        summary="Publish messages in a transaction",
        handler=publish,
        parameters=Nothing,
        body=TransactionalMessages,
        answers=(PublishedMessages,),
        errors=(*_ERRORS, *PUBLISH_ERRORS),
    ),
    Route(
        method="POST",
        path="/transactions/add-partition",
        summary="Add a partition to a transaction",
        handler=add_partition,
        parameters=Nothing,
        body=AddedPartition,
        answers=(TransactionAnswer,),
        errors=(*_ERRORS, UnknownTopic),
    ),
    Route(
        method="POST",
        path="/transactions/offsets",
        summary="Commit offsets of a group in a transaction",
        handler=add_offsets,
        parameters=Nothing,
        body=TransactionalOffsets,
        answers=(OffsetResults,),
        errors=(*_ERRORS, UnknownTopic, UnknownMember, StaleMemberEpoch, IllegalGeneration, TooManyGroups),
    ),
    Route(
        method="POST",
        path="/transactions/commit",
        summary="Commit a transaction; returns the producer id and epoch for the next one",
        handler=commit,
        parameters=Nothing,
        body=Producer,
        answers=(ProducerAnswer,),
        errors=_ERRORS,
    ),
    Route(
        method="POST",
        path="/transactions/abort",
        summary="Abort a transaction; returns the producer id and epoch for the next one",
        handler=abort,
        parameters=Nothing,
        body=Producer,
        answers=(ProducerAnswer,),
        errors=_ERRORS,
    ),
    Route(
        method="GET",
        path="/transactions",
        summary="List transactions",
        handler=list_transactions,
        parameters=TransactionsQuery,
        body=Nothing,
        answers=(TransactionList,),
    ),
    Route(
        method="GET",
        path="/transactions/stats",
        summary="Stats of transactions",
        handler=transaction_stats,
        parameters=Nothing,
        body=Nothing,
        answers=(TransactionStats,),
    ),
)
