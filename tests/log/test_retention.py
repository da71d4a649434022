"""Old segments go by age and by size; readers inside them, and what is young, stay."""

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from alpacamq.log.disk import SystemDisk
from alpacamq.log.partition_log import PartitionLog
from alpacamq.model.errors import OffsetOutOfRange
from alpacamq.model.records import Record, write_batch

from .faulty_disk import Fault, FaultyDisk
from .logs import (
    NOW_MS,
    FakeClock,
    a_batch,
    a_config,
    a_storage,
    append,
    flush,
    open_log,
    read_batches,
    segment_files,
)

SIZE = len(a_batch(size=300))


def aged_log(directory: Path, clock: FakeClock, **settings: Any) -> PartitionLog:
    """Five segments of two batches each, the batches an hour apart; now is the last one's time."""
    log = open_log(directory, a_storage(clock=clock), segment_bytes=1024, **settings)
    for number in range(10):
        append(log, a_batch(size=300, timestamp=clock.ms))
        if number < 9:
            clock.ms += 3_600_000
    assert len(segment_files(directory)) == 5
    return log


def retain(log: PartitionLog, now_ms: int) -> bool:
    removal = log.begin_retention(now_ms)
    if removal is not None:
        removal.run()
    return removal is not None


def test_segments_go_when_their_youngest_record_is_too_old(tmp_path: Path) -> None:
    clock = FakeClock()
    log = aged_log(tmp_path / "t-0", clock, retention_ms=4 * 3_600_000)
    assert retain(log, clock.ms)
    assert log.start_offset == 4
    assert [int(path.stem) for path in segment_files(log.directory)] == [4, 6, 8]
    assert log.size_bytes == 6 * SIZE
    assert not retain(log, clock.ms)
    with pytest.raises(OffsetOutOfRange, match="offset 3 lies outside 4 to 10"):
        log.read(3, 1000, 10)
    assert len(read_batches(log)) == 6


def test_segments_go_when_the_log_is_too_large(tmp_path: Path) -> None:
    clock = FakeClock()
    log = aged_log(tmp_path / "t-0", clock, retention_bytes=5 * SIZE)
    assert retain(log, clock.ms)
    assert log.start_offset == 4
    assert log.size_bytes == 6 * SIZE, "one more would leave less than retention.bytes"


def test_a_log_within_its_limits_is_left_alone(tmp_path: Path) -> None:
    clock = FakeClock()
    log = aged_log(tmp_path / "t-0", clock, retention_bytes=10 * SIZE)
    assert not retain(log, clock.ms)
    log.config = a_config(retention_ms=-1, retention_bytes=-1)
    assert not retain(log, 1 << 60)


def test_the_active_segment_goes_too_once_all_of_it_has_expired(tmp_path: Path) -> None:
    clock = FakeClock()
    log = aged_log(tmp_path / "t-0", clock, retention_ms=1000)
    clock.ms += 1001
    assert retain(log, clock.ms)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (10, 10, 0)
    assert [int(path.stem) for path in segment_files(log.directory)] == [10]
    assert log.read(10, 1000, 10) is None
    append(log, a_batch(timestamp=clock.ms))
    assert len(read_batches(log)) == 1
    assert not retain(log, clock.ms)


def test_a_compacted_topic_loses_nothing_to_age(tmp_path: Path) -> None:
    clock = FakeClock()
    log = aged_log(tmp_path / "t-0", clock, retention_ms=1, cleanup_policy="compact")
    assert not retain(log, 1 << 60)


def test_records_without_a_timestamp_age_by_the_clock(tmp_path: Path) -> None:
    clock = FakeClock()
    log = open_log(tmp_path / "t-0", a_storage(clock=clock), segment_bytes=1024, retention_ms=1000)
    for _ in range(4):
        append(log, write_batch([Record(0, -1, None, bytes(500))], base_timestamp=-1))
        clock.ms += 600
    assert retain(log, clock.ms)
    assert log.start_offset == 3


def test_a_reader_inside_a_deleted_segment_is_not_disturbed(tmp_path: Path) -> None:
    clock = FakeClock()
    log = aged_log(tmp_path / "t-0", clock, retention_ms=1000)
    expected = segment_files(log.directory)[0].read_bytes()
    part = log.read(0, 1 << 20, 10)
    assert part is not None
    clock.ms += 10_000
    assert retain(log, clock.ms)
    assert not part.path.exists()
    assert a_storage().disk.read(part.handle.descriptor, part.length, part.position) == expected
    part.release()


def test_everything_of_a_deleted_segment_goes(tmp_path: Path) -> None:
    clock = FakeClock()
    log = aged_log(tmp_path / "t-0", clock, retention_ms=4 * 3_600_000)
    flush(log)
    retain(log, clock.ms)
    log.close()
    stems = {int(path.stem) for path in log.directory.iterdir() if path.suffix}
    assert min(stems) == 4


