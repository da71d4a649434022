"""The coordinators of this broker: of groups and of transactions, and what joins the two.

A decided transaction is carried to its partitions from here: markers into logs, and word to the
shard of each group whose offsets it holds.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import msgspec

from alpacamq.coordinator.consumer.messages import ConsumerGroupSettings, TopicSummary
from alpacamq.coordinator.directory import GroupOutcome
from alpacamq.coordinator.groups import GroupCoordinator, GroupStats
from alpacamq.coordinator.messages import (
    CompleteTransactionRequest,
    GroupSettings,
    ListedGroup,
    ListReply,
    ListRequest,
)
from alpacamq.coordinator.share.messages import Departure
from alpacamq.coordinator.transactions.coordinator import TransactionCoordinator, TransactionSettings
from alpacamq.coordinator.transactions.transaction import (
    EndTransaction,
    ProducerIdentity,
    Transaction,
    TransactionOutcome,
    TransactionState,
    WriteMarkers,
)
from alpacamq.model.control import marker_batch
from alpacamq.model.errors import (
    AlpacaError,
    ConcurrentTransactions,
    DamagedLog,
    FencedProducer,
    TransactionalIdNotFound,
    UnknownTopic,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.outcome import Outcome
from alpacamq.model.ports import Clock, Disk
from alpacamq.model.topics import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topic
from alpacamq.queues.messages import QueueId
from alpacamq.telemetry.logs import get_logger

from .clock import SteadyClock
from .metadata_log import ProducerIds
from .partition.leader import Partition, append
from .statemachine.shard import Machine, Shard
from .statemachine.snapshots import ShardSnapshots
from .statemachine.topic import Shards
from .topics import Topics

log = get_logger(__name__)

# How long a request waits for the completion of its producer's last transaction.
COMPLETION_SECONDS = 0.1
RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 30.0
MAX_OFFSET = 2**63 - 1
# Of offsets of a deleted topic, before others get their turn of the event loop.
DROPPED_AT_ONCE = 200
LOOKED_AT_ONCE = 2000
LISTED_AT_ONCE = 500

M = TypeVar("M", bound=Machine)
GroupEvent = Callable[[GroupCoordinator, object, int], Outcome]
TransactionEvent = Callable[[TransactionCoordinator, object, int], TransactionOutcome]


class CoordinatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and delays of everything that is coordinated here."""

    groups: GroupSettings = GroupSettings()
    consumer_groups: ConsumerGroupSettings = ConsumerGroupSettings()
    transactions: TransactionSettings = TransactionSettings()


