"""Publishes messages of the HTTP and SQS APIs: chooses partitions, builds batches, schedules delays."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import cast

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
from alpacamq.model.records import Header, NewRecord, write_new_batch
from alpacamq.model.topics import INT64_MAX, INTERNAL_TOPICS, TopicConfig
from alpacamq.telemetry.tracing import now_us, read_traceparent

from .delay.service import DelayedMessage, Delays
from .later import Later
from .partition.appends import Acks, Append
from .partition.leader import Partition, WriteBatcher
from .partition.validation import (
    admit,
    admit_own,
    check_timestamps,
    check_writable,
    compression_level,
    stored_codec,
)
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


def max_bytes(record: NewRecord) -> int:
    """Return an upper bound of a record's size in a batch."""
    key, value, headers, _ = record
    size = _RECORD_BYTES
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, content in headers:
        size += 4 * len(name) + len(content or b"") + _HEADER_BYTES
    return size


def in_batches(records: Sequence[NewRecord], limit_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield first, end and an upper bound of the size of as few batches as surely fit the limit.

    A record larger than the limit is alone.
    """
    first = 0
    size = HEADER_BYTES
    for index, record in enumerate(records):
        bytes_more = max_bytes(record)
        if size + bytes_more > limit_bytes and index > first:
            yield first, index, size
            first = index
            size = HEADER_BYTES
        size += bytes_more
    yield first, len(records), size


__all__ = ["Message", "Publication", "Published", "Publisher", "TransactionalProducer"]

# How long a call waits until its messages are on all replicas in sync.
REPLICATION_TIMEOUT_MS = 30_000
# Compressing more than this would block the event loop.
_COMPRESSED_ON_LOOP_BYTES = 16 << 10
_UNKNOWN_ORIGIN = Origin()


class Published(msgspec.Struct, frozen=True):
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
    # The places of its messages among the results of the call.
    places: Sequence[int]
    records: Sequence[NewRecord]
    data: bytearray
    # Of a partition that this broker leads.
    append: Append | None = None
    outcome: Placed | AlpacaError | None = None


# The messages of one partition: their places among the results of the call, and their records.
_Sorted = tuple[list[int], list[NewRecord]]


class Publication:
    """The results of one `publish` in the order of its messages, and the number of pending batches."""

    __slots__ = (
        "_batches", "_missing", "_then", "acks", "may_send", "origin", "received_us", "results",
        "stamps_time", "timeout_ms", "topic",
    )  # fmt: skip

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
        self._then: Callable[[], None] | None = None

    def refuse(self, places: Iterable[int], error: AlpacaError) -> None:
        for place in places:
            self.results[place] = error

    def staged(self, batch: _Batch) -> None:
        self._batches.append(batch)
        self._missing += 1

    def done(self) -> None:
        """Count a batch that is durable or refused."""
        self._missing -= 1
        if not self._missing and self._then is not None:
            then, self._then = self._then, None
            then()

    async def finished(self) -> list[Result]:
        """Return the result of each message, in order, once every batch has one."""
        if self._missing:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._then = lambda: None if done.done() else done.set_result(None)
            await done
        return self._all_results()

    def when_done(self, act: Callable[[list[Result]], None]) -> None:
        """Call something with what `finished` returns, which must not raise anything."""
        if self._missing:
            self._then = lambda: act(self._all_results())
        else:
            act(self._all_results())

    def _all_results(self) -> list[Result]:
        for batch in self._batches:
            self._set_results(batch)
        return cast("list[Result]", self.results)

    def _set_results(self, batch: _Batch) -> None:
        outcome = batch.outcome if batch.append is None else _placed(batch.target, batch.append)
        assert outcome is not None
        if isinstance(outcome, AlpacaError):
            self.refuse(batch.places, outcome)
            return
        topic, index, results, traces = self.topic, batch.index, self.results, outcome.traces
        time_ms = outcome.timestamp_ms if self.stamps_time else None
        for offset, (place, record) in enumerate(
            zip(batch.places, batch.records, strict=True), outcome.base_offset
        ):
            results[place] = Published(
                topic,
                index,
                offset,
                record[3] if time_ms is None else time_ms,
                trace_id=traces.get(offset) if traces else None,
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
        call = Publication(
            topic,
            len(messages),
            origin,
            stamps_time=config.message_timestamp_type == "LogAppendTime",
            may_send=may_send,
            acks=acks,
            timeout_ms=timeout_ms,
        )
        refused = await self._refused_by_schema(topic, config, messages) if config.checks_schemas else {}
        now_ms = self._clock.now_ms()
        immediate, delayed = self._sorted(
            call, messages, len(partitions), config, now_ms, traceparent, refused=refused, producer=producer
        )
        if immediate:
            await self._append(call, partitions, immediate, config, producer)
        if delayed:
            await self._schedule(call, delayed, config, now_ms)
        return call

    def publish_later(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        origin: Origin = _UNKNOWN_ORIGIN,
        traceparent: bytes | None = None,
    ) -> Later[list[Result]]:
        """Do the same as `publish`, without a task if nothing but the disk has to be waited for."""
        try:
            begun = self._begin_now(topic, messages, origin=origin, traceparent=traceparent)
        except AlpacaError as error:
            return Later.of(error.with_traceback(None))
        if begun is None:
            return Later.of(self.publish(topic, messages, origin=origin, traceparent=traceparent))
        later: Later[list[Result]] = Later()
        begun.when_done(later.set_result)
        return later

    def _begin_now(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        origin: Origin = _UNKNOWN_ORIGIN,
        traceparent: bytes | None = None,
    ) -> Publication | None:
        """Do the same as `begin`; return None if that has to wait for something, and has not begun.

        It need not wait for most topics: those that are led here, without schemas, delays and compression.
        """
        found = self._topics.image.topics.get(TopicName(topic))
        if found is None or topic in INTERNAL_TOPICS:
            return None
        partitions = self._topics.led_of(topic)
        if len(partitions) < found.partitions:
            return None
        config = self._topics.config_of(found)
        if config.checks_schemas or config.queue_delay_ms or stored_codec(config) not in (None, Codec.NONE):
            return None
        for message in messages:
            if message.deliver_at_ms:
                return None
        self._check_storage(topic)
        call = Publication(
            topic, len(messages), origin, stamps_time=config.message_timestamp_type == "LogAppendTime"
        )
        now_ms = self._clock.now_ms()
        immediate, _ = self._sorted(call, messages, found.partitions, config, now_ms, traceparent)
        for index, (places, records) in immediate.items():
            partition = partitions[index]
            if len(records) == 1:
                batch = _Batch(partition, index, places, records, write_new_batch(records))
                self._stage(call, batch, partition, now_ms)
                continue
            for first, end, _ in in_batches(records, config.max_message_bytes):
                some = records[first:end]
                batch = _Batch(partition, index, places[first:end], some, write_new_batch(some))
                self._stage(call, batch, partition, now_ms)
        self._staged.commit_soon()
        return call

    def _sorted(
        self,
        call: Publication,
        messages: Sequence[Message],
        count: int,
        config: TopicConfig,
        now_ms: int,
        traceparent: bytes | None,
        *,
        refused: Mapping[int, AlpacaError] = MappingProxyType({}),
        producer: TransactionalProducer | None = None,
    ) -> tuple[dict[int, _Sorted], list[tuple[int, DelayedMessage]]]:
        """Return the messages to append by partition, of which there are `count`, and those to delay.

        The others have a result.
        """
        topic, needs_key = call.topic, config.is_compacted
        context = () if read_traceparent(traceparent) is None else (Header(TRACEPARENT, traceparent),)
        immediate: dict[int, _Sorted] = {}
        delayed: list[tuple[int, DelayedMessage]] = []
        spread: int | None = None  # the partition of this call's messages without a key
        time_ms: int | None = None
        for at, message in enumerate(messages):
            key, timestamp_ms = message.key, message.timestamp_ms
            if (timestamp_ms is not None or needs_key or refused) and (
                fault := message.fault(config, now_ms) or refused.get(at)
            ) is not None:
                call.results[at] = fault
                continue
            if (index := message.partition) is None:
                if key is not None:
                    index = partition_for_key(key, count)
                else:
                    index = spread = self.next_in_turn(topic, count) if spread is None else spread
            elif not 0 <= index < count:
                call.results[at] = UnknownTopic(
                    f"topic {topic!r} has {count} partitions, no partition {index}"
                )
                continue
            headers = message.headers if message.lane is None else message.all_headers
            if context and not any(header.key == TRACEPARENT for header in headers):
                headers += context
            due_ms = message.deliver_at_ms
            if due_ms or (due_ms is None and config.queue_delay_ms):
                if time_ms is None:
                    time_ms = self._delays.now_ms()
                due_ms = time_ms + config.queue_delay_ms if due_ms is None else due_ms
                if due_ms > time_ms:
                    if producer is not None:
                        call.results[at] = InvalidDelay("a delayed message cannot be part of a transaction")
                    else:
                        delayed.append((at, _delayed(topic, index, due_ms, message, headers)))
                    continue
            if (found := immediate.get(index)) is None:
                found = immediate[index] = [], []
            found[0].append(at)
            found[1].append((key, message.value, headers, now_ms if timestamp_ms is None else timestamp_ms))
        return immediate, delayed

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
        immediate: Mapping[int, _Sorted],
        config: TopicConfig,
        producer: TransactionalProducer | None,
    ) -> None:
        """Begin to append every batch of the call."""
        codec = stored_codec(config) or Codec.NONE
        attributes = 0 if producer is None else TRANSACTIONAL
        pack = partial(write_new_batch, codec=codec, level=compression_level(config), attributes=attributes)
        batches = []
        for index, (places, records) in immediate.items():
            for first, end, size in in_batches(records, config.max_message_bytes):
                some = records[first:end]
                if codec is Codec.NONE or size <= _COMPRESSED_ON_LOOP_BYTES:
                    data = pack(some)
                else:
                    data = await asyncio.get_running_loop().run_in_executor(self._executor, pack, some)
                batches.append(_Batch(partitions[index], index, places[first:end], some, data))
        if producer is not None:
            await self._append_in_transaction(call, batches, config, producer)
            return
        now_ms = self._clock.now_ms()
        for batch in batches:
            if isinstance(batch.target, Partition):
                self._stage(call, batch, batch.target, now_ms)
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

    def _stage(self, call: Publication, batch: _Batch, partition: Partition, now_ms: int) -> None:
        try:
            data, header = admit_own(batch.data, partition.config, now_ms)
        except AlpacaError as error:
            call.refuse(batch.places, error.with_traceback(None))
            return
        trace = None
        if (traces := partition.traces) is not None:
            trace = traces.publish_trace(batch.records, call.origin, call.received_us)

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
            call.refuse(batch.places, error.with_traceback(None))
            return False
        return True

    def _submit(self, call: Publication, batch: _Batch, place: PartitionId, config: TopicConfig) -> None:
        """Send a batch to the broker that leads its partition."""
        absence = self._topics.absence(place.topic_id.bytes, place.partition)
        is_starting = self._appends.is_alone or self._topics.is_recovering
        if isinstance(absence, PartitionNotReady) and is_starting:
            call.refuse(batch.places, absence)
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
            record = (message.key, message.value, message.headers, now_ms)
            try:
                admit_own(write_new_batch([record]), config, now_ms)
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
