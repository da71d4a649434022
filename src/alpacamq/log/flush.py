"""Getting a log onto the medium, and remembering how far that got.

The event loop begins and ends a flush; what blocks runs in between, in any thread. Data first:
only when the segments are synced is the checkpoint moved that vouches for them. Flushes of many
logs can be run together: each step is taken for all of them, with one sync of the file system after it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from alpacamq.model.ports import Disk

from .checkpoint import CheckpointFile, RecoveryPoint
from .disk import sync_file
from .epochs import FILE_NAME as EPOCHS_FILE
from .epochs import EpochHistory, publish_epochs
from .handles import Handle
from .producer_state import Memory, ProducerSnapshots, Remembered
from .segment import Segment, Segments
from .storage import Storage

# Below this, a sync of the file system, which takes along what others have written, does not pay.
TOGETHER_FROM = 16
# Reading less than this again at the next start costs no more than writing down that it need not be read.
SMALL_TAIL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookkeeping:
    """What makes recovery short: producer snapshots, leader epochs that are in no file yet, the checkpoint.

    In steps, since others may share the syncs: what `prepare` returns is synced before `publish`, the
    directory before `finish`. Without `publish`, `abandon` follows.
    """

    disk: Disk
    directory: Path
    checkpoint: CheckpointFile
    snapshots: ProducerSnapshots
    epochs: EpochHistory | None
    point: RecoveryPoint
    opened_ms: int
    compacted_to: int
    deadline_ms: int | None
    remembered: Remembered
    segment_snapshot: tuple[int, Remembered] | None
    segment_bases: frozenset[int]

    def run(self) -> None:
        """Take all the steps."""
        files = self.prepare()
        try:
            for path in files:
                sync_file(self.disk, path)
        except BaseException:
            self.abandon()
            raise
        self.publish()
        self.disk.sync_directory(self.directory)
        self.finish()

    def prepare(self) -> list[Path]:
        """Write the new files beside those they replace."""
        files = [self.snapshots.prepare(offset, taken) for offset, taken in self._taken.items()]
        if self.epochs is not None:
            files.append(self.epochs.prepare(self.disk, self.directory))
        files.append(
            self.checkpoint.prepare(
                recovery_point=self.point,
                has_producers=not self.remembered.is_empty,
                opened_ms=self.opened_ms,
                compacted_to=self.compacted_to,
                deadline_ms=self.deadline_ms,
            )
        )
        return files

    def abandon(self) -> None:
        """Leave everything as it is; what was prepared is removed at the next start or written over."""
        self.checkpoint.abandon()

    def publish(self) -> None:
        """Let the new files take the place of the old, the checkpoint last."""
        try:
            for offset in self._taken:
                self.snapshots.publish(offset)
            if self.epochs is not None:
                publish_epochs(self.disk, self.directory)
        except BaseException:
            self.abandon()
            raise
        self.checkpoint.publish()

    def finish(self) -> None:
        """Remove what nobody needs any more."""
        self.snapshots.remove_except(self.segment_bases | {self.point.offset})

    @property
    def _taken(self) -> dict[int, Remembered]:
        taken = {} if self.segment_snapshot is None else dict([self.segment_snapshot])
        return taken if self.remembered.is_empty else {**taken, self.point.offset: self.remembered}


@dataclass(slots=True, kw_only=True)
class Flush:
    """One round of getting data onto the medium: begin on the loop, `run` anywhere, end on the loop."""

    disk: Disk
    directory: Path
    end_offset: int
    files: list[tuple[Handle | None, Segment, int]]
    syncs_epochs: bool
    syncs_directory: bool
    syncs_parent: bool
    bookkeeping: Bookkeeping | None
    bookkeeping_error: OSError | None = field(default=None, init=False)

    def run(self) -> None:
        """Return once everything up to `end_offset` is on the medium. OSError leaves it in doubt.

        Unless something could not be opened for lack of descriptors: then its sync has not been
        tried. The checkpoint is another matter: without it, recovery only takes longer.
        """
        self.sync()
        if self.bookkeeping is not None:
            self.attempt(self.bookkeeping.run)

    def sync(self) -> None:
        """Sync the data, and the names under which it is found."""
        if self.syncs_epochs:
            sync_file(self.disk, self.directory / EPOCHS_FILE)
        for handle, segment, _ in self.files:
            if handle is not None:
                self.disk.sync(handle.descriptor)
            else:
                with segment.descriptor() as descriptor:
                    self.disk.sync(descriptor)
        if self.syncs_directory:
            self.disk.sync_directory(self.directory)
        if self.syncs_parent:
            self.disk.sync_directory(self.directory.parent)

    def attempt(self, step: Callable[[], None]) -> bool:
        """Take a step of the bookkeeping, whose failure is noted and does no harm; whether it went well."""
        try:
            step()
        except OSError as error:
            self.bookkeeping_error = error
        return self.bookkeeping_error is None


def run_together(disk: Disk, root: Path, flushes: Sequence[Flush]) -> list[OSError | None]:
    """Run flushes of different logs below `root`, with shared syncs if they are many; what each raised."""
    errors: list[OSError | None] = [None] * len(flushes)
    shares = len(flushes) >= TOGETHER_FROM
    if not (shares and _sync_filesystem(disk, root)):
        for index, flush in enumerate(flushes):
            try:
                flush.sync()
            except OSError as error:
                errors[index] = error
    books = [
        (flush, flush.bookkeeping)
        for flush, error in zip(flushes, errors, strict=True)
        if error is None and flush.bookkeeping is not None
    ]
    if not shares or len(books) < TOGETHER_FROM:
        for flush, book in books:
            flush.attempt(book.run)
        return errors
    prepared: list[tuple[Flush, Bookkeeping, list[Path]]] = []
    for flush, book in books:
        try:
            prepared.append((flush, book, book.prepare()))
        except OSError as error:
            flush.bookkeeping_error = error
    if not _sync_filesystem(disk, root):
        for flush, book, files in prepared:
            if not flush.attempt(lambda files=files: _sync_files(disk, files)):  # type: ignore[misc]
                book.abandon()
    published = [
        (flush, book)
        for flush, book, _ in prepared
        if flush.bookkeeping_error is None and flush.attempt(book.publish)
    ]
    if not _sync_filesystem(disk, root):
        for flush, book in published:
            flush.attempt(lambda book=book: disk.sync_directory(book.directory))  # type: ignore[misc]
    for flush, book in published:
        if flush.bookkeeping_error is None:
            flush.attempt(book.finish)
    return errors


def _sync_filesystem(disk: Disk, root: Path) -> bool:
    """Whether one sync did for all. An error need not be ours: syncing one by one tells."""
    try:
        return disk.sync_filesystem(root)
    except OSError:
        return False


def _sync_files(disk: Disk, files: Sequence[Path]) -> None:
    for path in files:
        sync_file(disk, path)


class FlushLedger:
    """What of one partition is not on the medium yet."""

    def __init__(
        self,
        directory: Path,
        storage: Storage,
        checkpoint: CheckpointFile,
        snapshots: ProducerSnapshots,
        epochs: EpochHistory,
    ) -> None:
        self._directory = directory
        self._storage = storage
        self._checkpoint = checkpoint
        self._snapshots = snapshots
        self._epochs = epochs
        self.flushed_offset = checkpoint.current.recovery_point.offset
        # Leader epochs: whether they are in a file, and whether that has yet to be synced.
        self.has_epochs_file = True
        self.epochs_changed = False
        self.directory_changed = False
        self.is_parent_changed = False
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
        self.has_epochs_file = True
        self._was_truncated = True

    def begin(
        self,
        segments: Segments,
        memory: Memory,
        *,
        checkpoint_bytes: int | None = None,
        is_in_use: bool = True,
    ) -> Flush | None:
        """What has to be done now, or None if everything is on the medium.

        A checkpoint is part of it if the last is at least `checkpoint_bytes` behind. A log that is in use
        may drop segments meanwhile: their files are held open.
        """
        assert not self._flushing, "one flush of a log at a time"
        active = segments.active
        candidates = dict.fromkeys((*self._sealed, active))
        unsynced = [segment for segment in candidates if segment.size > segment.synced_to]
        point = RecoveryPoint(active.next_offset, active.base_offset, active.size)
        bookkeeping = None
        if checkpoint_bytes is None:
            checkpoint_bytes = self._storage.checkpoint_bytes
        if self._is_checkpoint_due(point, checkpoint_bytes):
            # No room for an index is no reason not to flush; the checkpoint waits until there is.
            with suppress(OSError):
                self._write_indexes()
                active.index.write_entries(active.size)
                bookkeeping = self._bookkeeping(point, segments, memory)
        # Names matter as soon as there is something to be found under them.
        if not unsynced and bookkeeping is None:
            return None
        files: list[tuple[Handle | None, Segment, int]] = []
        try:
            for segment in unsynced:
                handle = self._storage.handles.pin(segment.path) if is_in_use else None
                files.append((handle, segment, segment.size))
        except OSError:
            for pinned, _, _ in files:
                if pinned is not None:
                    pinned.release()
            raise
        flush = Flush(
            disk=self._storage.disk,
            directory=self._directory,
            end_offset=active.next_offset,
            files=files,
            syncs_epochs=self.epochs_changed,
            syncs_directory=self.directory_changed or self.epochs_changed,
            syncs_parent=self.is_parent_changed,
            bookkeeping=bookkeeping,
        )
        self.directory_changed = self.epochs_changed = self.is_parent_changed = False
        self._sealed = []
        if bookkeeping is not None:
            self._segment_snapshot = None
        self._flushing = True
        return flush

    def end(self, flush: Flush, error: OSError | None) -> None:
        """Take note of how a flush went. After an error nothing is known, and nothing is noted."""
        self._flushing = False
        for handle, segment, synced_to in flush.files:
            if handle is not None:
                handle.release()
            if error is None:
                segment.synced_to = synced_to
        if error is None:
            self.flushed_offset = flush.end_offset
        self._bookkeeping_ended(flush, error)

    def postpone(self, flush: Flush) -> None:
        """Have the next flush do all of this one: some file could not be opened, and no sync has failed."""
        self._flushing = False
        for handle, segment, _ in flush.files:
            if handle is not None:
                handle.release()
            if not segment.is_retired:
                self._sealed.append(segment)
        self.epochs_changed |= flush.syncs_epochs
        self.directory_changed |= flush.syncs_directory
        self.is_parent_changed |= flush.syncs_parent
        self._bookkeeping_ended(flush, OSError())

    def _bookkeeping_ended(self, flush: Flush, error: OSError | None) -> None:
        bookkeeping = flush.bookkeeping
        if bookkeeping is None:
            return
        if error is None and flush.bookkeeping_error is None:
            self.has_epochs_file = self.has_epochs_file or bookkeeping.epochs is not None
            self._was_truncated = False
            return
        self._segment_snapshot = self._segment_snapshot or bookkeeping.segment_snapshot

    def _is_checkpoint_due(self, point: RecoveryPoint, checkpoint_bytes: int) -> bool:
        current = self._checkpoint.current
        last = current.recovery_point
        if (
            self._was_truncated
            or self.compacted_to != current.compacted_to
            or self.deadline_ms != current.deadline_ms
        ):
            return True
        return last != point and (
            last.segment != point.segment or point.position - last.position >= checkpoint_bytes
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
            directory=self._directory,
            checkpoint=self._checkpoint,
            snapshots=self._snapshots,
            epochs=None if self.has_epochs_file else EpochHistory(self._epochs.entries),
            point=point,
            opened_ms=segments.active.opened_ms,
            compacted_to=self.compacted_to,
            deadline_ms=self.deadline_ms,
            remembered=memory.copy(),
            segment_snapshot=self._segment_snapshot,
            segment_bases=frozenset(segment.base_offset for segment in segments),
        )
