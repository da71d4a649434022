"""Recovers a partition's log from its directory after a crash.

Everything before the recovery point was durable: it is not scanned and never truncated. Damage found
there becomes a gap of its segment, and sound batches around it are served. Batches after the recovery
point are scanned, and the log is truncated at the first incomplete one, unless the system has not
gone down and sound batches follow: then that is damage, too.

Recovery syncs nothing. Batches found after the recovery point and truncations may still be in the page
cache only: the log must not be used before the flush of `PartitionLog.begin_recovery_flush` has ended.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import UNSET

from alpacamq.model.batch import BatchHeader
from alpacamq.model.ports import Disk

from .checkpoint import Checkpoint, CheckpointFile, RecoveryPoint, read_checkpoint
from .compactor import complete_swaps
from .directory import Contents, list_contents, remove_contents, remove_segment
from .epochs import EpochHistory, read_epochs
from .flush import NO_HIGH_WATERMARK
from .producer_state import ProducerSnapshots, ProducerState
from .scan import (
    UNKNOWN_OFFSET,
    WINDOW_BYTES,
    Boundary,
    Gap,
    Violation,
    ends_early,
    find_gaps,
    gap_at,
    scan_batches,
)
from .sealed_file import Unreadable
from .segment import Segment, segment_path
from .storage import Storage
from .transactions import read_stored_marker

CUT = ".cut"

ScanProgress = Callable[[int, int], None]


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """The result of opening a log.

    `clean`: it was shut down cleanly; `losses`: data lost for good; `created`: it had no directory.
    """

    scanned_bytes: int
    cut_bytes: int
    clean: bool
    notes: tuple[str, ...]
    losses: tuple[str, ...] = ()
    created: bool = False


class Recovery:
    """Recovers one partition directory. Its public attributes are the result."""

    def __init__(self, directory: Path, storage: Storage, progress: ScanProgress | None) -> None:
        self._directory = directory
        self._storage = storage
        self._disk = storage.disk
        self._progress = progress
        self._scanned_bytes = 0
        self._scan_total = 0
        self._cut_bytes = 0
        self._is_clean = True
        self._notes: list[str] = []
        self._losses: list[str] = []
        self._unreadable: list[str] = []
        self.is_new = self._is_created = False
        # The first reason why durable records are missing or damaged.
        self.loss: str | None = None
        self.high_watermark = NO_HIGH_WATERMARK
        self.has_checkpoint = self.has_epochs_file = False
        self.checkpoint: CheckpointFile
        self.snapshots: ProducerSnapshots
        self.segments: list[Segment] = []
        self.epochs = EpochHistory()
        self.producer_state = ProducerState()
        self.start_offset = 0

    def begin_new(self) -> None:
        """Set up an empty log in a new directory."""
        self.is_new = self._is_created = True
        self.checkpoint = CheckpointFile(self._disk, self._directory, Checkpoint())
        self.snapshots = ProducerSnapshots(self._disk, self._directory)
        self.segments = [Segment(self._directory, 0, self._storage)]

    def run(self, contents: Contents) -> None:
        """Recover the log from the directory's contents. Blocking. Raises OSError as the disk does."""
        checkpoint = self._read_checkpoint() if contents.has_checkpoint else None
        if checkpoint is not None and checkpoint.restarting_at is not UNSET:
            file = CheckpointFile(self._disk, self._directory, checkpoint)
            complete_restart(self._disk, self._directory, file, checkpoint.restarting_at)
            checkpoint = file.current
            contents = list_contents(self._disk, self._directory)
        self._notes += [f"{self._directory / name} is not a file of AlpacaMQ" for name in contents.foreign]
        for name in contents.leftovers:
            self._disk.remove(self._directory / name)
        self._indexed = set(contents.indexes)
        epochs = self._read_epochs() if contents.has_epochs else None
        complete_swaps(self._disk, self._directory, contents, epochs, self._notes)
        self.has_checkpoint = checkpoint is not None
        self.checkpoint = CheckpointFile(self._disk, self._directory, checkpoint or Checkpoint())
        self.snapshots = ProducerSnapshots(self._disk, self._directory, contents.snapshots)
        self.epochs = epochs or EpochHistory()
        if epochs is None and self.has_checkpoint and not self._unreadable:
            self._unreadable.append("the leader epochs are missing, so everything is scanned")
        self.start_offset = self.checkpoint.current.start_offset
        self._point = self._durable = self.checkpoint.current.recovery_point
        self._open_segments(contents, has_checkpoint=checkpoint is not None)
        if checkpoint is not None:
            self._check_losses()
            self._check_contiguity()
        learn_epochs = epochs is None
        from_start = checkpoint is None or learn_epochs
        self._scan(*self._scan_start(from_start=from_start), learn_epochs=learn_epochs)
        self._reconcile(learned_epochs=learn_epochs)
        for segment in self.segments:
            # Few of thousands of logs are used soon; the next reader reopens the file.
            self._storage.handles.forget(segment.path)

    @property
    def report(self) -> Recovered:
        return Recovered(
            scanned_bytes=self._scanned_bytes,
            cut_bytes=self._cut_bytes,
            clean=self._is_clean,
            notes=tuple(self._notes),
            losses=tuple(self._losses),
            created=self._is_created,
        )

    def _read_checkpoint(self) -> Checkpoint | None:
        try:
            return read_checkpoint(self._disk, self._directory)
        except Unreadable as error:
            self._unreadable.append(f"the checkpoint cannot be used, so everything is scanned: {error}")
            # Without the recovery point, missing records look like an incomplete tail.
            self._found_loss(self._unreadable[-1])
            return None

    def _read_epochs(self) -> EpochHistory | None:
        try:
            return read_epochs(self._disk, self._directory)
        except Unreadable as error:
            self._unreadable.append(f"the leader epochs cannot be used, so everything is scanned: {error}")
            return None

    def _open_segments(self, contents: Contents, *, has_checkpoint: bool) -> None:
        bases = contents.segments
        while len(bases) > 1 and bases[1] <= self.start_offset:
            remove_segment(self._disk, self._directory, bases.pop(0))  # retention was interrupted
        for base_offset in set(contents.indexes) - set(bases):
            remove_segment(self._disk, self._directory, base_offset)
        if not bases:
            self.is_new = True
            if has_checkpoint and self._point.offset > 0:
                self._note_loss(f"all segments before offset {self._point.offset} are gone")
            self.start_offset = self._point.offset
            self._point = RecoveryPoint(self._point.offset, self._point.offset, 0)
            self.segments = [Segment(self._directory, self._point.offset, self._storage)]
            return
        if not has_checkpoint:
            self.start_offset = bases[0]
            # Kafka's directories, which can be moved here, have no checkpoint, but no epochs of ours either.
            if bases[0] > 0 and contents.has_epochs:
                self._found_loss(
                    f"the log starts at offset {bases[0]}, and the checkpoint that says why is gone"
                )
        elif bases[0] > self.start_offset:
            self._note_loss(f"offsets {self.start_offset} to {bases[0] - 1} are gone with their segment")
            self.start_offset = bases[0]
        now_ms = self._storage.clock.now_ms()
        for base_offset, next_offset in zip(bases, [*bases[1:], None], strict=True):
            size, modified_ms = self._stat(segment_path(self._directory, base_offset))
            modified_ms = min(modified_ms, now_ms)  # the clock may have been wrong
            self.segments.append(
                Segment(
                    self._directory,
                    base_offset,
                    self._storage,
                    size=size,
                    next_offset=next_offset,
                    opened_ms=modified_ms,
                )
            )
        if bases[-1] == self._point.segment and self.checkpoint.current.opened_ms > 0:
            self.segments[-1].opened_ms = min(self.checkpoint.current.opened_ms, now_ms)

    def _check_contiguity(self) -> None:
        """Check that every segment before the recovery point reaches exactly to the next one."""
        index = 0
        while index + 1 < len(self.segments) and self.segments[index].base_offset < self._point.segment:
            segment = self.segments[index]
            try:
                reached = self._end_of(segment)
                self._drop_covered(index, reached.offset)
                if reached != (segment.next_offset, segment.size):
                    raise ends_early(reached, segment.next_offset)
            except Violation:
                for gap in segment.find_gaps(self.epochs):
                    self._note_damage(segment, gap)
            index += 1

    def _end_of(self, segment: Segment) -> Boundary:
        """Find the end of the last batch of a sealed segment, scanning from the last index entry."""
        reached = segment.index.last()
        with segment.descriptor() as descriptor:
            for position, header in segment.headers(descriptor, reached):
                reached = Boundary(header.next_offset, position + header.size)
        return reached

    def _drop_covered(self, index: int, end: int) -> None:
        """Remove segments covered by the one at `index`, which an interrupted compaction left."""
        if any(segment.base_offset == end for segment in self.segments[index + 2 :]):
            while self.segments[index + 1].base_offset < end:
                covered = self.segments.pop(index + 1)
                remove_segment(self._disk, self._directory, covered.base_offset)
                self._notes.append(f"{covered.path} was compacted already and is removed")
            segment = self.segments[index]
            segment.next_offset = end
            segment.trust_from(end, segment.size)

    def _check_losses(self) -> None:
        """Turn durable bytes missing from files into a gap; the log continues at the recovery point."""
        last, point = self.segments[-1], self._point
        if point.segment > last.base_offset:
            short = last
        else:
            found = [each for each in self.segments if each.base_offset == point.segment]
            if not found or found[0].size >= point.position:
                return
            short = found[0]
        self._is_clean = False
        if short is last:
            # Start a new segment, so that no offset is used twice.
            last.next_offset = point.offset
            self.segments.append(Segment(self._directory, point.offset, self._storage))
            self.is_new = True
        self._point = RecoveryPoint(short.base_offset, short.base_offset, 0)
        self._durable = RecoveryPoint(short.next_offset, short.base_offset, short.size + 1)

    def _scan_start(self, *, from_start: bool) -> tuple[int, Boundary]:
        """Return the segment index and boundary to scan from, early enough to rebuild producer state."""
        first = self.segments[0]
        if from_start or self._point.segment < first.base_offset:
            return 0, Boundary(first.base_offset, 0)
        offset = self._point.offset
        if self.checkpoint.current.has_producers:
            newest = self.snapshots.newest(offset, first.base_offset, self._notes)
            if newest is None:
                return 0, Boundary(first.base_offset, 0)
            offset, snapshot = newest
            self.producer_state.reset(snapshot)
        if offset == self._point.offset:
            index = max(i for i, each in enumerate(self.segments) if each.base_offset <= self._point.segment)
            segment = self.segments[index]
            if segment.base_offset < self._point.segment:
                return index, Boundary(segment.base_offset, 0)  # the one with the recovery point is missing
            return index, Boundary(self._point.offset, self._point.position)
        index = max(i for i, segment in enumerate(self.segments) if segment.base_offset <= offset)
        return index, self._locate(self.segments[index], offset)

    def _locate(self, segment: Segment, offset: int) -> Boundary:
        """Find the boundary of `offset`, or the segment's start if index and headers are unusable."""
        try:
            reached = segment.index.floor(offset)
            with segment.descriptor() as descriptor:
                for position, header in segment.headers(descriptor, reached):
                    if header.next_offset > offset:
                        break
                    reached = Boundary(header.next_offset, position + header.size)
        except Violation:
            reached = Boundary(segment.base_offset, 0)
        return reached

    def _scan(self, first: int, start: Boundary, *, learn_epochs: bool) -> None:
        """Scan from `start` in segment number `first` to the end, or to where the log is truncated."""
        self._scan_total = sum(segment.size for segment in self.segments[first:]) - start.position
        index = first
        while index < len(self.segments):
            segment = self.segments[index]
            reached = start if index == first else Boundary(segment.base_offset, 0)
            segment.trust_from(*reached)
            segment.synced_to = reached.position
            self._resume_index(segment, reached)
            while True:
                try:
                    for position, header in self._walk(segment, reached, learn_epochs=learn_epochs):
                        reached = Boundary(header.next_offset, position + header.size)
                    self._drop_covered(index, reached.offset)
                    if index + 1 < len(self.segments) and reached.offset != segment.next_offset:
                        raise ends_early(reached, segment.next_offset)
                    break
                except Violation as violation:
                    if self._is_durable(segment, violation):
                        reached = self._skip_damage(segment, violation, any_epoch=learn_epochs)
                    elif (gap := self._gap_in_tail(index, violation, any_epoch=learn_epochs)) is not None:
                        self._note_damage(segment, gap)
                        reached = gap.end
                    else:
                        self._cut(index, violation)
                        return
            segment.next_offset = reached.offset
            index += 1

    def _resume_index(self, segment: Segment, reached: Boundary) -> None:
        has_files = segment.base_offset in self._indexed
        if not reached.position:
            segment.index.restart(has_files=has_files)
            return
        try:
            segment.index.resume(reached.position, has_files=has_files)
        except Violation:
            with segment.descriptor() as descriptor:
                start = Boundary(segment.base_offset, 0)
                for gap in find_gaps(self._disk, descriptor, start, reached, self.epochs):
                    self._note_damage(segment, gap)
            segment.index.resume(reached.position, has_files=has_files)

    def _gap_in_tail(self, index: int, violation: Violation, *, any_epoch: bool) -> Gap | None:
        """Return the gap behind the recovery point, or None if it may be a torn tail from a power loss."""
        if not self._storage.has_every_write:
            return None
        segment = self.segments[index]
        is_last = index + 1 == len(self.segments)
        end = Boundary(UNKNOWN_OFFSET if is_last else segment.next_offset, segment.size)
        with segment.descriptor() as descriptor:
            gap = gap_at(self._disk, descriptor, violation, end, None if any_epoch else self.epochs)
        return None if is_last and gap.end == end else gap

    def _skip_damage(self, segment: Segment, violation: Violation, *, any_epoch: bool) -> Boundary:
        """Record a gap in durable data; return its end, at the latest the recovery point."""
        end = Boundary(segment.next_offset, segment.size)
        if segment.base_offset == self._durable.segment:
            end = Boundary(self._durable.offset, min(self._durable.position, segment.size))
        with segment.descriptor() as descriptor:
            gap = gap_at(self._disk, descriptor, violation, end, None if any_epoch else self.epochs)
        self._note_damage(segment, gap)
        return gap.end

    def _walk(
        self, segment: Segment, start: Boundary, *, learn_epochs: bool
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Verify batches, and add them to the index and the producer state."""
        tail = segment.index.tail
        assert tail is not None
        if start.position == segment.size:
            return  # after a clean shutdown no segment is opened
        now_ms = self._storage.clock.now_ms()
        with segment.descriptor() as descriptor:
            for position, header in scan_batches(
                self._disk,
                descriptor,
                start.position,
                segment.size,
                start.offset,
                self.epochs,
                learn_epochs=learn_epochs,
                progress=self._advance,
            ):
                tail.note(header.last_offset, position, header.max_timestamp)
                if header.producer_id >= 0:
                    marker = read_stored_marker(self._disk, descriptor, position, header)
                    self.producer_state.replay(header, marker, now_ms)
                yield position, header

    def _advance(self, size: int) -> None:
        self._scanned_bytes += size
        if self._progress is not None:
            self._progress(self._scanned_bytes, self._scan_total)

    def _is_durable(self, segment: Segment, violation: Violation) -> bool:
        return (segment.base_offset, violation.position) < (self._durable.segment, self._durable.position)

    def _note_damage(self, segment: Segment, gap: Gap) -> None:
        if gap.start not in {known.start for known in segment.gaps}:
            segment.add_gap(gap)
            self._notes.append(str(segment.damage_of(gap)))
            self._found_loss(self._notes[-1])

    def _note_loss(self, what: str) -> None:
        self._is_clean = False
        self._losses.append(f"{self._directory}: {what}")
        self._notes.append(self._losses[-1])
        self._found_loss(self._losses[-1])

    def _found_loss(self, reason: str) -> None:
        self.loss = self.loss or reason

    def _cut(self, index: int, violation: Violation) -> None:
        """Truncate the log at a violation: nothing from there on was known to be durable."""
        segment = self.segments[index]
        size = segment.size - violation.position
        with segment.descriptor() as descriptor:
            self._save_sound_batches(segment, descriptor, violation)
            self._disk.truncate(descriptor, violation.position)
        segment.size, segment.next_offset = violation.position, violation.offset
        # Force a sync although nothing is added: otherwise the next crash could bring the truncated bytes
        # back behind newer batches.
        segment.synced_to = -1
        self._notes.append(
            f"{segment.path} is cut at byte {violation.position}, {size} bytes: {violation.reason}"
        )
        for later in self.segments[index + 1 :]:
            # Rename whole segments instead of removing them, so that they can be inspected.
            aside = later.path.with_name(later.path.name + CUT)
            self._storage.handles.forget(later.path)
            self._disk.rename(later.path, aside)
            remove_segment(self._disk, self._directory, later.base_offset)
            self._notes.append(f"{later.path} follows the cut and is {aside.name} now, {later.size} bytes")
            size += later.size
        del self.segments[index + 1 :]
        self._cut_bytes += size
        self._is_clean = False

    def _save_sound_batches(self, segment: Segment, descriptor: int, violation: Violation) -> None:
        """Save the bytes to be truncated if sound batches are in them: it may be damage, not a torn tail."""
        end = Boundary(UNKNOWN_OFFSET, segment.size)
        if gap_at(self._disk, descriptor, violation, end, self.epochs).end == end:
            return
        aside = segment.path.with_name(f"{segment.path.name}.{violation.position}{CUT}")
        try:
            self._copy(descriptor, violation.position, segment.size, aside)
        except OSError as error:
            self._notes.append(f"{aside} cannot be written: {error.strerror or error}")
            return
        self._notes.append(f"sound batches follow what is cut of {segment.path}: {aside.name} has all of it")

    def _copy(self, descriptor: int, start: int, end: int, target: Path) -> None:
        kept = self._disk.open(target, create=True)
        try:
            self._disk.truncate(kept, 0)
            for position in range(start, end, WINDOW_BYTES):
                data = self._disk.read(descriptor, min(WINDOW_BYTES, end - position), position)
                self._disk.write(kept, [data], position - start)
            self._disk.sync(kept)
        finally:
            self._disk.close(kept)

    def _reconcile(self, *, learned_epochs: bool) -> None:
        """Make epochs, snapshots and transactions consistent with the segments."""
        last = self.segments[-1]
        if any(segment.size for segment in self.segments):
            self._notes[:0] = self._unreadable
        end = last.next_offset
        if (end, last.base_offset, last.size) != self.checkpoint.current.recovery_point:
            self._is_clean = False
        if self.start_offset > end:
            self._note_loss(f"the log began at offset {self.start_offset} but ends at {end} now")
            self.start_offset = end
        if self.checkpoint.current.high_watermark is not UNSET:
            self.high_watermark = min(max(self.checkpoint.current.high_watermark, self.start_offset), end)
        self.snapshots.remove([offset for offset in self.snapshots.offsets if offset > end])
        before = self.epochs.entries
        self.epochs.truncate_from(end + 1)
        self.epochs.truncate_before(self.segments[0].base_offset)
        self.producer_state.transactions.drop_before(self.start_offset)
        self.has_epochs_file = not learned_epochs
        # A young log has no epochs file before its second epoch or its first checkpoint.
        is_young = not self.has_checkpoint and not self._unreadable and len(self.epochs.entries) == 1
        if self.epochs.entries and (self.epochs.entries != before or (learned_epochs and not is_young)):
            self.epochs.write(self._disk, self._directory)
            self.has_epochs_file = True

    def _stat(self, path: Path) -> tuple[int, int]:
        descriptor = self._disk.open(path)
        try:
            return self._disk.size(descriptor), self._disk.modified_ms(descriptor)
        finally:
            self._disk.close(descriptor)


def complete_restart(disk: Disk, directory: Path, checkpoint: CheckpointFile, offset: int) -> None:
    """Remove everything a log has and leave it empty at `offset`, durably.

    Its checkpoint has `restarting_at` until the end, so a crash before that repeats all of this.
    """
    remove_contents(disk, directory)
    disk.close(disk.open(segment_path(directory, offset), create=True))
    EpochHistory().write(disk, directory)
    checkpoint.replace(Checkpoint(start_offset=offset, recovery_point=RecoveryPoint(offset, offset, 0)))
