"""Hosts the queue engines and connects them with the log and the dead-letter writer."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from alpacamq.broker.dlq.writer import DlqWriter, MoveTargets
from alpacamq.broker.later import Later
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.producer_ids import ProducerIds
from alpacamq.broker.read.backlog import BacklogReader, BacklogScans
from alpacamq.broker.read.block_cache import StoredBlocks
from alpacamq.broker.remote.views import AnyPartition, PartitionViews, RemotePartition
from alpacamq.broker.slices import in_slices
from alpacamq.broker.statemachine.host import StateMachineHost
from alpacamq.broker.statemachine.topic import HostResources, StateMachineTopic
from alpacamq.broker.topics import Topics
from alpacamq.broker.tracing.queue import QueueTraces
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import (
    AlpacaError,
    CoordinatorLoading,
    CoordinatorUnavailable,
    GroupIdNotFound,
    NotCoordinator,
    PolicyViolation,
    UnknownTopic,
)
from alpacamq.model.ids import NO_TOPIC_ID, BrokerId, TopicId, TopicName
from alpacamq.model.ports import Clock
from alpacamq.model.state_machine import Outcome, Request
from alpacamq.model.topics import QUEUES_TOPIC, TopicConfig
from alpacamq.queues.engine import REQUESTS, EngineLimits, QueueEngine
from alpacamq.queues.messages import (
    Acquired,
    Action,
    BacklogRead,
    CutTails,
    DescribeAllRequest,
    DescribeReply,
    DescribeRequest,
    EndedLease,
    ListRequest,
    LostTail,
    Move,
    Outline,
    QueueId,
    QueueRequest,
    ReadBacklog,
    ReceiveReply,
    ReceiveRequest,
    RecordsArrived,
    Settlement,
    SettleReply,
    SettleRequest,
    TopicsChanged,
)
from alpacamq.queues.queue import QueueLevels, overridden
from alpacamq.telemetry.logs import get_logger

from .deliveries import QueueReader, check_group, settled

log = get_logger(__name__)

RETRY_SECONDS = 1.0
# When to look again for a partition that this broker is about to lead.
OPENING_SECONDS = 0.1
# When to read again what another broker could not send.
READ_AGAIN_SECONDS = 0.2
# How long the broker of an engine may not know a topic that this broker knows.
UNKNOWN_SECONDS = 5.0
UNKNOWN_PAUSE_SECONDS = 0.02

Host = StateMachineHost[QueueEngine]
R = TypeVar("R")
T = TypeVar("T")


class TopicWatchers:
    """Wakes queue engines that have waiting receives when records arrive, at any broker.

    Partitions are watched only while receives wait: a topic without them costs its producers nothing.
    """

    def __init__(self, topics: Topics, views: PartitionViews) -> None:
        self._topics = topics
        self._views = views
        # How many receives of each engine wait.
        self._waiting: dict[str, dict[Host, int]] = {}
        # None: a partition that this broker is about to lead.
        self._watched: dict[str, list[AnyPartition | None]] = {}

    def wait(self, topic: str, host: Host) -> None:
        """Post RecordsArrived for the topic to the host, until `leave`."""
        if (waiting := self._waiting.get(topic)) is None:
            waiting = self._waiting[topic] = {}
        waiting[host] = waiting.get(host, 0) + 1
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
                self.wake(topic, index)

    def topic_deleted(self, topic: str) -> None:
        """Stop watching a deleted topic."""
        self._unwatch(topic)

    def _watch(self, topic: str) -> None:
        """Watch every partition where it is led now."""
        found = self._topics.image.topics.get(TopicName(topic))
        if found is None:
            return  # being deleted
        watched = self._watched.setdefault(topic, [])
        watched += [None] * (found.partitions - len(watched))
        for index, former in enumerate(watched):
            partition = self._views.find(topic, index)
            if partition is former:
                continue
            self._leave(former)
            watched[index] = partition
            wake = partial(self.wake, topic, index)
            if isinstance(partition, RemotePartition):
                self._views.watch(partition, self, wake)
            elif partition is not None:
                partition.watch(self, wake)
        if None in watched:
            asyncio.get_running_loop().call_later(OPENING_SECONDS, self._watch_opened, topic)

    def _watch_opened(self, topic: str) -> None:
        watched = self._watched.get(topic, [])
        missing = [index for index, partition in enumerate(watched) if partition is None]
        if missing and topic not in self._waiting:
            self._unwatch(topic)  # the next receive that waits watches all of them again
        elif missing:
            self._watch(topic)
            for index in missing:
                self.wake(topic, index)

    def _unwatch(self, topic: str) -> None:
        for partition in self._watched.pop(topic, ()):
            self._leave(partition)

    def _leave(self, partition: AnyPartition | None) -> None:
        if isinstance(partition, RemotePartition):
            self._views.unwatch(partition, self)
        elif partition is not None:
            partition.unwatch(self)

    def wake(self, topic: str, index: int, _added_bytes: int = 0) -> None:
        """Tell the engines that wait for a topic that a partition has grown, or has another leader."""
        if (waiting := self._waiting.get(topic)) is None:
            self._unwatch(topic)
            return
        watched = self._watched.get(topic, [])
        if index < len(watched) and self._views.find(topic, index) is not watched[index]:
            self._watch(topic)
        event = RecordsArrived(topic=topic, partition=index)
        for host in waiting:
            host.post_once(event)


def _is_empty_poll(request: ReceiveRequest, answer: ReceiveReply | AlpacaError) -> bool:
    if request.wait_ms or not request.max_messages:
        return False
    return isinstance(answer, ReceiveReply) and not answer.messages


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of queue mode."""

    limits: EngineLimits = EngineLimits()
    cache_bytes: int = 32 << 20


