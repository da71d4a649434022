"""Topics with types: producers, readers, consumers and queues whose messages are encoded and decoded.

They wrap the clients of the log, which handle bytes, and the receivers of queues.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeAlias, TypedDict, TypeVar

from alpacamq.client.errors import DelaysDisabled, NotAuthorized
from alpacamq.client.messages import Codecs, Message, NewHeaders, encode_headers
from alpacamq.client.outcomes import Duration, duration_ms
from alpacamq.client.telemetry import tracer
from alpacamq.model import batch
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.lanes import Lane, parse_lane
from alpacamq.model.records import Header

from .consumer import Consumer, ConsumerSettings
from .producer import Acks, Delivery, Producer, ProducerSettings, RecordMetadata
from .reader import At, ConsumedRecord, FetchSettings, Position, Reader
from .session import Session
from .transactions import Transaction, TransactionalProducer

if TYPE_CHECKING:
    from .queue import Receiver

T = TypeVar("T")
V = TypeVar("V")

log = logging.getLogger("alpacamq.topic")

Priority: TypeAlias = Literal["critical", "high", "normal", "low", "background"]
AcksName: TypeAlias = Literal["all", "leader", "none"]
Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
# "earliest", "latest", a time before now such as "-1h", a time, or offsets by partition.
Start: TypeAlias = str | datetime | Mapping[int, int]

_ACKS: Final[Mapping[str, Acks]] = {"all": Acks.ALL, "leader": Acks.LEADER, "none": Acks.NONE}
_COMPRESSIONS: Final = {each.name.lower(): each for each in batch.Codec}
# Records per call of the engine when iterating.
_CHUNK: Final = 500


class RecordOptions(TypedDict):
    """What the clients of the log take beside topic and value."""

    key: bytes | None
    headers: Sequence[Header]
    partition: int | None
    delay_ms: int | None
    deliver_at_ms: int | None
    priority: Lane | None


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A message as the clients of the log take it."""

    value: bytes | None
    key: bytes | None
    headers: Sequence[Header]
    partition: int | None
    delay_ms: int | None
    deliver_at_ms: int | None
    priority: Lane | None

    def options(self, headers: Sequence[Header] | None = None) -> RecordOptions:
        """Return the arguments beside topic and value; `headers` replaces those of the message."""
        return {
            "key": self.key,
            "headers": self.headers if headers is None else headers,
            "partition": self.partition,
            "delay_ms": self.delay_ms,
            "deliver_at_ms": self.deliver_at_ms,
            "priority": self.priority,
        }


def encoded(
    codecs: Codecs[T],
    value: T | None,
    key: object,
    headers: NewHeaders | None,
    delay: Duration | None,
    deliver_at: datetime | float | None,
    priority: Priority | None,
    partition: int | None,
) -> NewRecord:
    """Encode a message, with the current trace in its headers. Raises InvalidValue and ValueError."""
    if delay is not None and deliver_at is not None:
        raise ValueError("delay and deliver_at exclude each other")
    plain = [Header(*each) for each in encode_headers(headers)] if headers else ()
    return NewRecord(
        codecs.encode_value(value),
        codecs.encode_key(key),
        tracer.inject(plain),
        partition,
        None if delay is None else duration_ms(delay),
        None if deliver_at is None else _epoch_ms(deliver_at),
        None if priority is None else parse_lane(priority),
    )


def _epoch_ms(time: datetime | float) -> int:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ValueError(f"{time!r} has no time zone: use datetime.now(UTC) or .astimezone()")
        time = time.timestamp()
    return round(time * 1000)


def _position(start: Start) -> Position:
    return At(timestamp_ms=_epoch_ms(start)) if isinstance(start, datetime) else start


