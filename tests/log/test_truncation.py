"""Truncating takes back batches, and with them epochs, producers and everything derived.

A crash during a truncation leaves a prefix of the log that contains what was to stay. A crash during
a restart leaves the whole log or an empty one.
"""

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from alpacamq.log.compactor import Compaction
from alpacamq.log.partition_log import PartitionLog
from alpacamq.model.errors import DiskFull, OffsetOutOfRange, StorageFailed
from alpacamq.model.records import Record, write_batch

from .crashing_disk import CrashingDisk, PowerLost
from .faulty_disk import Fault, FaultyDisk
from .logs import NOW_MS, a_batch, a_config, a_storage, append, flush, open_log, read_batches, segment_files

DIRECTORY = Path("/data/t-0")
MAX_STEPS = 200


@pytest.mark.parametrize("reopen", [True, False])
@pytest.mark.parametrize("offset", range(0, 31, 3))
def test_a_truncated_log_equals_its_earlier_state(tmp_path: Path, offset: int, *, reopen: bool) -> None:
    storage = a_storage(checkpoint_bytes=1500)
    log = open_log(tmp_path / "t-0", storage, segment_bytes=1024)
    for number in range(10):
        append(log, a_batch(3, size=100, timestamp=number, producer=(1, 0, 3 * number)), epoch=number // 4)
        if number % 3 == 0:
            flush(log)
    batches = read_batches(log)
    log.truncate_to(offset)
    if reopen:
        log.close()
        log = open_log(tmp_path / "t-0", segment_bytes=1024)
        assert log.recovered.clean
    assert log.end_offset == offset
    assert read_batches(log) == batches[: offset // 3]
    assert log.epochs.entries == tuple(entry for entry in ((0, 0), (1, 12), (2, 24)) if entry[1] < offset)
    latest = log.max_timestamp(offset)
    assert (latest and latest.timestamp_ms) == (offset // 3 + 1 if offset else None)
    if offset:
        repeated = a_batch(3, size=100, producer=(1, 0, offset - 3))
        assert append(log, repeated, epoch=9) == [(offset - 3, offset, True)]
    again = a_batch(3, size=100, producer=(1, 0, offset))
    assert append(log, again, epoch=9) == [(offset, offset + 3, False)]
    assert len(read_batches(log)) == offset // 3 + 1


def test_truncating_inside_a_batch_drops_the_whole_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(5), a_batch(5))
    log.truncate_to(7)
    assert log.end_offset == 5


def test_truncating_behind_the_end_does_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    append(log, a_batch(5))
    disk.calls.clear()
    log.truncate_to(5)
    log.truncate_to(9)
    assert disk.calls == []
    assert log.end_offset == 5


def test_truncating_before_the_start_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(), a_batch(), a_batch())
    log.begin_delete_before(2).run()
    with pytest.raises(OffsetOutOfRange):
        log.truncate_to(1)


def test_truncated_segments_leave_no_files(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", a_storage(checkpoint_bytes=1), segment_bytes=1024)
    for _ in range(12):
        append(log, a_batch(size=300, producer=(1, 0, log.end_offset)))
        flush(log)
    log.truncate_to(3)
    assert [int(path.stem) for path in segment_files(log.directory)] == [0, 2]
    assert max(int(path.stem) for path in log.directory.iterdir() if path.suffix) <= 3


def test_truncation_keeps_track_of_verified_bytes(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, *(a_batch() for _ in range(6)))
    log.close()
    log = open_log(tmp_path / "t-0")
    log.truncate_to(4)
    part = log.read(1, 1000, 4)
    assert part is not None
    assert not part.verified
    log.verify(part)
    part.release()
    append(log, a_batch())
    assert len(read_batches(log)) == 5


def test_truncating_at_the_end_drops_an_epoch_without_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(5), epoch=3)
    log.start_epoch(7)
    assert list(log.epochs.entries) == [(3, 0), (7, 5)]
    log.truncate_to(5)
    assert list(log.epochs.entries) == [(3, 0)]
    assert log.end_offset == 5
    append(log, a_batch(), epoch=4)
    log.close()
    assert open_log(tmp_path / "t-0").epochs.entries == ((3, 0), (4, 5))


def test_a_log_cannot_be_truncated_during_a_flush(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(5), a_batch(5))
    flush = log.begin_flush()
    assert flush is not None
    assert log.is_flushing
    for truncate in (log.truncate_to, log.restart_at):
        with pytest.raises(AssertionError):
            truncate(5)
    flush.run()
    log.end_flush(flush, None)
    assert log.flushed_offset == 10
    log.truncate_to(5)
    assert log.end_offset == log.flushed_offset == 5


def a_compactable_log(directory: Path) -> PartitionLog:
    log = open_log(directory, cleanup_policy="compact", segment_bytes=1024)
    for number in range(20):
        append(log, write_batch([Record(0, NOW_MS, b"key", b"%3d" % number * 100)]))
    flush(log)
    return log


@pytest.mark.parametrize("is_run", [True, False])
@pytest.mark.parametrize(
    "truncate",
    [
        pytest.param(lambda log: log.truncate_to(3), id="truncate"),
        pytest.param(lambda log: log.restart_at(3), id="restart"),
    ],
)
def test_a_compaction_does_not_bring_truncated_records_back(
    tmp_path: Path, truncate: Callable[[PartitionLog], None], *, is_run: bool
) -> None:
    log = a_compactable_log(tmp_path / "t-0")
    compaction = log.begin_compaction(NOW_MS)
    assert compaction is not None
    if is_run:
        compaction.run()
    truncate(log)
    before = read_batches(log)
    if is_run:
        log.end_compaction(compaction)
    else:
        with pytest.raises(StorageFailed, match="cancelled"):
            compaction.run()
    assert list(log.directory.glob("*.swap")) == []
    assert (log.end_offset, read_batches(log)) == (3, before)
    log = open_log(tmp_path / "t-0")
    assert (log.end_offset, read_batches(log)) == (3, before)


def test_a_truncation_waits_until_a_running_compaction_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_compactable_log(tmp_path / "t-0")
    compaction = log.begin_compaction(NOW_MS)
    assert compaction is not None
    is_reading, is_cancelled = threading.Event(), threading.Event()
    cancel, pace = Compaction.cancel, Compaction._pace

    def noted_cancel(self: Compaction) -> None:
        cancel(self)
        is_cancelled.set()

    def waiting_pace(self: Compaction, size: int) -> None:
        if size:
            is_reading.set()
            is_cancelled.wait(30)
        pace(self, size)

    monkeypatch.setattr(Compaction, "cancel", noted_cancel)
    monkeypatch.setattr(Compaction, "_pace", waiting_pace)
    with ThreadPoolExecutor() as executor:
        running = executor.submit(compaction.run)
        assert is_reading.wait(30)
        log.truncate_to(3)
        assert not compaction.is_running
        with pytest.raises(StorageFailed, match="cancelled"):
            running.result(30)
    assert {path.suffix for path in log.directory.iterdir()} & {".swap", ".cleaned"} == set()
    assert (log.end_offset, len(read_batches(log))) == (3, 3)
    assert log.begin_compaction(NOW_MS, force=True) is not None


def test_the_log_is_not_written_after_a_truncation_failed_half_way(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk), segment_bytes=1024)
    for _ in range(12):
        append(log, a_batch(size=300))
    flush(log)
    disk.fail(Fault("remove", errno.EIO, after=1, suffix=".log"))
    with pytest.raises(StorageFailed):
        log.truncate_to(1)
    with pytest.raises(StorageFailed, match="until restart"):
        append(log, a_batch())
    disk.faults.clear()
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    assert 1 < log.end_offset < 12
    assert not log.has_lost_data
    assert len(read_batches(log)) == log.end_offset


