"""Visibility for read-committed readers, compared with a scan of the whole log."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.log.disk import SystemDisk
from alpacamq.log.sealed_file import Unreadable
from alpacamq.log.transactions import (
    PartitionTransactions,
    TransactionsSnapshot,
    decode_transactions,
    encode_transactions,
    read_stored_marker,
)
from alpacamq.model.batch import CONTROL, TRANSACTIONAL, BatchHeader, place, read_header
from alpacamq.model.control import Marker, marker_batch, read_marker
from alpacamq.model.records import Record, write_batch


@dataclass(frozen=True)
class Batch:
    """A batch in the log: data of a transaction, its marker (`committed`), or plain data."""

    producer_id: int
    records: int = 1
    committed: bool | None = None
    is_plain: bool = False
    base_offset: int = 0

    @property
    def is_marker(self) -> bool:
        return self.committed is not None

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.records - 1

    @property
    def marker(self) -> Marker | None:
        return None if self.committed is None else Marker(self.committed, 0)

    @property
    def header(self) -> BatchHeader:
        attributes = 0 if self.is_plain else TRANSACTIONAL
        batch = write_batch(
            [Record(self.base_offset + delta, 0, b"", b"") for delta in range(self.records)],
            attributes=attributes | (CONTROL if self.is_marker else 0),
            producer_id=self.producer_id,
            producer_epoch=0,
        )
        return read_header(batch)


Log = Sequence[Batch]


def data(producer_id: int, records: int = 1) -> Batch:
    return Batch(producer_id, records)


def commit(producer_id: int) -> Batch:
    return Batch(producer_id, committed=True)


def abort(producer_id: int) -> Batch:
    return Batch(producer_id, committed=False)


def placed(*batches: Batch) -> Log:
    log: list[Batch] = []
    for batch in batches:
        log.append(replace(batch, base_offset=end_of(log)))
    return log


def end_of(log: Log) -> int:
    return log[-1].last_offset + 1 if log else 0


def taken(log: Log) -> PartitionTransactions:
    transactions = PartitionTransactions()
    for batch in log:
        transactions.appended(batch.header, batch.base_offset, batch.marker)
    return transactions


def outcome(log: Log, number: int) -> Batch | None:
    """The marker that ends the transaction of batch `number`."""
    return next(
        (later for later in log[number:] if later.is_marker and later.producer_id == log[number].producer_id),
        None,
    )


def first_unstable(log: Log, high_watermark: int) -> int:
    """The first transactional batch without a marker that can be seen."""
    for number, batch in enumerate(log):
        if batch.is_plain or batch.is_marker:
            continue
        marker = outcome(log, number)
        if marker is None or marker.base_offset >= high_watermark:
            return min(batch.base_offset, high_watermark)
    return high_watermark


def seen_by_reader(log: Log, transactions: PartitionTransactions, start: int, end: int) -> list[int]:
    """The base offsets that a client lets through, doing as Kafka's clients do."""
    pending = sorted(transactions.aborted_between(start, end), key=lambda entry: entry.first_offset)
    aborting: set[int] = set()
    seen = []
    for batch in log:
        if batch.last_offset < start or batch.base_offset >= end:
            continue
        while pending and pending[0].first_offset <= batch.last_offset:
            aborting.add(pending.pop(0).producer_id)
        if batch.is_marker:
            if batch.committed is False:
                aborting.discard(batch.producer_id)
        elif batch.is_plain or batch.producer_id not in aborting:
            seen.append(batch.base_offset)
    return seen


def seen_by_god(log: Log, start: int, end: int) -> list[int]:
    seen = []
    for number, batch in enumerate(log):
        if start <= batch.last_offset and batch.base_offset < end and not batch.is_marker:
            marker = outcome(log, number)
            if batch.is_plain or (marker is not None and marker.committed):
                seen.append(batch.base_offset)
    return seen


producers = st.integers(1, 3)
batches = st.one_of(
    st.builds(Batch, producers, st.integers(1, 3)),
    st.builds(Batch, producers, committed=st.booleans()),
    st.builds(Batch, st.just(9), is_plain=st.just(True)),
)
# Without the long ones, most would be too short for transactions to overlap.
logs = st.one_of(st.lists(batches, max_size=10), st.lists(batches, min_size=20, max_size=40)).map(
    lambda drawn: placed(*drawn)
)


