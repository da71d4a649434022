"""Many logs recovered, flushed and closed together: few syncs, and no power cut at any of them loses data."""

import errno
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from random import Random

import pytest

from alpacamq.log.flush import SYNCFS_THRESHOLD
from alpacamq.log.partition_log import PartitionLog, close_logs, sync_recovered_logs
from alpacamq.log.storage import Storage
from alpacamq.model.errors import StorageFailed

from .crashing_disk import CrashingDisk, PowerLost
from .faulty_disk import Fault, FaultyDisk
from .logs import FakeClock, a_batch, a_config, a_storage, append, flush, open_log, read_batches
from .test_handles import CountingDisk

ROOT = Path("/data")
COUNT = SYNCFS_THRESHOLD + 4
CONFIG = a_config(segment_bytes=2000)


def recover(root: Path, storage: Storage, count: int = COUNT) -> list[PartitionLog]:
    """Open logs the way a broker that starts does it."""
    logs = [PartitionLog.recover(root / f"t-{number}", CONFIG, storage) for number in range(count)]
    sync_recovered_logs(storage.disk, root, logs)
    return logs


def appended(log: PartitionLog, count: int, *, first: int = 0, epoch: int = 0) -> None:
    for sequence in range(first, first + count):
        append(log, a_batch(size=300, producer=(1, 0, sequence)), epoch=epoch)


def a_machine(*, syncs_as_a_whole: bool) -> CrashingDisk:
    disk = CrashingDisk()
    disk.syncs_as_a_whole = syncs_as_a_whole
    disk.make_directory(ROOT)
    disk.sync_directory(Path("/"))
    return disk


def lived(disk: CrashingDisk) -> list[int]:
    """Logs of all kinds, abandoned as a kill does; how many batches of each were flushed."""
    storage = a_storage(disk, checkpoint_bytes=1500)
    flushed: list[int] = []
    for number, log in enumerate(recover(ROOT, storage)):
        appended(log, number % 4)
        if number % 3:
            flush(log)
        flushed.append(log.flushed_offset)
        appended(log, number % 5, first=number % 4, epoch=number % 2)
    return flushed


def assert_intact(disk: CrashingDisk, at_least: Sequence[int]) -> list[PartitionLog]:
    logs = recover(ROOT, a_storage(disk))
    for log, durable in zip(logs, at_least, strict=True):
        assert log.damage is None
        assert log.end_offset >= durable
        assert log.flushed_offset == log.end_offset
        assert len(read_batches(log, disk)) == log.end_offset
    return logs


@pytest.mark.parametrize("syncs_as_a_whole", [True, False])
def test_power_lost_at_any_step_of_recovery_loses_nothing_flushed(*, syncs_as_a_whole: bool) -> None:
    before = a_machine(syncs_as_a_whole=syncs_as_a_whole)
    flushed = lived(before)
    for was_cut in (False, True):  # after a kill, and after a power cut
        for fuse in range(400):
            disk = deepcopy(before)
            if was_cut:
                disk.crash(Random(fuse))
            disk.fuse = fuse
            try:
                recover(ROOT, a_storage(disk))
            except PowerLost:
                disk.crash(Random(fuse))
                assert_intact(disk, flushed)
            else:
                break
        else:
            raise AssertionError("recovery takes more than 400 steps")


@pytest.mark.parametrize("syncs_as_a_whole", [True, False])
def test_recovered_batches_survive_the_next_power_cut(*, syncs_as_a_whole: bool) -> None:
    for seed in range(20):
        disk = a_machine(syncs_as_a_whole=syncs_as_a_whole)
        lived(disk)
        if seed % 2:
            disk.crash(Random(seed))
        served = [log.end_offset for log in recover(ROOT, a_storage(disk))]
        disk.crash(Random(seed))
        assert [log.end_offset for log in assert_intact(disk, served)] == served


@pytest.mark.parametrize("syncs_as_a_whole", [True, False])
def test_power_lost_at_any_step_of_closing_loses_nothing_flushed(*, syncs_as_a_whole: bool) -> None:
    fuse = 0
    while True:
        disk = a_machine(syncs_as_a_whole=syncs_as_a_whole)
        storage = a_storage(disk, checkpoint_bytes=1500)
        logs = recover(ROOT, storage)
        for number, log in enumerate(logs):
            appended(log, number % 4)
            flush(log)
            appended(log, number % 2, first=number % 4)
        flushed = [log.flushed_offset for log in logs]
        ends = [log.end_offset for log in logs]
        disk.fuse = fuse
        try:
            assert close_logs(disk, ROOT, logs) == []
        except PowerLost:
            disk.crash(Random(fuse))
            assert_intact(disk, flushed)
            fuse += 1
            continue
        disk.crash(Random(fuse))
        again = assert_intact(disk, ends)
        assert all(log.recovered.clean for log in again)
        return


