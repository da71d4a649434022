"""One segment: a file of contiguous batches, its index, and how much of it is known to be sound.

Bytes that this process wrote, or that recovery walked through, are trusted. The rest is verified
once, from the start on, before it is first served.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alpacamq.model.batch import BatchHeader

from .epochs import EpochHistory
from .scan import Violation, scan_batches, scan_headers
from .segment_index import Boundary, IndexTail, SegmentIndex
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
    `written_ms` are when it took its first and its last batch, as far as that is known.
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
        """Whether the bytes between two positions need no verification."""
        return start >= self.trusted.position or end <= self.verified.position

    def find(self, offset: int) -> Boundary:
        """Where the batch that holds `offset` begins, or the end."""
        if offset >= self.next_offset:
            return Boundary(self.next_offset, self.size)
        start = self.index.floor(offset)
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
        raise self._gap(after)

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
        return scan_headers(self._storage.disk, descriptor, start.position, self.size, start.offset)

    def verify(self, upto: int, descriptor: int, epochs: EpochHistory) -> None:
        """Check every byte before `upto` that nobody has checked yet; Violation at the first bad one."""
        trusted = self.trusted
        end = min(upto, trusted.position)
        reached = self.verified
        if reached.position >= end:
            return
        try:
            for position, header in scan_batches(
                self._storage.disk, descriptor, reached.position, trusted.position, reached.offset, epochs
            ):
                reached = Boundary(header.next_offset, position + header.size)
                if reached.position >= end:
                    break
        finally:
            self.verified = reached
        if reached.position == trusted.position:
            if reached.offset != trusted.offset:
                raise self._gap(reached)
            self.trusted = Boundary(self.base_offset, 0)

    def first_violation(self, epochs: EpochHistory) -> Violation | None:
        """Check every byte, trusted or not."""
        reached = Boundary(self.base_offset, 0)
        try:
            with self.descriptor() as descriptor:
                for position, header in scan_batches(
                    self._storage.disk, descriptor, 0, self.size, self.base_offset, epochs
                ):
                    reached = Boundary(header.next_offset, position + header.size)
        except Violation as violation:
            return violation
        return None if reached.offset == self.next_offset else self._gap(reached)

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """The open file."""
        handle = self._storage.handles.pin(self.path)
        try:
            yield handle.descriptor
        finally:
            handle.release()

    def _gap(self, reached: Boundary) -> Violation:
        return Violation(
            reached.position,
            reached.offset,
            f"the segment ends here, although offsets up to {self.next_offset - 1} belong to it",
        )