@given(log=logs, data=st.data())
def test_the_last_stable_offset_is_before_the_first_undecided_transaction(
    log: Log, data: st.DataObject
) -> None:
    transactions = taken(log)
    previous = 0
    for high_watermark in sorted(data.draw(st.lists(st.integers(0, end_of(log)), max_size=6))):
        stable = transactions.last_stable_offset(high_watermark)
        assert stable == first_unstable(log, high_watermark)
        assert stable >= previous
        previous = stable


@given(log=logs, data=st.data())
def test_a_read_committed_reader_sees_exactly_the_committed_records(log: Log, data: st.DataObject) -> None:
    transactions = taken(log)
    stable = transactions.last_stable_offset(end_of(log))
    start = data.draw(st.integers(0, stable))
    end = data.draw(st.integers(start, stable))
    # A slice ends where a batch does.
    end = max((batch.base_offset for batch in log if batch.base_offset <= end), default=0)
    assert seen_by_reader(log, transactions, start, end) == seen_by_god(log, start, end)


@given(log=logs, data=st.data())
def test_a_snapshot_and_replay_equal_the_full_state(log: Log, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    stored = encode_transactions(taken(log[:cut]).snapshot())
    restored = PartitionTransactions(decode_transactions(stored))
    for batch in log[cut:]:
        restored.appended(batch.header, batch.base_offset, batch.marker)
    original = taken(log)
    assert restored.snapshot() == original.snapshot()
    end = end_of(log)
    for high_watermark in range(end + 1):
        assert restored.last_stable_offset(high_watermark) == original.last_stable_offset(high_watermark)
    assert restored.aborted_between(0, end) == original.aborted_between(0, end)


@given(log=logs, data=st.data())
def test_reset_to_a_snapshot_drops_later_state(log: Log, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    transactions = taken(log[:cut])
    snapshot = transactions.snapshot()
    for batch in log[cut:]:
        transactions.appended(batch.header, batch.base_offset, batch.marker)
    transactions.reset(snapshot)
    assert transactions.snapshot() == snapshot
    # Other batches take the place of those.
    log = placed(*log[:cut], *data.draw(st.lists(batches, max_size=10)))
    for batch in log[cut:]:
        transactions.appended(batch.header, batch.base_offset, batch.marker)
    for high_watermark in range(end_of(log[:cut]), end_of(log) + 1):
        assert transactions.last_stable_offset(high_watermark) == first_unstable(
            [batch for batch in log if batch.base_offset < high_watermark], high_watermark
        )


@given(log=logs, data=st.data())
def test_dropping_the_start_does_not_affect_the_rest(log: Log, data: st.DataObject) -> None:
    transactions = taken(log)
    stable = transactions.last_stable_offset(end_of(log))
    start = data.draw(st.integers(0, stable))
    before = seen_by_reader(log, transactions, start, stable)
    transactions.drop_before(start)
    assert transactions.last_stable_offset(end_of(log)) == stable
    assert seen_by_reader(log, transactions, start, stable) == before


@given(log=logs)
def test_spans_tell_of_every_ended_batch_whether_it_was_aborted(log: Log) -> None:
    ranges = taken(log).snapshot().ranges()
    for number, batch in enumerate(log):
        marker = outcome(log, number)
        if not batch.is_marker and marker is not None:
            assert ranges.covers(batch.producer_id, batch.base_offset) == (marker.committed is False)


def test_a_marker_written_twice_ends_nothing_the_second_time() -> None:
    log = placed(data(1, 3), abort(1), abort(1), data(1), commit(1), commit(1))
    transactions = taken(log)
    assert [tuple(entry) for entry in transactions.aborted_between(0, end_of(log))] == [(1, 0)]
    assert transactions.last_stable_offset(end_of(log)) == end_of(log)


def test_a_control_batch_of_another_kind_ends_nothing() -> None:
    transactions = taken(placed(data(1)))
    transactions.appended(commit(1).header, 1, None)
    assert transactions.open_offset(1) == 0


def test_a_committed_transaction_is_unstable_until_its_marker_can_be_seen() -> None:
    transactions = taken(placed(data(1, 5), commit(1)))
    assert transactions.last_stable_offset(5) == 0
    assert transactions.last_stable_offset(6) == 6


def test_visible_markers_take_no_memory() -> None:
    log = placed(*[batch for _ in range(1_000) for batch in (data(1), commit(1))], data(2))
    transactions = taken(log)
    assert len(transactions._unseen) < 200
    assert transactions.last_stable_offset(0) == 0
    # They may be lumped together, but never taken for stable.
    for high_watermark in range(0, end_of(log), 37):
        assert transactions.last_stable_offset(high_watermark) <= first_unstable(log, high_watermark)
    assert transactions.last_stable_offset(end_of(log)) == 2_000


def test_an_open_transaction_whose_start_was_dropped_does_not_hold_the_log_before_its_start() -> None:
    transactions = taken(placed(data(1, 10), data(2, 10)))
    transactions.drop_before(8)
    assert transactions.last_stable_offset(20) == 8
    assert transactions.open_offset(1) == 0


def test_a_reader_gets_only_relevant_aborted_transactions() -> None:
    log = placed(*[batch for producer in range(100) for batch in (data(producer), abort(producer))])
    entries = taken(log).aborted_between(40, 44)
    assert [entry.producer_id for entry in entries] == [20, 21]


def test_nothing_known_is_an_empty_snapshot() -> None:
    ended = taken(placed(data(1), commit(1)))
    assert not ended.snapshot().is_empty
    ended.last_stable_offset(2)  # the marker is visible now
    assert ended.snapshot().is_empty
    assert not taken(placed(data(1))).snapshot().is_empty
    assert not taken(placed(data(1), abort(1))).snapshot().is_empty


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1", id="no msgpack"),
        pytest.param(encode_transactions(TransactionsSnapshot(aborted=b"x" * 31)), id="part of a row"),
        pytest.param(encode_transactions(TransactionsSnapshot(aborted=bytes(64))), id="markers out of order"),
        pytest.param(
            encode_transactions(TransactionsSnapshot(open=((1, 9), (2, 8)))), id="open ones out of order"
        ),
        pytest.param(
            encode_transactions(TransactionsSnapshot(unseen=((1, 9), (2, 8)))), id="ended ones out of order"
        ),
    ],
)
def test_a_damaged_snapshot_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        decode_transactions(body)


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_found_again_in_its_segment(tmp_path: Path, committed: bool) -> None:
    batch = marker_batch(7, 3, committed, 5, 1_000)
    place(batch, 40, 0)
    header, marker = stored(tmp_path, bytes(batch))
    assert header.is_control
    assert header.is_transactional
    assert marker == Marker(committed, 5)
    numbered = marker_batch(7, 3, committed, 5, 1_000, number=2**40)
    assert read_marker(numbered) == Marker(committed, 5, 2**40)


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(Record(0, 0, b"\0\0\0\2", b""), id="another kind"),
        pytest.param(Record(0, 0, b"\0", b""), id="short key"),
        pytest.param(Record(0, 0, None, b""), id="no key"),
        pytest.param(Record(0, 0, b"\0\0\0\0", bytes(2_000)), id="too large"),
    ],
)
def test_a_control_batch_that_is_no_marker_is_passed_over(tmp_path: Path, record: Record) -> None:
    batch = write_batch([record], attributes=CONTROL, producer_id=1, producer_epoch=0)
    assert stored(tmp_path, bytes(batch))[1] is None


def stored(tmp_path: Path, batch: bytes) -> tuple[BatchHeader, Marker | None]:
    """Return the header and the marker of a batch behind another one in a file."""
    disk = SystemDisk()
    before = bytes(write_batch([Record(0, 0, b"", b"")]))
    descriptor = disk.open(tmp_path / "segment", create=True)
    try:
        disk.write(descriptor, [before, batch], 0)
        header = read_header(batch)
        return header, read_stored_marker(disk, descriptor, len(before), header)
    finally:
        disk.close(descriptor)
