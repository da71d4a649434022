"""Transactions in a log on disk: through restarts, crashes, truncation and compaction."""

from pathlib import Path

import pytest

from alpacamq.log.partition_log import Appended, PartitionLog
from alpacamq.model.batch import TRANSACTIONAL, read_header
from alpacamq.model.control import NO_NUMBER, marker_batch, placeholder_batch
from alpacamq.model.errors import InvalidTransactionState, TransactionCoordinatorFenced
from alpacamq.model.records import Record, read_records, write_batch

from .logs import NOW_MS, a_storage, append, flush, open_log, read_batches

ONE, OTHER = 1, 2


def transactional(producer_id: int, sequence: int, key: bytes = b"k", value: bytes = b"v" * 50) -> bytearray:
    return write_batch(
        [Record(0, NOW_MS, key, value)],
        attributes=TRANSACTIONAL,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )


def marker(
    producer_id: int, *, committed: bool, coordinator_epoch: int = 0, number: int = NO_NUMBER
) -> bytearray:
    return marker_batch(producer_id, 0, committed, coordinator_epoch, NOW_MS, number)


def a_story(log: PartitionLog) -> None:
    """Offsets: 0 committed, 2 aborted, 4 open, with markers between."""
    append(log, transactional(ONE, 0), marker(ONE, committed=True))
    append(log, transactional(ONE, 1), marker(ONE, committed=False))
    append(log, transactional(OTHER, 0))


def check_story(log: PartitionLog) -> None:
    assert log.transactions.last_stable_offset(log.end_offset) == 4
    assert log.transactions.open_offset(OTHER) == 4
    assert log.transactions.aborted_between(0, 5) == [(ONE, 2)]


