"""The sparse index of one segment: its files, and a tail that is not in them yet.

There is an entry about every 4 KiB of log. A lookup only tells where to start reading headers, so a
smaller index is slower, not wrong: entries lost in a crash are rebuilt. The files are synced only
when entries are removed, which must not reappear. An entry names the last offset of a batch, as in
Kafka; its first offset comes from the header, which must match the entry whenever one is used.
"""

from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress
from pathlib import Path

import msgspec

from alpacamq.model.batch import HEADER_BYTES, MAGIC, BatchHeader, read_header
from alpacamq.model.ids import NO_TIMESTAMP
from alpacamq.model.ports import Disk

from .index_files import (
    EMPTY_SUM,
    OFFSET_ENTRY_BYTES,
    OFFSET_SUFFIX,
    SUM_BYTES,
    SUMS_SUFFIX,
    TIME_SUFFIX,
    IndexSum,
    LoadedIndex,
    matching_sums,
    pack_offsets,
    pack_times,
    unpack_offsets,
    unpack_sums,
    unpack_times,
)
from .scan import Boundary, Gap, Violation, past_gaps, scan_headers
from .storage import Storage

INTERVAL_BYTES = 4096

# Four times the size that the largest segment can need.
_FILE_LIMIT_BYTES = 16 << 20
_POSITION_MASK = 0xFFFF_FFFF


class IndexTail:
    """The newest entries of a segment, and the state to continue them."""

    __slots__ = ("_base_offset", "_last_position", "_last_timestamp", "largest_offset", "largest_timestamp",
                 "offsets", "times")  # fmt: skip

    def __init__(self, base_offset: int, after: LoadedIndex | None = None) -> None:
        self._base_offset = base_offset
        self._last_position = 0
        self._last_timestamp = self.largest_timestamp = int(NO_TIMESTAMP)
        self.largest_offset = base_offset
        if after is not None and after.offsets:
            self._last_position = after.offsets[-1] & _POSITION_MASK
        if after is not None and after.timestamps:
            self._last_timestamp = self.largest_timestamp = after.timestamps[-1]
            self.largest_offset = base_offset + after.timestamp_offsets[-1]
        self.clear()

    def note(self, last_offset: int, position: int, max_timestamp: int) -> None:
        """Add the batch at `position`, which ends with `last_offset`."""
        if max_timestamp > self.largest_timestamp:
            self.largest_timestamp = max_timestamp
            self.largest_offset = last_offset
        if position - self._last_position >= INTERVAL_BYTES:
            self._last_position = position
            self.offsets.append((last_offset - self._base_offset) << 32 | position)
            self.note_largest()

    def note_largest(self) -> None:
        """Make sure that the last time entry has the largest timestamp."""
        if self.largest_timestamp > self._last_timestamp:
            self._last_timestamp = self.largest_timestamp
            self.times.extend((self.largest_timestamp, self.largest_offset - self._base_offset))

    def clear(self) -> None:
        """Drop entries that are in the files now. Threads may still read the old arrays."""
        self.offsets = array("Q")
        self.times = array("q")  # timestamps and relative offsets in turn

    def pack(self) -> tuple[bytes, bytes]:
        """Encode the entries for the two files."""
        return pack_offsets(self.offsets), pack_times(self.times[0::2], array("I", self.times[1::2]))

    def move_to(self, loaded: LoadedIndex, covered_to: int) -> None:
        """Append the entries to `loaded` and extend it to `covered_to`."""
        loaded.covered_to = covered_to
        loaded.offsets.extend(self.offsets)
        loaded.timestamps.extend(self.times[0::2])
        loaded.timestamp_offsets.extend(array("I", self.times[1::2]))


class _Files(msgspec.Struct, frozen=True):
    """The content of the index files, as far as they agree with each other and with the log.

    `ends` is how much of each file that is; `sizes` is how much there is. In the order of `paths`.
    """

    loaded: LoadedIndex
    written: IndexSum
    ends: tuple[int, int, int]
    sizes: tuple[int, int, int]


