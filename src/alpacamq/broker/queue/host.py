"""Hosts the queue engines and connects them with the log and the dead-letter writer."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from alpacamq.broker.dlq.writer import DlqWriter
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.producer_ids import ProducerIds
from alpacamq.broker.read.backlog import BacklogReader, BacklogScans
from alpacamq.broker.read.block_cache import StoredBlocks
from alpacamq.broker.statemachine.host import StateMachineHost
from alpacamq.broker.statemachine.topic import HostResources, StateMachineTopic
from alpacamq.broker.topics import Topics
from alpacamq.broker.tracing.queue import QueueTraces
from alpacamq.model.errors import (
    AlpacaError,
    CoordinatorUnavailable,
    GroupIdNotFound,
    NotCoordinator,
    PolicyViolation,
)
from alpacamq.model.ids import NO_TOPIC_ID, BrokerId, TopicId, TopicName
from alpacamq.model.ports import Clock
from alpacamq.model.state_machine import Outcome
from alpacamq.model.topics import QUEUES_TOPIC, TopicConfig
from alpacamq.queues.engine import REQUESTS, EngineLimits, QueueEngine
from alpacamq.queues.messages import (
    Acquired,
    Action,
    BacklogRead,
    DescribeReply,
    EndedLease,
    ListRequest,
    Move,
    QueueId,
    QueueRequest,
    ReadBacklog,
    ReceiveReply,
    ReceiveRequest,
    RecordsArrived,
    Settlement,
    SettleRequest,
    TopicsChanged,
)
from alpacamq.telemetry.logs import get_logger

from .deliveries import QueueReader, check_group, settled

log = get_logger(__name__)

RETRY_SECONDS = 1.0

Host = StateMachineHost[QueueEngine]
R = TypeVar("R")


def routing_key(queue: QueueId) -> str:
    """Return the key by which a queue is assigned to an engine."""
    return f"{queue.group}\0{queue.topic}"


class TopicWatchers:
    """Wakes queue engines that have waiting receives when records arrive.

    Partitions are watched only while receives wait: a topic without them costs its producers nothing.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._waiting: dict[str, Counter[Host]] = {}
        self._watched: dict[str, list[Partition]] = {}

    def wait(self, topic: str, host: Host) -> None:
        """Post RecordsArrived for the topic to the host, until `leave`."""
        self._waiting.setdefault(topic, Counter())[host] += 1
        if topic not in self._watched:
            self._watch(topic)

    def leave(self, topic: str, host: Host) -> None:
        waiting = self._waiting[topic]
        waiting[host] -= 1
        if not waiting[host]:
            del waiting[host]
        if not waiting:
            # The watch stays until the next append: a polling consumer returns soon.
            del self._waiting[topic]

    def topic_grown(self, topic: str) -> None:
        """Watch partitions that were added to a topic."""
        if topic in self._watched:
            before = len(self._watched[topic])
            self._watch(topic)
            for index in range(before, len(self._watched[topic])):
                self._wake(topic, index, 0)

    def topic_deleted(self, topic: str) -> None:
        """Stop watching a deleted topic."""
        self._watched.pop(topic, None)

    def _watch(self, topic: str) -> None:
        if not (partitions := list(self._topics.partitions_of(topic))):
            return  # being created or deleted; the next receive tries again
        self._watched[topic] = partitions
        for index, partition in enumerate(partitions):
            partition.watch(self, partial(self._wake, topic, index))

    def _wake(self, topic: str, index: int, _added_bytes: int) -> None:
        if (waiting := self._waiting.get(topic)) is None:
            for partition in self._watched.pop(topic, ()):
                partition.unwatch(self)
            return
        event = RecordsArrived(topic=topic, partition=index)
        for host in waiting:
            host.post_once(event)


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of queue mode."""

    limits: EngineLimits = EngineLimits()
    cache_bytes: int = 32 << 20


class QueueHost:
    """The engines of all queues."""

    def __init__(
        self,
        resources: HostResources,
        producer_ids: ProducerIds,
        settings: QueueSettings,
        *,
        clock: Clock,
        retention_clock: Clock,
        unpacked_limit_bytes: int,
        traces: QueueTraces | None = None,
    ) -> None:
        topics, executor = resources.topics, resources.executor
        self._topics = topics
        self.traces = traces  # None if tracing is disabled
        self._producer_ids = producer_ids
        self._settings = settings
        self.clock = resources.clock
        self.retention_clock = retention_clock  # for the age of messages
        self._blocks = StoredBlocks(
            executor, limit_bytes=settings.cache_bytes, unpacked_limit_bytes=unpacked_limit_bytes
        )
        self._scans = BacklogScans(self._blocks, clock, executor, unpacked_limit_bytes=unpacked_limit_bytes)
        self._backlog = BacklogReader(topics, self._blocks, self._scans)
        self.reader = QueueReader(topics, self._blocks)
        self._watchers = TopicWatchers(topics)
        self.moves = DlqWriter(topics, self.reader, clock, traces)
        self._machines: StateMachineTopic[QueueEngine] = StateMachineTopic(
            QUEUES_TOPIC,
            resources,
            self._engine,
            perform=self._perform,
            read=self._read,
            check=self._check_loadable,
            requests=REQUESTS,
        )
        self._topics_at_start = dict(topics.image.topics)
        self._low_on_ids = asyncio.Event()
        self._ids_wanted = 0

    async def run(self) -> None:
        """Run the engines until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scans.run())
            tasks.create_task(self._keep_ids())
            if self._machines.exists:
                # An engine that finds expired leases when it is loaded moves them to dead letters at once.
                with suppress(AlpacaError):
                    await self._producer_ids.replenish()
            tasks.create_task(self._machines.run())

    @property
    def exists(self) -> bool:
        """Whether there has ever been a queue."""
        return self._machines.exists

    async def host(self, queue: QueueId) -> Host:
        """Return the host of a queue, loaded; the queue may be new."""
        check_group(queue.group)
        if self._topics.image.topic(queue.topic).is_internal:
            raise PolicyViolation(f"topic {queue.topic!r} is internal and cannot be used as a queue")
        await self._machines.all()
        if self._producer_ids.is_low:
            await self._producer_ids.replenish(self._ids_wanted)
        host = self.host_of(queue)
        if host.machine is None:
            await host.loaded()
        return host

    def host_of(self, queue: QueueId) -> Host:
        """Return the host of a queue that has been used before. Raises NotCoordinator."""
        return self._machines.host_at(self._machines.index_of(routing_key(queue)))

    async def broker_of(self, queue: QueueId) -> BrokerId:
        """Return the broker that hosts the engine of a queue. Raises CoordinatorUnavailable."""
        return await self._machines.broker_of(routing_key(queue))

    def settings(self, queue: QueueId) -> TopicConfig:
        """Return a topic's settings with the group's overrides; UnknownTopic, CoordinatorUnavailable."""
        host = self.host_of(queue)
        if (machine := host.machine) is None:
            raise CoordinatorUnavailable(f"{host.partition.identity} is being loaded")
        return machine.settings(queue)

    async def ask(self, request: QueueRequest[R]) -> R:
        """Return the reply of a queue's engine, or raise it if it is an error."""
        host = await self.host(request.queue)
        answer = await host.submit(request)
        if isinstance(answer, AlpacaError):
            raise answer.with_traceback(None)
        return answer

    async def ask_existing(self, request: QueueRequest[R]) -> R:
        """Ask an engine, but raise GroupIdNotFound if the group has never used the topic."""
        queue = request.queue
        if not self._machines.exists or TopicName(queue.topic) not in self._topics.image.topics:
            raise GroupIdNotFound(f"group {queue.group!r} has never used topic {queue.topic!r} as a queue")
        return await self.ask(request)

    async def list_queues(self) -> list[QueueId]:
        """List the queues on this broker, except in partitions that cannot be loaded."""
        if not self._machines.exists:
            return []
        return [queue for reply in await self._machines.ask_all(ListRequest()) for queue in reply.queues]

    async def lease(self, request: ReceiveRequest) -> tuple[Acquired, ...]:
        """Return the messages that are leased for a receive. Cancelling releases them."""
        queue = request.queue
        host = await self.host(queue)
        waits = request.wait_ms > 0
        if waits:
            self._watchers.wait(queue.topic, host)
        reply = host.submit(request)
        try:
            answer = await asyncio.shield(reply)
        except asyncio.CancelledError:
            host.cancel(reply)
            # The reply may still come: then its leases are released.
            reply.add_done_callback(lambda late: self._release_late(queue, late))
            raise
        finally:
            if waits:
                self._watchers.leave(queue.topic, host)
        if isinstance(answer, AlpacaError):
            raise answer.with_traceback(None)
        return answer.messages

    def settle_soon(self, queue: QueueId, settlements: Iterable[Settlement]) -> None:
        """Settle deliveries without waiting for it: if it fails, their leases expire."""
        if gathered := tuple(settlements):
            with suppress(NotCoordinator):  # the engine of the broker that leads now ends the leases
                self.host_of(queue).submit(SettleRequest(queue=queue, settlements=gathered))

    def release(self, queue: QueueId, leases: Sequence[Acquired]) -> None:
        """Make leased messages available again at once: they never reached a consumer."""
        self.settle_soon(queue, [settled(lease, Action.RELEASE_UNSEEN) for lease in leases])

    def failures(self) -> list[str]:
        """Describe the partitions that cannot be loaded."""
        return self._machines.failures()

    def stats(self) -> list[DescribeReply]:
        """Describe every queue that is loaded."""
        return [stats for machine in self._machines.machines for stats in machine.stats()]

    async def settled(self) -> None:
        """Return once every engine is loaded, and its corrections after a power loss are on disk."""
        await self._machines.settled()

    async def topic_deleted(self, topic: str) -> None:
        """Delete the queues of a topic; returns once that is on disk."""
        self._watchers.topic_deleted(topic)
        self._scans.forget(topic)
        self._blocks.forget(topic)
        self._machines.post_all(TopicsChanged())
        await self._machines.handled()
        await self._machines.flush()

    def topic_grown(self, topic: str) -> None:
        """Watch partitions that were added to a topic."""
        self._watchers.topic_grown(topic)

    def _engine(self, _partition: Partition) -> QueueEngine:
        return QueueEngine(self._backlog, self._take_producer_id, self._settings.limits)

    def _check_loadable(self, _partition: Partition, machine: QueueEngine) -> Outcome:
        machine.check_loadable(self._former_id)
        return Outcome()

    def _former_id(self, topic: str) -> TopicId:
        """Return the id of the topic that state without a topic id belongs to: it is of an earlier run."""
        name = TopicName(topic)
        found = self._topics_at_start.get(name) or self._topics.image.topics.get(name)
        return NO_TOPIC_ID if found is None else found.id

    def _perform(self, host: Host, effects: Sequence[Any]) -> None:
        if moves := [effect for effect in effects if isinstance(effect, Move)]:
            self.moves.submit(host, moves)
        if self.traces is not None and len(moves) < len(effects):
            self.traces.ended([effect for effect in effects if isinstance(effect, EndedLease)])

    def _read(self, host: Host, read: ReadBacklog) -> None:
        self._backlog.read(read, lambda outline: host.post(BacklogRead(read=read, outline=outline)))

    def _release_late(self, queue: QueueId, reply: "asyncio.Future[ReceiveReply | AlpacaError]") -> None:
        if not reply.cancelled() and isinstance(answer := reply.result(), ReceiveReply):
            self.release(queue, answer.messages)

    def _take_producer_id(self) -> int:
        try:
            taken = self._producer_ids.take()
        except IndexError:
            # More than were ever needed at once: the engine is rebuilt, with more ids in stock.
            self._ids_wanted = 4 * max(self._ids_wanted, 1000)
            self._low_on_ids.set()
            raise CoordinatorUnavailable("not enough producer ids are reserved") from None
        if self._producer_ids.is_low:
            self._low_on_ids.set()
        return taken

    async def _keep_ids(self) -> None:
        """Keep producer ids in stock: an engine that ends leases by itself cannot wait for them."""
        while True:
            await self._low_on_ids.wait()
            try:
                await self._producer_ids.replenish(self._ids_wanted)
            except AlpacaError as error:
                log.warning("producer_ids_not_replenished", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._low_on_ids.clear()
