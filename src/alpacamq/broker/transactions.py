"""Hosts the transaction coordinators and carries their decisions to partitions.

A decided transaction is ended in each of its partitions, on any broker, by a marker. Its committed offsets
are ended by the coordinator of their group.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from alpacamq.cluster.partition_state import PartitionId
from alpacamq.coordinator.transactions.coordinator import TransactionCoordinator, TransactionSettings
from alpacamq.coordinator.transactions.transaction import (
    AbortIn,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    FindOpen,
    InitProducer,
    ListTransactions,
    MarkersWritten,
    ProducerIdentity,
    Transaction,
    TransactionRequest,
    TransactionState,
    WriteMarkers,
)
from alpacamq.log.producer_state import NO_MARKER
from alpacamq.model.errors import (
    AlpacaError,
    ConcurrentTransactions,
    CoordinatorLoading,
    CoordinatorUnavailable,
    DamagedLog,
    FencedProducer,
    LeaderNotAvailable,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    PartitionNotReady,
    PeerUnavailable,
    ProducerFenced,
    RequestTimedOut,
    TransactionalIdNotFound,
    UnknownBroker,
    UnknownTopic,
)
from alpacamq.model.ids import BrokerId, TopicPartition
from alpacamq.model.ports import Clock
from alpacamq.model.state_machine import Outcome, Request
from alpacamq.model.topics import TRANSACTIONS_TOPIC
from alpacamq.telemetry.logs import get_logger

from .groups import Groups
from .partition.leader import Partition
from .peers.link import Peers
from .producer_ids import ProducerIds
from .remote.markers import Markers, TransactionEnd
from .statemachine.host import StateMachineHost
from .statemachine.topic import HostResources, StateMachineTopic
from .topics import Topics

log = get_logger(__name__)

# How long a request waits for the completion of its producer's last transaction.
COMPLETION_SECONDS = 0.1
# Between attempts to write a marker: at most, and while the leader of its partition changes.
RETRY_SECONDS = 0.02
MAX_RETRY_SECONDS = 30.0
MAX_MOVE_SECONDS = 0.5
# Attempts are reported from this pause on.
REPORTED_SECONDS = 0.3
LEADER_MOVES = (
    CoordinatorLoading,
    CoordinatorUnavailable,
    LeaderNotAvailable,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    PartitionNotReady,
    PeerUnavailable,
    RequestTimedOut,
    UnknownBroker,
    UnknownTopic,
)
ENLIST_ATTEMPTS = 3

R = TypeVar("R")
# Errors by partition.
Errors = dict[TopicPartition, AlpacaError]


def _may_need_producer_id(request: Request[Any]) -> bool:
    """Return whether a coordinator may need a new producer id; other requests do not wait for one."""
    if isinstance(request, EndTransaction):
        return request.producer.is_exhausted
    return isinstance(request, InitProducer)


class Transactions:
    """Transactional ids, on any broker; hosts the coordinators of those that this broker coordinates."""

    def __init__(
        self,
        resources: HostResources,
        producer_ids: ProducerIds,
        settings: TransactionSettings,
        groups: Groups,
        clock: Clock,
        *,
        peers: Peers | None,
        flush_elsewhere: Callable[[PartitionId], Awaitable[object]],
    ) -> None:
        """Flush a partition of another broker with `flush_elsewhere`."""
        self.markers = Markers(resources.topics, groups, clock, peers)
        self._flush_elsewhere = flush_elsewhere
        self._is_alone = peers is None
        self._topics = resources.topics
        self._producer_ids = producer_ids
        self._settings = settings
        self._steady = resources.clock
        self._machines: StateMachineTopic[TransactionCoordinator] = StateMachineTopic(
            TRANSACTIONS_TOPIC,
            resources,
            self._coordinator,
            perform=self._perform,
            check=self._abort_open,
            requests=TransactionCoordinator.HANDLERS,
            answer=self._answer,
            # A decision must not be lost once a marker, perhaps in a topic that syncs every batch, shows it.
            overrides={"flush.messages": "1"},
        )
        self.hanging = HangingTransactions(self._topics, self._machines)
        # By transactional id; leader epoch of the coordinator and number of the transaction.
        self._writing_markers: dict[str, dict[tuple[int, int], asyncio.Event]] = {}
        # Since the broker started.
        self.committed = self.aborted = 0

    async def run(self) -> None:
        """Run the coordinators until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._machines.run())
            tasks.create_task(self.hanging.run())

    async def ask(self, request: TransactionRequest[R]) -> R:
        """Return the reply of the coordinator on any broker, or raise it if it is an error."""
        return await self._machines.ask(request)

    async def ask_here(self, request: TransactionRequest[R]) -> R:
        """Ask a coordinator on this broker. Raises NotCoordinator."""
        return await self._machines.ask_here(request)

    async def end(self, request: EndTransaction) -> ProducerIdentity:
        """Commit or abort, on any broker; returns the identity for the next transaction.

        The decision to commit is written only after everything it commits is on disk: a power cut that
        keeps the decision keeps the records and offsets, too.
        """
        if request.committed:
            await self._flush_data(request.transactional_id)
        return await self.ask(request)

    async def end_here(self, request: EndTransaction) -> ProducerIdentity:
        """Commit or abort at a coordinator on this broker. Raises NotCoordinator."""
        if request.committed:
            await self._machines.host_of(request.routing_key)  # before the data is flushed
            await self._flush_data(request.transactional_id)
        return await self.ask_here(request)

    async def _answer(self, host: StateMachineHost[TransactionCoordinator], request: Request[R]) -> R:
        """Return the reply of a coordinator on this broker to a request of any broker.

        If the id's last transaction is not complete, wait a short time and ask once more: clients that get
        CONCURRENT_TRANSACTIONS retry after 20 ms at the earliest, and most completions take less.
        """
        if _may_need_producer_id(request):
            await self._producer_ids.replenish()
        try:
            return await host.ask(request)
        except ConcurrentTransactions:
            await self._await_markers(request.routing_key)
        return await host.ask(request)

    async def coordinator_of(self, transactional_id: str) -> BrokerId:
        """Return the broker that coordinates a transactional id. Raises CoordinatorUnavailable."""
        return await self._machines.broker_of(transactional_id)

    async def find(self, request: ListTransactions) -> list[Transaction]:
        """List the transactions of all coordinators that match."""
        return [found for some in await self._machines.ask_all(request) for found in some]

    async def find_here(self, request: ListTransactions) -> list[Transaction]:
        """List the transactions of the coordinators on this broker that match."""
        return [found for some in await self._machines.ask_all_here(request) for found in some]

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
        """Return once no transaction can commit that this broker may have lost records of.

        Every coordinator on this broker is loaded, and its corrections are on disk. Those of other brokers
        have aborted what was open in partitions that are nowhere else.
        """
        await self._machines.settled()
        lost = frozenset(
            partition.identity
            for partition in self._topics.all_partitions()
            if partition.is_leading and len(partition.replicas) == 1
        )
        if lost and self._machines.exists and not self._is_alone:
            await self._machines.ask_all(AbortIn(partitions=lost))

    async def write_marker(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int = 0,
    ) -> None:
        """End a producer's transaction in a partition that this broker leads, as an administrator asks.

        Returns once the marker is on disk. It does not fence the coordinator of the producer, whatever epoch
        the administrator names.
        """
        known = self._topics.partition(*partition).log.producers.get(producer_id)
        last_epoch = NO_MARKER.coordinator_epoch if known is None else known.last_marker.coordinator_epoch
        ended = TransactionEnd(
            producer_id,
            producer_epoch,
            committed=committed,
            coordinator_epoch=min(coordinator_epoch, last_epoch),
        )
        await self.markers.write_here(partition, ended)

    def _coordinator(self, _partition: Partition) -> TransactionCoordinator:
        return TransactionCoordinator(self._producer_ids.take, self._settings)

    def _abort_open(self, _partition: Partition, machine: TransactionCoordinator) -> Outcome:
        # With every load until the power loss is settled: the first may fail to write its changes.
        return machine.abort_open(self._steady.now_ms()) if self._topics.power_lost else Outcome()

    def _perform(self, host: StateMachineHost[TransactionCoordinator], effects: Iterable[Any]) -> None:
        for markers in effects:
            assert isinstance(markers, WriteMarkers)
            # A coordinator that was rebuilt repeats effects that are in progress.
            writing = self._writing_markers.setdefault(markers.transactional_id, {})
            key = (host.leader_epoch, markers.number)
            if key not in writing:
                writing[key] = asyncio.Event()
                host.spawn(
                    self._write_markers(host, markers),
                    partial(self._markers_ended, markers.transactional_id, key),
                )

    async def _flush_data(self, transactional_id: str) -> None:
        """Flush every partition that a transaction has written to and that has no other replica."""
        try:
            known = await self.ask(DescribeTransaction(transactional_id=transactional_id))
        except TransactionalIdNotFound:
            return  # EndTransaction has its own error for this
        if known.state is TransactionState.ONGOING:
            await asyncio.gather(*(self._flush(partition) for partition in known.partitions))

    async def _flush(self, partition: TopicPartition) -> None:
        try:
            if (found := self._topics.find(partition.topic.encode(), partition.partition)) is not None:
                await found.flush_to(found.log.end_offset)
                return
            if not await self._exists(partition):
                return
            # What several replicas have acknowledged is on their disks.
            if not self._is_replicated(partition):
                topic = self._topics.image.topic(partition.topic)
                await self._flush_elsewhere(PartitionId(topic.id, partition.partition))
        except AlpacaError as error:
            # Clients retry after this one.
            raise CoordinatorUnavailable(f"{partition} cannot be flushed: {error}") from error

    async def _exists(self, partition: TopicPartition) -> bool:
        """Return whether the cluster has a partition. It may have been deleted.

        The image of this broker may be behind that of the partition's leader, which has added it.
        """
        if self._topics.exists(partition.topic.encode(), partition.partition):
            return True
        await self._topics.catch_up()
        return self._topics.exists(partition.topic.encode(), partition.partition)

    def _is_replicated(self, partition: TopicPartition) -> bool:
        topic = self._topics.image.topics.get(partition.topic)
        place = None if topic is None else PartitionId(topic.id, partition.partition)
        state = None if place is None else self._topics.image.partition(place)
        return state is not None and state.replication_factor > 1

    async def _write_markers(
        self, host: StateMachineHost[TransactionCoordinator], markers: WriteMarkers
    ) -> None:
        """End a transaction in every partition, unless the next coordinator has to do it."""
        ended = TransactionEnd(
            markers.producer.producer_id,
            markers.producer.epoch,
            markers.committed,
            host.leader_epoch,
            markers.number,
        )
        await asyncio.gather(*(self._end_in(partition, ended) for partition in markers.partitions))
        self.committed += markers.committed
        self.aborted += not markers.committed
        host.post(MarkersWritten(transactional_id=markers.transactional_id, markers=markers))
        await host.handled()

    def _markers_ended(self, transactional_id: str, key: tuple[int, int]) -> None:
        writing = self._writing_markers[transactional_id]
        writing.pop(key).set()
        if not writing:
            del self._writing_markers[transactional_id]

    async def _await_markers(self, transactional_id: str) -> None:
        """Return once the markers that are being written for an id are on disk, or after a time limit."""
        in_progress = list(self._writing_markers.get(transactional_id, {}).values())
        with suppress(TimeoutError):
            async with asyncio.timeout(COMPLETION_SECONDS):
                for written in in_progress:
                    await written.wait()

    async def _end_in(self, partition: TopicPartition, ended: TransactionEnd) -> None:
        """End a transaction in one partition. Retries without limit: the decision is final."""
        wait_seconds = RETRY_SECONDS
        while True:
            try:
                try:
                    await self.markers.end(partition, ended)
                    return
                except UnknownTopic:
                    if not await self._exists(partition):
                        return  # deleted meanwhile
                    raise  # or the image of its leader is behind
            except AlpacaError as error:
                if isinstance(error, DamagedLog) and not self._is_replicated(partition):
                    # Nothing behind the damage is served, so no consumer sees the open transaction.
                    log.error("marker_abandoned", partition=str(partition), reason=str(error))
                    return
                is_moving = isinstance(error, LEADER_MOVES)
                if wait_seconds >= REPORTED_SECONDS:
                    log.warning("marker_not_written", partition=str(partition), reason=str(error))
            await asyncio.sleep(wait_seconds)
            longest = MAX_MOVE_SECONDS if is_moving else MAX_RETRY_SECONDS
            wait_seconds = min(wait_seconds * 2, longest)


