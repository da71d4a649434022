"""Compaction of sealed segments: keeps the last value per key and drops older ones.

Everything here blocks and is meant for a thread. Files that readers use are not touched: `clean`
writes synced files named `<base offset>.log.cleaned` and lists the sealed segments that each of them
replaces. The caller swaps them in *in the order given*, lowest offsets first: a crash between two
swaps must not bring back a value whose tombstone is already gone. A `.cleaned` file found at start
is a leftover and can be removed.

Guarantees for a cleaned file:
- It covers exactly the offsets of the segments it replaces. Offsets stay contiguous from
  batch to batch: a run of batches that were dropped becomes one batch without records.
- A batch kept whole is the same bytes. A batch kept in part keeps its offsets, leader epoch,
  compression, producer id, epoch and base sequence, so a producer's last sequence is its base
  sequence plus the last offset *delta*, whatever its record count. Timestamps read the same.
- Control batches, records without key, and batches whose records cannot be read stay as they are.
- The last batch of a producer stays, if need be without records: a replica that is copied from this log
  learns the producer's sequence from it.

A tombstone stays for delete.retention.ms from the compaction that first saw it. The batch carries
that deadline itself: attribute bit 6 means that the base timestamp is the deadline, to which the
records' timestamp deltas then relate.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from hashlib import blake2b
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import msgspec

from alpacamq.model.batch import (
    DELETE_HORIZON,
    FRAME_BYTES,
    HEADER_BYTES,
    MAGIC,
    MIN_BATCH_LENGTH,
    TRANSACTIONAL,
    BatchHeader,
    checksum,
    read_header,
)
from alpacamq.model.errors import CorruptBatch, DamagedLog
from alpacamq.model.ids import NO_TIMESTAMP
from alpacamq.model.ports import Buffer, Disk
from alpacamq.model.records import Record, read_records, write_batch
from alpacamq.model.topics import INT32_MAX, INT64_MAX, TopicConfig

READ_BYTES = 256 << 10
WRITE_BYTES = 1 << 20


class SealedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment file that does not grow any more. `end_offset` is the next segment's base offset."""

    path: Path
    base_offset: int
    end_offset: int
    size_bytes: int


class CleanedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A file that replaces the segments `replaces`; `max_timestamp` is -1 if no record is left."""

    path: Path
    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int
    replaces: tuple[SealedSegment, ...]


class StoredBatch(NamedTuple):
    """One batch with verified checksum, and its position."""

    segment: SealedSegment
    position: int
    header: BatchHeader
    data: memoryview


def stored_batches(disk: Disk, segment: SealedSegment, pace: Callable[[int], None]) -> Generator[StoredBatch]:
    """Yield every batch of a segment in order. Raises DamagedLog at the first unsound one."""
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
    """Check a header before its length is used; return what is wrong with it."""
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
    """The part of a segment file in memory: one read, or one batch if that is larger."""

    def __init__(self, disk: Disk, segment: SealedSegment) -> None:
        self._disk = disk
        self._segment = segment
        self._descriptor = disk.open(segment.path)
        self._bytes = memoryview(b"")
        self._start = 0

    def at(self, position: int, size: int) -> memoryview:
        """Return `size` bytes from `position`, which must not decrease."""
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
    """A cleaned segment being written.

    Nothing is written while it equals the first segment that it replaces; the file is created at the
    first difference. Not durable before `finish`.
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
        """Add the next segment if it fits at its uncleaned size; return whether it did."""
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
        """Append a batch; `origin` is where these exact bytes were read, if anywhere."""
        self._max_timestamp = max(self._max_timestamp, read_header(data).max_timestamp)
        if self._descriptor is None and (origin is None or origin.position != self.size_bytes):
            self._begin_file()
        self.size_bytes += len(data)
        if self._descriptor is not None:
            self._pending += data
            if len(self._pending) >= WRITE_BYTES:
                self._flush(self._descriptor)

    def finish(self) -> CleanedSegment | None:
        """Make the file durable; None if the segment need not change."""
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
        """Create the file and copy what has been equal so far."""
        self._descriptor = self._disk.open(self.path, create=True)
        # A leftover file of this name may be longer than the new one.
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


__all__ = ["Cleaned", "CleanedSegment", "SealedSegment", "clean", "is_due"]