def test_a_new_log_is_found_after_a_power_cut_once_it_was_flushed() -> None:
    """Creation syncs nothing: the first flush of data syncs the names of the files and the directory."""
    for seed in range(20):
        disk = a_machine(syncs_as_a_whole=False)
        log = open_log(ROOT / "t-0", a_storage(disk))
        appended(log, 1)
        if seed % 2:
            log = open_log(ROOT / "t-0", a_storage(disk))  # killed before the first flush
        flush(log)
        disk.crash(Random(seed))
        assert open_log(ROOT / "t-0", a_storage(disk)).end_offset == 1


def test_a_new_epoch_is_found_after_a_power_cut_once_its_batches_were_flushed() -> None:
    for seed in range(20):
        disk = a_machine(syncs_as_a_whole=False)
        log = open_log(ROOT / "t-0", a_storage(disk))
        appended(log, 2)
        appended(log, 2, first=2, epoch=5)
        if seed % 2:
            log = open_log(ROOT / "t-0", a_storage(disk))
        else:
            flush(log)
        disk.crash(Random(seed))
        again = open_log(ROOT / "t-0", a_storage(disk))
        assert again.end_offset == 4
        assert again.epochs.entries == ((0, 0), (5, 2))
        assert again.recovered.notes == ()  # read from their file, not from all the batches


SYNCS = ("sync", "sync_directory", "sync_filesystem")


def syncs(disk: FaultyDisk) -> list[str]:
    return [call for call in disk.calls if call in SYNCS]


def test_many_logs_are_recovered_and_closed_with_few_syncs(tmp_path: Path) -> None:
    disk = FaultyDisk()
    logs = recover(tmp_path, a_storage(disk), 100)
    assert syncs(disk) == []  # new logs need none
    for log in logs:
        append(log, a_batch())
    disk.calls.clear()
    logs = recover(tmp_path, a_storage(disk), 100)  # as after a kill
    assert all(not log.recovered.clean for log in logs)
    shared = 1 if disk.sync_filesystem(tmp_path) else 0
    assert len(syncs(disk)) <= (2 if shared else 500)
    disk.calls.clear()
    assert close_logs(disk, tmp_path, logs) == []
    assert len(syncs(disk)) <= (5 if shared else 500)
    assert all(log.recovered.clean for log in recover(tmp_path, a_storage(disk), 100))


def test_an_error_of_the_file_system_as_a_whole_is_looked_for_file_by_file(tmp_path: Path) -> None:
    disk = FaultyDisk()
    logs = recover(tmp_path, a_storage(disk))
    for log in logs:
        append(log, a_batch())
    disk.fail(Fault("sync_filesystem", errno.EIO))
    assert [log.end_offset for log in recover(tmp_path, a_storage(disk))] == [1] * COUNT
    disk.fail(Fault("sync", errno.EIO, after=3, times=1, suffix=".log"))
    with pytest.raises(StorageFailed, match="opening failed"):
        recover(tmp_path, a_storage(disk))


def test_a_log_that_cannot_be_closed_does_not_keep_others_from_it(tmp_path: Path) -> None:
    disk = FaultyDisk()
    logs = recover(tmp_path, a_storage(disk))
    for log in logs:
        append(log, a_batch())
    disk.fail(Fault("sync_filesystem", errno.EIO))
    disk.fail(Fault("sync", errno.EIO, after=3, times=1, suffix=".log"))
    (failure,) = close_logs(disk, tmp_path, logs)
    assert "t-3: closing failed" in str(failure)
    disk.faults.clear()
    again = recover(tmp_path, a_storage(disk))
    assert [log.recovered.clean for log in again] == [number != 3 for number in range(COUNT)]


def test_hundreds_of_logs_are_settled_and_closed_with_few_open_files(tmp_path: Path) -> None:
    disk = CountingDisk()
    for log in recover(tmp_path, a_storage(disk, handles=8), 300):
        append(log, a_batch())
    disk.most = 0
    logs = recover(tmp_path, a_storage(disk, handles=8), 300)
    assert close_logs(disk, tmp_path, logs) == []
    assert disk.most <= 8 + 2 + 8  # those of the logs that were abandoned count as well


def test_a_kill_does_not_make_the_active_segment_older_than_it_is(tmp_path: Path) -> None:
    clock = FakeClock(2_000_000_000_000)
    storage = a_storage(clock=clock)
    log = open_log(tmp_path / "t-0", storage, segment_ms=60_000_000_000_000)
    append(log, a_batch(timestamp=-1))
    again = open_log(tmp_path / "t-0", storage, segment_ms=500_000_000_000, retention_ms=500_000_000_000)
    again.roll_if_due(clock.now_ms())
    assert again.begin_retention(clock.now_ms()) is None
    append(again, a_batch())
    assert len(list((tmp_path / "t-0").glob("*.log"))) == 1
