"""Sends records in batches, idempotent and in order.

    async with Producer(cluster) as producer:
        await producer.prepare("orders")              # so that `send` knows the partitions
        delivery = producer.send("orders", b"value", key=b"key")   # no await: buffered
        if producer.is_full:
            await producer.room()                     # or `await producer.put(...)`, which waits by itself
        written = await delivery                      # RecordMetadata: partition, offset, timestamp
    # leaving the block sends what is buffered and waits for it

Everything runs in callbacks of the event loop: `_pump` sends what is ready, and is called again by records,
responses and timers. Tasks request connections, metadata and producer ids; they end with the producer.
"""

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from time import time
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from alpacamq.client.errors import (
    BufferFull,
    ClientError,
    Closed,
    DelaysDisabled,
    ErrorCode,
    NotAuthorized,
    NotFound,
    RecordTooLarge,
    Refused,
    TransactionAborted,
    Unreachable,
    refusal,
)
from alpacamq.client.options import Acks as Acks
from alpacamq.model.batch import Codec
from alpacamq.model.headers import DELIVER_AT, LANE
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.lanes import Lane
from alpacamq.model.records import Header
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from alpacamq.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

from .batching import RECORD_OVERHEAD_BYTES, Batch, Identity, Partitioner, PartitionQueue
from .cluster import STALE_METADATA, Backoff, Cluster, Topic
from .connection import Connection

# A broker answers a Produce request by this time: before the deadline of the request, so that the outcome
# is known.
_ACK_MS = 20_000
_RETRY_BASE_S = 0.05
_RETRY_CAP_S = 1.0
# An attempt may have been successful after these.
_IN_DOUBT = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
_SEQUENCE_LOST = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
_ALSO_RETRIED = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.THROTTLING_QUOTA_EXCEEDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How records are collected and sent."""

    acks: Acks = Acks.ALL
    compression: Codec = Codec.NONE
    # A batch is sent when it has so many records or bytes, or is so old; while it waits it may grow on.
    batch_records: int = 100
    batch_bytes: int = 64 << 10
    linger_ms: float = 5.0
    # From `send` to the acknowledgement, with all retries.
    delivery_s: float = 30.0
    # Of records that are not acknowledged yet.
    buffer_bytes: int = 8 << 20
    max_request_bytes: int = 1 << 20
    # To each broker.
    requests_in_flight: int = 5


class RecordMetadata(NamedTuple):
    """Where a record was written; the offset is -1 with Acks.NONE, and if the record is delayed."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Delivery:
    """The outcome of one record. Await it, or leave it: errors that are not awaited are raised by `flush`.

    Awaiting raises DeliveryTimedOut, RecordRejected, NotAuthorized, ProducerFenced, SequenceLost, NotFound,
    Closed or another Refused. Cancelling the task that awaits it does not cancel the record.
    """

    __slots__ = ("_batch", "_index", "_producer")

    def __init__(self, producer: "Producer", batch: Batch, index: int) -> None:
        self._producer = producer
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        batch = self._batch
        if not batch.is_done:
            done = asyncio.get_running_loop().create_future()
            batch.on_done.append(partial(_set, done))
            yield from done
        if batch.error is not None:
            self._producer.reported(batch.error)
            raise batch.error
        place = batch.partition
        index = self._index
        return RecordMetadata(place.topic, place.partition, batch.offset_of(index), batch.timestamp_of(index))

    @property
    def is_done(self) -> bool:
        return self._batch.is_done

    def cancel(self) -> bool:
        """Take the record back; False if it has been sent, or may have been."""
        return self._batch.cancel(self._index)


class Enlisting(Protocol):
    """What a transaction adds to a producer."""

    def enlist(self, partition: TopicPartition) -> bool:
        """Return whether a partition is part of the transaction; if it is not, it will be added."""
        ...

    def failed(self, error: Exception) -> None:
        """Take note that a batch was not written, so that the transaction cannot be committed."""
        ...


