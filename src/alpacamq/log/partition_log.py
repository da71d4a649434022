"""One partition on disk: what is appended, read back, flushed, dropped and compacted.

Synchronous, with one owner: everything here belongs to the thread that owns the partition, save
what says that it may run in another. Who may write, and what readers may see, is not decided here.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from alpacamq.model.errors import (
    AlpacaError,
    DamagedLog,
    DataInDoubt,
    DiskFull,
    StorageFailed,
)
from alpacamq.model.ports import Disk
from alpacamq.model.topics import TopicConfig

from .appender import Appended, Appender, Incoming
from .checkpoint import CheckpointFile, RecoveryPoint
from .compactor import Compaction, Compactor
from .directory import list_contents, remove_segment
from .disk import remove_tree
from .epochs import EpochHistory
from .flush import SMALL_TAIL_BYTES, Flush, FlushLedger, run_together
from .health import Condition, is_out_of_descriptors, refused
from .producer_state import Memory, ProducerSnapshots, Remembered
from .reader import LogReader, Slice, TimestampOffset, TimestampSearch
from .recovery import Progress, Recovered, Recovery
from .retention import Removal, StartMove, count_removable, is_expired
from .scan import Boundary, Violation
from .segment import Segments
from .storage import Storage
from .swap import discard_swaps
from .transactions import read_stored_marker

DELETED = "-delete"
# The name of a directory being deleted must not get too long for the file system.
MAX_STEM = 200
# Flushes of as many logs share their syncs.
MAX_TOGETHER = 256

__all__ = ["Appended", "Incoming", "PartitionLog", "Progress", "Recovered", "Slice", "TimestampOffset"]


class PartitionLog:
    """The log of one partition."""

    def __init__(self, directory: Path, config: TopicConfig, storage: Storage, recovery: Recovery) -> None:
        self.directory = directory
        self.recovered = recovery.report
        self.epochs = recovery.epochs
        self.memory = recovery.memory
        self.producers = self.memory.producers
        self.transactions = self.memory.transactions
        self.start_offset = recovery.start_offset
        self._storage = storage
        self._segments = Segments(recovery.segments)
        self._checkpoint = recovery.checkpoint
        self._snapshots = recovery.snapshots
        self._condition = Condition(directory)
        self._condition.is_damaged = any(segment.gaps for segment in recovery.segments)
        self._ledger = FlushLedger(
            directory, storage, recovery.checkpoint, recovery.snapshots, recovery.epochs
        )
        self._appender = Appender(
            directory, config, storage, self._segments, self.epochs, self.memory, self._ledger
        )
        self._compactor = Compactor(
            directory, storage, self._segments, self.epochs, self._ledger, self.transactions
        )
        self._reader = LogReader(directory, storage, self._segments, self.epochs, self._condition)

    @classmethod
    def open(
        cls, directory: Path, config: TopicConfig, storage: Storage, *, progress: Progress | None = None
    ) -> "PartitionLog":
        """The log in `directory`, which is made if there is none, ready for use. Blocking."""
        log = cls.recover(directory, config, storage, progress=progress)
        try:
            log._run_now(log.begin_settling())
        except OSError as error:
            raise refused(directory, "opening", error) from error
        return log

    @classmethod
    def recover(
        cls, directory: Path, config: TopicConfig, storage: Storage, *, progress: Progress | None = None
    ) -> "PartitionLog":
        """The same without the syncs, which many logs can share: `begin_settling` comes before its use.

        `progress` hears how many bytes of how many have been scanned.
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
            log._take_over(recovery)
        except OSError as error:
            raise refused(directory, "opening", error) from error
        return log

    def begin_settling(self) -> Flush | None:
        """Get what recovery found, cut or renamed onto the medium, for `Flush.run` in any thread.

        None if there is nothing that could be lost. Nobody may read or write the log before that flush has
        ended: what is served must not vanish in the next power cut, nor what was cut come back.
        """
        if self.recovered.clean or not self._condition.is_writable:
            return None
        return self._ledger.begin(
            self._segments, self.memory, checkpoint_bytes=SMALL_TAIL_BYTES, is_in_use=False
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
        return self._ledger.flushed_offset

    @property
    def unflushed_records(self) -> int:
        return self._segments.active.next_offset - self._ledger.flushed_offset

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def damages(self) -> list[DamagedLog]:
        """The damaged stretches found so far, in order; what lies around them is served."""
        if not self._condition.is_damaged:
            return []
        return [damage for segment in self._segments for damage in segment.damages]

    @property
    def damage(self) -> DamagedLog | None:
        """The first of them."""
        return next(iter(self.damages), None)

    @property
    def in_doubt(self) -> str | None:
        return self._condition.in_doubt

    @property
    def is_flushable(self) -> bool:
        """Whether a flush can still succeed: not once the log is closed or in doubt."""
        return self._condition.is_writable

    def doubt(self) -> DataInDoubt:
        """The error for those who waited for the flush that failed."""
        return self._condition.doubt()

    def append(self, batches: Sequence[Incoming], leader_epoch: int) -> list[Appended | AlpacaError]:
        """Append batches in order; what became of each. Raises StorageFailed if nothing could be written."""
        self._condition.check_writable()
        return self._appender.append(batches, leader_epoch)

    def start_epoch(self, leader_epoch: int) -> None:
        """Record a new leader epoch ahead of its first append, which need not wait for the disk then."""
        self._condition.check_writable()
        self._appender.start_epoch(leader_epoch)

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, *, at_least_one: bool = True
    ) -> Slice | None:
        """Whole batches from the one with `offset` on, none past `limit_offset`, within one segment.

        None if there is nothing to read yet, or nothing fits and `at_least_one` is not asked for.
        """
        return self._reader.read(
            offset, max_bytes, self.start_offset, limit_offset, at_least_one=at_least_one
        )

    def verify(self, part: Slice) -> None:
        """Check bytes that this process has not seen before; in any thread.

        DamagedLog if they are not what was written. What lies around the damage can still be
        read by new slices.
        """
        self._reader.verify(part)

    def begin_flush(self) -> Flush | None:
        """What is to be synced, for `Flush.run` in any thread; None if everything is on the medium."""
        if not self._condition.is_writable:
            return None
        try:
            return self._ledger.begin(self._segments, self.memory)
        except OSError as error:
            raise refused(self.directory, "beginning a flush", error) from error

    def flush_now(self) -> None:
        """Flush, and return when that has ended. Blocking; not during a flush."""
        if (flush := self.begin_flush()) is None:
            return
        try:
            self._run_now(flush)
        except OSError as error:
            if is_out_of_descriptors(error):
                raise refused(self.directory, "flushing", error) from error
            self._condition.flush_failed(error)
            raise self.doubt() from error

    def end_flush(self, flush: Flush, error: OSError | None) -> None:
        """Take note of how a flush went. After a failure the log takes no more writes.

        A flush for which no descriptor was left has not failed: it can be begun again.
        """
        if error is not None and is_out_of_descriptors(error):
            self._ledger.postpone(flush)
            return
        self._ledger.end(flush, error)
        if error is not None:
            self._condition.flush_failed(error)

    def roll_if_due(self, now_ms: int) -> None:
        """Begin a new segment if the active one is older than segment.ms."""
        if self._condition.is_writable:
            self._appender.roll_if_due(now_ms)

    def begin_retention(self, now_ms: int) -> Removal | None:
        """Drop the segments that have had their time; the files go in `Removal.run`, in any thread."""
        if not self._condition.is_writable:
            return None
        self.producers.expire(now_ms)
        try:
            active = self._segments.active
            if active.size and is_expired(active, self.config, now_ms):
                with suppress(DiskFull):  # the older segments are what makes room
                    self._appender.roll()
            count = count_removable(tuple(self._segments), self.config, self.start_offset, now_ms)
        except Violation as violation:
            raise StorageFailed(
                f"{self.directory.name}: an index cannot be rebuilt: {violation}"
            ) from violation
        except OSError as error:
            raise refused(self.directory, "retention", error) from error
        if count == 0:
            return None
        dropped = self._segments.drop_first(count)
        for segment in dropped:
            segment.index.retire()
        self._ledger.drop(dropped)
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
        """Let the log start at `offset`, at once; `StartMove.run`, in any thread, makes it last."""
        if offset > self.end_offset:
            raise self._reader.out_of_range(offset, self.start_offset)
        self.start_offset = max(self.start_offset, offset)
        self.transactions.drop_before(self.start_offset)
        return StartMove(
            directory=self.directory, checkpoint=self._checkpoint, start_offset=self.start_offset
        )

    def begin_compaction(self, now_ms: int) -> Compaction | None:
        """What there is to compact, for `Compaction.run` in any thread; nothing while the log is damaged."""
        if not self._condition.is_writable or self.damages:
            return None
        return self._compactor.begin(self.config, now_ms)

    def end_compaction(self, compaction: Compaction) -> None:
        """Let the compacted segments take the place of those they were made from."""
        try:
            self._compactor.end(compaction)
        except OSError as error:
            raise refused(self.directory, "compaction", error) from error
        finally:
            self._reader.forget_places()

    def offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> TimestampOffset | None:
        """The first record at or after `timestamp_ms`, before `limit_offset`. Blocking; in any thread."""
        return self._reader.search(
            self.start_offset, limit_offset, lambda search: search.first_at_or_after(timestamp_ms)
        )

    def max_timestamp(self, limit_offset: int) -> TimestampOffset | None:
        """The record with the largest timestamp before `limit_offset`. Blocking; in any thread."""
        return self._reader.search(self.start_offset, limit_offset, TimestampSearch.latest)

    def truncate_to(self, offset: int) -> None:
        """Drop the batch with `offset` and all after it. Blocking; not during a flush or compaction."""
        self._condition.check_writable()
        if offset >= self.end_offset:
            return
        if offset < self.start_offset:
            raise self._reader.out_of_range(offset, self.start_offset)
        self._reader.forget_places()
        try:
            truncate(
                offset,
                self.directory,
                self._storage,
                self._segments,
                self._checkpoint,
                self._snapshots,
                self.epochs,
                self.memory,
                self._ledger,
            )
            self._run_now(self.begin_closing())
        except Violation as violation:
            raise StorageFailed(
                f"{self.directory.name}: truncating at {offset} failed: {violation}"
            ) from violation
        except OSError as error:
            raise refused(self.directory, "truncating", error) from error

    def begin_closing(self) -> Flush | None:
        """Get everything onto the medium so that the next start need not scan, for `Flush.run` in any thread.

        Not during a flush. `end_flush` and `close` follow.
        """
        if not self._condition.is_writable:
            return None
        return self._ledger.begin(self._segments, self.memory, checkpoint_bytes=0, is_in_use=False)

    def close(self) -> None:
        """Put on the medium what is not there yet, and let go of the files. Blocking; not during a flush."""
        try:
            self._run_now(self.begin_closing())
        except OSError as error:
            self._condition.flush_failed(error)
            raise refused(self.directory, "closing", error) from error
        finally:
            self._let_go()

    def delete(self) -> None:
        """Remove the log and its directory. Blocking; nothing a crash leaves of it looks like a log."""
        self._let_go()
        doomed = self.directory.with_name(f"{self.directory.name[:MAX_STEM]}.{uuid4().hex}{DELETED}")
        try:
            self._storage.disk.rename(self.directory, doomed)
            self._storage.disk.sync_directory(doomed.parent)
            remove_tree(self._storage.disk, doomed)
        except OSError as error:
            raise refused(self.directory, "deleting", error) from error

    def _take_over(self, recovery: Recovery) -> None:
        """Make what recovery found last, and the active segment a file."""
        # Where a crash came between, nobody knows which names are on the medium. A young log's own may be
        # among them: it is synced with the first flush, and a checkpoint is only written after that.
        is_unclean = not recovery.report.clean
        self._ledger.epochs_changed = is_unclean and recovery.has_epochs_file
        self._ledger.has_epochs_file = recovery.has_epochs_file
        self._ledger.directory_changed = is_unclean or not recovery.has_checkpoint
        self._ledger.is_parent_changed = not recovery.has_checkpoint
        if recovery.is_new:
            self._storage.handles.pin(self._segments.active.path, create=True).release()
        for segment in self._segments.sealed:
            if segment.index.tail is not None:
                self._ledger.sealed(segment)
        if recovery.report.clean:
            # An index that had to be rebuilt is written now, or every start would do it again.
            with suppress(OSError):
                self._segments.active.index.write_entries(self._segments.active.size)

    def _run_now(self, flush: Flush | None) -> None:
        if flush is None:
            return
        try:
            flush.run()
        except OSError as error:
            if is_out_of_descriptors(error):
                self._ledger.postpone(flush)
            else:
                self._ledger.end(flush, error)
            raise
        self._ledger.end(flush, None)

    def _let_go(self) -> None:
        self._condition.close()
        for segment in self._segments:
            self._storage.handles.forget(segment.path)
            self._storage.indexes.discard(segment.index)


