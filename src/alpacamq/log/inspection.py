"""Inspects the files of a partition while its broker is stopped. Changes nothing.

Follows the rules of recovery: bytes before the recovery point were durable and are damaged if they
are not sound; bytes after it may be the incomplete tail that a crash leaves.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from alpacamq.model.ports import Disk

from .checkpoint import FILE_NAME as CHECKPOINT
from .checkpoint import Checkpoint, read_checkpoint
from .directory import list_contents
from .epochs import FILE_NAME as EPOCHS
from .epochs import EpochHistory, read_epochs
from .index_files import (
    EMPTY_SUM,
    OFFSET_SUFFIX,
    SUM_BYTES,
    SUMS_SUFFIX,
    TIME_SUFFIX,
    matching_sums,
    mismatches,
    unpack_sums,
)
from .producer_state import SUFFIX as SNAPSHOT_SUFFIX
from .producer_state import check_snapshot
from .scan import UNKNOWN_OFFSET, Boundary, Gap, Violation, find_gaps, gap_at, scan_batches
from .sealed_file import Missing, Unreadable
from .segment import segment_path


@dataclass(slots=True, kw_only=True)
class SegmentState:
    """One segment file: its end and its damage.

    `covered` is set if the segment before it contains the same offsets: a compaction was interrupted.
    """

    path: Path
    base_offset: int
    size_bytes: int
    end: Boundary
    gaps: list[Gap] = field(default_factory=list)
    unfinished: Violation | None = None
    covered: bool = False


@dataclass(frozen=True, slots=True)
class Derived:
    """A derived file that cannot be used; the segments contain everything to rebuild it."""

    path: Path
    reason: str


@dataclass(slots=True, kw_only=True)
class PartitionState:
    """The state of one partition's directory."""

    directory: Path
    start_offset: int = 0
    end_offset: int = 0
    segments: list[SegmentState] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    epochs: EpochHistory | None = None
    # The same, or epochs taken from the batches if the file is unreadable or does not exist yet.
    known_epochs: EpochHistory = field(default_factory=EpochHistory)
    derived: list[Derived] = field(default_factory=list)
    # Missing offsets at the start: the first one, and the first one that exists.
    lost: tuple[int, int] | None = None

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def gaps(self) -> list[tuple[SegmentState, Gap]]:
        return [(segment, gap) for segment in self.segments for gap in segment.gaps]

    @property
    def unfinished(self) -> tuple[SegmentState, Violation] | None:
        for segment in self.segments:
            if segment.unfinished is not None:
                return segment, segment.unfinished
        return None


def inspect_partition(disk: Disk, directory: Path) -> PartitionState:
    """Read and check every byte of a partition."""
    contents = list_contents(disk, directory)
    state = PartitionState(directory=directory)
    try:
        state.epochs = read_epochs(disk, directory)
    except Missing:
        pass
    except Unreadable as error:
        state.derived.append(Derived(directory / EPOCHS, str(error)))
    try:
        state.checkpoint = read_checkpoint(disk, directory)
    except Missing:
        pass
    except Unreadable as error:
        state.derived.append(Derived(directory / CHECKPOINT, str(error)))
    checkpoint = state.checkpoint or Checkpoint()
    bases = contents.segments
    while len(bases) > 1 and bases[1] <= checkpoint.start_offset:
        bases.pop(0)  # removed at the next start: retention was interrupted
    if bases:
        state.start_offset = max(bases[0], checkpoint.start_offset)
        if bases[0] > checkpoint.start_offset and state.checkpoint is not None:
            state.lost = (checkpoint.start_offset, bases[0])
        _inspect_segments(disk, state, bases)
    elif checkpoint.recovery_point.offset > 0:
        state.start_offset = state.end_offset = checkpoint.recovery_point.offset
        state.lost = (checkpoint.start_offset, state.end_offset)
    state.derived += _unusable(disk, directory, contents.indexes, contents.snapshots)
    return state


