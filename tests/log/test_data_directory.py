"""A data directory belongs to one node and is used by one broker at a time."""

import errno
import json
import os
from pathlib import Path

import pytest

from alpacamq.log.data_directory import DataDirectory, LastStop
from alpacamq.log.disk import SystemDisk
from alpacamq.model.errors import DataDirectoryInUse, InvalidConfig, StorageFailed

from .faulty_disk import Fault, FaultyDisk


def a_directory(path: Path, node_id: int = 1) -> DataDirectory:
    return DataDirectory(path, SystemDisk(), node_id)


def test_a_new_directory_gets_an_identity_that_stays(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    directory = a_directory(path)
    directory.open()
    cluster_id = directory.cluster_id
    assert len(cluster_id) == 22
    assert directory.partitions.is_dir()
    directory.close()
    directory = a_directory(path)
    directory.open()
    assert directory.cluster_id == cluster_id
    directory.close()


def test_two_directories_are_two_clusters(tmp_path: Path) -> None:
    one, other = a_directory(tmp_path / "one"), a_directory(tmp_path / "other")
    one.open()
    other.open()
    assert one.cluster_id != other.cluster_id


def test_a_second_broker_is_refused_with_the_process_id_of_the_first(tmp_path: Path) -> None:
    first = a_directory(tmp_path)
    first.open()
    with pytest.raises(DataDirectoryInUse) as refusal:
        a_directory(tmp_path).open()
    assert str(tmp_path) in str(refusal.value)
    assert f"process {os.getpid()}" in str(refusal.value)
    first.close()
    second = a_directory(tmp_path)
    second.open()
    second.close()


def test_the_directory_of_another_node_is_refused(tmp_path: Path) -> None:
    directory = a_directory(tmp_path, node_id=1)
    directory.open()
    directory.close()
    with pytest.raises(InvalidConfig, match="belongs to node 1, but this node is configured as 2"):
        a_directory(tmp_path, node_id=2).open()
    directory.open()
    directory.close()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    directory.open()
    directory.close()
    identity = json.loads((tmp_path / "identity").read_text())
    (tmp_path / "identity").write_text(json.dumps(identity | {"format": 2}))
    with pytest.raises(StorageFailed, match="has format 2: a newer AlpacaMQ wrote it"):
        a_directory(tmp_path).open()


@pytest.mark.parametrize("data", [b"", b"{", b'{"format":1}', b"\xff\xfe"])
def test_a_damaged_identity_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "identity").write_bytes(data)
    with pytest.raises(StorageFailed, match=r"identity is damaged at byte \d+: .*alpacamq repair"):
        a_directory(tmp_path).open()


def test_partitions_without_an_identity_are_not_taken_over(tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    directory.open()
    (directory.partitions / "t-0").mkdir()
    directory.close()
    (tmp_path / "identity").unlink()
    with pytest.raises(StorageFailed, match="identity is missing although there are partitions"):
        a_directory(tmp_path).open()


def test_leftovers_of_deletions_are_removed_and_strangers_listed(tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    directory.open()
    directory.close()
    doomed = directory.partitions / "t-0.0123456789abcdef-delete"
    doomed.mkdir()
    (doomed / "00000000000000000000.log").touch()
    (directory.partitions / "t-1").mkdir()
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "identity.tmp").touch()
    directory.open()
    assert directory.partition_names() == ["t-1"]
    assert directory.foreign == ("lost+found",)
    assert not (tmp_path / "identity.tmp").exists()


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed, match="cannot be used"):
        a_directory(tmp_path / "file").open()
    with pytest.raises(StorageFailed, match="cannot be used"):
        a_directory(tmp_path / "file" / "data").open()


def test_a_full_disk_does_not_keep_a_broker_from_starting_and_stopping(tmp_path: Path) -> None:
    """It makes room itself, by deleting what is old."""
    directory = a_directory(tmp_path)
    directory.open()
    directory.stopped()
    directory.close()
    disk = FaultyDisk()
    disk.fail(Fault("write", errno.ENOSPC))
    directory = DataDirectory(tmp_path, disk, 1)
    directory.open()
    assert directory.last_stop is LastStop.CLEAN
    directory.stopped()
    directory.close()