class _TopicState:
    """The queues of the partitions of one topic."""

    __slots__ = ("delays", "name", "partitioner", "queues")

    def __init__(self, name: str, partitioner: Partitioner, queues: list[PartitionQueue]) -> None:
        self.name = name
        self.partitioner = partitioner
        self.queues = queues
        # Whether records can have a delivery time; None if it is not known.
        self.delays: bool | None = None


class _Leader:
    """Requests to one broker."""

    __slots__ = ("backoff", "connecting", "in_flight", "not_before")

    def __init__(self) -> None:
        self.in_flight = 0
        self.connecting = False
        self.backoff = Backoff()
        self.not_before = 0.0


class Producer:
    """Collects records by partition and sends them to the leaders."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings | None = None,
        *,
        transactional_id: str | None = None,
        random: Random | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings = settings or ProducerSettings()
        self._transactional_id = transactional_id
        self._random = random or Random()  # noqa: S311 - spreads records, keeps no secret
        self._is_idempotent = settings.acks is Acks.ALL
        if transactional_id is not None and not self._is_idempotent:
            raise ValueError("a transaction needs Acks.ALL")
        self._identity: Identity | None = None
        self._topics: dict[str, _TopicState] = {}
        # The queues that have batches.
        self._active: dict[PartitionQueue, None] = {}
        self._leaders: dict[int, _Leader] = {}
        self._buffered_bytes = 0
        self._buffer_bytes = settings.buffer_bytes
        self._batch_bytes = settings.batch_bytes
        self._batch_records = settings.batch_records
        self._waiting_for_room: list[asyncio.Future[None]] = []
        self._is_pump_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Requests that are under way, by what they are about.
        self._under_way: set[str] = set()
        self._unreported: Exception | None = None
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.transaction: Enlisting | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close; a cancelled task does not wait for acknowledgements."""
        if isinstance(error, asyncio.CancelledError):
            self.abandon(Closed("the producer was closed before the record was acknowledged"))
        try:
            await self.close()
        except ClientError:
            if error is None:
                raise

    async def prepare(self, *topics: str, delays: bool = False) -> None:
        """Request the metadata of topics, which `send` needs; with `delays` for records that are delayed.

        Raises NotFound, DelaysDisabled.
        """
        for name in topics:
            state = self._topics.get(name)
            if state is None:
                topic = await self._cluster.topic(name)
                state = self._topics.get(name) or self._add_topic(topic)
            if delays and state.delays is None:
                try:
                    state.delays = (await self._cluster.topic_settings(name)).get("message.delays") == "true"
                except NotAuthorized:
                    state.delays = True  # the settings are hidden from this client
            if delays and not state.delays:
                raise _delays_disabled(name)

    def _add_topic(self, topic: Topic) -> _TopicState:
        queues = [self._queue(topic.name, index) for index in range(len(topic.leaders))]
        state = _TopicState(topic.name, Partitioner(len(queues), self._random), queues)
        self._topics[topic.name] = state
        return state

    def _queue(self, topic: str, index: int) -> PartitionQueue:
        return PartitionQueue(
            TopicPartition(TopicName(topic), index),
            idempotent=self._is_idempotent,
            most_in_flight=self._settings.requests_in_flight,
            transactional=self._transactional_id is not None,
        )

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        priority: Lane | None = None,
    ) -> Delivery:
        """Buffer a record for a prepared topic.

        Raises BufferFull, RecordTooLarge, NotFound, DelaysDisabled, Closed.
        """
        state = self._topics.get(topic)
        if state is None or self._buffered_bytes >= self._buffer_bytes or self._is_closed:
            raise self._cannot_send(topic)
        now = time()
        if timestamp_ms is None:
            timestamp_ms = int(now * 1000)
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            if type(value) is not bytes:
                value = memoryview(value).tobytes()
            size += len(value)
        is_delayed = False
        if delay_ms is not None or deliver_at_ms is not None or priority is not None:
            is_delayed = delay_ms is not None or deliver_at_ms is not None
            if is_delayed and not state.delays:
                raise _delays_disabled(topic)
            if delay_ms is not None:
                deliver_at_ms = int(now * 1000) + delay_ms
            headers = _with_delivery(headers, deliver_at_ms, priority)
        if headers:
            headers = tuple(headers)
            size += sum(len(name) * 3 + len(word or b"") + 10 for name, word in headers)
        if key is not None:
            if type(key) is not bytes:
                key = memoryview(key).tobytes()
            size += len(key)
        if size > self._batch_bytes and size > self._settings.max_request_bytes:
            raise RecordTooLarge(
                f"a record of {size} bytes for {topic!r}: a larger batch_bytes than "
                f"{max(self._batch_bytes, self._settings.max_request_bytes)} would allow it"
            )
        is_free = partition is None and key is None
        if partition is None:
            partition = state.partitioner.sticky if key is None else state.partitioner.of_key(key)
        elif not 0 <= partition < len(state.queues):
            raise NotFound("partition", f"{topic}-{partition}")
        queue = state.queues[partition]
        queued = queue.queued
        if not queued or queued[-1].size_bytes + size > self._batch_bytes or queued[-1].data is not None:
            queue = self._open_batch(state, queue, is_free=is_free)
            queued = queue.queued
        batch = queued[-1]
        records = batch.records
        index = len(records)
        records.append((key, value, headers, timestamp_ms))
        batch.size_bytes += size
        self._buffered_bytes += size
        if index + 1 == self._batch_records:
            self._pump_soon()
        if is_delayed:
            batch.delayed = batch.delayed or set()
            batch.delayed.add(index)
        return Delivery(self, batch, index)

    def _cannot_send(self, topic: str) -> Exception:
        if self._is_closed:
            return Closed("the producer is closed")
        if topic not in self._topics:
            return NotFound("prepared topic", topic, self._topics)
        return BufferFull(
            f"{self._buffered_bytes} bytes of records wait for acknowledgement, "
            f"buffer_bytes={self._buffer_bytes}; await room()"
        )

    def _open_batch(self, state: _TopicState, queue: PartitionQueue, *, is_free: bool) -> PartitionQueue:
        """Begin a batch, in another partition if the record may go to any and the last batch is full."""
        assert self._loop is not None, "the producer is used outside `async with`"
        if queue.queued and is_free and queue is state.queues[state.partitioner.sticky]:
            self._move_on(state)
            queue = state.queues[state.partitioner.sticky]
            if queue.queued and queue.queued[-1].data is None:
                last = queue.queued[-1]
                if last.size_bytes < self._batch_bytes // 2:
                    return queue
        now = self._loop.time()
        settings = self._settings
        urgent_at = now + settings.linger_ms / 1000
        batch = Batch(queue.partition, urgent_at=urgent_at, deadline=now + settings.delivery_s)
        batch.on_done.append(partial(self._finished, batch))
        if queue.queued:
            self._pump_soon()
        queue.queued.append(batch)
        self._active[queue] = None
        self._wake_at(urgent_at)
        if self._cluster.is_stale(state.name):
            self._start(f"metadata of {state.name}", self._refresh([state.name]))
        return queue

    def _move_on(self, state: _TopicState) -> None:
        topic = self._cluster.known_topic(state.name)
        count = len(state.queues)
        leaders = range(count) if topic is None else [
            index for index, leader in enumerate(topic.leaders[:count]) if leader >= 0
        ]  # fmt: skip
        state.partitioner.next_sticky(leaders or range(count))

    async def put(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        priority: Lane | None = None,
    ) -> Delivery:
        """As `send`, but prepares the topic and waits for room. If it is cancelled, nothing is sent."""
        is_delayed = delay_ms is not None or deliver_at_ms is not None
        if topic not in self._topics or is_delayed:
            await self.prepare(topic, delays=is_delayed)
        while self._buffered_bytes >= self._buffer_bytes:
            await self.room()
        return self.send(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            delay_ms=delay_ms,
            deliver_at_ms=deliver_at_ms,
            priority=priority,
        )

    @property
    def is_full(self) -> bool:
        return self._buffered_bytes >= self._buffer_bytes

    async def room(self) -> None:
        """Wait until the buffer has room."""
        # Not one record at a time: half of the buffer is filled while the other half is sent.
        while self._buffered_bytes > self._buffer_bytes // 2 and not self._is_closed:
            self._pump_soon()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_for_room.append(waiter)
            await waiter

    async def flush(self) -> None:
        """Send everything that is buffered and wait for it. Raises the first error that was not awaited."""
        loop = asyncio.get_running_loop()
        unfinished = [batch for queue in self._active for batch in queue.unfinished]
        for batch in unfinished:
            batch.urgent_at = 0.0
        self._pump_soon()
        for batch in unfinished:
            if not batch.is_done:
                done = loop.create_future()
                batch.on_done.append(partial(_set, done))
                await done
        if (error := self._unreported) is not None:
            self._unreported = None
            raise error

    async def close(self) -> None:
        """Flush and end. Idempotent."""
        try:
            if not self._is_closed:
                await self.flush()
        finally:
            self.abandon(Closed("the producer was closed before the record was acknowledged"))
            self._is_closed = True
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks:
                task.cancel()
            while self._tasks:
                await asyncio.wait(self._tasks)
            await self._cluster.release(self)

    def abandon(self, error: Exception) -> None:
        """End what is not acknowledged with an error; what was sent may be written nevertheless."""
        for queue in list(self._active):
            queue.abandon(error)
        self._active.clear()
        if isinstance(error, Closed):
            self._is_closed = True

    def reported(self, error: Exception) -> None:
        """Take note that the application knows an error."""
        if self._unreported is error:
            self._unreported = None

    # For transactions.

    def forget_errors(self) -> None:
        """Do not raise errors of records so far: their transaction is aborted."""
        self._unreported = None

    @property
    def identity(self) -> Identity | None:
        return self._identity

    def take_identity(self, identity: Identity, *, restart: bool) -> None:
        """Use the identity that a transactional id has; with `restart` records are numbered from 0 again."""
        self._identity = identity
        if restart:
            for state in self._topics.values():
                for queue in state.queues:
                    queue.restart()

    async def settled(self) -> None:
        """Wait until no request is in flight."""
        while any(queue.in_flight for queue in self._active) or any(
            leader.in_flight for leader in self._leaders.values()
        ):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_for_room.append(waiter)
            await waiter

    # Sending.

    def pump_soon(self) -> None:
        """Look for batches to send, in the next turn of the event loop."""
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._is_pump_due and self._loop is not None:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _wake_at(self, when: float) -> None:
        assert self._loop is not None
        if self._timer is None or self._timer.cancelled() or self._timer.when() > when:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(when, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._pump_soon()

    def _pump(self) -> None:
        """Send what is ready, as much as may be in flight."""
        self._is_pump_due = False
        assert self._loop is not None
        if self._is_closed:
            return
        now = self._loop.time()
        by_leader: dict[int, list[PartitionQueue]] = {}
        leaderless: set[str] = set()
        for queue in list(self._active):
            queue.expire(now)
            if queue.is_empty:
                del self._active[queue]
                continue
            leader = self._cluster.leader_of(queue.partition)
            if leader < 0:
                leaderless.add(queue.partition.topic)
            else:
                by_leader.setdefault(leader, []).append(queue)
        if leaderless:
            self._start(f"metadata of {', '.join(sorted(leaderless))}", self._refresh(leaderless))
        for node_id, queues in by_leader.items():
            self._send_to(node_id, queues, now)
        due = min((at for queue in self._active if (at := queue.due_at()) is not None), default=None)
        if due is not None:
            # What is overdue waits for another event than time.
            self._wake_at(max(due, now + 0.001) if due > now else now + 0.1)

    def _send_to(self, node_id: int, queues: list[PartitionQueue], now: float) -> None:
        leader = self._leaders.get(node_id)
        if leader is None:
            leader = self._leaders[node_id] = _Leader()
        connection = self._cluster.open_connection(node_id, self)
        if connection is None:
            if not leader.connecting and leader.not_before <= now:
                leader.connecting = True
                self._start(f"connection to {node_id}", self._connect(node_id, leader, queues))
            return
        while leader.in_flight < self._settings.requests_in_flight:
            if self._settings.acks is Acks.NONE and not connection.is_writable:
                connection.when_writable(self._pump_soon)
                return
            batches = self._take_ready(queues, now)
            if not batches:
                return
            self._send_request(connection, leader, batches)

    def _take_ready(self, queues: list[PartitionQueue], now: float) -> list[tuple[PartitionQueue, Batch]]:
        """Return at most one batch of each partition, as many as fit into a request."""
        settings = self._settings
        taken: list[tuple[PartitionQueue, Batch]] = []
        size = 0
        for queue in queues:
            if size >= settings.max_request_bytes:
                break
            if self.transaction is not None and not self.transaction.enlist(queue.partition):
                continue
            is_ready = queue.is_ready(now, self._batch_records, self._batch_bytes)
            batch = queue.next_to_send(now, self._identity, settings.compression, is_ready=is_ready)
            if batch is not None:
                assert batch.data is not None
                taken.append((queue, batch))
                size += len(batch.data)
            elif self._transactional_id is None and queue.needs_identity(self._identity):
                self._start("producer id", self._request_identity())
        return taken

    def _send_request(
        self, connection: Connection, leader: _Leader, batches: list[tuple[PartitionQueue, Batch]]
    ) -> None:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for queue, batch in batches:
            place = queue.partition
            by_topic.setdefault(place.topic, []).append(
                PartitionProduceData(index=place.partition, records=batch.data)
            )
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self._settings.acks,
            timeout_ms=_ACK_MS,
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in by_topic.items()],
        )
        try:
            if self._settings.acks is Acks.NONE:
                connection.tell(request)
                for queue, batch in batches:
                    queue.acknowledge(batch, -1, -1)
                return
            response = connection.start(request, ProduceResponse, timeout_s=self._cluster.request_s)
        except (Unreachable, Closed):
            self._lost(batches, in_doubt=False)
            return
        except Refused as error:
            for queue, batch in batches:
                queue.reject(batch, error)
            return
        leader.in_flight += 1
        response.add_done_callback(partial(self._responded, leader, batches))

    def _lost(self, batches: list[tuple[PartitionQueue, Batch]], *, in_doubt: bool) -> None:
        assert self._loop is not None
        for queue, batch in batches:
            if not queue.has_sent(batch):
                continue
            if in_doubt and not self._is_idempotent:
                # Sent again, it could be written twice.
                place = batch.partition
                queue.reject(batch, Unreachable(f"no acknowledgement from {place}: it may have been written"))
            else:
                queue.retry(batch, 0.0, in_doubt=in_doubt)
            self._cluster.forget([queue.partition])
        self._pump_soon()

    def _responded(
        self,
        leader: _Leader,
        batches: list[tuple[PartitionQueue, Batch]],
        response: "asyncio.Future[ProduceResponse]",
    ) -> None:
        leader.in_flight -= 1
        failure = None if response.cancelled() else response.exception()
        if response.cancelled() or failure is not None:
            self._lost(batches, in_doubt=True)
            self._wake_waiters()
            return
        results = {
            (topic.name, each.index): each
            for topic in response.result().responses
            for each in topic.partition_responses
        }
        for queue, batch in batches:
            if not queue.has_sent(batch):
                continue  # abandoned
            result = results.get((queue.partition.topic, queue.partition.partition))
            if result is None:
                error = ProtocolError(f"the response to Produce lacks {queue.partition}")
                queue.reject(batch, error)
            else:
                self._settle(queue, batch, result)
        self._wake_waiters()
        self._pump_soon()

    def _settle(self, queue: PartitionQueue, batch: Batch, result: PartitionProduceResponse) -> None:
        """Take the result of one batch."""
        assert self._loop is not None
        code = result.error_code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            queue.acknowledge(batch, result.base_offset, result.log_append_time_ms)
            return
        place = queue.partition
        error = refusal(
            f"writing {batch.count} records to {place}",
            code,
            _reasons(result),
            topic=place.topic,
            partition=place.partition,
        )
        if code in STALE_METADATA:
            self._cluster.forget([place])
        if code in _SEQUENCE_LOST and self._is_idempotent and self._transactional_id is None:
            queue.lose_sequence(batch, error)
        elif (error.retriable or code in STALE_METADATA or code in _ALSO_RETRIED) and (
            self._is_idempotent or code not in _IN_DOUBT
        ):
            most_s = min(_RETRY_CAP_S, _RETRY_BASE_S * 2.0**queue.failures)
            queue.failures = min(queue.failures + 1, 30)
            retry_at = self._loop.time() + self._random.uniform(0, most_s)
            queue.retry(batch, retry_at, in_doubt=code in _IN_DOUBT)
        elif code in _SEQUENCE_LOST and self._is_idempotent and queue.unfinished[0] is not batch:
            queue.retry(batch, 0.0, in_doubt=False)
        else:
            batch.is_in_doubt |= code in _IN_DOUBT
            queue.reject(batch, error)

    def _finished(self, batch: Batch) -> None:
        """Take note of the outcome of a batch, as its first callback."""
        self._buffered_bytes -= batch.size_bytes
        if batch.error is not None:
            is_told = isinstance(batch.error, Closed | TransactionAborted)  # by who ends the producer
            if self._unreported is None and not is_told:
                self._unreported = batch.error
            if self.transaction is not None:
                self.transaction.failed(batch.error)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        if self._waiting_for_room:
            waiters, self._waiting_for_room = self._waiting_for_room, []
            for waiter in waiters:
                _set(waiter)

    # Tasks.

    def _start(self, about: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a task unless one is about the same; afterwards there may be something to send."""
        if about in self._under_way or self._is_closed:
            work.close()
            return
        self._under_way.add(about)
        task = self._cluster.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, about))

    def _ended(self, about: str, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._under_way.discard(about)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.abandon(error if isinstance(error, Exception) else Closed(str(error)))
        if not self._is_closed:
            self._pump_soon()

    async def _connect(self, node_id: int, leader: _Leader, queues: list[PartitionQueue]) -> None:
        try:
            await self._cluster.connection(node_id, self)
            leader.backoff.reset()
        except ClientError as error:
            if not error.retriable:
                raise
            # Another broker may lead the partitions by now.
            self._cluster.forget([queue.partition for queue in queues])
            await leader.backoff.wait()
        finally:
            leader.connecting = False

    async def _refresh(self, topics: Sequence[str] | set[str]) -> None:
        try:
            await self._cluster.refresh(topics)
        except ClientError as error:
            if not error.retriable:
                raise
        backoff_s = 0.0
        for name in topics:
            topic = self._cluster.known_topic(name)
            state = self._topics.get(name)
            if topic is None or any(leader < 0 for leader in topic.leaders):
                backoff_s = 0.1
            if topic is not None and state is not None:
                for index in range(len(state.queues), len(topic.leaders)):
                    state.queues.append(self._queue(name, index))
                if state.partitioner.partitions != len(state.queues):
                    state.partitioner.grow(len(state.queues))
        if backoff_s:
            await asyncio.sleep(self._random.uniform(backoff_s / 2, backoff_s))

    async def _request_identity(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        try:
            answer = await self._cluster.call_any(request, InitProducerIdResponse)
            if answer.error_code:
                raise refusal("requesting a producer id", answer.error_code)
        except ClientError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(self._random.uniform(0, 0.2))
            return
        self._identity = Identity(answer.producer_id, answer.producer_epoch)


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _reasons(result: PartitionProduceResponse) -> str | None:
    """Return why a batch was refused, with the first records at fault."""
    reasons = [each.batch_index_error_message for each in result.record_errors[:3]]
    texts = [text for text in (result.error_message, *reasons) if text]
    return "; ".join(dict.fromkeys(texts)) or None


def _with_delivery(
    headers: Sequence[Header], deliver_at_ms: int | None, priority: Lane | None
) -> tuple[Header, ...]:
    found = tuple(headers)
    if deliver_at_ms is not None:
        found += (Header(DELIVER_AT, str(deliver_at_ms).encode()),)
    if priority is not None:
        found += (Header(LANE, priority.text.encode()),)
    return found


def _delays_disabled(topic: str) -> DelaysDisabled:
    return DelaysDisabled(
        f"topic {topic!r} ignores the delivery time of records; set message.delays=true for it, "
        "and prepare(..., delays=True) before `send`"
    )