def settle_together(disk: Disk, root: Path, logs: Sequence[PartitionLog]) -> None:
    """Make recovered logs ready for use, with shared syncs. Blocking. Raises what failed first."""
    failures = _flush_together(disk, root, logs, PartitionLog.begin_settling)
    for log, error in zip(logs, failures, strict=True):
        if error is not None:
            raise refused(log.directory, "opening", error) from error


def close_together(disk: Disk, root: Path, logs: Sequence[PartitionLog]) -> list[StorageFailed]:
    """Close logs with shared syncs; what went wrong. Blocking; not during a flush of any."""
    failures: list[StorageFailed] = []
    errors = _flush_together(disk, root, logs, PartitionLog.begin_closing)
    for log, error in zip(logs, errors, strict=True):
        if error is not None:
            failures.append(refused(log.directory, "closing", error))
        try:
            log.close()
        except StorageFailed as failure:
            failures.append(failure)
    return failures


def _flush_together(
    disk: Disk,
    root: Path,
    logs: Sequence[PartitionLog],
    begin: Callable[[PartitionLog], Flush | None],
) -> list[OSError | None]:
    """Flush logs a slice at a time, since the files of a slice are open at once; what each raised."""
    errors: list[OSError | None] = [None] * len(logs)
    for first in range(0, len(logs), MAX_TOGETHER):
        begun: list[tuple[int, Flush]] = []
        for index in range(first, min(first + MAX_TOGETHER, len(logs))):
            try:
                if (flush := begin(logs[index])) is not None:
                    begun.append((index, flush))
            except OSError as error:
                errors[index] = error
        ended = run_together(disk, root, [flush for _, flush in begun])
        for (index, flush), raised in zip(begun, ended, strict=True):
            errors[index] = raised
            logs[index].end_flush(flush, raised)
    return errors


