"""Making partitions part of a producer's transaction before its first batch goes in."""

from collections.abc import Awaitable, Callable, Sequence

from alpacamq.coordinator.transactions.transaction import TransactionPartitions
from alpacamq.model.errors import AlpacaError, ConcurrentTransactions, FencedProducer, ProducerFenced
from alpacamq.model.ids import TopicPartition

from .coordinators import Coordinators
from .partition.leader import Partition

ATTEMPTS = 3

Refusals = dict[TopicPartition, AlpacaError]


async def while_none_ends(
    partitions: Sequence[Partition], ask: Callable[[], Awaitable[Refusals]]
) -> Refusals:
    """What the coordinator refuses, as it stands when this returns: append before anything else happens."""
    for _ in range(ATTEMPTS):
        markers = [partition.log.transactions.markers for partition in partitions]
        refusals = await ask()
        if markers == [partition.log.transactions.markers for partition in partitions]:
            return refusals
        # A transaction ended while the answer was on its way: it may be about that one.
    return {
        partition.identity: ConcurrentTransactions(f"transactions keep ending in {partition.identity}")
        for partition in partitions
    }


async def join_transaction(coordinators: Coordinators, wanted: TransactionPartitions) -> Refusals:
    """Make the partitions part of the transaction; what stands against that, for each of them."""
    try:
        await coordinators.ask_transaction(
            wanted.transactional_id,
            lambda machine, ticket, now_ms: machine.add_partitions(wanted, ticket, now_ms),
        )
    except ProducerFenced as error:
        # A batch is told so in the words of a partition: clients expect no others here.
        return dict.fromkeys(wanted.partitions, FencedProducer(str(error)))
    except AlpacaError as error:
        return dict.fromkeys(wanted.partitions, error)
    return {}