class _Receiving:
    """A receive of an engine on this broker; takes its reply for a client that may have gone by then."""

    __slots__ = ("_host", "_release", "_reply", "_request", "_watchers", "replied")

    def __init__(
        self,
        host: Host,
        request: ReceiveRequest,
        watchers: TopicWatchers | None,
        release: Callable[[QueueId, Sequence[Acquired]], None],
    ) -> None:
        """`watchers` wake the engine until the receive is over; None if it does not wait."""
        self._host = host
        self._request = request
        self._watchers = watchers
        self._release = release
        self._reply: ReceiveReply | AlpacaError | None = None
        # What the client waits for, until it is known: afterwards it refers to this object.
        self.replied: Later[ReceiveReply] | None = None

    def done(self) -> bool:
        return self._reply is not None

    def set_result(self, answer: ReceiveReply | AlpacaError) -> None:
        """Pass on the reply of the engine."""
        self._reply = answer
        replied, self.replied = self.replied, None
        if replied is None or replied.is_cancelled:
            if isinstance(answer, ReceiveReply):
                self._release(self._request.queue, answer.messages)  # it was on its way already
            return
        if self._watchers is not None:
            self._watchers.leave(self._request.queue.topic, self._host)
        replied.set_result(answer)

    def cancel(self) -> None:
        """Withdraw the receive, or release what it has leased."""
        if self._reply is None:
            if self._watchers is not None:
                self._watchers.leave(self._request.queue.topic, self._host)
            self._host.cancel(self)
        elif isinstance(self._reply, ReceiveReply):
            self._release(self._request.queue, self._reply.messages)


