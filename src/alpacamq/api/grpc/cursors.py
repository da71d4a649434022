"""Positions of streams in partitions of any broker.

A `PartitionCursor` reads one partition. Records are encoded straight from the stored batches, which can also
be passed on as they are.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from alpacamq.api.rest.partition_reading import PartitionView, offsets_at_time
from alpacamq.broker.broker import Broker
from alpacamq.broker.read.record_reader import Limits, Skipped
from alpacamq.broker.remote.read_values import Bounds, FetchedBatches
from alpacamq.broker.tracing.partition import Origin
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.batch import read_header
from alpacamq.model.errors import DamagedLog, OffsetOutOfRange, UnknownTopic, UnknownTopicId
from alpacamq.model.ids import TopicPartition
from alpacamq.model.topics import INT64_MAX
from alpacamq.v1 import log_pb2 as pb
from alpacamq.v1 import messages_pb2 as m

from .call import Backend
from .errors import InvalidField, ShuttingDown
from .record_encoding import RecordChunks, encoded_records, length_delimited

MIN_BYTES = 1 << 10
MAX_BYTES = 1 << 20
DEFAULT_BYTES = 256 << 10
# A stream that waits for records looks this often whether a leader has moved.
WAIT_MS = 5000
# Larger pieces are decoded by a thread.
DECODED_ON_LOOP_BYTES = 16 << 10
# Records of a page around damaged batches.
PAGE_RECORDS = 1000

# Tags of the fields with records and batches of ReadResponse.
_RECORDS, _BATCHES = 0x0A, 0x12


class Chunk(NamedTuple):
    """A part of a response: encoded records or batches of one partition."""

    fields: bytes
    records: int
    next_offset: int
    bounds: Bounds
    skipped: Sequence[Skipped] = ()


class PartitionCursor:
    """The position of a stream in one partition."""

    def __init__(
        self,
        broker: Broker,
        view: PartitionView,
        offset: int,
        *,
        before_offset: int = INT64_MAX,
        committed: bool,
        as_batches: bool,
        reader: Origin,
        records_tag: int = _RECORDS,
        batches_tag: int = _BATCHES,
    ) -> None:
        self._broker = broker
        self.identity = view.identity
        self.place = view.place
        self.next_offset = offset
        self._before_offset = before_offset
        self._committed = committed
        self._as_batches = as_batches
        self._reader = reader
        self._tags = records_tag, batches_tag

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to read."""
        return self.next_offset >= self._before_offset

    async def read(self, max_bytes: int) -> AsyncGenerator[Chunk, None]:
        """Yield what there is now, about `max_bytes`; one chunk more if a batch is unpacked to more.

        The position moves with every chunk. Raises OffsetOutOfRange.
        """
        try:
            found = await self._broker.reads.read_batches(
                self.place, self.next_offset, max_bytes, committed=self._committed
            )
        except UnknownTopicId:
            raise UnknownTopic(f"topic {self.identity.topic!r} was deleted") from None
        except DamagedLog:
            if self._as_batches:
                raise
            yield await self._page(max_bytes)
            return
        if not found.data:
            return
        self._count(found)
        if self._as_batches:
            self.next_offset = min(found.next_offset, self._before_offset)
            yield self._batches(found)
            return
        async for chunk in self._chunks(found, max_bytes):
            yield chunk

    def _count(self, found: FetchedBatches) -> None:
        """Count what is read of a partition of this broker, and tell its traces."""
        partition = self._broker.topics.find(self.place.topic_id.bytes, self.place.partition)
        if partition is None:
            return
        end = min(found.next_offset, self._before_offset)
        partition.fetched_messages += end - self.next_offset
        partition.fetched_bytes += len(found.data)
        if (traces := partition.traces) is not None and traces.may_be_read:
            traces.fetched(self.next_offset, end, self._reader)

    def _batches(self, found: FetchedBatches) -> Chunk:
        batches = pb.StoredBatches(
            partition=self.place.partition,
            data=found.data,
            aborted=[
                pb.AbortedTransaction(producer_id=producer_id, first_offset=first)
                for producer_id, first in found.aborted
            ],
        )
        fields = length_delimited(self._tags[1], batches.SerializeToString())
        return Chunk(fields, _records_in(found.data), self.next_offset, found.bounds)

    async def _chunks(self, found: FetchedBatches, max_bytes: int) -> AsyncIterator[Chunk]:
        chunks = RecordChunks(
            found.data,
            self.place.partition,
            range(self.next_offset, self._before_offset),
            found.aborted,
            tag=self._tags[0],
            limit_bytes=max_bytes,
            unpacked_limit_bytes=self._broker.settings.unpacked_limit_bytes,
        )
        in_thread = len(found.data) > DECODED_ON_LOOP_BYTES
        loop = asyncio.get_running_loop()
        while not chunks.is_over:
            if in_thread:
                fields, count = await loop.run_in_executor(self._broker.work_threads, chunks.next_chunk)
            else:
                fields, count = chunks.next_chunk()
            self.next_offset = chunks.next_offset
            if chunks.is_over:
                self.next_offset = min(max(found.next_offset, self.next_offset), self._before_offset)
            skipped, chunks.skipped = chunks.skipped, []
            yield Chunk(fields, count, self.next_offset, found.bounds, skipped)

    async def _page(self, max_bytes: int) -> Chunk:
        """Read around damaged batches."""
        limits = Limits(records=PAGE_RECORDS, size_bytes=max_bytes, before_offset=self._before_offset)
        page, bounds = await self._broker.reads.read_page(
            self.place, self.next_offset, limits, committed=self._committed, reader=self._reader
        )
        self.next_offset = page.next_offset
        fields = encoded_records(self._tags[0], self.place.partition, page.records)
        return Chunk(fields, len(page.records), page.next_offset, bounds, page.skipped)


