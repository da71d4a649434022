"""Publishes to FIFO queues: a message with a known deduplication id is published once in five minutes.

Deduplication ids are headers of the records. When this broker begins to lead the first partition of a queue,
after a restart too, the ids of the last five minutes are read back before the queue is published to, so
deduplication holds whichever broker leads. A purge forgets the ids of the messages that it removes;
queue.deduplication.start records it for the next leader.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from alpacamq.broker.delay.service import DelayedMessage, Delays
from alpacamq.broker.publishing import Message, Publisher
from alpacamq.broker.read.record_reader import Limits
from alpacamq.broker.remote.reads import RemoteReads
from alpacamq.broker.topics import Topics
from alpacamq.broker.tracing.partition import Origin
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import (
    AlpacaError,
    BatchTooLarge,
    DiskFull,
    InvalidDelay,
    InvalidRecord,
    InvalidTimestamp,
    LeaderNotAvailable,
    NotEnoughReplicas,
    PartitionNotReady,
    RateLimited,
    RequestTimedOut,
    SchemasUnavailable,
    TooManyDelayed,
    UnknownTopic,
)
from alpacamq.model.headers import (
    DEDUPLICATION_ID,
    IS_REDRIVEN,
    MESSAGE_ID,
    ORIGIN_TOPIC,
    SENT_TIMESTAMP,
    SEQUENCE_NUMBER,
)
from alpacamq.model.ids import NO_TIMESTAMP, TopicId
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.ports import Clock
from alpacamq.model.records import Header, Record
from alpacamq.model.topics import Topic, TopicConfig

FIFO_SUFFIX = ".fifo"
WINDOW_MS = 5 * 60 * 1000
# Of all queues together, at about 200 bytes each.
MAX_ENTRIES = 1_000_000
MAX_PENDING = 10_000
PAGE_RECORDS = 2000
PAGE_BYTES = 1 << 20
# How long records that are being replicated are waited for when a window is read back.
REPLICATED_MS = 10_000

_POSITION = struct.Struct(">qIq")
_KEY_BYTES = 16


class DeduplicationScope(StrEnum):
    """Where a deduplication id is unique."""

    QUEUE = "queue"
    MESSAGE_GROUP = "messageGroup"


class FifoMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a FIFO queue; the key of `message` is its group.

    A delayed message has a `message_id` of its own, because it has no offset yet, and carries it and
    the time it was sent as headers.
    """

    message: Message
    deduplication_id: str
    message_id: str = ""

    @property
    def group_id(self) -> bytes:
        assert self.message.key is not None
        return self.message.key

    def key(self, scope: DeduplicationScope) -> bytes:
        """Return the key that this message is deduplicated by."""
        return deduplication_key(self.deduplication_id.encode(), self.group_id, scope)

    def to_publish(self, sequence: int | None) -> Message:
        """Return the message with the headers from which the window is rebuilt."""
        added = [Header(DEDUPLICATION_ID, self.deduplication_id.encode())]
        if sequence is not None:
            added.append(Header(SEQUENCE_NUMBER, sequence_text(sequence).encode()))
        headers = (*self.message.headers, *added)
        return Message(
            value=self.message.value,
            key=self.message.key,
            headers=headers,
            deliver_at_ms=self.message.deliver_at_ms,
        )


class FifoPublished(NamedTuple):
    """Time and position of a published message.

    A delayed message has an id, and its sequence number in place of an offset.
    """

    sent_ms: int
    partition: int
    offset: int
    message_id: str = ""


Pending = asyncio.Future[FifoPublished | None]


def sequence_text(number: int) -> str:
    """Format a sequence number with 20 digits, so that numbers sort as text."""
    return f"{number:020d}"


def deduplication_key(deduplication_id: bytes, group_id: bytes, scope: DeduplicationScope) -> bytes:
    """Return a digest of the id, and of the group where ids are unique per group only.

    A digest, because most of a million ids would be longer.
    """
    # Neither can hold a space.
    whole = deduplication_id
    if scope is DeduplicationScope.MESSAGE_GROUP:
        whole = group_id + b" " + deduplication_id
    return blake2b(whole, digest_size=_KEY_BYTES).digest()


