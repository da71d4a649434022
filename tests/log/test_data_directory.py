"""A data directory belongs to one node and is used by one broker at a time."""

import errno
import json
import os
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from alpacamq.log.data_directory import DataDirectory, LastStop, format_directory, reset_directory
from alpacamq.log.disk import SystemDisk
from alpacamq.model.errors import (
    DataDirectoryInUse,
    InconsistentClusterId,
    InvalidConfig,
    InvalidVoters,
    StorageFailed,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.voters import Proposal, Voter

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


def test_only_its_owner_can_read_a_new_directory(tmp_path: Path) -> None:
    path = tmp_path / "data"
    directory = a_directory(path)
    directory.open()
    assert path.stat().st_mode & 0o777 == 0o700
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
    (tmp_path / "identity").write_text(json.dumps(identity | {"format": 3}))
    with pytest.raises(StorageFailed, match="has format 3: a newer AlpacaMQ wrote it"):
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


@pytest.mark.parametrize("boot", ["the same", "an earlier one"])
def test_a_crash_after_a_start_on_a_full_disk_is_no_clean_stop(tmp_path: Path, boot: str) -> None:
    directory = a_directory(tmp_path)
    directory.open()
    directory.stopped()
    directory.close()
    if boot == "an earlier one":
        (tmp_path / "stopped").write_text("an earlier boot\n")
    disk = FaultyDisk()
    disk.fail(Fault("write", errno.ENOSPC))
    crashed = DataDirectory(tmp_path, disk, 1)
    crashed.open()
    crashed.close()
    directory.open()
    assert directory.last_stop is (LastStop.KILLED if boot == "the same" else LastStop.POWER_LOST)


def test_the_boot_id_is_stored_without_another_file(tmp_path: Path) -> None:
    """As long as it is overwritten in its place, a full disk has room for it."""
    directory = a_directory(tmp_path)
    directory.open()
    directory.stopped()
    directory.close()
    (tmp_path / "stopped").write_text("an earlier boot, with an id of 36 chars\n"[:37])
    disk = FaultyDisk()
    disk.fail(Fault("create", errno.ENOSPC))
    disk.fail(Fault("truncate", errno.ENOSPC))
    crashed = DataDirectory(tmp_path, disk, 1)
    crashed.open()
    crashed.close()
    directory.open()
    assert directory.last_stop is LastStop.KILLED


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_a_directory_of_a_version_without_the_file_of_a_clean_stop(tmp_path: Path, stop: str) -> None:
    directory = a_directory(tmp_path)
    directory.open()
    directory.close()
    if stop == "clean":
        (tmp_path / "running").unlink()
    directory.open()
    assert directory.last_stop is (LastStop.CLEAN if stop == "clean" else LastStop.KILLED)
    directory.stopped()
    directory.close()
    directory.open()
    assert directory.last_stop is LastStop.CLEAN
    assert directory.foreign == ()


# As version 0.1 wrote it, and the version before it without a checksum.
OLD = [
    b'{"format":1,"cluster_id":"fQXz2iRBSv6ptzfCbCUNZA","node_id":1,"checksum":1182566362}\n',
    b'{"format":1,"cluster_id":"fQXz2iRBSv6ptzfCbCUNZA","node_id":1}\n',
]


@pytest.mark.parametrize("data", OLD)
def test_a_directory_of_version_0_1_is_a_cluster_with_one_voter(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "identity").write_bytes(data)
    directory = a_directory(tmp_path)
    directory.open()
    assert directory.cluster_id == "fQXz2iRBSv6ptzfCbCUNZA"
    directory_id = directory.directory_id
    assert directory.identity.voters == (Voter(BrokerId(1), directory_id),)
    directory.close()
    directory = a_directory(tmp_path)
    directory.open()
    assert directory.directory_id == directory_id
    assert json.loads((tmp_path / "identity").read_text())["format"] == 2


def test_the_id_of_an_old_directory_is_the_same_while_a_full_disk_keeps_it_from_being_stored(
    tmp_path: Path,
) -> None:
    (tmp_path / "identity").write_bytes(OLD[0])
    disk = FaultyDisk()
    disk.fail(Fault("write", errno.ENOSPC, suffix="identity.tmp"))
    full = DataDirectory(tmp_path, disk, 1)
    full.open()
    full.close()
    assert (tmp_path / "identity").read_bytes() == OLD[0]
    directory = a_directory(tmp_path)
    directory.open()
    assert directory.directory_id == full.directory_id


def a_proposal(*voters: Voter, cluster_id: str = "new") -> Proposal:
    return Proposal(cluster_id=cluster_id, voters=voters)


def an_empty_directory(path: Path) -> DataDirectory:
    directory = a_directory(path)
    directory.open(founds_cluster=False)
    return directory


def own_voter(directory: DataDirectory) -> Voter:
    return Voter(BrokerId(1), directory.directory_id)


def test_a_directory_without_a_cluster_accepts_a_proposal_and_founds_it(tmp_path: Path) -> None:
    directory = an_empty_directory(tmp_path)
    assert directory.cluster_id == ""
    proposal = a_proposal(own_voter(directory), Voter(BrokerId(2), uuid4()))
    directory.accept(proposal)
    directory.accept(proposal)
    directory.close()
    directory = an_empty_directory(tmp_path)
    assert (directory.cluster_id, directory.identity.proposal) == ("", proposal)
    directory.found()
    directory.found()
    directory.close()
    directory = an_empty_directory(tmp_path)
    assert (directory.cluster_id, directory.identity.proposal) == ("new", None)
    assert directory.identity.voters == proposal.voters
    directory.accept(proposal)  # it may be asked again by a node that does not know
    assert directory.identity.proposal is None


def test_a_proposal_binds_the_directory(tmp_path: Path) -> None:
    directory = an_empty_directory(tmp_path)
    voter = own_voter(directory)
    directory.accept(a_proposal(voter))
    with pytest.raises(InvalidVoters, match="has accepted another proposal"):
        directory.accept(a_proposal(voter, cluster_id="other"))
    with pytest.raises(InvalidVoters, match="has accepted another proposal"):
        directory.accept(a_proposal(voter, Voter(BrokerId(2), uuid4())))
    with pytest.raises(InvalidVoters, match="has accepted another proposal"):
        directory.join("other")
    directory.close()
    emptied = reset_directory(tmp_path, SystemDisk(), 1)
    assert emptied.directory_id != voter.directory
    directory = an_empty_directory(tmp_path)
    with pytest.raises(InvalidVoters, match="does not name the directory"):
        directory.accept(a_proposal(voter))
    directory.accept(a_proposal(own_voter(directory), cluster_id="other"))


def test_a_member_stays_in_its_cluster(tmp_path: Path) -> None:
    directory = an_empty_directory(tmp_path)
    directory.join("first")
    directory.join("first")
    with pytest.raises(InconsistentClusterId, match="belongs to cluster first"):
        directory.join("second")
    with pytest.raises(InconsistentClusterId, match="belongs to cluster first"):
        directory.accept(a_proposal(own_voter(directory)))
    directory.close()
    with pytest.raises(InconsistentClusterId, match="belongs to cluster first"):
        reset_directory(tmp_path, SystemDisk(), 1)
    with pytest.raises(InconsistentClusterId, match="belongs to cluster first"):
        format_directory(tmp_path, SystemDisk(), 1, "second")


def test_a_directory_is_formatted_by_hand(tmp_path: Path) -> None:
    voters = (Voter(BrokerId(1), UUID(int=1)), Voter(BrokerId(2), UUID(int=2)))
    format_directory(tmp_path / "voter", SystemDisk(), 1, "mine", voters)
    format_directory(tmp_path / "observer", SystemDisk(), 3, "mine", voters)
    voter, observer = a_directory(tmp_path / "voter"), a_directory(tmp_path / "observer", node_id=3)
    for directory in (voter, observer):
        directory.open(founds_cluster=False)
        assert (directory.cluster_id, directory.identity.voters) == ("mine", voters)
        assert directory.last_stop is LastStop.CLEAN
    assert voter.directory_id == UUID(int=1)
    assert observer.directory_id not in (UUID(int=1), UUID(int=2))


@pytest.mark.parametrize(
    ("cluster_id", "nodes"),
    [
        pytest.param("", (1,), id="no cluster id"),
        pytest.param("x" * 65, (1,), id="a long one"),
        pytest.param("mine", (1, 2, 1), id="a voter twice"),
    ],
)
def test_a_directory_is_not_formatted_with_invalid_values(
    tmp_path: Path, cluster_id: str, nodes: tuple[int, ...]
) -> None:
    voters = tuple(Voter(BrokerId(node), uuid4()) for node in nodes)
    with pytest.raises(InvalidConfig):
        format_directory(tmp_path, SystemDisk(), 1, cluster_id, voters)
    assert not (tmp_path / "identity").exists()


@pytest.mark.parametrize("position", range(0, 300, 7))
def test_a_changed_byte_of_the_identity_is_noticed(tmp_path: Path, position: int) -> None:
    directory = an_empty_directory(tmp_path)
    directory.accept(a_proposal(own_voter(directory), Voter(BrokerId(2), uuid4())))
    directory.close()
    data = bytearray((tmp_path / "identity").read_bytes())
    position %= len(data) - 1
    data[position] ^= 1
    (tmp_path / "identity").write_bytes(data)
    with pytest.raises((StorageFailed, InvalidConfig)):
        an_empty_directory(tmp_path)


def test_formatting_leaves_the_traces_of_a_crash(tmp_path: Path) -> None:
    crashed = an_empty_directory(tmp_path)
    crashed.close()  # not stopped
    format_directory(tmp_path, SystemDisk(), 1, "mine")
    directory = an_empty_directory(tmp_path)
    assert directory.last_stop is LastStop.KILLED


def test_an_identity_that_cannot_be_written_is_named_and_does_not_count(tmp_path: Path) -> None:
    disk = FaultyDisk()
    directory = DataDirectory(tmp_path, disk, 1)
    directory.open(founds_cluster=False)
    disk.fail(Fault("sync", errno.EIO, suffix="identity.tmp", times=1))
    proposal = a_proposal(own_voter(directory))
    with pytest.raises(StorageFailed, match="identity cannot be written: Input/output error"):
        directory.accept(proposal)
    assert directory.identity.proposal is None
    directory.accept(proposal)
    assert directory.identity.proposal == proposal
