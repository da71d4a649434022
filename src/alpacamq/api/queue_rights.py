"""Rights of clients that settle deliveries.

A receipt of the HTTP and SQS APIs names its queue, so that rights are checked for each receipt.
"""

from collections.abc import Sequence

from alpacamq.broker.access import Caller
from alpacamq.broker.broker import Broker
from alpacamq.broker.queue.deliveries import Delivery, read_receipt
from alpacamq.broker.queue.service import Receipted
from alpacamq.model.errors import AlpacaError
from alpacamq.queues.messages import Action, QueueId
from alpacamq.security.acls import Operation, ResourceType
from alpacamq.telemetry.tracing import ClientApi


async def settle(
    broker: Broker,
    caller: Caller,
    settlements: Sequence[Receipted],
    api: ClientApi,
    *,
    only: QueueId | None = None,
) -> list[AlpacaError | None]:
    """Settle the deliveries that a client may settle; return None or an error for each, in order.

    Receipts of another queue than `only` are refused.
    """
    if not broker.access.limits(caller):
        return await broker.queues.settle_later(settlements, only=only, api=api)
    results = [await _refusal(broker, caller, each) for each in settlements]
    allowed = [each for each, error in zip(settlements, results, strict=True) if error is None]
    outcomes = iter(await broker.queues.settle_later(allowed, only=only, api=api))
    return [next(outcomes) if error is None else error for error in results]


async def _refusal(broker: Broker, caller: Caller, settlement: Receipted) -> AlpacaError | None:
    try:
        queue = read_receipt(settlement.receipt).queue
        check_receive(broker, caller, queue)
        if settlement.action is Action.REJECT:
            await check_reject(broker, caller, queue)
    except AlpacaError as error:
        return error.with_traceback(None)
    return None


async def check_reject(broker: Broker, caller: Caller, queue: QueueId) -> None:
    """Raise an error unless a client may write to the dead-letter topic of a queue."""
    target = (await broker.queues.describe(queue)).dead_letter_topic
    if target is not None:
        broker.access.check_topic(caller, Operation.WRITE, target)


def check_receive(broker: Broker, caller: Caller, queue: QueueId) -> None:
    """Raise an error unless a client may receive from a queue, and settle what it received."""
    broker.access.check(caller, Operation.READ, ResourceType.GROUP, queue.group)
    broker.access.check(caller, Operation.READ, ResourceType.TOPIC, queue.topic)


async def check_received(
    broker: Broker, caller: Caller, queue: QueueId, deliveries: Sequence[Delivery], api: ClientApi
) -> None:
    """Check the rights again after a receive that may have waited; release the leases if they are gone."""
    if not broker.access.limits(caller):
        return
    try:
        check_receive(broker, caller, queue)
    except AlpacaError:
        released = [Receipted(receipt=each.receipt, action=Action.EXTEND, delay_ms=0) for each in deliveries]
        await broker.queues.settle(released, api=api)
        raise
