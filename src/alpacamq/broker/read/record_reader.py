"""Reads a partition as records, for the HTTP and SQS APIs.

Skips markers and, for committed reads, aborted transactions. Damaged batches and those that do not unpack
are skipped and reported in the page. Each step reads a bounded piece of the log, usually in a thread.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

import msgspec

from alpacamq.broker.partition.leader import Partition
from alpacamq.log.reader import Slice
from alpacamq.model.batch import FRAME_BYTES, BatchHeader, check_batch, read_header
from alpacamq.model.compression import TooMuchData
from alpacamq.model.control import CommittedFilter
from alpacamq.model.errors import CorruptBatch, DamagedLog
from alpacamq.model.records import Record, read_records
from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)

# A verified piece up to this size is unpacked at once: a thread would cost more.
_AT_ONCE_BYTES = 16 << 10
_UNPACKED_AT_ONCE_BYTES = 256 << 10
# Pieces without visible records after which an empty page is returned, with the offset to continue at.
_PIECES = 16
_RECORD_BYTES = 16
# This many skipped batches end a page.
_MAX_SKIPPED = 100


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one read. One record is always read, however large."""

    records: int
    size_bytes: int
    before_offset: int


class Skipped(msgspec.Struct, frozen=True):
    """A range of unreadable offsets, and the reason."""

    base_offset: int
    count: int
    reason: str


class Page(NamedTuple):
    """Records in order, the offset to continue at, and skipped ranges."""

    records: list[Record]
    next_offset: int
    size_bytes: int = 0
    skipped: Sequence[Skipped] = ()


class RecordReader:
    """Reads records of any partition."""

    def __init__(self, executor: Executor, unpacked_limit_bytes: int) -> None:
        self._executor = executor
        self._unpacked_limit_bytes = unpacked_limit_bytes

    async def read(self, partition: Partition, offset: int, limits: Limits, *, committed: bool) -> Page:
        """Read records from `offset` on; raises OffsetOutOfRange outside of the log.

        Returns an empty page with a later offset if a long range of the log has no visible records.
        """
        skipped: list[Skipped] = []
        for _ in range(_PIECES):
            if limits.records < 1 or offset >= limits.before_offset or len(skipped) >= _MAX_SKIPPED:
                break
            end_offset = partition.last_stable_offset if committed else partition.high_watermark
            try:
                part = partition.read(offset, max(limits.size_bytes, 1), end_offset, at_least_one=True)
            except DamagedLog as error:
                if error.offsets is None:
                    raise
                next_offset = min(error.offsets[1], end_offset, limits.before_offset)
                skipped.append(Skipped(offset, next_offset - offset, str(error)))
                offset = next_offset
                continue
            if part is None:
                break
            aborted: Sequence[tuple[int, int]] = ()
            if committed:
                aborted = partition.aborted_between(offset, part.next_offset)
            try:
                page = await self._unpacked(partition, part, _Range(offset, limits, aborted))
            except DamagedLog:
                continue  # batches around the damage can be read
            skipped += page.skipped
            if page.records:
                return self._report_skipped(partition, page._replace(skipped=skipped))
            offset = page.next_offset
        return self._report_skipped(partition, Page([], offset, skipped=skipped))

    def _report_skipped(self, partition: Partition, page: Page) -> Page:
        partition.skipped_batches += len(page.skipped)
        for each in page.skipped:
            log.warning(
                "unreadable_batch",
                partition=str(partition.identity),
                base_offset=each.base_offset,
                reason=each.reason,
            )
        return page

    async def _unpacked(self, partition: Partition, part: Slice, wanted: "_Range") -> Page:
        if part.verified and part.length <= _AT_ONCE_BYTES:
            try:
                page = _page(part, wanted, _UNPACKED_AT_ONCE_BYTES, may_skip_large=False)
            except TooMuchData:
                pass  # packed tightly: not for the event loop
            except BaseException:
                part.release()
                raise
            else:
                part.release()
                return page
        unpacking = asyncio.get_running_loop().run_in_executor(
            self._executor, self._verified_page, partition, part, wanted
        )
        # The file stays open until the thread is done, even if the reader is cancelled.
        unpacking.add_done_callback(lambda _: part.release())
        return await asyncio.shield(unpacking)

    def _verified_page(self, partition: Partition, part: Slice, wanted: "_Range") -> Page:
        if not part.verified:
            partition.verify(part)
        return _page(part, wanted, self._unpacked_limit_bytes, may_skip_large=True)


class _Range(NamedTuple):
    offset: int
    limits: Limits
    aborted: Sequence[tuple[int, int]]


def _page(part: Slice, wanted: _Range, limit_bytes: int, *, may_skip_large: bool) -> Page:
    """Read the records of a slice. A batch that unpacks to too much is skipped, or raises TooMuchData."""
    offset, limits, aborted = wanted
    data = part.read()
    records: list[Record] = []
    skipped: list[Skipped] = []
    size_bytes = 0
    for header, batch in _visible_batches(memoryview(data), aborted):
        if header.base_offset >= limits.before_offset:
            return Page(records, limits.before_offset, size_bytes, skipped)
        if len(records) >= limits.records or len(skipped) >= _MAX_SKIPPED:
            return Page(records, header.base_offset, size_bytes, skipped)
        before, before_bytes = len(records), size_bytes
        try:
            check_batch(batch)
            for record in read_records(batch, limit_bytes):
                if record.offset < offset:
                    continue
                if record.offset >= limits.before_offset:
                    return Page(records, limits.before_offset, size_bytes, skipped)
                record_bytes = _size(record)
                is_full = len(records) >= limits.records or size_bytes + record_bytes > limits.size_bytes
                if records and is_full:
                    return Page(records, record.offset, size_bytes, skipped)
                records.append(record)
                size_bytes += record_bytes
        except CorruptBatch as error:
            if isinstance(error, TooMuchData) and not may_skip_large:
                raise
            # Nothing of a corrupt batch is trusted.
            del records[before:]
            size_bytes = before_bytes
            first = max(header.base_offset, offset)
            skipped.append(Skipped(first, header.next_offset - first, str(error)))
    return Page(records, min(part.next_offset, limits.before_offset), size_bytes, skipped)


def _visible_batches(
    view: memoryview, aborted: Iterable[tuple[int, int]]
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield whole batches, except markers and those of aborted transactions."""
    committed = CommittedFilter(aborted)
    at = 0
    while at < len(view):
        header = read_header(view, at)
        batch = view[at : at + FRAME_BYTES + header.batch_length]
        at += len(batch)
        if committed.shows(header, batch):
            yield header, batch


def _size(record: Record) -> int:
    size = _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"")
    return size