@pytest.mark.parametrize(
    "truncate",
    [
        pytest.param(lambda log: log.truncate_to(5), id="truncate"),
        pytest.param(lambda log: log.restart_at(2), id="restart"),
    ],
)
def test_a_full_disk_leaves_the_log_as_it_is(
    tmp_path: Path, truncate: Callable[[PartitionLog], None]
) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    append(log, a_batch(5), a_batch(5))
    flush(log)
    disk.fail(Fault("write", errno.ENOSPC))
    with pytest.raises(DiskFull):
        truncate(log)
    disk.faults.clear()
    append(log, a_batch(5))
    assert (log.end_offset, len(read_batches(log))) == (15, 3)


@pytest.mark.parametrize("offset", [0, 3, 12, 500])
def test_a_restarted_log_is_empty_at_its_offset(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path / "t-0", a_storage(checkpoint_bytes=1), segment_bytes=1024)
    for number in range(10):
        append(log, a_batch(3, size=100, producer=(1, 0, 3 * number)), epoch=number // 4)
        flush(log)
    log.remember_high_watermark(30)
    log.restart_at(offset)
    for reopened in (False, True):
        if reopened:
            log.close()
            log = open_log(tmp_path / "t-0", segment_bytes=1024)
            assert log.recovered.clean
            assert log.recovered.notes == ()
        assert (log.start_offset, log.flushed_offset, log.end_offset) == (offset, offset, offset)
        assert (log.size_bytes, len(log.producers), log.epochs.entries) == (0, 0, ())
        assert log.high_watermark_hint == -1
        assert [int(path.stem) for path in segment_files(log.directory)] == [offset]
    append(log, a_batch(3, producer=(1, 0, 0)), epoch=2)
    flush(log)
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    assert (log.start_offset, log.end_offset) == (offset, offset + 3)
    assert log.epochs.entries == ((2, offset),)


def a_log_on(disk: CrashingDisk) -> PartitionLog:
    """A log of ten batches of three records in four segments and three epochs, the last two unflushed."""
    disk.make_directory(Path("/data"))
    disk.sync_directory(Path("/"))
    log = reopened(disk)
    for number in range(10):
        append(log, a_batch(3, size=100, producer=(1, 0, 3 * number)), epoch=number // 4)
        if number in (2, 5, 7):
            flush(log)
    return log


def reopened(disk: CrashingDisk) -> PartitionLog:
    return PartitionLog.open(DIRECTORY, a_config(segment_bytes=1024), a_storage(disk, checkpoint_bytes=1500))


def crashes(change: Callable[[PartitionLog], None], seed: int) -> list[tuple[CrashingDisk, list[bytes]]]:
    """Lose power at every step of a change; return the disks and what the log was before."""
    found = []
    for fuse in range(MAX_STEPS):
        disk = CrashingDisk()
        log = a_log_on(disk)
        batches = read_batches(log, disk)
        disk.fuse = fuse
        try:
            change(log)
        except PowerLost:
            disk.crash(Random(f"{seed} {fuse}"))
            found.append((disk, batches))
        else:
            return found
    raise AssertionError("the change never ended")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("offset", [0, 4, 12, 21, 26])
def test_a_crash_at_any_step_of_a_truncation_leaves_a_sound_prefix(offset: int, seed: int) -> None:
    for disk, batches in crashes(lambda log: log.truncate_to(offset), seed):
        log = reopened(disk)
        kept = min(offset, 24) // 3
        stored = read_batches(log, disk)
        assert stored == batches[: len(stored)]
        assert len(stored) >= kept
        assert not log.has_lost_data, log.loss
        # The follower truncates again, and continues with what its leader has.
        log.truncate_to(min(offset, log.end_offset))
        assert read_batches(log, disk) == batches[: len(read_batches(log, disk))]
        assert all(entry.start_offset < log.end_offset for entry in log.epochs.entries)
        end = log.end_offset
        assert append(log, a_batch(3, producer=(1, 0, end)), epoch=9) == [(end, end + 3, False)]
        flush(log)
        disk.crash(Random(seed))
        assert reopened(disk).end_offset == end + 3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("offset", [0, 12, 100])
def test_a_crash_at_any_step_of_a_restart_leaves_the_old_log_or_the_new(offset: int, seed: int) -> None:
    outcomes = set()
    for disk, batches in crashes(lambda log: log.restart_at(offset), seed):
        for _ in range(3):  # and again during recovery
            disk.fuse = Random(seed).randint(0, 15)
            try:
                reopened(disk)
            except PowerLost:
                disk.crash(Random(seed))
        disk.fuse = None
        log = reopened(disk)
        assert not log.has_lost_data, log.loss
        stored = read_batches(log, disk)
        outcomes.add(bool(stored))
        if stored:
            assert log.start_offset == 0
            assert stored == batches[: len(stored)]
            assert len(stored) >= 8
        else:
            assert (log.start_offset, log.end_offset, log.epochs.entries) == (offset, offset, ())
            assert len(log.producers) == 0
        end = log.end_offset
        append(log, a_batch(3), epoch=9)
        flush(log)
        disk.crash(Random(seed))
        assert reopened(disk).end_offset == end + 3
    assert outcomes == {True, False}
