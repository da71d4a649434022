"""Removes the oldest segments of a log.

A leader decides by age and size; a follower only follows the start of its leader's log. The log drops
segments first, so that readers no longer find them; their files are removed in a thread.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from alpacamq.model.topics import TopicConfig

from .checkpoint import CheckpointFile
from .directory import remove_segment
from .health import NO_ROOM, storage_error
from .producer_state import ProducerSnapshots
from .segment import Segment
from .storage import Storage


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """Segments dropped from the log whose files are still on disk."""

    directory: Path
    storage: Storage
    checkpoint: CheckpointFile
    snapshots: ProducerSnapshots
    start_offset: int
    segments: Sequence[Segment]

    def run(self) -> None:
        """Remove the files, oldest first. After an OSError the next start removes the rest."""
        disk = self.storage.disk
        # Record the new start first, or a crash between two files would look like data loss. A full
        # disk has no space for that: then the removal goes first.
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


class StartMove(msgspec.Struct, frozen=True, kw_only=True):
    """A new log start, requested by a user, that is not durable yet."""

    directory: Path
    checkpoint: CheckpointFile
    start_offset: int

    def run(self) -> None:
        """Make the new start durable. Raises StorageFailed if that fails."""
        try:
            self.checkpoint.move_start(self.start_offset)
        except OSError as error:
            raise storage_error(self.directory, "moving the start", error) from error


def is_expired(segment: Segment, config: TopicConfig, now_ms: int) -> bool:
    """Return whether all records of the segment are older than retention.ms."""
    if config.retention_ms < 0 or not config.deletes_old:
        return False
    return now_ms - segment.newest_ms(now_ms) > config.retention_ms


def count_removable(
    segments: Sequence[Segment], config: TopicConfig, start_offset: int, limit_offset: int, now_ms: int
) -> int:
    """Count the segments that may be removed; `segments` is oldest first, the active one last.

    Records from `limit_offset` on stay: a replica that lacks them may become the leader.
    """
    surplus_bytes = 0
    if config.deletes_old and config.retention_bytes >= 0:
        surplus_bytes = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments[:-1]:
        is_surplus = surplus_bytes >= segment.size > 0
        if segment.next_offset > limit_offset:
            break
        if not (segment.next_offset <= start_offset or is_surplus or is_expired(segment, config, now_ms)):
            break
        surplus_bytes -= segment.size
        count += 1
    return count


def count_before(segments: Sequence[Segment], start_offset: int) -> int:
    """Count the segments that end before the log start, without the active one."""
    return sum(segment.next_offset <= start_offset for segment in segments[:-1])
