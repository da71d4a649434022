"""Reading a partition as records, for the doors that answer with messages rather than batches.

Leaves out what is no message (markers) and, for those who read only what is committed, what was
aborted. Each step reads a bounded piece of the log, most of them in a thread.
"""

import asyncio
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from alpacamq.log.slice import Slice
from alpacamq.model.batch import FRAME_BYTES, check_batch, read_header
from alpacamq.model.compression import TooMuchData
from alpacamq.model.control import read_marker
from alpacamq.model.errors import DamagedLog, StorageFailed
from alpacamq.model.records import Record, read_records

from .partition import Partition

# A piece up to this size that is known to be sound is unpacked at once: a thread would cost more.
_AT_ONCE_BYTES = 16 << 10
_UNPACKED_AT_ONCE_BYTES = 256 << 10
# Pieces that may hold nothing for the reader before it is told so, to ask again from there.
_PIECES = 16
_RECORD_BYTES = 16


class Aborted(Protocol):
    """A producer's transaction that was aborted, by where it begins."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much to read: records, and bytes of them. One record is always read, however large."""

    records: int
    size_bytes: int
    before_offset: int


class Page(NamedTuple):
    """Records in order, and where to go on."""

    records: list[Record]
    next_offset: int
    size_bytes: int = 0


class RecordReader:
    """Reads records of any partition."""

    def __init__(self, executor: Executor, unpacked_limit_bytes: int) -> None:
        self._executor = executor
        self._unpacked_limit_bytes = unpacked_limit_bytes

    async def read(self, partition: Partition, offset: int, limits: Limits, *, committed: bool) -> Page:
        """What there is from `offset` on; OffsetOutOfRange outside of the log.

        Empty, with a later offset, where a long stretch of the log holds nothing to be shown.
        """
        for _ in range(_PIECES):
            if limits.records < 1 or offset >= limits.before_offset:
                break
            end_offset = partition.last_stable_offset if committed else partition.high_watermark
            part = partition.read(offset, max(limits.size_bytes, 1), end_offset, at_least_one=True)
            if part is None:
                break
            aborted: Sequence[Aborted] = ()
            if committed:
                aborted = partition.log.transactions.aborted_between(offset, part.next_offset)
            try:
                page = await self._unpacked(partition, part, _Wanted(offset, limits, aborted))
            except DamagedLog:
                continue  # what lies before the damage can be read, if that is where we are
            if page.records:
                return page
            offset = page.next_offset
        return Page([], offset)

    async def _unpacked(self, partition: Partition, part: Slice, wanted: "_Wanted") -> Page:
        if part.verified and part.length <= _AT_ONCE_BYTES:
            try:
                page = _page(part, wanted, _UNPACKED_AT_ONCE_BYTES)
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
        # The file stays open until the thread is done with it, although nobody may wait for it by then.
        unpacking.add_done_callback(lambda _: part.release())
        return await asyncio.shield(unpacking)

    def _verified_page(self, partition: Partition, part: Slice, wanted: "_Wanted") -> Page:
        if not part.verified:
            partition.log.verify(part)
        return _page(part, wanted, self._unpacked_limit_bytes)


class _Wanted(NamedTuple):
    offset: int
    limits: Limits
    aborted: Sequence[Aborted]


def _page(part: Slice, wanted: _Wanted, limit_bytes: int) -> Page:
    offset, limits, aborted = wanted
    data = os.pread(part.handle.descriptor, part.length, part.position)
    if len(data) != part.length:
        raise StorageFailed(f"{part.path} ends {part.length - len(data)} bytes early")
    records: list[Record] = []
    size_bytes = 0
    for record in _records(memoryview(data), aborted, limit_bytes):
        if record.offset < offset:
            continue
        if record.offset >= limits.before_offset:
            return Page(records, limits.before_offset, size_bytes)
        record_bytes = _size(record)
        if records and (len(records) >= limits.records or size_bytes + record_bytes > limits.size_bytes):
            return Page(records, record.offset, size_bytes)
        records.append(record)
        size_bytes += record_bytes
    return Page(records, min(part.next_offset, limits.before_offset), size_bytes)


def _records(view: memoryview, aborted: Sequence[Aborted], limit_bytes: int) -> Iterator[Record]:
    """The records of whole batches, save those of the aborted transactions."""
    beginning = deque(sorted(aborted, key=lambda each: each.first_offset))
    hidden: set[int] = set()
    at = 0
    while at < len(view):
        header = read_header(view, at)
        batch = view[at : at + FRAME_BYTES + header.batch_length]
        at += len(batch)
        check_batch(batch)
        while beginning and beginning[0].first_offset <= header.last_offset:
            hidden.add(beginning.popleft().producer_id)
        if header.is_control:
            if header.producer_id in hidden and read_marker(batch) is not None:
                hidden.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in hidden):
            yield from read_records(batch, limit_bytes)


def _size(record: Record) -> int:
    size = _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"")
    return size
