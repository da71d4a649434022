"""Transactions: writing to several partitions and committing offsets, all of it or nothing."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.coordination import ask_group, ask_transaction
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.publishing import TransactionalProducer
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.messages import NO_GENERATION, PartitionResults, TxnCommitRequest
from alpacamq.coordinator.transactions.coordinator import TransactionCoordinator
from alpacamq.coordinator.transactions.transaction import (
    EndProtocol,
    EndTransaction,
    ProducerIdentity,
    TransactionPartitions,
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
    """A transactional producer, with the identity it was last answered."""

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
    """A partition to make part of a transaction before anything is written to it."""

    topic: TopicText
    partition: PartitionIndex


class TransactionalOffsets(Producer, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Offsets that take effect if the transaction is committed."""

    group: GroupText
    offsets: Annotated[list[NewOffset], Meta(min_length=1, max_length=MAX_OFFSETS)]
    member_id: MemberText | UnsetType = UNSET
    member_epoch: Annotated[int, Meta(ge=0, le=INT32_MAX)] | UnsetType = UNSET


async def begin(call: Call[Nothing, Producer]) -> TransactionAnswer:
    """A transaction begins with what is first written in it: here is only looked whether it can."""
    body = call.body
    known = await current_transaction(call.backend.broker, body.transactional_id, body.identity)
    if known.state is TransactionState.ONGOING:
        raise InvalidTransactionState(f"a transaction of {body.transactional_id!r} is open already")
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
    request = TransactionPartitions(
        transactional_id=body.transactional_id, producer=body.identity, partitions=(partition.identity,)
    )
    await ask_transaction(broker, TransactionCoordinator.add_partitions, request)
    return transaction_answer(await current_transaction(broker, body.transactional_id, body.identity))


async def add_offsets(call: Call[Nothing, TransactionalOffsets]) -> OffsetResults:
    broker, body = call.backend.broker, call.body
    joining = TransactionPartitions(
        transactional_id=body.transactional_id,
        producer=body.identity,
        partitions=(await broker.coordinators.offsets_partition(body.group),),
    )
    await ask_transaction(broker, TransactionCoordinator.add_partitions, joining)
    wanted = to_commit(body.offsets)
    unknown = unknown_partitions(broker, wanted)
    request = TxnCommitRequest(
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        group=body.group,
        offsets=tuple(each for each, error in zip(wanted, unknown, strict=True) if error is None),
        member_id="" if body.member_id is UNSET else body.member_id,
        generation=NO_GENERATION if body.member_epoch is UNSET else body.member_epoch,
    )
    results: PartitionResults = await ask_group(broker, GroupCoordinator.txn_commit, request)
    return offset_results(wanted, unknown, results)


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
        producer = await broker.coordinators.end_transaction(request)
    except InvalidTransactionState:
        known = await known_transaction(broker, body.transactional_id)
        if known.producer != body.identity or known.state is TransactionState.ONGOING:
            raise
        producer = known.producer  # begun, but nothing was written
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

ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="POST",
        path="/transactions/begin",
        summary="See that a transaction can begin",
        handler=begin,
        parameters=Nothing,
        body=Producer,
        answers=(TransactionAnswer,),
        errors=_ERRORS,
    ),
    Route(
        method="POST",
        path="/transactions/publish",
        summary="Publish messages that are read once the transaction is committed",
        handler=publish,
        parameters=Nothing,
        body=TransactionalMessages,
        answers=(PublishedMessages,),
        errors=(*_ERRORS, *PUBLISH_ERRORS),
    ),
    Route(
        method="POST",
        path="/transactions/add-partition",
        summary="Make a partition part of a transaction",
        handler=add_partition,
        parameters=Nothing,
        body=AddedPartition,
        answers=(TransactionAnswer,),
        errors=(*_ERRORS, UnknownTopic),
    ),
    Route(
        method="POST",
        path="/transactions/offsets",
        summary="Commit a group's offsets together with a transaction",
        handler=add_offsets,
        parameters=Nothing,
        body=TransactionalOffsets,
        answers=(OffsetResults,),
        errors=(*_ERRORS, UnknownTopic, UnknownMember, StaleMemberEpoch, IllegalGeneration, TooManyGroups),
    ),
    Route(
        method="POST",
        path="/transactions/commit",
        summary="Commit a transaction; answers the identity for the next one",
        handler=commit,
        parameters=Nothing,
        body=Producer,
        answers=(ProducerAnswer,),
        errors=_ERRORS,
    ),
    Route(
        method="POST",
        path="/transactions/abort",
        summary="Abort a transaction; answers the identity for the next one",
        handler=abort,
        parameters=Nothing,
        body=Producer,
        answers=(ProducerAnswer,),
        errors=_ERRORS,
    ),
)
