"""One segment: a file of contiguous batches, its index, and how much of it is known to be sound.

Bytes that this process wrote, or that recovery walked through, are trusted. The rest is verified
once, from the start on, before it is first served.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from alpacamq.model.batch import BatchHeader
from alpacamq.model.errors import DamagedLog

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
# Positions and offsets relative to the base are 4 bytes each in the index.
MAX_RELATIVE = 0xFFFF_FFFF


def segment_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}{LOG_SUFFIX}"


class Segment:
    """`size` bytes of batches from `base_offset` to before `next_offset`.

    `verified` grows from the start towards `trusted`, the boundary from which on everything is
    sound. `is_ragged` says that a failed write may have left bytes behind `size`. `opened_ms` and
    `written_ms` are when it took its first and its last batch, as far as that is known. `gaps` are
    the damaged stretches found so far: nothing in them is served, what lies around them is.
    """

    __slots__ = ("_storage", "base_offset", "index", "is_ragged", "next_offset", "opened_ms", "path", "size",
                 "synced_to", "trusted", "verified", "written_ms")  # fmt: skip

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
        self.is_ragged = False
        self._storage = storage
        self.index = SegmentIndex(
            self.path, base_offset, storage, covered_to=0 if tail is not None else size, tail=tail
        )
        self.verified = Boundary(base_offset, 0)
        self.trusted = Boundary(self.next_offset, size)

    @property
    def is_retired(self) -> bool:
        """Whether the segment has been dropped or replaced, so that its name may mean another file."""
        return self.index.is_retired

    def trust_from(self, offset: int, position: int) -> None:
        """Everything from this boundary on has been checked."""
        self.trusted = Boundary(offset, position)

    def is_sound(self, start: int, end: int) -> bool:
        """Whether the bytes between two positions, which no gap lies in, need no verification."""
        return start >= self.trusted.position or end <= self.verified.position

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return self.index.gaps

    @property
    def damages(self) -> list[DamagedLog]:
        """What is damaged, in order."""
        return [self.damage_of(gap) for gap in self.gaps]

    def add_gap(self, gap: Gap) -> None:
        """Serve nothing of a damaged stretch from now on; in any thread."""
        known = {each.start.position: each for each in self.gaps}
        known.setdefault(gap.start.position, gap)
        self.index.gaps = tuple(known[position] for position in sorted(known))

    def readable_to(self, offset: int, limit_offset: int) -> int:
        """Where a reader at `offset` has to stop, `limit_offset` at the latest; DamagedLog inside a gap."""
        for gap in self.gaps:
            if gap.start.offset > offset:
                return min(limit_offset, gap.start.offset)
            if offset < gap.end.offset:
                raise self.damage_of(gap)
        return limit_offset

    def find(self, offset: int) -> Boundary:
        """Where the batch that holds `offset` begins, or the end."""
        if offset >= self.next_offset:
            return Boundary(self.next_offset, self.size)
        start = self.index.floor(offset)
        for gap in self.gaps:
            if gap.start.offset <= offset < gap.end.offset:
                return gap.start
            if start.position < gap.end.position and gap.end.offset <= offset:
                start = gap.end
        if start.offset == offset:
            return start
        after = start
        with self.descriptor() as descriptor:
            for position, header in self.headers(descriptor, start):
                if header.next_offset > offset:
                    return Boundary(header.base_offset, position)
                after = Boundary(header.next_offset, position + header.size)
                if after.offset == offset:
                    return after
        raise ends_early(after, self.next_offset)

    def cut(self, start: Boundary, max_bytes: int, *, at_least_one: bool) -> Boundary | None:
        """The last boundary within `max_bytes` of `start`, where more than that follows."""
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

    def headers(self, descriptor: int, start: Boundary) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers of the batches from `start` to the end."""
        start = past_gaps(start, self.gaps)
        return scan_headers(
            self._storage.disk, descriptor, start.position, self.size, start.offset, self.gaps
        )

    def verify(self, upto: int, descriptor: int, epochs: EpochHistory) -> Gap | None:
        """Check the bytes before `upto` that nobody has checked yet; returns at the first gap."""
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
        """Check every byte, trusted or not."""
        start, end = Boundary(self.base_offset, 0), Boundary(self.next_offset, self.size)
        with self.descriptor() as descriptor:
            gaps = list(find_gaps(self._storage.disk, descriptor, start, end, epochs))
        if gaps and gaps[-1].start.position == end.position and (self.next_offset, self.size) != end:
            gaps.pop()  # a batch was being added meanwhile
        return gaps

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """The open file."""
        handle = self._storage.handles.pin(self.path)
        try:
            yield handle.descriptor
        finally:
            handle.release()

    def damage_of(self, gap: Gap) -> DamagedLog:
        """The error for those who ask for what lies in a gap."""
        return DamagedLog(
            self.path, gap.start.position, gap.reason, offsets=(gap.start.offset, gap.end.offset)
        )


class Segments:
    """At least one segment, the last of which is active."""

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

    def locate(self, offset: int) -> Segment:
        """The segment `offset` belongs to."""
        if offset >= self.active.base_offset:
            return self.active
        return self._segments[max(bisect_right(self._bases, offset) - 1, 0)]

    def add(self, segment: Segment) -> None:
        """`segment` is the active one from now on."""
        self._set([*self._segments, segment])

    def drop_first(self, count: int) -> list[Segment]:
        """Let go of the oldest `count`."""
        dropped = self._segments[:count]
        self._set(self._segments[count:])
        return dropped

    def drop_after(self, segment: Segment) -> list[Segment]:
        """Let go of what follows `segment`, which is active then."""
        end = self._segments.index(segment) + 1
        dropped = self._segments[end:]
        self._set(self._segments[:end])
        return dropped

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Put `new` where the neighbours `old` are."""
        start = self._segments.index(old[0])
        self._set([*self._segments[:start], new, *self._segments[start + len(old) :]])

    def _set(self, segments: list[Segment]) -> None:
        # Lists are replaced, never changed: a search by time may walk the old one in a thread.
        assert segments
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._sealed_bytes = sum(segment.size for segment in segments[:-1])
        self.active = segments[-1]