def producer_settings(
    *,
    acks: AcksName = "all",
    compression: Compression = "none",
    batch_records: int = 100,
    batch_bytes: int = 64 << 10,
    linger: Duration = timedelta(milliseconds=5),
    timeout: Duration = 30.0,
    buffer_bytes: int = 8 << 20,
) -> ProducerSettings:
    """Return the settings of a producer. Raises ValueError."""
    if acks not in _ACKS:
        raise ValueError(f"acks is one of {', '.join(_ACKS)}, not {acks!r}")
    if compression not in _COMPRESSIONS:
        raise ValueError(f"compression is one of {', '.join(_COMPRESSIONS)}, not {compression!r}")
    return ProducerSettings(
        acks=_ACKS[acks],
        compression=_COMPRESSIONS[compression],
        batch_records=batch_records,
        batch_bytes=batch_bytes,
        linger_ms=duration_ms(linger),
        delivery_s=duration_ms(timeout) / 1000,
        buffer_bytes=buffer_bytes,
    )


async def delivered(delivery: Delivery) -> RecordMetadata:
    """Wait for a record. If this is cancelled, the record is taken back, or a note says that it was sent."""
    try:
        return await delivery
    except asyncio.CancelledError as cancelled:
        if not delivery.is_done and not delivery.cancel():
            cancelled.add_note("the message has been sent already and may be written")
            log.info("a send was cancelled after its message was sent; it may be written")
        raise


class TopicProducer(Generic[T]):
    """Sends messages of one topic in batches. Leaving the block sends what is buffered and waits for it."""

    def __init__(self, session: Session, name: str, codecs: Codecs[T], settings: ProducerSettings) -> None:
        self._session = session
        self._name = name
        self._codecs = codecs
        self._settings = settings
        self._producer: Producer | None = None

    async def __aenter__(self) -> Self:
        await self._session.prepare_encoding(self._codecs)
        producer = Producer(await self._session.cluster(), self._settings)
        await producer.__aenter__()
        try:
            await self._prepare(producer)
        except BaseException:
            await producer.close()
            raise
        self._producer = producer
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    async def _prepare(self, producer: Producer) -> None:
        try:
            await producer.prepare(self._name, delays=True)
        except (DelaysDisabled, NotAuthorized):
            # Only a message with a delay fails then.
            await producer.prepare(self._name)

    @property
    def _open(self) -> Producer:
        if self._producer is None:
            raise RuntimeError("a producer is used in a block: `async with topic.producer() as p:`")
        return self._producer

    def send(
        self,
        value: T | None,
        *,
        key: object = None,
        headers: NewHeaders | None = None,
        partition: int | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | float | None = None,
        priority: Priority | None = None,
    ) -> Delivery:
        """Buffer a message and return its delivery, to be awaited or not.

        Errors of deliveries that are not awaited are raised by `flush` and at the end of the block. Raises
        BufferFull if the buffer has no room: `put` waits for it.
        """
        new = encoded(self._codecs, value, key, headers, delay, deliver_at, priority, partition)
        return self._open.send(self._name, new.value, **new.options())

    async def put(
        self,
        value: T | None,
        *,
        key: object = None,
        headers: NewHeaders | None = None,
        partition: int | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | float | None = None,
        priority: Priority | None = None,
    ) -> Delivery:
        """Buffer a message, as `send` does; wait for room if the buffer is full."""
        new = encoded(self._codecs, value, key, headers, delay, deliver_at, priority, partition)
        return await self.put_encoded(new)

    async def put_encoded(self, new: NewRecord) -> Delivery:
        """Buffer a record that is encoded already; wait for room."""
        return await self._open.put(self._name, new.value, **new.options())

    async def flush(self) -> None:
        """Send everything that is buffered and wait for it. Raises the first error that was not awaited."""
        await self._open.flush()


