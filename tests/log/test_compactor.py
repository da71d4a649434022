"""Compaction takes effect all at once for readers, and survives a crash at any of its steps."""

import errno
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from alpacamq.log.disk import SystemDisk
from alpacamq.log.partition_log import PartitionLog
from alpacamq.model.errors import StorageFailed
from alpacamq.model.ports import Disk
from alpacamq.model.records import Record, read_records, write_batch

from .crashing_disk import CrashingDisk, PowerLost
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

if TYPE_CHECKING:
    from collections.abc import Callable

COMPACTED: dict[str, Any] = {"cleanup_policy": "compact", "segment_bytes": 1024, "delete_retention_ms": 1000}


def put(log: PartitionLog, key: str, value: bytes | None) -> None:
    append(log, write_batch([Record(0, NOW_MS, key.encode(), value)]))


def fill(log: PartitionLog, rounds: int = 6) -> dict[bytes, bytes]:
    """Write four keys over and over; what they are in the end."""
    for number in range(rounds):
        for key in "abcd":
            put(log, key, f"{key}{number}".encode() * 40)
    flush(log)
    return {key.encode(): f"{key}{rounds - 1}".encode() * 40 for key in "abcd"}


def compact(log: PartitionLog, now_ms: int = NOW_MS) -> bool:
    compaction = log.begin_compaction(now_ms)
    if compaction is None:
        return False
    compaction.run()
    log.end_compaction(compaction)
    return True


def state(log: PartitionLog, disk: Disk | None = None) -> dict[bytes, bytes]:
    """Return the last value of each key, as a reader from the start sees it."""
    known: dict[bytes, bytes] = {}
    for batch in read_batches(log, disk):
        for record in read_records(batch):
            assert record.key is not None
            if record.value is None:
                known.pop(record.key, None)
            else:
                known[record.key] = record.value
    return known


def test_the_last_value_of_every_key_stays_and_offsets_stay_theirs(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **COMPACTED)
    expected = fill(log)
    before = log.size_bytes
    last_offsets = {r.key: r.offset for batch in read_batches(log) for r in read_records(batch)}
    assert compact(log)
    assert log.size_bytes < before
    assert state(log) == expected
    records = [record for batch in read_batches(log) for record in read_records(batch)]
    assert {record.key: record.offset for record in records} == last_offsets
    for offset in range(24):
        part = log.read(offset, 1, 24)
        assert part is not None
        part.release()


def test_records_are_not_compacted_before_the_minimum_lag(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **COMPACTED, min_compaction_lag_ms=5000)
    fill(log)

    assert not compact(log, NOW_MS + 4999)

    assert compact(log, NOW_MS + 5000)


def test_records_are_compacted_after_the_maximum_lag(tmp_path: Path) -> None:
    clock = FakeClock()
    lags = {"max_compaction_lag_ms": 5000, "min_cleanable_dirty_ratio": 1.0}
    log = open_log(tmp_path / "t-0", a_storage(clock=clock), **COMPACTED, **lags)
    fill(log)
    assert compact(log, clock.ms)
    fill(log, rounds=1)

    assert not compact(log, clock.ms)

    clock.ms += 5000
    log.roll_if_due(clock.ms)  # the active segment is not kept from compaction
    flush(log)
    assert compact(log, clock.ms)


def test_a_compacted_log_is_the_same_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **COMPACTED)
    expected = fill(log)
    assert compact(log)
    batches = read_batches(log)
    log.close()
    log = open_log(tmp_path / "t-0", **COMPACTED)
    assert log.recovered.clean
    assert read_batches(log) == batches
    assert state(log) == expected
    assert log.begin_compaction(NOW_MS) is None
    (log.directory / "checkpoint").unlink()
    assert read_batches(open_log(tmp_path / "t-0")) == batches


def test_a_reader_inside_a_segment_being_replaced_is_not_disturbed(tmp_path: Path) -> None:
    storage = a_storage(handles=1)
    log = open_log(tmp_path / "t-0", storage, **COMPACTED)
    fill(log)
    whole = [path.read_bytes() for path in segment_files(log.directory)]
    part = log.read(0, 1 << 20, 24)
    assert part is not None
    assert compact(log)
    assert storage.disk.read(part.handle.descriptor, part.length, part.position) == whole[0]
    part.release()


