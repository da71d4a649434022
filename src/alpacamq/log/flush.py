"""Getting a log onto the medium, and remembering how far that got.

The event loop begins and ends a flush; what blocks runs in between, in any thread. Data first:
only when the segments are synced is the checkpoint moved that vouches for them.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from alpacamq.model.ports import Disk

from .checkpoint import CheckpointFile, RecoveryPoint
from .handles import Handle
from .memory import Memory, Remembered
from .segment import Segment
from .segments import Segments
from .snapshots import ProducerSnapshots
from .storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookkeeping:
    """What makes recovery short: producer snapshots, then the checkpoint."""

    disk: Disk
    checkpoint: CheckpointFile
    snapshots: ProducerSnapshots
    point: RecoveryPoint
    opened_ms: int
    compacted_to: int
    deadline_ms: int | None
    remembered: Remembered
    segment_snapshot: tuple[int, Remembered] | None
    segment_bases: frozenset[int]

    def run(self) -> None:
        if self.segment_snapshot is not None:
            self.snapshots.write(*self.segment_snapshot)
        if not self.remembered.is_empty:
            self.snapshots.write(self.point.offset, self.remembered)
        self.checkpoint.update(
            recovery_point=self.point,
            has_producers=not self.remembered.is_empty,
            opened_ms=self.opened_ms,
            compacted_to=self.compacted_to,
            deadline_ms=self.deadline_ms,
        )
        stale = self.snapshots.offsets - self.segment_bases - {self.point.offset}
        self.snapshots.remove(stale)


@dataclass(slots=True, kw_only=True)
class Flush:
    """One round of getting data onto the medium: begin on the loop, `run` anywhere, end on the loop."""

    disk: Disk
    directory: Path
    end_offset: int
    files: list[tuple[Handle, Segment, int]]
    syncs_directory: bool
    bookkeeping: Bookkeeping | None
    bookkeeping_error: OSError | None = field(default=None, init=False)

    def run(self) -> None:
        """Return once everything up to `end_offset` is on the medium. OSError leaves it in doubt.

        The checkpoint is another matter: without it, recovery only takes longer.
        """
        for handle, _, _ in self.files:
            self.disk.sync(handle.descriptor)
        if self.syncs_directory:
            self.disk.sync_directory(self.directory)
        if self.bookkeeping is not None:
            try:
                self.bookkeeping.run()
            except OSError as error:
                self.bookkeeping_error = error


class FlushLedger:
    """What of one partition is not on the medium yet."""

    def __init__(
        self,
        directory: Path,
        storage: Storage,
        checkpoint: CheckpointFile,
        snapshots: ProducerSnapshots,
    ) -> None:
        self._directory = directory
        self._storage = storage
        self._checkpoint = checkpoint
        self._snapshots = snapshots
        self.flushed_offset = checkpoint.current.recovery_point.offset
        self.directory_changed = False
        self.compacted_to = checkpoint.current.compacted_to
        self.deadline_ms = checkpoint.current.deadline_ms
        self._sealed: list[Segment] = []
        self._unindexed: list[Segment] = []
        self._segment_snapshot: tuple[int, Remembered] | None = None
        self._flushing = False
        self._was_truncated = False

    @property
    def recovery_point(self) -> RecoveryPoint:
        return self._checkpoint.current.recovery_point

    def sealed(self, segment: Segment) -> None:
        """`segment` takes no more batches; what is unsynced of it still has to be."""
        if segment.size > segment.synced_to:
            self._sealed.append(segment)
        self.unindexed(segment)

    def unindexed(self, segment: Segment) -> None:
        """The index of a sealed segment is to be written: now if possible, else with a later flush."""
        self._unindexed.append(segment)
        with suppress(OSError):
            self._write_indexes()

    def snapshot(self, offset: int, memory: Memory) -> None:
        """Keep the producer states at the start of a segment."""
        self._segment_snapshot = offset, memory.copy()

    def drop(self, segments: list[Segment]) -> None:
        """These are going away."""
        self._sealed = [segment for segment in self._sealed if segment not in segments]
        self._unindexed = [segment for segment in self._unindexed if segment not in segments]

    def truncated(self, dropped: list[Segment], end_offset: int) -> None:
        """The log ends at `end_offset` now."""
        self.drop(dropped)
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self.compacted_to = self._checkpoint.current.compacted_to
        self._segment_snapshot = None
        self._was_truncated = True

    def begin(self, segments: Segments, memory: Memory, *, closing: bool = False) -> Flush | None:
        """What has to be done now, or None if everything is on the medium."""
        assert not self._flushing, "one flush of a log at a time"
        active = segments.active
        unsynced = [segment for segment in (*self._sealed, active) if segment.size > segment.synced_to]
        point = RecoveryPoint(active.next_offset, active.base_offset, active.size)
        bookkeeping = None
        if self._is_checkpoint_due(point, closing=closing):
            # No room for an index is no reason not to flush; the checkpoint waits until there is.
            with suppress(OSError):
                self._write_indexes()
                active.index.write(active.size)
                bookkeeping = self._bookkeeping(point, segments, memory)
        if not unsynced and not self.directory_changed and bookkeeping is None:
            return None
        files: list[tuple[Handle, Segment, int]] = []
        try:
            for segment in unsynced:
                files.append((self._storage.handles.pin(segment.path), segment, segment.size))
        except OSError:
            for handle, _, _ in files:
                handle.release()
            raise
        flush = Flush(
            disk=self._storage.disk,
            directory=self._directory,
            end_offset=active.next_offset,
            files=files,
            syncs_directory=self.directory_changed,
            bookkeeping=bookkeeping,
        )
        self.directory_changed = False
        self._sealed = []
        if bookkeeping is not None:
            self._segment_snapshot = None
        self._flushing = True
        return flush

    def end(self, flush: Flush, error: OSError | None) -> None:
        """Take note of how a flush went. After an error nothing is known, and nothing is noted."""
        self._flushing = False
        for handle, segment, synced_to in flush.files:
            handle.release()
            if error is None:
                segment.synced_to = synced_to
        if error is None:
            self.flushed_offset = flush.end_offset
        bookkeeping = flush.bookkeeping
        if bookkeeping is None:
            return
        if error is None and flush.bookkeeping_error is None:
            self._was_truncated = False
            return
        self._segment_snapshot = self._segment_snapshot or bookkeeping.segment_snapshot

    def _is_checkpoint_due(self, point: RecoveryPoint, *, closing: bool) -> bool:
        current = self._checkpoint.current
        last = current.recovery_point
        if (
            self._was_truncated
            or self.compacted_to != current.compacted_to
            or self.deadline_ms != current.deadline_ms
        ):
            return True
        if closing:
            return last != point
        return (
            last.segment != point.segment or point.position - last.position >= self._storage.checkpoint_bytes
        )

    def _write_indexes(self) -> None:
        while self._unindexed:
            segment = self._unindexed[-1]
            segment.index.write(segment.size)
            segment.index.seal()
            self._unindexed.pop()

    def _bookkeeping(self, point: RecoveryPoint, segments: Segments, memory: Memory) -> Bookkeeping:
        return Bookkeeping(
            disk=self._storage.disk,
            checkpoint=self._checkpoint,
            snapshots=self._snapshots,
            point=point,
            opened_ms=segments.active.opened_ms,
            compacted_to=self.compacted_to,
            deadline_ms=self.deadline_ms,
            remembered=memory.copy(),
            segment_snapshot=self._segment_snapshot,
            segment_bases=frozenset(segment.base_offset for segment in segments),
        )
