"""Snapshots of what a log remembers of producers and transactions at an offset, one file each.

One is kept at the start of every segment, so that truncation need not replay the whole log,
and the newest, from which recovery starts. Flushes and retention change them in different threads.
"""

import threading
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path

from alpacamq.model.ports import Disk

from .memory import Remembered, decode_memory, encode_memory
from .sealed_file import Unreadable, prepare_sealed, publish_sealed, read_sealed

SUFFIX = ".producers"

_MAGIC = b"ALPS"
_VERSION = 1


class ProducerSnapshots:
    """The snapshot files of one partition."""

    __slots__ = ("_directory", "_disk", "_lock", "offsets")

    def __init__(self, disk: Disk, directory: Path, offsets: Iterable[int] = ()) -> None:
        self._disk = disk
        self._directory = directory
        # Held while a file gets its name or is removed, so that `offsets` is what lies on disk.
        self._lock = threading.Lock()
        self.offsets = set(offsets)

    def prepare(self, offset: int, remembered: Remembered) -> Path:
        """Write a snapshot into a file that is returned and is to be synced before `publish`."""
        return prepare_sealed(self._disk, self._path(offset), _MAGIC, _VERSION, encode_memory(remembered))

    def publish(self, offset: int) -> None:
        """Give a snapshot its name. Syncing the directory is left to the caller."""
        with self._lock:
            publish_sealed(self._disk, self._path(offset))
            self.offsets.add(offset)

    def newest(self, not_after: int, not_before: int, notes: list[str]) -> tuple[int, Remembered] | None:
        """The newest snapshot between two offsets that can be read; `notes` gets what others lack."""
        for offset in sorted(self.offsets, reverse=True):
            if not_before <= offset <= not_after:
                try:
                    return offset, check_snapshot(self._disk, self._path(offset))
                except Unreadable as error:
                    notes.append(f"{self._path(offset)} is skipped: {error}")
        return None

    def remove(self, offsets: Iterable[int]) -> None:
        """Remove what is there of `offsets`. Syncing the directory is left to the caller."""
        with self._lock:
            self._remove(self.offsets.intersection(offsets))

    def remove_except(self, kept: AbstractSet[int]) -> None:
        """Remove all but `kept`. Syncing the directory is left to the caller."""
        with self._lock:
            self._remove(self.offsets - kept)

    def _remove(self, offsets: Iterable[int]) -> None:
        for offset in sorted(offsets):
            self._disk.remove(self._path(offset))
            self.offsets.discard(offset)

    def _path(self, offset: int) -> Path:
        return self._directory / f"{offset:020d}{SUFFIX}"


def check_snapshot(disk: Disk, path: Path) -> Remembered:
    """What the snapshot at `path` holds, or Unreadable."""
    return decode_memory(read_sealed(disk, path, _MAGIC, _VERSION))
