"""Reads a log: slices for readers, searches by timestamp; tells damage from a bad index."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from alpacamq.model.batch import BatchHeader, check_batch
from alpacamq.model.errors import CorruptBatch, DamagedLog, OffsetOutOfRange, StorageFailed
from alpacamq.model.ids import NO_TIMESTAMP
from alpacamq.model.ports import Disk
from alpacamq.model.records import Record, read_records

from .epochs import EpochHistory
from .handles import FileHandles, Handle
from .health import LogHealth, storage_error
from .scan import Boundary, Gap, Violation
from .segment import Segment, Segments
from .storage import Storage

# Enough for the readers at the tail of a partition; each needs one position.
MAX_POSITIONS = 64
# Larger batches, decompressed, are searched by their headers.
SEARCHED_BYTES = 64 << 20
# In the name of a partition's directory, after topic and number.
_TOPIC_ID = re.compile(r"\.[0-9a-f]{12}$")


class Slice:
    """`length` bytes at `position` of an open file. `release` it once.

    `next_offset` is the offset to read next. Unless it is `verified`, call the log's `verify` before
    serving any of it.
    """

    __slots__ = ("_health", "handle", "length", "next_offset", "position", "segment", "verified")

    def __init__(
        self,
        handle: Handle,
        segment: Segment,
        position: int,
        length: int,
        next_offset: int,
        *,
        verified: bool,
        health: LogHealth,
    ) -> None:
        self._health = health
        self.handle = handle
        self.segment = segment
        self.position = position
        self.length = length
        self.next_offset = next_offset
        self.verified = verified

    @property
    def path(self) -> Path:
        return self.segment.path

    def read(self) -> bytes:
        """Read all bytes of the slice; StorageFailed if they are not there. Blocking."""
        try:
            data = self.handle.read(self.length, self.position)
        except OSError as error:
            self.failed(error)
            raise StorageFailed(f"{self.path}: reading failed: {error.strerror or error}") from error
        if len(data) != self.length:
            raise StorageFailed(f"{self.path} ends {self.length - len(data)} bytes early")
        return data

    def failed(self, error: OSError) -> None:
        """Note that these bytes could not be read."""
        self._health.read_failed(self.path, error)

    def release(self) -> None:
        self.handle.release()


class Slicer:
    """Cuts slices out of a partition's segments.

    Caches where recent slices ended: a reader at the tail continues there without an index lookup or a
    read.
    """

    __slots__ = ("_handles", "_health", "_positions", "_segments")

    def __init__(self, segments: Segments, handles: FileHandles, health: LogHealth) -> None:
        self._segments = segments
        self._handles = handles
        self._health = health
        self._positions: dict[int, int] = {}

    def slice(self, offset: int, max_bytes: int, limit_offset: int, *, at_least_one: bool) -> Slice | None:
        """Return whole batches from the one with `offset` on, before `limit_offset` and within `max_bytes`.

        Raises DamagedLog if `offset` is in a damaged range.
        """
        segment = self._segments.active
        if offset < segment.base_offset:
            segment = self._segments.locate(offset)
        if segment.gaps:
            limit_offset = segment.readable_to(offset, limit_offset)
        start = self._boundary(segment, offset)
        if limit_offset >= segment.next_offset:
            end = Boundary(segment.next_offset, segment.size)
        else:
            end = self._boundary(segment, limit_offset)
        if end.position - start.position > max_bytes:
            cut = segment.cut(start, max_bytes, at_least_one=at_least_one)
            if cut is None:
                return None
            end = cut
        if end.position <= start.position:
            return None
        self.remember(end.offset, end.position)
        handle = self._handles.pin_for_client(segment.path)
        return Slice(
            handle,
            segment,
            start.position,
            end.position - start.position,
            end.offset,
            verified=segment.is_sound(start.position, end.position),
            health=self._health,
        )

    def remember(self, offset: int, position: int) -> None:
        """Cache that the batch at `offset` begins or will begin at `position`, unless the segment rolls."""
        places = self._positions
        places[offset] = position
        if len(places) > MAX_POSITIONS:
            del places[next(iter(places))]

    def forget_positions(self) -> None:
        """Note that batches have moved."""
        self._positions.clear()

    def _boundary(self, segment: Segment, offset: int) -> Boundary:
        if offset == segment.base_offset:
            return Boundary(offset, 0)
        # Positions cached before damage was found may be wrong.
        position = None if segment.gaps else self._positions.get(offset)
        return segment.find(offset) if position is None else Boundary(offset, position)


class TimestampOffset(NamedTuple):
    """A record found by its timestamp."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class SuspectSegment(Exception):
    """A search found bytes that are not the expected batch."""

    def __init__(self, segment: Segment, violation: Violation) -> None:
        super().__init__(str(violation))
        self.segment = segment
        self.violation = violation


class TimestampSearch(msgspec.Struct, frozen=True):
    """A search over a fixed view of the records between two offsets."""

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
        """Return the record with the largest timestamp; of several, the first."""
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
        """Return the latest record of a segment, directly if it is in the batch that the index names."""
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
        """Yield the headers from the batch with `offset` up to the limit."""
        start = segment.find(max(offset, self.start_offset, segment.base_offset))
        with segment.descriptor() as descriptor:
            for position, header in segment.headers(descriptor, start):
                if header.base_offset >= self.limit_offset:
                    return
                yield position, header

    def _records(self, segment: Segment, position: int, header: BatchHeader) -> Iterator[Record]:
        """Yield the records of one batch within the searched offsets."""
        with segment.descriptor() as descriptor:
            batch = self.disk.read(descriptor, header.size, position)
        try:
            check_batch(batch)
        except CorruptBatch as error:
            raise Violation(position, header.base_offset, str(error)) from error
        try:
            for record in read_records(batch, SEARCHED_BYTES):
                if self.start_offset <= record.offset < self.limit_offset:
                    yield record
        except CorruptBatch:
            # The batch was not decompressed when it was produced, or is too large. Fall back to its header.
            if header.base_offset >= self.start_offset:
                yield Record(header.base_offset, header.max_timestamp, None, None)


