"""One segment: a file of contiguous batches, its index, and which bytes are verified.

Bytes that this process wrote, or that recovery scanned, are trusted. The rest is verified once, from
the start on, before it is first served.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from alpacamq.model.batch import BatchHeader
from alpacamq.model.errors import DamagedLog
from alpacamq.model.ids import NO_TIMESTAMP
from alpacamq.model.topics import INT32_MAX

from .epochs import EpochHistory
from .index import IndexTail, SegmentIndex
from .scan import (
    Boundary,
    Gap,
    Violation,
    ends_early,
    find_gaps,
    gap_at,
    past_gaps,
    scan_batches,
    scan_headers,
)
from .storage import Storage

LOG_SUFFIX = ".log"
# Positions and offsets relative to the base are 4 bytes each in the index, signed for Kafka.
MAX_RELATIVE = INT32_MAX


def segment_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}{LOG_SUFFIX}"


class Segment:
    """`size` bytes of batches from `base_offset` to before `next_offset`.

    `verified` grows from the start towards `trusted`, the boundary after which all bytes are sound.
    `has_torn_tail` is set if a failed write may have left bytes behind `size`. `opened_ms` and
    `written_ms` are the times of the first and the last batch, if known. `gaps` are the damaged ranges
    found so far, which are never served; batches around them are.
    """

    __slots__ = (
        "_storage",
        "base_offset",
        "has_torn_tail",
        "index",
        "next_offset",
        "opened_ms",
        "path",
        "size",
        "synced_to",
        "trusted",
        "verified",
        "written_ms",
    )  # fmt: skip

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        storage: Storage,
        *,
        size: int = 0,
        next_offset: int | None = None,
        opened_ms: int = 0,
        tail: IndexTail | None = None,
    ) -> None:
        self.base_offset = base_offset
        self.path = segment_path(directory, base_offset)
        self.size = size
        self.next_offset = base_offset if next_offset is None else next_offset
        self.opened_ms = opened_ms
        self.written_ms = opened_ms
        self.synced_to = size
        self.has_torn_tail = False
        self._storage = storage
        self.index = SegmentIndex(
            self.path, base_offset, storage, covered_to=0 if tail is not None else size, tail=tail
        )
        self.verified = Boundary(base_offset, 0)
        self.trusted = Boundary(self.next_offset, size)

    @property
    def is_retired(self) -> bool:
        """Whether the segment was dropped or replaced, so that its path may be another file."""
        return self.index.is_retired

    def newest_ms(self, now_ms: int) -> int:
        """Return the largest timestamp; if it is missing or in the future, when records were written."""
        timestamp_ms, _ = self.index.largest()
        if timestamp_ms == NO_TIMESTAMP:
            return self.opened_ms
        return timestamp_ms if timestamp_ms <= now_ms else self.written_ms

    def trust_from(self, offset: int, position: int) -> None:
        """Mark all bytes from this boundary on as verified."""
        self.trusted = Boundary(offset, position)

    def is_sound(self, start: int, end: int) -> bool:
        """Return whether the bytes between two positions, outside of gaps, need no verification."""
        return start >= self.trusted.position or end <= self.verified.position

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return self.index.gaps

    @property
    def damages(self) -> list[DamagedLog]:
        """The damaged ranges, in order."""
        return [self.damage_of(gap) for gap in self.gaps]

    def add_gap(self, gap: Gap) -> None:
        """Exclude a damaged range from reads. May run in any thread."""
        known = {each.start.position: each for each in self.gaps}
        known.setdefault(gap.start.position, gap)
        self.index.gaps = tuple(known[position] for position in sorted(known))

    def readable_to(self, offset: int, limit_offset: int) -> int:
        """Return where a reader at `offset` has to stop, at most `limit_offset`; DamagedLog inside a gap."""
        for gap in self.gaps:
            if gap.start.offset > offset:
                return min(limit_offset, gap.start.offset)
            if offset < gap.end.offset:
                raise self.damage_of(gap)
        return limit_offset

    def find(self, offset: int) -> Boundary:
        """Find the start of the batch that contains `offset`, or the end of the segment."""
        if offset >= self.next_offset:
            return Boundary(self.next_offset, self.size)
        entry = self.index.floor_entry(offset)
        start = Boundary(self.base_offset, 0) if entry is None else entry
        is_last = entry is not None
        for gap in self.gaps:
            if gap.start.offset <= offset < gap.end.offset:
                return gap.start
            if start.position < gap.end.position and gap.end.offset <= offset:
                start, is_last = gap.end, False
        if start.offset == offset and not is_last:
            return start
        after = start
        with self.descriptor() as descriptor:
            for position, header in self.headers(descriptor, start, is_last=is_last):
                if header.next_offset > offset:
                    return Boundary(header.base_offset, position)
                after = Boundary(header.next_offset, position + header.size)
                if after.offset == offset:
                    return after
        raise ends_early(after, self.next_offset)

    def cut(self, start: Boundary, max_bytes: int, *, at_least_one: bool) -> Boundary | None:
        """Return the last boundary within `max_bytes` of `start`, if more than that follows."""
        if (known := self.index.cut(start.position, start.position + max_bytes)) is not None:
            return known
        after: Boundary | None = None
        with self.descriptor() as descriptor:
            for position, header in self.headers(descriptor, start):
                end = position + header.size
                if end - start.position > max_bytes and not (at_least_one and after is None):
                    break
                after = Boundary(header.next_offset, end)
                if end - start.position >= max_bytes:
                    break
        return after

    def headers(
        self, descriptor: int, start: Boundary, *, is_last: bool = False
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield positions and headers of the batches from `start` to the end.

        With `is_last`, its offset is the last of the batch, as in the index.
        """
        if not is_last:
            start = past_gaps(start, self.gaps)
        return scan_headers(
            self._storage.disk,
            descriptor,
            start.position,
            self.size,
            start.offset,
            self.gaps,
            is_last=is_last,
        )

    def verify(self, upto: int, descriptor: int, epochs: EpochHistory) -> Gap | None:
        """Verify the unchecked bytes before `upto`; return the first gap found."""
        trusted = self.trusted
        end = min(upto, trusted.position)
        reached = self.verified
        if reached.position >= end:
            return None
        try:
            for position, header in scan_batches(
                self._storage.disk, descriptor, reached.position, trusted.position, reached.offset, epochs
            ):
                reached = Boundary(header.next_offset, position + header.size)
                if reached.position >= end:
                    break
            if reached.position == trusted.position and reached.offset != trusted.offset:
                raise ends_early(reached, trusted.offset)
        except Violation as violation:
            gap = gap_at(self._storage.disk, descriptor, violation, trusted, epochs)
            self.add_gap(gap)
            reached = gap.end
            return gap
        finally:
            self.verified = reached
            if reached.position == trusted.position:
                self.trusted = Boundary(self.base_offset, 0)
        return None

    def find_gaps(self, epochs: EpochHistory) -> list[Gap]:
        """Verify every byte, trusted or not; return the damaged ranges."""
        start, end = Boundary(self.base_offset, 0), Boundary(self.next_offset, self.size)
        with self.descriptor() as descriptor:
            gaps = list(find_gaps(self._storage.disk, descriptor, start, end, epochs))
        if gaps and gaps[-1].start.position == end.position and (self.next_offset, self.size) != end:
            gaps.pop()  # a batch was appended meanwhile
        return gaps

    def truncate(self, end: Boundary) -> None:
        """Drop everything from the batch boundary `end` on, and sync."""
        with self.descriptor() as descriptor:
            self._storage.disk.truncate(descriptor, end.position)
            # Without the sync, a crash could bring back the dropped batches behind newer ones.
            self._storage.disk.sync(descriptor)
        self.size, self.next_offset = end.position, end.offset
        self.synced_to = min(self.synced_to, end.position)
        if self.verified.position > end.position:
            self.verified = end
        if self.trusted.position > end.position:
            self.trust_from(*end)
        self.index.gaps = tuple(gap for gap in self.gaps if gap.start.position < end.position)
        self.index.resume(end.position)

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """Return the open file."""
        handle = self._storage.handles.pin(self.path)
        try:
            yield handle.descriptor
        finally:
            handle.release()

    def damage_of(self, gap: Gap) -> DamagedLog:
        """Return the error for reads inside a gap."""
        return DamagedLog(
            self.path, gap.start.position, gap.reason, offsets=(gap.start.offset, gap.end.offset)
        )