class TopicsInSight:
    """The cluster's topics as consumer groups see them: without the internal ones."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def version(self) -> int:
        return self._topics.image.version

    def names(self) -> Iterable[str]:
        return [name for name in self._topics.image.topics if name not in INTERNAL_TOPICS]

    def get(self, name: str) -> TopicSummary | None:
        topic = self._topics.image.topics.get(TopicName(name))
        return None if topic is None else TopicSummary(topic.id, topic.partitions)


class Coordinators:
    """Every group and every transactional id of this broker."""

    def __init__(
        self,
        topics: Topics,
        producer_ids: ProducerIds,
        settings: CoordinatorSettings,
        *,
        snapshots: Path,
        disk: Disk,
        clock: Clock,
        executor: Executor,
    ) -> None:
        self._topics = topics
        self._producer_ids = producer_ids
        self._settings = settings
        self._snapshots = snapshots
        self._disk = disk
        self._clock = clock
        self._executor = executor
        self._steady = SteadyClock(clock)
        self._topics_at_start = dict(topics.image.topics)
        self._groups: Shards[GroupCoordinator] = Shards(OFFSETS_TOPIC, topics, self._group_shard)
        self._transactions: Shards[TransactionCoordinator] = Shards(
            # A decision must not be lost once a marker, perhaps in a topic that syncs every batch, tells it.
            TRANSACTIONS_TOPIC,
            topics,
            self._transaction_shard,
            {"flush.messages": "1"},
        )
        self.hanging_transactions = HangingTransactions(topics, self._transactions)
        self._marking: dict[str, dict[int, asyncio.Event]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        # Since the broker started.
        self.transactions_committed = self.transactions_aborted = 0
        # Ends what a consumer holds of a queue; given by whoever has the queues.
        self.release_consumer: Callable[[QueueId, str], Awaitable[None]] | None = None

    async def run(self) -> None:
        """Host the coordinators until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._groups.run())
            tasks.create_task(self._transactions.run())
            tasks.create_task(self.hanging_transactions.run())
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None  # nothing new begins while the rest ends

    async def ask_group(self, group: str, event: GroupEvent) -> Any:
        """Ask the coordinator of one group."""
        return await self._groups.ask(group, event)

    async def group_ids(self) -> list[str]:
        """Every group, in no particular order."""
        # What lives in a shard that cannot be loaded is not known; its health check says so.
        shards = [shard for shard in await self._groups.all() if shard.failure is None]
        return [name for shard in shards for name in (await shard.loaded()).group_ids()]

    async def list_groups(self, names: Iterable[str]) -> list[ListedGroup]:
        """The groups of these names that there are, a few at a time so that others get their turn."""
        shards = await self._groups.all()
        by_shard: list[list[str]] = [[] for _ in shards]
        for name in names:
            by_shard[self._groups.started_index_of(name)].append(name)
        listed: list[ListedGroup] = []
        for shard, of_shard in zip(shards, by_shard, strict=True):
            for at in range(0, len(of_shard), LISTED_AT_ONCE):
                request = ListRequest(groups=tuple(of_shard[at : at + LISTED_AT_ONCE]))
                reply: ListReply = await shard.ask(partial(_list_groups, request))
                listed += reply.groups
                await asyncio.sleep(0)
        return listed

    async def ask_transaction(
        self,
        transactional_id: str,
        event: TransactionEvent,
    ) -> Any:
        """Ask the coordinator of one transactional id.

        If the id's last transaction is still being completed, this waits for a while and asks once more:
        clients that are told so come again after 20 ms at the earliest, and most completions take less.
        """
        await self._producer_ids.replenish()  # the event may need one
        try:
            return await self._transactions.ask(transactional_id, event)
        except ConcurrentTransactions:
            await self._await_markers(transactional_id)
        return await self._transactions.ask(transactional_id, event)

    async def end_transaction(self, request: EndTransaction) -> ProducerIdentity:
        """Commit or abort; returns the identity to go on with.

        The decision to commit is written only after everything it commits is on disk: a power cut that
        keeps the decision keeps the records and offsets, too.
        """
        transactional_id = request.transactional_id
        if request.committed:
            await self._flush_data(transactional_id)
        producer: ProducerIdentity = await self.ask_transaction(
            transactional_id, lambda machine, ticket, now_ms: machine.end(request, ticket, now_ms)
        )
        return producer

    async def ask_every_transaction_shard(self, event: TransactionEvent) -> list[Any]:
        """Ask the coordinators of all transactional ids."""
        return await self._transactions.ask_all(event)

    def failures(self) -> list[str]:
        """The shards of groups and transactions that cannot be loaded, and why."""
        return self._groups.failures() + self._transactions.failures()

    async def group_stats(self) -> AsyncIterator[Iterator[GroupStats]]:
        """Every group of the shards that are loaded, a few at a time; to be read before the next await."""
        for machine in [shard.machine for shard in self._groups.started]:
            if machine is None:
                continue
            names = machine.group_ids()
            for at in range(0, len(names), LISTED_AT_ONCE):
                yield machine.stats(names[at : at + LISTED_AT_ONCE])
                await asyncio.sleep(0)

    async def offsets_partition(self, group: str) -> TopicPartition:
        """The partition that remembers a group's offsets."""
        return TopicPartition(OFFSETS_TOPIC, await self._groups.index_of(group))

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
        if partition.topic != OFFSETS_TOPIC:
            now_ms = self._clock.now_ms()
            batch = marker_batch(producer_id, producer_epoch, committed, coordinator_epoch, now_ms)
            target = self._topics.partition(*partition)
            placed = await append(target, batch)
            await target.flush_to(placed.next_offset)
            return
        ended = CompleteTransactionRequest(
            producer_id=producer_id, producer_epoch=producer_epoch, committed=committed
        )
        shard = (await self._groups.all())[partition.partition]
        await shard.ask(lambda machine, ticket, now_ms: machine.complete_transaction(ended, ticket, now_ms))
        await shard.partition.flush_to(shard.partition.log.end_offset)

    async def topic_deleted(self, topic: str) -> None:
        """Drop every group's offsets of a topic; returns once that is on disk."""
        for shard in self._groups.started:
            if (machine := shard.machine) is None:
                shard.tell(lambda machine, _now_ms: machine.topic_deleted(topic))
            else:
                await self._drop_offsets(shard, machine, topic)
        await self._groups.flush()

    async def settled(self) -> None:
        """Return once every shard is loaded, and on disk, with what a power loss calls for."""
        await self._groups.settled()
        await self._transactions.settled()

    async def _drop_offsets(
        self, shard: Shard[GroupCoordinator], machine: GroupCoordinator, topic: str
    ) -> None:
        """Drop a topic's offsets a few at a time: there may be a million of them."""
        looked_at = 0
        for group, count in machine.groups_with_offsets():
            partitions = machine.partitions_in(group, topic)
            for at in range(0, len(partitions), DROPPED_AT_ONCE):
                dropped = partitions[at : at + DROPPED_AT_ONCE]
                # Should the machine fail meanwhile, the next one starts without a topic that is gone.
                shard.tell(partial(_forget_offsets, group, dropped))
                await asyncio.sleep(0)
            looked_at += 1 + count
            if looked_at >= LOOKED_AT_ONCE:
                looked_at = 0
                await asyncio.sleep(0)

    def give_back(self, departure: Departure) -> None:
        """Let others have what a share consumer holds that is gone."""
        if self._tasks is not None and departure.topics:
            self._tasks.create_task(self._release(departure))

    async def _release(self, departure: Departure) -> None:
        assert self.release_consumer is not None
        for topic in departure.topics:
            try:
                await self.release_consumer(QueueId(departure.group, topic), departure.member_id)
            except AlpacaError as error:
                # Its locks end all the same, each in its time.
                log.info("share_member_not_released", group=departure.group, topic=topic, reason=str(error))

    def _depart(self, outcome: Outcome) -> None:
        if isinstance(outcome, GroupOutcome):
            for departure in outcome.departures:
                self.give_back(departure)

    def _group_shard(self, partition: Partition) -> Shard[GroupCoordinator]:
        view = TopicsInSight(self._topics)
        settings = self._settings
        # What is loaded first was stored by an earlier run, about the topics that it left.
        topics: Mapping[TopicName, Topic] = self._topics_at_start

        def trim_offsets(machine: GroupCoordinator) -> Outcome:
            nonlocal topics
            outcome = machine.trim_offsets(partial(self._last_possible_offset, topics))
            topics = self._topics.image.topics
            return outcome

        return self._shard(
            partition,
            lambda: GroupCoordinator(settings.groups, settings.consumer_groups, view, lambda: str(uuid4())),
            self._depart,
            trim_offsets,
        )

    def _last_possible_offset(
        self, topics: Mapping[TopicName, Topic], partition: TopicPartition
    ) -> int | None:
        """The largest offset that a group can have reached; None if there was no such partition."""
        topic = topics.get(partition.topic)
        if topic is None or partition.partition >= topic.partitions:
            return None
        found = self._topics.find(partition.topic.encode(), partition.partition)
        return MAX_OFFSET if found is None or found.cut_offset is None else found.cut_offset

    def _transaction_shard(self, partition: Partition) -> Shard[TransactionCoordinator]:
        shard = self._shard(
            partition,
            lambda: TransactionCoordinator(self._producer_ids.take, self._settings.transactions),
            lambda outcome: self._perform(shard, outcome),
            self._abort_open,
        )
        return shard

    def _abort_open(self, machine: TransactionCoordinator) -> Outcome:
        """With every load until the power loss is settled: the first may fail to write it down."""
        return machine.abort_open(self._steady.now_ms()) if self._topics.power_lost else Outcome()

    def _shard(
        self,
        partition: Partition,
        make: Callable[[], M],
        perform: Callable[[Outcome], None] | None = None,
        check: Callable[[M], Outcome] | None = None,
    ) -> Shard[M]:
        snapshots = ShardSnapshots(self._disk, self._snapshots / partition.log.directory.name)
        return Shard(partition, make, snapshots, self._steady, self._executor, perform, check)

    def _perform(self, shard: Shard[TransactionCoordinator], outcome: Outcome) -> None:
        if isinstance(outcome, TransactionOutcome) and self._tasks is not None:
            for markers in outcome.effects:
                # A coordinator that was rebuilt asks again for what is still under way. A second marker
                # could end the producer's next transaction.
                marking = self._marking.setdefault(markers.transactional_id, {})
                if markers.number not in marking:
                    marking[markers.number] = asyncio.Event()
                    self._tasks.create_task(self._write_markers(shard, markers))

    async def _flush_data(self, transactional_id: str) -> None:
        """Flush every partition that a transaction has written to."""
        try:
            known: Transaction = await self.ask_transaction(
                transactional_id,
                lambda machine, ticket, now_ms: machine.describe(transactional_id, ticket, now_ms),
            )
        except TransactionalIdNotFound:
            return  # `end` says so in its own way
        if known.state is TransactionState.ONGOING:
            await asyncio.gather(*(self._flush(partition) for partition in known.partitions))

    async def _flush(self, partition: TopicPartition) -> None:
        with suppress(UnknownTopic):  # deleted meanwhile, and its records with it
            found = self._topics.partition(*partition)
            await found.flush_to(found.log.end_offset)

    async def _write_markers(self, shard: Shard[TransactionCoordinator], markers: WriteMarkers) -> None:
        """Carry a decision to every partition."""
        await asyncio.gather(*(self._end_in(partition, markers) for partition in markers.partitions))
        self.transactions_committed += markers.committed
        self.transactions_aborted += not markers.committed
        shard.tell(lambda machine, now_ms: machine.markers_written(markers, now_ms))
        marking = self._marking[markers.transactional_id]
        marking.pop(markers.number).set()
        if not marking:
            del self._marking[markers.transactional_id]

    async def _await_markers(self, transactional_id: str) -> None:
        """Return once the markers that are being written for an id are on disk, or if that takes too long."""
        under_way = list(self._marking.get(transactional_id, {}).values())
        with suppress(TimeoutError):
            async with asyncio.timeout(COMPLETION_SECONDS):
                for written in under_way:
                    await written.wait()

    async def _end_in(self, partition: TopicPartition, markers: WriteMarkers) -> None:
        """End a transaction in one partition. The decision is made, so this does not give up."""
        producer = markers.producer
        wait_seconds = RETRY_SECONDS
        while True:
            try:
                try:
                    await self.write_marker(
                        partition, producer.producer_id, producer.epoch, committed=markers.committed
                    )
                except FencedProducer:
                    await self._flush(partition)  # ended there by a later epoch, perhaps just now
            except UnknownTopic:
                return  # deleted meanwhile, and its records with it
            except DamagedLog as error:
                log.error("marker_not_written", partition=str(partition), reason=str(error))
                return  # nothing from the damage on is served, so nobody sees what is undecided there
            except AlpacaError as error:
                log.warning("marker_not_written", partition=str(partition), reason=str(error))
                await asyncio.sleep(wait_seconds)
                wait_seconds = min(wait_seconds * 2, MAX_RETRY_SECONDS)
            else:
                return


def _list_groups(request: ListRequest, machine: GroupCoordinator, ticket: object, now_ms: int) -> Outcome:
    return machine.list_groups(request, ticket, now_ms)


def _forget_offsets(
    group: str, partitions: Sequence[TopicPartition], machine: GroupCoordinator, _now_ms: int
) -> Outcome:
    return machine.forget_offsets(group, partitions)


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
