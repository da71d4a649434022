"""Flushes a log to disk and tracks what is durable.

The event loop begins and ends a flush; the blocking part runs in between, in any thread. Segments
are synced before the checkpoint that covers them. Flushes of many logs can run together: each step
is taken for all of them, followed by one sync of the file system.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from alpacamq.model.ports import Disk

from .checkpoint import CheckpointFile, RecoveryPoint
from .disk import sync_file
from .epochs import FILE_NAME as EPOCHS_FILE
from .epochs import EpochHistory, publish_epochs
from .handles import Handle
from .health import is_out_of_descriptors
from .producer_state import ProducerSnapshot, ProducerSnapshots, ProducerState
from .segment import Segment, Segments
from .storage import Storage

# With fewer flushes, syncing the file system, which includes other processes' writes, does not pay.
SYNCFS_THRESHOLD = 16
# Scanning less than this at the next start costs no more than writing a checkpoint.
SMALL_TAIL_BYTES = 64 << 10
NO_HIGH_WATERMARK = -1


class CheckpointWrite(msgspec.Struct, frozen=True, kw_only=True):
    """Writes what makes recovery short: producer snapshots and the checkpoint.

    Split into steps so that logs can share syncs: sync the files that `prepare` returns before
    `publish`, and the directory before `finish`. Call `abandon` if `publish` is not called.
    """

    disk: Disk
    directory: Path
    checkpoint: CheckpointFile
    snapshots: ProducerSnapshots
    point: RecoveryPoint
    opened_ms: int
    compacted_to: int
    deadline_ms: int | None
    high_watermark: int | UnsetType
    snapshot: ProducerSnapshot
    segment_snapshot: tuple[int, ProducerSnapshot] | None
    segment_bases: frozenset[int]

    def run(self) -> None:
        """Run all steps."""
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
        """Write the new files beside those that they replace."""
        files = [self.snapshots.prepare(offset, taken) for offset, taken in self._taken.items()]
        files.append(
            self.checkpoint.prepare(
                recovery_point=self.point,
                has_producers=not self.snapshot.is_empty,
                opened_ms=self.opened_ms,
                compacted_to=self.compacted_to,
                deadline_ms=self.deadline_ms,
                high_watermark=self.high_watermark,
            )
        )
        return files

    def abandon(self) -> None:
        """Keep the old files; prepared ones are removed at the next start or overwritten."""
        self.checkpoint.abandon()

    def publish(self) -> None:
        """Replace the old files, the checkpoint last."""
        try:
            for offset in self._taken:
                self.snapshots.publish(offset)
        except BaseException:
            self.abandon()
            raise
        self.checkpoint.publish()

    def finish(self) -> None:
        """Remove snapshots that are no longer needed."""
        self.snapshots.remove_except(self.segment_bases | {self.point.offset})

    @property
    def _taken(self) -> dict[int, ProducerSnapshot]:
        taken = {} if self.segment_snapshot is None else dict([self.segment_snapshot])
        return taken if self.snapshot.is_empty else {**taken, self.point.offset: self.snapshot}


@dataclass(slots=True, kw_only=True)
class Flush:
    """One flush: begun on the event loop, `run` in any thread, ended on the event loop."""

    disk: Disk
    directory: Path
    end_offset: int
    files: list[tuple[Handle | None, Segment, int]]
    syncs_epochs: bool
    syncs_directory: bool
    syncs_parent: bool
    checkpoint: CheckpointFile
    checkpoint_write: CheckpointWrite | None
    checkpoint_error: OSError | None = field(default=None, init=False)

    def run(self) -> None:
        """Make everything up to `end_offset` durable. After an OSError its state is unknown.

        Except when a file could not be opened for lack of descriptors: then its sync was not tried. A
        failed checkpoint is only recorded: without it, recovery takes longer.
        """
        self.sync()
        if self.checkpoint_write is not None:
            self.attempt(self.checkpoint_write.run)

    def sync(self) -> None:
        """Sync the data and the directory entries."""
        try:
            self._sync()
        except OSError as error:
            if not is_out_of_descriptors(error):
                # After a restart the page cache may still show what never reached the disk.
                with suppress(OSError):
                    self.checkpoint.note_loss(f"a flush failed: {error.strerror or error}")
            raise

    def _sync(self) -> None:
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
        """Run a step of the checkpoint write and record its error; return whether all steps succeeded."""
        try:
            step()
        except OSError as error:
            self.checkpoint_error = error
        return self.checkpoint_error is None


def run_flushes(disk: Disk, root: Path, flushes: Sequence[Flush]) -> list[OSError | None]:
    """Run flushes of logs below `root`, with shared syncs if there are many; return the error of each."""
    errors: list[OSError | None] = [None] * len(flushes)
    shares = len(flushes) >= SYNCFS_THRESHOLD
    if not (shares and _sync_filesystem(disk, root)):
        for index, flush in enumerate(flushes):
            try:
                flush.sync()
            except OSError as error:
                errors[index] = error
    writes = [
        (flush, flush.checkpoint_write)
        for flush, error in zip(flushes, errors, strict=True)
        if error is None and flush.checkpoint_write is not None
    ]
    if not shares or len(writes) < SYNCFS_THRESHOLD:
        for flush, write in writes:
            flush.attempt(write.run)
        return errors
    prepared: list[tuple[Flush, CheckpointWrite, list[Path]]] = []
    for flush, write in writes:
        try:
            prepared.append((flush, write, write.prepare()))
        except OSError as error:
            flush.checkpoint_error = error
    if not _sync_filesystem(disk, root):
        for flush, write, files in prepared:
            if not flush.attempt(lambda files=files: _sync_files(disk, files)):  # type: ignore[misc]
                write.abandon()
    published = [
        (flush, write)
        for flush, write, _ in prepared
        if flush.checkpoint_error is None and flush.attempt(write.publish)
    ]
    if not _sync_filesystem(disk, root):
        for flush, write in published:
            flush.attempt(lambda write=write: disk.sync_directory(write.directory))  # type: ignore[misc]
    for flush, write in published:
        if flush.checkpoint_error is None:
            flush.attempt(write.finish)
    return errors


def _sync_filesystem(disk: Disk, root: Path) -> bool:
    """Sync the file system; return whether that worked. The error may be another file's: sync each then."""
    try:
        return disk.sync_filesystem(root)
    except OSError:
        return False