async def enlist(
    producer: ProducerIdentity,
    partitions: Sequence[Partition],
    ask: Callable[[Sequence[Partition]], Awaitable[Errors]],
) -> Errors:
    """Return the errors of `ask` for the partitions that have to join the producer's transaction.

    Those in which it is open need not. If it ends in any of the partitions meanwhile, the reply may be about
    the transaction that has ended: then all is done again. The result holds when this returns: append before
    the next await.
    """
    for _ in range(ENLIST_ATTEMPTS):
        joining = [partition for partition in partitions if not partition.has_transaction(*producer)]
        if not joining:
            return {}
        markers = [partition.last_marker_offset(producer.producer_id) for partition in partitions]
        errors = await ask(joining)
        if markers == [partition.last_marker_offset(producer.producer_id) for partition in partitions]:
            return errors
    return {
        partition.identity: ConcurrentTransactions(f"transactions of {producer} keep ending")
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
        suspects = set()
        partitions = [each for each in self._topics.all_partitions() if each.is_leading]
        for number, partition in enumerate(partitions):
            for producer_id, start_offset in partition.log.transactions.open_transactions():
                suspects.add(HangingTransaction(partition.identity, producer_id, start_offset))
            if number % _PARTITIONS_PER_TURN == _PARTITIONS_PER_TURN - 1:
                await asyncio.sleep(0)
        # Asked after the partitions: a transaction that ends in between is not open in the next check.
        if suspects:
            known = await self._known(frozenset(each.producer_id for each in suspects))
            if known is None:
                return  # not every coordinator answers, and a partition does not say which one knows
            suspects = {each for each in suspects if (each.producer_id, each.partition) not in known}
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

    async def _known(self, producer_ids: frozenset[int]) -> set[tuple[int, TopicPartition]] | None:
        """Return producer and partition of the transactions of producers that coordinators know.

        None unless all coordinators answer.
        """
        if not self._transactions.exists:
            return set()
        try:
            replies = await self._transactions.ask_all(FindOpen(producer_ids=producer_ids))
        except AlpacaError as error:
            log.debug("transactions_not_checked", reason=str(error))
            return None
        if len(replies) < self._transactions.count:
            return None
        return {each for reply in replies for each in reply.known}
