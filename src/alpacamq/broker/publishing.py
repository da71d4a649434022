"""Publishes messages of the HTTP and SQS APIs: chooses partitions, builds batches, schedules delays."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import msgspec

from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.batch import HEADER_BYTES, TRANSACTIONAL, Codec, stamp_producer
from alpacamq.model.errors import (
    AlpacaError,
    InvalidDelay,
    InvalidRecord,
    InvalidTimestamp,
    NotLeader,
    PartitionNotReady,
    UnknownTopic,
)
from alpacamq.model.headers import LANE
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.lanes import Lane
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.ports import Clock
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.model.topics import INT64_MAX, INTERNAL_TOPICS, TopicConfig
from alpacamq.telemetry.tracing import now_us, read_traceparent

from .delay.service import DelayedMessage, Delays
from .partition.appends import Acks, Append
from .partition.leader import Partition, WriteBatcher
from .partition.validation import admit, check_timestamps, check_writable, compression_level, stored_codec
from .remote.appends import Placed, RemoteAppends, placed
from .remote.transactional_appends import TransactionalAppends, TransactionalProducer
from .schemas.checks import SchemaChecks
from .topics import Topics
from .tracing.partition import TRACEPARENT, Origin

# Upper bound of a record's size beside key, value and headers: lengths, deltas, counts.
_RECORD_BYTES = 48
_HEADER_BYTES = 10


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be published."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None  # None: by key as Kafka's clients do; without a key, round robin
    timestamp_ms: int | None = None  # None: now
    lane: Lane | None = None
    deliver_at_ms: int | None = None  # None or a time in the past: now

    @property
    def all_headers(self) -> tuple[Header, ...]:
        """The headers with the lane among them."""
        if self.lane is None:
            return self.headers
        others = tuple(header for header in self.headers if header.key != LANE)
        return (*others, Header(LANE, self.lane.text.encode()))

    def fault(self, config: TopicConfig, now_ms: int) -> AlpacaError | None:
        """Return the error for which the topic would refuse this message, and its whole batch with it."""
        if self.key is None and config.is_compacted:
            return InvalidRecord("the message has no key, which a compacted topic needs")
        if self.timestamp_ms is None or config.message_timestamp_type == "LogAppendTime":
            return None
        if not 0 <= self.timestamp_ms <= INT64_MAX:
            return InvalidTimestamp(f"timestamp {self.timestamp_ms} is not in milliseconds since 1970")
        try:
            check_timestamps(self.timestamp_ms, self.timestamp_ms, config, now_ms)
        except InvalidTimestamp as error:
            return error.with_traceback(None)
        return None


class Entry(msgspec.Struct, frozen=True):
    """A message's index among the results of its call, and its record."""

    at: int
    record: Record

    @property
    def max_bytes(self) -> int:
        """An upper bound of the record's size in a batch."""
        _, _, key, value, headers = self.record
        size = _RECORD_BYTES + len(key or b"") + len(value or b"")
        for name, content in headers:
            size += 4 * len(name) + len(content or b"") + _HEADER_BYTES
        return size


def in_batches(entries: Sequence[Entry], limit_bytes: int) -> Iterator[Sequence[Entry]]:
    """Split into as few batches as surely fit the limit; a message larger than the limit is alone."""
    first = 0
    size = HEADER_BYTES
    for index, entry in enumerate(entries):
        size += entry.max_bytes
        if size > limit_bytes and index > first:
            yield entries[first:index]
            first = index
            size = HEADER_BYTES + entry.max_bytes
    yield entries[first:]


def packed(
    entries: Sequence[Entry], codec: Codec = Codec.NONE, level: int | None = None, attributes: int = 0
) -> bytearray:
    """Pack messages into one batch, in order."""
    records = [entry.record._replace(offset=delta) for delta, entry in enumerate(entries)]
    return write_batch(records, codec=codec, level=level, attributes=attributes)


__all__ = ["Message", "Publication", "Published", "Publisher", "TransactionalProducer"]

