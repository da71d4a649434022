"""The cache of open segment files.

A file in use is pinned and stays open; the least recently used of the others are closed. The cache is
bounded whatever the number of partitions, and shared by the event loop and threads.
"""

import errno
import threading
from collections import OrderedDict
from pathlib import Path

from alpacamq.model.ports import Disk

# Errors for no free descriptor, in the process or in the system.
NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}
# Idle files to close when that happens.
_SHED = 16


class Handle:
    """An open file, pinned until `release`; its descriptor outlives the file's name."""

    __slots__ = ("_owner", "descriptor", "is_cached", "path", "pins")

    def __init__(self, owner: "FileHandles", path: Path, descriptor: int) -> None:
        self._owner = owner
        self.path = path
        self.descriptor = descriptor
        self.pins = 1
        # Whether the owner finds it by its path; False once it was forgotten or closed.
        self.is_cached = True

    def read(self, size: int, position: int) -> bytes:
        """Read `size` bytes, fewer at the end of the file."""
        return self._owner.read(self, size, position)

    def release(self) -> None:
        """Unpin the file; call once for every `pin`."""
        self._owner.release(self)


class FileHandles:
    """At most `limit` open files, or as many as are pinned at the same time."""

    def __init__(self, disk: Disk, limit: int) -> None:
        assert limit > 0
        self._disk = disk
        self._limit = limit
        self._lock = threading.Lock()
        self._open: dict[Path, Handle] = {}
        # In the order of their last use. By handle: the hash of a path is a call of Python.
        self._idle: OrderedDict[Handle, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def read(self, handle: Handle, size: int, position: int) -> bytes:
        """Read from a pinned file."""
        return self._disk.read(handle.descriptor, size, position)

    def pin(self, path: Path, *, create: bool = False) -> Handle:
        """Open the file at `path` if necessary and pin it."""
        with self._lock:
            handle = self._open.get(path)
            if handle is not None:
                if handle.pins == 0:
                    del self._idle[handle]
                handle.pins += 1
                return handle
            self._make_room(self._limit)
            handle = Handle(self, path, self._open_file(path, create=create))
            self._open[path] = handle
            return handle

    def pin_for_client(self, path: Path) -> Handle:
        """Pin a file while a client reads it; OSError if clients already have `limit` files open.

        The log's own use is not limited: slow readers must not prevent writes.
        """
        with self._lock:
            if path not in self._open and len(self._open) - len(self._idle) >= self._limit:
                raise OSError(errno.EMFILE, f"clients are reading {self._limit} files already")
        return self.pin(path)

    def release(self, handle: Handle) -> None:
        with self._lock:
            assert handle.pins > 0
            handle.pins -= 1
            if handle.pins:
                return
            if handle.is_cached:
                if len(self._open) <= self._limit:
                    self._idle[handle] = None
                    return
                del self._open[handle.path]
                handle.is_cached = False
        # Outside the lock: closing the last descriptor of a removed file frees all of its blocks.
        self._disk.close(handle.descriptor)

    def forget(self, path: Path) -> None:
        """Drop the file from the cache, because its name is about to change. Pinned handles stay valid."""
        with self._lock:
            handle = self._open.pop(path, None)
            if handle is None:
                return
            handle.is_cached = False
            if handle.pins:
                return
            del self._idle[handle]
        self._disk.close(handle.descriptor)

    def close(self) -> None:
        """Close every file that is not pinned."""
        with self._lock:
            for handle in self._idle:
                del self._open[handle.path]
                handle.is_cached = False
                self._disk.close(handle.descriptor)
            self._idle.clear()

    def _open_file(self, path: Path, *, create: bool) -> int:
        try:
            return self._disk.open(path, create=create)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or not self._idle:
                raise
        self._make_room(max(1, len(self._open) - _SHED))
        return self._disk.open(path, create=create)

    def _make_room(self, limit: int) -> None:
        while len(self._open) >= limit and self._idle:
            handle, _ = self._idle.popitem(last=False)
            del self._open[handle.path]
            handle.is_cached = False
            self._disk.close(handle.descriptor)
