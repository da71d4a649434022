"""Reads one or several partitions for a request, with an optional wait for new records.

The partitions may be led by any broker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice

import msgspec
from msgspec import UNSET, UnsetType

from alpacamq.broker.broker import Broker
from alpacamq.broker.read.record_reader import Limits, Page
from alpacamq.broker.remote.read_values import Bounds
from alpacamq.broker.remote.reads import RemoteReads
from alpacamq.broker.tracing.partition import Origin
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import AlpacaError, UnknownTopic, UnknownTopicId
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Record
from alpacamq.model.topics import Topic

# Partitions of other brokers that a request reads at the same time.
AT_ONCE = 16


class PartitionView(msgspec.Struct, frozen=True):
    """A partition of any broker, and its bounds when the request began."""

    identity: TopicPartition
    place: PartitionId
    bounds: Bounds


async def view_partitions(
    broker: Broker, topic: str, indexes: Iterable[int] | None = None
) -> list[PartitionView]:
    """Return partitions of a topic, by default all. Raises UnknownTopic, or why one cannot be read."""
    topics = broker.topics
    places = topics.places_of(topic) if indexes is None else [topics.place(topic, each) for each in indexes]
    return [
        PartitionView(TopicPartition(TopicName(topic), place.partition), place, bounds)
        for place, bounds in zip(places, await _known_bounds(broker.reads, topic, places), strict=True)
    ]


async def known_bounds(broker: Broker, identities: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
    """Return the bounds of those partitions that exist and whose leaders answer at once."""
    topics = broker.topics
    places = {
        each: topics.place(*each) for each in identities if topics.exists(each.topic.encode(), each.partition)
    }
    found = await broker.reads.bounds(list(places.values()), retry_ms=0)
    return {
        identity: bounds
        for identity, bounds in zip(places, found, strict=True)
        if not isinstance(bounds, AlpacaError)
    }


async def bounds_of_topics(
    broker: Broker, topics: Sequence[Topic], retry_ms: int = 0
) -> dict[str, list[Bounds | None]]:
    """Return the bounds of all partitions by topic; None for those whose leaders do not answer in time."""
    places = [PartitionId(topic.id, index) for topic in topics for index in range(topic.partitions)]
    found = iter(await broker.reads.bounds(places, retry_ms=retry_ms))
    return {
        topic.name: [
            None if isinstance(each, AlpacaError) else each for each in islice(found, topic.partitions)
        ]
        for topic in topics
    }


async def _known_bounds(reads: RemoteReads, topic: str, places: Sequence[PartitionId]) -> list[Bounds]:
    known = []
    for found in await reads.bounds(places):
        if isinstance(found, AlpacaError):
            raise _of_topic(found, topic)
        known.append(found)
    return known


def _of_topic(error: AlpacaError, topic: str) -> AlpacaError:
    """Return the error of a read; a topic whose id the image does not know has been deleted."""
    if isinstance(error, UnknownTopicId):
        return UnknownTopic(f"topic {topic!r} was deleted")
    return error


class SkippedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Skipped offsets of a batch that is damaged or cannot be decompressed."""

    topic: str
    partition: int
    base_offset: int
    count: int
    reason: str


class PartitionReading:
    """The position of a request in one partition, and its end if the request sets one."""

    def __init__(
        self,
        reads: RemoteReads,
        view: PartitionView,
        offset: int,
        before_offset: int,
        *,
        committed: bool,
        reader: Origin | None = None,
    ) -> None:
        self._reads = reads
        self.identity = view.identity
        self.place = view.place
        self.bounds = view.bounds
        self.next_offset = offset
        self._before_offset = before_offset
        self._committed = committed
        # The reader recorded in traces; None while searching.
        self._reader = reader
        self.skipped: list[SkippedBatch] = []

    @property
    def index(self) -> int:
        return self.identity.partition

    @property
    def end_offset(self) -> int:
        end_offset = self.bounds.readable_end(committed=self._committed)
        return min(end_offset, max(self._before_offset, self.bounds.start_offset))

    @property
    def is_at_end(self) -> bool:
        """Whether there was nothing more to read when the bounds were asked for."""
        return self.next_offset == self.bounds.readable_end(committed=self._committed)

    @property
    def is_over(self) -> bool:
        """Whether the request does not want anything that may be written later."""
        return self.next_offset >= self._before_offset

    @property
    def is_led_here(self) -> bool:
        return self._reads.is_led_here(self.place)

    async def read(self, count: int, size_bytes: int) -> Page:
        """Read the next records within the limits; raise UnknownTopic if the partition was deleted."""
        limits = Limits(records=count, size_bytes=size_bytes, before_offset=self._before_offset)
        topic, index = self.identity
        try:
            page, bounds = await self._reads.read_page(
                self.place, self.next_offset, limits, committed=self._committed, reader=self._reader
            )
        except UnknownTopicId as error:
            raise _of_topic(error, topic) from None
        if bounds.high_watermark >= self.bounds.high_watermark:  # else of a follower, which is behind
            self.bounds = bounds
        self.next_offset = page.next_offset
        self.skipped += [
            SkippedBatch(
                topic=topic,
                partition=index,
                base_offset=each.base_offset,
                count=each.count,
                reason=each.reason,
            )
            for each in page.skipped
        ]
        return page