def test_compaction_waits_until_half_of_the_sealed_log_is_dirty(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **COMPACTED)
    assert log.begin_compaction(NOW_MS) is None
    for number in range(30):
        put(log, f"{number}", bytes(200))
    flush(log)
    assert compact(log)
    clean = segment_files(log.directory)[:-1]
    clean_bytes = sum(path.stat().st_size for path in clean)
    assert clean_bytes > 5000
    while True:
        put(log, "a", bytes(200))
        flush(log)
        dirty = segment_files(log.directory)[len(clean) : -1]
        compaction = log.begin_compaction(NOW_MS)
        if sum(path.stat().st_size for path in dirty) >= clean_bytes:
            break
        assert compaction is None
    assert compaction is not None


def test_a_log_that_is_not_compacted_is_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    fill(log)
    assert log.begin_compaction(NOW_MS) is None


def test_unflushed_segments_are_not_compacted(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **COMPACTED)
    for number in range(40):
        put(log, "a", f"{number}".encode() * 40)
    assert log.begin_compaction(NOW_MS) is None
    flush(log)
    assert log.begin_compaction(NOW_MS) is not None


def test_one_compaction_at_a_time(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **COMPACTED)
    fill(log)
    first = log.begin_compaction(NOW_MS)
    assert first is not None
    assert log.begin_compaction(NOW_MS) is None
    first.run()
    log.end_compaction(first)


def test_a_tombstone_goes_when_its_time_has_come(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **COMPACTED)
    fill(log, rounds=2)
    put(log, "a", None)
    for number in range(10):
        put(log, "b", f"{number}".encode() * 200)
    flush(log)
    assert compact(log)
    keys = [record.key for batch in read_batches(log) for record in read_records(batch)]
    assert b"a" in keys
    assert not compact(log, NOW_MS + 999)
    assert compact(log, NOW_MS + 1000)
    keys = [record.key for batch in read_batches(log) for record in read_records(batch)]
    assert b"a" not in keys


def test_segments_that_retention_took_meanwhile_stay_gone(tmp_path: Path) -> None:
    log = open_log(
        tmp_path / "t-0", cleanup_policy="compact,delete", segment_bytes=1024, retention_bytes=3000
    )
    expected = fill(log, rounds=12)
    compaction = log.begin_compaction(NOW_MS)
    assert compaction is not None
    compaction.run()
    removal = log.begin_retention(NOW_MS)
    assert removal is not None
    removal.run()
    start = log.start_offset
    log.end_compaction(compaction)
    assert log.start_offset == start
    assert list(log.directory.glob("*.swap")) == []
    assert expected.items() >= state(log).items()
    assert read_batches(open_log(tmp_path / "t-0")) == read_batches(log)


@pytest.mark.parametrize(
    ("method", "suffix"),
    [
        ("write", ".cleaned"),
        ("sync", ".cleaned"),
        ("read", ".log"),
        ("rename", ".cleaned"),
        ("create", ".cleaned"),
    ],
)
def test_a_compaction_that_fails_leaves_the_log_as_it_was(tmp_path: Path, method: str, suffix: str) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk), **COMPACTED)
    expected = fill(log)
    compaction = log.begin_compaction(NOW_MS)
    assert compaction is not None
    disk.fail(Fault(method, errno.ENOSPC, suffix=suffix, times=1, after=1 if method == "read" else 0))
    with pytest.raises(OSError, match="No space left"):
        compaction.run()
    assert list(log.directory.glob("*.cleaned")) == list(log.directory.glob("*.swap")) == []
    assert state(log) == expected
    assert compact(log)
    assert state(log) == expected


def test_a_swap_that_fails_leaves_the_rest_as_it_was(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk), **COMPACTED)
    expected = fill(log, rounds=30)
    compaction = log.begin_compaction(NOW_MS)
    assert compaction is not None
    compaction.run()
    disk.fail(Fault("rename", errno.EIO, suffix=".swap", times=1))
    with pytest.raises(StorageFailed, match="t-0: compaction failed: Input/output error"):
        log.end_compaction(compaction)
    assert list(log.directory.glob("*.swap")) == []
    assert state(log) == expected
    assert compact(log)
    assert state(log) == expected
    assert state(open_log(tmp_path / "t-0")) == expected


