"""One partition on disk: append, read, flush, retention, compaction, truncation.

Synchronous, with one owner: only the thread that owns the partition may call it, except for methods
documented otherwise. Write permission and read visibility are decided by the caller.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from msgspec import UNSET

from alpacamq.model.errors import (
    AlpacaError,
    DamagedLog,
    DataInDoubt,
    DiskFull,
    StorageFailed,
)
from alpacamq.model.ports import Buffer, Disk
from alpacamq.model.topics import TopicConfig

from .appender import Appended, Appender, Incoming, IncomingBatch
from .checkpoint import RecoveryPoint
from .compactor import Compaction, Compactor, discard_swaps
from .directory import list_contents, remove_segment
from .disk import remove_tree
from .fetched import LogEnd, check_fetched
from .flush import SMALL_TAIL_BYTES, Flush, UnflushedState, run_flushes
from .health import NO_ROOM, LogHealth, is_out_of_descriptors, storage_error
from .producer_state import ProducerSnapshot
from .reader import LogReader, Slice, TimestampOffset, TimestampSearch
from .recovery import Recovered, Recovery, ScanProgress, complete_restart
from .retention import Removal, StartMove, count_before, count_removable, is_expired
from .scan import Boundary, Violation
from .segment import Segment, Segments
from .storage import Storage
from .transactions import read_stored_marker

DELETED = "-delete"
# Keeps the name of a directory being deleted within the file system's limit.
MAX_STEM = 200
# Flushes of at most this many logs share their syncs.
MAX_SHARED_FLUSHES = 256
# Read at once where a whole file is read.
READ_BYTES = 1 << 20

__all__ = ["Appended", "Incoming", "PartitionLog", "Recovered", "ScanProgress", "Slice", "TimestampOffset"]


class PartitionLog:
    """The log of one partition."""

    def __init__(self, directory: Path, config: TopicConfig, storage: Storage, recovery: Recovery) -> None:
        self.directory = directory
        self.recovered = recovery.report
        self.epochs = recovery.epochs
        self.producer_state = recovery.producer_state
        self.producers = self.producer_state.producers
        self.transactions = self.producer_state.transactions
        self.start_offset = recovery.start_offset
        self._storage = storage
        self._segments = Segments(recovery.segments)
        self._checkpoint = recovery.checkpoint
        self._snapshots = recovery.snapshots
        self._health = LogHealth(directory)
        self._health.is_damaged = any(segment.gaps for segment in recovery.segments)
        self._recovered_loss = recovery.loss
        self._unflushed = UnflushedState(
            directory, storage, recovery.checkpoint, recovery.snapshots, recovery.epochs
        )
        self._unflushed.high_watermark = recovery.high_watermark
        self._appender = Appender(
            directory, config, storage, self._segments, self.epochs, self.producer_state, self._unflushed
        )
        self._compactor = Compactor(
            directory,
            storage,
            self._segments,
            self.epochs,
            self._unflushed,
            self.producer_state,
            recovery.checkpoint.note_loss,
        )
        self._reader = LogReader(
            directory, storage, self._segments, self.epochs, self._health, recovery.checkpoint.note_loss
        )

    @classmethod
    def open(
        cls, directory: Path, config: TopicConfig, storage: Storage, *, progress: ScanProgress | None = None
    ) -> "PartitionLog":
        """Open the log in `directory`, ready for use; create it if it does not exist. Blocking."""
        log = cls.recover(directory, config, storage, progress=progress)
        try:
            log._run_now(log.begin_recovery_flush())
        except OSError as error:
            raise storage_error(directory, "opening", error) from error
        return log

    @classmethod
    def recover(
        cls, directory: Path, config: TopicConfig, storage: Storage, *, progress: ScanProgress | None = None
    ) -> "PartitionLog":
        """Open the log without syncing, so that many logs can share the syncs of `begin_recovery_flush`.

        That flush must end before the log is used. `progress` is called with bytes scanned and total bytes.
        """
        try:
            recovery = Recovery(directory, storage, progress)
            try:
                contents = list_contents(storage.disk, directory)
            except FileNotFoundError:
                storage.disk.make_directory(directory)
                recovery.begin_new()
            else:
                recovery.run(contents)
            log = cls(directory, config, storage, recovery)
            log._finish_recovery(recovery)
        except OSError as error:
            raise storage_error(directory, "opening", error) from error
        return log

    def begin_recovery_flush(self) -> Flush | None:
        """Begin the flush that makes the result of recovery durable; `Flush.run` may run in any thread.

        Returns None if nothing needs syncing. The log must not be read or written before the flush has
        ended: after the next power loss, served data must not vanish and truncated data must not return.
        """
        if self.recovered.clean or not self._health.is_writable:
            return None
        return self._unflushed.begin(
            self._segments, self.producer_state, checkpoint_bytes=SMALL_TAIL_BYTES, is_in_use=False
        )

    @property
    def config(self) -> TopicConfig:
        return self._appender.config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._appender.config = config

    @property
    def end_offset(self) -> int:
        return self._segments.active.next_offset

    @property
    def flushed_offset(self) -> int:
        return self._unflushed.flushed_offset

    @property
    def unflushed_records(self) -> int:
        return self._segments.active.next_offset - self._unflushed.flushed_offset

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    def bytes_after(self, offset: int) -> int:
        """Return about how many bytes lie at and after `offset`."""
        return self._segments.bytes_after(offset)

    @property
    def damages(self) -> list[DamagedLog]:
        """The damaged ranges found so far, in order; batches around them are served."""
        if not self._health.is_damaged:
            return []
        return [damage for segment in self._segments for damage in segment.damages]

    @property
    def damage(self) -> DamagedLog | None:
        """The first damaged range."""
        return next(iter(self.damages), None)

    @property
    def in_doubt(self) -> str | None:
        return self._health.in_doubt

    @property
    def unreadable(self) -> str | None:
        """Why some of the log cannot be read; None if all that was asked for could be."""
        for path, reason in list(self._health.unreadable.items()):
            return f"{self.directory.name}: reading {path.name} failed: {reason}"
        return None

    def on_failure(self, report: Callable[[], None]) -> None:
        """Call `report` when a read or a flush has failed or damage was found, in any thread."""
        self._health.on_failure = report

    def retry_reads(self) -> None:
        """Read the files again that could not be read, to see whether they can be by now. Blocking."""
        disk = self._storage.disk
        for path in list(self._health.unreadable):
            try:
                # The index, too: it may be what could not be read.
                for name in disk.names(self.directory):
                    if Path(name).stem == path.stem:
                        _read_through(disk, self.directory / name)
            except FileNotFoundError:
                pass  # removed since
            except OSError:
                continue
            self._health.unreadable.pop(path, None)

    def give_up_reading(self) -> None:
        """Count what cannot be read as lost, so that it is fetched from another replica. Blocking."""
        if (reason := self.unreadable) is not None:
            try:
                self._checkpoint.note_loss(reason)
            except OSError as error:
                raise storage_error(self.directory, "recording a loss", error) from error

    @property
    def loss(self) -> str | None:
        """Why records that were durable are missing or damaged; None if they are not.

        Stays after a restart, until `restart_at` has emptied the log.
        """
        if self._health.in_doubt is not None:
            return self._health.in_doubt
        stored = self._checkpoint.current.loss
        if stored is not UNSET:
            return stored
        if self._recovered_loss is not None:
            return self._recovered_loss
        return None if (damage := self.damage) is None else str(damage)

    @property
    def has_lost_data(self) -> bool:
        """Whether this replica may lack records that it had acknowledged as durable."""
        return self.loss is not None

    @property
    def high_watermark_hint(self) -> int:
        """The high watermark last remembered, which survives a restart, maybe at an older value; or -1."""
        return self._unflushed.high_watermark

    def remember_high_watermark(self, offset: int) -> None:
        """Store the high watermark with the next checkpoint, as far as the log is durable then."""
        self._unflushed.high_watermark = offset

    @property
    def is_flushing(self) -> bool:
        """Whether a flush has begun and not ended; the log cannot be truncated meanwhile."""
        return self._unflushed.is_flushing

    @property
    def is_flushable(self) -> bool:
        """Whether a flush can still succeed: false once the log is closed or an fsync failed."""
        return self._health.is_writable

    @property
    def is_restartable(self) -> bool:
        """Whether `restart_at` can empty the log: also after a failed fsync."""
        return self._health.is_restartable

    def fsync_error(self) -> DataInDoubt:
        """Return the error for callers that waited for the failed flush."""
        return self._health.fsync_error()

    def append(self, batches: Sequence[IncomingBatch], leader_epoch: int) -> list[Appended | AlpacaError]:
        """Append batches in order; return a result for each. Raises StorageFailed if nothing was written."""
        self._health.check_writable()
        return self._appender.append(batches, leader_epoch)

    def append_fetched(self, data: Buffer, leader_epoch: int) -> int:
        """Append batches as fetched from the leader of `leader_epoch`; return the new end offset.

        Skips batches that the log has, and an incomplete last one. Raises CorruptBatch for a batch that is
        unsound or does not continue the log, and StorageFailed: both after appending those before it.

        If the log is empty and starts inside of the first batch, it starts with that batch afterwards
        (and this blocks, and must not be called during a flush): move the start with `begin_delete_before`.
        """
        self._health.check_writable()
        end = self.end_offset
        fetched = check_fetched(
            data, LogEnd(end, self.epochs.latest, is_empty=not self.size_bytes), leader_epoch
        )
        if fetched.headers:
            if fetched.headers[0].base_offset < end:
                # The leader's log starts inside of this batch, because records were deleted there.
                self.restart_at(fetched.headers[0].base_offset)
            self._appender.append_fetched(fetched)
        if fetched.error is not None:
            raise fetched.error
        return self.end_offset

    def start_epoch(self, leader_epoch: int) -> None:
        """Record a new leader epoch before its first append, so that the append does not wait for it."""
        self._health.check_writable()
        self._appender.start_epoch(leader_epoch)

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, *, at_least_one: bool = True
    ) -> Slice | None:
        """Read whole batches of one segment, from the one with `offset` on, up to `limit_offset`.

        Returns None if there is nothing to read yet, or if no batch fits and not `at_least_one`.
        """
        return self._reader.read(
            offset, max_bytes, self.start_offset, limit_offset, at_least_one=at_least_one
        )

    def verify(self, part: Slice) -> None:
        """Verify bytes that this process has not checked before. May run in any thread.

        Raises DamagedLog if they are not what was written. New slices can still read the batches around
        the damage.
        """
        self._reader.verify(part)

    def begin_flush(self) -> Flush | None:
        """Begin a flush; `Flush.run` may run in any thread. Returns None if everything is durable."""
        if not self._health.is_writable:
            return None
        try:
            return self._unflushed.begin(self._segments, self.producer_state)
        except OSError as error:
            raise storage_error(self.directory, "beginning a flush", error) from error

    def flush_now(self) -> None:
        """Flush and wait for the end. Blocking; not during another flush."""
        if (flush := self.begin_flush()) is None:
            return
        try:
            self._run_now(flush)
        except OSError as error:
            if is_out_of_descriptors(error):
                raise storage_error(self.directory, "flushing", error) from error
            self._health.flush_failed(error)
            raise self.fsync_error() from error

    def end_flush(self, flush: Flush, error: OSError | None) -> None:
        """Record the result of a flush. After a failure the log takes no more writes.

        Running out of descriptors is not a failure: the flush can be begun again.
        """
        if error is not None and is_out_of_descriptors(error):
            self._unflushed.postpone(flush)
            return
        self._unflushed.end(flush, error)
        if error is not None:
            self._health.flush_failed(error)

    def roll_if_due(self, now_ms: int) -> None:
        """Begin a new segment if the active one is older than segment.ms."""
        if self._health.is_writable:
            self._appender.roll_if_due(now_ms)

    def roll(self) -> None:
        """Begin a new segment if the active one has records, so that these can be compacted."""
        if self._health.is_writable and self._segments.active.size:
            self._appender.roll()

    @property
    def is_checkpointed(self) -> bool:
        """Whether the checkpoint covers all segments before the active one."""
        return self._unflushed.recovery_point.segment == self._segments.active.base_offset

    def begin_retention(self, now_ms: int, *, limit_offset: int | None = None) -> Removal | None:
        """Drop expired segments from the log; `Removal.run`, in any thread, deletes their files.

        For leaders. Records from `limit_offset` on, the high watermark, stay whatever their age.
        """
        if not self._health.is_writable:
            return None
        self.producers.expire(now_ms)
        limit_offset = self.end_offset if limit_offset is None else limit_offset
        try:
            active = self._segments.active
            if active.size and active.next_offset <= limit_offset and is_expired(active, self.config, now_ms):
                with suppress(DiskFull):  # removing the older segments frees space
                    self._appender.roll()
            count = count_removable(
                tuple(self._segments), self.config, self.start_offset, limit_offset, now_ms
            )
        except Violation as violation:
            raise StorageFailed(
                f"{self.directory.name}: an index cannot be rebuilt: {violation}"
            ) from violation
        except OSError as error:
            raise storage_error(self.directory, "retention", error) from error
        return self._remove_first(count)

    def begin_trim(self, now_ms: int) -> Removal | None:
        """Drop segments before the log start; `Removal.run`, in any thread, deletes their files.

        For followers: the leader decides on retention, and `begin_delete_before` moves the start to its.
        """
        if not self._health.is_writable:
            return None
        self.producers.expire(now_ms)
        return self._remove_first(count_before(tuple(self._segments), self.start_offset))

    def _remove_first(self, count: int) -> Removal | None:
        if count == 0:
            return None
        dropped = self._segments.drop_first(count)
        for segment in dropped:
            segment.index.retire()
        self._unflushed.drop(dropped)
        self.start_offset = max(self.start_offset, self._segments.first.base_offset)
        self.epochs.truncate_before(self._segments.first.base_offset)
        self.transactions.drop_before(self.start_offset)
        return Removal(
            directory=self.directory,
            storage=self._storage,
            checkpoint=self._checkpoint,
            snapshots=self._snapshots,
            start_offset=self.start_offset,
            segments=dropped,
        )

    def begin_delete_before(self, offset: int) -> StartMove:
        """Move the log start to `offset` at once; `StartMove.run`, in any thread, makes that durable."""
        if offset > self.end_offset:
            raise self._reader.out_of_range(offset, self.start_offset)
        self.start_offset = max(self.start_offset, offset)
        self.transactions.drop_before(self.start_offset)
        return StartMove(
            directory=self.directory, checkpoint=self._checkpoint, start_offset=self.start_offset
        )

    @property
    def dirty_bytes(self) -> int:
        """The size of what is complete and was not compacted yet."""
        return self._compactor.dirty_bytes

    def begin_compaction(
        self,
        now_ms: int,
        *,
        limit_offset: int | None = None,
        tombstone_limit_offset: int | None = None,
        force: bool = False,
    ) -> Compaction | None:
        """Begin a compaction if one is due; `Compaction.run` may run in any thread. None if damaged.

        Compacts nothing from `limit_offset` on, the high watermark, and drops no tombstone from
        `tombstone_limit_offset` on: a replica that ends before a tombstone would otherwise keep the value
        that it deletes. `now_ms` decides on tombstones, too. With `force`, one is due if there is anything
        that was not compacted.
        """
        if not self._health.is_writable or self.damages:
            return None
        try:
            return self._compactor.begin(
                self.config,
                now_ms,
                limit_offset=self.end_offset if limit_offset is None else limit_offset,
                tombstone_limit_offset=tombstone_limit_offset,
                force=force,
            )
        except Violation as violation:
            raise StorageFailed(
                f"{self.directory.name}: an index cannot be rebuilt: {violation}"
            ) from violation

    def end_compaction(self, compaction: Compaction) -> None:
        """Replace the compacted segments."""
        try:
            self._compactor.end(compaction)
        except OSError as error:
            raise storage_error(self.directory, "compaction", error) from error
        finally:
            self._reader.forget_positions()

    def offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> TimestampOffset | None:
        """Find the first record at or after `timestamp_ms`, before `limit_offset`. Blocking; any thread."""
        return self._reader.search(
            self.start_offset, limit_offset, lambda search: search.first_at_or_after(timestamp_ms)
        )

    def max_timestamp(self, limit_offset: int) -> TimestampOffset | None:
        """Find the record with the largest timestamp before `limit_offset`. Blocking; in any thread."""
        return self._reader.search(self.start_offset, limit_offset, TimestampSearch.latest)

    def truncate_to(self, offset: int) -> None:
        """Truncate the log from the batch with `offset` on. Blocking; not during a flush.

        At the end of the log it drops epochs without batches. A compaction is stopped. The log takes no
        more writes if this fails half-way.
        """
        self._health.check_writable()
        if offset < self.start_offset:
            raise self._reader.out_of_range(offset, self.start_offset)
        if offset >= self.end_offset and not self._has_unused_epoch:
            return
        assert not self.is_flushing, "a flush would store a recovery point behind the new end"
        self._compactor.interrupt()
        self._reader.forget_positions()
        try:
            segment = self._segments.locate(offset)
            end = segment.find(offset)
        except Violation as violation:
            raise StorageFailed(
                f"{self.directory.name}: truncating at {offset} failed: {violation}"
            ) from violation
        except OSError as error:
            raise storage_error(self.directory, "truncating", error) from error
        self._change_files("truncating", lambda: self._truncate(segment, end))
        try:
            self._run_now(self.begin_closing())
        except OSError as error:
            if not is_out_of_descriptors(error):  # otherwise the next flush writes the checkpoint
                self._health.flush_failed(error)
            raise storage_error(self.directory, "truncating", error) from error

    @property
    def _has_unused_epoch(self) -> bool:
        """Whether the newest epoch has no batch: a leader was elected and wrote nothing."""
        return (last := self.epochs.last) is not None and last.start_offset >= self.end_offset

    def restart_at(self, offset: int) -> None:
        """Drop everything, and continue as an empty log at `offset`. Blocking; not during a flush.

        After a crash the log is as before or empty at `offset`. Also ends damage and the doubt after a failed
        flush: the log is rebuilt from its leader.
        """
        self._health.check_restartable()
        assert not self.is_flushing, "a flush would store a recovery point of the dropped log"
        self._compactor.interrupt()
        self._reader.forget_positions()
        self._change_files("restarting", lambda: self._restart(offset))

    def _change_files(self, doing: str, change: Callable[[], None]) -> None:
        """Run a change of the files that only recovery could complete if it fails half-way."""
        before = self._checkpoint.current
        try:
            change()
        except OSError as error:
            # The first step of a change is a new checkpoint. A full disk fails it without effect.
            if not (error.errno in NO_ROOM and self._checkpoint.current is before):
                self._health.truncation_failed(error)
            raise storage_error(self.directory, doing, error) from error
        except Violation as violation:
            self._health.truncation_failed(violation)
            raise StorageFailed(f"{self.directory.name}: {doing} failed: {violation}") from violation

    def begin_closing(self) -> Flush | None:
        """Begin a flush with a checkpoint, so that the next start need not scan. `Flush.run` in any thread.

        Not during another flush. Call `end_flush` and `close` afterwards.
        """
        if not self._health.is_writable:
            return None
        return self._unflushed.begin(self._segments, self.producer_state, checkpoint_bytes=0, is_in_use=False)

    def close(self) -> None:
        """Flush what is not durable and release the files. Blocking; not during a flush."""
        try:
            self._run_now(self.begin_closing())
        except OSError as error:
            self._health.flush_failed(error)
            raise storage_error(self.directory, "closing", error) from error
        finally:
            self._release()

    def delete(self) -> None:
        """Remove the log and its directory. Blocking. After a crash no remains look like a log."""
        self._release()
        try:
            remove_tree(self._storage.disk, mark_deleted(self._storage.disk, self.directory))
        except OSError as error:
            raise storage_error(self.directory, "deleting", error) from error

    def _finish_recovery(self, recovery: Recovery) -> None:
        """Create the active segment's file, and register what the first flush has to sync."""
        # After a crash it is unknown which directory entries are durable, including the log's own if it is
        # young: the first flush syncs them, and a checkpoint is written only after that.
        is_unclean = not recovery.report.clean
        self._unflushed.epochs_changed = is_unclean and recovery.has_epochs_file
        self._unflushed.has_epochs_file = recovery.has_epochs_file
        self._unflushed.directory_changed = is_unclean or not recovery.has_checkpoint
        self._unflushed.is_parent_changed = not recovery.has_checkpoint
        if recovery.is_new:
            self._storage.handles.pin(self._segments.active.path, create=True).release()
        for segment in self._segments.sealed:
            if segment.index.tail is not None:
                self._unflushed.sealed(segment)
        if recovery.loss is not None:
            # A full disk must not prevent a start; the next start finds the loss again, or a reader does.
            with suppress(OSError):
                self._checkpoint.note_loss(recovery.loss)
        if recovery.report.clean:
            # Write a rebuilt index now, or every start would rebuild it.
            with suppress(OSError):
                self._segments.active.index.write_entries(self._segments.active.size)

    def _truncate(self, segment: Segment, end: Boundary) -> None:
        """Truncate the files. A crash half-way leaves a log that recovers, with some of the dropped batches.

        The recovery point moves back first, so that recovery does not report the dropped batches as lost.
        """
        disk = self._storage.disk
        current = self._checkpoint.current
        self._checkpoint.update(
            recovery_point=min(
                current.recovery_point, RecoveryPoint(end.offset, segment.base_offset, end.position)
            ),
            has_producers=True,
            compacted_to=min(current.compacted_to, end.offset),
            high_watermark=(
                UNSET if current.high_watermark is UNSET else min(current.high_watermark, end.offset)
            ),
        )
        discard_swaps(disk, self.directory, list_contents(disk, self.directory).swaps)
        dropped = self._segments.drop_after(segment)
        for later in reversed(dropped):
            self._storage.handles.forget(later.path)
            later.index.retire()
            remove_segment(disk, self.directory, later.base_offset)
            # Again, because a search in a thread may have opened it: a new segment can have this name.
            self._storage.handles.forget(later.path)
        segment.truncate(end)
        self._snapshots.remove([taken for taken in self._snapshots.offsets if taken > end.offset])
        disk.sync_directory(self.directory)
        self.epochs.truncate_from(end.offset)
        self.epochs.write(disk, self.directory)
        self._unflushed.truncated(dropped, segment, end.offset)
        self._restore_producer_state(end.offset)

    def _restart(self, offset: int) -> None:
        """Empty the directory. From the first step on, recovery does what a crash has left undone."""
        disk = self._storage.disk
        self._checkpoint.update(restarting_at=offset)
        for segment in self._segments:
            segment.index.retire()
        complete_restart(disk, self.directory, self._checkpoint, offset)
        for segment in self._segments:
            self._storage.handles.forget(segment.path)
        self._segments.restart(Segment(self.directory, offset, self._storage))
        self._snapshots.offsets.clear()
        self.start_offset = offset
        self.epochs.truncate_from(0)
        self.producer_state.reset(ProducerSnapshot())
        self.transactions.drop_before(offset)
        self._unflushed.restarted(offset)
        self._health.restarted()
        self._recovered_loss = None

    def _restore_producer_state(self, end: int) -> None:
        """Rebuild the producer state at `end` from the newest snapshot and the batches after it."""
        now_ms = self._storage.clock.now_ms()
        first = self._segments.first.base_offset
        newest = self._snapshots.newest(end, first, [])
        start, snapshot = newest if newest is not None else (first, ProducerSnapshot())
        self.producer_state.reset(snapshot)
        for segment in self._segments:
            if segment.next_offset <= start:
                continue
            boundary = (
                segment.find(start) if start > segment.base_offset else Boundary(segment.base_offset, 0)
            )
            with segment.descriptor() as descriptor:
                for position, header in segment.headers(descriptor, boundary):
                    marker = read_stored_marker(self._storage.disk, descriptor, position, header)
                    self.producer_state.replay(header, marker, now_ms)

    def _run_now(self, flush: Flush | None) -> None:
        if flush is None:
            return
        try:
            flush.run()
        except OSError as error:
            if is_out_of_descriptors(error):
                self._unflushed.postpone(flush)
            else:
                self._unflushed.end(flush, error)
            raise
        self._unflushed.end(flush, None)

    def _release(self) -> None:
        self._health.close()
        for segment in self._segments:
            self._storage.handles.forget(segment.path)
            self._storage.indexes.discard(segment.index)


