"""Compaction: records kept, records dropped, files written."""

from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from alpacamq.log import compaction
from alpacamq.log.compaction import MAX_NOTES, is_due
from alpacamq.model.batch import (
    CHECKED_FROM,
    CONTROL,
    CRC_AT,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Codec,
    checksum,
    read_header,
)
from alpacamq.model.records import Header, Record, read_records, write_batch
from alpacamq.model.topics import INT32_MAX, INT64_MAX, topic_config

from .sealed_log import SealedLog, records


@pytest.fixture
def log(tmp_path: Path) -> SealedLog:
    return SealedLog(tmp_path)


@pytest.mark.parametrize(
    ("clean_bytes", "dirty_bytes", "ratio", "expected"),
    [
        pytest.param(100, 99, 0.5, False, id="just below"),
        pytest.param(100, 100, 0.5, True, id="exactly there"),
        pytest.param(0, 1, 0.5, True, id="never cleaned"),
        pytest.param(100, 0, 0.0, False, id="nothing new, whatever the ratio"),
        pytest.param(0, 0, 0.5, False, id="nothing at all"),
        pytest.param(1, 1 << 40, 1.0, False, id="a ratio of one needs the whole log to be dirty"),
    ],
)
def test_compaction_is_due(clean_bytes: int, dirty_bytes: int, ratio: float, expected: bool) -> None:
    assert is_due(clean_bytes, dirty_bytes, ratio) is expected


@pytest.mark.parametrize("codec", Codec)
def test_the_last_value_of_a_key_stays_in_its_place(log: SealedLog, codec: Codec) -> None:
    log.add_segment(write_batch(records(0, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]), codec=codec))
    log.add_segment(write_batch(records(3, [(b"a", b"3"), (b"c", b"1")]), codec=codec))
    before = log.records()
    stats = log.clean()
    assert log.records() == [before[1], before[3], before[4]]
    assert log.headers()[0].codec is codec
    assert (stats.records_kept, stats.records_dropped) == (3, 2)
    assert stats.first_dirty_offset == 5
    assert stats.bytes_after == sum(segment.size_bytes for segment in log.segments)


def test_a_later_cleaning_drops_values_that_an_earlier_one_kept(log: SealedLog) -> None:
    log.add_segment(write_batch(records(0, [(b"a", b"1"), (b"b", b"1")])))
    log.clean()
    log.add_segment(write_batch(records(2, [(b"a", b"2")])))
    log.clean()
    assert [record.offset for record in log.records()] == [1, 2]


def test_records_without_a_key_stay(log: SealedLog) -> None:
    log.add_segment(write_batch(records(0, [(None, b"1"), (b"a", b"1"), (None, None), (b"a", b"2")])))
    log.clean(now_ms=0)
    log.clean(now_ms=1_000_000)
    assert [record.offset for record in log.records()] == [0, 2, 3]


def test_an_empty_key_is_a_key(log: SealedLog) -> None:
    log.add_segment(write_batch(records(0, [(b"", b"1"), (b"", b"2")])))
    log.clean()
    assert [record.value for record in log.records()] == [b"2"]


def test_headers_and_timestamps_of_kept_records_are_unchanged(log: SealedLog) -> None:
    kept = Record(1, 77, b"b", b"x", (Header("traceparent", b"00-1"), Header("empty", None)))
    log.add_segment(write_batch([Record(0, 5, b"a", b"1"), kept, Record(2, 3, b"a", None)]))
    log.clean()
    assert log.records() == [kept, Record(2, 3, b"a", None)]


def test_a_batch_kept_whole_is_the_same_bytes(log: SealedLog) -> None:
    whole = write_batch(records(0, [(b"a", b"1"), (b"b", b"1")]), codec=Codec.GZIP, attributes=TRANSACTIONAL)
    log.add_segment(whole, write_batch(records(2, [(b"c", b"1"), (b"c", b"2")])))
    log.clean()
    assert log.batches()[0] == whole