class SegmentIndex:
    """Looks up where in a segment to find an offset, a timestamp, or a boundary to cut at.

    `covered_to` is the log position up to which the files hold entries, or should. A sealed segment has
    no tail and is loaded on first use.
    """

    __slots__ = ("_base_offset", "_largest", "_log_path", "_storage", "_sum_bytes", "_written",
                 "covered_to", "gaps", "is_retired", "tail")  # fmt: skip

    def __init__(
        self,
        log_path: Path,
        base_offset: int,
        storage: Storage,
        *,
        covered_to: int = 0,
        tail: IndexTail | None = None,
    ) -> None:
        self._log_path = log_path
        self._base_offset = base_offset
        self._storage = storage
        self._written, self._sum_bytes = EMPTY_SUM, 0
        self._largest: tuple[int, int] | None = None
        self.covered_to = covered_to
        # Damaged ranges of the log, in order; replaced, never changed.
        self.gaps: tuple[Gap, ...] = ()
        self.is_retired = False
        self.tail = tail or (None if covered_to else IndexTail(base_offset))

    @property
    def paths(self) -> tuple[Path, Path, Path]:
        """The files, the one that vouches for the others first."""
        path = self._log_path
        return path.with_suffix(SUMS_SUFFIX), path.with_suffix(OFFSET_SUFFIX), path.with_suffix(TIME_SUFFIX)

    def floor(self, offset: int) -> Boundary:
        """Return the last known boundary not after `offset`. Violation if the log does not match."""
        entry = self._floor(offset)
        return Boundary(self._base_offset, 0) if entry is None else self._boundary(entry)

    def floor_entry(self, offset: int) -> Boundary | None:
        """Return the last offset and the position of the last known batch that does not end after `offset`.

        Nothing is read of the log, so the batch may be another one.
        """
        entry = self._floor(offset)
        return None if entry is None else Boundary(self._offset(entry), entry & _POSITION_MASK)

    def last(self) -> Boundary:
        """Return the last known boundary. Reads no more than the last entry if that matches the log."""
        if self.tail is None and self.covered_to:
            entry = self._last_entry()
            header = None if entry is None else self._header_at(entry, self.covered_to)
            # Version 0.1 stored first offsets, behind the header of a chunk.
            if entry is not None and header is not None and self._offset(entry) in (
                header.last_offset, header.base_offset
            ):  # fmt: skip
                return Boundary(header.base_offset, entry & _POSITION_MASK)
        return self.floor(self._base_offset + _POSITION_MASK)

    def cut(self, after: int, upto: int) -> Boundary | None:
        """Return the last known boundary after position `after` and not after `upto`.

        Violation if the log does not match.
        """
        entries = self.tail.offsets if self.tail is not None else None
        if not entries or entries[0] & _POSITION_MASK > upto:
            entries = self._load().offsets
        index = bisect_right(entries, upto, key=_position)
        if index and entries[index - 1] & _POSITION_MASK > after:
            return self._boundary(entries[index - 1])
        return None

    def before(self, timestamp: int) -> int:
        """Return an offset not after the first record at or after `timestamp`."""
        times = self.tail.times if self.tail is not None else None
        if times and times[0] < timestamp:
            timestamps, offsets = times[0::2], times[1::2]
        else:
            loaded = self._load()
            timestamps, offsets = loaded.timestamps, loaded.timestamp_offsets
        index = bisect_left(timestamps, timestamp)
        return self._base_offset + (offsets[index - 1] if index else 0)

    def largest(self) -> tuple[int, int]:
        """Return the largest timestamp of the segment (-1 if none) and the last offset of its batch."""
        if (tail := self.tail) is not None:
            return tail.largest_timestamp, tail.largest_offset
        if self._largest is None:
            tail = IndexTail(self._base_offset, self._load())
            self._largest = tail.largest_timestamp, tail.largest_offset
        return self._largest

    def write(self, covered_to: int) -> None:
        """Append the tail, which extends to `covered_to`, to the files."""
        tail = self.tail
        if tail is None or covered_to == self.covered_to:
            return
        tail.note_largest()
        self._written = self._append(tail, self._written, self._sum_bytes, covered_to)
        self._sum_bytes += SUM_BYTES
        cache = self._storage.indexes
        if (loaded := cache.get(self)) is not None and loaded.covered_to == self.covered_to:
            tail.move_to(loaded, covered_to)
            cache.put(self, loaded)
        self.covered_to = covered_to
        tail.clear()

    def write_entries(self, covered_to: int) -> None:
        """Append the tail if it has entries: rereading a few headers beats reading three more files."""
        if self.tail is not None and self.tail.offsets:
            self.write(covered_to)

    def seal(self) -> None:
        """Drop the tail of a sealed segment once it is in the files."""
        if self.tail is not None and not self.tail.offsets and not self.tail.times:
            self._largest = self.largest()
            self.tail = None

    def retire(self) -> None:
        """Mark the segment as removed from the log; a search that still uses it may only read."""
        self.is_retired = True
        self._storage.indexes.discard(self)

    def resume(self, position: int, *, has_files: bool = True) -> None:
        """Truncate the index to `position`, ready for the batches that follow."""
        storage = self._storage
        storage.indexes.discard(self)
        if not has_files:
            self._written, self._sum_bytes, self.covered_to = EMPTY_SUM, 0, 0
            self.tail = self._tail_after(_empty(), position)
            return
        files = self._read_files(position)
        self._trim(files)
        self._written, self._sum_bytes = files.written, files.ends[0]
        self.covered_to = files.loaded.covered_to
        self.tail = self._tail_after(files.loaded, position)

    def distrust(self) -> None:
        """Discard wrong files; they are rebuilt on next use. May run in any thread."""
        self._storage.indexes.discard(self)
        for path in self.paths:
            _truncate(self._storage.disk, path, 0)

    def restart(self, *, has_files: bool) -> None:
        """Clear the index before a scan of the whole segment."""
        if has_files:
            self.distrust()
        self._written, self._sum_bytes, self.covered_to = EMPTY_SUM, 0, 0
        self.tail = IndexTail(self._base_offset)

    def _floor(self, offset: int) -> int | None:
        key = (offset - self._base_offset) << 32 | _POSITION_MASK
        entries = self.tail.offsets if self.tail is not None else None
        if not entries or entries[0] > key:
            entries = self._load().offsets
        index = bisect_right(entries, key)
        return entries[index - 1] if index else None

    def _offset(self, entry: int) -> int:
        return self._base_offset + (entry >> 32)

    def _boundary(self, entry: int) -> Boundary:
        """Return where the batch of an entry begins; in a gap, where the gap does."""
        position = entry & _POSITION_MASK
        for gap in self.gaps:
            if gap.start.position <= position < gap.end.position:
                return gap.start
        header = self._header_at(entry)
        if header is None or header.last_offset != self._offset(entry):
            raise Violation(position, self._offset(entry), "no batch that the index names")
        return Boundary(header.base_offset, position)

    def _header_at(self, entry: int, limit: int | None = None) -> BatchHeader | None:
        """Read the header to which an entry points, unless there is none before `limit`."""
        position = entry & _POSITION_MASK
        if limit is not None and position + HEADER_BYTES > limit:
            return None
        handle = self._storage.handles.pin(self._log_path)
        try:
            data = self._storage.disk.read(handle.descriptor, HEADER_BYTES, position)
        finally:
            handle.release()
        if len(data) < HEADER_BYTES:
            return None
        header = read_header(data)
        return header if header.magic == MAGIC and header.last_offset_delta >= 0 else None

    def _last_entry(self) -> int | None:
        """Read the last entry of the offset index, which may be wrong."""
        disk = self._storage.disk
        try:
            descriptor = disk.open(self._log_path.with_suffix(OFFSET_SUFFIX))
        except FileNotFoundError:
            return None
        try:
            size = disk.size(descriptor)
            at = size - size % OFFSET_ENTRY_BYTES - OFFSET_ENTRY_BYTES
            data = disk.read(descriptor, OFFSET_ENTRY_BYTES, at) if at >= 0 else b""
        finally:
            disk.close(descriptor)
        return int.from_bytes(data, "big") if len(data) == OFFSET_ENTRY_BYTES else None

    def _load(self) -> LoadedIndex:
        covered_to = self.covered_to
        if covered_to == 0:
            return _empty()
        cache = self._storage.indexes
        loaded = cache.get(self)
        # An index that a thread loaded while the event loop wrote a chunk may lack that chunk.
        if loaded is None or loaded.covered_to < covered_to:
            files = self._read_files(covered_to)
            loaded = files.loaded
            if loaded.covered_to < covered_to:
                tail = self._tail_after(loaded, covered_to)
                tail.note_largest()
                if self.tail is None and not self.is_retired:
                    # Writing the rebuilt entries is optional: if it fails, they are rebuilt next time.
                    with suppress(OSError):
                        self._append(tail, files.written, files.ends[0], covered_to)
                tail.move_to(loaded, covered_to)
            elif self.tail is None and not self.is_retired:
                with suppress(OSError):
                    self._trim(files)
            cache.put(self, loaded)
        return loaded

    def _append(self, tail: IndexTail, after: IndexSum, sum_bytes: int, covered_to: int) -> IndexSum:
        """Write the tail behind the entries of `after`; return the sum of all."""
        offsets, times = tail.pack()
        written = after.extended(offsets, times, covered_to)
        sums_path, offsets_path, times_path = self.paths
        disk = self._storage.disk
        _write_at(disk, offsets_path, offsets, after.offset_bytes)
        _write_at(disk, times_path, times, after.time_bytes)
        _write_at(disk, sums_path, written.pack(), sum_bytes)
        return written

    def _read_files(self, limit: int) -> _Files:
        """Read the files as far as they describe the log up to `limit`."""
        disk = self._storage.disk
        # In this order: entries are written before the sum that vouches for them.
        (sums, sums_size), (offsets, offsets_size), (times, times_size) = (
            _read(disk, path) for path in self.paths
        )
        within = [each for each in unpack_sums(sums) if each.covered_to <= limit]
        matching = matching_sums(within, offsets, times)
        written = matching[-1] if matching else EMPTY_SUM
        timestamps, timestamp_offsets = unpack_times(times[: written.time_bytes])
        loaded = LoadedIndex(
            covered_to=written.covered_to,
            offsets=unpack_offsets(offsets[: written.offset_bytes]),
            timestamps=timestamps,
            timestamp_offsets=timestamp_offsets,
        )
        if not self._describes_log(loaded, limit):
            matching, written, loaded = [], EMPTY_SUM, _empty()
        return _Files(
            loaded=loaded,
            written=written,
            ends=(len(matching) * SUM_BYTES, written.offset_bytes, written.time_bytes),
            sizes=(sums_size, offsets_size, times_size),
        )

    def _trim(self, files: _Files) -> None:
        """Remove bytes behind the entries: Kafka refuses an index that ends with half an entry."""
        for path, size, end in zip(self.paths, files.sizes, files.ends, strict=True):
            if size > end:
                _truncate(self._storage.disk, path, end)

    def _describes_log(self, loaded: LoadedIndex, limit: int) -> bool:
        """Return whether the last entry matches the log, which compaction may have replaced."""
        if not loaded.offsets:
            return True
        header = self._header_at(loaded.offsets[-1], limit)
        return header is not None and header.last_offset == self._offset(loaded.offsets[-1])

    def _tail_after(self, loaded: LoadedIndex, position: int) -> IndexTail:
        """Rebuild the entries missing behind `loaded` from the log up to `position`."""
        tail = IndexTail(self._base_offset, loaded)
        if loaded.covered_to == position:
            return tail
        start = self._boundary(loaded.offsets[-1]) if loaded.offsets else Boundary(self._base_offset, 0)
        start = past_gaps(start, self.gaps)
        handle = self._storage.handles.pin(self._log_path)
        try:
            for at, header in scan_headers(
                self._storage.disk, handle.descriptor, start.position, position, start.offset, self.gaps
            ):
                tail.note(header.last_offset, at, header.max_timestamp)
        finally:
            handle.release()
        return tail


def _empty() -> LoadedIndex:
    return LoadedIndex(0, array("Q"), array("q"), array("I"))


def _position(entry: int) -> int:
    return entry & _POSITION_MASK


def _read(disk: Disk, path: Path) -> tuple[bytes, int]:
    """Return an index file's content and size; a missing file is empty."""
    try:
        descriptor = disk.open(path)
    except FileNotFoundError:
        return b"", 0
    try:
        size = disk.size(descriptor)
        return disk.read(descriptor, min(size, _FILE_LIMIT_BYTES), 0), size
    finally:
        disk.close(descriptor)


def _write_at(disk: Disk, path: Path, data: bytes, position: int) -> None:
    descriptor = disk.open(path, create=True)
    try:
        if disk.size(descriptor) > position:
            disk.truncate(descriptor, position)  # left by a failed write or a former index
        disk.write(descriptor, [data], position)
    finally:
        disk.close(descriptor)


def _truncate(disk: Disk, path: Path, size: int) -> None:
    try:
        descriptor = disk.open(path)
    except FileNotFoundError:
        return
    try:
        if disk.size(descriptor) > size:
            disk.truncate(descriptor, size)
            disk.sync(descriptor)
    finally:
        disk.close(descriptor)