class _Decoding(Generic[T]):
    """Makes messages of records, and loads the schemas that they name before."""

    def __init__(self, session: Session, codecs: Codecs[T]) -> None:
        self._session = session
        self._codecs = codecs

    async def messages(self, records: Sequence[ConsumedRecord]) -> list[Message[T]]:
        codecs = self._codecs
        found = [
            Message(
                each.partition.topic,
                each.partition.partition,
                each.offset,
                each.timestamp_ms,
                each.key,
                each.value,
                each.headers,
                codecs,
            )
            for each in records
        ]
        await self._session.prepare_decoding(codecs, found)
        return found


class TopicReader(Generic[T]):
    """Reads a topic from a position. Iterate over it; `async with` closes it at the end of the block."""

    def __init__(
        self,
        session: Session,
        name: str,
        codecs: Codecs[T],
        *,
        start: Start,
        until: Start | None,
        partitions: Collection[int] | None,
        settings: FetchSettings,
    ) -> None:
        self._session = session
        self._name = name
        self._decoding = _Decoding(session, codecs)
        self._start = start
        self._until = until
        self._partitions = partitions
        self._settings = settings
        self._reader: Reader | None = None

    async def __aenter__(self) -> Self:
        reader = Reader(
            await self._session.cluster(),
            self._name,
            start=_position(self._start),
            until=None if self._until is None else _position(self._until),
            partitions=self._partitions,
            settings=self._settings,
        )
        await reader.__aenter__()
        self._reader = reader
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            await self._reader.close()

    async def __aiter__(self) -> AsyncIterator[Message[T]]:
        if self._reader is not None:
            while messages := await self.take():
                for each in messages:
                    yield each
            return
        async with self:
            while messages := await self.take():
                for each in messages:
                    yield each

    async def take(self, max_messages: int = _CHUNK, wait: Duration | None = None) -> list[Message[T]]:
        """Return messages of one partition; empty after `wait` without any, or at the end."""
        if self._reader is None:
            raise RuntimeError("a reader is used in a block: `async with topic.read() as reader:`")
        wait_s = None if wait is None else duration_ms(wait) / 1000
        return await self._decoding.messages(await self._reader.take(max_messages, wait_s))

    def positions(self) -> dict[int, int]:
        """Return the offset after the last message that was read, by partition."""
        assert self._reader is not None, "not opened"
        return {each.partition: offset for each, offset in self._reader.positions().items()}


Callback: TypeAlias = Callable[[Collection[int]], Awaitable[None] | None]


class TopicConsumer(Generic[T]):
    """A member of a consumer group. Iterate over it inside `async with`, and commit what is processed."""

    def __init__(
        self,
        session: Session,
        name: str,
        codecs: Codecs[T],
        group: str,
        settings: ConsumerSettings,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
    ) -> None:
        self._session = session
        self._name = name
        self._decoding = _Decoding(session, codecs)
        self._group = group
        self._settings = settings
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._consumer: Consumer | None = None

    @property
    def consumer(self) -> Consumer:
        """The consumer of the group, of bytes."""
        if self._consumer is None:
            raise RuntimeError("a consumer is used in a block: `async with topic.subscribe(group) as c:`")
        return self._consumer

    async def __aenter__(self) -> Self:
        consumer = Consumer(
            await self._session.cluster(),
            self._group,
            topics=[self._name],
            settings=self._settings,
            on_assigned=_numbered(self._on_assigned),
            on_revoked=_numbered(self._on_revoked),
        )
        await consumer.__aenter__()
        self._consumer = consumer
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.consumer.__aexit__(kind, error, trace)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        # One at a time: the position, which `commit` commits, is that of the message before.
        (message,) = await self._decoding.messages([await anext(self.consumer)])
        return message

    async def take(self, max_messages: int = _CHUNK, wait: Duration | None = None) -> list[Message[T]]:
        """Return messages of one partition; empty after `wait` without any."""
        wait_s = None if wait is None else duration_ms(wait) / 1000
        return await self._decoding.messages(await self.consumer.take(max_messages, wait_s))

    async def commit(self, message: Message[T] | None = None) -> None:
        """Commit the position after a message, or after the last ones that were delivered."""
        if message is None:
            await self.consumer.commit()
        else:
            place = TopicPartition(TopicName(message.topic), message.partition)
            await self.consumer.commit({place: message.offset + 1})

    @property
    def assignment(self) -> frozenset[int]:
        """The partitions that the group has assigned to this member."""
        return frozenset(each.partition for each in self.consumer.assignment)

    def seek(self, partition: int, offset: int) -> None:
        """Continue a partition at an offset."""
        self.consumer.seek(TopicPartition(TopicName(self._name), partition), offset)

    def pause(self, *partitions: int) -> None:
        """Deliver nothing of these partitions for now."""
        self.consumer.pause([TopicPartition(TopicName(self._name), each) for each in partitions])

    def resume(self, *partitions: int) -> None:
        """Deliver messages of paused partitions again."""
        self.consumer.resume([TopicPartition(TopicName(self._name), each) for each in partitions])