# How long a call waits until its messages are on all replicas in sync.
REPLICATION_TIMEOUT_MS = 30_000
# Compressing more than this would block the event loop.
_COMPRESSED_ON_LOOP_BYTES = 16 << 10
_UNKNOWN_ORIGIN = Origin()


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a published message. A delayed one has an id within its partition instead of an offset."""

    topic: str
    partition: int
    offset: int | None
    timestamp_ms: int
    delayed_id: int | None = None
    deliver_at_ms: int | None = None
    trace_id: str | None = None


Result = Published | AlpacaError
# A partition that this broker leads, or one of another broker.
Target = Partition | PartitionId


@dataclass(slots=True)
class _Batch:
    """Messages of one call that are appended to one partition together."""

    target: Target
    index: int
    entries: Sequence[Entry]
    data: bytearray
    # Of a partition that this broker leads.
    append: Append | None = None
    outcome: Placed | AlpacaError | None = None


class Publication:
    """The results of one `publish` in the order of its messages, and the number of pending batches."""

    def __init__(
        self,
        topic: str,
        count: int,
        origin: Origin,
        *,
        stamps_time: bool,
        may_send: Callable[[], bool] | None = None,
        acks: Acks = Acks.ALL,
        timeout_ms: int = REPLICATION_TIMEOUT_MS,
    ) -> None:
        self.topic = topic
        self.origin = origin
        # Of partitions that this broker leads; others always have all replicas in sync.
        self.acks = acks
        self.timeout_ms = timeout_ms
        # Whether the topic has the broker's timestamps.
        self.stamps_time = stamps_time
        # Asked before batches are sent to other brokers.
        self.may_send = may_send
        self.received_us = now_us()
        self.results: list[Result | None] = [None] * count
        self._batches: list[_Batch] = []
        self._missing = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def refuse(self, entries: Sequence[Entry], error: AlpacaError) -> None:
        for entry in entries:
            self.results[entry.at] = error

    def staged(self, batch: _Batch) -> None:
        self._batches.append(batch)
        self._missing += 1

    def done(self) -> None:
        """Count a batch that is durable or refused."""
        self._missing -= 1
        if not self._missing and not self._done.done():
            self._done.set_result(None)

    async def finished(self) -> list[Result]:
        """Return the result of each message, in order, once every batch has one."""
        if self._missing:
            await self._done
        return self._all_results()

    def when_done(self, act: Callable[[list[Result]], None]) -> None:
        """Call something with what `finished` returns."""
        if self._missing:
            self._done.add_done_callback(lambda _: act(self._all_results()))
        else:
            act(self._all_results())

    def _all_results(self) -> list[Result]:
        for batch in self._batches:
            self._set_results(batch)
        return [_certain(result) for result in self.results]

    def _set_results(self, batch: _Batch) -> None:
        outcome = batch.outcome if batch.append is None else _placed(batch.target, batch.append)
        assert outcome is not None
        if isinstance(outcome, AlpacaError):
            self.refuse(batch.entries, outcome)
            return
        for delta, entry in enumerate(batch.entries):
            offset = outcome.base_offset + delta
            self.results[entry.at] = Published(
                topic=self.topic,
                partition=batch.index,
                offset=offset,
                timestamp_ms=outcome.timestamp_ms if self.stamps_time else entry.record.timestamp_ms,
                trace_id=outcome.traces.get(offset),
            )


def _placed(target: Target, append: Append) -> Placed | AlpacaError:
    assert isinstance(target, Partition)
    return placed(target, append)


class Publisher:
    """Appends messages to topics, as durable as each topic promises when `publish` returns."""

    def __init__(
        self,
        topics: Topics,
        appends: RemoteAppends,
        transactional: TransactionalAppends,
        delays: Delays,
        staged: WriteBatcher,
        schema_checks: SchemaChecks,
        *,
        clock: Clock,
        executor: Executor,
        auto_create_topics: bool,
        check_storage: Callable[[str], None],
    ) -> None:
        """`check_storage` raises an error for a topic whose tenant may not store more."""
        self._check_storage = check_storage
        self._topics = topics
        self._appends = appends
        self._transactional = transactional
        self._delays = delays
        self._staged = staged
        self._schema_checks = schema_checks
        self._clock = clock
        self._executor = executor
        self._auto_create_topics = auto_create_topics
        self._turns: dict[str, int] = {}

    async def publish(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        producer: TransactionalProducer | None = None,
        origin: Origin = _UNKNOWN_ORIGIN,
        traceparent: bytes | None = None,
        may_send: Callable[[], bool] | None = None,
    ) -> list[Result]:
        """Publish messages and return one result each, in order.

        Raises UnknownTopic if the topic does not exist and is not created automatically. Messages of one
        partition become one batch, or as few as max.message.bytes allows. `traceparent` is the context of the
        call, for messages without their own. `may_send` is asked before batches are sent to other brokers.
        """
        check_writable(TopicPartition(TopicName(topic), 0))
        return await self.append(
            topic,
            messages,
            producer=producer,
            origin=origin,
            traceparent=traceparent,
            may_send=may_send,
        )

    async def append(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        producer: TransactionalProducer | None = None,
        origin: Origin = _UNKNOWN_ORIGIN,
        traceparent: bytes | None = None,
        may_send: Callable[[], bool] | None = None,
    ) -> list[Result]:
        """Publish messages of the broker itself, which may write to internal topics."""
        begun = await self._begin(
            topic,
            messages,
            producer=producer,
            origin=origin,
            traceparent=traceparent,
            may_send=may_send,
            acks=Acks.ALL,
            timeout_ms=REPLICATION_TIMEOUT_MS,
        )
        return await begun.finished()

    async def begin(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        producer: TransactionalProducer | None = None,
        origin: Origin = _UNKNOWN_ORIGIN,
        traceparent: bytes | None = None,
        acks: Acks = Acks.ALL,
        timeout_ms: int = REPLICATION_TIMEOUT_MS,
    ) -> Publication:
        """Do the same as `publish` without waiting for acknowledgements.

        Messages of one partition are appended in the order of these calls, if each is made after the one
        before has returned.
        """
        check_writable(TopicPartition(TopicName(topic), 0))
        return await self._begin(
            topic,
            messages,
            producer=producer,
            origin=origin,
            traceparent=traceparent,
            may_send=None,
            acks=acks,
            timeout_ms=timeout_ms,
        )

    async def _begin(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        producer: TransactionalProducer | None,
        origin: Origin,
        traceparent: bytes | None,
        may_send: Callable[[], bool] | None,
        acks: Acks,
        timeout_ms: int,
    ) -> Publication:
        partitions: Sequence[Target] = self._topics.partitions_of(topic) or await self._targets(topic)
        config = self._topics.config_of(self._topics.image.topic(topic))
        self._check_storage(topic)
        by_broker = config.message_timestamp_type == "LogAppendTime"
        call = Publication(
            topic,
            len(messages),
            origin,
            stamps_time=by_broker,
            may_send=may_send,
            acks=acks,
            timeout_ms=timeout_ms,
        )
        refused = await self._refused_by_schema(topic, config, messages) if config.checks_schemas else {}
        context = () if read_traceparent(traceparent) is None else (Header(TRACEPARENT, traceparent),)
        now_ms, time_ms = self._clock.now_ms(), self._delays.now_ms()
        immediate: dict[int, list[Entry]] = {}
        delayed: list[tuple[int, DelayedMessage]] = []
        spread: int | None = None  # the partition of this call's messages without a key
        for at, message in enumerate(messages):
            if (fault := message.fault(config, now_ms) or refused.get(at)) is not None:
                call.results[at] = fault
                continue
            if (index := message.partition) is None:
                if message.key is not None:
                    index = partition_for_key(message.key, len(partitions))
                else:
                    index = spread = self.next_in_turn(topic, len(partitions)) if spread is None else spread
            elif not 0 <= index < len(partitions):
                call.results[at] = UnknownTopic(
                    f"topic {topic!r} has {len(partitions)} partitions, no partition {index}"
                )
                continue
            headers = message.all_headers
            if context and not any(header.key == TRACEPARENT for header in headers):
                headers += context
            due_ms = message.deliver_at_ms
            if due_ms is None and config.queue_delay_ms:
                due_ms = time_ms + config.queue_delay_ms
            if due_ms is not None and due_ms > time_ms:
                if producer is not None:
                    call.results[at] = InvalidDelay("a delayed message cannot be part of a transaction")
                else:
                    delayed.append((at, _delayed(topic, index, due_ms, message, headers)))
                continue
            timestamp_ms = now_ms if message.timestamp_ms is None else message.timestamp_ms
            record = Record(0, timestamp_ms, message.key, message.value, headers)
            immediate.setdefault(index, []).append(Entry(at, record))
        if immediate:
            await self._append(call, partitions, immediate, config, producer)
        if delayed:
            await self._schedule(call, delayed, config, now_ms)
        return call

    async def _refused_by_schema(
        self, topic: str, config: TopicConfig, messages: Sequence[Message]
    ) -> Mapping[int, AlpacaError]:
        """Return the errors of messages that the topic's schemas do not allow."""
        if topic in INTERNAL_TOPICS:
            return {}  # written by the broker itself
        contents = [(0, message.key, message.value, message.headers) for message in messages]
        try:
            return await self._schema_checks.check_messages(topic, config, contents)
        except AlpacaError as error:
            return dict.fromkeys(range(len(messages)), error.with_traceback(None))

    def topic_deleted(self, topic: str) -> None:
        self._turns.pop(topic, None)

    async def _targets(self, name: str) -> Sequence[Target]:
        """Return the partitions of a topic, which is created if the settings allow it."""
        topic = self._topics.image.topics.get(TopicName(name))
        if topic is None:
            if not self._auto_create_topics:
                raise self._topics.absence(name.encode(), 0)
            topic = await self._topics.get_or_create(name)
        led = self._topics.ready_partitions_of(name)
        return [led.get(index) or PartitionId(topic.id, index) for index in range(topic.partitions)]

    def next_in_turn(self, topic: str, count: int) -> int:
        """Return the partition of the next messages without a key."""
        turn = self._turns.get(topic, -1) + 1
        self._turns[topic] = turn
        return turn % count

    async def _append(
        self,
        call: Publication,
        partitions: Sequence[Target],
        immediate: dict[int, list[Entry]],
        config: TopicConfig,
        producer: TransactionalProducer | None,
    ) -> None:
        """Begin to append every batch of the call."""
        codec, level = stored_codec(config) or Codec.NONE, compression_level(config)
        attributes = 0 if producer is None else TRANSACTIONAL
        batches = []
        for index, all_entries in immediate.items():
            for entries in in_batches(all_entries, config.max_message_bytes):
                if codec is Codec.NONE or sum(e.max_bytes for e in entries) <= _COMPRESSED_ON_LOOP_BYTES:
                    data = packed(entries, codec, level, attributes)
                else:
                    data = await asyncio.get_running_loop().run_in_executor(
                        self._executor, packed, entries, codec, level, attributes
                    )
                batches.append(_Batch(partitions[index], index, entries, data))
        if producer is not None:
            await self._append_in_transaction(call, batches, config, producer)
            return
        for batch in batches:
            if isinstance(batch.target, Partition):
                self._stage(call, batch, batch.target)
            else:
                self._submit(call, batch, batch.target, config)
        self._staged.commit_soon()

    async def _append_in_transaction(
        self,
        call: Publication,
        batches: Sequence[_Batch],
        config: TopicConfig,
        producer: TransactionalProducer,
    ) -> None:
        by_place: dict[PartitionId, list[_Batch]] = {}
        topic_id = self._topics.image.topic(call.topic).id
        for batch in batches:
            stamp_producer(batch.data, producer.producer_id, producer.producer_epoch, 0)
            if self._is_admitted(call, batch, config):
                by_place.setdefault(PartitionId(topic_id, batch.index), []).append(batch)
        appended = await self._transactional.append(
            producer,
            {place: [batch.data for batch in some] for place, some in by_place.items()},
            call.origin,
        )
        for place, some in by_place.items():
            for batch, outcome in zip(some, appended[place], strict=True):
                batch.outcome = outcome
                call.staged(batch)
                call.done()

    def _stage(self, call: Publication, batch: _Batch, partition: Partition) -> None:
        try:
            data, header = admit(batch.data, partition.config, self._clock.now_ms())
        except AlpacaError as error:
            call.refuse(batch.entries, error.with_traceback(None))
            return
        trace = None
        if (traces := partition.traces) is not None:
            records = [entry.record for entry in batch.entries]
            trace = traces.publish_trace(records, call.origin, call.received_us)

        def ended() -> None:
            # Only if nothing was written: the next leader does not recognise it.
            if isinstance(append.outcome, NotLeader) and append.data and not self._appends.is_alone:
                batch.append = None
                topic = self._topics.image.topics.get(TopicName(call.topic))
                if topic is not None:
                    self._submit(call, batch, PartitionId(topic.id, batch.index), partition.config)
                else:
                    batch.outcome = append.outcome
            call.done()

        append = batch.append = Append(data, header, ended, trace, call.acks, call.timeout_ms)
        call.staged(batch)
        if partition.stage(append):
            self._staged.stage(partition)

    def _is_admitted(self, call: Publication, batch: _Batch, config: TopicConfig) -> bool:
        try:
            admit(batch.data, config, self._clock.now_ms())
        except AlpacaError as error:
            call.refuse(batch.entries, error.with_traceback(None))
            return False
        return True

    def _submit(self, call: Publication, batch: _Batch, place: PartitionId, config: TopicConfig) -> None:
        """Send a batch to the broker that leads its partition."""
        absence = self._topics.absence(place.topic_id.bytes, place.partition)
        is_starting = self._appends.is_alone or self._topics.is_recovering
        if isinstance(absence, PartitionNotReady) and is_starting:
            call.refuse(batch.entries, absence)
            return
        if not self._is_admitted(call, batch, config):
            return

        def ended(outcome: "asyncio.Future[Placed | AlpacaError]") -> None:
            batch.outcome = outcome.result()
            call.done()

        call.staged(batch)
        self._appends.submit(
            place,
            batch.data,
            call.origin,
            timeout_ms=call.timeout_ms,
            may_send=call.may_send,
        ).add_done_callback(ended)

    async def _schedule(
        self,
        call: Publication,
        delayed: Sequence[tuple[int, DelayedMessage]],
        config: TopicConfig,
        now_ms: int,
    ) -> None:
        """Schedule delayed messages. Each is validated on its own: an error does not affect the others."""
        fitting = []
        for at, message in delayed:
            record = Record(0, now_ms, message.key, message.value, message.headers)
            try:
                admit(packed([Entry(at, record)]), config, now_ms)
            except AlpacaError as error:
                call.results[at] = error.with_traceback(None)
            else:
                fitting.append((at, message))
        await self._hand_over(call, fitting, now_ms)

    async def _hand_over(
        self, call: Publication, messages: Sequence[tuple[int, DelayedMessage]], now_ms: int
    ) -> None:
        if not messages:
            return
        try:
            ids = await self._delays.schedule(
                [message for _, message in messages], call.origin, call.received_us
            )
        except InvalidDelay as error:
            if len(messages) == 1:
                call.results[messages[0][0]] = error.with_traceback(None)
                return
            for one in messages:
                await self._hand_over(call, [one], now_ms)
            return
        except AlpacaError as error:
            for at, _ in messages:
                call.results[at] = error.with_traceback(None)
            return
        for (at, message), delayed_id in zip(messages, ids, strict=True):
            call.results[at] = Published(
                topic=message.topic,
                partition=message.partition,
                offset=None,
                timestamp_ms=now_ms,
                delayed_id=delayed_id,
                deliver_at_ms=message.due_ms,
                trace_id=self._delays.trace_of(message, delayed_id),
            )


def _delayed(
    topic: str, partition: int, due_ms: int, message: Message, headers: tuple[Header, ...]
) -> DelayedMessage:
    return DelayedMessage(
        topic=topic,
        partition=partition,
        due_ms=due_ms,
        key=message.key,
        value=message.value,
        headers=headers,
    )


def _certain(result: Result | None) -> Result:
    assert result is not None
    return result