def test_a_deletion_that_was_interrupted_is_completed_at_start(tmp_path: Path) -> None:
    clock = FakeClock()
    disk = FaultyDisk()
    log = aged_log(tmp_path / "t-0", clock, retention_ms=2 * 3_600_000)
    log.close()
    log = open_log(tmp_path / "t-0", a_storage(disk, clock), segment_bytes=1024, retention_ms=2 * 3_600_000)
    disk.fail(Fault("remove", errno.EIO, suffix=".log", after=1, times=1))
    removal = log.begin_retention(clock.ms)
    assert removal is not None
    with pytest.raises(OSError, match="Input/output error"):
        removal.run()
    assert log.start_offset == 6
    assert len(segment_files(log.directory)) == 4
    log.close()
    log = open_log(tmp_path / "t-0")
    assert log.recovered.clean
    assert log.start_offset == 6
    assert [int(path.stem) for path in segment_files(log.directory)] == [6, 8]


def test_deleting_records_moves_the_start_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    log = aged_log(tmp_path / "t-0", clock)
    log.begin_delete_before(5).run()
    assert log.start_offset == 5
    with pytest.raises(OffsetOutOfRange):
        log.read(4, 1000, 10)
    assert retain(log, clock.ms)
    assert [int(path.stem) for path in segment_files(log.directory)] == [4, 6, 8]
    assert log.start_offset == 5
    log.begin_delete_before(3).run()
    assert log.start_offset == 5
    with pytest.raises(OffsetOutOfRange, match="offset 11"):
        log.begin_delete_before(11)


def test_retention_forgets_epochs_and_idle_producers(tmp_path: Path) -> None:
    clock = FakeClock()
    log = open_log(tmp_path / "t-0", a_storage(clock=clock), segment_bytes=1024, retention_ms=90_000_000)
    for number in range(10):
        append(log, a_batch(size=600, timestamp=clock.ms, producer=(number, 0, 0)), epoch=number)
        clock.ms += 3 * 3_600_000
    assert retain(log, clock.ms)
    assert log.start_offset > 0
    assert log.epochs.entries[0] == (log.start_offset, log.start_offset)
    assert len(log.producers) == 8
    assert append(log, a_batch(size=600, producer=(9, 0, 0)), epoch=9) == [(9, 10, True)]


def test_retention_does_not_load_an_index_twice(tmp_path: Path) -> None:
    clock = FakeClock(NOW_MS)
    disk = FaultyDisk()
    log = aged_log(tmp_path / "t-0", clock, retention_ms=1 << 50)
    log.close()
    log = open_log(tmp_path / "t-0", a_storage(disk, clock, index_bytes=0), retention_ms=1 << 50)
    assert not retain(log, clock.ms)
    disk.calls.clear()
    assert not retain(log, clock.ms)
    assert disk.calls == []


def test_retention_makes_room_on_a_full_disk(tmp_path: Path) -> None:
    clock = FakeClock()
    aged_log(tmp_path / "t-0", clock).close()
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk, clock), segment_bytes=1024, retention_ms=1000)
    clock.ms += 1001
    disk.fail(Fault("create", errno.ENOSPC, times=2))  # of the new segment, and of the checkpoint
    assert retain(log, clock.ms)
    assert log.start_offset == 8
    assert len(segment_files(log.directory)) == 1
    assert retain(log, clock.ms)
    assert log.start_offset == 10
    log.close()
    assert open_log(tmp_path / "t-0").start_offset == 10


class MeetingDisk(SystemDisk):
    """Lets a second thread do its work while the first is about to remove a producer snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.others: threading.Thread | None = None

    def remove(self, path: Path) -> None:
        if (others := self.others) is not None and path.suffix == ".producers":
            self.others = None
            others.start()
            others.join(0.2)  # it ends, or waits for this thread
        super().remove(path)


def test_retention_and_a_flush_may_remove_the_same_producer_snapshots_at_once(tmp_path: Path) -> None:
    disk, clock = MeetingDisk(), FakeClock()
    log = open_log(tmp_path / "t-0", a_storage(disk, clock), segment_bytes=1024, retention_ms=4 * 3_600_000)
    for sequence in range(10):
        append(log, a_batch(size=300, timestamp=clock.ms, producer=(7, 0, sequence)))
        flush(log)
        clock.ms += 3_600_000
    removal = log.begin_retention(clock.ms)
    assert removal is not None
    append(log, a_batch(size=300, timestamp=clock.ms, producer=(7, 0, 10)))
    checkpoint_write = log.begin_flush()
    assert checkpoint_write is not None
    assert checkpoint_write.checkpoint_write is not None
    disk.others = others = threading.Thread(target=checkpoint_write.run)

    removal.run()

    others.join()
    assert checkpoint_write.checkpoint_error is None
    log.end_flush(checkpoint_write, None)
    kept = {int(path.stem) for path in log.directory.glob("*.producers")}
    assert kept == {int(path.stem) for path in segment_files(log.directory)} | {log.end_offset}
    log.close()
