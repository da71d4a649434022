"""Decoding into columns gives what reading record by record gives, of good batches and of bad ones."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.client.kafka.fetch import FetchedBatch
from alpacamq.model.batch import HEADER_BYTES, LOG_APPEND_TIME, Codec, checksum, read_header
from alpacamq.model.errors import CorruptBatch
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Header, Record, read_records, write_batch
from alpacamq_spark.read.ranges import OffsetRange
from alpacamq_spark.read.reader import COLUMNS, Decoder, unpack

PLACE = TopicPartition(TopicName("orders"), 3)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVERYTHING = OffsetRange(PLACE, 0, 2**62)

BYTES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.builds(Header, st.text(max_size=5), BYTES), max_size=4).map(tuple)


@st.composite
def batch(draw: st.DrawFn, base_offset: int = 0) -> bytearray:
    """One batch, perhaps with gaps where compaction took records out, in any codec."""
    steps = draw(st.lists(st.integers(1, 200), max_size=12))
    offsets = base_offset + np.cumsum([0, *steps]) if steps else [base_offset]
    times = st.integers(-(2**40), 2**42)
    records = [
        Record(int(offset), draw(times), draw(BYTES), draw(BYTES), draw(HEADERS)) for offset in offsets
    ]
    append_time = draw(st.booleans())
    return write_batch(
        records,
        base_offset=base_offset,
        last_offset=int(offsets[-1]) + draw(st.integers(0, 3)),
        codec=draw(st.sampled_from(Codec)),
        attributes=LOG_APPEND_TIME if append_time else 0,
        max_timestamp=draw(times) if append_time else None,
    )


@st.composite
def batches(draw: st.DrawFn) -> list[bytearray]:
    found: list[bytearray] = []
    for _ in range(draw(st.integers(1, 4))):
        found.append(draw(batch(read_header(found[-1]).next_offset if found else 0)))
    return found


@st.composite
def runs(draw: st.DrawFn) -> bytearray:
    """One batch with records of equal size in sequence, as of measurements, and others between them."""
    sizes = draw(st.lists(st.tuples(st.integers(0, 200) | st.just(9000), st.integers(1, 80)), max_size=4))
    values = [bytes(size) for size, count in sizes for _ in range(count)] or [b""]
    return write_batch([Record(offset, 0, None, value) for offset, value in enumerate(values)])


def decoded(
    given_batches: Sequence[bytes | bytearray], wanted: OffsetRange = EVERYTHING, start: int | None = None
) -> pa.RecordBatch:
    fetched = [FetchedBatch(read_header(each), memoryview(each), True) for each in given_batches]
    first = wanted.start if start is None else start
    return Decoder(wanted, COLUMNS.names).decode([unpack(each, first) for each in fetched])


def row(record: Record, is_append_time: bool) -> dict[str, Any]:
    headers = [{"key": name, "value": value} for name, value in record.headers]
    return {
        "key": record.key,
        "value": record.value,
        "topic": "orders",
        "partition": 3,
        "offset": record.offset,
        "timestamp": EPOCH + timedelta(milliseconds=record.timestamp_ms),
        "timestampType": int(is_append_time),
        "headers": headers or None,
    }


def rows(given_batches: Sequence[bytes | bytearray]) -> list[dict[str, Any]]:
    return [
        row(record, bool(read_header(each).attributes & LOG_APPEND_TIME))
        for each in given_batches
        for record in read_records(each)
    ]


@given(batches() | runs().map(lambda each: [each]))
def test_columns_equal_the_records(given_batches: list[bytearray]) -> None:
    found = decoded(given_batches)
    assert found.schema == COLUMNS
    found.validate(full=True)
    assert found.to_pylist() == rows(given_batches)


@given(batches(), st.integers(0, 500), st.integers(0, 500))
def test_only_records_of_the_range_are_kept(given_batches: list[bytearray], one: int, other: int) -> None:
    start, end = sorted((one, other))
    found = decoded(given_batches, OffsetRange(PLACE, start, end))
    assert found.to_pylist() == [each for each in rows(given_batches) if start <= each["offset"] < end]


@given(batches(), st.integers(0, 500))
def test_records_before_the_offset_of_the_fetch_do_not_count(
    given_batches: list[bytearray], start: int
) -> None:
    """As after records of a batch were deleted, which stay in the batch."""
    found = decoded(given_batches, start=start)
    assert found.to_pylist() == [each for each in rows(given_batches) if start <= each["offset"]]


@given(batch() | runs(), st.data())
def test_a_body_that_cannot_be_read_record_by_record_cannot_be_read_at_all_fuzz(
    good: bytearray, data: st.DataObject
) -> None:
    """The checksum is right, as a broken producer would make it right."""
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(HEADER_BYTES, len(bad) - 1))] = data.draw(st.integers(0, 255))
    bad[17:21] = checksum(bad).to_bytes(4, "big")
    try:
        expected = rows([bad])
    except (CorruptBatch, OverflowError):
        expected = None
    try:
        found = decoded([bad]).to_pylist()
    except (CorruptBatch, OverflowError):
        found = None
    assert found == expected


def test_times_beyond_the_range_of_arrow_are_clamped() -> None:
    late = write_batch([Record(0, 2**63 - 1, None, b"x")])
    assert decoded([late]).column("timestamp").cast(pa.int64()).to_pylist() == [9223372036854775000]


def test_columns_are_in_the_requested_order() -> None:
    wanted = Decoder(EVERYTHING, ["offset", "value"])
    fetched = FetchedBatch(
        read_header(data := write_batch([Record(7, 0, b"k", b"v")])), memoryview(data), True
    )
    assert wanted.decode([unpack(fetched, 0)]).to_pydict() == {"offset": [7], "value": [b"v"]}


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
def test_a_batch_of_many_records_is_decoded(codec: Codec) -> None:
    many = write_batch([Record(n, n, b"%d" % (n % 7), b"x" * (n % 999)) for n in range(20_000)], codec=codec)
    assert decoded([many]).column("value").to_pylist() == [b"x" * (n % 999) for n in range(20_000)]
