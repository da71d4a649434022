"""The disk keeps what was synced and loses what was not; what is found with it rests on that."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .disk import MOUNTS, Cut, MountOptions, PowerCutDisk, missing_for_cuts

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(missing_for_cuts() is not None, reason=f"power cuts: {missing_for_cuts()}"),
]


@pytest.fixture(params=MOUNTS, ids=lambda mount: mount.name)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PowerCutDisk]:
    mount: MountOptions = request.param
    made = PowerCutDisk(tmp_path, mount, size_mib=64)
    try:
        made.mount()
        yield made
    finally:
        made.remove()


def write(path: Path, data: bytes, *, sync: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, data)
    if sync:
        os.fdatasync(descriptor)
    os.close(descriptor)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def power_cycle(disk: PowerCutDisk, how: Cut) -> None:
    disk.cut(how)
    disk.unmount()
    disk.mount()


@pytest.mark.parametrize("how", Cut)
def test_synced_data_survives_a_cut(disk: PowerCutDisk, how: Cut) -> None:
    write(disk.path / "kept", b"a" * 10_000, sync=True)
    sync_directory(disk.path)
    power_cycle(disk, how)
    assert (disk.path / "kept").read_bytes() == b"a" * 10_000


@pytest.mark.parametrize("how", Cut)
def test_data_that_was_not_synced_is_gone_after_a_cut(disk: PowerCutDisk, how: Cut) -> None:
    write(disk.path / "grown", b"a" * 10_000, sync=True)
    sync_directory(disk.path)
    write(disk.path / "grown", b"b" * 10_000, sync=False)
    write(disk.path / "fresh", b"c" * 10_000, sync=False)
    power_cycle(disk, how)
    assert (disk.path / "grown").read_bytes()[:10_000] == b"a" * 10_000
    assert b"b" not in (disk.path / "grown").read_bytes()
    if (disk.path / "fresh").exists():
        assert b"c" not in (disk.path / "fresh").read_bytes()


def test_another_process_with_copies_of_all_mounts_does_not_keep_a_disk_in_use(disk: PowerCutDisk) -> None:
    """As containers have."""
    write(disk.path / "kept", b"a", sync=True)
    sync_directory(disk.path)
    outside = [
        "nsenter",
        f"--mount=/proc/{os.getppid()}/ns/mnt",
        "unshare",
        "--mount",
        "--propagation=private",
    ]
    with subprocess.Popen(
        [*outside, "sh", "-c", "echo started; exec sleep 60"], stdout=subprocess.PIPE
    ) as copy:
        try:
            assert copy.stdout is not None
            assert copy.stdout.readline() == b"started\n"
            power_cycle(disk, Cut.NOTHING)
            assert (disk.path / "kept").read_bytes() == b"a"
        finally:
            copy.kill()


def test_a_cut_refuses_writes_and_syncs(disk: PowerCutDisk) -> None:
    descriptor = os.open(disk.path / "open", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"before")
    disk.cut(Cut.NOTHING)
    with pytest.raises(OSError, match="Input/output error"):
        os.fdatasync(descriptor)
    with pytest.raises(OSError, match="Input/output error"):
        os.write(descriptor, b"after")
    os.close(descriptor)