@pytest.mark.parametrize("seed", range(150))
def test_a_crash_in_the_middle_of_compaction_brings_nothing_back(seed: int) -> None:
    """Deleted keys stay deleted, others keep their last value, over several lives."""
    random = Random(seed)
    disk = CrashingDisk()
    disk.make_directory(Path("/data"))
    disk.sync_directory(Path("/"))
    clock = FakeClock()
    expected: dict[bytes, bytes] = {}
    for life in range(6):
        log = PartitionLog.open(Path("/data/t-0"), a_config(**COMPACTED), a_storage(disk, clock))
        assert log.damage is None, log.recovered
        assert state(log, disk) == expected, log.recovered
        for _ in range(30):
            key = random.choice("abcdef")
            value = None if random.random() < 0.3 else f"{key}{life}".encode() * random.randint(1, 60)
            put(log, key, value)
            expected.pop(key.encode(), None)
            if value is not None:
                expected[key.encode()] = value
        flush(log)
        disk.fuse = random.randint(0, 60)
        try:
            for _ in range(3):
                clock.ms += 700
                compact(log, clock.ms)
                flush(log)
                assert state(log, disk) == expected
        except PowerLost:
            pass
        disk.crash(random)


def test_an_interrupted_swap_is_completed_at_start(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **COMPACTED)
    expected = fill(log)
    compaction = log.begin_compaction(NOW_MS)
    assert compaction is not None
    compaction.run()
    swaps = sorted(path.name for path in log.directory.glob("*.swap"))
    assert swaps
    log = open_log(tmp_path / "t-0", **COMPACTED)
    assert any("is in place now: a compaction was interrupted" in note for note in log.recovered.notes)
    assert list(log.directory.glob("*.swap")) == []
    assert state(log) == expected
    assert log.size_bytes < 24 * len(a_batch(size=80))


def test_a_damaged_swap_is_dropped_while_its_sources_exist(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **COMPACTED)
    expected = fill(log)
    compaction = log.begin_compaction(NOW_MS)
    assert compaction is not None
    compaction.run()
    for path in log.directory.glob("*.swap"):
        path.write_bytes(path.read_bytes()[:-3])
    log = open_log(tmp_path / "t-0", **COMPACTED)
    assert any("its source segments still exist" in note for note in log.recovered.notes)
    assert state(log) == expected


class OvertakingDisk(SystemDisk):
    """Lets something happen just before an index is read."""

    def __init__(self) -> None:
        super().__init__()
        self.overtake: Callable[[], None] | None = None

    def open(self, path: Path, *, create: bool = False) -> int:
        if path.suffix == ".index" and (overtake := self.overtake) is not None:
            self.overtake = None
            overtake()
        return super().open(path, create=create)


def test_a_search_that_compaction_overtakes_starts_again(tmp_path: Path) -> None:
    """The search holds segments whose files have been replaced when it reads them."""
    log = open_log(tmp_path / "t-0", **COMPACTED)
    for number in range(60):
        append(log, a_batch([bytes(100)], timestamp=number, key=b"%d" % (number % 5)))
    log.close()
    disk = OvertakingDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk, handles=1, index_bytes=0), **COMPACTED)
    compaction = log.begin_compaction(NOW_MS)
    assert compaction is not None
    compaction.run()
    disk.overtake = partial(log.end_compaction, compaction)
    found = log.offset_for_timestamp(20, 60)
    assert disk.overtake is None
    assert found is not None
    assert found == log.offset_for_timestamp(20, 60)
    assert found.timestamp_ms > 20, "what was at 20 is compacted away"
    assert log.damage is None


def test_a_clock_that_was_set_back_does_not_stop_compaction(tmp_path: Path) -> None:
    clock = FakeClock()
    directory = tmp_path / "t-0"
    directory.mkdir()
    log = PartitionLog.open(directory, a_config(**COMPACTED), a_storage(clock=clock))
    for _ in range(8):
        append(log, write_batch([Record(0, clock.ms, b"k", b"v" * 200)]))
    flush(log)
    log.roll()
    flush(log)
    assert log.begin_compaction(clock.ms - 3_600_000, force=True) is not None