def _inspect_segments(disk: Disk, state: PartitionState, bases: list[int]) -> None:
    point = (state.checkpoint or Checkpoint()).recovery_point
    learns = state.epochs is None
    epochs = state.known_epochs = state.known_epochs if state.epochs is None else state.epochs
    covered_to = bases[0]
    for place, base in enumerate(bases):
        path = segment_path(state.directory, base)
        following = bases[place + 1] if place + 1 < len(bases) else None
        descriptor = disk.open(path)
        try:
            size = disk.size(descriptor)
            segment = SegmentState(path=path, base_offset=base, size_bytes=size, end=Boundary(base, 0))
            state.segments.append(segment)
            if base < covered_to:
                segment.covered = True
                continue
            durable = Boundary(base, 0)
            if base < point.segment:
                durable = Boundary(point.offset if following is None else following, size)
            elif base == point.segment:
                durable = Boundary(point.offset, point.position)
                if point.position > size:
                    durable = Boundary(point.offset if following is None else following, size)
            start = Boundary(base, 0)
            for gap in find_gaps(disk, descriptor, start, durable, epochs, learn_epochs=learns):
                if gap.start.offset > durable.offset and gap.start.offset in bases[place + 2 :]:
                    covered_to = gap.start.offset
                else:
                    segment.gaps.append(gap)
            segment.end = durable
            if durable.position < size or durable.offset == base:
                _inspect_rest(disk, descriptor, segment, following, epochs, learns=learns)
            state.end_offset = segment.end.offset
            if segment.unfinished is not None:
                return
        finally:
            disk.close(descriptor)


def _inspect_rest(
    disk: Disk,
    descriptor: int,
    segment: SegmentState,
    following: int | None,
    epochs: EpochHistory,
    *,
    learns: bool,
) -> None:
    """Check the bytes behind the recovery point, where the next start truncates what is not sound.

    Unsound bytes followed by sound batches are reported as damage: truncating would lose those batches.
    """
    while True:
        try:
            for position, header in scan_batches(
                disk,
                descriptor,
                segment.end.position,
                segment.size_bytes,
                segment.end.offset,
                epochs,
                learn_epochs=learns,
            ):
                segment.end = Boundary(header.next_offset, position + header.size)
            if following is None or segment.end.offset == following:
                return
            violation = Violation(segment.size_bytes, segment.end.offset, f"offset {following} is next")
        except Violation as found:
            violation = found
        end = Boundary(UNKNOWN_OFFSET if following is None else following, segment.size_bytes)
        gap = gap_at(disk, descriptor, violation, end, None if learns else epochs)
        if gap.end == end:
            segment.unfinished = violation
            return
        segment.gaps.append(gap)
        segment.end = gap.end


def _unusable(disk: Disk, directory: Path, indexes: list[int], snapshots: list[int]) -> Iterator[Derived]:
    for base in indexes:
        yield from _unusable_index(disk, directory, base)
    for offset in snapshots:
        path = directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"
        try:
            check_snapshot(disk, path)
        except Unreadable as error:
            yield Derived(path, str(error))


def _unusable_index(disk: Disk, directory: Path, base: int) -> Iterator[Derived]:
    """Yield index files that do not match their checksums; missing ones are normal after a crash."""
    paths = {
        suffix: directory / f"{base:020d}{suffix}" for suffix in (SUMS_SUFFIX, OFFSET_SUFFIX, TIME_SUFFIX)
    }
    data = {suffix: _content(disk, path) for suffix, path in paths.items()}
    sums_data = data[SUMS_SUFFIX]
    if sums_data is None:
        return  # of version 0.1 or from Kafka: rebuilt on demand
    sums = unpack_sums(sums_data)
    if (sound := len(sums) * SUM_BYTES) < len(sums_data):
        reason = f"{len(sums_data) - sound} bytes from byte {sound} on do not match their checksum"
        yield Derived(paths[SUMS_SUFFIX], reason)
    offsets, times = data[OFFSET_SUFFIX] or b"", data[TIME_SUFFIX] or b""
    matching = matching_sums(sums, offsets, times)
    believed = matching[-1] if matching else EMPTY_SUM
    wrong = mismatches(sums, offsets, times)
    for suffix, end in ((OFFSET_SUFFIX, believed.offset_bytes), (TIME_SUFFIX, believed.time_bytes)):
        if data[suffix] is not None and suffix in wrong:
            reason = f"its entries from byte {end} on do not match their checksum in {SUMS_SUFFIX}"
            yield Derived(paths[suffix], reason)


def _content(disk: Disk, path: Path) -> bytes | None:
    try:
        descriptor = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return disk.read(descriptor, disk.size(descriptor), 0)
    finally:
        disk.close(descriptor)
