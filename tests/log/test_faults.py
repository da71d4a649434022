"""Disk errors: clear exceptions, no partial state, and writes continue where that is safe."""

import errno
from pathlib import Path

import pytest

from alpacamq.model.errors import AlpacaError, DataInDoubt, DiskFull, StorageFailed

from .faulty_disk import Fault, FaultyDisk
from .logs import FakeClock, a_batch, a_storage, append, flush, open_log, read_batches, read_values


def test_a_full_disk_fails_writes_with_a_reason_and_serves_reads(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "orders-3", a_storage(disk))
    append(log, a_batch([b"before"]))
    disk.fail(Fault("write", errno.ENOSPC))
    for _ in range(3):
        with pytest.raises(DiskFull, match="orders-3: writing failed: No space left on device"):
            append(log, a_batch([b"refused"]))
    assert (log.end_offset, log.size_bytes) == (1, len(a_batch([b"before"])))
    assert read_values(log) == [b"before"]
    disk.faults.clear()
    append(log, a_batch([b"after"]))
    assert read_values(log) == [b"before", b"after"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.EBADF])
def test_other_refusals_are_storage_failures_and_pass_by_themselves(tmp_path: Path, number: int) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    append(log, a_batch([b"before"]))
    disk.fail(Fault("write", number, times=1))
    with pytest.raises(StorageFailed) as refusal:
        append(log, a_batch([b"refused"]))
    assert not isinstance(refusal.value, DiskFull)
    append(log, a_batch([b"after"]))
    assert read_values(log) == [b"before", b"after"]


@pytest.mark.parametrize("partial_bytes", [1, 50, 100])
@pytest.mark.parametrize("truncates", [True, False])
def test_half_a_write_leaves_no_trace(tmp_path: Path, partial_bytes: int, *, truncates: bool) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk), segment_bytes=1024)
    append(log, a_batch([b"before"]))
    disk.fail(Fault("write", errno.ENOSPC, times=1, partial_bytes=partial_bytes))
    if not truncates:
        disk.fail(Fault("truncate", errno.EIO, times=1))
    with pytest.raises(DiskFull):
        append(log, a_batch([b"refused" * 100]))
    append(log, a_batch([b"a"]))
    append(log, a_batch([b"b" * 900]))
    assert read_values(log) == [b"before", b"a", b"b" * 900]
    reopened = open_log(tmp_path / "t-0")
    assert reopened.recovered.cut_bytes == 0
    assert read_values(reopened) == [b"before", b"a", b"b" * 900]


def test_the_nth_write_may_fail_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    for nth in range(12):
        disk = FaultyDisk()
        storage = a_storage(disk, checkpoint_bytes=500)
        log = open_log(tmp_path / f"t-{nth}", storage, segment_bytes=1024)
        disk.fail(Fault("write", errno.ENOSPC, after=nth, times=3, partial_bytes=7))
        acknowledged = []
        for number in range(30):
            try:
                append(log, a_batch([f"{number} ".encode() * 40]))
                acknowledged.append(f"{number} ".encode() * 40)
                flush(log)
            except DiskFull:
                continue
        assert len(acknowledged) >= 27
        assert read_values(log) == acknowledged
        assert read_values(open_log(tmp_path / f"t-{nth}")) == acknowledged


def test_a_refused_batch_of_an_idempotent_producer_is_no_duplicate_later(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    append(log, a_batch(producer=(1, 0, 0)))
    disk.fail(Fault("write", errno.ENOSPC, times=1))
    with pytest.raises(DiskFull):
        append(log, a_batch(producer=(1, 0, 1)), a_batch(producer=(2, 0, 0)), a_batch(producer=(1, 0, 2)))
    assert append(log, a_batch(producer=(1, 0, 1)), a_batch(producer=(2, 0, 0))) == [
        (1, 2, False),
        (2, 3, False),
    ]


def test_batches_before_a_segment_that_cannot_be_begun_are_kept(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk), segment_bytes=1024)
    append(log, a_batch(size=300))
    disk.fail(Fault("create", errno.ENOSPC, suffix=".log", times=1))
    results = append(log, a_batch(size=300), a_batch(size=300), a_batch(size=300))
    assert results[0] == (1, 2, False)
    assert all(isinstance(result, DiskFull) for result in results[1:])
    assert append(log, a_batch(size=300)) == [(2, 3, False)]
    assert len(read_batches(log)) == 3
    assert len(read_batches(open_log(tmp_path / "t-0"))) == 3


