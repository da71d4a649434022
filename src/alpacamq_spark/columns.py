"""Record batches into Arrow columns: Arrow copies the fields out, no object is made for a record."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from alpacamq.model.errors import CorruptBatch

from .arrays import array, binary_scalar, flags
from .fields import PADDING_BYTES, Fields, Ints, Spans, Unpacked, find_fields, find_headers
from .narrowing import EVERY_NUMBER, Interval
from .ranges import OffsetRange

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
_US_PER_MS = 1000
# Arrow's microseconds end before Kafka's milliseconds do.
_LAST_MS = (2**63 - 1) // _US_PER_MS


class Decoder:
    """Turns batches of one partition into Arrow batches of the wanted columns."""

    def __init__(
        self, wanted: OffsetRange, columns: Sequence[str], timestamp_ms: Interval = EVERY_NUMBER
    ) -> None:
        self._wanted = wanted
        self._timestamp_ms = timestamp_ms
        self._schema = pa.schema([COLUMNS.field(name) for name in columns])

    def decode(self, batches: Sequence[Unpacked]) -> pa.RecordBatch:
        """The records of these batches that lie in the wanted range, in order, or CorruptBatch."""
        raw = b"".join([*(batch.body for batch in batches), bytes(PADDING_BYTES)])
        fields = find_fields(raw, batches)
        kept = (fields.offset >= self._wanted.start) & (fields.offset < self._wanted.end)
        if self._timestamp_ms != EVERY_NUMBER:
            times = self._timestamp_ms
            kept &= (fields.timestamp_ms >= times.low) & (fields.timestamp_ms < times.high)
        if not kept.all():
            fields = fields.only(kept)
        arrays = [_BUILDERS[name](raw, fields, self._wanted) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _copied(raw: bytes, spans: Spans) -> pa.Array:
    """A field as a column of its own."""
    count = len(spans.start)
    # Every second slot is a field; those between them are whatever lies there.
    edges = np.empty(2 * count + 1, dtype=np.int32)
    edges[0] = 0
    edges[1::2] = spans.start
    edges[2::2] = spans.end
    slots = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), pa.py_buffer(raw)])
    wanted = np.arange(1, 2 * count, 2)
    return slots.take(array(wanted, pa.int64(), spans.is_null))


def _headers(raw: bytes, fields: Fields, _wanted: OffsetRange) -> pa.Array:
    found = find_headers(raw, fields)
    try:
        names = _copied(raw, found.key).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CorruptBatch(f"the name of a record header is not text: {error}") from error
    entries = pa.StructArray.from_arrays([names, _copied(raw, found.value)], fields=list(HEADERS.value_type))
    edges = np.zeros(len(fields.header_count) + 1, dtype=np.int32)
    np.cumsum(fields.header_count, out=edges[1:])
    return pa.ListArray.from_arrays(
        array(edges, pa.int32()), entries, type=HEADERS, mask=flags(fields.header_count == 0)
    )


def _timestamps(timestamps_ms: Ints) -> pa.Array:
    clipped = np.clip(timestamps_ms, -_LAST_MS, _LAST_MS)
    return array(clipped * _US_PER_MS, pa.timestamp("us", tz="UTC"))


_BUILDERS: Mapping[str, Callable[[bytes, Fields, OffsetRange], pa.Array]] = {
    "key": lambda raw, fields, _: _copied(raw, fields.key),
    "value": lambda raw, fields, _: _copied(raw, fields.value),
    "topic": lambda _, fields, wanted: pa.repeat(
        binary_scalar(wanted.partition.topic.encode()), len(fields.offset)
    ).cast(pa.string()),
    "partition": lambda _, fields, wanted: array(
        np.full(len(fields.offset), wanted.partition.partition, dtype=np.int32), pa.int32()
    ),
    "offset": lambda _, fields, __: array(fields.offset, pa.int64()),
    "timestamp": lambda _, fields, __: _timestamps(fields.timestamp_ms),
    "timestampType": lambda _, fields, __: array(fields.is_append_time.astype(np.int32), pa.int32()),
    "headers": _headers,
}
