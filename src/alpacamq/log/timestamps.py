"""Search by time: the first record at or after a moment, and the record with the latest timestamp.

The time index says where to start; batch headers lead to the one batch that is opened.
Blocking, and safe in a thread while the log grows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from alpacamq.model.batch import BatchHeader, check_batch
from alpacamq.model.errors import CorruptBatch
from alpacamq.model.ids import NO_TIMESTAMP
from alpacamq.model.ports import Disk
from alpacamq.model.records import Record, read_records

from .scan import Violation
from .segment import Segment


class TimestampOffset(NamedTuple):
    """A record found by its timestamp."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class SuspectSegment(Exception):
    """A search came upon bytes that are not what they should be."""

    def __init__(self, segment: Segment, violation: Violation) -> None:
        super().__init__(str(violation))
        self.segment = segment
        self.violation = violation


@dataclass(frozen=True, slots=True)
class TimestampSearch:
    """The records between two offsets of a log, as they are at one moment."""

    disk: Disk
    segments: Sequence[Segment]
    start_offset: int
    limit_offset: int

    def first_at_or_after(self, timestamp_ms: int) -> TimestampOffset | None:
        for segment in self._readable():
            try:
                if segment.index.largest()[0] < timestamp_ms:
                    continue
                for position, header in self._headers(segment, segment.index.before(timestamp_ms)):
                    if header.max_timestamp < timestamp_ms:
                        continue
                    for record in self._records(segment, position, header):
                        if record.timestamp_ms >= timestamp_ms:
                            return TimestampOffset(record.offset, record.timestamp_ms, header.leader_epoch)
            except Violation as violation:
                raise SuspectSegment(segment, violation) from violation
        return None

    def latest(self) -> TimestampOffset | None:
        """The record with the largest timestamp; of several, the first."""
        best: TimestampOffset | None = None
        for segment in self._readable():
            try:
                timestamp, offset = segment.index.largest()
                if timestamp == NO_TIMESTAMP or (best is not None and timestamp <= best.timestamp_ms):
                    continue
                found = self._latest_in(segment, offset, timestamp)
            except Violation as violation:
                raise SuspectSegment(segment, violation) from violation
            if found is not None and (best is None or found.timestamp_ms > best.timestamp_ms):
                best = found
        return best

    def _latest_in(self, segment: Segment, offset: int, timestamp: int) -> TimestampOffset | None:
        """The latest record of a segment, at once if it is in the batch that the index names."""
        if self.start_offset <= offset < self.limit_offset:
            for position, header in self._headers(segment, offset):
                for record in self._records(segment, position, header):
                    if record.timestamp_ms == timestamp:
                        return TimestampOffset(record.offset, record.timestamp_ms, header.leader_epoch)
                break
        best: TimestampOffset | None = None
        for position, header in self._headers(segment, segment.base_offset):
            if header.max_timestamp > (NO_TIMESTAMP if best is None else best.timestamp_ms):
                for record in self._records(segment, position, header):
                    if best is None or record.timestamp_ms > best.timestamp_ms:
                        best = TimestampOffset(record.offset, record.timestamp_ms, header.leader_epoch)
        return best

    def _readable(self) -> Iterator[Segment]:
        for segment in self.segments:
            if segment.base_offset < self.limit_offset and segment.next_offset > self.start_offset:
                yield segment

    def _headers(self, segment: Segment, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """The headers from the batch with `offset` to the limit."""
        start = segment.find(max(offset, self.start_offset, segment.base_offset))
        with segment.descriptor() as descriptor:
            for position, header in segment.headers(descriptor, start):
                if header.base_offset >= self.limit_offset:
                    return
                yield position, header

    def _records(self, segment: Segment, position: int, header: BatchHeader) -> Iterator[Record]:
        """The records of one batch that are within the offsets searched."""
        with segment.descriptor() as descriptor:
            batch = self.disk.read(descriptor, header.size, position)
        try:
            check_batch(batch)
        except CorruptBatch as error:
            raise Violation(position, header.base_offset, str(error)) from error
        try:
            for record in read_records(batch):
                if self.start_offset <= record.offset < self.limit_offset:
                    yield record
        except CorruptBatch:
            # Nobody unpacked it when it was produced. Its header is all there is to go by.
            if header.base_offset >= self.start_offset:
                yield Record(header.base_offset, header.max_timestamp, None, None)
