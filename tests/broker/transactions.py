"""Transactions on a broker in this process."""

from alpacamq.broker.broker import Broker
from alpacamq.broker.publishing import TransactionalProducer
from alpacamq.coordinator.transactions.transaction import (
    EndProtocol,
    EndTransaction,
    InitProducer,
    ProducerIdentity,
)


async def begun(broker: Broker, transactional_id: str) -> TransactionalProducer:
    request = InitProducer(transactional_id=transactional_id)
    given = await broker.transactions.ask(request)
    return TransactionalProducer(
        transactional_id=transactional_id, producer_id=given.producer_id, producer_epoch=given.epoch
    )


async def end(broker: Broker, producer: TransactionalProducer, *, committed: bool) -> None:
    """End the transaction as clients of the classic protocol do: the producer keeps its epoch."""
    await _end(broker, producer, EndProtocol.CLASSIC, committed=committed)


async def end_with_new_epoch(
    broker: Broker, producer: TransactionalProducer, *, committed: bool
) -> TransactionalProducer:
    """End the transaction and return the producer's new identity, once the markers are written."""
    given = await _end(broker, producer, EndProtocol.NEW_EPOCH, committed=committed)
    return TransactionalProducer(
        transactional_id=producer.transactional_id, producer_id=given.producer_id, producer_epoch=given.epoch
    )


async def _end(
    broker: Broker, producer: TransactionalProducer, protocol: EndProtocol, *, committed: bool
) -> ProducerIdentity:
    request = EndTransaction(
        transactional_id=producer.transactional_id,
        producer=ProducerIdentity(producer.producer_id, producer.producer_epoch),
        committed=committed,
        protocol=protocol,
    )
    return await broker.transactions.end(request)
