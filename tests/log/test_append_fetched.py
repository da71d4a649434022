"""A follower appends what it fetched exactly as it is, and refuses what does not continue its log."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from alpacamq.log.partition_log import PartitionLog
from alpacamq.model.batch import EPOCH_AT, place
from alpacamq.model.control import marker_batch
from alpacamq.model.errors import CorruptBatch, DiskFull
from alpacamq.model.records import Record, write_batch

from .faulty_disk import Fault, FaultyDisk
from .logs import NOW_MS, a_batch, a_storage, append, flush, open_log, read_batches, segment_files


def placed(batch: bytearray, offset: int, epoch: int = 0) -> bytes:
    place(batch, offset, epoch)
    return bytes(batch)


def three_batches(epochs: Sequence[int] = (0, 0, 0)) -> list[bytes]:
    """Batches of offsets 0 to 2, 3 to 5 and 6 to 8."""
    return [placed(a_batch(3, timestamp=NOW_MS + n), 3 * n, epoch) for n, epoch in enumerate(epochs)]


def a_transactional(producer_id: int, sequence: int = 0) -> bytearray:
    return write_batch(
        [Record(0, NOW_MS, None, b"v")],
        attributes=0x10,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )


def copy(leader: PartitionLog, follower: PartitionLog, epoch: int = 0) -> None:
    follower.append_fetched(b"".join(read_batches(leader, start=follower.end_offset)), epoch)


def test_batches_are_stored_as_they_came(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    batches = three_batches()
    assert log.append_fetched(b"".join(batches), 0) == 9
    assert read_batches(log) == batches
    assert log.flushed_offset == 0
    flush(log)
    assert log.flushed_offset == 9
    log.close()
    log = open_log(tmp_path / "t-0")
    assert log.recovered.clean
    assert read_batches(log) == batches


def test_an_incomplete_last_batch_is_ignored_wherever_it_is_cut(tmp_path: Path) -> None:
    data = b"".join(three_batches())
    size = len(data) // 3
    for cut in range(len(data) + 1):
        log = open_log(tmp_path / f"t-{cut}")
        assert log.append_fetched(data[:cut], 0) == 3 * (cut // size)
        log.append_fetched(data, 0)  # from the start: what the log has is skipped
        assert b"".join(read_batches(log)) == data


def test_batches_that_the_log_has_are_skipped(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    batches = three_batches()
    log.append_fetched(b"".join(batches[:2]), 0)
    assert log.append_fetched(batches[0], 0) == 6
    assert log.append_fetched(b"".join(batches), 0) == 9
    assert read_batches(log) == batches


@pytest.mark.parametrize("at", [0, 16, 17, 20, 30, 61, -1])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_corrupt_batch_is_refused_and_those_before_it_are_kept(tmp_path: Path, bad: int, at: int) -> None:
    log = open_log(tmp_path / "t-0")
    batches = three_batches()
    damaged = bytearray(batches[bad])
    damaged[at] ^= 0x10
    with pytest.raises(CorruptBatch):
        log.append_fetched(b"".join([*batches[:bad], damaged, *batches[bad + 1 :]]), 0)
    assert read_batches(log) == batches[:bad]
    assert log.append_fetched(b"".join(batches), 0) == 9


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(1, 4, id="a gap at the end of the log"),
        pytest.param(0, 4, id="a gap between batches"),
        pytest.param(0, 2, id="an overlap between batches"),
        pytest.param(0, 0, id="the same batch again"),
    ],
)
def test_batches_that_are_not_contiguous_are_refused(tmp_path: Path, first: int, second: int) -> None:
    log = open_log(tmp_path / "t-0")
    with pytest.raises(CorruptBatch, match="should follow"):
        log.append_fetched(placed(a_batch(3), first) + placed(a_batch(3), second), 0)
    assert log.end_offset == (3 if first == 0 else 0)


def test_records_below_the_end_of_the_log_are_not_appended_again(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_fetched(three_batches()[0], 0)
    with pytest.raises(CorruptBatch, match="where 3 should follow"):
        log.append_fetched(placed(a_batch(3), 2), 0)
    assert log.end_offset == 3


@pytest.mark.parametrize(
    ("epochs", "leader_epoch", "accepted"),
    [
        pytest.param((0, 0, 0), 0, 3, id="one epoch"),
        pytest.param((1, 1, 4), 4, 3, id="a later epoch"),
        pytest.param((1, 4, 1), 4, 2, id="an earlier epoch after a later one"),
        pytest.param((1, 4, 5), 4, 2, id="an epoch that the leader cannot know"),
        pytest.param((-1, 0, 0), 4, 0, id="no epoch"),
    ],
)
def test_epochs_ascend_up_to_the_leader_s(
    tmp_path: Path, epochs: Sequence[int], leader_epoch: int, accepted: int
) -> None:
    log = open_log(tmp_path / "t-0")
    batches = three_batches(epochs)
    if accepted == 3:
        log.append_fetched(b"".join(batches), leader_epoch)
    else:
        with pytest.raises(CorruptBatch, match="leader epoch"):
            log.append_fetched(b"".join(batches), leader_epoch)
    assert read_batches(log) == batches[:accepted]


def test_an_epoch_begins_with_its_first_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_fetched(b"".join(three_batches((2, 2, 7))), 9)
    assert log.epochs.entries == ((2, 0), (7, 6))
    assert log.epochs.last == (7, 6)
    flush(log)
    again = open_log(tmp_path / "t-0")
    assert again.epochs.entries == ((2, 0), (7, 6))
    assert again.end_offset == 9


def test_a_follower_has_the_producers_and_transactions_of_its_leader(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "l-0")
    append(leader, a_transactional(1), a_transactional(2), a_batch(2, producer=(3, 1, 40)))
    append(leader, marker_batch(1, 0, False, 0, NOW_MS), a_transactional(1, 1))
    follower = open_log(tmp_path / "f-0")
    for batch in read_batches(leader):
        follower.append_fetched(batch, 0)
    for reopened in (False, True):
        if reopened:
            follower.close()
            follower = open_log(tmp_path / "f-0")
        assert follower.producers.copy() == leader.producers.copy()
        assert follower.transactions.open_transactions() == leader.transactions.open_transactions()
        assert follower.transactions.aborted_between(0, 9) == [(1, 0)]
        assert follower.transactions.last_stable_offset(follower.end_offset) == 1


def test_a_marker_above_the_high_watermark_ends_nothing_yet(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "l-0")
    append(leader, a_transactional(1), a_batch(3), marker_batch(1, 0, True, 0, NOW_MS))
    follower = open_log(tmp_path / "f-0", a_storage(checkpoint_bytes=1))
    copy(leader, follower)
    for number in range(3):
        if number == 1:
            flush(follower)
        elif number == 2:
            follower.close()
        reopened = open_log(tmp_path / "f-0")
        assert reopened.transactions.last_stable_offset(4) == 0
        assert reopened.transactions.last_stable_offset(5) == 5
    assert follower.transactions.last_stable_offset(4) == 0
    assert follower.transactions.last_stable_offset(5) == 5


def test_a_marker_above_the_high_watermark_ends_nothing_after_a_truncation_either(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, a_transactional(1), a_batch(3), marker_batch(1, 0, True, 0, NOW_MS), a_batch(2))
    log.truncate_to(5)
    assert log.transactions.last_stable_offset(4) == 0
    assert log.transactions.last_stable_offset(5) == 5


@pytest.mark.parametrize("chunk", [1, 2, 5, 40])
def test_segments_roll_as_in_a_leader(tmp_path: Path, chunk: int) -> None:
    leader = open_log(tmp_path / "l-0", segment_bytes=1024)
    for number in range(40):
        append(leader, a_batch(2, size=100, timestamp=number, producer=(1, 0, 2 * number)), epoch=number // 7)
    batches = read_batches(leader)
    follower = open_log(tmp_path / "f-0", a_storage(checkpoint_bytes=1), segment_bytes=1024)
    for first in range(0, 40, chunk):
        follower.append_fetched(b"".join(batches[first : first + chunk]), 9)
        flush(follower)
    for reopened in (False, True):
        if reopened:
            follower.close()
            follower = open_log(tmp_path / "f-0", segment_bytes=1024)
        assert read_batches(follower) == batches
        assert follower.epochs.entries == leader.epochs.entries
        assert [path.name for path in segment_files(follower.directory)] == [
            path.name for path in segment_files(leader.directory)
        ]
        found = follower.offset_for_timestamp(33, 80)
        assert found is not None
        assert found.offset == 65


def test_what_was_written_before_the_disk_was_full_stays(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", a_storage(disk), segment_bytes=1024)
    batches = [placed(a_batch(1, size=300), number) for number in range(8)]
    disk.fail(Fault("write", errno.ENOSPC, after=1, suffix=".log", partial_bytes=100))
    with pytest.raises(DiskFull):
        log.append_fetched(b"".join(batches), 0)
    assert read_batches(log) == batches[: log.end_offset]
    assert 0 < log.end_offset < 8
    disk.faults.clear()
    assert log.append_fetched(b"".join(batches), 0) == 8
    assert read_batches(log) == batches
    log.close()
    assert read_batches(open_log(tmp_path / "t-0", segment_bytes=1024)) == batches


def test_a_leader_epoch_is_not_covered_by_the_checksum_but_checked_when_stored(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    batches = three_batches((3, 3, 3))
    log.append_fetched(b"".join(batches), 3)
    log.close()
    path = segment_files(log.directory)[0]
    data = bytearray(path.read_bytes())
    data[len(batches[0]) + EPOCH_AT + 3] = 2
    path.write_bytes(data)
    log = open_log(tmp_path / "t-0")
    part = log.read(0, 1 << 20, 9)
    assert part is not None
    with pytest.raises(Exception, match="leader epoch 2 instead of 3"):
        log.verify(part)
    part.release()
