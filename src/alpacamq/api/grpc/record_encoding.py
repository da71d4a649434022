"""Records between protobuf and record batches, without an object per record.

Most records have a key and a value, and nothing else. In the bytes of a request these are found by their
tags, and copied into a batch. Other records take the long way, by protobuf's objects and those of the broker.
Responses are written the same way.
"""

from collections.abc import Iterable, Iterator, Sequence

from alpacamq.broker.read.record_reader import Skipped
from alpacamq.model.batch import LOG_APPEND_TIME, BatchHeader, read_header
from alpacamq.model.control import CommittedFilter
from alpacamq.model.errors import CorruptBatch
from alpacamq.model.records import Header, Record, read_contents, read_records
from alpacamq.v1 import messages_pb2 as m
from alpacamq.v1 import producer_pb2 as p

# Tags of NewRecord.
_KEY, _VALUE, _PARTITION = 0x0A, 0x12, 0x20
# The tag of `records` of ProduceRequest.
_RECORDS = 0x1A
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Lengths that are looked up.
_SHORT = 4096
_NULL = b"\x01"
_NO_TIME = b"\x00\x00"  # attributes, and the same timestamp as the batch
_NO_HEADERS = b"\x00"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Lengths in record batches are signed (zigzag), those of protobuf are not.
_ZIGZAG = tuple(_varint(2 * number) for number in range(_SHORT))
_LENGTH = tuple(_varint(number) for number in range(_SHORT))


def _zigzag(value: int) -> bytes:
    return _ZIGZAG[value] if value < _SHORT else _varint(2 * value)


# Key and value of a record as in a batch, its key, and the partition that it names. A plain tuple: there are
# many.
EncodedRecord = tuple[bytes, bytes | None, int | None]


class Produced:
    """A ProduceRequest that has not been parsed in full. Takes its place among grpclib's request types."""

    __slots__ = ("_data", "_places", "envelope", "size_bytes")

    def __init__(self, data: bytes, places: list[tuple[int, int]], envelope: p.ProduceRequest) -> None:
        self._data = data
        self._places = places
        # The request without its records.
        self.envelope = envelope
        self.size_bytes = len(data)

    @classmethod
    def FromString(cls, data: bytes) -> "Produced":  # noqa: N802 - as protobuf names it
        """Find the records of a request. Raises DecodeError if it is malformed."""
        places: list[tuple[int, int]] = []
        others: list[bytes] = []
        at, size = 0, len(data)
        try:
            while at < size:
                begin = at
                tag = data[at]
                at += 1
                if tag == _RECORDS:
                    if (length := data[at]) < 0x80:
                        at += 1
                    else:
                        length, at = _read_varint(data, at)
                    places.append((at, at + length))
                    at += length
                    continue
                if tag & 0x80:
                    return cls(data, [], p.ProduceRequest.FromString(data))  # a field of the future
                at = _end_of_field(data, at, tag & 7)
                others.append(data[begin:at])
        except IndexError:
            at = size + 1
        if at != size:
            # Let protobuf say what is wrong.
            return cls(data, [], p.ProduceRequest.FromString(data))
        return cls(data, places, p.ProduceRequest.FromString(b"".join(others)))

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self._places) + len(self.envelope.records)

    def messages(self) -> list[m.NewRecord]:
        """Parse all records. Raises DecodeError."""
        data = self._data
        parse = m.NewRecord.FromString
        return [*self.envelope.records, *(parse(data[at:end]) for at, end in self._places)]

    def plain(self) -> list[EncodedRecord] | None:
        """Return the records if all of them have nothing but key, value and partition; else None."""
        if self.envelope.records:
            return None
        data = self._data
        found: list[EncodedRecord] = []
        try:
            for at, end in self._places:
                key: bytes | None = None
                partition: int | None = None
                content = _NULL
                if at < end and data[at] == _KEY:
                    length, at = _read_varint(data, at + 1)
                    key = data[at : at + length]
                    at += length
                    content = _zigzag(length) + key
                if at < end and data[at] == _VALUE:
                    if (length := data[at + 1]) < 0x80:
                        at += 2
                    else:
                        length, at = _read_varint(data, at + 1)
                    content += _zigzag(length) + data[at : at + length]
                    at += length
                else:
                    content += _NULL
                if at < end and data[at] == _PARTITION:
                    partition, at = _read_varint(data, at + 1)
                if at != end:
                    return None  # another field, or malformed
                found.append((content, key, partition))
        except IndexError:
            return None
        return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def _end_of_field(data: bytes, at: int, wire_type: int) -> int:
    """Return where a field ends whose tag ends at `at`; beyond the data if it is malformed."""
    if wire_type == _VARINT:
        return _read_varint(data, at)[1]
    if wire_type == _BYTES:
        length, at = _read_varint(data, at)
        return at + length
    if wire_type == _FIXED64:
        return at + 8
    return at + 4 if wire_type == _FIXED32 else len(data) + 1


def batch_body(contents: Iterable[bytes]) -> bytes:
    """Return the records of a batch, which have its timestamp and no headers."""
    pieces: list[bytes] = []
    add = pieces.append
    for delta, content in enumerate(contents):
        offset = _zigzag(delta)
        add(_zigzag(3 + len(offset) + len(content)))
        add(_NO_TIME)
        add(offset)
        add(content)
        add(_NO_HEADERS)
    return b"".join(pieces)


# Responses.

# Tags of Record and of Header.
_OFFSET, _TIMESTAMP = b"\x10", b"\x18"
_RECORD_KEY, _RECORD_VALUE, _RECORD_HEADER = b"\x22", b"\x2a", b"\x32"
_HEADER_KEY, _HEADER_VALUE = b"\x0a", b"\x12"
# The low seven bits of a number that goes on.
_LOW = tuple(bytes((0x80 | number,)) for number in range(0x80))