def test_open_and_aborted_transactions_are_known(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t")
    a_story(log)
    check_story(log)


@pytest.mark.parametrize("cleanly", [True, False], ids=["after a clean stop", "after a crash"])
@pytest.mark.parametrize("checkpoint_bytes", [1, 8 << 20], ids=["from snapshots", "from the log"])
def test_they_are_known_again(tmp_path: Path, cleanly: bool, checkpoint_bytes: int) -> None:
    log = open_log(tmp_path / "t", a_storage(checkpoint_bytes=checkpoint_bytes))
    append(log, transactional(ONE, 0), marker(ONE, committed=True))
    flush(log)
    append(log, transactional(ONE, 1), marker(ONE, committed=False))
    flush(log)
    append(log, transactional(OTHER, 0))
    if cleanly:
        log.close()
    check_story(open_log(tmp_path / "t"))


def test_producers_continue_their_sequence_after_a_marker(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t")
    a_story(log)
    log.close()
    again = open_log(tmp_path / "t")
    (repeated, following) = append(again, transactional(ONE, 1), transactional(ONE, 2))
    assert repeated == (2, 3, True)
    assert following == (5, 6, False)


def test_truncation_of_a_marker_reopens_its_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t")
    a_story(log)
    flush(log)
    log.truncate_to(3)
    assert log.transactions.open_offset(ONE) == 2
    assert log.transactions.aborted_between(0, 3) == []
    assert log.transactions.last_stable_offset(3) == 2


def plain(producer_id: int, *, epoch: int) -> bytearray:
    return write_batch(
        [Record(0, NOW_MS, b"k", b"v")], producer_id=producer_id, producer_epoch=epoch, base_sequence=0
    )


@pytest.mark.parametrize("is_together", [True, False], ids=["with one write", "with two"])
def test_a_producer_with_an_open_transaction_writes_nothing_outside_of_it(
    tmp_path: Path, is_together: bool
) -> None:
    """Its epoch would fence the marker of the transaction."""
    log = open_log(tmp_path / "t")
    outside = plain(ONE, epoch=1), placeholder_batch(read_header(plain(ONE, epoch=1))), plain(OTHER, epoch=1)
    if is_together:
        (_, *results) = append(log, transactional(ONE, 0), *outside)
    else:
        append(log, transactional(ONE, 0))
        results = append(log, *outside)
    assert [type(result) for result in results] == [InvalidTransactionState] * 2 + [Appended]
    append(log, marker(ONE, committed=True))
    assert log.transactions.last_stable_offset(log.end_offset) == log.end_offset == 3
    assert isinstance(append(log, plain(ONE, epoch=1))[0], Appended)


def test_batches_behind_a_marker_of_the_same_write_are_outside_of_its_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t")
    results = append(log, transactional(ONE, 0), marker(ONE, committed=True), plain(ONE, epoch=1))
    assert [type(result) for result in results] == [Appended] * 3


def compact(log: PartitionLog) -> None:
    flush(log)
    compaction = log.begin_compaction(NOW_MS)
    assert compaction is not None
    compaction.run()
    log.end_compaction(compaction)


def values(log: PartitionLog) -> list[bytes | None]:
    """The values of data records, control records left out."""
    batches = [batch for batch in read_batches(log) if not batch[22] & 0x20]
    return [record.value for batch in batches for record in read_records(batch)]


def compacted_log(path: Path) -> PartitionLog:
    return open_log(path, a_storage(checkpoint_bytes=1), cleanup_policy="compact", segment_bytes=1024)


def test_an_aborted_value_does_not_take_the_committed_one_with_it(tmp_path: Path) -> None:
    log = compacted_log(tmp_path / "t")
    append(log, transactional(ONE, 0, value=b"committed" * 60), marker(ONE, committed=True))
    append(log, transactional(ONE, 1, value=b"aborted" * 60), marker(ONE, committed=False))
    append(log, transactional(OTHER, 0, key=b"rest", value=b"x" * 900), marker(OTHER, committed=True))
    append(log, transactional(OTHER, 1, key=b"last", value=b"x" * 900), marker(OTHER, committed=True))
    compact(log)
    assert values(log)[0] == b"committed" * 60
    assert b"aborted" * 60 not in values(log)
    log.close()
    assert values(compacted_log(tmp_path / "t"))[0] == b"committed" * 60


def test_open_transactions_are_not_compacted(tmp_path: Path) -> None:
    log = compacted_log(tmp_path / "t")
    append(log, transactional(ONE, 0, value=b"old" * 100), marker(ONE, committed=True))
    append(log, transactional(OTHER, 0, value=b"undecided" * 100))
    for sequence in range(1, 4):
        append(log, transactional(ONE, sequence, value=b"new" * 300), marker(ONE, committed=True))
    compact(log)  # of what lies before the open transaction
    assert values(log)[:2] == [b"old" * 100, b"undecided" * 100]
    append(log, marker(OTHER, committed=True))
    compact(log)
    assert b"old" * 100 not in values(log)


REOPENED = pytest.mark.parametrize(
    ("checkpoint_bytes", "is_reopened"),
    [(8 << 20, False), (8 << 20, True), (1, True)],
    ids=["in memory", "replayed", "from a snapshot"],
)


@REOPENED
def test_a_repeated_marker_does_not_end_the_next_transaction(
    tmp_path: Path, checkpoint_bytes: int, is_reopened: bool
) -> None:
    log = open_log(tmp_path / "t", a_storage(checkpoint_bytes=checkpoint_bytes))
    append(log, transactional(ONE, 0), marker(ONE, committed=True, number=4), transactional(ONE, 1))
    flush(log)
    if is_reopened:
        log.close()
        log = open_log(tmp_path / "t")
    for number in (4, 3):
        assert append(log, marker(ONE, committed=True, number=number)) == [(1, 2, True)]
    assert log.transactions.open_offset(ONE) == 2
    assert append(log, marker(ONE, committed=False, number=5)) == [(3, 4, False)]
    assert log.transactions.open_offset(ONE) is None
    assert log.transactions.aborted_between(0, 4) == [(ONE, 2)]


@REOPENED
def test_markers_of_a_former_coordinator_are_refused(
    tmp_path: Path, checkpoint_bytes: int, is_reopened: bool
) -> None:
    log = open_log(tmp_path / "t", a_storage(checkpoint_bytes=checkpoint_bytes))
    append(log, transactional(ONE, 0), marker(ONE, committed=True, coordinator_epoch=7, number=1))
    append(log, transactional(ONE, 1), transactional(OTHER, 0))
    flush(log)
    if is_reopened:
        log.close()
        log = open_log(tmp_path / "t")
    (refused,) = append(log, marker(ONE, committed=True, coordinator_epoch=6, number=2))
    assert isinstance(refused, TransactionCoordinatorFenced)
    assert log.transactions.open_offset(ONE) == 2
    # Of another producer, which another coordinator may own.
    assert append(log, marker(OTHER, committed=True, coordinator_epoch=2, number=1)) == [(4, 5, False)]
    # A repeated marker was written, for every caller.
    assert append(log, marker(ONE, committed=True, coordinator_epoch=6, number=1)) == [(1, 2, True)]


def test_a_truncated_marker_is_written_again(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t")
    append(log, transactional(ONE, 0), marker(ONE, committed=True, coordinator_epoch=7, number=1))
    flush(log)
    log.truncate_to(1)
    assert append(log, marker(ONE, committed=True, coordinator_epoch=6, number=1)) == [(1, 2, False)]
