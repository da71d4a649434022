"""Repairs of a partition's files that an operator may choose, and the journal that applies them.

The repair functions return changes and modify nothing; `RepairJournal` applies changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from msgspec import UNSET

from alpacamq.model.batch import CRC_AT, FRAME_BYTES, HEADER_BYTES, MAGIC, checksum, place, read_header
from alpacamq.model.ports import Disk
from alpacamq.model.records import write_batch
from alpacamq.model.topics import INT32_MAX

from .checkpoint import FILE_NAME as CHECKPOINT
from .checkpoint import Checkpoint, RecoveryPoint, encode_checkpoint
from .data_directory import DAMAGED, JOURNAL
from .epochs import FILE_NAME as EPOCHS
from .epochs import NO_EPOCH, EpochHistory
from .index_files import OFFSET_SUFFIX, SUMS_SUFFIX, TIME_SUFFIX
from .inspection import PartitionState, SegmentState
from .producer_state import SUFFIX as SNAPSHOT_SUFFIX
from .scan import WINDOW_BYTES, Boundary, Gap, Violation, scan_batches
from .sealed_file import read_sealed, write_sealed
from .segment import LOG_SUFFIX, segment_path

# The maximum length of a batch: a longer gap holds more than one batch, or something else.
_MAX_BATCH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of a file, or literal bytes."""

    source: Path | bytes
    start: int = 0
    end: int = 0

    @property
    def size_bytes(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.end - self.start


@dataclass(frozen=True, slots=True)
class Change:
    """A file with new content, or a file to remove."""

    path: Path
    content: tuple[FileRange, ...] | None


class NotCovered(Exception):
    """The backup does not contain all damaged batches."""


def skip_gaps(state: PartitionState) -> list[Change]:
    """Replace damaged batches by batches without records, which readers skip.

    The log looks sound afterwards, so its checkpoint says that it is not: a replica must not pass this on.
    """
    changes: list[Change] = []
    if state.checkpoint is not None and (state.lost is not None or state.gaps):
        checkpoint = _with_loss(state.checkpoint, "a repair has skipped damaged records")
        if state.lost is not None:
            checkpoint = msgspec.structs.replace(checkpoint, start_offset=state.lost[1])
        state = replace(state, checkpoint=checkpoint)
        changes.append(_checkpoint(state, checkpoint))
    for segment in state.segments:
        if segment.gaps:
            changes += _rewritten(
                state, segment, {gap: _filler(gap, state.known_epochs) for gap in segment.gaps}
            )
    return changes


def fill_gaps(disk: Disk, state: PartitionState, backups: Sequence[Path]) -> list[Change]:
    """Replace damaged batches by those of backup files. Raises NotCovered if some are missing."""
    changes: list[Change] = []
    if state.lost is not None:
        first, end = state.lost
        gap = Gap(Boundary(first, 0), Boundary(end, 0), "gone")
        content = _from_backup(disk, gap, state.epochs, backups)
        # One segment for all of them: the next compaction or deletion handles it.
        changes.append(Change(segment_path(state.directory, first), content))
    for segment in state.segments:
        if segment.gaps:
            found = {gap: _from_backup(disk, gap, state.epochs, backups) for gap in segment.gaps}
            changes += _rewritten(state, segment, found)
    return changes


def rebuild_headers(disk: Disk, state: PartitionState) -> list[Change]:
    """Rebuild headers where all damaged fields can be derived from the neighbouring batches."""
    changes: list[Change] = []
    for segment in state.segments:
        found = {gap: rebuilt_batch(disk, state, segment, gap) for gap in segment.gaps}
        whole = {gap: (FileRange(batch),) for gap, batch in found.items() if batch is not None}
        if whole:
            changes += _rewritten(state, segment, whole)
    return changes


def rebuilt_batch(disk: Disk, state: PartitionState, segment: SegmentState, gap: Gap) -> bytes | None:
    """Rebuild the damaged batch if its checksum, which omits offset, length and epoch, proves it right."""
    size = gap.end.position - gap.start.position
    if state.epochs is None or not HEADER_BYTES <= size <= _MAX_BATCH_BYTES:
        return None
    with _opened(disk, segment.path) as descriptor:
        batch = bytearray(disk.read(descriptor, size, gap.start.position))
    batch[FRAME_BYTES - 4 : FRAME_BYTES] = (size - FRAME_BYTES).to_bytes(4, "big")
    batch[CRC_AT - 1] = MAGIC
    place(batch, gap.start.offset, state.epochs.epoch_at(gap.start.offset)[0])
    header = read_header(batch)
    if header.crc != checksum(batch) or header.next_offset != gap.end.offset:
        return None
    return bytes(batch)


def cut_at(state: PartitionState, segment: SegmentState, gap: Gap) -> list[Change]:
    """Truncate the partition at the start of the damage."""
    changes = [
        Change(segment.path, (FileRange(segment.path, 0, gap.start.position),)),
        *_without_indexes(segment.path),
    ]
    for later in state.segments:
        if later.base_offset > segment.base_offset:
            changes += [Change(later.path, None), *_without_indexes(later.path)]
    for path in sorted(state.directory.glob(f"*{SNAPSHOT_SUFFIX}")):
        if path.stem.isdigit() and int(path.stem) > gap.start.offset:
            changes.append(Change(path, None))
    if state.epochs is not None:
        # Offsets are reused from here on: readers of truncated batches notice by the leader epoch.
        epochs = EpochHistory(state.epochs.entries)
        epochs.truncate_from(gap.start.offset)
        epochs.assign(state.epochs.latest + 1, gap.start.offset)
        changes.append(Change(state.directory / EPOCHS, (FileRange(epochs.encode_file()),)))
    checkpoint = state.checkpoint or Checkpoint()
    point = RecoveryPoint(gap.start.offset, segment.base_offset, gap.start.position)
    known = checkpoint.high_watermark
    changed = msgspec.structs.replace(
        _with_loss(checkpoint, f"a repair has cut the log at offset {gap.start.offset}"),
        start_offset=min(checkpoint.start_offset, gap.start.offset),
        high_watermark=UNSET if known is UNSET else min(known, gap.start.offset),
        recovery_point=min(checkpoint.recovery_point, point),
        has_producers=True,
        compacted_to=min(checkpoint.compacted_to, gap.start.offset),
    )
    return [*changes, _checkpoint(state, changed)]


def _filler(gap: Gap, epochs: EpochHistory) -> tuple[FileRange, ...]:
    batches = bytearray()
    first = gap.start.offset
    while first < gap.end.offset:
        last = min(gap.end.offset - 1, first + INT32_MAX)
        epoch = max(epochs.epoch_at(first)[0], 0)
        batches += write_batch([], base_offset=first, last_offset=last, leader_epoch=epoch)
        first = last + 1
    return (FileRange(bytes(batches)),)


def _from_backup(
    disk: Disk, gap: Gap, epochs: EpochHistory | None, backups: Sequence[Path]
) -> tuple[FileRange, ...]:
    """Return the ranges of backup files that together contain exactly the offsets of a gap."""
    ranges: list[FileRange] = []
    offset = gap.start.offset
    named = sorted(path for path in backups if path.suffix == LOG_SUFFIX and path.stem.isdigit())
    for path, following in zip(named, [*named[1:], None], strict=True):
        if following is not None and int(following.stem) <= offset:
            continue
        for each, first, after, epoch in _batches_of(disk, path):
            if after <= offset or offset == gap.end.offset:
                continue
            if first != offset or after > gap.end.offset:
                break
            expected = NO_EPOCH if epochs is None else epochs.epoch_at(first)[0]
            if expected not in (epoch, NO_EPOCH):
                raise NotCovered(f"{path}: offset {first} has leader epoch {epoch} instead of {expected}")
            ranges.append(each)
            offset = after
    if offset < gap.end.offset:
        raise NotCovered(f"no sound batches for offsets {offset} to {gap.end.offset - 1} in the backup")
    return tuple(ranges)


def _batches_of(disk: Disk, path: Path) -> Iterator[tuple[FileRange, int, int, int]]:
    """Yield the sound batches at the start of a segment file: range, offsets, epoch."""
    with _opened(disk, path) as descriptor:
        try:
            for position, header in scan_batches(
                disk,
                descriptor,
                0,
                disk.size(descriptor),
                int(path.stem),
                EpochHistory(),
                learn_epochs=True,
            ):
                each = FileRange(path, position, position + header.size)
                yield each, header.base_offset, header.next_offset, header.leader_epoch
        except Violation:
            return


@contextmanager
def _opened(disk: Disk, path: Path) -> Iterator[int]:
    descriptor = disk.open(path)
    try:
        yield descriptor
    finally:
        disk.close(descriptor)


def _rewritten(
    state: PartitionState, segment: SegmentState, replacements: Mapping[Gap, tuple[FileRange, ...]]
) -> list[Change]:
    """Return a segment with its gaps replaced, and the matching checkpoint."""
    content: list[FileRange] = []
    position = moved = moved_at_point = 0
    checkpoint = state.checkpoint or Checkpoint()
    point = checkpoint.recovery_point
    for gap, ranges in replacements.items():
        content += [FileRange(segment.path, position, gap.start.position), *ranges]
        position = gap.end.position
        moved += sum(each.size_bytes for each in ranges) - (gap.end.position - gap.start.position)
        if gap.end.offset <= point.offset:
            moved_at_point = moved
    content.append(FileRange(segment.path, position, segment.size_bytes))
    changes = [
        Change(segment.path, tuple(each for each in content if each.size_bytes)),
        *_without_indexes(segment.path),
    ]
    if state.checkpoint is not None:
        if point.segment == segment.base_offset:
            at = min(point.position, segment.size_bytes) + moved_at_point
            point = RecoveryPoint(point.offset, point.segment, at)
        elif point.segment > state.segments[-1].base_offset == segment.base_offset:
            # The segment of the recovery point is gone; this one contains its offsets now.
            point = RecoveryPoint(point.offset, segment.base_offset, segment.size_bytes + moved)
        if point != checkpoint.recovery_point:
            changes.append(_checkpoint(state, msgspec.structs.replace(checkpoint, recovery_point=point)))
    return changes


def _with_loss(checkpoint: Checkpoint, reason: str) -> Checkpoint:
    return checkpoint if checkpoint.loss is not UNSET else msgspec.structs.replace(checkpoint, loss=reason)


def _checkpoint(state: PartitionState, checkpoint: Checkpoint) -> Change:
    return Change(state.directory / CHECKPOINT, (FileRange(encode_checkpoint(checkpoint)),))


def _without_indexes(path: Path) -> list[Change]:
    return [Change(path.with_suffix(suffix), None) for suffix in (SUMS_SUFFIX, OFFSET_SUFFIX, TIME_SUFFIX)]


_MAGIC = b"ALRJ"
_VERSION = 1


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """One change, by names within the data directory; `new` is the file with its content."""

    path: str
    new: str | None
    aside: str


class RepairJournal:
    """Applies changes in a data directory, all of them even if a crash interrupts."""

    def __init__(self, disk: Disk, data_directory: Path) -> None:
        self._disk = disk
        self._root = data_directory

    @property
    def is_unfinished(self) -> bool:
        return JOURNAL in self._disk.names(self._root)

    def finish(self) -> None:
        """Apply the rest of an interrupted repair."""
        body = read_sealed(self._disk, self._root / JOURNAL, _MAGIC, _VERSION)
        self._apply(msgspec.json.decode(body, type=list[_Step]))

    def make(self, changes: Sequence[Change], folder: str) -> Path:
        """Apply changes; return the new folder in `damaged/` that holds the former files."""
        aside = self._root / DAMAGED / folder
        steps: list[_Step] = []
        for change in changes:
            inside = change.path.relative_to(self._root)
            new = None
            if change.content is not None:
                new = aside / f"{len(steps)}.new"
            elif not self._exists(change.path):
                continue
            self._make_directories((aside / inside).parent)
            if new is not None and change.content is not None:
                self._write(new, change.content)
            steps.append(
                _Step(
                    path=str(inside),
                    new=None if new is None else str(new.relative_to(self._root)),
                    aside=str((aside / inside).relative_to(self._root)),
                )
            )
        if steps:
            self._disk.sync_directory(aside)
            write_sealed(self._disk, self._root / JOURNAL, _MAGIC, _VERSION, msgspec.json.encode(steps))
            self._apply(steps)
        return aside

    def _apply(self, steps: Sequence[_Step]) -> None:
        disk = self._disk
        touched: set[Path] = set()
        for step in steps:
            path, aside = self._root / step.path, self._root / step.aside
            new = None if step.new is None else self._root / step.new
            touched |= {path.parent, aside.parent}
            if new is not None and not self._exists(new):
                continue  # done before a crash
            if self._exists(path) and not self._exists(aside):
                disk.rename(path, aside)
            if new is not None:
                disk.rename(new, path)
                touched.add(new.parent)
        for directory in sorted(touched):
            disk.sync_directory(directory)
        disk.remove(self._root / JOURNAL)
        disk.sync_directory(self._root)

    def _write(self, path: Path, content: Sequence[FileRange]) -> None:
        disk = self._disk
        target = disk.open(path, create=True)
        try:
            disk.truncate(target, 0)
            written = 0
            for each in content:
                for data in self._pieces(each):
                    disk.write(target, [data], written)
                    written += len(data)
            disk.sync(target)
        finally:
            disk.close(target)

    def _pieces(self, each: FileRange) -> Iterator[bytes]:
        if isinstance(each.source, bytes):
            yield each.source
            return
        descriptor = self._disk.open(each.source)
        try:
            for position in range(each.start, each.end, WINDOW_BYTES):
                yield self._disk.read(descriptor, min(WINDOW_BYTES, each.end - position), position)
        finally:
            self._disk.close(descriptor)

    def _exists(self, path: Path) -> bool:
        try:
            return path.name in self._disk.names(path.parent)
        except FileNotFoundError:
            return False

    def _make_directories(self, path: Path) -> None:
        if path == self._root or self._exists(path):
            return
        self._make_directories(path.parent)
        self._disk.make_directory(path)
        self._disk.sync_directory(path.parent)
