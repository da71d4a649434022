"""Hosts the transaction coordinators and carries their decisions to partitions.

A decided transaction is ended in each of its partitions by a marker. Its committed offsets are ended by the
coordinator of their group.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from alpacamq.coordinator.messages import CompleteTransactionRequest
from alpacamq.coordinator.transactions.coordinator import TransactionCoordinator, TransactionSettings
from alpacamq.coordinator.transactions.transaction import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    ListTransactions,
    MarkersWritten,
    ProducerIdentity,
    Transaction,
    TransactionRequest,
    TransactionState,
    WriteMarkers,
)
from alpacamq.model.control import marker_batch
from alpacamq.model.errors import (
    AlpacaError,
    ConcurrentTransactions,
    DamagedLog,
    FencedProducer,
    ProducerFenced,
    TransactionalIdNotFound,
    UnknownTopic,
)
from alpacamq.model.ids import BrokerId, TopicPartition
from alpacamq.model.ports import Clock
from alpacamq.model.state_machine import Outcome
from alpacamq.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from alpacamq.telemetry.logs import get_logger

from .groups import Groups
from .partition.leader import Partition, append
from .producer_ids import ProducerIds
from .statemachine.host import StateMachineHost
from .statemachine.topic import HostResources, StateMachineTopic
from .topics import Topics

log = get_logger(__name__)

# How long a request waits for the completion of its producer's last transaction.
COMPLETION_SECONDS = 0.1
RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 30.0
ENLIST_ATTEMPTS = 3

R = TypeVar("R")
# Errors by partition.
Errors = dict[TopicPartition, AlpacaError]


class Transactions:
    """The transactional ids that this broker coordinates."""

    def __init__(
        self,
        resources: HostResources,
        producer_ids: ProducerIds,
        settings: TransactionSettings,
        groups: Groups,
        clock: Clock,
    ) -> None:
        self._topics = resources.topics
        self._producer_ids = producer_ids
        self._settings = settings
        self._groups = groups
        self._clock = clock
        self._steady = resources.clock
        self._machines: StateMachineTopic[TransactionCoordinator] = StateMachineTopic(
            TRANSACTIONS_TOPIC,
            resources,
            self._coordinator,
            perform=self._perform,
            check=self._abort_open,
            requests=TransactionCoordinator.HANDLERS,
            # A decision must not be lost once a marker, perhaps in a topic that syncs every batch, shows it.
            overrides={"flush.messages": "1"},
        )
        self.hanging = HangingTransactions(self._topics, self._machines)
        self._writing_markers: dict[str, dict[int, asyncio.Event]] = {}
        # Since the broker started.
        self.committed = self.aborted = 0

    async def run(self) -> None:
        """Run the coordinators until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._machines.run())
            tasks.create_task(self.hanging.run())

    async def ask(self, request: TransactionRequest[R]) -> R:
        """Return the reply of a transactional id's coordinator, or raise it if it is an error.

        If the id's last transaction is not complete, wait a short time and ask once more: clients that get
        CONCURRENT_TRANSACTIONS retry after 20 ms at the earliest, and most completions take less.
        """
        await self._producer_ids.replenish()  # the request may need one
        try:
            return await self._machines.ask(request)
        except ConcurrentTransactions:
            await self._await_markers(request.transactional_id)
        return await self._machines.ask(request)

    async def end(self, request: EndTransaction) -> ProducerIdentity:
        """Commit or abort; returns the identity for the next transaction.

        The decision to commit is written only after everything it commits is on disk: a power cut that
        keeps the decision keeps the records and offsets, too.
        """
        if request.committed:
            await self._flush_data(request.transactional_id)
        return await self.ask(request)

    async def coordinator_of(self, transactional_id: str) -> BrokerId:
        """Return the broker that coordinates a transactional id. Raises CoordinatorUnavailable."""
        return await self._machines.broker_of(transactional_id)

    async def find(self, request: ListTransactions) -> list[Transaction]:
        """List the transactions of all coordinators on this broker that match."""
        return [found for some in await self._machines.ask_all(request) for found in some]

    async def add_partitions(self, request: AddPartitions) -> Errors:
        """Add partitions to a transaction and return the errors by partition."""
        try:
            await self.ask(request)
        except ProducerFenced as error:
            # Producers expect the error of a partition here.
            return dict.fromkeys(request.partitions, FencedProducer(str(error)))
        except AlpacaError as error:
            return dict.fromkeys(request.partitions, error)
        return {}

    def failures(self) -> list[str]:
        """Describe the partitions that cannot be loaded."""
        return self._machines.failures()

    async def settled(self) -> None:
        """Return once every coordinator is loaded, and its corrections after a power loss are on disk."""
        await self._machines.settled()

    async def write_marker(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int = 0,
    ) -> None:
        """End a producer's transaction in one partition; returns once the marker is on disk."""
        if partition.topic == OFFSETS_TOPIC:
            ended = CompleteTransactionRequest(
                producer_id=producer_id, producer_epoch=producer_epoch, committed=committed
            )
            await self._groups.complete_transaction(partition.partition, ended)
            return
        now_ms = self._clock.now_ms()
        batch = marker_batch(producer_id, producer_epoch, committed, coordinator_epoch, now_ms)
        target = self._topics.partition(*partition)
        placed = await append(target, batch)
        await target.flush_to(placed.next_offset)

    def _coordinator(self, _partition: Partition) -> TransactionCoordinator:
        return TransactionCoordinator(self._producer_ids.take, self._settings)

    def _abort_open(self, _partition: Partition, machine: TransactionCoordinator) -> Outcome:
        # With every load until the power loss is settled: the first may fail to write its changes.
        return machine.abort_open(self._steady.now_ms()) if self._topics.power_lost else Outcome()

    def _perform(self, host: StateMachineHost[TransactionCoordinator], effects: Iterable[Any]) -> None:
        for markers in effects:
            assert isinstance(markers, WriteMarkers)
            # A coordinator that was rebuilt repeats effects that are in progress. A second marker could end
            # the producer's next transaction.
            writing = self._writing_markers.setdefault(markers.transactional_id, {})
            if markers.number not in writing:
                writing[markers.number] = asyncio.Event()
                host.spawn(self._write_markers(host, markers), partial(self._markers_ended, markers))

    async def _flush_data(self, transactional_id: str) -> None:
        """Flush every partition that a transaction has written to."""
        try:
            known = await self.ask(DescribeTransaction(transactional_id=transactional_id))
        except TransactionalIdNotFound:
            return  # EndTransaction has its own error for this
        if known.state is TransactionState.ONGOING:
            await asyncio.gather(*(self._flush(partition) for partition in known.partitions))

    async def _flush(self, partition: TopicPartition) -> None:
        try:
            found = self._topics.partition(*partition)
            await found.flush_to(found.log.end_offset)
        except UnknownTopic:
            if self._exists(partition):
                raise  # it only cannot be written to here

    def _exists(self, partition: TopicPartition) -> bool:
        """Return whether the metadata has a partition; only then was it not deleted."""
        topic = self._topics.image.topics.get(partition.topic)
        return topic is not None and partition.partition < topic.partitions

    async def _write_markers(
        self, host: StateMachineHost[TransactionCoordinator], markers: WriteMarkers
    ) -> None:
        """End a transaction in every partition, unless the next coordinator has to do it."""
        await asyncio.gather(
            *(self._end_in(partition, markers, host.leader_epoch) for partition in markers.partitions)
        )
        self.committed += markers.committed
        self.aborted += not markers.committed
        host.post(MarkersWritten(transactional_id=markers.transactional_id, markers=markers))
        await host.handled()

    def _markers_ended(self, markers: WriteMarkers) -> None:
        writing = self._writing_markers[markers.transactional_id]
        writing.pop(markers.number).set()
        if not writing:
            del self._writing_markers[markers.transactional_id]

    async def _await_markers(self, transactional_id: str) -> None:
        """Return once the markers that are being written for an id are on disk, or after a time limit."""
        in_progress = list(self._writing_markers.get(transactional_id, {}).values())
        with suppress(TimeoutError):
            async with asyncio.timeout(COMPLETION_SECONDS):
                for written in in_progress:
                    await written.wait()

    async def _end_in(self, partition: TopicPartition, markers: WriteMarkers, coordinator_epoch: int) -> None:
        """End a transaction in one partition. Retries without limit: the decision is final."""
        producer = markers.producer
        wait_seconds = RETRY_SECONDS
        while True:
            try:
                try:
                    await self.write_marker(
                        partition,
                        producer.producer_id,
                        producer.epoch,
                        committed=markers.committed,
                        coordinator_epoch=coordinator_epoch,
                    )
                except FencedProducer:
                    await self._flush(partition)  # ended there by a later epoch, perhaps just now
            except DamagedLog as error:
                log.error("marker_not_written", partition=str(partition), reason=str(error))
                return  # nothing behind the damage is served, so no consumer sees the open transaction
            except AlpacaError as error:
                if isinstance(error, UnknownTopic) and not self._exists(partition):
                    return  # deleted meanwhile
                log.warning("marker_not_written", partition=str(partition), reason=str(error))
                await asyncio.sleep(wait_seconds)
                wait_seconds = min(wait_seconds * 2, MAX_RETRY_SECONDS)
            else:
                return