def _length(value: int) -> bytes:
    return _LENGTH[value] if value < _SHORT else _varint(value)


class RecordChunks:
    """Encodes the records of stored batches as a field of a response, in chunks of a limited size."""

    def __init__(
        self,
        data: bytes,
        partition: int,
        offsets: range,
        aborted: Iterable[tuple[int, int]],
        *,
        tag: int,
        limit_bytes: int,
        unpacked_limit_bytes: int,
    ) -> None:
        """`offsets` are those to encode; `tag` is that of the field."""
        self._batches = self._visible(data, aborted)
        self._prefix = b"\x08" + _length(partition) if partition else b""
        self._offsets = offsets
        self._tag = bytes((tag,))
        self._limit_bytes = limit_bytes
        self._unpacked_limit_bytes = unpacked_limit_bytes
        self._records: Iterator[tuple[int, int, bytes | None, bytes | None, Sequence[Header]]] = iter(())
        self._header: BatchHeader | None = None
        # What a chunk left out, because it would not fit.
        self._left: bytes | None = None
        self.next_offset = offsets.start
        self.skipped: list[Skipped] = []
        self.is_over = False

    def _visible(
        self, data: bytes, aborted: Iterable[tuple[int, int]]
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        view = memoryview(data)
        shown = CommittedFilter(aborted)
        at = 0
        while at < len(view):
            header = read_header(view, at)
            batch = view[at : at + header.size]
            at += header.size
            if shown.shows(header, batch):
                yield header, batch

    def next_chunk(self) -> tuple[bytes, int]:
        """Return the next records and how many they are; none if `is_over`, or if all were skipped.

        `next_offset` is the offset after them.
        """
        pieces: list[bytes] = []
        size = count = 0
        first, end = self._offsets.start, self._offsets.stop
        add, prefix, tag, limit = pieces.append, self._prefix, self._tag, self._limit_bytes
        high, high_bytes = -1, b""
        time, time_bytes = -1, b""
        if self._left is not None:
            add(self._left)
            size, count = len(self._left), 1
            self._left = None
            self.next_offset += 1
        while True:
            try:
                for offset, timestamp_ms, key, value, headers in self._records:
                    if offset < first:
                        continue
                    if offset >= end:
                        self.next_offset, self.is_over = end, True
                        return b"".join(pieces), count
                    if offset >> 7 != high:
                        high = offset >> 7
                        high_bytes = _varint(high)
                    if timestamp_ms != time:
                        time = timestamp_ms
                        time_bytes = _TIMESTAMP + _varint(timestamp_ms & 0xFFFF_FFFF_FFFF_FFFF)
                    number = _LOW[offset & 0x7F] + high_bytes if high else _LENGTH[offset]
                    content = prefix + _OFFSET + number + time_bytes
                    if key is not None:
                        content += _RECORD_KEY + _length(len(key)) + key
                    if value is not None:
                        content += _RECORD_VALUE + _length(len(value)) + value
                    if headers:
                        content += _encoded_headers(headers)
                    record = tag + _length(len(content)) + content
                    size += len(record)
                    if size > limit and pieces:
                        self._left = record
                        self.next_offset = offset
                        return b"".join(pieces), count
                    add(record)
                    count += 1
                    self.next_offset = offset + 1
            except CorruptBatch as error:
                self._skip(error)
            if not self._next_batch():
                self.is_over = True
                return b"".join(pieces), count

    def _next_batch(self) -> bool:
        """Begin with the next batch that can be read; return False if there is none."""
        for header, batch in self._batches:
            self._header = header
            self.next_offset = max(header.base_offset, self._offsets.start)
            try:
                self._records = _timed_records(header, batch, self._unpacked_limit_bytes)
            except CorruptBatch as error:
                self._skip(error)
            else:
                return True
        return False

    def _skip(self, error: CorruptBatch) -> None:
        """Leave out the rest of the current batch."""
        assert self._header is not None
        end = self._header.next_offset
        self.skipped.append(Skipped(self.next_offset, end - self.next_offset, str(error)))
        self.next_offset = end
        self._records = iter(())


def _timed_records(
    header: BatchHeader, batch: memoryview, limit: int
) -> Iterator[tuple[int, int, bytes | None, bytes | None, Sequence[Header]]]:
    """Yield offset, timestamp, key, value and headers of the records of a batch."""
    if header.base_timestamp != header.max_timestamp and not header.attributes & LOG_APPEND_TIME:
        return read_records(batch, limit)
    base, timestamp_ms = header.base_offset, header.max_timestamp
    return (
        (base + delta, timestamp_ms, key, value, headers)
        for delta, key, value, headers in read_contents(batch, limit)
    )


def _encoded_headers(headers: Iterable[Header]) -> bytes:
    found = b""
    for name, value in headers:
        key = name.encode()
        content = _HEADER_KEY + _length(len(key)) + key
        if value is not None:
            content += _HEADER_VALUE + _length(len(value)) + value
        found += _RECORD_HEADER + _length(len(content)) + content
    return found


def length_delimited(tag: int, content: bytes) -> bytes:
    """Return a field of a message whose content is encoded."""
    return bytes((tag,)) + _length(len(content)) + content


def encoded_records(tag: int, partition: int, records: Iterable[Record]) -> bytes:
    """Return records as a field of a response."""
    pieces = []
    for record in records:
        encoded = m.Record(
            partition=partition,
            offset=record.offset,
            timestamp_ms=record.timestamp_ms,
            key=record.key,
            value=record.value,
        )
        for name, value in record.headers:
            encoded.headers.add(key=name, value=value)
        pieces.append(length_delimited(tag, encoded.SerializeToString()))
    return b"".join(pieces)
