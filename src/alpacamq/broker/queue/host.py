"""Hosts the queue engine on its internal topic and joins it with what it needs: the log in outline, word of
arrivals, the records it leases, and somebody who carries out its moves.
"""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from alpacamq.broker.clock import SteadyClock
from alpacamq.broker.dlq.writer import Moves
from alpacamq.broker.metadata_log import ProducerIds
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.read.backlog import BacklogScans, QueueLog, ShardView
from alpacamq.broker.read.block_cache import StoredBlocks
from alpacamq.broker.statemachine.shard import Shard
from alpacamq.broker.statemachine.snapshots import ShardSnapshots
from alpacamq.broker.statemachine.topic import Shards
from alpacamq.broker.topics import Topics
from alpacamq.broker.tracing.queue import QueueTraces
from alpacamq.model.errors import AlpacaError, CoordinatorUnavailable, GroupIdNotFound, PolicyViolation
from alpacamq.model.outcome import Outcome
from alpacamq.model.ports import Clock, Disk
from alpacamq.model.topics import QUEUES_TOPIC
from alpacamq.queues.engine import EngineLimits, QueueEngine, QueueOutcome
from alpacamq.queues.messages import (
    Acquired,
    Action,
    DescribeReply,
    QueueId,
    QueueRequest,
    ReceiveReply,
    ReceiveRequest,
    Settlement,
    SettleRequest,
)
from alpacamq.telemetry.logs import get_logger

from .deliveries import QueueReader, settled
from .receipts import check_group
from .shard import Arrivals, QueueShard, Ticket

log = get_logger(__name__)

