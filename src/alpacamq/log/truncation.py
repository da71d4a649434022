"""Taking back the end of a log: what a follower does when its leader has something else there."""

from pathlib import Path

from .checkpoint import CheckpointFile, RecoveryPoint
from .directory import list_contents, remove_segment
from .epochs import EpochHistory
from .flush import FlushLedger
from .memory import Memory, Remembered
from .scan import Boundary
from .segments import Segments
from .snapshots import ProducerSnapshots
from .storage import Storage
from .swap import discard_swaps
from .transactions import read_stored_marker


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
