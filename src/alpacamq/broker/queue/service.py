"""Queue mode for the APIs: receive and settle messages of any topic as a group."""

import asyncio
from collections.abc import Awaitable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from alpacamq.broker.dlq.redrive import FailureCause, Redrives, RedriveTask
from alpacamq.broker.later import Later
from alpacamq.broker.peers.link import Peers
from alpacamq.broker.remote.reads import RemoteReads
from alpacamq.broker.remote.redrives import RedriveCalls
from alpacamq.broker.schemas.checks import SchemaChecks
from alpacamq.broker.topics import Topics
from alpacamq.broker.tracing.partition import Origin
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.dead_letters import dead_letter_topic
from alpacamq.model.errors import (
    AlpacaError,
    InvalidReceipt,
    InvalidRequest,
    PartitionNotReady,
    StaleReceipt,
    UnknownTopic,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.records import Record
from alpacamq.model.topics import INTERNAL_TOPICS, Topic, TopicConfig
from alpacamq.queues.messages import (
    Acquired,
    Action,
    ConfigureRequest,
    DeleteRequest,
    DescribeReply,
    DescribeRequest,
    FinishedRequest,
    OverridesRequest,
    QueueId,
    ReceiveReply,
    ReceiveRequest,
    ReleaseConsumerRequest,
    ResetRequest,
    Settlement,
    SettleReply,
    SettleRequest,
    ShareTerms,
    Start,
)
from alpacamq.queues.queue import QueueLevels, reads_committed
from alpacamq.telemetry.tracing import ClientApi

from .deliveries import (
    TOPIC_TAG_BYTES,
    Delivery,
    LeasedRecord,
    Place,
    ReceiveLimits,
    deliveries_of,
    read_receipt,
    select_deliverable,
)
from .host import QueueHost

__all__ = ["Delivery", "FailureCause", "LeasedRecord", "Queues", "Receipted", "RedriveTask"]

# A receive that does not wait still skips expired messages for this long.
_SKIP_SECONDS = 2.0
# When a receive tries again whose messages could not be read.
_UNREADABLE_SECONDS = 0.05
# When a wait ends for which no queue is available.
_UNAVAILABLE_SECONDS = 0.5
# When a receive finds only expired messages, it leases this many at once to skip them.
_SKIPPED_AT_ONCE = 500


class Receipted(msgspec.Struct, frozen=True, kw_only=True):
    """A settlement by receipt handle, for consumers of the HTTP and SQS APIs."""

    receipt: str
    action: Action
    delay_ms: int | None = None
    reason: str = ""


class _Lease(NamedTuple):
    """A receive, and when it began."""

    request: ReceiveRequest
    max_bytes: int
    api: ClientApi
    began: float


def _fields(receipted: Receipted) -> tuple[str, Action, int | None, str]:
    return receipted.receipt, receipted.action, receipted.delay_ms, receipted.reason


async def _known(reply: ReceiveReply) -> ReceiveReply:
    return reply


class Queues:
    """All queues, on any broker."""

    def __init__(
        self,
        host: QueueHost,
        topics: Topics,
        reads: RemoteReads,
        schema_checks: SchemaChecks,
        peers: Peers | None = None,
    ) -> None:
        """`peers` is None for a cluster of this broker only."""
        self._host = host
        self._topics = topics
        self._reads = reads
        self._redrives = Redrives(host, topics, schema_checks)
        self._redrive_calls = RedriveCalls(topics, self._redrives, peers)
        # The calls of other brokers that this one answers.
        self.handlers = {**host.views.handlers, **self._redrive_calls.handlers}

    async def run(self) -> None:
        """Run the queues until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._host.run())
            tasks.create_task(self._redrives.run())

    async def receive(
        self,
        queue: QueueId,
        *,
        consumer: str = "",
        max_messages: int = 10,
        visibility_ms: int | None = None,
        wait_ms: int = 0,
        max_bytes: int = 16 << 20,
        partitions: tuple[int, ...] | None = None,
        start: Start = Start.EARLIEST,
        key_runs: bool = False,
        api: ClientApi = ClientApi.BROKER,
    ) -> list[Delivery]:
        """Lease messages as `lease` does, with receipts to settle them by."""
        request = ReceiveRequest(
            queue=queue,
            consumer=consumer,
            max_messages=max_messages,
            visibility_ms=visibility_ms,
            wait_ms=wait_ms,
            partitions=partitions,
            start=start,
            key_runs=key_runs,
        )
        return await self.receive_later(request, max_bytes=max_bytes, api=api)

    def receive_later(
        self, request: ReceiveRequest, *, max_bytes: int = 16 << 20, api: ClientApi = ClientApi.BROKER
    ) -> Later[list[Delivery]]:
        """Do the same as `receive`, without a task while nothing has to be read from a disk."""
        return self._lease_later(request, max_bytes, api).map(partial(self._with_receipts, request.queue))

    def _with_receipts(self, queue: QueueId, leased: Sequence[LeasedRecord]) -> list[Delivery]:
        if not leased:
            return []
        try:
            topic_tag = self._topics.image.topic(queue.topic).id.bytes[:TOPIC_TAG_BYTES]
        except UnknownTopic:  # deleted meanwhile, and its queues with it
            return []
        return deliveries_of(queue, topic_tag, leased)

    async def lease(
        self,
        queue: QueueId,
        *,
        consumer: str = "",
        max_messages: int = 10,
        visibility_ms: int | None = None,
        wait_ms: int = 0,
        max_bytes: int = 16 << 20,
        partitions: tuple[int, ...] | None = None,
        start: Start = Start.EARLIEST,
        key_runs: bool = False,
        api: ClientApi = ClientApi.BROKER,
    ) -> list[LeasedRecord]:
        """Lease messages, waiting up to `wait_ms` for the first. Skips those older than queue.ttl.ms.

        Messages beyond `max_bytes` are released at once; at least one is returned. Cancelling the call
        releases the messages it would have returned.
        """
        request = ReceiveRequest(
            queue=queue,
            consumer=consumer,
            max_messages=max_messages,
            visibility_ms=visibility_ms,
            wait_ms=wait_ms,
            partitions=partitions,
            start=start,
            key_runs=key_runs,
        )
        return await self._lease_later(request, max_bytes, api)

    def _lease_later(
        self, request: ReceiveRequest, max_bytes: int, api: ClientApi
    ) -> Later[list[LeasedRecord]]:
        if request.max_messages < 1:
            return Later.of(InvalidRequest(f"max_messages must be at least 1, not {request.max_messages}"))
        lease = _Lease(request, max_bytes, api, monotonic())
        try:
            replied = self._host.ask_later(request)
        except AlpacaError as error:
            return Later.of(error.with_traceback(None))
        if replied is None:
            return Later.of(self._lease(lease, self._host.lease(request)))
        return replied.then(partial(self._leased, lease))

    def _leased(
        self, lease: "_Lease", reply: ReceiveReply | Exception | Coroutine[Any, Any, ReceiveReply]
    ) -> list[LeasedRecord] | Exception | Coroutine[Any, Any, list[LeasedRecord]]:
        """Return the records of leases if they can be read now; else a coroutine that goes on."""
        if isinstance(reply, Exception):
            return reply
        if not isinstance(reply, ReceiveReply):
            return self._lease(lease, reply)
        if not (leases := reply.messages):
            return []
        queue = lease.request.queue
        is_committed = reads_committed(reply.overrides)
        places = [each[:2] for each in leases]
        records = self._host.reader.read_now(queue.topic, places, is_committed=is_committed)
        if records is None or not (deliveries := self._deliverable(lease, reply, records)):
            return self._lease(lease, _known(reply), records)
        self._trace(lease, deliveries)
        return deliveries

    async def _lease(
        self,
        lease: "_Lease",
        replied: Awaitable[ReceiveReply],
        records: dict[Place, Record] | None = None,
    ) -> list[LeasedRecord]:
        """Return the records of leases, of further receives if the first ones cannot be delivered.

        `records`: none of those of the first reply can be.
        """
        request = lease.request
        spent_ms = 0  # before this receive
        while True:
            reply = await replied
            is_late = spent_ms >= max(request.wait_ms, _SKIP_SECONDS * 1000)
            if not reply.messages:
                return []
            wanted = request.max_messages
            if records is None:
                try:
                    deliveries = await self._read_deliverable(lease, reply)
                except PartitionNotReady:
                    # Its leader has changed, and does not know yet what is committed.
                    if is_late:
                        raise
                    await asyncio.sleep(_UNREADABLE_SECONDS)
                else:
                    if deliveries:
                        self._trace(lease, deliveries)
                    if deliveries or is_late:
                        return deliveries
                    wanted = max(wanted, _SKIPPED_AT_ONCE)
            elif is_late:
                return []
            else:
                records, wanted = None, max(wanted, _SKIPPED_AT_ONCE)
            spent_ms = int((monotonic() - lease.began) * 1000)
            again = msgspec.structs.replace(
                request, wait_ms=max(request.wait_ms - spent_ms, 0), max_messages=wanted
            )
            replied = self._host.lease(again)

    def _trace(self, lease: "_Lease", deliveries: Sequence[LeasedRecord]) -> None:
        if self._host.traces is not None:
            request = lease.request
            self._host.traces.delivered(request.queue, deliveries, Origin(lease.api, request.consumer))

    async def settle(
        self, settlements: Sequence[Receipted], *, api: ClientApi = ClientApi.BROKER
    ) -> list[AlpacaError | None]:
        """Settle deliveries of any queues by receipt; return None or an error for each, in order."""
        return await self.settle_later(settlements, api=api)

    def settle_later(
        self,
        settlements: Sequence[Receipted],
        *,
        only: QueueId | None = None,
        api: ClientApi = ClientApi.BROKER,
    ) -> Later[list[AlpacaError | None]]:
        """Do the same as `settle`, without a task if all are of one queue whose engine is here.

        Receipts of another queue than `only` are refused.
        """
        results: list[AlpacaError | None] = [None] * len(settlements)
        by_queue: dict[QueueId, list[tuple[int, Settlement]]] = {}
        known: tuple[QueueId, bytes] | None = None
        for place, (receipt, action, delay_ms, reason) in enumerate(map(_fields, settlements)):
            try:
                queue, tag, partition, offset, count, generation = read_receipt(receipt)
                if known != (queue, tag):
                    if only is not None and queue != only:
                        raise InvalidReceipt("the receipt belongs to another queue")
                    self._check_topic(queue.topic, tag)
                    known, entries = (queue, tag), by_queue.setdefault(queue, [])
            except AlpacaError as error:
                results[place] = error.with_traceback(None)
            else:
                settlement = (partition, offset, action, count, generation, None, delay_ms, reason, "")
                entries.append((place, tuple.__new__(Settlement, settlement)))
        if len(by_queue) == 1:
            ((queue, entries),) = by_queue.items()
            some = tuple([settlement for _, settlement in entries])
            replied = self._ask_to_settle(queue, some)
            if replied is not None:
                return replied.then(partial(self._settled, results, queue, entries, some, api))
        return Later.of(self._settle_each(results, by_queue, api))

    def _ask_to_settle(
        self, queue: QueueId, settlements: tuple[Settlement, ...]
    ) -> Later[SettleReply] | None:
        try:
            return self._host.ask_later(SettleRequest(queue=queue, settlements=settlements))
        except AlpacaError:
            return None  # raised again where it becomes the result of each

    def _settled(
        self,
        results: list[AlpacaError | None],
        queue: QueueId,
        entries: Sequence[tuple[int, Settlement]],
        settlements: Sequence[Settlement],
        api: ClientApi,
        reply: SettleReply | Exception | Coroutine[Any, Any, SettleReply],
    ) -> list[AlpacaError | None] | Exception | Coroutine[Any, Any, list[AlpacaError | None]]:
        """Add the results of one queue."""
        if isinstance(reply, SettleReply):
            if self._host.traces is not None:
                self._host.traces.settled(queue, settlements, reply.results, Origin(api))
            if len(entries) == len(results):
                return list(reply.results)
            answer: Sequence[AlpacaError | None] = reply.results
        elif isinstance(reply, AlpacaError):
            answer = [reply.with_traceback(None)] * len(entries)
        elif isinstance(reply, Exception):
            return reply
        else:
            reply.close()  # which asks for the same, without results for each
            return self._settle_each(results, {queue: entries}, api)
        for (place, _), result in zip(entries, answer, strict=True):
            results[place] = result
        return results

    async def _settle_each(
        self,
        results: list[AlpacaError | None],
        by_queue: Mapping[QueueId, Sequence[tuple[int, Settlement]]],
        api: ClientApi,
    ) -> list[AlpacaError | None]:
        """Add the results of each queue."""
        # In parallel, so that they share a batch of the state machine where possible.
        asked = [
            self._try_to_settle(queue, [settlement for _, settlement in entries], api)
            for queue, entries in by_queue.items()
        ]
        answers = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
        for entries, answer in zip(by_queue.values(), answers, strict=True):
            for (place, _), result in zip(entries, answer, strict=True):
                results[place] = result
        return results

    async def acquire(
        self,
        queue: QueueId,
        *,
        consumer: str,
        partitions: tuple[int, ...],
        max_messages: int,
        lock_ms: int | None = None,
        start: Start = Start.LATEST,
        share: ShareTerms | None = None,
    ) -> tuple[Acquired, ...]:
        """Lease messages for Kafka's share consumers, without reading them. Never waits."""
        request = ReceiveRequest(
            queue=queue,
            consumer=consumer,
            max_messages=max_messages,
            visibility_ms=lock_ms,
            partitions=partitions,
            start=start,
            share=share,
        )
        return (await self._host.lease(request)).messages

    async def settle_acquired(
        self, queue: QueueId, settlements: Sequence[Settlement], *, api: ClientApi = ClientApi.BROKER
    ) -> list[AlpacaError | None]:
        """Settle deliveries of Kafka's share consumers by partition, offset and consumer."""
        request = SettleRequest(queue=queue, settlements=tuple(settlements))
        reply = await self._host.ask_existing(request)
        if self._host.traces is not None:
            self._host.traces.settled(queue, settlements, reply.results, Origin(api))
        return list(reply.results)

    def settle_soon(self, queue: QueueId, settlements: Sequence[Settlement]) -> None:
        """Settle deliveries without waiting for it: if it fails, their leases expire."""
        self._host.settle_soon(queue, settlements)

    def sent(self, queue: QueueId, leases: Sequence[Acquired], origin: Origin) -> None:
        """Trace acquired messages of one partition, in ascending order, that are sent to their consumer."""
        if self._host.traces is not None:
            self._host.traces.acquired(queue, leases, origin)

    async def release_consumer(
        self, queue: QueueId, consumer: str, partitions: Sequence[int] | None = None
    ) -> None:
        """Release all messages leased by a consumer, of some partitions or of all."""
        some = None if partitions is None else tuple(partitions)
        await self._host.ask_existing(ReleaseConsumerRequest(queue=queue, consumer=consumer, partitions=some))

    async def wait_for_messages(self, places: Mapping[QueueId, tuple[int, ...] | None], wait_ms: int) -> None:
        """Return when one of these partitions (None: all) may have messages to lease, or after `wait_ms`.

        Returns early if none can be waited on, as while their queues move to another broker: the caller tries
        again, and with that finds out whether they have messages.
        """
        waiting = {
            asyncio.ensure_future(self._wait(queue, partitions, wait_ms))
            for queue, partitions in places.items()
        }
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while waiting:
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    if any(task.result() for task in done):
                        return
                await asyncio.sleep(_UNAVAILABLE_SECONDS)
        except TimeoutError:
            return
        finally:
            for task in waiting:
                task.cancel()

    async def broker_of(self, queue: QueueId) -> BrokerId:
        """Return the broker that hosts a queue. Raises CoordinatorUnavailable."""
        return await self._host.broker_of(queue)

    async def describe(self, queue: QueueId) -> DescribeReply:
        """Describe a queue; raises GroupIdNotFound if the group has never used the topic."""
        return await self._host.ask_existing(DescribeRequest(queue=queue))

    async def queues(self) -> list[QueueId]:
        """List every group and topic that is or was used as a queue, on any broker."""
        return [queue for queue, _ in await self._host.list_queues()]

    async def settings(self, queue: QueueId) -> TopicConfig:
        """Return the settings of a queue: those of its topic with the overrides of its group."""
        if not self._host.exists:
            return self._host.settings(queue, {})
        return self._host.settings(queue, (await self._host.ask(OverridesRequest(queue=queue))).overrides)

    async def dead_letter_sources(self, topic: str) -> set[str]:
        """Return the topics whose dead letters go to `topic`, by their settings or those of any group."""
        found = set()
        for name, each in self._topics.image.topics.items():
            if name not in INTERNAL_TOPICS:
                configured = self._topics.config_of(each).queue_dead_letter_topic
                if dead_letter_topic(name, configured) == topic:
                    found.add(str(name))
        for queue, overrides in await self._host.list_queues():
            with suppress(UnknownTopic):  # deleted meanwhile
                configured = self._host.settings(queue, overrides).queue_dead_letter_topic
                if dead_letter_topic(queue.topic, configured) == topic:
                    found.add(queue.topic)
        return found

    async def reset(self, queue: QueueId, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Restart the queue at these offsets, or at the ends of partitions that are shorter.

        Returns the ends of partitions that restart there, which are purged.
        """
        topic = self._topics.image.topic(queue.topic)
        for index in offsets:
            if not 0 <= index < topic.partitions:
                raise UnknownTopic(f"unknown partition {index} of topic {topic.name!r}")
        ends = await self._ends(topic, tuple(offsets))
        starts = {index: min(offset, ends[index]) for index, offset in offsets.items()}
        await self._host.ask(ResetRequest(queue=queue, offsets=starts))
        return {index: end for index, end in ends.items() if starts[index] == end}

    async def purge(self, queue: QueueId) -> Mapping[int, int]:
        """Mark all current messages as done; return the offsets where the queue starts again."""
        topic = self._topics.image.topic(queue.topic)
        ends = await self._ends(topic, range(topic.partitions))
        await self._host.ask(ResetRequest(queue=queue, offsets=ends))
        return ends

    async def _ends(self, topic: Topic, indexes: Sequence[int]) -> dict[int, int]:
        """Return the last stable offsets of partitions, as their leaders know them."""
        found = await self._reads.bounds([PartitionId(topic.id, index) for index in indexes])
        ends = {}
        for index, bounds in zip(indexes, found, strict=True):
            if isinstance(bounds, AlpacaError):
                raise bounds
            ends[index] = bounds.last_stable_offset
        return ends

    async def configure(self, queue: QueueId, overrides: Mapping[str, str | None]) -> DescribeReply:
        """Set a group's overrides of a topic's settings."""
        return await self._host.ask(ConfigureRequest(queue=queue, overrides=dict(overrides)))

    async def delete(self, queue: QueueId) -> None:
        """Delete the queue of a group on a topic."""
        await self._host.ask_existing(DeleteRequest(queue=queue))

    async def peek(self, queue: QueueId, max_messages: int) -> list[tuple[int, Record]]:
        """Return the next messages that are not done, with their partitions, without leasing them."""
        found: list[tuple[int, Record]] = []
        for stats in (await self.describe(queue)).partitions:
            finished = partial(self._finished, queue, stats.partition)
            records = await self._host.reader.unfinished(
                queue.topic, stats.partition, stats.start_offset, finished, max_messages - len(found)
            )
            found += ((stats.partition, record) for record in records)
        return found

    async def _finished(self, queue: QueueId, partition: int, offsets: Sequence[int]) -> Collection[int]:
        request = FinishedRequest(queue=queue, partition=partition, offsets=tuple(offsets))
        return frozenset((await self._host.ask(request)).offsets)

    def failures(self) -> list[str]:
        """Describe the partitions that cannot be loaded."""
        return self._host.failures()

    async def describe_all(self) -> list[DescribeReply]:
        """Describe every queue, on any broker."""
        return await self._host.describe_all()

    @property
    def queue_count(self) -> int:
        """How many queues of this broker are loaded."""
        return self._host.queue_count

    async def stats(self) -> list[DescribeReply]:
        """Describe every queue of this broker that is loaded."""
        return await self._host.stats()

    async def levels(self) -> list[QueueLevels]:
        """Count the messages of every queue of this broker that is loaded."""
        return await self._host.levels()

    async def start_redrive(
        self,
        source: str,
        *,
        target: str | None = None,
        messages_per_second: int | None = None,
        max_messages: int | None = None,
    ) -> RedriveTask:
        """Start to move dead letters to `target`, or each to the topic it came from."""
        return await self._redrives.start(
            source, target=target, messages_per_second=messages_per_second, max_messages=max_messages
        )

    async def redrives(self, source: str | None = None) -> list[RedriveTask]:
        """List the last hundred redrives of each broker that answers, newest first."""
        return await self._redrive_calls.tasks(source)

    async def cancel_redrive(self, task_id: str) -> RedriveTask:
        """Cancel a redrive on any broker. Raises InvalidRequest if no broker has it."""
        return await self._redrive_calls.cancel(task_id)

    async def topic_deleted(self, topic: str) -> None:
        await self._host.topic_deleted(topic)

    async def settled(self) -> None:
        """Return once every queue is loaded, and its corrections after a power loss are on disk."""
        await self._host.settled()

    def topic_grown(self, topic: str) -> None:
        self._host.topic_grown(topic)

    async def _try_to_settle(
        self, queue: QueueId, settlements: Sequence[Settlement], api: ClientApi
    ) -> Sequence[AlpacaError | None]:
        try:
            return await self.settle_acquired(queue, settlements, api=api)
        except AlpacaError as error:
            return [error.with_traceback(None)] * len(settlements)

    async def _wait(self, queue: QueueId, partitions: tuple[int, ...] | None, wait_ms: int) -> bool:
        try:
            await self._host.lease(
                ReceiveRequest(
                    queue=queue,
                    consumer="",
                    max_messages=0,
                    wait_ms=max(wait_ms, 1),
                    partitions=partitions,
                )
            )
        except AlpacaError:
            return False
        return True

    async def _read_deliverable(self, lease: "_Lease", reply: ReceiveReply) -> list[LeasedRecord]:
        queue, leases = lease.request.queue, reply.messages
        try:
            records = await self._host.reader.read(
                queue.topic, [each[:2] for each in leases], is_committed=reads_committed(reply.overrides)
            )
        except BaseException:
            self._host.release(queue, leases)
            raise
        return self._deliverable(lease, reply, records)

    def _deliverable(
        self, lease: "_Lease", reply: ReceiveReply, records: dict[Place, Record]
    ) -> list[LeasedRecord]:
        """Return the leases that can be delivered; settle the others."""
        queue, leases = lease.request.queue, reply.messages
        try:
            settings = self._host.settings(queue, reply.overrides)
        except BaseException:
            self._host.release(queue, leases)
            raise
        limits = ReceiveLimits(
            max_messages=lease.request.max_messages,
            max_bytes=lease.max_bytes,
            now_ms=self._host.retention_clock.now_ms() if settings.queue_ttl_ms >= 0 else 0,
        )
        deliveries, others = select_deliverable(queue, leases, records, settings, limits)
        if others and self._host.traces is not None:
            self._host.traces.expired(queue, others, records)
        self._host.settle_soon(queue, others)
        return deliveries

    def _check_topic(self, topic: str, tag: bytes) -> None:
        """Raise StaleReceipt unless a receipt belongs to the topic that has this name now."""
        if self._topics.image.topic(topic).id.bytes[:TOPIC_TAG_BYTES] != tag:
            raise StaleReceipt(f"the receipt belongs to a deleted topic named {topic!r}")