def skipped_of(readings: Iterable[PartitionReading]) -> list[SkippedBatch] | UnsetType:
    """Return all skipped batches, UNSET if there are none."""
    return [each for reading in readings for each in reading.skipped] or UNSET


async def read_fairly(
    readings: Sequence[PartitionReading], count: int, size_bytes: int
) -> list[tuple[PartitionReading, Record]]:
    """Read a fair share of each partition, merged by timestamp; records of a partition stay in order."""
    found: dict[PartitionReading, list[Record]] = {each: [] for each in readings}
    count_before = None
    # Repeat while records are found: partitions may use the share that others leave.
    while count != count_before:
        count_before = count
        waiting = [each for each in reversed(readings) if not each.is_at_end]
        while waiting and count >= 1 and size_bytes >= 1:
            share, share_bytes = -(-count // len(waiting)), -(-size_bytes // len(waiting))
            some = _next_to_read(waiting, count // share)
            if len(some) == 1:
                pages = [await some[0].read(share, share_bytes)]
            else:
                pages = await asyncio.gather(*(each.read(share, share_bytes) for each in some))
            for reading, page in zip(some, pages, strict=True):
                count -= len(page.records)
                size_bytes -= page.size_bytes
                found[reading] += page.records
    by_partition = [[(reading, record) for record in records] for reading, records in found.items()]
    return list(merge(*by_partition, key=lambda each: each[1].timestamp_ms))


def _next_to_read(waiting: list[PartitionReading], limit: int) -> list[PartitionReading]:
    """Take the next partition, or the next ones that other brokers lead: they are read at the same time."""
    some = [waiting.pop()]
    if not some[0].is_led_here:
        while waiting and len(some) < min(limit, AT_ONCE) and not waiting[-1].is_led_here:
            some.append(waiting.pop())
    return some


async def read_or_wait(
    reads: RemoteReads,
    read: Callable[[], Awaitable[bool]],
    readings: Sequence[PartitionReading],
    wait_ms: int,
    *,
    committed: bool,
) -> None:
    """Call `read` until it returns records, waiting for new ones in between."""
    if await read() or not wait_ms:
        return
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    while (left_ms := int((deadline - loop.time()) * 1000)) > 0:
        unfinished = [each for each in readings if not each.is_over]
        if not unfinished:
            return
        positions = {each.place: each.next_offset for each in unfinished}
        await reads.wait(positions, left_ms, committed=committed)
        await refresh(reads, unfinished)
        if await read():
            return


async def refresh(reads: RemoteReads, readings: Sequence[PartitionReading]) -> None:
    """Ask for the bounds of partitions again. Raises why one cannot be read any more."""
    found = await reads.bounds([each.place for each in readings])
    for reading, bounds in zip(readings, found, strict=True):
        if isinstance(bounds, AlpacaError):
            raise _of_topic(bounds, reading.identity.topic)
        reading.bounds = bounds


async def offsets_at_time(
    reads: RemoteReads, views: Sequence[PartitionView], timestamp_ms: int
) -> Mapping[PartitionId, int | None]:
    """Return the offset of the first record of each partition at or after a timestamp."""
    places = [each.place for each in views]
    offsets: dict[PartitionId, int | None] = {}
    for view, found in zip(views, await reads.offsets_for_timestamp(places, timestamp_ms), strict=True):
        if isinstance(found, AlpacaError):
            raise _of_topic(found, view.identity.topic)
        offsets[view.place] = None if found is None else found.offset
    return offsets
