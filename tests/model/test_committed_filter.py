"""Which batches a reader of committed records sees."""

from alpacamq.model.batch import TRANSACTIONAL, read_header
from alpacamq.model.control import CommittedFilter, marker_batch, placeholder_batch
from alpacamq.model.records import Record, write_batch

PRODUCER = 7


def batch(offset: int, *, producer_id: int = PRODUCER, transactional: bool = True) -> bytearray:
    return write_batch(
        [Record(offset, 0, None, b"value")],
        base_offset=offset,
        attributes=TRANSACTIONAL if transactional else 0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )


def at(offset: int, data: bytearray) -> bytearray:
    data[:8] = offset.to_bytes(8, "big")
    return data


def marker(offset: int, *, committed: bool) -> bytearray:
    return at(offset, marker_batch(PRODUCER, 0, committed, 0, 0))


def visible(aborted: list[tuple[int, int]], *batches: bytearray) -> list[int]:
    committed = CommittedFilter(aborted)
    headers = [(read_header(each), each) for each in batches]
    return [header.base_offset for header, each in headers if committed.shows(header, each)]


def test_records_are_hidden_from_the_start_of_an_aborted_transaction_to_its_marker() -> None:
    batches = [batch(0), marker(1, committed=True), batch(2), batch(3), marker(4, committed=False), batch(5)]
    assert visible([(PRODUCER, 2)], *batches) == [0, 5]


def test_other_producers_and_records_outside_of_transactions_are_visible() -> None:
    assert visible([(PRODUCER, 0)], batch(0), batch(1, producer_id=8), batch(2, transactional=False)) == [
        1,
        2,
    ]


def test_a_placeholder_in_an_aborted_transaction_does_not_end_it() -> None:
    placeholder = at(1, placeholder_batch(read_header(batch(1))))
    assert visible([(PRODUCER, 0)], batch(0), placeholder, batch(2), marker(3, committed=False)) == []


def test_a_read_that_begins_within_an_aborted_transaction_hides_the_rest_of_it() -> None:
    assert visible([(PRODUCER, 0)], batch(5), marker(6, committed=False), batch(7)) == [7]
