"""A follower catches up with its leader, whatever compaction and retention did to either of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from alpacamq.log.partition_log import Appended, PartitionLog
from alpacamq.log.storage import Storage
from alpacamq.model.batch import TRANSACTIONAL, check_batch, read_header
from alpacamq.model.control import marker_batch
from alpacamq.model.errors import CorruptBatch, DamagedLog
from alpacamq.model.records import Record, read_records, write_batch

from .logs import NOW_MS, a_batch, a_storage, append, flush, open_log, read_batches, segment_files

COMPACTED: dict[str, Any] = {"cleanup_policy": "compact", "segment_bytes": 1024, "delete_retention_ms": 1000}


def put(log: PartitionLog, pairs: Sequence[tuple[bytes, bytes | None]], epoch: int = 0) -> None:
    """Append one batch of keys and values."""
    records = [Record(index, NOW_MS, key, value) for index, (key, value) in enumerate(pairs)]
    append(log, write_batch(records), epoch=epoch)


def compact(log: PartitionLog, now_ms: int = NOW_MS, **limits: int) -> bool:
    """Compact everything sealed."""
    log.roll()
    flush(log)
    compaction = log.begin_compaction(now_ms, force=True, **limits)
    if compaction is None:
        return False
    compaction.run()
    log.end_compaction(compaction)
    return True


def fetch(leader: PartitionLog, offset: int, max_bytes: int = 1 << 20) -> bytes:
    """Answer one fetch as a leader does: the batch with `offset` first, then as much as fits."""
    part = leader.read(offset, max_bytes, leader.end_offset)
    if part is None:
        return b""
    try:
        if not part.verified:
            leader.verify(part)
        return part.read()
    finally:
        part.release()


def catch_up(follower: PartitionLog, leader: PartitionLog, max_bytes: int = 1 << 20, epoch: int = 9) -> None:
    """Fetch until the follower has everything; fails if it makes no progress."""
    while follower.end_offset < leader.end_offset:
        before = follower.end_offset
        assert follower.append_fetched(fetch(leader, before, max_bytes), epoch) > before


def records(log: PartitionLog) -> list[Record]:
    return [record for batch in read_batches(log) for record in read_records(batch)]


def state(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    """Return the last value of each key; None if it was deleted."""
    return {record.key: record.value for record in records(log)}


def spans(log: PartitionLog) -> list[tuple[int, int, int]]:
    """First and last offset and number of records of each batch."""
    return [
        (header.base_offset, header.last_offset, header.record_count)
        for header in map(check_batch, read_batches(log))
    ]


@pytest.mark.parametrize("end", range(1, 12))
def test_a_follower_continues_inside_of_a_compacted_range(tmp_path: Path, end: int) -> None:
    leader = open_log(tmp_path / "l-0", **COMPACTED)
    follower = open_log(tmp_path / "f-0", **COMPACTED)
    for number in range(12):
        put(leader, [(b"key", b"%d" % number)])
    follower.append_fetched(b"".join(read_batches(leader)[:end]), 0)
    assert compact(leader)
    assert spans(leader) == [(0, 10, 0), (11, 11, 1)]
    # As in Kafka, the answer begins with the batch that the offset is in.
    assert read_header(fetch(leader, end)).base_offset == (0 if end < 11 else 11)
    catch_up(follower, leader)
    expected = [(offset, offset, 1) for offset in range(end)]
    assert spans(follower) == [*expected, *([(end, 10, 0)] if end < 11 else []), (11, 11, 1)]
    assert state(follower) == state(leader)
    follower.close()
    follower = open_log(tmp_path / "f-0", **COMPACTED)
    assert follower.recovered.clean
    assert compact(follower)
    assert records(follower) == records(leader)
    assert spans(follower) == spans(leader)


def test_logs_compacted_at_different_times_end_with_the_same_records(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "l-0", **COMPACTED)
    follower = open_log(tmp_path / "f-0", **COMPACTED)
    for number in range(30):
        epoch = number // 11
        put(leader, [(b"k%d" % (number * each % 5), b"%d" % number) for each in range(1, 4)], epoch=epoch)
        if number % 3 == 0:
            catch_up(follower, leader, max_bytes=150)
        if number % 7 == 0:
            compact(leader)
        if number % 5 == 0:
            compact(follower)
    catch_up(follower, leader)
    assert state(follower) == state(leader)
    for log in (leader, follower):
        compact(log)
    assert records(follower) == records(leader)
    assert follower.epochs.entries == leader.epochs.entries
    assert follower.end_offset == leader.end_offset


def test_a_compacted_range_of_another_epoch_is_not_clipped(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "l-0", **COMPACTED)
    follower = open_log(tmp_path / "f-0", **COMPACTED)
    for _ in range(3):
        put(follower, [(b"other", b"")], epoch=1)
    for number in range(6):
        put(leader, [(b"key", b"%d" % number)], epoch=2)
    compact(leader)
    with pytest.raises(CorruptBatch, match="where 3 should follow"):
        follower.append_fetched(fetch(leader, 3), 2)
    assert follower.end_offset == 3


@pytest.mark.parametrize("deleted_to", [5, 6, 7, 9, 10])
def test_a_follower_starts_inside_of_the_first_batch_of_its_leader(tmp_path: Path, deleted_to: int) -> None:
    leader = open_log(tmp_path / "l-0")
    append(leader, a_batch(5), a_batch(5), a_batch(5), epoch=4)
    leader.begin_delete_before(deleted_to).run()
    follower = open_log(tmp_path / "f-0")
    append(follower, a_batch(2))
    follower.restart_at(leader.start_offset)
    catch_up(follower, leader)
    assert follower.start_offset == (5 if deleted_to < 10 else 10)
    flush(follower)
    follower.begin_delete_before(leader.start_offset).run()
    for reopened in (False, True):
        if reopened:
            follower.close()
            follower = open_log(tmp_path / "f-0")
            assert follower.recovered.clean
        assert (follower.start_offset, follower.end_offset) == (deleted_to, 15)
        assert read_batches(follower) == read_batches(leader)
        assert list(follower.epochs.entries) == [(4, 5 if deleted_to < 10 else 10)]


def sent(
    log: PartitionLog, value: bytes, producer: tuple[int, int, int], *, transactional: bool = False
) -> None:
    """Append one batch of two records of a producer: its id, epoch and sequence."""
    producer_id, producer_epoch, base_sequence = producer
    batch = write_batch(
        [Record(index, NOW_MS, b"key %d" % index, value) for index in range(2)],
        attributes=TRANSACTIONAL if transactional else 0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    assert isinstance(append(log, batch)[0], Appended)


def copied(leader: PartitionLog, directory: Path) -> PartitionLog:
    """Return a log that was fetched from a leader, byte for byte."""
    follower = open_log(directory, **COMPACTED)
    catch_up(follower, leader)
    assert read_batches(follower) == read_batches(leader)
    return follower


@pytest.mark.parametrize("ending", ["none", "commit", "abort"])
def test_a_replica_of_a_compacted_log_has_the_sequences_of_its_leader(tmp_path: Path, ending: str) -> None:
    leader = open_log(tmp_path / "l-0", **COMPACTED)
    is_transaction = ending != "none"
    for sequence in (0, 2, 4):
        sent(leader, b"old", (1, 3, sequence), transactional=is_transaction)
    if is_transaction:
        append(leader, marker_batch(1, 3, ending == "commit", 0, NOW_MS))
    sent(leader, b"new", (2, 0, 0))
    put(leader, [(b"key 0", b"last"), (b"key 1", b"last")])
    for _ in range(2):
        assert compact(leader)
        # Nothing but the headers of the two last batches.
        headers = [check_batch(batch) for batch in read_batches(leader)]
        assert [
            (header.producer_id, header.base_offset, header.last_offset, header.base_sequence)
            for header in headers
            if header.is_idempotent and not header.is_control and header.record_count == 0
        ] == [(1, 4, 5, 4), (2, 6 + is_transaction, 7 + is_transaction, 0)]
        assert sum(header.is_idempotent for header in headers) == 2 + is_transaction
        put(leader, [(b"other", b"")])  # so that there is something to compact
    follower = copied(leader, tmp_path / "f-0")
    follower.close()
    for snapshot in follower.directory.glob("*.producers"):
        snapshot.unlink()
    recovered = open_log(follower.directory, **COMPACTED)
    for log in (follower, recovered):
        assert log.producers.next_sequence(1, 3) == leader.producers.next_sequence(1, 3) == 6
        assert log.producers.next_sequence(2, 0) == 2
        assert log.producers.copy().keys() == leader.producers.copy().keys()
        assert not log.transactions.open_transactions()
        assert log.transactions.last_stable_offset(log.end_offset) == log.end_offset
        assert read_batches(log) == read_batches(leader)
    sent(recovered, b"next", (1, 3, 6))


def test_the_header_of_a_last_batch_joins_a_gap_once_its_producer_goes_on(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "l-0", **COMPACTED)
    sent(leader, b"a", (1, 0, 0))
    put(leader, [(b"key 0", b"b"), (b"key 1", b"b")])
    assert compact(leader)
    assert [check_batch(batch).producer_id for batch in read_batches(leader)] == [1, -1]
    sent(leader, b"c", (1, 0, 2))
    assert compact(leader)
    assert spans(leader) == [(0, 3, 0), (4, 5, 2)]
    assert copied(leader, tmp_path / "f-0").producers.next_sequence(1, 0) == 4


def test_the_last_batch_that_may_be_compacted_counts_whatever_follows_it(tmp_path: Path) -> None:
    """What follows may be truncated."""
    leader = open_log(tmp_path / "l-0", **COMPACTED)
    sent(leader, b"a", (1, 0, 0))
    put(leader, [(b"key 0", b"b"), (b"key 1", b"b")])
    leader.roll()
    sent(leader, b"c", (1, 0, 2))
    assert compact(leader, limit_offset=4)
    assert spans(leader) == [(0, 1, 0), (2, 3, 2), (4, 5, 2)]
    follower = copied(leader, tmp_path / "f-0")
    follower.truncate_to(4)
    assert follower.producers.next_sequence(1, 0) == 2


def test_the_header_of_a_last_batch_is_clipped_with_its_sequence(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "l-0", **COMPACTED)
    sent(leader, b"a", (1, 0, 0))
    put(leader, [(b"key 0", b"b"), (b"key 1", b"b")])
    assert compact(leader)
    follower = open_log(tmp_path / "f-0", **COMPACTED)
    follower.restart_at(1)
    catch_up(follower, leader)
    assert spans(follower) == [(1, 1, 0), (2, 3, 2)]
    assert follower.producers.next_sequence(1, 0) == 2


def test_damage_of_a_leader_is_not_copied(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "l-0")
    append(leader, a_batch(5), a_batch(5), a_batch(5))
    batches = read_batches(leader)
    leader.close()
    path = segment_files(leader.directory)[0]
    data = bytearray(path.read_bytes())
    data[len(batches[0]) + 80] ^= 1
    path.write_bytes(data)
    leader = open_log(tmp_path / "l-0")
    follower = open_log(tmp_path / "f-0")
    with pytest.raises(DamagedLog):
        fetch(leader, 0)
    follower.append_fetched(fetch(leader, 0), 0)
    assert follower.end_offset == 5
    with pytest.raises(DamagedLog):
        fetch(leader, 5)


def test_compaction_stops_at_its_limit(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **COMPACTED)
    for number in range(12):
        put(log, [(b"key", b"%3d" % number * 100)])
    assert not compact(log, limit_offset=1)
    segments = [int(path.stem) for path in segment_files(log.directory)]
    limit = segments[3] + 1  # inside of a segment: that one is left, too
    assert compact(log, limit_offset=limit)
    assert [r.offset for r in records(log)] == list(range(segments[3] - 1, 12))
    assert compact(log, limit_offset=12)
    assert [r.offset for r in records(log)] == [11]


def test_a_tombstone_stays_until_every_replica_has_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **COMPACTED)
    put(log, [(b"a", b"1")])
    put(log, [(b"b", None)])
    put(log, [(b"a", None)])
    put(log, [(b"c", b"")])
    assert compact(log)
    late_ms = NOW_MS + 100_000
    assert [r.key for r in records(log)] == [b"b", b"a", b"c"]
    assert compact(log, late_ms, tombstone_limit_offset=2)
    assert [r.key for r in records(log)] == [b"a", b"c"]
    assert not compact(log, late_ms + 59_999, tombstone_limit_offset=3)
    assert compact(log, late_ms + 60_000, tombstone_limit_offset=3)
    assert [r.key for r in records(log)] == [b"c"]


def test_tombstones_expire_by_the_clock_of_the_caller(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **COMPACTED)
    put(log, [(b"a", None)])
    assert compact(log, now_ms=5000)
    put(log, [(b"b", b"")])
    assert compact(log, now_ms=5999)
    assert len(records(log)) == 2
    assert compact(log, now_ms=6000)
    assert len(records(log)) == 1


def test_retention_stops_at_its_limit(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024, retention_ms=1000)
    for _ in range(12):
        append(log, a_batch(size=300))
    flush(log)
    segments = [int(path.stem) for path in segment_files(log.directory)]
    late_ms = NOW_MS + 10_000
    assert log.begin_retention(late_ms, limit_offset=segments[1] - 1) is None
    removal = log.begin_retention(late_ms, limit_offset=segments[2] + 1)
    assert removal is not None
    removal.run()
    assert log.start_offset == segments[2]
    removal = log.begin_retention(late_ms, limit_offset=12)
    assert removal is not None
    removal.run()
    assert (log.start_offset, log.end_offset) == (12, 12)


def test_a_follower_removes_only_what_its_leader_has_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1024, retention_ms=1000, retention_bytes=0)
    for _ in range(12):
        append(log, a_batch(size=300))
    flush(log)
    segments = [int(path.stem) for path in segment_files(log.directory)]
    late_ms = NOW_MS + 10_000
    assert log.begin_trim(late_ms) is None
    log.begin_delete_before(segments[2] + 1).run()
    removal = log.begin_trim(late_ms)
    assert removal is not None
    removal.run()
    assert log.start_offset == segments[2] + 1
    assert [int(path.stem) for path in segment_files(log.directory)] == segments[2:]
    log.begin_delete_before(12).run()
    removal = log.begin_trim(late_ms)
    assert removal is not None
    removal.run()
    assert (log.start_offset, log.end_offset) == (12, 12)


class TestHighWatermark:
    def test_it_is_unknown_until_it_is_remembered(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0")
        append(log, a_batch(5))
        log.close()
        assert open_log(tmp_path / "t-0").high_watermark_hint == -1

    @pytest.mark.parametrize(("remembered", "found"), [(0, 0), (3, 3), (5, 5), (7, 5)])
    def test_a_clean_stop_keeps_it_up_to_the_end(self, tmp_path: Path, remembered: int, found: int) -> None:
        log = open_log(tmp_path / "t-0")
        append(log, a_batch(5))
        log.close()
        log = open_log(tmp_path / "t-0")
        log.remember_high_watermark(remembered)
        log.close()
        log = open_log(tmp_path / "t-0")
        assert log.high_watermark_hint == found
        log.close()
        assert open_log(tmp_path / "t-0").high_watermark_hint == found

    def test_after_a_kill_it_is_that_of_the_last_checkpoint(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", a_storage(checkpoint_bytes=1))
        append(log, a_batch(5))
        log.remember_high_watermark(4)
        flush(log)
        log.remember_high_watermark(5)
        append(log, a_batch(5))
        assert open_log(tmp_path / "t-0").high_watermark_hint == 4

    def test_remembering_it_costs_no_sync(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0")
        append(log, a_batch(5))
        flush(log)
        log.remember_high_watermark(5)
        assert log.begin_flush() is None

    def test_it_is_not_behind_a_truncation(self, tmp_path: Path) -> None:
        storage: Storage = a_storage(checkpoint_bytes=1)
        log = open_log(tmp_path / "t-0", storage)
        append(log, a_batch(5), a_batch(5))
        log.remember_high_watermark(10)
        flush(log)
        log.truncate_to(5)
        assert log.high_watermark_hint == 5
        assert open_log(tmp_path / "t-0").high_watermark_hint == 5

    def test_it_is_not_before_the_start(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", a_storage(checkpoint_bytes=1))
        append(log, a_batch(5), a_batch(5))
        log.remember_high_watermark(5)
        flush(log)
        log.begin_delete_before(8).run()
        assert open_log(tmp_path / "t-0").high_watermark_hint == 8
