"""Producer ids, and transactions: publishing to several partitions and committing offsets atomically."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.metrics.stats import State, TransactionStats, stats_of
from alpacamq.api.rest.errors import UnknownProducer
from alpacamq.api.rest.parameters import GroupText, MemberText, PartitionIndex, TopicText
from alpacamq.api.rest.rights import check_producer
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.broker import Broker
from alpacamq.broker.publishing import TransactionalProducer
from alpacamq.coordinator.messages import NO_GENERATION, PartitionResults, TxnCommitRequest
from alpacamq.coordinator.transactions.transaction import (
    PREPARED,
    AddPartitions,
    DescribeTransaction,
    EndProtocol,
    EndTransaction,
    InitProducer,
    ListTransactions,
    ProducerIdentity,
    Transaction,
    TransactionState,
)
from alpacamq.model.errors import (
    ConcurrentTransactions,
    FencedProducer,
    IllegalGeneration,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    ProducerFenced,
    StaleMemberEpoch,
    TooManyGroups,
    TransactionalIdNotFound,
    UnknownMember,
    UnknownTopic,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.topics import INT32_MAX, INT64_MAX
from alpacamq.security.quotas import QuotaKey

from .offsets import (
    MAX_OFFSETS,
    NewOffset,
    OffsetResults,
    offset_results,
    to_commit,
    unknown_partitions,
)
from .publishing import (
    PUBLISH_ERRORS,
    PublishedMessages,
    SeveralMessages,
    publish_all,
    published_messages,
    to_messages,
)

TransactionalIdText = Annotated[str, Meta(min_length=1, max_length=255)]
ProducerIdNumber = Annotated[int, Meta(ge=0, le=INT64_MAX)]
# The largest epoch is reserved for the broker; no producer is given it.
EpochNumber = Annotated[int, Meta(ge=0, le=32766)]


class NewProducer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new producer; with a transactional id, earlier producers of that id are fenced."""

    transactional_id: TransactionalIdText | UnsetType = UNSET
    timeout_ms: Annotated[int, Meta(ge=1, le=INT32_MAX, description="of its transactions")] = 60_000


class ProducerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The producer id and epoch to use."""

    producer_id: int
    producer_epoch: int
    transactional_id: str | UnsetType = UNSET


class OfProducerId(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A producer."""

    id: ProducerIdNumber


class Alive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The epoch of the producer."""

    producer_epoch: EpochNumber


class PartitionName(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a topic."""

    topic: str
    partition: int


class TransactionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A transactional id and its current or last transaction, which is aborted at `expires`."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started: int | None
    expires: int | None
    partitions: list[PartitionName]


async def init_producer(call: Call[Nothing, NewProducer]) -> ProducerAnswer:
    broker, body = call.backend.broker, call.body
    if body.transactional_id is UNSET:
        check_producer(broker.access, call.caller)
        return ProducerAnswer(producer_id=await broker.producer_ids.new(), producer_epoch=0)
    request = InitProducer(transactional_id=body.transactional_id, timeout_ms=body.timeout_ms)
    producer: ProducerIdentity = await broker.transactions.ask(request)
    return ProducerAnswer(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transactional_id=body.transactional_id,
    )


async def heartbeat(call: Call[OfProducerId, Alive]) -> TransactionAnswer:
    producer = ProducerIdentity(call.parameters.id, call.body.producer_epoch)
    query = ListTransactions(producer_ids=frozenset({producer.producer_id}))
    known = next(iter(await call.backend.broker.transactions.find(query)), None)
    if known is None or not call.sees_transactional_id(known.transactional_id):
        raise UnknownProducer(f"no transactional id belongs to producer {producer.producer_id}")
    known.check(producer)
    return transaction_answer(known)


async def current_transaction(
    broker: Broker, transactional_id: str, producer: ProducerIdentity
) -> Transaction:
    """Return the transaction of a producer; raise ConcurrentTransactions while the last one completes."""
    known = await known_transaction(broker, transactional_id)
    known.check(producer)
    if known.state in PREPARED:
        raise ConcurrentTransactions(f"the last transaction of {transactional_id!r} is still being completed")
    return known


async def known_transaction(broker: Broker, transactional_id: str) -> Transaction:
    """Return the transaction of an id; raise TransactionalIdNotFound."""
    return await broker.transactions.ask(DescribeTransaction(transactional_id=transactional_id))


def transaction_answer(known: Transaction) -> TransactionAnswer:
    return TransactionAnswer(
        transactional_id=known.transactional_id,
        producer_id=known.producer.producer_id,
        producer_epoch=known.producer.epoch,
        state=known.state.value,
        timeout_ms=known.timeout_ms,
        started=known.started_ms,
        expires=None if known.started_ms is None else known.started_ms + known.timeout_ms,
        partitions=[PartitionName(topic=topic, partition=index) for topic, index in known.partitions],
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
    messages = to_messages(body.messages, broker.time.now_ms())
    results = await publish_all(call, body.topic, messages, producer)
    return published_messages(body.topic, results)


async def add_partition(call: Call[Nothing, AddedPartition]) -> TransactionAnswer:
    broker, body = call.backend.broker, call.body
    if not broker.topics.exists(body.topic.encode(), body.partition):
        raise broker.topics.absence(body.topic.encode(), body.partition)
    partition = TopicPartition(TopicName(body.topic), body.partition)
    request = AddPartitions(
        transactional_id=body.transactional_id, producer=body.identity, partitions=(partition,)
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
    added = await broker.transactions.ask(joining)
    query = to_commit(body.offsets)
    unknown = unknown_partitions(broker, query)
    request = TxnCommitRequest(
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        group=body.group,
        offsets=tuple(each for each, error in zip(query, unknown, strict=True) if error is None),
        member_id="" if body.member_id is UNSET else body.member_id,
        generation=NO_GENERATION if body.member_epoch is UNSET else body.member_epoch,
        number=added.number,
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
        transactional_ids=frozenset()
        if query.transactional_id is UNSET
        else frozenset({query.transactional_id}),
    )
    found = sorted(
        (
            each
            for each in await call.backend.broker.transactions.find(request)
            if each.transactional_id > query.after and call.sees_transactional_id(each.transactional_id)
        ),
        key=lambda each: each.transactional_id,
    )
    shown = found[: query.limit]
    return TransactionList(
        transactions=[transaction_answer(each) for each in shown],
        next=shown[-1].transactional_id if len(found) > len(shown) else None,
    )


async def transaction_stats(call: Call[Nothing, Nothing]) -> TransactionStats:
    return stats_of(await call.backend.broker.transactions.find(ListTransactions()))


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="POST",
        path="/producers/init",
        summary="Initialise a producer, transactional if a transactional id is given",
        handler=init_producer,
        parameters=Nothing,
        body=NewProducer,
        answers=(ProducerAnswer,),
        errors=(InvalidTransactionTimeout, ConcurrentTransactions),
    ),
    Route(
        method="POST",
        path="/producers/{id}/heartbeat",
        summary="Check that a transactional producer is not fenced, and show its transaction",
        handler=heartbeat,
        parameters=OfProducerId,
        body=Alive,
        answers=(TransactionAnswer,),
        errors=(UnknownProducer, ProducerFenced, InvalidProducerIdMapping),
    ),
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
        quota=QuotaKey.PRODUCE,
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