def test_an_epoch_that_cannot_be_recorded_writes_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    append(log, a_batch(), epoch=0)
    disk.fail(Fault("write", errno.ENOSPC, suffix="leader-epochs.tmp", times=1))
    with pytest.raises(DiskFull, match="t-0: recording a leader epoch failed"):
        append(log, a_batch(), epoch=1)
    assert (log.end_offset, log.epochs.latest) == (1, 0)
    append(log, a_batch(), epoch=1)
    assert log.epochs.entries == ((0, 0), (1, 1))


def test_a_failed_flush_is_data_in_doubt_for_good(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    append(log, a_batch())
    flush(log)
    append(log, a_batch())
    disk.fail(Fault("sync", errno.EIO, times=1))
    under_way = log.begin_flush()
    assert under_way is not None
    with pytest.raises(OSError, match="Input/output error") as failure:
        under_way.run()
    log.end_flush(under_way, failure.value)
    assert log.in_doubt is not None
    assert "t-0: a flush failed (Input/output error)" in log.in_doubt
    assert log.flushed_offset == 1
    assert isinstance(log.fsync_error(), DataInDoubt)
    for _ in range(2):
        with pytest.raises(DataInDoubt, match="no writes until restart"):
            append(log, a_batch())
    assert log.begin_flush() is None
    assert log.begin_retention(0) is None
    assert len(read_batches(log)) == 2
    disk.calls.clear()
    log.close()
    assert "sync" not in disk.calls
    assert len(read_batches(open_log(tmp_path / "t-0"))) == 2


def test_a_log_in_doubt_is_sound_again_once_it_was_emptied(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    append(log, a_batch())
    flush(log)
    append(log, a_batch())
    disk.fail(Fault("sync", errno.EIO, times=1))
    under_way = log.begin_flush()
    assert under_way is not None
    with pytest.raises(OSError, match="Input/output error") as failure:
        under_way.run()
    log.end_flush(under_way, failure.value)
    assert log.has_lost_data
    assert log.is_restartable
    log.restart_at(5)
    assert (log.in_doubt, log.has_lost_data, log.start_offset, log.end_offset) == (None, False, 5, 5)
    append(log, a_batch())
    flush(log)
    assert log.flushed_offset == 6
    log.close()
    assert not log.is_restartable
    again = open_log(tmp_path / "t-0")
    assert (again.start_offset, again.end_offset, again.has_lost_data) == (5, 6, False)


def test_a_new_name_that_cannot_be_synced_is_data_in_doubt(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    log.start_epoch(0)
    append(log, a_batch())
    disk.fail(Fault("sync_directory", errno.EIO, times=1))
    under_way = log.begin_flush()
    assert under_way is not None
    with pytest.raises(OSError, match="Input/output error"):
        under_way.run()


@pytest.mark.parametrize(
    ("method", "suffix"),
    [
        ("write", "checkpoint.tmp"),
        ("sync", "checkpoint.tmp"),
        ("rename", "checkpoint.tmp"),
        ("write", ".producers.tmp"),
        ("write", ".index"),
        ("write", ".timeindex"),
        ("write", ".indexcrc"),
        ("sync", ".index"),
        ("create", ".index"),
    ],
)
def test_a_checkpoint_that_cannot_be_written_is_no_failed_flush(
    tmp_path: Path, method: str, suffix: str
) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk, checkpoint_bytes=1), segment_bytes=1024)
    disk.fail(Fault(method, errno.ENOSPC, suffix=suffix))
    for sequence in range(5):
        append(log, a_batch(size=300, producer=(1, 0, sequence)))
        flush(log)
        assert log.flushed_offset == log.end_offset
    assert log.in_doubt is None
    disk.faults.clear()
    append(log, a_batch(size=300, producer=(1, 0, 5)))
    flush(log)
    reopened = open_log(tmp_path / "t-0")
    assert reopened.recovered.scanned_bytes == 0
    assert len(read_batches(reopened)) == 6
    assert append(reopened, a_batch(size=300, producer=(1, 0, 5))) == [(5, 6, True)]


def test_an_error_on_reading_refuses_that_read(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    append(log, *(a_batch() for _ in range(50)))
    log.close()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    disk.fail(Fault("read", errno.EIO, times=1))
    with pytest.raises(StorageFailed, match="t-0: reading failed: Input/output error"):
        log.read(5, 100, 50)
    part = log.read(5, 1 << 20, 50)
    assert part is not None
    disk.fail(Fault("read", errno.EIO, times=1))
    with pytest.raises(StorageFailed, match="t-0: reading failed"):
        log.verify(part)
    part.release()
    disk.fail(Fault("read", errno.EIO, times=1))
    with pytest.raises(StorageFailed, match="t-0: reading failed"):
        log.offset_for_timestamp(0, 50)
    assert log.damage is None
    assert len(read_batches(log, disk)) == 50


def test_a_log_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch())
    disk = FaultyDisk()
    disk.fail(Fault("read", errno.EIO, suffix=".log"))
    with pytest.raises(StorageFailed, match="t-0: opening failed: Input/output error"):
        open_log(tmp_path / "t-0", a_storage(disk))
    with pytest.raises(StorageFailed, match="opening failed: No such file or directory"):
        open_log(tmp_path / "missing" / "t-0")


def test_recovery_on_a_full_disk_opens_the_log_for_reading(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch([b"kept"]))
    disk = FaultyDisk()
    disk.fail(Fault("write", errno.ENOSPC))
    log = open_log(tmp_path / "t-0", a_storage(disk))
    assert read_values(log) == [b"kept"]
    with pytest.raises(DiskFull):
        append(log, a_batch())
    disk.faults.clear()
    append(log, a_batch([b"more"]))
    flush(log)
    assert read_values(log) == [b"kept", b"more"]


def test_a_failed_close_raises_and_the_next_start_scans(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    append(log, a_batch([b"kept"]))
    disk.fail(Fault("sync", errno.EIO, suffix=".log"))
    with pytest.raises(StorageFailed, match="t-0: closing failed"):
        log.close()
    log = open_log(tmp_path / "t-0")
    assert not log.recovered.clean
    assert read_values(log) == [b"kept"]


def test_a_roll_that_fails_is_tried_again(tmp_path: Path) -> None:
    disk = FaultyDisk()
    clock = FakeClock()
    log = open_log(tmp_path / "t-0", a_storage(disk, clock), segment_ms=1000)
    append(log, a_batch())
    clock.ms += 1000
    disk.fail(Fault("create", errno.ENOSPC, suffix=".log", times=2))
    with pytest.raises(DiskFull, match="t-0: beginning a segment failed"):
        log.roll_if_due(clock.ms)
    with pytest.raises(AlpacaError):
        append(log, a_batch())
    append(log, a_batch())
    assert len(list(log.directory.glob("*.log"))) == 2
    assert len(read_batches(log)) == 2


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_directory_that_cannot_be_opened_is_not_a_failed_fsync(tmp_path: Path, number: int) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    append(log, a_batch([b"a"]))
    disk.fail(Fault("sync_directory", number))
    for _ in range(3):
        begun = log.begin_flush()
        assert begun is not None
        with pytest.raises(OSError, match="Too many open files") as refusal:
            begun.run()
        log.end_flush(begun, refusal.value)
        assert log.in_doubt is None
        assert log.flushed_offset == 0
        append(log, a_batch([b"b"]))
    disk.faults.clear()
    disk.calls.clear()
    flush(log)
    assert "sync_directory" in disk.calls
    assert log.flushed_offset == 4
    assert log.begin_flush() is None


def test_a_failed_fsync_of_the_directory_stays_one(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    append(log, a_batch([b"a"]))
    disk.fail(Fault("sync_directory", errno.EIO))
    begun = log.begin_flush()
    assert begun is not None
    with pytest.raises(OSError, match="Input/output error") as refusal:
        begun.run()
    log.end_flush(begun, refusal.value)
    with pytest.raises(DataInDoubt):
        append(log, a_batch([b"b"]))
