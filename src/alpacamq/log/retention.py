"""Which old segments go, and removing their files.

Deciding is the event loop's; the files are removed in a thread. A reader inside a segment that
goes keeps its open file and is not disturbed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from alpacamq.model.ids import NO_TIMESTAMP
from alpacamq.model.topics import TopicConfig

from .checkpoint import CheckpointFile
from .directory import remove_segment
from .health import NO_ROOM, refused
from .producer_state import ProducerSnapshots
from .segment import Segment
from .storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Segments that are no longer part of the log, still on disk."""

    directory: Path
    storage: Storage
    checkpoint: CheckpointFile
    snapshots: ProducerSnapshots
    start_offset: int
    segments: Sequence[Segment]

    def run(self) -> None:
        """Remove the files, oldest first. OSError leaves the rest for the next start."""
        disk = self.storage.disk
        # First of all the new start, or a crash between two files would look like a loss. On a
        # full disk that has to wait: the removal is what makes room for it.
        try:
            self.checkpoint.move_start(self.start_offset)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        for segment in self.segments:
            remove_segment(disk, self.directory, segment.base_offset)
            self.storage.handles.forget(segment.path)
        self.snapshots.remove({segment.base_offset for segment in self.segments} - {self.start_offset})
        disk.sync_directory(self.directory)
        self.checkpoint.move_start(self.start_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMove:
    """A new log start, made by a user, that is not on the medium yet."""

    directory: Path
    checkpoint: CheckpointFile
    start_offset: int

    def run(self) -> None:
        """Return once the log starts there even after a crash; StorageFailed if that cannot be had."""
        try:
            self.checkpoint.move_start(self.start_offset)
        except OSError as error:
            raise refused(self.directory, "moving the start", error) from error


def is_expired(segment: Segment, config: TopicConfig, now_ms: int) -> bool:
    """Whether all the segment's records are older than retention.ms."""
    if config.retention_ms < 0 or not config.deletes_old:
        return False
    timestamp, _ = segment.index.largest()
    if timestamp == NO_TIMESTAMP:
        timestamp = segment.opened_ms
    elif timestamp > now_ms:
        # It says nothing about the segment's age: when the last batch came has to do.
        timestamp = segment.written_ms
    return now_ms - timestamp > config.retention_ms


def count_removable(segments: Sequence[Segment], config: TopicConfig, start_offset: int, now_ms: int) -> int:
    """How many of `segments`, oldest first and the active one last, may go."""
    surplus_bytes = 0
    if config.deletes_old and config.retention_bytes >= 0:
        surplus_bytes = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments[:-1]:
        is_surplus = surplus_bytes >= segment.size > 0
        if not (segment.next_offset <= start_offset or is_surplus or is_expired(segment, config, now_ms)):
            break
        surplus_bytes -= segment.size
        count += 1
    return count
