"""Transactions of a broker in this process."""

from alpacamq.broker.broker import Broker
from alpacamq.broker.publishing import TransactionalProducer
from alpacamq.coordinator.transaction import ProducerIdentity
from alpacamq.coordinator.transaction_messages import EndProtocol, EndTransaction, InitProducer


async def begun(broker: Broker, transactional_id: str) -> TransactionalProducer:
    request = InitProducer(transactional_id=transactional_id)
    given = await broker.coordinators.ask_transaction(
        transactional_id, lambda machine, ticket, now_ms: machine.init_producer_id(request, ticket, now_ms)
    )
    return TransactionalProducer(
        transactional_id=transactional_id, producer_id=given.producer_id, producer_epoch=given.epoch
    )


async def end(broker: Broker, producer: TransactionalProducer, *, committed: bool) -> None:
    request = EndTransaction(
        transactional_id=producer.transactional_id,
        producer=ProducerIdentity(producer.producer_id, producer.producer_epoch),
        committed=committed,
        protocol=EndProtocol.CLASSIC,
    )
    await broker.coordinators.ask_transaction(
        producer.transactional_id, lambda machine, ticket, now_ms: machine.end(request, ticket, now_ms)
    )