def _numbered(
    callback: Callback | None,
) -> Callable[[Collection[TopicPartition]], Awaitable[None] | None] | None:
    if callback is None:
        return None
    return lambda partitions: callback([each.partition for each in partitions])


class Queue(Generic[T]):
    """A topic as a queue of one group."""

    def __init__(self, session: Session, topic: str, group: str, codecs: Codecs[T]) -> None:
        self._session = session
        self._codecs = codecs
        self.topic = topic
        self.group = group

    def receive(
        self,
        *,
        credit: int = 100,
        visibility: Duration | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        consumer: str = "",
    ) -> "Receiver[T]":
        """Return the jobs of the queue, to iterate over.

        At most `credit` jobs are unsettled at a time. `visibility` is how long a lease lasts; the queue's
        setting by default. `start` is where a new queue begins. `consumer` is the name in stats.
        """
        from .queue import Receiver, work_open

        request = work_open(
            self.topic, self.group, credit=credit, visibility=visibility, consumer=consumer, start=start
        )
        return Receiver(self._session, request, self._codecs)

    async def configure(self, settings: Mapping[str, str | None]) -> None:
        """Override settings of the topic for this queue (`queue.…`); None removes an override.

        Creates the queue if it does not exist.
        """
        await self._session.configure_queue(self.topic, self.group, settings)


