"""The system's disk writes everything or fails, and reads what there is."""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from alpacamq.log.disk import IOV_MAX, SystemDisk, remove_tree

if TYPE_CHECKING:
    from alpacamq.model.ports import Buffer


@pytest.fixture
def disk() -> SystemDisk:
    return SystemDisk()


def test_more_buffers_than_the_kernel_takes_are_written_in_order(disk: SystemDisk, tmp_path: Path) -> None:
    buffers: list[Buffer] = [f"{number},".encode() for number in range(2 * IOV_MAX + 7)]
    descriptor = disk.open(tmp_path / "file", create=True)
    disk.write(descriptor, buffers, 5)
    data = b"".join(buffers)
    assert disk.read(descriptor, 1 << 20, 5) == data
    assert disk.size(descriptor) == 5 + len(data)
    disk.close(descriptor)


@pytest.mark.parametrize("at_once", [1, 3, 10, 11, 29])
@pytest.mark.parametrize("buffers", [[b"0123456789" * 3], [b"0123456789", b"", b"abcdefghij", b"ABCDEFGHIJ"]])
def test_a_write_that_the_kernel_cuts_short_is_completed(
    disk: SystemDisk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
    buffers: list[bytes],
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, bytes(data[:at_once]), position))
    monkeypatch.setattr(
        os, "pwritev", lambda fd, parts, position: pwrite(fd, b"".join(parts)[:at_once], position)
    )
    descriptor = disk.open(tmp_path / "file", create=True)
    disk.write(descriptor, buffers, 2)
    assert disk.read(descriptor, 100, 0) == b"\x00\x00" + b"".join(buffers)


def test_a_kernel_that_writes_nothing_is_an_error(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    descriptor = disk.open(tmp_path / "file", create=True)
    with pytest.raises(OSError, match="write returned 0"):
        disk.write(descriptor, [b"data"], 0)


def test_a_read_that_the_kernel_cuts_short_is_completed(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    descriptor = disk.open(tmp_path / "file")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, position: pread(fd, min(size, 3), position))
    assert disk.read(descriptor, 8, 1) == b"12345678"
    assert disk.read(descriptor, 100, 4) == b"456789"
    assert disk.read(descriptor, 100, 10) == b""


def test_a_file_that_is_not_there_is_made_only_on_demand(disk: SystemDisk, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "file")
    disk.close(disk.open(tmp_path / "file", create=True))
    assert disk.names(tmp_path) == ["file"]


def test_a_read_only_file_system_still_serves_readers(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"data")
    real_open = os.open

    def read_only(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    descriptor = disk.open(tmp_path / "file")
    assert disk.read(descriptor, 10, 0) == b"data"
    with pytest.raises(OSError, match="Read-only"):
        disk.open(tmp_path / "new", create=True)


def test_descriptors_are_not_inherited(disk: SystemDisk, tmp_path: Path) -> None:
    descriptor = disk.open(tmp_path / "file", create=True)
    assert not os.get_inheritable(descriptor)


def test_a_tree_is_removed_with_all_it_holds(disk: SystemDisk, tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").touch()
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    remove_tree(disk, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_syncfs_is_not_called_again_after_an_error(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports an error once: a later success does not mean that the lost writes are durable."""
    if not disk.sync_filesystem(tmp_path):
        pytest.skip("this file system cannot be synced as a whole")

    def fail(_file_system: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("alpacamq.log.disk._FileSystem.sync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            disk.sync_filesystem(tmp_path)
    assert not disk.sync_filesystem(tmp_path)


def test_syncfs_uses_one_descriptor_which_is_closed_with_the_disk(tmp_path: Path) -> None:
    def descriptors() -> set[str]:
        paths = list(Path("/proc/self/fd").iterdir())
        return {path.name for path in paths if path.is_symlink() and path.readlink() == tmp_path}

    disk = SystemDisk()
    if not disk.sync_filesystem(tmp_path):
        pytest.skip("this file system cannot be synced as a whole")
    opened = descriptors()
    assert len(opened) == 1
    disk.sync_filesystem(tmp_path / ".")
    assert descriptors() == opened
    del disk
    assert descriptors() == set()