def _sync_files(disk: Disk, files: Sequence[Path]) -> None:
    for path in files:
        sync_file(disk, path)


class UnflushedState:
    """Tracks which parts of one partition are not durable yet."""

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
        # Leader epochs: whether they are in a file, and whether that file has to be synced.
        self.has_epochs_file = True
        self.epochs_changed = False
        self.directory_changed = False
        self.is_parent_changed = False
        self.compacted_to = checkpoint.current.compacted_to
        self.deadline_ms = checkpoint.current.deadline_ms
        self.high_watermark = NO_HIGH_WATERMARK
        self._sealed: list[Segment] = []
        self._unindexed: list[Segment] = []
        self._segment_snapshot: tuple[int, ProducerSnapshot] | None = None
        self._flushing = False
        self._was_truncated = False

    @property
    def is_flushing(self) -> bool:
        return self._flushing

    @property
    def recovery_point(self) -> RecoveryPoint:
        return self._checkpoint.current.recovery_point

    def write_epochs(self, epochs: EpochHistory) -> None:
        """Replace the file of leader epochs; the next flush syncs it.

        Not in the thread of a flush: an epoch may begin meanwhile, and would be missing in the file.
        """
        epochs.prepare(self._storage.disk, self._directory)
        publish_epochs(self._storage.disk, self._directory)
        self.has_epochs_file = self.epochs_changed = True

    def sealed(self, segment: Segment) -> None:
        """Register a segment that was just sealed; its unsynced bytes are left to the next flush."""
        if segment.size > segment.synced_to:
            self._sealed.append(segment)
        self.unindexed(segment)

    def unindexed(self, segment: Segment) -> None:
        """Write the index of a sealed segment; if that fails, a later flush does."""
        self._unindexed.append(segment)
        with suppress(OSError):
            self._write_indexes()

    def snapshot(self, offset: int, producer_state: ProducerState) -> None:
        """Keep the producer state at the start of a segment for the next checkpoint."""
        self._segment_snapshot = offset, producer_state.copy()

    def drop(self, segments: list[Segment]) -> None:
        """Drop segments that are being removed."""
        self._sealed = [segment for segment in self._sealed if segment not in segments]
        self._unindexed = [segment for segment in self._unindexed if segment not in segments]

    def truncated(self, dropped: list[Segment], active: Segment, end_offset: int) -> None:
        """Note that the log was truncated to `end_offset`, inside of `active`."""
        self.drop(dropped)
        self._unindexed = [segment for segment in self._unindexed if segment is not active]
        self.high_watermark = min(self.high_watermark, end_offset)
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self.compacted_to = self._checkpoint.current.compacted_to
        self._segment_snapshot = None
        self.has_epochs_file = True
        self._was_truncated = True

    def restarted(self, offset: int) -> None:
        """Note that the log was emptied and continues at `offset`, durably."""
        self.flushed_offset = offset
        self.high_watermark = NO_HIGH_WATERMARK
        self.compacted_to, self.deadline_ms = 0, None
        self._sealed, self._unindexed, self._segment_snapshot = [], [], None
        self.has_epochs_file = True
        self.epochs_changed = self.directory_changed = self._was_truncated = False

    def begin(
        self,
        segments: Segments,
        producer_state: ProducerState,
        *,
        checkpoint_bytes: int | None = None,
        is_in_use: bool = True,
    ) -> Flush | None:
        """Begin a flush. Returns None if everything is durable.

        Includes a checkpoint if the last one is at least `checkpoint_bytes` behind. A log that is in use
        may drop segments meanwhile, so their files are kept open.
        """
        assert not self._flushing, "one flush of a log at a time"
        active = segments.active
        candidates = dict.fromkeys((*self._sealed, active))
        unsynced = [segment for segment in candidates if segment.size > segment.synced_to]
        point = RecoveryPoint(active.next_offset, active.base_offset, active.size)
        checkpoint_write = None
        if checkpoint_bytes is None:
            checkpoint_bytes = self._storage.checkpoint_bytes
        if self._is_checkpoint_due(point, checkpoint_bytes):
            # No space for an index must not stop the flush; the checkpoint is left for later.
            with suppress(OSError):
                self._write_indexes()
                active.index.write_entries(active.size)
                if not self.has_epochs_file:
                    self.write_epochs(self._epochs)
                checkpoint_write = self._checkpoint_write(point, segments, producer_state)
        # Directory entries need a sync only once a file has data.
        if not unsynced and checkpoint_write is None:
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
            checkpoint=self._checkpoint,
            checkpoint_write=checkpoint_write,
        )
        self.directory_changed = self.epochs_changed = self.is_parent_changed = False
        self._sealed = []
        if checkpoint_write is not None:
            self._segment_snapshot = None
        self._flushing = True
        return flush

    def end(self, flush: Flush, error: OSError | None) -> None:
        """Record the result of a flush. After an error nothing is known to be durable."""
        self._flushing = False
        for handle, segment, synced_to in flush.files:
            if handle is not None:
                handle.release()
            if error is None:
                segment.synced_to = synced_to
        if error is None:
            self.flushed_offset = flush.end_offset
        self._end_checkpoint_write(flush, error)

    def postpone(self, flush: Flush) -> None:
        """Leave everything to the next flush: a file could not be opened, and no sync has failed."""
        self._flushing = False
        for handle, segment, _ in flush.files:
            if handle is not None:
                handle.release()
            if not segment.is_retired:
                self._sealed.append(segment)
        self.epochs_changed |= flush.syncs_epochs
        self.directory_changed |= flush.syncs_directory
        self.is_parent_changed |= flush.syncs_parent
        self._end_checkpoint_write(flush, OSError())

    def _end_checkpoint_write(self, flush: Flush, error: OSError | None) -> None:
        checkpoint_write = flush.checkpoint_write
        if checkpoint_write is None:
            return
        if error is None and flush.checkpoint_error is None:
            self._was_truncated = False
            return
        self._segment_snapshot = self._segment_snapshot or checkpoint_write.segment_snapshot

    def _is_checkpoint_due(self, point: RecoveryPoint, checkpoint_bytes: int) -> bool:
        current = self._checkpoint.current
        last = current.recovery_point
        if (
            self._was_truncated
            or self.compacted_to != current.compacted_to
            or self.deadline_ms != current.deadline_ms
        ):
            return True
        # Worth a write of its own only when the log is closed.
        if not checkpoint_bytes and self._stored_high_watermark(point) != current.high_watermark:
            return True
        return last != point and (
            last.segment != point.segment or point.position - last.position >= checkpoint_bytes
        )

    def _stored_high_watermark(self, point: RecoveryPoint) -> int | UnsetType:
        """Return the high watermark for a checkpoint at `point`: what is behind it may not be durable."""
        return UNSET if self.high_watermark < 0 else min(self.high_watermark, point.offset)

    def _write_indexes(self) -> None:
        while self._unindexed:
            segment = self._unindexed[-1]
            segment.index.write(segment.size)
            segment.index.seal()
            self._unindexed.pop()

    def _checkpoint_write(
        self, point: RecoveryPoint, segments: Segments, producer_state: ProducerState
    ) -> CheckpointWrite:
        return CheckpointWrite(
            disk=self._storage.disk,
            directory=self._directory,
            checkpoint=self._checkpoint,
            snapshots=self._snapshots,
            point=point,
            opened_ms=segments.active.opened_ms,
            compacted_to=self.compacted_to,
            deadline_ms=self.deadline_ms,
            high_watermark=self._stored_high_watermark(point),
            snapshot=producer_state.copy(),
            segment_snapshot=self._segment_snapshot,
            segment_bases=frozenset(segment.base_offset for segment in segments),
        )
