"""Publishes messages of the HTTP and SQS APIs: chooses partitions, builds batches, schedules delays."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import msgspec

from alpacamq.coordinator.transactions.transaction import AddPartitions, ProducerIdentity
from alpacamq.model.batch import HEADER_BYTES, TRANSACTIONAL, Codec, stamp_producer
from alpacamq.model.errors import AlpacaError, InvalidDelay, InvalidRecord, InvalidTimestamp, UnknownTopic
from alpacamq.model.headers import LANE
from alpacamq.model.lanes import Lane
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.ports import Clock
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.model.topics import INT64_MAX, TopicConfig
from alpacamq.telemetry.tracing import now_us, read_traceparent

from .delay.service import DelayedMessage, Delays
from .partition.appends import Append
from .partition.leader import Partition, WriteBatcher
from .partition.validation import admit, check_timestamps, check_writable, compression_level, stored_codec
from .topics import Topics
from .tracing.partition import TRACEPARENT, Origin
from .transactions import Errors, Transactions, retry_if_marker_written

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


__all__ = ["Message", "Published", "Publisher", "TransactionalProducer"]

# How long a call waits until its messages are on all replicas in sync.
REPLICATION_TIMEOUT_MS = 30_000
# Compressing more than this would block the event loop.
_COMPRESSED_ON_LOOP_BYTES = 16 << 10
_SEQUENCE_MASK = 0x7FFF_FFFF
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


class TransactionalProducer(msgspec.Struct, frozen=True, kw_only=True):
    """The producer of a transaction; the partitions it writes to are added to the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


Result = Published | AlpacaError


@dataclass(slots=True)
class _Batch:
    """Messages of one call that are appended to one partition together."""

    partition: Partition
    entries: Sequence[Entry]
    data: bytearray
    append: Append | None = None


class _Call:
    """The results of one `publish` in the order of its messages, and the number of pending batches."""

    def __init__(self, topic: str, count: int, origin: Origin) -> None:
        self.topic = topic
        self.origin = origin
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

    async def finished(self) -> None:
        """Return once every batch has a result."""
        if self._missing:
            await self._done
        for batch in self._batches:
            self._set_results(batch)

    def _set_results(self, batch: _Batch) -> None:
        assert batch.append is not None
        outcome = batch.append.outcome
        if outcome is None or isinstance(outcome, AlpacaError):
            assert outcome is not None
            self.refuse(batch.entries, outcome)
            return
        by_broker = batch.partition.config.message_timestamp_type == "LogAppendTime"
        index = batch.partition.identity.partition
        traces = batch.partition.traces
        traced = {} if traces is None else traces.ids(outcome.base_offset, outcome.next_offset)
        for delta, entry in enumerate(batch.entries):
            self.results[entry.at] = Published(
                topic=self.topic,
                partition=index,
                offset=outcome.base_offset + delta,
                timestamp_ms=batch.append.header.max_timestamp if by_broker else entry.record.timestamp_ms,
                trace_id=traced.get(outcome.base_offset + delta),
            )


