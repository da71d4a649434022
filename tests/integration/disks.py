"""Small file systems for tests to fill and to break. They need root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def run(*command: str | Path) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


class Tmpfs:
    """A file system in memory whose size can change while it is in use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resize(self, size_kib: int) -> None:
        run("mount", "-o", f"remount,size={size_kib}k", self.path)


class Ext4:
    """An ext4 file system in a file, which can be turned read-only like a broken one."""

    def __init__(self, path: Path, image: Path) -> None:
        self.path = path
        self.image = image

    def mount(self) -> None:
        run("mount", "-o", "loop,errors=remount-ro", self.image, self.path)

    def unmount(self) -> None:
        run("umount", self.path)

    def repair(self) -> None:
        """Run e2fsck, as an operator does before mounting again; it exits with 1 after a repair."""
        self.unmount()
        subprocess.run(["e2fsck", "-fy", str(self.image)], check=False, capture_output=True)
        self.mount()

    def turn_read_only(self) -> None:
        """Make the kernel report an error; like any broken disk, the file system becomes read-only."""
        device = run("findmnt", "-no", "SOURCE", self.path).strip()
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("test")


@contextmanager
def tmpfs(path: Path, size_kib: int) -> Iterator[Tmpfs]:
    """Mount a tmpfs, or skip the test if mounting is not possible."""
    path.mkdir()
    _mount_or_skip("-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", path)
    try:
        yield Tmpfs(path)
    finally:
        run("umount", "--lazy", path)


@contextmanager
def ext4(path: Path, image: Path, size_mib: int) -> Iterator[Ext4]:
    """Mount an ext4, or skip the test if mounting is not possible."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(size_mib << 20)
    run("mkfs.ext4", "-q", image)
    _mount_or_skip("-o", "loop,errors=remount-ro", image, path)
    try:
        yield Ext4(path, image)
    finally:
        run("umount", "--lazy", path)


def _mount_or_skip(*words: str | Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    try:
        run("mount", *words)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"mounting is not allowed here: {error.stderr.strip()}")