def _read_through(disk: Disk, path: Path) -> None:
    """Read a whole file, and keep nothing."""
    descriptor = disk.open(path)
    try:
        for position in range(0, disk.size(descriptor), READ_BYTES):
            disk.read(descriptor, READ_BYTES, position)
    finally:
        disk.close(descriptor)


def mark_deleted(disk: Disk, directory: Path) -> Path:
    """Rename a log's directory, durably, so that no remains look like a log; return its new path."""
    doomed = directory.with_name(f"{directory.name[:MAX_STEM]}.{uuid4().hex}{DELETED}")
    disk.rename(directory, doomed)
    disk.sync_directory(doomed.parent)
    return doomed


def sync_recovered_logs(disk: Disk, root: Path, logs: Sequence[PartitionLog]) -> None:
    """Make recovered logs ready for use, with shared syncs. Blocking. Raises the first failure."""
    failures = _flush_logs(disk, root, logs, PartitionLog.begin_recovery_flush)
    for log, error in zip(logs, failures, strict=True):
        if error is not None:
            raise storage_error(log.directory, "opening", error) from error


def close_logs(disk: Disk, root: Path, logs: Sequence[PartitionLog]) -> list[StorageFailed]:
    """Close logs with shared syncs; return failures. Blocking; not during a flush of any of them."""
    failures: list[StorageFailed] = []
    errors = _flush_logs(disk, root, logs, PartitionLog.begin_closing)
    for log, error in zip(logs, errors, strict=True):
        if error is not None:
            failures.append(storage_error(log.directory, "closing", error))
        try:
            log.close()
        except StorageFailed as failure:
            failures.append(failure)
    return failures


def _flush_logs(
    disk: Disk,
    root: Path,
    logs: Sequence[PartitionLog],
    begin: Callable[[PartitionLog], Flush | None],
) -> list[OSError | None]:
    """Flush logs in groups, because a group's files are open together; return the error of each."""
    errors: list[OSError | None] = [None] * len(logs)
    for first in range(0, len(logs), MAX_SHARED_FLUSHES):
        begun: list[tuple[int, Flush]] = []
        for index in range(first, min(first + MAX_SHARED_FLUSHES, len(logs))):
            try:
                if (flush := begin(logs[index])) is not None:
                    begun.append((index, flush))
            except OSError as error:
                errors[index] = error
        ended = run_flushes(disk, root, [flush for _, flush in begun])
        for (index, flush), raised in zip(begun, ended, strict=True):
            errors[index] = raised
            logs[index].end_flush(flush, raised)
    return errors
