"""Records between protobuf and record batches, without an object per record.

Most records have a key and a value, and nothing else. In the bytes of a request these are found by their
tags, and copied into a batch. Other records take the long way, by protobuf's objects and those of the broker.
Responses are written the same way.
"""

from collections.abc import Iterable
from typing import NamedTuple

from alpacamq.v1 import messages_pb2 as m
from alpacamq.v1 import producer_pb2 as p

# Tags of NewRecord.
_KEY, _VALUE, _PARTITION = 0x0A, 0x12, 0x20
# The tag of `records` of ProduceRequest; and of ReadResponse, whose records are Record.
_RECORDS = 0x1A
_READ_RECORDS = b"\x0a"
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


class EncodedRecord(NamedTuple):
    """Key and value of a record as in a batch, and where it goes."""

    content: bytes
    key: bytes | None
    partition: int | None


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
                found.append(EncodedRecord(content, key, partition))
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
