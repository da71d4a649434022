"""Rows are encoded as records, at any position in Arrow's memory."""

from datetime import UTC, datetime, timedelta
from time import tzset
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DayTimeIntervalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from alpacamq.client.kafka.transactional import ProducerIdentity
from alpacamq.model.batch import Codec, check_batch, check_produced
from alpacamq.model.ids import TopicName
from alpacamq.model.records import Header, Record, read_records
from alpacamq_spark.errors import InvalidColumns
from alpacamq_spark.options import write_options
from alpacamq_spark.read.reader import HEADERS
from alpacamq_spark.write.packing import Slot, pack_batch
from alpacamq_spark.write.rows import check_columns, normal_rows
from alpacamq_spark.write.writer import arrow_batches

NOW_MS = 1_700_000_000_000
PRODUCER = ProducerIdentity(transactional_id="t", producer_id=9, epoch=2)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HEADER_TYPE = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
OPTIONS = {"kafka.bootstrap.servers": "broker:9092"}

ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=300),
        st.none() | st.binary(max_size=300),
        st.none() | st.integers(-(2**40), 2**42),
        st.none() | st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=9)), max_size=3),
        st.none() | st.sampled_from(["critical", "High", " low "]),
        st.none() | st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=80,
)


def packed(batch: pa.RecordBatch, codec: Codec = Codec.NONE) -> list[Record]:
    data = pack_batch(normal_rows(batch, NOW_MS), Slot(PRODUCER, 5), codec)
    header = check_batch(data)
    check_produced(header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 5)
    assert header.is_transactional
    assert header.max_timestamp == max(record.timestamp_ms for record in read_records(data))
    return list(read_records(data))


@given(ROWS, st.sampled_from(Codec), st.integers(0, 3))
def test_records_equal_the_rows(rows: list[tuple[Any, ...]], codec: Codec, skipped: int) -> None:
    keys, values, times, headers, priorities, delays = (list(column) for column in zip(*rows, strict=True))
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array(
                [None if ms is None else EPOCH + timedelta(milliseconds=ms) for ms in times],
                pa.timestamp("us", tz="UTC"),
            ),
            "headers": pa.array(headers, HEADERS),
            "priority": pa.array(priorities, pa.string()),
            "delay": pa.array(delays, pa.int64()),
        }
    )
    # A slice shares memory with what is around it.
    skipped = min(skipped, len(rows) - 1)
    expected = []
    for offset, (key, value, time, own, priority, delay) in enumerate(rows[skipped:]):
        all_headers = [Header(*each) for each in own or ()]
        if priority is not None:
            all_headers.append(Header("alpacamq-lane", priority.strip().lower().encode()))
        if delay is not None:
            all_headers.append(Header("alpacamq-deliver-at", str(NOW_MS + delay).encode()))
        expected.append(Record(offset, NOW_MS if time is None else time, key, value, tuple(all_headers)))
    assert packed(batch.slice(skipped), codec) == expected


def test_text_is_written_as_utf_8() -> None:
    [record] = packed(pa.RecordBatch.from_pydict({"key": ["schlüssel"], "value": ["wert"]}))
    assert (record.key, record.value) == ("schlüssel".encode(), b"wert")


@pytest.mark.parametrize(
    ("column", "due_ms"),
    [
        pytest.param({"delay": pa.array([timedelta(seconds=5)])}, NOW_MS + 5000, id="an interval"),
        pytest.param({"delay": pa.array([70], pa.int32())}, NOW_MS + 70, id="milliseconds"),
        pytest.param(
            {"deliver_at": pa.array([EPOCH + timedelta(days=9)], pa.timestamp("us", tz="UTC"))},
            9 * 86_400_000,
            id="a time",
        ),
    ],
)
def test_delay_columns_set_the_delivery_time(column: dict[str, pa.Array], due_ms: int) -> None:
    [record] = packed(pa.RecordBatch.from_pydict({"value": [b"x"], **column}))
    assert record.headers == (Header("alpacamq-deliver-at", str(due_ms).encode()),)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        pytest.param({"priority": ["urgent"]}, "'urgent' is not a priority; priorities", id="lane"),
        pytest.param({"delay": [-1]}, "a delay of -1 ms is in the past", id="a delay before now"),
        pytest.param({"headers": pa.array([[(None, b"x")]], HEADERS)}, "no name", id="a nameless header"),
    ],
)
def test_values_that_cannot_be_written_are_refused(columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidColumns, match=reason):
        packed(pa.RecordBatch.from_pydict({"value": [b"x"], **columns}))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        pytest.param(StructType().add("key", "string"), "'value' is missing; there are key", id="no value"),
        pytest.param(
            StructType().add("value", DoubleType()),
            "'value' is binary or string, not double; convert it first",
            id="a number as value",
        ),
        pytest.param(
            StructType().add("value", "string").add("prioritty", "string"),
            "unknown column 'prioritty'; did you mean 'priority'?",
            id="a misspelt column",
        ),
        pytest.param(
            StructType().add("value", "string").add("headers", ArrayType(StringType())),
            "headers must be array<struct<key:string,value:binary>>, not array<string>",
            id="headers of another form",
        ),
        pytest.param(
            StructType().add("value", "string").add("delay", "long").add("deliver_at", TimestampType()),
            "not both",
            id="a delay and a time",
        ),
    ],
)
def test_columns_that_cannot_be_written_are_refused(schema: StructType, reason: str) -> None:
    with pytest.raises(
        InvalidColumns, match=reason.replace("(", r"\(").replace(")", r"\)").replace("?", r"\?")
    ):
        check_columns(schema, write_options({**OPTIONS, "topic": "orders"}))


def test_rows_need_a_topic_from_a_column_or_an_option() -> None:
    schema = StructType().add("value", "string")
    with pytest.raises(InvalidColumns, match="no topic: give a column"):
        check_columns(schema, write_options(OPTIONS))
    check_columns(schema.add("topic", StringType()), write_options(OPTIONS))


def test_rows_that_were_read_can_be_written_unchanged() -> None:
    read = StructType().add("key", "binary").add("value", "binary").add("topic", "string")
    read = read.add("partition", "integer").add("offset", LongType()).add("timestamp", "timestamp")
    read = (
        read.add("timestampType", "integer").add("headers", HEADER_TYPE).add("delay", DayTimeIntervalType())
    )
    check_columns(read, write_options(OPTIONS))
    assert write_options({**OPTIONS, "topic": "orders"}).topic == TopicName("orders")


def test_rows_one_by_one_keep_times_and_nested_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    tzset()
    try:
        inner = StructType().add("at", TimestampType()).add("local", TimestampNTZType())
        schema = StructType().add("value", ArrayType(inner)).add("names", MapType(StringType(), inner))
        noon = datetime(2026, 1, 31, 12)  # noqa: DTZ001 - as Spark passes it
        row = Row(value=[Row(at=noon, local=noon), None], names={"a": Row(at=None, local=noon)})
        [batch] = arrow_batches(iter([row, Row(value=None, names=None)]), schema)
        assert batch.to_pylist() == [
            {
                "value": [{"at": datetime(2026, 1, 31, 3, tzinfo=UTC), "local": noon}, None],
                "names": [("a", {"at": None, "local": noon})],
            },
            {"value": None, "names": None},
        ]
    finally:
        monkeypatch.undo()
        tzset()