def test_a_partly_kept_batch_keeps_its_identity(log: SealedLog) -> None:
    batch = write_batch(
        records(0, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", b"2")]),
        leader_epoch=7,
        codec=Codec.LZ4,
        attributes=TRANSACTIONAL,
        producer_id=4711,
        producer_epoch=3,
        base_sequence=90,
    )
    log.add_segment(batch, write_batch(records(4, [(b"b", b"3"), (b"c", b"1")]), leader_epoch=7))
    before = read_header(batch)
    log.clean()
    after = log.headers()[0]
    assert after.record_count == 1
    assert after._replace(batch_length=0, crc=0, record_count=0, base_timestamp=0, max_timestamp=0) == (
        before._replace(batch_length=0, crc=0, record_count=0, base_timestamp=0, max_timestamp=0)
    )


def test_the_largest_timestamp_of_a_batch_is_that_of_the_kept_records(log: SealedLog) -> None:
    first, second = Record(0, 900, b"a", b"1"), Record(1, 500, b"b", b"1")
    log.add_segment(write_batch([first, second]), write_batch([Record(2, 600, b"a", b"2")]))
    (segment,) = log.clean().segments
    assert log.headers()[0].max_timestamp == 500
    assert segment.max_timestamp == 600


def test_append_time_is_left_as_the_broker_stamped_it(log: SealedLog) -> None:
    batch = write_batch(
        records(0, [(b"a", b"1"), (b"b", None), (b"a", b"2")]),
        attributes=LOG_APPEND_TIME,
        max_timestamp=5_000_000,
    )
    log.add_segment(batch)
    log.clean()
    assert log.headers()[0].max_timestamp == 5_000_000
    assert {record.timestamp_ms for record in log.records()} == {5_000_000}


def test_batches_that_are_dropped_leave_one_gap(log: SealedLog) -> None:
    log.add_segment(*(write_batch(records(number, [(b"a", b"1")])) for number in range(5)))
    log.add_segment(*(write_batch(records(number, [(b"a", b"2")])) for number in range(5, 9)))
    log.clean()
    gap, last = log.headers()
    assert (gap.base_offset, gap.last_offset, gap.record_count, gap.producer_id) == (0, 7, 0, -1)
    assert last.base_offset == 8
    log.add_segment(write_batch(records(9, [(b"a", b"3")])))
    log.clean()
    assert [header.base_offset for header in log.headers()] == [0, 9]


def test_a_gap_ends_where_the_leader_epoch_changes(log: SealedLog) -> None:
    epochs = [1, 1, 2, 2, 2, 5]
    log.add_segment(
        *(
            write_batch(records(number, [(b"a", b"1")]), leader_epoch=epoch)
            for number, epoch in enumerate(epochs)
        )
    )
    log.clean()
    assert [(header.base_offset, header.leader_epoch) for header in log.headers()] == [(0, 1), (2, 2), (5, 5)]


def test_a_gap_is_no_longer_than_a_header_can_say(log: SealedLog) -> None:
    half = 1 << 30
    fillers = [
        write_batch((), base_offset=number * half, last_offset=(number + 1) * half - 1) for number in range(3)
    ]
    log.add_segment(*fillers, write_batch(records(3 * half, [(b"a", b"1")])))
    log.clean()
    assert [header.last_offset_delta for header in log.headers()] == [INT32_MAX, half - 1, 0]


def tombstones(log: SealedLog) -> list[int]:
    return [record.offset for record in log.records() if record.value is None]


def test_a_tombstone_stays_for_its_time_from_the_first_cleaning_that_saw_it(log: SealedLog) -> None:
    log.add_segment(write_batch(records(0, [(b"a", b"1"), (b"b", b"1")])))
    log.add_segment(write_batch(records(2, [(b"a", None), (b"c", b"1")]), codec=Codec.ZSTD))
    before = log.records()
    first = log.clean(now_ms=50_000)
    assert log.records() == before[1:]
    assert first.next_deadline_ms == 51_000
    header = log.headers()[-1]
    assert header.attributes & DELETE_HORIZON
    assert header.base_timestamp == 51_000
    assert log.clean(now_ms=50_999).segments == ()
    assert tombstones(log) == [2]
    last = log.clean(now_ms=51_000)
    assert log.records() == [before[1], before[3]]
    assert last.next_deadline_ms is None
    assert not log.headers()[-1].attributes & DELETE_HORIZON


def test_other_readers_see_the_timestamps_of_a_batch_that_holds_a_deadline(log: SealedLog) -> None:
    log.add_segment(write_batch(records(0, [(b"a", None), (b"b", b"1")])))
    log.clean(now_ms=1_700_000_000_000)
    theirs = DefaultRecordBatch(log.batches()[0])
    assert [(record.offset, record.timestamp) for record in theirs] == [(0, 1000), (1, 1001)]


def test_a_tombstone_that_a_value_follows_goes_at_once_and_takes_its_deadline_along(log: SealedLog) -> None:
    log.add_segment(write_batch(records(0, [(b"a", None), (b"b", b"1")])))
    log.clean(now_ms=0)
    log.add_segment(write_batch(records(2, [(b"a", b"again")])))
    log.clean(now_ms=10)
    assert [record.offset for record in log.records()] == [1, 2]
    assert not log.headers()[0].attributes & DELETE_HORIZON


def test_a_tombstone_kept_for_ever_has_a_deadline_that_still_fits(tmp_path: Path) -> None:
    log = SealedLog(tmp_path, topic_config({"delete.retention.ms": str(INT64_MAX)}))
    log.add_segment(write_batch([Record(0, -1, b"a", None), Record(1, INT64_MAX, b"b", None)]))
    before = log.records()
    log.clean(now_ms=1_700_000_000_000)
    assert log.records() == before
    assert log.headers()[0].base_timestamp == INT64_MAX


def test_control_batches_stay_as_they_are_and_count_for_no_key(log: SealedLog) -> None:
    key = b"\0\0\0\1"
    batches = [
        write_batch(records(0, [(b"a", b"1")])),
        write_batch(records(1, [(b"a", b"")]), attributes=CONTROL | TRANSACTIONAL, producer_id=9),
        write_batch(records(2, [(key, None)]), attributes=CONTROL | TRANSACTIONAL, producer_id=9),
        write_batch(records(3, [(key, b"a value that happens to have a marker's key")])),
    ]
    log.add_segment(*batches)
    log.clean()
    assert log.batches() == batches


def unreadable(base_offset: int) -> bytearray:
    """Build a batch with a correct checksum whose last record claims headers that do not exist."""
    batch = write_batch(records(base_offset, [(b"a", b"1"), (b"b", b"1")]))
    batch[-1] = 2
    batch[CRC_AT:CHECKED_FROM] = checksum(batch).to_bytes(4, "big")
    return batch


def test_a_batch_that_cannot_be_read_stays_and_hides_nothing(log: SealedLog) -> None:
    bad = unreadable(1)
    log.add_segment(
        write_batch(records(0, [(b"a", b"1")])), bad, write_batch(records(3, [(b"c", b"1"), (b"c", b"2")]))
    )
    cleaned = log.clean()
    first, kept, last = log.batches()
    assert list(read_records(first)) == records(0, [(b"a", b"1")])
    assert kept == bad
    assert read_header(last).record_count == 1
    (note,) = cleaned.notes
    assert str(log.segments[0].path) in note
    assert f"byte {len(first)}" in note


def test_many_batches_that_cannot_be_read_make_few_notes(log: SealedLog) -> None:
    log.add_segment(*(unreadable(2 * number) for number in range(100)))
    notes = log.clean().notes
    assert len(notes) == MAX_NOTES + 1
    assert "90 more" in notes[-1]


def test_records_before_the_epoch_are_left_alone(log: SealedLog) -> None:
    """A deadline leaves no room for their distance from it."""
    odd = write_batch([Record(0, -(2**63), b"a", None), Record(1, 5, b"a", b"1")])
    log.add_segment(odd)
    assert log.clean().segments == ()
    assert log.batches() == [odd]


def test_more_keys_than_the_map_takes_are_cleaned_in_several_passes(log: SealedLog) -> None:
    pairs = [(f"{number % 7}".encode(), f"{number}".encode()) for number in range(42)]
    for base in range(0, 42, 6):
        log.add_segment(
            write_batch(records(base, pairs[base : base + 3])),
            write_batch(records(base + 3, pairs[base + 3 : base + 6])),
        )
    first = log.clean(max_keys=4)
    assert first.first_dirty_offset == 3
    assert first.bytes_before < log.segments[0].size_bytes + log.segments[1].size_bytes
    ends = []
    while log.first_dirty_offset < log.end_offset:
        ends.append(log.clean(max_keys=4).first_dirty_offset)
    assert ends == [*range(6, 43, 3)]
    assert [record.offset for record in log.records()] == list(range(35, 42))


def test_a_batch_with_more_keys_than_the_map_takes_is_cleaned_all_the_same(log: SealedLog) -> None:
    pairs = [(f"{number % 10}".encode(), b"x") for number in range(30)]
    log.add_segment(write_batch(records(0, pairs)))
    ends = []
    while log.first_dirty_offset < log.end_offset:
        ends.append(log.clean(max_keys=4).first_dirty_offset)
    assert ends == sorted(set(ends))
    assert [record.offset for record in log.records()] == list(range(20, 30))


def test_a_tombstone_outside_the_map_gets_no_deadline_yet(log: SealedLog) -> None:
    """Its key's older values are not dropped yet, so its time must not begin."""
    log.add_segment(write_batch(records(0, [(b"a", b"1"), (b"b", b"1"), (b"c", None), (b"b", None)])))
    assert log.clean(now_ms=0, max_keys=2).next_deadline_ms is None
    assert log.first_dirty_offset == 2
    log.clean(now_ms=1_000_000, max_keys=2)
    assert tombstones(log) == [2, 3]
    log.clean(now_ms=1_001_000)
    assert log.records() == records(0, [(b"a", b"1")])


def test_an_overdue_tombstone_outside_the_map_still_hides_older_values(log: SealedLog) -> None:
    """The cleaned position may be lost; tombstones carry their deadlines themselves."""
    log.add_segment(write_batch(records(0, [(b"x", b"1"), (b"y", b"1")])))
    log.add_segment(write_batch(records(2, [(b"b", None), (b"c", None)])))
    log.clean(now_ms=0)
    log.first_dirty_offset = 2
    log.clean(now_ms=1_000_000, max_keys=1)
    assert log.first_dirty_offset == 3
    assert tombstones(log) == [2, 3]
    log.clean(now_ms=1_000_000, max_keys=1)
    assert tombstones(log) == []


def test_batches_too_large_to_hold_are_cleaned_alike(log: SealedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "HELD_RECORDS", 2)
    log.add_segment(write_batch(records(0, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]), codec=Codec.SNAPPY))
    log.clean()
    assert [record.offset for record in log.records()] == [1, 2]
