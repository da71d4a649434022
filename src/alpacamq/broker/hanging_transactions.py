"""Finds transactions that hold up read-committed consumers and that nobody is going to end.

A transaction hangs in a partition if it is open there and its coordinator does not know of it: nothing will
write its marker. That takes damage or a data directory put together from backups; an operator ends it with
`alpacactl transactions abort`.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from alpacamq.coordinator.transactions import TransactionCoordinator
from alpacamq.model.ids import TopicPartition
from alpacamq.model.topics import TRANSACTIONS_TOPIC
from alpacamq.telemetry.logs import get_logger

from .shards import Shards
from .topics import Topics

log = get_logger(__name__)

CHECK_SECONDS = 10.0
# While there is something to confirm or to see ended.
RECHECK_SECONDS = 1.0
# Partitions looked at in one turn of the event loop.
_PARTITIONS_PER_TURN = 1000


class HangingTransaction(NamedTuple):
    """A transaction open in a partition, by its producer and its first offset there."""

    partition: TopicPartition
    producer_id: int
    start_offset: int

    def __str__(self) -> str:
        return f"producer {self.producer_id} at offset {self.start_offset} of {self.partition}"


class HangingTransactions:
    """Looks for hanging transactions from time to time. `run` owns the task."""

    def __init__(self, topics: Topics, transactions: Shards[TransactionCoordinator]) -> None:
        self._topics = topics
        self._transactions = transactions
        self._suspects: frozenset[HangingTransaction] = frozenset()
        # As of the last look.
        self.found: Sequence[HangingTransaction] = ()

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(RECHECK_SECONDS if self._suspects else CHECK_SECONDS)

    async def look(self) -> None:
        """Look once. What was open without its coordinator's knowledge at the last look too is hanging."""
        if (known := self._known()) is None:
            return  # a shard is being loaded
        suspects = set()
        partitions = list(self._topics.all_partitions())
        for number, partition in enumerate(partitions):
            for producer_id, start_offset in partition.log.transactions.open_transactions():
                if (producer_id, partition.identity) not in known:
                    suspects.add(HangingTransaction(partition.identity, producer_id, start_offset))
            if number % _PARTITIONS_PER_TURN == _PARTITIONS_PER_TURN - 1:
                await asyncio.sleep(0)
        hanging = self._suspects & suspects
        self._suspects = frozenset(suspects)
        for each in hanging - set(self.found):
            log.error(
                "transaction_hangs",
                partition=str(each.partition),
                producer_id=each.producer_id,
                start_offset=each.start_offset,
                hint="end it with: alpacactl transactions abort",
            )
        self.found = sorted(hanging)

    def _known(self) -> set[tuple[int, TopicPartition]] | None:
        """Producers and partitions of the transactions that the coordinators will end."""
        if TRANSACTIONS_TOPIC not in self._topics.image.topics:
            return set()
        machines = [shard.machine for shard in self._transactions.started]
        known: set[tuple[int, TopicPartition]] = set()
        for machine in machines:
            if machine is None:
                return None
            known.update(machine.open_partitions())
        return known if machines else None
