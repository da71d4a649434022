"""The `Disk` port on the operating system's files and directories."""

import ctypes
import errno
import os
import re
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from alpacamq.model.ids import TimestampMs
from alpacamq.model.ports import Buffer, Disk

# The maximum number of buffers in one vectored write, the same on every Linux.
IOV_MAX = 1024

# File systems on which syncfs(2) flushes the device cache and reports errors, as fsync does.
_SYNCED_AS_A_WHOLE = {"ext4", "xfs", "btrfs"}
# Older kernels do not report every write-back error.
_SYNCFS_REPORTS_FROM = (5, 17)


class SystemDisk:
    """The file systems of this machine."""

    def __init__(self) -> None:
        self._syncfs = threading.Lock()
        # Descriptors for syncfs by device; None where it must not be used.
        self._file_systems: dict[int, _FileSystem | None] = {}

    def open(self, path: Path, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            return os.open(path, flags | os.O_CREAT, 0o640)
        try:
            return os.open(path, flags)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
        # A file system remounted read-only can still be read.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        if len(buffers) == 1:
            (buffer,) = buffers
            written = os.pwrite(descriptor, buffer, position)
            if written < len(buffer):
                self._write_rest(descriptor, memoryview(buffer)[written:], position + written)
            return
        for first in range(0, len(buffers), IOV_MAX):
            group = buffers[first : first + IOV_MAX]
            size = sum(map(len, group))
            written = os.pwritev(descriptor, group, position)
            if written < size:
                done = 0
                for buffer in group:
                    if done + len(buffer) > written:
                        begun = max(written - done, 0)
                        self._write_rest(descriptor, memoryview(buffer)[begun:], position + done + begun)
                    done += len(buffer)
            position += size

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        data = os.pread(descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        rest = size - len(data)
        while rest and (data := os.pread(descriptor, rest, position + size - rest)):
            parts.append(data)
            rest -= len(data)
        return b"".join(parts)

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def modified_ms(self, descriptor: int) -> TimestampMs:
        return TimestampMs(os.fstat(descriptor).st_mtime_ns // 1_000_000)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_filesystem(self, path: Path) -> bool:
        device = path.stat().st_dev
        # One at a time: the kernel reports an error once per descriptor. If two threads shared one, the
        # second would take its lost writes for durable.
        with self._syncfs:
            if device not in self._file_systems:
                self._file_systems[device] = _FileSystem(path) if _is_synced_as_a_whole(device) else None
            if (file_system := self._file_systems[device]) is None:
                return False
            try:
                file_system.sync()
            except OSError:
                # Other waiters may have lost writes to the same error.
                self._file_systems[device] = None
                raise
        return True

    def names(self, path: Path) -> list[str]:
        return os.listdir(path)  # noqa: PTH208 - only the names are needed

    def make_directory(self, path: Path) -> None:
        path.mkdir(mode=0o700)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def _write_rest(self, descriptor: int, rest: memoryview, position: int) -> None:
        """Write the rest after a short write, as happens near a limit or on a full disk."""
        while rest:
            written = os.pwrite(descriptor, rest, position)
            if written == 0:
                raise OSError(errno.EIO, "write returned 0 without an error")
            rest = rest[written:]
            position += written


class _FileSystem:
    """Calls syncfs on a descriptor that stays open: a new one would miss errors reported before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def sync(self) -> None:
        if ctypes.CDLL(None, use_errno=True).syncfs(self._descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self._path))


def remove_tree(disk: Disk, path: Path) -> None:
    """Remove a directory and everything in it."""
    for name in disk.names(path):
        try:
            disk.remove(path / name)
        except IsADirectoryError:
            remove_tree(disk, path / name)
    disk.remove_directory(path)


def sync_file(disk: Disk, path: Path) -> None:
    """Make all writes to the file at `path` durable, whichever descriptor they used."""
    descriptor = disk.open(path)
    try:
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)


def _is_synced_as_a_whole(device: int) -> bool:
    """Return whether one syncfs replaces an fsync of every file and directory of the device."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if release is None or (int(release[1]), int(release[2])) < _SYNCFS_REPORTS_FROM:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return False  # not Linux, or no /proc
    for line in mounts.splitlines():
        # id, parent, device, root, mount point, options, …, "-", file system type, …
        before, _, after = line.partition(" - ")
        if before.split(" ")[2] == wanted:
            return after.split(" ")[0] in _SYNCED_AS_A_WHOLE
    return False