# Reads restart when they find damage, searches also when retention or compaction changes the segments.
ATTEMPTS = 5


def partition_name(directory: Path) -> str:
    """Return topic-number, from the name of a partition's directory."""
    return _TOPIC_ID.sub("", directory.name)


class LogReader:
    """Reads the segments of one log. `verify` and `search` may run in any thread."""

    __slots__ = (
        "_directory",
        "_epochs",
        "_health",
        "_note_loss",
        "_segments",
        "_slicer",
        "_storage",
        "_verifying",
    )

    def __init__(
        self,
        directory: Path,
        storage: Storage,
        segments: Segments,
        epochs: EpochHistory,
        health: LogHealth,
        note_loss: Callable[[str], None],
    ) -> None:
        """Call `note_loss` with the damage found, so that it is known after a restart, too."""
        self._directory = directory
        self._storage = storage
        self._segments = segments
        self._epochs = epochs
        self._health = health
        self._note_loss = note_loss
        self._slicer = Slicer(segments, storage.handles, health)
        self._verifying = threading.Lock()

    def read(
        self, offset: int, max_bytes: int, start_offset: int, limit_offset: int, *, at_least_one: bool
    ) -> Slice | None:
        """Read whole batches from the one with `offset` on, before `limit_offset`; None if there are none."""
        active = self._segments.active
        if not start_offset <= offset <= active.next_offset:
            raise self.out_of_range(offset, start_offset)
        if offset >= limit_offset:
            self._slicer.remember(active.next_offset, active.size)
            return None
        try:
            for _ in range(ATTEMPTS):
                try:
                    return self._slicer.slice(offset, max_bytes, limit_offset, at_least_one=at_least_one)
                except Violation:
                    self._diagnose(self._segments.locate(offset))
        except OSError as error:
            raise self._failed(self._segments.locate(offset), error) from error
        raise StorageFailed(f"{self._directory.name}: offset {offset} cannot be found")

    def out_of_range(self, offset: int, start_offset: int) -> OffsetOutOfRange:
        end_offset = self._segments.active.next_offset
        name = partition_name(self._directory)
        return OffsetOutOfRange(f"offset {offset} lies outside {start_offset} to {end_offset} of {name}")

    def verify(self, part: Slice) -> None:
        """Verify unchecked bytes up to the end of the slice.

        Raises DamagedLog if there is damage in the slice or before it: batch boundaries were uncertain
        then, and the slice has to be cut again.
        """
        segment = part.segment
        end = part.position + part.length
        found: Gap | None = None
        try:
            with self._verifying:
                while (gap := segment.verify(end, part.handle.descriptor, self._epochs)) is not None:
                    self._damaged(segment, gap)
                    found = gap
        except OSError as error:
            raise self._failed(segment, error) from error
        for gap in segment.gaps:
            # Found by another reader since the slice was cut.
            if gap.start.position < end and gap.end.position > part.position:
                found = gap
        if found is not None:
            raise segment.damage_of(found)

    def search(
        self,
        start_offset: int,
        limit_offset: int,
        find: Callable[[TimestampSearch], TimestampOffset | None],
    ) -> TimestampOffset | None:
        """Run `find` on the sound batches between two offsets; DamagedLog if it finds nothing but damage."""
        for _ in range(ATTEMPTS):
            search = TimestampSearch(self._storage.disk, tuple(self._segments), start_offset, limit_offset)
            try:
                found = find(search)
            except SuspectSegment as suspect:
                self._diagnose(suspect.segment)
                continue
            except OSError as error:
                if any(segment.is_retired for segment in search.segments):
                    continue
                raise storage_error(self._directory, "reading", error) from error
            if found is None and (damage := self._damage_between(start_offset, limit_offset)) is not None:
                raise damage
            return found
        raise StorageFailed(f"{self._directory.name}: the log keeps changing while it is searched")

    def forget_positions(self) -> None:
        """Note that batches have moved."""
        self._slicer.forget_positions()

    def _damage_between(self, start_offset: int, limit_offset: int) -> DamagedLog | None:
        if not self._health.is_damaged:
            return None
        for segment in self._segments:
            for gap in segment.gaps:
                if gap.start.offset < limit_offset and gap.end.offset > start_offset:
                    return segment.damage_of(gap)
        return None

    def _diagnose(self, segment: Segment) -> None:
        """Check a segment on which a read failed: record gaps in the log, or discard a wrong index."""
        try:
            gaps = segment.find_gaps(self._epochs)
            if segment.is_retired:
                return  # removed meanwhile; the name may mean another file
            known = {gap.start for gap in segment.gaps}
            if all(gap.start in known for gap in gaps):
                segment.index.distrust()
                return
        except OSError as error:
            if segment.is_retired:
                return
            raise self._failed(segment, error) from error
        for gap in gaps:
            segment.add_gap(gap)
            self._damaged(segment, gap)

    def _failed(self, segment: Segment, error: OSError) -> StorageFailed:
        if not segment.is_retired:
            self._health.read_failed(segment.path, error)
        return storage_error(self._directory, "reading", error)

    def _damaged(self, segment: Segment, gap: Gap) -> None:
        if segment.is_retired:
            return  # the log no longer has it
        self._health.is_damaged = True
        with suppress(OSError):
            self._note_loss(str(segment.damage_of(gap)))
        self._health.on_failure()