class QueueHost:
    """The engines of all queues."""

    def __init__(
        self,
        resources: HostResources,
        producer_ids: ProducerIds,
        settings: QueueSettings,
        views: PartitionViews,
        targets: MoveTargets,
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
        self.views = views
        self._backlog = BacklogReader(topics, views, self._blocks, self._scans)
        self.reader = QueueReader(views, self._blocks)
        self._watchers = TopicWatchers(topics, views)
        self.moves = DlqWriter(topics, self.reader, targets, clock, traces)
        self._machines: StateMachineTopic[QueueEngine] = StateMachineTopic(
            QUEUES_TOPIC,
            resources,
            self._engine,
            perform=self._perform,
            read=self._read,
            check=self._check_loadable,
            answer=self._answer,
            requests=(*REQUESTS, CutTails),
            undo=self._undo,
        )
        self._is_alone = resources.shards is None
        self._tasks: asyncio.TaskGroup | None = None
        self._topics_at_start = dict(topics.image.topics)
        self._low_on_ids = asyncio.Event()
        self._ids_wanted = 0

    async def run(self) -> None:
        """Run the engines until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                tasks.create_task(self._scans.run())
                tasks.create_task(self.views.run())
                tasks.create_task(self._keep_ids())
                if self._machines.exists:
                    # An engine that finds expired leases when it is loaded moves their messages at once.
                    with suppress(AlpacaError):
                        await self._producer_ids.replenish()
                tasks.create_task(self._machines.run())
                await asyncio.Event().wait()
            finally:
                self._tasks = None  # start nothing new while the rest ends

    @property
    def exists(self) -> bool:
        """Whether there has ever been a queue."""
        return self._machines.exists

    async def broker_of(self, queue: QueueId) -> BrokerId:
        """Return the broker that hosts the engine of a queue. Raises CoordinatorUnavailable."""
        return await self._machines.broker_of(DescribeRequest(queue=queue).routing_key)

    def settings(self, queue: QueueId, overrides: Mapping[str, str]) -> TopicConfig:
        """Return a topic's settings with the overrides of a group. Raises UnknownTopic."""
        return overridden(self._topics.config_of(self._topics.image.topic(queue.topic)), overrides)

    async def ask(self, request: QueueRequest[R]) -> R:
        """Return the reply of a queue's engine, on any broker, or raise it if it is an error."""
        queue = request.queue
        self._check(queue)
        loop = asyncio.get_running_loop()
        until = loop.time() + UNKNOWN_SECONDS
        while True:
            try:
                return await self._machines.ask(request)
            except UnknownTopic:
                # The broker of the engine may not have heard of a new topic yet.
                if self._machines.is_complete or loop.time() >= until or not self._has_topic(queue):
                    raise
                await asyncio.sleep(UNKNOWN_PAUSE_SECONDS)

    def ask_later(self, request: SettleRequest | ReceiveRequest) -> Later[Any] | None:
        """Do the same as `ask` for an engine on this broker; None if that has to wait for something.

        Then it has not begun.
        """
        self._check(request.queue)
        host = self._machines.loaded_here(request.routing_key)
        if host is None or self._producer_ids.is_low:
            return None
        if isinstance(request, ReceiveRequest):
            if self.views.remote(request.queue.topic):
                return None
            replied = self._receive_later(host, request)
        else:
            replied = Later()
            host.submit_to(replied, request)
        return replied if self._is_alone else replied.then(partial(self._or_elsewhere, request))

    def _or_elsewhere(self, request: QueueRequest[Any], answer: Any) -> Any:
        """Return a reply, or ask again: another broker may have the engine by now, or not know the topic."""
        if isinstance(answer, AlpacaError) and isinstance(
            answer, NotCoordinator | CoordinatorLoading | CoordinatorUnavailable | UnknownTopic
        ):
            return self.ask(request)
        return answer

    def _receive_later(self, host: Host, request: ReceiveRequest) -> Later[ReceiveReply]:
        waits = request.wait_ms > 0
        receiving = _Receiving(host, request, self._watchers if waits else None, self.release)
        replied = receiving.replied = Later(receiving.cancel)
        if waits:
            self._watchers.wait(request.queue.topic, host)
        host.submit_to(receiving, request)
        return replied

    def _check(self, queue: QueueId) -> None:
        """Raise an error for a queue that cannot exist."""
        check_group(queue.group)
        if self._topics.image.topic(queue.topic).is_internal:
            raise PolicyViolation(f"topic {queue.topic!r} is internal and cannot be used as a queue")

    def _has_topic(self, queue: QueueId) -> bool:
        return TopicName(queue.topic) in self._topics.image.topics

    async def ask_existing(self, request: QueueRequest[R]) -> R:
        """Ask an engine, but raise GroupIdNotFound if the group has never used the topic."""
        queue = request.queue
        if not self._machines.exists or not self._has_topic(queue):
            raise GroupIdNotFound(f"group {queue.group!r} has never used topic {queue.topic!r} as a queue")
        return await self.ask(request)

    async def list_queues(self) -> list[tuple[QueueId, Mapping[str, str]]]:
        """List the queues with their overrides, except in partitions that cannot be loaded."""
        if not self._machines.exists:
            return []
        return [queue for reply in await self._machines.ask_all(ListRequest()) for queue in reply.queues]

    async def lease(self, request: ReceiveRequest) -> ReceiveReply:
        """Return the messages that are leased for a receive. Cancelling releases them."""
        return await self.ask(request)

    async def _answer(self, host: Host, request: Request[Any]) -> object:
        """Return the reply of an engine on this broker to a request from any broker."""
        if isinstance(request, CutTails):
            return await self._cut_tails(host, request)
        if self._producer_ids.is_low:
            await self._producer_ids.replenish(self._ids_wanted)
        is_exact = True
        if isinstance(request, ReceiveRequest):
            # It finds the records that were there before it came.
            is_exact = await self.views.freshen(request.queue.topic)
        elif isinstance(request, QueueRequest) and not isinstance(request, SettleRequest):
            await self.views.learn(request.queue.topic)
        if host.machine is None:
            await host.loaded()
        if isinstance(request, ReceiveRequest):
            answer = await self._receive(host, request)
            is_missed = not is_exact and _is_empty_poll(request, answer)
            if is_missed and await self.views.refresh(request.queue.topic):
                answer = await self._receive(host, request)
        else:
            answer = await host.submit(request)
        if isinstance(answer, AlpacaError):
            raise answer.with_traceback(None)
        return answer

    async def _cut_tails(self, host: Host, request: CutTails) -> SettleReply:
        """Let an engine forget the state of lost records of another broker; returns when that is on disk."""
        machine = await host.wait_until_loaded()
        if machine.refers_to(request.lost):
            ends = {PartitionId(tail.topic_id, tail.partition): tail.end_offset for tail in request.lost}
            self._backlog.lost_tails |= ends
            try:
                host.reload("another broker has lost records")
                await host.wait_until_loaded()
                await host.partition.flush_to(host.partition.log.end_offset)
            finally:
                for place in ends:
                    self._backlog.lost_tails.pop(place, None)
        return SettleReply()

    async def _receive(self, host: Host, request: ReceiveRequest) -> ReceiveReply | AlpacaError:
        """Return the reply to a receive. Cancelling releases the messages in it."""
        queue = request.queue
        waits = request.wait_ms > 0
        if waits:
            self._watchers.wait(queue.topic, host)
        reply = host.submit(request)
        try:
            return await asyncio.shield(reply)
        except asyncio.CancelledError:
            host.cancel(reply)
            # The reply may still come: then its leases are released.
            reply.add_done_callback(lambda late: self._release_late(queue, late))
            raise
        finally:
            if waits:
                self._watchers.leave(queue.topic, host)

    def settle_soon(self, queue: QueueId, settlements: Iterable[Settlement]) -> None:
        """Settle deliveries without waiting for it: if it fails, their leases expire."""
        if not (gathered := tuple(settlements)):
            return
        request = SettleRequest(queue=queue, settlements=gathered)
        try:
            self._machines.host_at(self._machines.index_of(request.routing_key)).submit(request)
        except AlpacaError:
            if self._tasks is not None:
                self._tasks.create_task(self._try_to_ask(request))

    async def _try_to_ask(self, request: QueueRequest[Any]) -> None:
        with suppress(AlpacaError):
            await self.ask(request)

    def release(self, queue: QueueId, leases: Sequence[Acquired]) -> None:
        """Make leased messages available again at once: they never reached a consumer."""
        self.settle_soon(queue, [settled(lease, Action.RELEASE_UNSEEN) for lease in leases])

    def failures(self) -> list[str]:
        """Describe the partitions that cannot be loaded."""
        return self._machines.failures()

    async def describe_all(self) -> list[DescribeReply]:
        """Describe every queue on any broker, except in partitions that cannot be loaded."""
        if not self._machines.exists:
            return []
        replies = await self._machines.ask_all(DescribeAllRequest())
        return [each for reply in replies for each in reply.queues]

    @property
    def queue_count(self) -> int:
        """How many queues of this broker are loaded."""
        return sum(machine.queue_count for machine in self._machines.machines)

    async def stats(self) -> list[DescribeReply]:
        """Describe every queue of this broker that is loaded, in slices: a queue may have many partitions."""
        return await self._of_machines(QueueEngine.stats)

    async def levels(self) -> list[QueueLevels]:
        """Count the messages of every queue of this broker that is loaded, in slices."""
        return await self._of_machines(QueueEngine.levels)

    async def _of_machines(self, gradually: Callable[[QueueEngine], Iterator[T | None]]) -> list[T]:
        found: list[T] = []
        for machine in list(self._machines.machines):
            async for some in in_slices(gradually(machine)):
                found += (each for each in some if each is not None)
        return found

    async def settled(self) -> None:
        """Return once no queue refers to records that this broker has lost in a power cut.

        Every engine on this broker is loaded, and its corrections are on disk. Those of other brokers have
        forgotten the state of records that were nowhere else.
        """
        await self._machines.settled()
        lost = tuple(
            LostTail(partition.topic_id, partition.identity.partition, partition.cut_offset)
            for partition in self._topics.all_partitions()
            if partition.is_leading and len(partition.replicas) == 1 and partition.cut_offset is not None
        )
        if lost and self._machines.exists and not self._machines.is_complete:
            for index in range(self._machines.count):
                await self._machines.ask_at(index, CutTails(lost=lost))

    async def topic_deleted(self, topic: str) -> None:
        """Delete the queues of a topic; returns once that is on disk."""
        self._watchers.topic_deleted(topic)
        self.views.forget(topic)
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
        def deliver(outline: Outline) -> None:
            host.post(BacklogRead(read=read, outline=outline))
            if outline.next_offset == read.offset and self._backlog.is_remote(read):
                # Its leader could not be asked, or does not know yet what its predecessor had committed.
                topic, index = read.queue.topic, read.partition
                loop = asyncio.get_running_loop()
                loop.call_later(READ_AGAIN_SECONDS, self._watchers.wake, topic, index)

        self._backlog.read(read, deliver)

    def _undo(self, request: Request[Any], reply: object) -> None:
        """Release what another broker has leased for a client that no longer waits."""
        if isinstance(request, ReceiveRequest) and isinstance(reply, ReceiveReply):
            self.release(request.queue, reply.messages)

    def _release_late(self, queue: QueueId, reply: "asyncio.Future[ReceiveReply | AlpacaError]") -> None:
        if not reply.cancelled() and isinstance(answer := reply.result(), ReceiveReply):
            self.release(queue, answer.messages)

    def _take_producer_id(self) -> int:
        try:
            taken = self._producer_ids.take()
        except CoordinatorLoading:
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