def _records_in(data: bytes) -> int:
    """Return the number of records in batches, by their headers."""
    at = count = 0
    while at < len(data):
        header = read_header(data, at)
        count += header.record_count
        at += header.size
    return count


async def until_first(*work: Coroutine[Any, Any, Any]) -> None:
    """Run several things until one of them ends, and cancel the others. Raises its error."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await next(task for task in tasks if task in done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def until_stopped(backend: Backend, work: Coroutine[Any, Any, None]) -> None:
    """Run a stream. Raises ShuttingDown when the broker stops."""

    async def stopped() -> None:
        await backend.stopping.wait()
        raise ShuttingDown("the broker is shutting down")

    await until_first(work, stopped())


def checked_bytes(field: str, given: int) -> int:
    """Return the size of responses that a request asks for."""
    if given and not MIN_BYTES <= given <= MAX_BYTES:
        raise InvalidField(field, f"must be {MIN_BYTES} to {MAX_BYTES}, not {given}")
    return given or DEFAULT_BYTES


def is_committed(field: str, isolation: int) -> bool:
    if isolation not in pb.Isolation.values():
        raise InvalidField(field, f"unknown value {isolation}")
    return isolation != pb.ISOLATION_READ_UNCOMMITTED


def is_batches(field: str, given: int) -> bool:
    if given not in pb.Format.values():
        raise InvalidField(field, f"unknown value {given}")
    return given == pb.FORMAT_RECORD_BATCH


async def resolve(
    broker: Broker, positions: Sequence[tuple[PartitionView, pb.Position]], *, committed: bool
) -> list[int]:
    """Return the offsets of positions. Raises OffsetOutOfRange."""
    by_time: dict[int, list[PartitionView]] = {}
    now_ms = broker.time.now_ms()
    for view, position in positions:
        if (timestamp_ms := _timestamp(position, now_ms)) is not None:
            by_time.setdefault(timestamp_ms, []).append(view)
    found: dict[tuple[PartitionId, int], int | None] = {}
    for timestamp_ms, views in by_time.items():
        offsets = await offsets_at_time(broker.reads, views, timestamp_ms)
        found |= {(place, timestamp_ms): offset for place, offset in offsets.items()}
    return [_offset(view, position, found, now_ms, committed=committed) for view, position in positions]


def _timestamp(position: pb.Position, now_ms: int) -> int | None:
    match position.WhichOneof("at"):
        case "timestamp_ms":
            return max(position.timestamp_ms, 0)
        case "ago_ms":
            return max(now_ms - position.ago_ms, 0)
    return None


def _offset(
    view: PartitionView,
    position: pb.Position,
    by_time: Mapping[tuple[PartitionId, int], int | None],
    now_ms: int,
    *,
    committed: bool,
) -> int:
    bounds = view.bounds
    if (timestamp_ms := _timestamp(position, now_ms)) is not None:
        at_time = by_time[view.place, timestamp_ms]
        return bounds.readable_end(committed=committed) if at_time is None else at_time
    if position.WhichOneof("at") == "offset":
        if not bounds.start_offset <= position.offset <= bounds.end_offset:
            raise OffsetOutOfRange(
                f"offset {position.offset} is outside of {bounds.start_offset} to {bounds.end_offset} "
                f"of {view.identity}"
            )
        return position.offset
    return start_of(bounds, position.start, committed=committed)


def start_of(bounds: Bounds, start: int, *, committed: bool) -> int:
    """Return the offset where a partition starts, or ends."""
    if start == m.START_LATEST:
        return bounds.readable_end(committed=committed)
    return bounds.start_offset


def add_skipped(
    response: Any, partition: TopicPartition, skipped: Iterable[Skipped], topic: str = ""
) -> None:
    """Add skipped offsets to a response."""
    for each in skipped:
        response.skipped.add(
            partition=partition.partition,
            base_offset=each.base_offset,
            count=each.count,
            reason=each.reason,
            topic=topic,
        )
