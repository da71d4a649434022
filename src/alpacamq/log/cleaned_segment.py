"""The files compaction reads and writes: sealed segments in, cleaned segments out.

Owns reading a segment batch by batch in bounded memory, with every batch verified, and writing
a cleaned one so that what did not change is not written again. What is kept is `compaction`'s
business.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from alpacamq.model.batch import (
    FRAME_BYTES,
    HEADER_BYTES,
    MAGIC,
    MIN_BATCH_LENGTH,
    BatchHeader,
    checksum,
    read_header,
)
from alpacamq.model.errors import DamagedLog
from alpacamq.model.ids import NO_TIMESTAMP
from alpacamq.model.ports import Buffer, Disk
from alpacamq.model.topics import INT32_MAX

READ_BYTES = 256 << 10
WRITE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSegment:
    """A segment file that no longer grows. `end_offset` is the next segment's base offset."""

    path: Path
    base_offset: int
    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedSegment:
    """A file to put in place of `replaces`; `max_timestamp` is -1 where no record is left."""

    path: Path
    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int
    replaces: tuple[SealedSegment, ...]


class StoredBatch(NamedTuple):
    """One whole batch, its checksum verified, and where it lies."""

    segment: SealedSegment
    position: int
    header: BatchHeader
    data: memoryview


def stored_batches(disk: Disk, segment: SealedSegment, pace: Callable[[int], None]) -> Generator[StoredBatch]:
    """Every batch of a segment in order; DamagedLog at the first that is not as it was written."""
    window = _Window(disk, segment)
    try:
        position, expected = 0, segment.base_offset
        while position < segment.size_bytes:
            header = read_header(window.at(position, HEADER_BYTES))
            if reason := _implausible(header, segment, position, expected):
                raise DamagedLog(segment.path, position, reason)
            data = window.at(position, header.size)
            if checksum(data) != header.crc:
                raise DamagedLog(
                    segment.path, position, f"the batch at offset {expected} does not match its checksum"
                )
            yield StoredBatch(segment, position, header, data)
            pace(header.size)
            position += header.size
            expected = header.next_offset
        if expected != segment.end_offset:
            raise DamagedLog(
                segment.path, position, f"it ends before offset {expected}, not {segment.end_offset}"
            )
    finally:
        window.close()


def _implausible(header: BatchHeader, segment: SealedSegment, position: int, expected: int) -> str | None:
    """What is wrong with a header, checked before its length is believed."""
    if header.magic != MAGIC:
        return f"batch format {header.magic} instead of {MAGIC}"
    if header.base_offset != expected:
        return f"offset {header.base_offset} where {expected} should follow"
    if not MIN_BATCH_LENGTH <= header.batch_length <= segment.size_bytes - position - FRAME_BYTES:
        return f"a batch of {header.batch_length} bytes cannot be here"
    if header.last_offset_delta < 0 or header.next_offset > segment.end_offset:
        return f"last offset delta {header.last_offset_delta} leads out of the segment"
    return None


class _Window:
    """The part of a segment file that is in memory: one read, or one batch where that is larger."""

    def __init__(self, disk: Disk, segment: SealedSegment) -> None:
        self._disk = disk
        self._segment = segment
        self._descriptor = disk.open(segment.path)
        self._bytes = memoryview(b"")
        self._start = 0

    def at(self, position: int, size: int) -> memoryview:
        """`size` bytes from `position`, which never goes back."""
        if position + size > self._start + len(self._bytes):
            wanted = min(max(size, READ_BYTES), self._segment.size_bytes - position)
            self._bytes = memoryview(self._disk.read(self._descriptor, wanted, position))
            self._start = position
            if len(self._bytes) < size:
                raise DamagedLog(
                    self._segment.path, position, f"{size} bytes should follow but only {len(self._bytes)} do"
                )
        return self._bytes[position - self._start : position - self._start + size]

    def close(self) -> None:
        self._disk.close(self._descriptor)


class CleanedFile:
    """One cleaned segment in the making.

    Nothing is written while it equals the first segment it stands for; from the first difference
    on, it is a file. Not durable before `finish`.
    """

    def __init__(self, disk: Disk, directory: Path, first: SealedSegment) -> None:
        self.path = directory / f"{first.base_offset:020d}.log.cleaned"
        self.size_bytes = 0
        self._sources = [first]
        self._max_timestamp = int(NO_TIMESTAMP)
        self._disk = disk
        self._descriptor: int | None = None
        self._written_bytes = 0
        self._pending = bytearray()

    def joined_by(self, segment: SealedSegment, segment_bytes: int) -> bool:
        """Take the next segment in as well if there is room for it, uncleaned as it still is."""
        fits = (
            self.size_bytes + segment.size_bytes <= segment_bytes
            and segment.end_offset - self._sources[0].base_offset <= INT32_MAX
        )
        if fits:
            self._sources.append(segment)
            if self._descriptor is None:
                self._begin_file()
        return fits

    def add(self, data: Buffer, origin: StoredBatch | None) -> None:
        """Append a batch; `origin` says where exactly these bytes were read, if they were."""
        self._max_timestamp = max(self._max_timestamp, read_header(data).max_timestamp)
        if self._descriptor is None and (origin is None or origin.position != self.size_bytes):
            self._begin_file()
        self.size_bytes += len(data)
        if self._descriptor is not None:
            self._pending += data
            if len(self._pending) >= WRITE_BYTES:
                self._flush(self._descriptor)

    def finish(self) -> CleanedSegment | None:
        """Put everything on the medium; None if the segment can stay as it is."""
        if self._descriptor is None:
            return None
        self._flush(self._descriptor)
        self._disk.sync(self._descriptor)
        self.close()
        return CleanedSegment(
            path=self.path,
            base_offset=self._sources[0].base_offset,
            end_offset=self._sources[-1].end_offset,
            size_bytes=self.size_bytes,
            max_timestamp=self._max_timestamp,
            replaces=tuple(self._sources),
        )

    def close(self) -> None:
        if self._descriptor is not None:
            self._disk.close(self._descriptor)
            self._descriptor = None

    def _begin_file(self) -> None:
        """Make the file and give it what has been the same so far."""
        self._descriptor = self._disk.open(self.path, create=True)
        # A leftover of this name may be longer than what is written now.
        self._disk.truncate(self._descriptor, 0)
        source = self._disk.open(self._sources[0].path)
        try:
            while (rest := self.size_bytes - self._written_bytes) > 0:
                self._pending += self._disk.read(source, min(WRITE_BYTES, rest), self._written_bytes)
                if not self._pending:
                    raise DamagedLog(self._sources[0].path, self._written_bytes, "bytes read before are gone")
                self._flush(self._descriptor)
        finally:
            self._disk.close(source)

    def _flush(self, descriptor: int) -> None:
        self._disk.write(descriptor, [self._pending], self._written_bytes)
        self._written_bytes += len(self._pending)
        self._pending = bytearray()
