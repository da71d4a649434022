"""The reading end of a log: slices for readers, searches by time, and telling damage from a bad index."""

import threading
from collections.abc import Callable
from pathlib import Path

from alpacamq.model.errors import OffsetOutOfRange, StorageFailed

from .condition import Condition, refused
from .epochs import EpochHistory
from .scan import Violation
from .segment import Segment
from .segments import Segments
from .slice import Slice, Slicer
from .storage import Storage
from .timestamps import SuspectSegment, TimestampOffset, TimestampSearch

# A search in a thread starts again when retention or compaction changes the segments under it.
SEARCH_ATTEMPTS = 5


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
        damage = self._condition.damage
        if damage is not None:
            if offset >= damage.offset:
                raise damage.error.with_traceback(None)
            limit_offset = min(limit_offset, damage.offset)
        active = self._segments.active
        if not start_offset <= offset <= active.next_offset:
            raise self.out_of_range(offset, start_offset)
        if offset >= limit_offset:
            self._slicer.remember(active.next_offset, active.size)
            return None
        try:
            try:
                return self._slicer.slice(offset, max_bytes, limit_offset, at_least_one=at_least_one)
            except Violation as violation:
                self._judge(self._segments.locate(offset), violation)
                return self._slicer.slice(offset, max_bytes, limit_offset, at_least_one=at_least_one)
        except OSError as error:
            raise refused(self._directory, "reading", error) from error

    def out_of_range(self, offset: int, start_offset: int) -> OffsetOutOfRange:
        end_offset = self._segments.active.next_offset
        return OffsetOutOfRange(
            f"offset {offset} lies outside {start_offset} to {end_offset} of {self._directory.name}"
        )

    def verify(self, part: Slice) -> None:
        """Check bytes that this process has not seen before; DamagedLog if they are not what was written."""
        try:
            with self._verifying:
                part.segment.verify(part.position + part.length, part.handle.descriptor, self._epochs)
        except Violation as violation:
            raise self._condition.found_damage(part.segment, violation) from violation
        except OSError as error:
            raise refused(self._directory, "reading", error) from error

    def search(
        self,
        start_offset: int,
        limit_offset: int,
        find: Callable[[TimestampSearch], TimestampOffset | None],
    ) -> TimestampOffset | None:
        """What `find` finds between two offsets; what lies behind damage is refused, not passed over."""
        for _ in range(SEARCH_ATTEMPTS):
            damage = self._condition.damage
            limit = limit_offset if damage is None else min(limit_offset, damage.offset)
            search = TimestampSearch(self._storage.disk, tuple(self._segments), start_offset, limit)
            try:
                found = find(search)
            except SuspectSegment as suspect:
                self._judge(suspect.segment, suspect.violation)
                continue
            except OSError as error:
                if any(segment.is_retired for segment in search.segments):
                    continue
                raise refused(self._directory, "reading", error) from error
            if found is None and damage is not None and limit < limit_offset:
                raise damage.error.with_traceback(None)
            return found
        raise StorageFailed(f"{self._directory.name}: the log keeps changing while it is searched")

    def forget_places(self) -> None:
        """Batches have moved."""
        self._slicer.forget_places()

    def _judge(self, segment: Segment, violation: Violation) -> None:
        """Find out what is wrong where reading stumbled: the log, which raises, or only its index."""
        try:
            found = segment.first_violation(self._epochs)
            if segment.is_retired:
                return  # retention or compaction was faster: its name means another file, or none
            if found is None:
                segment.index.distrust()
        except OSError as error:
            if segment.is_retired:
                return
            raise refused(self._directory, "reading", error) from error
        if found is not None:
            raise self._condition.found_damage(segment, found) from violation