class Usage:
    """Number of entries in all windows."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries = 0


class DeduplicationWindow:
    """Messages published to one queue in the last five minutes, and those being published.

    The first publish with an id claims it, then confirms or abandons the claim. Others with the same id
    wait for that.
    """

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        # In order of publishing: the oldest entry is first.
        self._sent: dict[bytes, bytes] = {}
        self._claims: dict[bytes, Pending] = {}
        # Highest sequence number of a delayed message, by partition.
        self._last_sequences: dict[int, int] = {}

    def find(self, key: bytes, now_ms: int) -> FifoPublished | Pending | None:
        """Return the result of an earlier publish, or a future of it while that is pending."""
        self.evict_before(now_ms - WINDOW_MS)
        if (found := self._sent.get(key)) is not None:
            sent_ms, partition, offset = _POSITION.unpack_from(found)
            return FifoPublished(sent_ms, partition, offset, found[_POSITION.size :].decode())
        return self._claims.get(key)

    def claim(self, key: bytes) -> None:
        """Mark a message as being published."""
        self._claims[key] = asyncio.get_running_loop().create_future()
        self._usage.entries += 1

    def confirm(self, key: bytes, published: FifoPublished) -> None:
        """Add a claimed message that was published."""
        self.add(key, published)
        self._settle(key, published)

    def abandon(self, key: bytes) -> None:
        """End the claim of a message that was not published."""
        self._settle(key, None)

    def add(self, key: bytes, published: FifoPublished) -> None:
        """Add a published message, no older than those added before."""
        if self._sent.pop(key, None) is None:  # else it moves to the end, as it is evicted by its new time
            self._usage.entries += 1
        position = _POSITION.pack(published.sent_ms, published.partition, published.offset)
        self._sent[key] = position + published.message_id.encode()
        self.add_sequence(published)

    def add_sequence(self, published: FifoPublished) -> None:
        """Keep later sequence numbers above that of a delayed message."""
        if published.message_id:
            last = self._last_sequences.get(published.partition, -1)
            self._last_sequences[published.partition] = max(last, published.offset)

    def next_sequence(self, partition: int, least: int) -> int:
        """Return a sequence number for a delayed message, above all earlier ones of its partition."""
        number = max(self._last_sequences.get(partition, -1) + 1, least)
        self._last_sequences[partition] = number
        return number

    def evict_before(self, limit_ms: int) -> None:
        """Remove messages published at `limit_ms` or earlier."""
        sent = self._sent
        while sent:
            key = next(iter(sent))
            if _POSITION.unpack_from(sent[key])[0] > limit_ms:
                return
            del sent[key]
            self._usage.entries -= 1

    def delayed(self) -> dict[bytes, str]:
        """Return the keys and ids of messages that were published with a delay."""
        size = _POSITION.size
        return {key: value[size:].decode() for key, value in self._sent.items() if len(value) > size}

    def forget(self, starts: Sequence[int], delivered: Collection[bytes]) -> None:
        """Remove messages before these offsets, one per partition, and these that were delayed."""
        kept: dict[bytes, bytes] = {}
        for key, value in self._sent.items():
            _, partition, offset = _POSITION.unpack_from(value)
            is_delayed = len(value) > _POSITION.size
            if key in delivered or (not is_delayed and _is_before(starts, partition, offset)):
                self._usage.entries -= 1
            else:
                kept[key] = value
        self._sent = kept

    def clear(self) -> None:
        """Remove all messages, when the queue is deleted."""
        self._usage.entries -= len(self._sent)
        self._sent.clear()

    def _settle(self, key: bytes, published: FifoPublished | None) -> None:
        self._claims.pop(key).set_result(published)
        self._usage.entries -= 1


class _Window:
    """The window of a queue, for as long as this broker leads its first partition in this epoch.

    It is stale once a publish has ended without a certain outcome: then it is read back again.
    """

    def __init__(self, leader_epoch: int, entries: DeduplicationWindow) -> None:
        self.leader_epoch = leader_epoch
        self.entries = entries
        self.is_stale = False
        # Publishes in progress: what they write may not be there yet to be read back.
        self._publishing = 0
        self._settled = asyncio.Event()
        self._settled.set()

    @contextmanager
    def publishing(self) -> Iterator[None]:
        self._publishing += 1
        self._settled.clear()
        try:
            yield
        finally:
            self._publishing -= 1
            if not self._publishing:
                self._settled.set()

    async def settled(self) -> None:
        """Return once no publish is in progress."""
        await self._settled.wait()


# Errors of messages that were certainly not written.
NOT_WRITTEN = (
    BatchTooLarge,
    DiskFull,
    InvalidDelay,
    InvalidRecord,
    InvalidTimestamp,
    LeaderNotAvailable,
    NotEnoughReplicas,
    PartitionNotReady,
    RateLimited,
    SchemasUnavailable,
    TooManyDelayed,
    UnknownTopic,
)


class FifoPublisher:
    """Publishes new messages to FIFO queues, and returns the first result for duplicates.

    To queues whose first partition is led here: else their messages are deduplicated elsewhere.
    """

    def __init__(
        self,
        topics: Topics,
        publisher: Publisher,
        delays: Delays,
        reads: RemoteReads,
        *,
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._publisher = publisher
        self._delays = delays
        self._clock = clock
        self._reads = reads
        self._windows: dict[TopicId, _Window] = {}
        self._loading: dict[TopicId, asyncio.Lock] = {}
        self._usage = Usage()
        # Their clients may have disconnected; each ends by itself within one write.
        self._pending: set[asyncio.Task[list[FifoPublished | AlpacaError]]] = set()

    async def publish(
        self,
        topic: Topic,
        messages: Sequence[FifoMessage],
        *,
        scope: DeduplicationScope,
        origin: Origin,
        traceparent: bytes | None = None,
    ) -> list[FifoPublished | AlpacaError]:
        """Return one result per message, in order. RateLimited if too many calls are pending.

        Raises NotLeader if another broker leads the first partition.
        """
        if len(self._pending) >= MAX_PENDING:
            raise RateLimited(
                f"too many requests to FIFO queues wait for the disk: the limit is {MAX_PENDING}"
            )
        call = _Call(topic, scope, origin, traceparent)
        task = asyncio.ensure_future(self._publish(call, messages))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        return await asyncio.shield(task)

    async def forget(self, topic: Topic, starts: Mapping[int, int]) -> None:
        """Forget messages of a FIFO queue before these offsets, by partition: they were purged.

        Messages that still wait for their delay are not forgotten.
        """
        self._epoch(topic)
        # Excludes loading, which would read what is forgotten here.
        async with self._loading.setdefault(topic.id, asyncio.Lock()):
            configured: list[int] = []

            def changed(current: Topic) -> Mapping[str, str]:
                known = start_offsets(self._topics.config_of(current))
                offsets = {**dict(enumerate(known)), **starts}
                configured[:] = [offsets.get(index, 0) for index in range(current.partitions)]
                return {**current.overrides, _START_SETTING: ",".join(map(str, configured))}

            await self._topics.configure(topic.name, changed)
            if (window := self._windows.get(topic.id)) is not None:
                delayed = window.entries.delayed()
                if delayed:
                    waiting = {_message_id(message.headers) async for message in self._delayed(topic.name)}
                    delayed = {key: each for key, each in delayed.items() if each not in waiting}
                window.entries.forget(configured, delayed.keys())

    async def _publish(
        self, call: "_Call", messages: Sequence[FifoMessage]
    ) -> list[FifoPublished | AlpacaError]:
        keys = [message.key(call.scope) for message in messages]
        results: dict[int, FifoPublished | AlpacaError] = {}
        while len(results) < len(messages):
            window = await self._window(call.topic, call.scope)
            claimed: list[int] = []
            awaited: list[tuple[int, Pending]] = []
            for index, key in enumerate(keys):
                if index in results:
                    continue
                found = window.entries.find(key, self._clock.now_ms())
                if found is None:
                    if self._is_full():
                        results[index] = RateLimited(
                            f"too many messages to FIFO queues in five minutes: the limit is {MAX_ENTRIES}"
                        )
                        continue
                    window.entries.claim(key)
                    claimed.append(index)
                elif isinstance(found, FifoPublished):
                    results[index] = found
                else:
                    awaited.append((index, found))
            if claimed:
                claims = [(keys[index], messages[index]) for index in claimed]
                results.update(zip(claimed, await self._publish_claimed(call, window, claims), strict=True))
            for index, pending in awaited:
                if (published := await asyncio.shield(pending)) is not None:
                    results[index] = published
                # Else the first publish has failed, and the next round claims the id.
        return [results[index] for index in range(len(messages))]

    async def _publish_claimed(
        self, call: "_Call", window: _Window, claims: Sequence[tuple[bytes, FifoMessage]]
    ) -> list[FifoPublished | AlpacaError]:
        """Publish claimed messages; every claim is settled, whether that succeeds or raises."""
        with window.publishing():
            return await self._publish_in(call, window, claims)

    async def _publish_in(
        self, call: "_Call", window: _Window, claims: Sequence[tuple[bytes, FifoMessage]]
    ) -> list[FifoPublished | AlpacaError]:
        entries = window.entries
        open_claims = dict(claims)
        is_certain = False
        try:
            sequences = await self._sequences(call.topic, entries, [message for _, message in claims])
            now_ms = self._clock.now_ms()
            outcomes = await self._publisher.publish(
                call.topic.name,
                [
                    message.to_publish(sequence)
                    for (_, message), sequence in zip(claims, sequences, strict=True)
                ],
                origin=call.origin,
                traceparent=call.traceparent,
                may_send=lambda: self._leads(call.topic, window.leader_epoch),
            )
            is_certain = all(
                not isinstance(outcome, AlpacaError) or isinstance(outcome, NOT_WRITTEN)
                for outcome in outcomes
            )
            results: list[FifoPublished | AlpacaError] = []
            for (key, message), sequence, outcome in zip(claims, sequences, outcomes, strict=True):
                if isinstance(outcome, AlpacaError):
                    results.append(outcome)
                    continue
                offset = outcome.offset if sequence is None else sequence
                assert offset is not None
                published = FifoPublished(now_ms, outcome.partition, offset, message.message_id)
                del open_claims[key]
                entries.confirm(key, published)
                results.append(published)
            return results
        finally:
            if not is_certain:
                window.is_stale = True  # before others claim these ids again
            for key in open_claims:
                entries.abandon(key)

    async def _sequences(
        self, topic: Topic, window: DeduplicationWindow, messages: Sequence[FifoMessage]
    ) -> list[int | None]:
        """Return the sequence numbers of delayed messages; others have their offset."""
        if not any(message.message_id for message in messages):
            return [None] * len(messages)
        count = self._topics.image.topic(topic.name).partitions
        indexes = [partition_for_key(message.group_id, count) for message in messages]
        ends: dict[int, int] = {}
        for index, message in zip(indexes, messages, strict=True):
            if message.message_id and index not in ends:
                ends[index] = (await self._reads.bounds_at(PartitionId(topic.id, index))).high_watermark
        return [
            window.next_sequence(index, ends[index]) if message.message_id else None
            for index, message in zip(indexes, messages, strict=True)
        ]

    def _is_full(self) -> bool:
        """Return whether one more entry would require to evict one that is younger than five minutes."""
        if self._usage.entries < MAX_ENTRIES:
            return False
        now_ms = self._clock.now_ms()
        for window in self._windows.values():
            window.entries.evict_before(now_ms - WINDOW_MS)
        return self._usage.entries >= MAX_ENTRIES

    async def _window(self, topic: Topic, scope: DeduplicationScope) -> _Window:
        """Return the window of a queue, read back from its records on first use in an epoch."""
        window = self._windows.get(topic.id)
        if window is not None and self._is_current(topic, window):
            return window
        async with self._loading.setdefault(topic.id, asyncio.Lock()):
            window = self._windows.get(topic.id)
            while window is None or not self._is_current(topic, window):
                epoch = self._epoch(topic)
                if window is not None:
                    await window.settled()
                self._drop(topic.id)
                self._drop_deleted()
                # Leadership may move meanwhile.
                window = _Window(epoch, await self._read_back(topic, scope))
                self._windows[topic.id] = window
        return window

    def _is_current(self, topic: Topic, window: _Window) -> bool:
        """Return whether a window holds what it must. Raises NotLeader if this broker does not lead."""
        return not window.is_stale and window.leader_epoch == self._epoch(topic)

    def _leads(self, topic: Topic, epoch: int) -> bool:
        """Return whether this broker still decides what is a duplicate."""
        first = self._topics.find(topic.id.bytes, 0)
        return first is not None and first.leader_epoch == epoch

    def _epoch(self, topic: Topic) -> int:
        """Return the epoch in which this broker leads the first partition of a queue. Raises NotLeader."""
        return self._topics.partition(topic.name, 0).leader_epoch

    def _drop(self, topic_id: TopicId) -> None:
        if (window := self._windows.pop(topic_id, None)) is not None:
            window.entries.clear()

    def _drop_deleted(self) -> None:
        image = self._topics.image
        for topic_id in [known for known in self._windows if image.topic_by_id(known) is None]:
            self._drop(topic_id)
        for topic_id in [known for known in self._loading if image.topic_by_id(known) is None]:
            del self._loading[topic_id]

    async def _read_back(self, topic: Topic, scope: DeduplicationScope) -> DeduplicationWindow:
        window = DeduplicationWindow(self._usage)
        current = self._topics.image.topic_by_id(topic.id) or topic
        starts = start_offsets(self._topics.config_of(current))
        since_ms = self._clock.now_ms() - WINDOW_MS
        found: list[tuple[FifoPublished, bytes]] = []
        # Delayed messages first: one that is delivered in between is read twice rather than never.
        async for message in self._delayed(topic.name):
            record = Record(-1, NO_TIMESTAMP, message.key, message.value, message.headers)
            if (entry := entry_of(record, message.partition, scope)) is not None:
                found.append(entry)
        for index in range(current.partitions):
            # Raises if it cannot be read now: an incomplete window would let duplicates in.
            async for record in self._records_since(PartitionId(topic.id, index), since_ms):
                if (entry := entry_of(record, index, scope)) is None:
                    continue
                if _is_before(starts, index, record.offset):
                    window.add_sequence(entry[0])
                else:
                    found.append(entry)
        for published, key in sorted(found):
            window.add(key, published)
        return window

    async def _delayed(self, topic: str) -> AsyncIterator[DelayedMessage]:
        after_id = -1
        while page := await self._delays.messages(topic, after_id=after_id, limit=PAGE_RECORDS):
            for _, message in page:
                yield message
            after_id = page[-1][0]

    async def _records_since(self, place: PartitionId, since_ms: int) -> AsyncIterator[Record]:
        bounds = await self._reads.bounds_at(place)
        first = await self._reads.offset_for_timestamp(place, since_ms)
        # What is being replicated may become committed: its end counts, not that of what is committed now.
        end_offset = bounds.end_offset
        offset = bounds.high_watermark if first is None else min(first.offset, bounds.high_watermark)
        limits = Limits(records=PAGE_RECORDS, size_bytes=PAGE_BYTES, before_offset=end_offset)
        while offset < end_offset:
            found = await self._reads.read_page(place, offset, limits, committed=False, wait_ms=REPLICATED_MS)
            for record in found.page.records:
                yield record
            if found.page.next_offset <= offset:
                if found.bounds.end_offset <= offset:
                    return  # what was not committed is gone
                raise RequestTimedOut(f"partition {place.partition} is not replicated up to {end_offset}")
            offset = found.page.next_offset


_START_SETTING = "queue.deduplication.start"


def start_offsets(config: TopicConfig) -> list[int]:
    """Return the offsets before which ids are forgotten, by partition; empty if the setting is not valid."""
    try:
        return [int(text or 0) for text in config.queue_deduplication_start.split(",")]
    except ValueError:
        return []


def _is_before(starts: Sequence[int], partition: int, offset: int) -> bool:
    return partition < len(starts) and offset < starts[partition]


def _message_id(headers: Sequence[Header]) -> str:
    return next((value.decode() for name, value in headers if name == MESSAGE_ID and value), "")


class _Call(msgspec.Struct, frozen=True):
    topic: Topic
    scope: DeduplicationScope
    origin: Origin
    traceparent: bytes | None


def entry_of(record: Record, partition: int, scope: DeduplicationScope) -> tuple[FifoPublished, bytes] | None:
    """Return result and key of a record that was published to a FIFO queue, None for any other."""
    headers = {name: value or b"" for name, value in record.headers}
    deduplication_id = headers.get(DEDUPLICATION_ID)
    # A dead letter was published to another queue, and a redriven message long before its timestamp.
    if deduplication_id is None or record.key is None or ORIGIN_TOPIC in headers or IS_REDRIVEN in headers:
        return None
    key = deduplication_key(deduplication_id, record.key, scope)
    if (message_id := headers.get(MESSAGE_ID)) is None:
        return FifoPublished(record.timestamp_ms, partition, record.offset), key
    try:
        sent_ms, sequence = int(headers[SENT_TIMESTAMP]), int(headers[SEQUENCE_NUMBER])
        return FifoPublished(sent_ms, partition, sequence, message_id.decode()), key
    except (ValueError, KeyError):
        return None  # not written by FifoPublisher