DEFAULT_MAX_KEYS = 250_000
# Larger batches are decoded twice instead of held in memory: a small compressed batch can contain
# millions of records.
HELD_RECORDS = 50_000
MAX_NOTES = 10
# How long overdue tombstones stay at least that some replica did not have.
RETRY_TOMBSTONES_MS = 60_000


class Cleaned(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a compaction. Segments without changes are not in `segments`.

    `first_dirty_offset` is before the end of the last segment if there were more keys than the map
    holds; it need not be the first offset of a batch. `next_deadline_ms` is when the first kept
    tombstone may be dropped.
    """

    segments: tuple[CleanedSegment, ...]
    first_dirty_offset: int
    records_kept: int
    records_dropped: int
    bytes_before: int
    bytes_after: int
    next_deadline_ms: int | None
    notes: tuple[str, ...]


def is_due(clean_bytes: int, dirty_bytes: int, ratio: float) -> bool:
    """Return whether the uncleaned part is at least `ratio` of the whole."""
    return dirty_bytes > 0 and dirty_bytes >= ratio * (clean_bytes + dirty_bytes)


def clean(
    segments: Sequence[SealedSegment],
    *,
    first_dirty_offset: int,
    config: TopicConfig,
    now_ms: int,
    disk: Disk,
    directory: Path,
    is_aborted: Callable[[BatchHeader], bool] = lambda _: False,
    is_last_of_producer: Callable[[BatchHeader], bool] = lambda _: False,
    tombstone_limit_offset: int = INT64_MAX,
    max_keys: int = DEFAULT_MAX_KEYS,
    pace: Callable[[int], None] = lambda _: None,
) -> Cleaned:
    """Clean `segments`: all sealed segments of a log, in order and contiguous.

    Raises DamagedLog for unsound bytes, and OSError as the disk does; then no cleaned file is left.
    Tombstones from `tombstone_limit_offset` on stay. Drops batches for which `is_aborted` is true; every
    transaction in `segments` has ended. Of batches for which `is_last_of_producer` is true at least the
    header stays. `pace` is called with the size of every batch read: it may sleep to spare the machine, or
    raise to cancel.
    """
    keys = OffsetMap(first_dirty_offset, max_keys, is_aborted)
    for segment in segments:
        if keys.is_full or segment.end_offset <= first_dirty_offset:
            continue
        with closing(stored_batches(disk, segment, pace)) as batches:
            for batch in batches:
                keys.add(batch)
                if keys.is_full:
                    break
    rewriting = _Rewriting(
        keys, is_aborted, is_last_of_producer, tombstone_limit_offset, config, now_ms, disk, directory
    )
    try:
        for segment in segments:
            if segment.base_offset >= keys.end_offset:
                break
            rewriting.begin(segment)
            with closing(stored_batches(disk, segment, pace)) as batches:
                for batch in batches:
                    rewriting.add(batch)
        return rewriting.finish()
    except BaseException:
        rewriting.abandon()
        raise
    finally:
        keys.clear()


def _digest(key: bytes) -> bytes:
    """Hash a key, so that the map's memory does not depend on key lengths."""
    return blake2b(key, digest_size=16).digest()


class OffsetMap:
    """The last offset of every key from the first dirty offset up to `end_offset`."""

    def __init__(
        self,
        first_dirty_offset: int,
        max_keys: int,
        is_aborted: Callable[[BatchHeader], bool] = lambda _: False,
    ) -> None:
        assert max_keys > 0
        self._is_aborted = is_aborted
        self.end_offset = first_dirty_offset
        self.is_full = False
        self._first_dirty_offset = first_dirty_offset
        self._max_keys = max_keys
        # Split by the digest's first byte: growing or freeing one large table would block other threads.
        self._offsets: list[dict[bytes, int]] = [{} for _ in range(256)]
        self._count = 0

    def clear(self) -> None:
        """Free the memory, one table at a time."""
        while self._offsets:
            self._offsets.pop()

    def is_superseded(self, record: Record) -> bool:
        """Return whether a later record has this record's key."""
        if record.key is None:
            return False
        digest = _digest(record.key)
        return self._offsets[digest[0]].get(digest, record.offset) > record.offset

    def add(self, batch: StoredBatch) -> None:
        """Add the keys of the next batch.

        A batch that does not fit is left out as a whole, unless it is the only one: then it is added in
        part, so that every compaction makes progress.
        """
        next_offset = batch.header.next_offset
        if next_offset <= self._first_dirty_offset:
            return
        fresh: dict[bytes, int] = {}
        full_at: int | None = None
        # Aborted records never were a key's value.
        if not batch.header.is_control and not self._is_aborted(batch.header):
            with suppress(CorruptBatch):  # the second pass keeps such a batch and reports it
                full_at = self._collect(batch, fresh)
                if full_at is not None and self._count:
                    fresh, full_at = {}, batch.header.base_offset
                self._enter(fresh)
        self.is_full = full_at is not None
        self.end_offset = next_offset if full_at is None else full_at

    def _collect(self, batch: StoredBatch, fresh: dict[bytes, int]) -> int | None:
        """Add a batch's keys to `fresh`; return the offset of the first key that does not fit."""
        room = self._max_keys - self._count
        full_at: int | None = None
        # Read to the end even when full: keys count only if the whole batch is readable.
        for record in read_records(batch.data):
            if record.key is None or record.offset < self._first_dirty_offset or full_at is not None:
                continue
            digest = _digest(record.key)
            if digest not in fresh and digest not in self._offsets[digest[0]]:
                if room == 0:
                    full_at = record.offset
                    continue
                room -= 1
            fresh[digest] = record.offset
        return full_at

    def _enter(self, fresh: dict[bytes, int]) -> None:
        for digest, offset in fresh.items():
            table = self._offsets[digest[0]]
            self._count += digest not in table
            table[digest] = offset


class _Gap:
    """Adjacent dropped batches, to be written as one batch without records."""

    def __init__(self, first: StoredBatch) -> None:
        self._base_offset = first.header.base_offset
        self._last_offset = first.header.last_offset
        self._leader_epoch = first.header.leader_epoch
        # A gap left by an earlier compaction keeps its bytes unless another batch joins it.
        is_gap = first.header.record_count == 0 and first.header.producer_id < 0
        self.origin = first if is_gap else None

    def joined_by(self, batch: StoredBatch) -> bool:
        """Add the next batch if one header can still describe the gap; return whether it did."""
        header = batch.header
        if header.leader_epoch != self._leader_epoch or header.last_offset - self._base_offset > INT32_MAX:
            return False
        self._last_offset = header.last_offset
        self.origin = None
        return True

    def filler(self) -> Buffer:
        if self.origin is not None:
            return self.origin.data
        return write_batch(
            (),
            base_offset=self._base_offset,
            last_offset=self._last_offset,
            leader_epoch=self._leader_epoch,
        )


class _Rewriting:
    """The second pass: decides which records to keep, and keeps the output contiguous."""

    def __init__(
        self,
        keys: OffsetMap,
        is_aborted: Callable[[BatchHeader], bool],
        is_last_of_producer: Callable[[BatchHeader], bool],
        tombstone_limit_offset: int,
        config: TopicConfig,
        now_ms: int,
        disk: Disk,
        directory: Path,
    ) -> None:
        self._keys = keys
        self._is_aborted = is_aborted
        self._is_last_of_producer = is_last_of_producer
        self._tombstone_limit_offset = tombstone_limit_offset
        self._now_ms = now_ms
        self._new_deadline_ms = min(now_ms + config.delete_retention_ms, INT64_MAX)
        self._segment_bytes = config.segment_bytes
        self._disk = disk
        self._directory = directory
        self._files: list[CleanedFile] = []
        self._gap: _Gap | None = None
        self._cleaned: list[CleanedSegment] = []
        self._records_before = self._records_after = self._bytes_before = 0
        self._next_deadline_ms: int | None = None
        self._notes: list[str] = []
        self._unreadable = 0

    def begin(self, segment: SealedSegment) -> None:
        """Start the next segment."""
        self._bytes_before += segment.size_bytes
        if self._files and self._files[-1].joined_by(segment, self._segment_bytes):
            return
        self._close_file()
        self._files.append(CleanedFile(self._disk, self._directory, segment))

    def add(self, batch: StoredBatch) -> None:
        self._records_before += batch.header.record_count
        kept = self._rewrite(batch)
        if kept is None:
            if self._gap is None or not self._gap.joined_by(batch):
                self._close_gap()
                self._gap = _Gap(batch)
            return
        self._close_gap()
        header = read_header(kept)
        self._records_after += header.record_count
        if header.attributes & DELETE_HORIZON:
            deadline_ms = header.base_timestamp
            if header.next_offset > self._tombstone_limit_offset:
                # Nothing tells when the other replicas have it: look again later, not all the time.
                deadline_ms = max(deadline_ms, self._now_ms + RETRY_TOMBSTONES_MS)
            known = self._next_deadline_ms
            self._next_deadline_ms = deadline_ms if known is None else min(known, deadline_ms)
        self._files[-1].add(kept, batch if kept is batch.data else None)

    def finish(self) -> Cleaned:
        self._close_file()
        if self._unreadable > len(self._notes):
            self._notes.append(f"{self._unreadable - len(self._notes)} more batches were kept unread")
        return Cleaned(
            segments=tuple(self._cleaned),
            first_dirty_offset=self._keys.end_offset,
            records_kept=self._records_after,
            records_dropped=self._records_before - self._records_after,
            bytes_before=self._bytes_before,
            bytes_after=sum(file.size_bytes for file in self._files),
            next_deadline_ms=self._next_deadline_ms,
            notes=tuple(self._notes),
        )

    def abandon(self) -> None:
        """Remove the files written. Those that cannot be removed are removed at the next start."""
        for file in self._files:
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                self._disk.remove(file.path)

    def _close_file(self) -> None:
        self._close_gap()
        if self._files and (cleaned := self._files[-1].finish()):
            self._cleaned.append(cleaned)

    def _close_gap(self) -> None:
        if self._gap is not None:
            self._files[-1].add(self._gap.filler(), self._gap.origin)
            self._gap = None

    def _rewrite(self, batch: StoredBatch) -> Buffer | None:
        """Return the batch to write: the same object if all of it stays, None if nothing does."""
        header = batch.header
        if header.base_offset >= self._keys.end_offset or header.is_control:
            return batch.data
        if header.record_count == 0 or self._is_aborted(header):
            return self._without_records(batch)
        deadline_ms = header.base_timestamp if header.attributes & DELETE_HORIZON else None
        # If the map holds a batch only in part, its tombstones may still hide values outside the map.
        is_mapped = header.next_offset <= self._keys.end_offset
        is_overdue = is_mapped and self._may_drop_tombstones(header, deadline_ms)

        try:
            records = _records(batch)
            stays = bytearray()
            keeps_tombstones = False
            for record in records():
                if record.timestamp_ms < NO_TIMESTAMP:
                    raise CorruptBatch(f"a record has timestamp {record.timestamp_ms}")
                is_tombstone = record.value is None and record.key is not None
                keep = not (is_tombstone and is_overdue) and not self._keys.is_superseded(record)
                keeps_tombstones |= keep and is_tombstone
                stays.append(keep)
        except CorruptBatch as error:
            self._unreadable += 1
            if len(self._notes) < MAX_NOTES:
                self._notes.append(f"{batch.segment.path} at byte {batch.position} is kept unread: {error}")
            return batch.data
        if not any(stays):
            return self._without_records(batch)
        new_deadline_ms = deadline_ms
        if not keeps_tombstones:
            new_deadline_ms = None
        elif is_mapped and deadline_ms is None:
            new_deadline_ms = self._new_deadline_ms
        if all(stays) and new_deadline_ms == deadline_ms:
            return batch.data
        attributes = header.attributes & ~DELETE_HORIZON
        return write_batch(
            compress(records(), stays),
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            leader_epoch=header.leader_epoch,
            codec=header.codec,
            attributes=attributes if new_deadline_ms is None else attributes | DELETE_HORIZON,
            base_timestamp=new_deadline_ms,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )

    def _without_records(self, batch: StoredBatch) -> Buffer | None:
        """Return what stays of a batch none of whose records stays: the header of a producer's last batch."""
        header = batch.header
        if header.producer_id < 0 or not self._is_last_of_producer(header):
            return None
        if header.record_count == 0:
            return batch.data
        return write_batch(
            (),
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            leader_epoch=header.leader_epoch,
            attributes=header.attributes & TRANSACTIONAL,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )

    def _may_drop_tombstones(self, header: BatchHeader, deadline_ms: int | None) -> bool:
        """Return whether the tombstones of a batch are overdue, and every replica has them."""
        return (
            deadline_ms is not None
            and deadline_ms <= self._now_ms
            and header.next_offset <= self._tombstone_limit_offset
        )


def _records(batch: StoredBatch) -> Callable[[], Iterable[Record]]:
    """Return a function that iterates over the records of a batch, as often as needed."""
    if batch.header.record_count > HELD_RECORDS:
        return lambda: read_records(batch.data)
    held = list(read_records(batch.data))
    return lambda: held