class Publisher:
    """Appends messages to topics, as durable as each topic promises when `publish` returns."""

    def __init__(
        self,
        topics: Topics,
        transactions: Transactions,
        delays: Delays,
        staged: WriteBatcher,
        *,
        clock: Clock,
        executor: Executor,
        auto_create_topics: bool,
    ) -> None:
        self._topics = topics
        self._transactions = transactions
        self._delays = delays
        self._staged = staged
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
    ) -> list[Result]:
        """Publish messages and return one result each, in order.

        Raises UnknownTopic if the topic does not exist and is not created automatically. Messages of one
        partition become one batch, or as few as max.message.bytes allows. `traceparent` is the context of the
        call, for messages without their own.
        """
        partitions = self._topics.partitions_of(topic) or await self._created(topic)
        config = partitions[0].config
        check_writable(partitions[0].identity)
        call = _Call(topic, len(messages), origin)
        context = () if read_traceparent(traceparent) is None else (Header(TRACEPARENT, traceparent),)
        now_ms = self._clock.now_ms()
        immediate: dict[int, list[Entry]] = {}
        delayed: list[tuple[int, DelayedMessage]] = []
        spread: int | None = None  # the partition of this call's messages without a key
        for at, message in enumerate(messages):
            if (fault := message.fault(config, now_ms)) is not None:
                call.results[at] = fault
                continue
            if (index := message.partition) is None:
                if message.key is not None:
                    index = partition_for_key(message.key, len(partitions))
                else:
                    index = spread = self._next_in_turn(topic, len(partitions)) if spread is None else spread
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
                due_ms = now_ms + config.queue_delay_ms
            if due_ms is not None and due_ms > now_ms:
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
        await call.finished()
        return [_certain(result) for result in call.results]

    def topic_deleted(self, topic: str) -> None:
        self._turns.pop(topic, None)

    async def _created(self, topic: str) -> Sequence[Partition]:
        if self._auto_create_topics:
            await self._topics.get_or_create(topic)
        return self._topics.every_partition_of(topic)

    def _next_in_turn(self, topic: str, count: int) -> int:
        turn = self._turns.get(topic, -1) + 1
        self._turns[topic] = turn
        return turn % count

    async def _append(
        self,
        call: _Call,
        partitions: Sequence[Partition],
        immediate: dict[int, list[Entry]],
        config: TopicConfig,
        producer: TransactionalProducer | None,
    ) -> None:
        """Stage every batch of the call."""
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
                batches.append(_Batch(partitions[index], entries, data))
        if producer is None:
            for batch in batches:
                self._stage(call, batch)
            self._staged.commit_soon()
        else:
            await self._append_in_transaction(call, batches, producer)

    async def _append_in_transaction(
        self, call: _Call, batches: Sequence[_Batch], producer: TransactionalProducer
    ) -> None:
        joining = tuple(
            {
                batch.partition: None
                for batch in batches
                if batch.partition.log.transactions.open_offset(producer.producer_id) is None
            }
        )
        refusals: Errors = {}
        if joining:
            wanted = AddPartitions(
                transactional_id=producer.transactional_id,
                producer=ProducerIdentity(producer.producer_id, producer.producer_epoch),
                partitions=tuple(partition.identity for partition in joining),
            )
            refusals = await retry_if_marker_written(
                joining, lambda: self._transactions.add_partitions(wanted)
            )
        # Nothing else may run from here to the commit: sequences continue from the log's current state.
        self._staged.commit()
        sequences: dict[Partition, int] = {}
        for batch in batches:
            partition = batch.partition
            if (refusal := refusals.get(partition.identity)) is not None:
                call.refuse(batch.entries, refusal)
                continue
            sequence = sequences.get(partition)
            if sequence is None:
                sequence = partition.log.producers.next_sequence(
                    producer.producer_id, producer.producer_epoch
                )
            sequences[partition] = (sequence + len(batch.entries)) & _SEQUENCE_MASK
            stamp_producer(batch.data, producer.producer_id, producer.producer_epoch, sequence)
            self._stage(call, batch)
        self._staged.commit()

    def _stage(self, call: _Call, batch: _Batch) -> None:
        try:
            data, header = admit(batch.data, batch.partition.config, self._clock.now_ms())
        except AlpacaError as error:
            call.refuse(batch.entries, error.with_traceback(None))
            return
        trace = None
        if (traces := batch.partition.traces) is not None:
            records = [entry.record for entry in batch.entries]
            trace = traces.publish_trace(records, call.origin, call.received_us)
        batch.append = Append(data, header, call.done, trace, timeout_ms=REPLICATION_TIMEOUT_MS)
        call.staged(batch)
        if batch.partition.stage(batch.append):
            self._staged.stage(batch.partition)

    async def _schedule(
        self, call: _Call, delayed: Sequence[tuple[int, DelayedMessage]], config: TopicConfig, now_ms: int
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
        self, call: _Call, messages: Sequence[tuple[int, DelayedMessage]], now_ms: int
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
