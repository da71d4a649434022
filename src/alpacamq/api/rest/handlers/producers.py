"""Producer ids: initialising producers, and checking that they are not fenced."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.errors import UnknownProducer
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.broker import Broker
from alpacamq.coordinator.transactions.transaction import (
    PREPARED,
    DescribeTransaction,
    InitProducer,
    ListTransactions,
    ProducerIdentity,
    Transaction,
)
from alpacamq.model.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    ProducerFenced,
)
from alpacamq.model.topics import INT32_MAX, INT64_MAX

TransactionalIdText = Annotated[str, Meta(min_length=1, max_length=255)]
ProducerIdNumber = Annotated[int, Meta(ge=0, le=INT64_MAX)]
EpochNumber = Annotated[int, Meta(ge=0, le=32767)]


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
    if known is None:
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
)