class Segments:
    """At least one segment; the last is active."""

    __slots__ = ("_bases", "_sealed_bytes", "_segments", "active")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._set(list(segments))

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def sealed(self) -> Sequence[Segment]:
        return self._segments[:-1]

    @property
    def size_bytes(self) -> int:
        return self._sealed_bytes + self.active.size

    def bytes_after(self, offset: int) -> int:
        """Return about how many bytes lie at and after `offset`: records of a segment count alike."""
        total = 0
        for segment in reversed(self._segments):
            if offset >= segment.next_offset:
                break
            if offset <= segment.base_offset:
                total += segment.size
                continue
            share = (segment.next_offset - offset) / (segment.next_offset - segment.base_offset)
            total += int(segment.size * share)
        return total

    def locate(self, offset: int) -> Segment:
        """Return the segment that contains `offset`."""
        if offset >= self.active.base_offset:
            return self.active
        return self._segments[max(bisect_right(self._bases, offset) - 1, 0)]

    def add(self, segment: Segment) -> None:
        """Add the new active segment."""
        self._set([*self._segments, segment])

    def drop_first(self, count: int) -> list[Segment]:
        """Drop the oldest `count` segments and return them."""
        dropped = self._segments[:count]
        self._set(self._segments[count:])
        return dropped

    def drop_after(self, segment: Segment) -> list[Segment]:
        """Drop the segments after `segment`, which becomes active, and return them."""
        end = self._segments.index(segment) + 1
        dropped = self._segments[end:]
        self._set(self._segments[:end])
        return dropped

    def restart(self, segment: Segment) -> None:
        """Replace all segments by an empty one."""
        self._set([segment])

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace the adjacent segments `old` by `new`."""
        start = self._segments.index(old[0])
        self._set([*self._segments[:start], new, *self._segments[start + len(old) :]])

    def _set(self, segments: list[Segment]) -> None:
        # The lists are replaced, never changed: a timestamp search in a thread may iterate over the old one.
        assert segments
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._sealed_bytes = sum(segment.size for segment in segments[:-1])
        self.active = segments[-1]
