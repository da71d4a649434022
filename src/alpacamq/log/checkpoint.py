"""The checkpoint of a partition: its recovery point, its start offset, and what a replica must remember.

Everything before the recovery point was durable when the checkpoint was written. A clean shutdown
leaves the recovery point at the end of the log.
"""

import threading
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from alpacamq.model.ports import Disk

from .sealed_file import Unreadable, prepare_sealed, publish_sealed, read_sealed, seal, write_sealed

FILE_NAME = "checkpoint"

_MAGIC = b"ALCP"
_VERSION = 1


class RecoveryPoint(NamedTuple):
    """An offset, and the segment and byte at which its batch begins or will begin."""

    offset: int
    segment: int
    position: int


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """State of a partition that is stored beside its segments.

    `has_producers` is false if no producer was known at the recovery point, so that no snapshot
    need exist. `opened_ms` is when the active segment took its first record, `deadline_ms` when
    compaction may drop the first tombstone it kept.

    The fields that can be unset are not in files of version 0.1, nor in any file while they are unset.
    `high_watermark` is never beyond the recovery point. `loss` is why records that were durable are missing
    or damaged. While `restarting_at` is set, the log is being emptied, to continue at that offset.
    """

    start_offset: int = 0
    recovery_point: RecoveryPoint = RecoveryPoint(0, 0, 0)
    has_producers: bool = False
    opened_ms: int = 0
    compacted_to: int = 0
    deadline_ms: int | None = None
    high_watermark: int | UnsetType = UNSET
    loss: str | UnsetType = UNSET
    restarting_at: int | UnsetType = UNSET


class CheckpointFile:
    """Stores the checkpoint durably. Each field has one writer; writers may be in different threads."""

    __slots__ = ("_disk", "_lock", "_path", "_prepared", "current")

    def __init__(self, disk: Disk, directory: Path, current: Checkpoint) -> None:
        self._disk = disk
        self._path = directory / FILE_NAME
        self._lock = threading.Lock()
        self.current = self._prepared = current

    def update(self, **changes: Any) -> None:
        """Change some fields durably."""
        with self._lock:
            self._write(msgspec.structs.replace(self.current, **changes))

    def replace(self, checkpoint: Checkpoint) -> None:
        """Replace all fields durably."""
        with self._lock:
            self._write(checkpoint)

    def note_loss(self, reason: str) -> None:
        """Record durably that records are lost; keeps the first reason. May run in any thread."""
        with self._lock:
            if self.current.loss is UNSET:
                self._write(msgspec.structs.replace(self.current, loss=reason))

    def move_start(self, offset: int) -> None:
        """Move the log start forward to `offset` durably; does nothing if it is there or beyond already."""
        with self._lock:
            if offset > self.current.start_offset:
                self._write(msgspec.structs.replace(self.current, start_offset=offset))

    def prepare(self, **changes: Any) -> Path:
        """Write a change to a temporary file and return its path. The caller syncs it.

        Locks the checkpoint until `publish` or `abandon`, one of which must follow.
        """
        self._lock.acquire()
        try:
            self._prepared = msgspec.structs.replace(self.current, **changes)
            return prepare_sealed(
                self._disk, self._path, _MAGIC, _VERSION, msgspec.msgpack.encode(self._prepared)
            )
        except BaseException:
            self._lock.release()
            raise

    def publish(self) -> None:
        """Replace the checkpoint by the prepared file. Durable once the directory is synced."""
        try:
            publish_sealed(self._disk, self._path)
            self.current = self._prepared
        finally:
            self._lock.release()

    def abandon(self) -> None:
        """Keep the current checkpoint and release the lock."""
        self._lock.release()

    def _write(self, changed: Checkpoint) -> None:
        write_sealed(self._disk, self._path, _MAGIC, _VERSION, msgspec.msgpack.encode(changed))
        self.current = changed


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode the complete checkpoint file."""
    return seal(_MAGIC, _VERSION, msgspec.msgpack.encode(checkpoint))


def read_checkpoint(disk: Disk, directory: Path) -> Checkpoint:
    """Read the checkpoint in `directory`. Raises Unreadable."""
    body = read_sealed(disk, directory / FILE_NAME, _MAGIC, _VERSION)
    try:
        checkpoint = msgspec.msgpack.decode(body, type=Checkpoint)
    except msgspec.DecodeError as error:
        raise Unreadable(str(error)) from error
    if min(checkpoint.start_offset, *checkpoint.recovery_point) < 0:
        raise Unreadable("it holds a negative offset or position")
    return checkpoint
