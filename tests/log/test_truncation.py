"""Truncating takes back batches, and with them epochs, producers and everything derived."""

from pathlib import Path

import pytest

from alpacamq.model.errors import OffsetOutOfRange

from .faulty_disk import FaultyDisk
from .logs import a_batch, a_storage, append, flush, open_log, read_batches, segment_files


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
