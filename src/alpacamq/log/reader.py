"""The reading end of a log: slices for readers, searches by time, and telling damage from a bad index."""

import threading
from collections.abc import Callable
from pathlib import Path

from alpacamq.model.errors import DamagedLog, OffsetOutOfRange, StorageFailed

from .condition import Condition, refused
from .epochs import EpochHistory
from .scan import Gap, Violation
from .segment import Segment
from .segments import Segments
from .slice import Slice, Slicer
from .storage import Storage
from .timestamps import SuspectSegment, TimestampOffset, TimestampSearch

# Reading starts again when damage is found on the way, a search also when retention or compaction changes
# the segments under it.
ATTEMPTS = 5


class LogReader:
    """Reads the segments of one log. `verify` and `search` may run in any thread."""

    __slots__ = ("_condition", "_directory", "_epochs", "_segments", "_slicer", "_storage", "_verifying")

    def __init__(
        self,
        directory: Path,
        storage: Storage,
        segments: Segments,
        epochs: EpochHistory,
        condition: Condition,
    ) -> None:
        self._directory = directory
        self._storage = storage
        self._segments = segments
        self._epochs = epochs
        self._condition = condition
        self._slicer = Slicer(segments, storage.handles)
        self._verifying = threading.Lock()

    def read(
        self, offset: int, max_bytes: int, start_offset: int, limit_offset: int, *, at_least_one: bool
    ) -> Slice | None:
        """Whole batches from the one with `offset` on, before `limit_offset`; None if there are none yet."""
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
                    self._judge(self._segments.locate(offset))
        except OSError as error:
            raise refused(self._directory, "reading", error) from error
        raise StorageFailed(f"{self._directory.name}: offset {offset} cannot be found")

    def out_of_range(self, offset: int, start_offset: int) -> OffsetOutOfRange:
        end_offset = self._segments.active.next_offset
        return OffsetOutOfRange(
            f"offset {offset} lies outside {start_offset} to {end_offset} of {self._directory.name}"
        )

    def verify(self, part: Slice) -> None:
        """Check bytes that this process has not seen before, all up to the end of the slice.

        DamagedLog if damage was found, in the slice or before it: where batches begin was not known
        for certain then, and the slice has to be cut anew.
        """
        segment = part.segment
        end = part.position + part.length
        found: Gap | None = None
        try:
            with self._verifying:
                while (gap := segment.verify(end, part.handle.descriptor, self._epochs)) is not None:
                    self._condition.is_damaged = True
                    found = gap
        except OSError as error:
            raise refused(self._directory, "reading", error) from error
        for gap in segment.gaps:
            # By another reader, since the slice was cut.
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
        """What `find` finds between two offsets in sound batches; DamagedLog if nothing there but damage."""
        for _ in range(ATTEMPTS):
            search = TimestampSearch(self._storage.disk, tuple(self._segments), start_offset, limit_offset)
            try:
                found = find(search)
            except SuspectSegment as suspect:
                self._judge(suspect.segment)
                continue
            except OSError as error:
                if any(segment.is_retired for segment in search.segments):
                    continue
                raise refused(self._directory, "reading", error) from error
            if found is None and (damage := self._damage_between(start_offset, limit_offset)) is not None:
                raise damage
            return found
        raise StorageFailed(f"{self._directory.name}: the log keeps changing while it is searched")

    def forget_places(self) -> None:
        """Batches have moved."""
        self._slicer.forget_places()

    def _damage_between(self, start_offset: int, limit_offset: int) -> DamagedLog | None:
        if not self._condition.is_damaged:
            return None
        for segment in self._segments:
            for gap in segment.gaps:
                if gap.start.offset < limit_offset and gap.end.offset > start_offset:
                    return segment.damage_of(gap)
        return None

    def _judge(self, segment: Segment) -> None:
        """Find out what is wrong where reading stumbled: the log, which has gaps then, or only its index."""
        try:
            gaps = segment.find_gaps(self._epochs)
            if segment.is_retired:
                return  # retention or compaction was faster: its name means another file, or none
            known = {gap.start for gap in segment.gaps}
            if all(gap.start in known for gap in gaps):
                segment.index.distrust()
                return
        except OSError as error:
            if segment.is_retired:
                return
            raise refused(self._directory, "reading", error) from error
        for gap in gaps:
            segment.add_gap(gap)
        self._condition.is_damaged = True
