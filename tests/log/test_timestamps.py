"""Search by time finds the very record a naive search finds."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alpacamq.log.disk import SystemDisk
from alpacamq.log.partition_log import PartitionLog
from alpacamq.model.batch import CHECKED_FROM, CRC_AT, Codec, checksum
from alpacamq.model.records import Record, read_records, write_batch

from .logs import a_batch, a_storage, append, flush, open_log, read_batches

CODECS = st.sampled_from(list(Codec))
# Batches of timestamps; -1 is a record without one.
TIMESTAMPS = st.lists(
    st.tuples(st.lists(st.integers(-1, 40), min_size=1, max_size=5), CODECS), min_size=1, max_size=25
)


def fill(log: PartitionLog, batches: Sequence[tuple[list[int], Codec]]) -> None:
    for number, (timestamps, codec) in enumerate(batches):
        records = [Record(i, timestamp, None, bytes(100)) for i, timestamp in enumerate(timestamps)]
        append(log, write_batch(records, codec=codec), epoch=number // 5)
        if number % 4 == 3:
            flush(log)


def records_of(log: PartitionLog) -> list[Record]:
    return [record for batch in read_batches(log) for record in read_records(batch)]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=TIMESTAMPS, data=st.data())
def test_the_first_record_at_or_after_a_time_is_found(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[list[int], Codec]], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("log") / "t-0"
    log = open_log(directory, a_storage(checkpoint_bytes=500, index_bytes=1), segment_bytes=2000)
    fill(log, batches)
    start = data.draw(st.integers(0, log.end_offset))
    log.begin_delete_before(start)
    if data.draw(st.booleans()):
        log.close()
        log = open_log(directory)
        log.begin_delete_before(start)
    everything = [record for record in records_of(log) if record.offset >= start]
    ends = sorted({0, *(next(reversed(list(read_records(b)))).offset + 1 for b in read_batches(log))})
    limit = data.draw(st.sampled_from(ends))
    visible = [record for record in everything if record.offset < limit]
    for timestamp in range(42):
        expected = next((record for record in visible if record.timestamp_ms >= timestamp), None)
        found = log.offset_for_timestamp(timestamp, limit)
        if expected is None:
            assert found is None
        else:
            assert found is not None
            assert (found.offset, found.timestamp_ms) == (expected.offset, expected.timestamp_ms)
            assert found.leader_epoch == log.epochs.epoch_at(found.offset)[0]
    latest = log.max_timestamp(limit)
    largest = max((record.timestamp_ms for record in visible), default=-1)
    if largest == -1:
        assert latest is None
    else:
        assert latest is not None
        first = next(record for record in visible if record.timestamp_ms == largest)
        assert (latest.offset, latest.timestamp_ms) == (first.offset, largest)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_record_inside_a_compressed_batch_is_found(tmp_path: Path, codec: Codec) -> None:
    log = open_log(tmp_path / "t-0")
    for number in range(50):
        append(log, a_batch(100, timestamp=1000 * number, step=10, codec=codec))
    found = log.offset_for_timestamp(25_345, log.end_offset)
    assert found == (2535, 25_350, 0)


def test_an_early_largest_timestamp_does_not_hide_later_records(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_batch(timestamp=1000))
    append(log, *(a_batch(timestamp=10, size=500) for _ in range(100)))
    append(log, a_batch(timestamp=1001))
    assert log.offset_for_timestamp(1001, 102) == (101, 1001, 0)
    assert log.offset_for_timestamp(11, 102) == (0, 1000, 0)
    assert log.max_timestamp(102) == (101, 1001, 0)
    assert log.max_timestamp(101) == (0, 1000, 0)


def test_an_empty_log_has_no_times(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    assert log.offset_for_timestamp(0, 0) is None
    assert log.max_timestamp(0) is None


def test_a_batch_that_cannot_be_unpacked_is_found_by_its_header(tmp_path: Path) -> None:
    """The broker does not decompress batches when they are produced."""
    log = open_log(tmp_path / "t-0")
    garbage = a_batch(3, timestamp=500, codec=Codec.ZSTD)
    garbage[70:] = bytes(len(garbage) - 70)
    garbage[CRC_AT:CHECKED_FROM] = checksum(garbage).to_bytes(4, "big")
    append(log, a_batch(timestamp=100), garbage, a_batch(timestamp=900))
    assert log.offset_for_timestamp(200, 5) == (1, 502, 0)
    assert log.offset_for_timestamp(600, 5) == (4, 900, 0)


class CountingDisk(SystemDisk):
    """Counts what is read."""

    read_bytes = 0

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        self.read_bytes += size
        return super().read(descriptor, size, position)


def test_a_large_log_is_searched_by_its_index(tmp_path: Path) -> None:
    disk = CountingDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk, checkpoint_bytes=100_000), segment_bytes=1 << 20)
    for number in range(400):
        append(log, *(a_batch(timestamp=10 * number + step, size=1000) for step in range(10)))
    flush(log)
    log.offset_for_timestamp(2501, 4000)
    disk.read_bytes = 0
    assert log.offset_for_timestamp(2505, 4000) == (2505, 2505, 0)
    assert log.size_bytes > 4_000_000
    assert disk.read_bytes < 50_000
