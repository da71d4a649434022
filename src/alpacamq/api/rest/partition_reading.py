"""Partitions that a request reads: one or several, now or when there is something."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import merge

import msgspec
from msgspec import UNSET, UnsetType

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.read.record_reader import Limits, Page
from alpacamq.broker.tracing.partition import Origin
from alpacamq.model.errors import UnknownTopic
from alpacamq.model.records import Record

from .backend import Backend


class Arrivals:
    """Hears when any of some partitions has more to read."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Return when something has arrived since the last wait, or when the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return
        self._arrived.clear()

    def wake(self, _added_bytes: int) -> None:
        self._arrived.set()


@contextmanager
def arrivals(partitions: Iterable[Partition]) -> Iterator[Arrivals]:
    """Listen to these partitions within the block."""
    watched = list(partitions)
    heard = Arrivals()
    for partition in watched:
        partition.watch(heard, heard.wake)
    try:
        yield heard
    finally:
        for partition in watched:
            partition.unwatch(heard)


class SkippedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets passed over because their batch is damaged or does not unpack."""

    topic: str
    partition: int
    base_offset: int
    count: int
    reason: str


class PartitionReading:
    """One partition being read: where it is, and where it ends if that was said."""

    def __init__(
        self,
        backend: Backend,
        partition: Partition,
        offset: int,
        before_offset: int,
        *,
        committed: bool,
        reader: Origin | None = None,
    ) -> None:
        self._backend = backend
        self.partition = partition
        self.next_offset = offset
        self._before_offset = before_offset
        self._committed = committed
        # Who is said to have read what is traced; None where messages are only looked through.
        self._reader = reader
        self.skipped: list[SkippedBatch] = []

    @property
    def index(self) -> int:
        return self.partition.identity.partition

    @property
    def end_offset(self) -> int:
        partition = self.partition
        end_offset = partition.last_stable_offset if self._committed else partition.high_watermark
        return min(end_offset, max(self._before_offset, partition.log.start_offset))

    async def read(self, count: int, size_bytes: int) -> Page:
        """Read on, up to so many records and bytes; UnknownTopic if the partition is no more."""
        topic, index = self.partition.identity
        if self._backend.broker.topics.find(topic.encode(), index) is not self.partition:
            raise UnknownTopic(f"topic {topic!r} has been deleted")
        limits = Limits(records=count, size_bytes=size_bytes, before_offset=self._before_offset)
        page = await self._backend.records.read(
            self.partition, self.next_offset, limits, committed=self._committed
        )
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
        traces = self.partition.traces
        if traces is not None and self._reader is not None:
            traces.read(page.records, self._reader)
        return page


def skipped_of(readings: Iterable[PartitionReading]) -> list[SkippedBatch] | UnsetType:
    """All that was passed over; left out of an answer where that is nothing."""
    return [each for reading in readings for each in reading.skipped] or UNSET


async def read_fairly(
    readings: Sequence[PartitionReading], count: int, size_bytes: int
) -> list[tuple[PartitionReading, Record]]:
    """A fair share of each partition, put together by time; each partition's records stay in order."""
    found: list[list[tuple[PartitionReading, Record]]] = [[] for _ in readings]
    count_before = None
    # Again for as long as it brings something: what some do not use, others may have.
    while count != count_before:
        count_before = count
        for place, reading in enumerate(readings):
            if count < 1 or size_bytes < 1:
                break
            left = len(readings) - place
            page = await reading.read(-(-count // left), -(-size_bytes // left))
            count -= len(page.records)
            size_bytes -= page.size_bytes
            found[place] += [(reading, record) for record in page.records]
    return list(merge(*found, key=lambda each: each[1].timestamp_ms))


async def read_or_wait(
    read: Callable[[], Awaitable[bool]], partitions: Sequence[Partition], wait_ms: int
) -> None:
    """Have `read` look for something; while it finds nothing, wait for more and let it try again."""
    if await read() or not wait_ms:
        return
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    with arrivals(partitions) as arriving:
        while not await read():
            if (left_seconds := deadline - loop.time()) <= 0:
                return
            await arriving.wait(left_seconds)


def all_partitions(broker: Broker, topic: str) -> Sequence[Partition]:
    """The partitions of a topic; UnknownTopic if there is none, or if it is only about to be."""
    if partitions := broker.topics.partitions_of(topic):
        return partitions
    broker.topics.image.topic(topic)
    raise UnknownTopic(f"topic {topic!r} is being made or deleted")


async def offset_at_time(broker: Broker, partition: Partition, timestamp_ms: int) -> int | None:
    """The first record of then or later."""
    found = await asyncio.get_running_loop().run_in_executor(
        broker.work_threads, partition.log.offset_for_timestamp, timestamp_ms, partition.high_watermark
    )
    return None if found is None else found.offset