class Topic(Generic[T]):
    """A topic whose values have a type."""

    def __init__(self, session: Session, name: str, codecs: Codecs[T]) -> None:
        self._session = session
        self.codecs = codecs
        self.name = name

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"

    async def send(
        self,
        value: T | None,
        *,
        key: object = None,
        headers: NewHeaders | None = None,
        partition: int | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | float | None = None,
        priority: Priority | None = None,
    ) -> RecordMetadata:
        """Write one message and return where it is, once it is durable; None as a value deletes the key.

        `delay` and `deliver_at` say when it is written; the offset is -1 then. `priority` is its lane in
        queues. Concurrent sends share requests.
        """
        await self._session.prepare_encoding(self.codecs)
        with tracer.sending(self.name):
            new = encoded(self.codecs, value, key, headers, delay, deliver_at, priority, partition)
            producer = await self._session.producer()
            try:
                delivery = await producer.put(self.name, new.value, **new.options())
            except DelaysDisabled:
                return await self._session.send_delayed(self.name, new.value, **new.options())
            return await delivered(delivery)

    def producer(
        self,
        *,
        acks: AcksName = "all",
        compression: Compression = "none",
        batch_records: int = 100,
        batch_bytes: int = 64 << 10,
        linger: Duration = timedelta(milliseconds=5),
        timeout: Duration = 30.0,
        buffer_bytes: int = 8 << 20,
    ) -> TopicProducer[T]:
        """Return a producer for many messages: `async with topic.producer() as p: p.send(…)`.

        A batch is sent when it has `batch_records` or `batch_bytes`, or after `linger`. `timeout` is how long
        a message may take to be acknowledged, with all retries.
        """
        settings = producer_settings(
            acks=acks,
            compression=compression,
            batch_records=batch_records,
            batch_bytes=batch_bytes,
            linger=linger,
            timeout=timeout,
            buffer_bytes=buffer_bytes,
        )
        return TopicProducer(self._session, self.name, self.codecs, settings)

    def read(
        self,
        *,
        start: Start = "earliest",
        until: Start | None = None,
        partitions: Collection[int] | None = None,
    ) -> TopicReader[T]:
        """Return the messages from a position on: `async for m in topic.read(start="-1h"): …`.

        A position is "earliest", "latest", a time before now ("-1h"), a time, or offsets by partition. With
        `until` reading ends there ("latest": at the end as it is now), otherwise it waits for new messages.
        """
        return TopicReader(
            self._session,
            self.name,
            self.codecs,
            start=start,
            until=until,
            partitions=partitions,
            settings=FetchSettings(),
        )

    def subscribe(
        self,
        group: str,
        *,
        start: str | datetime = "earliest",
        auto_commit: Duration | None = None,
        instance_id: str | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
    ) -> TopicConsumer[T]:
        """Return a member of a consumer group: `async with topic.subscribe(group) as c: async for m in c: …`.

        `start` is where to begin in partitions for which the group has no offset. Without `auto_commit`, only
        `commit` commits.
        """
        reset = At(timestamp_ms=_epoch_ms(start)) if isinstance(start, datetime) else start
        settings = ConsumerSettings(
            reset=reset,
            auto_commit_s=None if auto_commit is None else duration_ms(auto_commit) / 1000,
            instance_id=instance_id,
        )
        return TopicConsumer(self._session, self.name, self.codecs, group, settings, on_assigned, on_revoked)

    def queue(self, group: str) -> Queue[T]:
        """Return the topic as a queue of a group."""
        return Queue(self._session, self.name, group, self.codecs)


class TopicTransaction:
    """A transaction: messages and offsets that become visible together when the block ends."""

    def __init__(self, session: Session, transactional_id: str, timeout: Duration) -> None:
        self._session = session
        self._id = transactional_id
        self._timeout_ms = duration_ms(timeout)
        self._transaction: Transaction | None = None
        self._offsets: list[tuple[Consumer, dict[TopicPartition, int]]] = []

    async def __aenter__(self) -> Self:
        producer: TransactionalProducer = await self._session.transactional(self._id, self._timeout_ms)
        transaction = producer.transaction()
        await transaction.__aenter__()
        self._transaction = transaction
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction = self._open
        if error is None:
            try:
                for consumer, offsets in self._offsets:
                    await transaction.send_offsets(consumer, offsets)
            except BaseException as failed:
                await transaction.__aexit__(type(failed), failed, failed.__traceback__)
                raise
        await transaction.__aexit__(kind, error, trace)

    @property
    def _open(self) -> Transaction:
        if self._transaction is None:
            raise RuntimeError("a transaction is used in a block: `async with mq.transaction(id) as tx:`")
        return self._transaction

    async def send(
        self,
        topic: Topic[V],
        value: V | None,
        *,
        key: object = None,
        headers: NewHeaders | None = None,
        partition: int | None = None,
        priority: Priority | None = None,
    ) -> Delivery:
        """Add a message of a topic to the transaction. Waits for room; the block's end waits for the rest."""
        await self._session.prepare_encoding(topic.codecs)
        new = encoded(topic.codecs, value, key, headers, None, None, priority, partition)
        return await self._open.put(
            topic.name,
            new.value,
            key=new.key,
            headers=new.headers,
            partition=partition,
            priority=new.priority,
        )

    def commit_offsets(self, consumer: TopicConsumer[Any]) -> None:
        """Commit the present position of a consumer with the transaction."""
        self._offsets.append((consumer.consumer, consumer.consumer.positions()))