def truncate(
    offset: int,
    directory: Path,
    storage: Storage,
    segments: Segments,
    checkpoint: CheckpointFile,
    snapshots: ProducerSnapshots,
    epochs: EpochHistory,
    memory: Memory,
    ledger: FlushLedger,
) -> None:
    """Drop the batch with `offset` and all that follow. A crash half-way leaves a log that recovers.

    The recovery point goes back first, so that what is being dropped is not taken for a loss.
    """
    disk = storage.disk
    segment = segments.locate(offset)
    end = segment.find(offset)
    point = checkpoint.current.recovery_point
    checkpoint.update(
        recovery_point=min(point, RecoveryPoint(end.offset, segment.base_offset, end.position)),
        has_producers=True,
        compacted_to=min(checkpoint.current.compacted_to, end.offset),
    )
    discard_swaps(disk, directory, list_contents(disk, directory).swaps)
    dropped = segments.drop_after(segment)
    for later in reversed(dropped):
        storage.handles.forget(later.path)
        later.index.retire()
        remove_segment(disk, directory, later.base_offset)
    with segment.descriptor() as descriptor:
        disk.truncate(descriptor, end.position)
        # Or a crash could bring back what is dropped here, behind what is written next.
        disk.sync(descriptor)
    segment.size, segment.next_offset = end.position, end.offset
    segment.synced_to = min(segment.synced_to, end.position)
    if segment.verified.position > end.position:
        segment.verified = end
    if segment.trusted.position > end.position:
        segment.trust_from(*end)
    segment.index.gaps = tuple(gap for gap in segment.gaps if gap.start.position < end.position)
    segment.index.resume(end.position)
    snapshots.remove([taken for taken in snapshots.offsets if taken > end.offset])
    disk.sync_directory(directory)
    epochs.truncate_from(end.offset)
    epochs.write(disk, directory)
    ledger.truncated(dropped, end.offset)
    _restore(segments, snapshots, memory, end.offset, storage)


def _restore(
    segments: Segments, snapshots: ProducerSnapshots, memory: Memory, end: int, storage: Storage
) -> None:
    now_ms = storage.clock.now_ms()
    first = segments.first.base_offset
    snapshot = snapshots.newest(end, first, [])
    start, remembered = snapshot if snapshot is not None else (first, Remembered())
    memory.reset(remembered)
    for segment in segments:
        if segment.next_offset > start:
            place = segment.find(start) if start > segment.base_offset else Boundary(segment.base_offset, 0)
            with segment.descriptor() as descriptor:
                for position, header in segment.headers(descriptor, place):
                    marker = read_stored_marker(storage.disk, descriptor, position, header)
                    memory.replay(header, marker, now_ms)
