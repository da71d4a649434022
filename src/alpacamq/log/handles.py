"""The open files of the node: few, whatever the number of partitions.

Owns which segment files are open. A file in use is pinned and stays open; of the others the
least recently used are closed. Threads share this with the event loop.
"""

import threading
from collections import OrderedDict
from pathlib import Path

from alpacamq.model.ports import Disk


class Handle:
    """An open file, pinned until `release`; its descriptor outlives the file's name."""

    __slots__ = ("_owner", "descriptor", "path", "pins")

    def __init__(self, owner: "FileHandles", path: Path, descriptor: int) -> None:
        self._owner = owner
        self.path = path
        self.descriptor = descriptor
        self.pins = 1

    def release(self) -> None:
        """Give the file back; once for every `pin`."""
        self._owner.release(self)


class FileHandles:
    """At most `limit` open files, or as many as are pinned at once."""

    def __init__(self, disk: Disk, limit: int) -> None:
        assert limit > 0
        self._disk = disk
        self._limit = limit
        self._lock = threading.Lock()
        self._open: dict[Path, Handle] = {}
        self._idle: OrderedDict[Path, Handle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def pin(self, path: Path, *, create: bool = False) -> Handle:
        """The file at `path`, open for as long as the caller needs it."""
        with self._lock:
            handle = self._open.get(path)
            if handle is not None:
                if handle.pins == 0:
                    del self._idle[path]
                handle.pins += 1
                return handle
            self._make_room()
            handle = Handle(self, path, self._disk.open(path, create=create))
            self._open[path] = handle
            return handle

    def release(self, handle: Handle) -> None:
        with self._lock:
            assert handle.pins > 0
            handle.pins -= 1
            if handle.pins:
                return
            if self._open.get(handle.path) is not handle:
                self._disk.close(handle.descriptor)  # forgotten while it was pinned
            elif len(self._open) > self._limit:
                del self._open[handle.path]
                self._disk.close(handle.descriptor)
            else:
                self._idle[handle.path] = handle

    def forget(self, path: Path) -> None:
        """The name means another file from now on, or none; who has it pinned keeps the old one."""
        with self._lock:
            handle = self._open.pop(path, None)
            if handle is not None and handle.pins == 0:
                del self._idle[path]
                self._disk.close(handle.descriptor)

    def close(self) -> None:
        """Close every file that is not pinned."""
        with self._lock:
            for path, handle in self._idle.items():
                del self._open[path]
                self._disk.close(handle.descriptor)
            self._idle.clear()

    def _make_room(self) -> None:
        while len(self._open) >= self._limit and self._idle:
            path, handle = self._idle.popitem(last=False)
            del self._open[path]
            self._disk.close(handle.descriptor)