RETRY_SECONDS = 1.0


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What queue mode may use."""

    limits: EngineLimits = EngineLimits()
    cache_bytes: int = 32 << 20


class QueueHost:
    """The shards of all queues."""

    def __init__(
        self,
        topics: Topics,
        producer_ids: ProducerIds,
        settings: QueueSettings,
        *,
        snapshots: Path,
        disk: Disk,
        clock: Clock,
        retention_clock: Clock,
        executor: Executor,
        unpacked_limit_bytes: int,
        traces: QueueTraces | None = None,
    ) -> None:
        self._topics = topics
        self.traces = traces  # None where tracing is switched off
        self._producer_ids = producer_ids
        self._settings = settings
        self._snapshots = snapshots
        self._disk = disk
        self._executor = executor
        self.clock = SteadyClock(clock)
        self.retention_clock = retention_clock  # what the age of messages goes by
        self._blocks = StoredBlocks(
            executor, limit_bytes=settings.cache_bytes, unpacked_limit_bytes=unpacked_limit_bytes
        )
        self.scans = BacklogScans(self._blocks, clock, executor, unpacked_limit_bytes=unpacked_limit_bytes)
        self._log = QueueLog(topics, self._blocks, self.scans)
        self.reader = QueueReader(topics, self._blocks)
        self._arrivals = Arrivals(topics)
        self._moves = Moves(topics, self.reader, clock, traces)
        self._shards: Shards[QueueEngine] = Shards(QUEUES_TOPIC, topics, self._shard)
        self._desks: list[QueueShard] = []
        self._low_on_ids = asyncio.Event()
        self._ids_wanted = 0

    async def run(self) -> None:
        """Host the engine until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.scans.run())
            tasks.create_task(self._moves.run())
            tasks.create_task(self._keep_ids())
            if self.is_used:
                # An engine that finds ended leases when it is loaded moves them to dead letters at once.
                with suppress(AlpacaError):
                    await self._producer_ids.replenish()
            tasks.create_task(self._shards.run())

    @property
    def is_used(self) -> bool:
        """Whether there has ever been a queue."""
        return QUEUES_TOPIC in self._topics.image.topics

    async def desk(self, queue: QueueId) -> QueueShard:
        """Where to ask about a queue, ready to be asked."""
        check_group(queue.group)
        if self._topics.image.topic(queue.topic).is_internal:
            raise PolicyViolation(f"topic {queue.topic!r} is internal and cannot be used as a queue")
        await self._shards.all()
        if self._producer_ids.is_low:
            await self._producer_ids.replenish(self._ids_wanted)
        desk = self.used_desk(queue)
        await desk.shard.loaded()
        return desk

    def used_desk(self, queue: QueueId) -> QueueShard:
        """The same for a queue that has been asked about before."""
        return self._desks[self._shards.started_index_of(f"{queue.group}\0{queue.topic}")]

    async def ask(self, request: QueueRequest, queue: QueueId) -> Any:
        """Ask about one queue; the reply, or what was wrong raised."""
        desk = await self.desk(queue)
        answer = await desk.submit(request)
        if isinstance(answer, AlpacaError):
            raise answer.with_traceback(None)
        return answer

    async def ask_existing(self, request: QueueRequest, queue: QueueId) -> Any:
        """The same without making room for queues where there were none so far."""
        if not self.is_used or not self._topics.partitions_of(queue.topic):
            raise GroupIdNotFound(f"group {queue.group!r} has never used topic {queue.topic!r} as a queue")
        return await self.ask(request, queue)

    async def ask_all(self, request: QueueRequest) -> list[Any]:
        """Ask every shard."""
        if not self.is_used:
            return []
        await self._shards.all()
        answers = []
        for desk in self._desks:
            if desk.shard.failure is not None:
                continue  # what lives there is not known
            await desk.shard.loaded()
            answers.append(await desk.submit(request))
        return answers

    async def lease(self, request: ReceiveRequest) -> tuple[Acquired, ...]:
        """What is leased for this request. Cancelling gives it back."""
        queue = request.queue
        desk = await self.desk(queue)
        waits = request.wait_ms > 0
        if waits:
            self._arrivals.wait(queue.topic, desk)
        ticket = desk.submit(request)
        try:
            answer = await asyncio.shield(ticket)
        except asyncio.CancelledError:
            desk.withdraw(ticket)
            # The reply may be on its way, or here: then there is something to give back.
            ticket.add_done_callback(lambda late: self._give_back_reply(desk, queue, late))
            raise
        finally:
            if waits:
                self._arrivals.leave(queue.topic, desk)
        if isinstance(answer, AlpacaError):
            raise answer.with_traceback(None)
        assert isinstance(answer, ReceiveReply)
        return answer.messages

    def settle_soon(self, desk: QueueShard, queue: QueueId, settlements: Iterable[Settlement]) -> None:
        """Settle deliveries without waiting for it: if it fails, their leases end in time."""
        if gathered := tuple(settlements):
            desk.submit(SettleRequest(queue=queue, settlements=gathered))

    def give_back(self, desk: QueueShard, queue: QueueId, leases: Sequence[Acquired]) -> None:
        """Let others have these at once: they never reached anybody."""
        self.settle_soon(desk, queue, [settled(lease, Action.UNDO) for lease in leases])

    def failures(self) -> list[str]:
        """The shards of queues that cannot be loaded, and why."""
        return self._shards.failures()

    def stats(self) -> list[DescribeReply]:
        """Every queue of the shards that are loaded."""
        machines = [desk.shard.machine for desk in self._desks]
        return [stats for machine in machines if machine is not None for stats in machine.stats()]

    async def settled(self) -> None:
        """Return once every shard is loaded, and on disk, with what a power loss calls for."""
        await self._shards.settled()

    async def topic_deleted(self, topic: str) -> None:
        """Drop the queues of a topic; returns once that is on disk."""
        self._arrivals.topic_deleted(topic)
        self.scans.forget(topic)
        self._blocks.forget(topic)
        for desk in self._desks:
            desk.shard.tell(lambda machine, _now_ms: machine.topic_deleted(topic))
        await self._shards.flush()

    def topic_grown(self, topic: str) -> None:
        self._arrivals.topic_grown(topic)

    def _shard(self, partition: Partition) -> Shard[QueueEngine]:
        def told(topic: str, index: int) -> None:
            desk.arrived(topic, index)

        view = ShardView(self._log, told)
        shard = Shard(
            partition,
            lambda: QueueEngine(view, self._take_producer_id, self._settings.limits),
            ShardSnapshots(self._disk, self._snapshots / partition.log.directory.name),
            self.clock,
            self._executor,
            lambda outcome: self._perform(desk, outcome),
        )
        desk = QueueShard(shard)
        self._desks.append(desk)
        return shard

    def _perform(self, desk: QueueShard, outcome: Outcome) -> None:
        if isinstance(outcome, QueueOutcome):
            if outcome.ended and self.traces is not None:
                self.traces.ended(outcome.ended)
            if outcome.moves:
                self._moves.carry_out(desk, outcome.moves)

    def _give_back_reply(self, desk: QueueShard, queue: QueueId, ticket: Ticket) -> None:
        if not ticket.cancelled() and isinstance(reply := ticket.result(), ReceiveReply):
            self.give_back(desk, queue, reply.messages)

    def _take_producer_id(self) -> int:
        try:
            taken = self._producer_ids.take()
        except IndexError:
            # More at once than were ever needed: the engine is rebuilt, and finds more next time.
            self._ids_wanted = 4 * max(self._ids_wanted, 1000)
            self._low_on_ids.set()
            raise CoordinatorUnavailable("there are not enough producer ids") from None
        if self._producer_ids.is_low:
            self._low_on_ids.set()
        return taken

    async def _keep_ids(self) -> None:
        """Have producer ids in stock: an engine that ends leases by itself cannot wait for them."""
        while True:
            await self._low_on_ids.wait()
            try:
                await self._producer_ids.replenish(self._ids_wanted)
            except AlpacaError as error:
                log.warning("producer_ids_not_replenished", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._low_on_ids.clear()