async def retry_if_marker_written(
    partitions: Sequence[Partition], ask: Callable[[], Awaitable[Errors]]
) -> Errors:
    """Return the errors of `ask`, repeated if a transaction ended in one of the partitions meanwhile.

    The result holds when this returns: append before the next await.
    """
    for _ in range(ENLIST_ATTEMPTS):
        markers = [partition.log.transactions.markers for partition in partitions]
        errors = await ask()
        if markers == [partition.log.transactions.markers for partition in partitions]:
            return errors
        # The reply may be about the transaction that has ended.
    return {
        partition.identity: ConcurrentTransactions(f"transactions keep ending in {partition.identity}")
        for partition in partitions
    }


CHECK_SECONDS = 10.0
# While there are suspects.
RECHECK_SECONDS = 1.0
# Partitions checked in one turn of the event loop.
_PARTITIONS_PER_TURN = 1000


class HangingTransaction(NamedTuple):
    """A transaction that is open in a partition and unknown to its coordinator."""

    partition: TopicPartition
    producer_id: int
    start_offset: int

    def __str__(self) -> str:
        return f"producer {self.producer_id} at offset {self.start_offset} of {self.partition}"


class HangingTransactions:
    """Looks for hanging transactions periodically."""

    def __init__(self, topics: Topics, transactions: StateMachineTopic[TransactionCoordinator]) -> None:
        self._topics = topics
        self._transactions = transactions
        self._suspects: frozenset[HangingTransaction] = frozenset()
        # As of the last check.
        self.found: Sequence[HangingTransaction] = ()

    async def run(self) -> None:
        """Check periodically until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(RECHECK_SECONDS if self._suspects else CHECK_SECONDS)

    async def check(self) -> None:
        """Check once. A transaction that is unknown to its coordinator in two checks in a row is hanging."""
        if (known := self._known()) is None:
            return  # a coordinator is being loaded, or is on another broker
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
        """Return producer and partition of the transactions that coordinators know.

        None unless all of them are on this broker and loaded: a partition does not say which one knows its
        open transactions.
        """
        if not self._transactions.exists:
            return set()
        if not self._transactions.is_complete:
            return None
        return {known for machine in self._transactions.machines for known in machine.open_partitions()}
