"""Appended batches are read back: whole, in order, from any offset."""

import random
from pathlib import Path

import pytest

from alpacamq.log.partition_log import Appended, Incoming
from alpacamq.log.reader import MAX_POSITIONS
from alpacamq.model.batch import check_batch, read_header
from alpacamq.model.errors import FencedLeaderEpoch, OffsetOutOfRange, StorageFailed
from alpacamq.model.records import write_batch

from .faulty_disk import FaultyDisk
from .logs import (
    FakeClock,
    a_batch,
    a_config,
    a_storage,
    append,
    flush,
    open_log,
    read_batches,
    read_values,
    segment_files,
)


def test_a_new_log_is_empty_and_clean(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    assert (log.start_offset, log.end_offset, log.flushed_offset, log.size_bytes) == (0, 0, 0, 0)
    assert log.recovered.clean
    assert log.recovered.notes == ()
    assert log.read(0, 1000, 0) is None


def test_batches_get_consecutive_offsets_and_the_leaders_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    assert append(log, a_batch(3), a_batch(1), epoch=4) == [Appended(0, 3, False), Appended(3, 4, False)]
    assert append(log, a_batch(2), epoch=4) == [Appended(4, 6, False)]
    headers = [read_header(batch) for batch in read_batches(log)]
    assert [(header.base_offset, header.leader_epoch) for header in headers] == [(0, 4), (3, 4), (4, 4)]
    assert log.unflushed_records == 6


def test_appended_batches_are_read_back(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=2048)
    sent = [f"value {number}".encode() for number in range(500)]
    for start in range(0, 500, 5):
        append(log, a_batch(sent[start : start + 5]))
    assert len(segment_files(log.directory)) > 5
    assert read_values(log) == sent
    log.close()
    assert read_values(open_log(tmp_path / "t-0")) == sent


def test_one_append_is_one_write_however_many_batches_it_has(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    append(log, a_batch())
    disk.calls.clear()
    append(log, *(a_batch() for _ in range(2000)))
    assert disk.calls.count("write") == 1
    assert len(read_batches(log)) == 2001


def test_reading_from_inside_a_batch_begins_with_that_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(10), a_batch(10))
    for offset in range(20):
        part = log.read(offset, 1 << 20, 20)
        assert part is not None
        assert part.position == (0 if offset < 10 else part.segment.size // 2)
        part.release()


def test_every_offset_is_found_in_a_log_of_many_batch_sizes(tmp_path: Path) -> None:
    randomness = random.Random(7)
    storage = a_storage(checkpoint_bytes=3000)
    log = open_log(tmp_path / "t-0", storage, segment_bytes=100_000)
    owners: list[int] = []
    for _ in range(300):
        count = randomness.randint(1, 5)
        (appended,) = append(log, a_batch(count, size=randomness.choice([1, 100, 3000])))
        assert isinstance(appended, Appended)
        owners += [appended.base_offset] * count
        if randomness.random() < 0.1:
            flush(log)
    for offset in randomness.sample(range(len(owners)), len(owners)):
        part = log.read(offset, randomness.choice([1, 500, 5000, 1 << 20]), log.end_offset)
        assert part is not None
        data = storage.disk.read(part.handle.descriptor, part.length, part.position)
        part.release()
        assert read_header(data).base_offset == owners[offset]
        while data:
            header = check_batch(data[: read_header(data).size])
            data = data[header.size :]
        assert header.next_offset == part.next_offset


@pytest.mark.parametrize("max_bytes", [0, 1, 60, 200, 4096, 10_000])
def test_a_slice_is_cut_on_a_batch_boundary_within_its_limit(tmp_path: Path, max_bytes: int) -> None:
    log = open_log(tmp_path / "t-0")
    size = len(a_batch())
    append(log, *(a_batch() for _ in range(200)))
    part = log.read(7, max_bytes, 200, at_least_one=False)
    fitting = min(max_bytes // size, 193)
    if fitting == 0:
        assert part is None
    else:
        assert part is not None
        assert part.position == 7 * size
        assert part.length % size == 0
        assert max(1, fitting - 4096 // size - 1) <= part.length // size <= fitting
        assert part.next_offset == 7 + part.length // size
        part.release()


def test_a_batch_larger_than_the_limit_is_read_whole_if_one_is_wanted(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(), a_batch(size=50_000), a_batch())
    part = log.read(1, 1000, 3)
    assert part is not None
    assert part.length == len(a_batch(size=50_000))
    part.release()
    assert log.read(1, 1000, 3, at_least_one=False) is None


def test_nothing_past_the_limit_is_read(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=3000)
    for _ in range(100):
        append(log, a_batch(3))
    for limit in range(0, 303, 3):
        for offset in range(limit):
            part = log.read(offset, 1 << 20, limit)
            assert part is not None
            assert part.next_offset <= limit
            part.release()
        assert log.read(limit, 1 << 20, limit) is None


def test_a_slice_stays_within_one_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    for _ in range(50):
        append(log, a_batch())
    parts = 0
    offset = 0
    while (part := log.read(offset, 1 << 20, 50)) is not None:
        assert part.path == part.segment.path
        assert part.position == 0
        assert part.length == part.segment.size
        offset = part.next_offset
        part.release()
        parts += 1
    assert parts == len(segment_files(log.directory))


@pytest.mark.parametrize("offset", [-1, 6, 100])
def test_an_offset_outside_the_log_is_refused_with_its_range(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(5))
    with pytest.raises(OffsetOutOfRange, match=f"offset {offset} lies outside 0 to 5 of t-0"):
        log.read(offset, 100, 5)


def test_a_reader_at_the_tail_needs_no_disk_read(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk))
    append(log, *(a_batch() for _ in range(100)))
    assert log.read(100, 1 << 20, 100) is None
    disk.calls.clear()
    offset = 100
    for _ in range(50):
        append(log, a_batch())
        part = log.read(offset, 1 << 20, log.end_offset)
        assert part is not None
        offset = part.next_offset
        part.release()
    assert offset == 150
    assert "read" not in disk.calls


def test_remembered_positions_are_few(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, *(a_batch() for _ in range(1000)))
    for offset in range(999):
        part = log.read(offset, 1, 1000)
        assert part is not None
        part.release()
    assert len(log._reader._slicer._positions) <= MAX_POSITIONS


@pytest.mark.parametrize("index_bytes", [0, 1 << 20])
def test_an_index_that_does_not_fit_the_cache_is_read_again(tmp_path: Path, index_bytes: int) -> None:
    storage = a_storage(index_bytes=index_bytes, checkpoint_bytes=1)
    log = open_log(tmp_path / "t-0", storage, segment_bytes=60_000)
    for _ in range(100):
        append(log, a_batch(size=2000))
        flush(log)
    for offset in (5, 95, 40, 60, 5, 99, 0):
        part = log.read(offset, 1, 100)
        assert part is not None
        assert part.next_offset == offset + 1
        part.release()
    assert storage.indexes.size_bytes <= max(index_bytes, 1024)


def test_segments_roll_at_their_size(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    append(log, *(a_batch(size=300) for _ in range(10)))
    assert all(path.stat().st_size <= 1024 for path in segment_files(log.directory))
    assert len(segment_files(log.directory)) == 5
    append(log, a_batch(size=5000), a_batch())
    assert [path.stat().st_size > 1024 for path in segment_files(log.directory)] == [False] * 5 + [
        True,
        False,
    ]
    assert len(read_batches(log)) == 12


def test_segments_roll_at_their_age(tmp_path: Path) -> None:
    clock = FakeClock()
    log = open_log(tmp_path / "t-0", a_storage(clock=clock), segment_ms=60_000)
    append(log, a_batch())
    clock.ms += 59_999
    append(log, a_batch())
    log.roll_if_due(clock.ms)
    assert len(segment_files(log.directory)) == 1
    clock.ms += 1
    append(log, a_batch())
    assert len(segment_files(log.directory)) == 2
    clock.ms += 60_000
    log.roll_if_due(clock.ms)
    log.roll_if_due(clock.ms)
    assert len(segment_files(log.directory)) == 3
    assert log.read(3, 1, 3) is None


def test_jitter_spreads_the_age_at_which_segments_roll(tmp_path: Path) -> None:
    ages_ms = set()
    for number in range(20):
        clock = FakeClock()
        settings = {"segment_ms": 60_000, "segment_jitter_ms": 50_000}
        log = open_log(tmp_path / f"t-{number}", a_storage(clock=clock), **settings)
        append(log, a_batch())
        began_ms = clock.ms
        while len(segment_files(log.directory)) == 1:
            clock.ms += 1000
            log.roll_if_due(clock.ms)
        ages_ms.add(clock.ms - began_ms)
    assert len(ages_ms) > 5
    assert 10_000 <= min(ages_ms) < max(ages_ms) <= 60_000


def test_the_age_of_a_segment_is_known_after_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    log = open_log(tmp_path / "t-0", a_storage(clock=clock), segment_ms=60_000)
    append(log, a_batch())
    clock.ms += 50_000
    log.close()
    log = open_log(tmp_path / "t-0", a_storage(clock=clock), segment_ms=60_000)
    clock.ms += 10_000
    log.roll_if_due(clock.ms)
    assert len(segment_files(log.directory)) == 2


def test_segments_roll_before_offsets_outgrow_the_index(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for _ in range(3):
        gap = write_batch((), base_offset=0, last_offset=2**31 - 2)
        log.append([Incoming(gap, read_header(gap))], 0)
    append(log, a_batch())
    assert [int(path.stem) for path in segment_files(log.directory)] == [n * (2**31 - 1) for n in range(4)]
    assert log.end_offset == 3 * (2**31 - 1) + 1
    assert len(read_batches(log)) == 4


def test_an_older_leader_may_not_append(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(), epoch=3)
    with pytest.raises(FencedLeaderEpoch, match="t-0 is at leader epoch 3, not 2"):
        append(log, a_batch(), epoch=2)
    assert log.end_offset == 1


def test_a_new_leader_epoch_is_on_disk_before_its_first_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(4), epoch=1)
    log.start_epoch(7)
    append(log, a_batch(), epoch=7)
    append(log, a_batch(), epoch=9)
    again = open_log(tmp_path / "t-0")
    assert again.epochs.entries == ((1, 0), (7, 4), (9, 5))
    assert again.epochs.latest == 9


def test_a_closed_log_takes_no_writes(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch())
    log.close()
    with pytest.raises(StorageFailed, match="t-0 is closed"):
        append(log, a_batch())


def test_a_deleted_log_leaves_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    append(log, *(a_batch(size=500) for _ in range(20)))
    part = log.read(0, 1000, 20)
    assert part is not None
    (tmp_path / "t-0" / "foreign").mkdir()
    log.delete()
    assert list(tmp_path.iterdir()) == []
    assert a_storage().disk.read(part.handle.descriptor, part.length, part.position)
    part.release()


def test_a_log_with_a_long_name_can_be_deleted(tmp_path: Path) -> None:
    log = open_log(tmp_path / f"{'x' * 249}-12345")
    log.delete()
    assert list(tmp_path.iterdir()) == []


def test_new_settings_hold_from_the_next_append(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(size=2000))
    log.config = a_config(segment_bytes=1024)
    append(log, a_batch())
    assert len(segment_files(log.directory)) == 2


def test_the_bytes_after_an_offset_are_counted_by_segments_and_shares_of_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024)
    for _ in range(20):
        append(log, a_batch(size=300))
    assert log.bytes_after(0) == log.size_bytes
    assert log.bytes_after(log.end_offset) == 0
    counts = [log.bytes_after(offset) for offset in range(log.end_offset + 1)]
    assert counts == sorted(counts, reverse=True)
    assert abs(counts[10] - log.size_bytes / 2) <= 400
