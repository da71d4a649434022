"""Steps shared by tests of queues."""

from collections.abc import Sequence

from alpacamq.broker.broker import Broker
from alpacamq.broker.queue.service import Delivery, Receipted
from alpacamq.model.errors import (
    AlpacaError,
    GroupIdNotFound,
)
from alpacamq.queues.messages import Action, QueueId

ORDERS = QueueId("workers", "orders")


def values(deliveries: Sequence[Delivery]) -> list[bytes | None]:
    return [delivery.record.value for delivery in deliveries]


async def settle(broker: Broker, action: Action, *deliveries: Delivery) -> list[AlpacaError | None]:
    return await broker.queues.settle(
        [Receipted(receipt=delivery.receipt, action=action) for delivery in deliveries]
    )


async def acknowledge(broker: Broker, *deliveries: Delivery) -> None:
    assert await settle(broker, Action.ACK, *deliveries) == [None] * len(deliveries)


async def waits(broker: Broker, queue: QueueId = ORDERS) -> bool:
    try:
        return (await broker.queues.describe(queue)).waiting_receives > 0
    except GroupIdNotFound:
        return False


async def made(broker: Broker, topic: str) -> bool:
    return bool(broker.topics.partitions_of(topic))
