"""A disk whose power can be cut: ext4 in a file, on a loop device.

A cut shuts the file system down at once (`EXT4_IOC_SHUTDOWN`, as xfstests does): unsynced data is lost,
synced data exists after the next mount. Before it, parts of the unsynced data can be written back at
random, because a real kernel writes dirty pages at any time.
"""

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from random import Random

_EXT4_IOC_SHUTDOWN = 0x8004587D  # read, 4 bytes, 'X', 125
_SYNC_FILE_RANGE_NOW = 1 | 2 | 4  # wait before, write, wait after
_UNMOUNT_S = 20.0
_PUSHED_AT_ONCE = 12

_CLONE_NEWNS = 0x00020000

_libc = ctypes.CDLL(None, use_errno=True)


@cache
def _separate_mounts() -> None:
    """Hide the mounts of this thread, and of what it starts, from the rest of the machine.

    A container that starts elsewhere copies all mounts it sees. Its copy keeps a file system in use after
    it was unmounted here, so that the next mount would find the one whose power was cut.
    """
    if _libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "no mount namespace")
    _run("mount", "--make-rprivate", "/")
    # Nodes in network namespaces have copies, too; they follow what is unmounted here.
    _run("mount", "--make-rshared", "/")


class Cut(IntEnum):
    """What the journal still writes when the power fails."""

    JOURNAL_FIRST = 1  # names and sizes reach the disk, data does not
    NOTHING = 2


@dataclass(frozen=True, slots=True)
class MountOptions:
    """When ext4 writes back by itself, and whether data or metadata goes first."""

    name: str
    options: str


MOUNTS = (
    MountOptions("only what is synced", "commit=600"),
    MountOptions("journal every second", "commit=1"),
    MountOptions("metadata ahead of data", "commit=1,data=writeback,nodelalloc"),
)


def missing_for_cuts() -> str | None:
    """Why the power cannot be cut here; None if it can."""
    if os.geteuid() != 0:
        return "needs root"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices"
    for tool in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    return None


class PowerCutDisk:
    """One file system, mounted under `directory`; it outlives any number of cuts."""

    def __init__(self, directory: Path, mount: MountOptions, *, size_mib: int = 512) -> None:
        _separate_mounts()
        self.path = directory / "mnt"
        self._image = directory / "disk.img"
        self._mount = mount
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(size_mib << 20)
        # No lazy initialisation: it would go on in the background of the first mount.
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self._image))
        self.is_mounted = False

    def mount(self) -> None:
        """Mount, replaying the journal if there was a cut."""
        _run("mount", "-o", f"loop,{self._mount.options}", str(self._image), str(self.path))
        self.is_mounted = True

    def push_out_some(self, random: Random) -> None:
        """Have the kernel write some of the dirty pages of some files, as it may at any time."""
        files = [
            Path(directory) / name
            for directory, _, names in os.walk(self.path)  # passes over what is removed meanwhile
            for name in sorted(names)
            if name.endswith(".log")
        ]
        for path in random.sample(files, min(len(files), random.randrange(_PUSHED_AT_ONCE))):
            with suppress(OSError):  # removed meanwhile
                _push_out(path, random)

    def cut(self, how: Cut) -> float:
        """Cut the power; when that was, by the monotonic clock: nothing done before it began can be later."""
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            at_s = time.monotonic()
            fcntl.ioctl(directory, _EXT4_IOC_SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(directory)
        return at_s

    def unmount(self) -> None:
        """Unmount, once the processes that used the file system have ended."""
        deadline = time.monotonic() + _UNMOUNT_S
        while True:
            try:
                _run("umount", str(self.path))
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                self.is_mounted = False
                return

    def remove(self) -> None:
        """Leave nothing behind."""
        if self.is_mounted:
            self.unmount()
        self._image.unlink(missing_ok=True)


def _push_out(path: Path, random: Random) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        size = os.fstat(descriptor).st_size
        # The whole of it or a part: a later page may be on the disk without an earlier one.
        start = random.choice((0, 0, max(size - 4096, 0), random.randrange(size + 1)))
        _libc.sync_file_range(
            descriptor,
            ctypes.c_int64(start),
            ctypes.c_int64(random.choice((0, 4096))),
            ctypes.c_uint(_SYNC_FILE_RANGE_NOW),
        )
    finally:
        os.close(descriptor)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
