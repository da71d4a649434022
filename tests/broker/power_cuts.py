"""Restores the data that a broker's disk surely holds after a power cut."""

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from alpacamq.log.disk import SystemDisk


@dataclass(frozen=True, slots=True)
class _Created:
    inode: int


@dataclass(frozen=True, slots=True)
class _FileSynced:
    inode: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _DirectorySynced:
    inode: int
    names: dict[str, tuple[int, bool]]  # inode, and whether it is a directory


class RecordingDisk(SystemDisk):
    """The real disk, with a record of syncs in order."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._events: list[_Created | _FileSynced | _DirectorySynced] = []

    @property
    def syncs(self) -> int:
        """The number of syncs so far, for `restore`."""
        return len(self._events)

    def open(self, path: Path, *, create: bool = False) -> int:
        with self._lock:
            is_new = create and not path.exists()
            descriptor = super().open(path, create=create)
            if is_new:
                self._events.append(_Created(os.fstat(descriptor).st_ino))
            return descriptor

    def sync(self, descriptor: int) -> None:
        with self._lock:
            # Read before the sync: concurrent writes of another thread are not promised.
            data = self.read(descriptor, self.size(descriptor), 0)
            super().sync(descriptor)
            self._events.append(_FileSynced(os.fstat(descriptor).st_ino, data))

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            with os.scandir(path) as entries:
                names = {entry.name: (entry.inode(), entry.is_dir()) for entry in entries}
            super().sync_directory(path)
            self._events.append(_DirectorySynced(path.stat().st_ino, names))

    def restore(self, root: Path, syncs: int, target: Path) -> None:
        """Write to `target` the content of `root` after a power cut behind the first `syncs` syncs."""
        files: dict[int, bytes] = {}
        directories: dict[int, dict[str, tuple[int, bool]]] = {}
        for event in self._events[:syncs]:
            match event:
                case _Created(inode):  # an inode may be used again
                    files[inode] = b""
                case _FileSynced(inode, data):
                    files[inode] = data
                case _DirectorySynced(inode, names):
                    directories[inode] = names

        def write(inode: int, path: Path) -> None:
            path.mkdir()
            for name, (entry, is_directory) in directories.get(inode, {}).items():
                if is_directory:
                    write(entry, path / name)
                else:
                    (path / name).write_bytes(files.get(entry, b""))

        write(root.stat().st_ino, target)
