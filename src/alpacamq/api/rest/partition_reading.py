"""Reads one or several partitions for a request, with an optional wait for new records."""

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


class PartitionWaiter:
    """Signals new records in any of several partitions."""

    def __init__(self) -> None:
        self._has_records = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Return after new records since the last wait, or after the timeout."""
        try:
            async with asyncio.timeout(seconds):
                await self._has_records.wait()
        except TimeoutError:
            return
        self._has_records.clear()

    def wake(self, _added_bytes: int) -> None:
        self._has_records.set()


@contextmanager
def waiting_for_records(partitions: Iterable[Partition]) -> Iterator[PartitionWaiter]:
    """Watch partitions for new records inside the block."""
    watched = list(partitions)
    waiter = PartitionWaiter()
    for partition in watched:
        partition.watch(waiter, waiter.wake)
    try:
        yield waiter
    finally:
        for partition in watched:
            partition.unwatch(waiter)


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
        # The reader recorded in traces; None while searching.
        self._reader = reader
        self.skipped: list[SkippedBatch] = []

    @property
    def index(self) -> int:
        return self.partition.identity.partition

    @property
    def end_offset(self) -> int:
        partition = self.partition
        end_offset = partition.last_stable_offset if self._committed else partition.high_watermark
        return min(end_offset, max(self._before_offset, partition.start_offset))

    async def read(self, count: int, size_bytes: int) -> Page:
        """Read the next records within the limits; raise UnknownTopic if the partition was deleted."""
        topic, index = self.partition.identity
        if self._backend.broker.topics.find(topic.encode(), index) is not self.partition:
            raise UnknownTopic(f"topic {topic!r} was deleted")
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
    """Return all skipped batches, UNSET if there are none."""
    return [each for reading in readings for each in reading.skipped] or UNSET


async def read_fairly(
    readings: Sequence[PartitionReading], count: int, size_bytes: int
) -> list[tuple[PartitionReading, Record]]:
    """Read a fair share of each partition, merged by timestamp; records of a partition stay in order."""
    found: list[list[tuple[PartitionReading, Record]]] = [[] for _ in readings]
    count_before = None
    # Repeat while records are found: partitions may use the share that others leave.
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
    """Call `read` until it returns records, waiting for new ones in between."""
    if await read() or not wait_ms:
        return
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    with waiting_for_records(partitions) as waiter:
        while not await read():
            if (left_seconds := deadline - loop.time()) <= 0:
                return
            await waiter.wait(left_seconds)


async def offset_at_time(broker: Broker, partition: Partition, timestamp_ms: int) -> int | None:
    """Return the offset of the first record at or after a timestamp."""
    found = await asyncio.get_running_loop().run_in_executor(
        broker.work_threads, partition.offset_for_timestamp, timestamp_ms, partition.high_watermark
    )
    return None if found is None else found.offset
