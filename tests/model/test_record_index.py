"""Single records of a batch are the same as when all of it is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.model.batch import HEADER_BYTES, Codec
from alpacamq.model.errors import CorruptBatch
from alpacamq.model.record_index import IndexedBatch
from alpacamq.model.records import Header, Record, read_records, write_batch

from .strategies import CODECS, record_lists


@given(record_lists(), CODECS)
def test_each_record_equals_the_one_from_a_full_read(records: list[Record], codec: Codec) -> None:
    batch = IndexedBatch(write_batch(records, codec=codec))
    assert list(batch.offsets) == [record.offset for record in records]
    assert [batch.record(place) for place in range(len(records))] == records
    assert batch.keys() == [record.key for record in records]


@given(record_lists(), st.sampled_from(["lane", "a", ""]))
def test_the_last_value_of_a_header_is_found_in_every_record(records: list[Record], name: str) -> None:
    records = [
        record._replace(
            headers=(*record.headers, Header(name, b"first"), Header("other", None)) * (place % 3)
        )
        for place, record in enumerate(records)
    ]
    wanted = [
        next((header.value for header in reversed(record.headers) if header.key == name), None)
        for record in records
    ]
    found = IndexedBatch(write_batch(records)).header_values(name.encode())
    assert (found or [None] * len(records)) == wanted


def test_a_header_is_not_looked_for_where_its_name_does_not_occur() -> None:
    assert IndexedBatch(write_batch([Record(0, 0, b"k", b"v")])).header_values(b"lane") is None
    assert IndexedBatch(write_batch([Record(0, 0, b"k", b"lane")])).header_values(b"lane") == [None]


@given(record_lists(max_size=4), st.data())
def test_garbage_is_refused_or_read_within_its_bounds(records: list[Record], data: st.DataObject) -> None:
    batch = write_batch(records)
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(HEADER_BYTES - 4, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        indexed = IndexedBatch(batch)
        indexed.keys()
        indexed.header_values(b"a")
        for place in range(len(indexed.offsets)):
            indexed.record(place)
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            list(read_records(batch))
