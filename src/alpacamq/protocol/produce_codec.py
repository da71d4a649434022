"""Hand-written codec for Produce, the most frequent request, and its response.

Same bytes as the generated codecs of `messages.produce`, in fewer steps. Topics are identified by
their bytes on the wire: the name before version 13, the 16 bytes of the id from then on.
"""

import struct
from collections.abc import Generator, Sequence
from struct import Struct
from typing import NamedTuple, Protocol

from alpacamq.model.errors import RecordError

from .errors import ManyEntries, ProtocolError
from .messages.produce import ProduceRequest
from .schema import decode, decode_in_slices
from .varint import Malformed, read_uvarint, skip_tagged_fields, uvarint

FLEXIBLE_FROM = ProduceRequest.flexible_from
LEADERS_FROM = 10
TOPIC_IDS_FROM = 13
TOPIC_ID_BYTES = 16
# Topics and partitions that are decoded without a yield.
ENTRIES_AT_ONCE = 256

# Data for one partition: its index and the batches, a slice of the request.
ProducedPartition = tuple[int, memoryview | None]

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_HEAD = Struct(">hii")  # acks, timeout, number of topics
_FLEXIBLE_HEAD = Struct(">hiB")
_PARTITION = Struct(">ii")  # index, bytes of records
_FLEXIBLE_PARTITION = Struct(">iB")

_FRAME = Struct(">ii")  # size, correlation id
_FLEXIBLE_FRAME = Struct(">iix")
_RESULT = Struct(">ihqq")  # index, error, base offset, append time
_RESULT_V5 = Struct(">ihqqq")  # … and log start offset
_CURRENT_LEADER = Struct(">BBBiix")  # one tagged field: its number, size, id and epoch
_RESULT_V8 = Struct(">ihqqqi")  # … and the number of record errors


class ProduceCall(NamedTuple):
    """A Produce request; topics as pairs of name or id and the data of their partitions."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[bytes, list[ProducedPartition]]]


class PartitionProduced(NamedTuple):
    """The result for one partition's batches."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[RecordError] = ()
    # Id and epoch of the leader, if another broker leads the partition.
    current_leader: tuple[int, int] | None = None


class Node(Protocol):
    """The address of a broker that a response names as a leader."""

    @property
    def id(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def rack(self) -> str | None: ...


def encode_nodes(nodes: Sequence[Node]) -> bytes:
    """Encode the tagged field with the addresses of brokers, as the last one of a flexible response."""
    if not nodes:
        return b"\x00"
    body = encode_endpoints(nodes)
    return b"\x01\x00" + uvarint(len(body)) + body


def encode_endpoints(nodes: Sequence[Node]) -> bytes:
    """Encode the array of the addresses of brokers in a flexible response."""
    body = bytearray(uvarint(len(nodes) + 1))
    for node in nodes:
        host, rack = node.host.encode(), (node.rack or "").encode()
        body += _INT32.pack(node.id) + uvarint(len(host) + 1) + host + _INT32.pack(node.port)
        body += b"\x00\x00" if node.rack is None else uvarint(len(rack) + 1) + rack + b"\x00"
    return bytes(body)


def decode_produce(version: int, data: memoryview, at: int) -> ProduceCall:
    """Decode the Produce request in `data` from `at` to the end. Raises ProtocolError.

    Raises ManyEntries for one that has to be decoded by `decode_produce_in_slices`.
    """
    try:
        if version < FLEXIBLE_FROM:
            return _decode_legacy(data, at)
        return _decode_flexible(data, at, by_id=version >= TOPIC_IDS_FROM)
    except (struct.error, IndexError, ValueError) as error:
        # The generated decoder fails at the same place and can name the field.
        decode(ProduceRequest, version, data, at)
        raise ProtocolError(f"ProduceRequest v{version}: {error}") from error


def decode_produce_in_slices(version: int, data: memoryview, at: int) -> Generator[None, None, ProduceCall]:
    """Decode a Produce request of any size in slices."""
    request = yield from decode_in_slices(ProduceRequest, version, data, at)
    topics = []
    for topic in request.topic_data:
        yield
        key = topic.topic_id.bytes if version >= TOPIC_IDS_FROM else topic.name.encode()
        partitions: list[ProducedPartition] = []
        for number, each in enumerate(topic.partition_data, 1):
            if not number % ENTRIES_AT_ONCE:
                yield
            partitions.append((each.index, each.records))  # type: ignore[arg-type]
        topics.append((key, partitions))
    return ProduceCall(request.transactional_id, request.acks, request.timeout_ms, topics)


def _decode_legacy(data: memoryview, at: int) -> ProduceCall:
    end = len(data)
    transactional_id = None
    (length,) = _INT16.unpack_from(data, at)
    at += 2
    if length != -1:
        stop = at + length
        if length < 0 or stop > end:
            raise Malformed(f"transactional_id has length {length}")
        transactional_id = str(data[at:stop], "utf-8")
        at = stop
    acks, timeout_ms, topic_count = _HEAD.unpack_from(data, at)
    at += 10
    if not 0 <= topic_count <= (end - at) // 6:
        raise Malformed(f"there cannot be {topic_count} topics")
    entries = topic_count
    topics = []
    for _ in range(topic_count):
        (length,) = _INT16.unpack_from(data, at)
        at += 2
        stop = at + length
        if length < 0 or stop > end:
            raise Malformed(f"a topic's name has length {length}")
        topic = bytes(data[at:stop])
        if not topic.isascii():
            topic.decode()  # must be UTF-8
        (count,) = _INT32.unpack_from(data, stop)
        at = stop + 4
        if not 0 <= count <= (end - at) // 8:
            raise Malformed(f"there cannot be {count} partitions")
        entries += count
        if entries > ENTRIES_AT_ONCE:
            raise ManyEntries
        partitions: list[ProducedPartition] = []
        for _ in range(count):
            index, length = _PARTITION.unpack_from(data, at)
            at += 8
            if length == -1:
                partitions.append((index, None))
                continue
            stop = at + length
            if length < 0 or stop > end:
                raise Malformed(f"records have length {length}")
            partitions.append((index, data[at:stop]))
            at = stop
        topics.append((topic, partitions))
    return ProduceCall(transactional_id, acks, timeout_ms, topics)


def _decode_flexible(data: memoryview, at: int, *, by_id: bool) -> ProduceCall:
    end = len(data)
    transactional_id = None
    length = data[at]
    at += 1
    if length > 127:
        length, at = read_uvarint(data, at - 1)
    if length:
        stop = at + length - 1
        if stop > end:
            raise Malformed(f"transactional_id has length {length - 1}")
        transactional_id = str(data[at:stop], "utf-8")
        at = stop
    acks, timeout_ms, topic_count = _FLEXIBLE_HEAD.unpack_from(data, at)
    at += 7
    if topic_count > 127:
        topic_count, at = read_uvarint(data, at - 1)
    # A topic takes at least three bytes, a partition six: do not allocate for what cannot be there.
    if not 0 < topic_count <= (end - at) // 3 + 1:
        raise Malformed(f"there cannot be {topic_count - 1} topics")
    entries = topic_count
    topics = []
    for _ in range(topic_count - 1):
        if by_id:
            stop = at + TOPIC_ID_BYTES
        else:
            length = data[at]
            at += 1
            if length > 127:
                length, at = read_uvarint(data, at - 1)
            if not length:
                raise Malformed("a topic has no name")
            stop = at + length - 1
        topic = bytes(data[at:stop])
        at = stop
        count = data[at]  # fails when the topic ended after the data
        at += 1
        if not (by_id or topic.isascii()):
            topic.decode()  # must be UTF-8
        if count > 127:
            count, at = read_uvarint(data, at - 1)
        if not 0 < count <= (end - at) // 6 + 1:
            raise Malformed(f"there cannot be {count - 1} partitions")
        entries += count
        if entries > ENTRIES_AT_ONCE:
            raise ManyEntries
        partitions: list[ProducedPartition] = []
        for _ in range(count - 1):
            index, length = _FLEXIBLE_PARTITION.unpack_from(data, at)
            at += 5
            if length > 127:
                length, at = read_uvarint(data, at - 1)
            if length:
                stop = at + length - 1
                partitions.append((index, data[at:stop]))
                at = stop
            else:
                partitions.append((index, None))
            if data[at]:  # fails when the records ended after the data
                at = skip_tagged_fields(data, at)
            else:
                at += 1
        topics.append((topic, partitions))
        at = skip_tagged_fields(data, at) if data[at] else at + 1
    if data[at]:
        skip_tagged_fields(data, at)
    return ProduceCall(transactional_id, acks, timeout_ms, topics)


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[PartitionProduced]]],
    throttle_ms: int = 0,
    nodes: Sequence[Node] = (),
) -> bytes:
    """Encode the whole response frame, size included; topics are named as in the request.

    Versions before 10 have neither leaders nor `nodes`, their addresses.
    """
    if version < FLEXIBLE_FROM:
        body = _encode_legacy(version, topics) + _INT32.pack(throttle_ms)
        return _FRAME.pack(len(body) + 4, correlation_id) + body
    parts = [b"", uvarint(len(topics) + 1)]
    for topic, partitions in topics:
        if version < TOPIC_IDS_FROM:
            parts.append(uvarint(len(topic) + 1))
        parts.append(topic)
        parts.append(uvarint(len(partitions) + 1))
        for result in partitions:
            partition, error_code, base_offset, append_time_ms, log_start_offset, message, records, _ = result
            parts.append(
                _RESULT_V5.pack(partition, error_code, base_offset, append_time_ms, log_start_offset)
            )
            if message is None:
                parts.append(b"\x01\x00\x00")  # no record errors, no message, no tagged fields
            else:
                parts.append(uvarint(len(records) + 1))
                for index, reason in records:
                    text = reason.encode()
                    parts += (_INT32.pack(index), uvarint(len(text) + 1), text, b"\x00")
                text = message.encode()
                parts += (uvarint(len(text) + 1), text)
                if result.current_leader is None or version < LEADERS_FROM:
                    parts.append(b"\x00")
                else:
                    parts.append(_CURRENT_LEADER.pack(1, 0, 9, *result.current_leader))
        parts.append(b"\x00")
    parts += (_INT32.pack(throttle_ms), encode_nodes(nodes if version >= LEADERS_FROM else ()))
    size = sum(map(len, parts))
    parts[0] = _FLEXIBLE_FRAME.pack(size + 5, correlation_id)
    return b"".join(parts)


def _encode_legacy(version: int, topics: Sequence[tuple[bytes, Sequence[PartitionProduced]]]) -> bytes:
    parts = [_INT32.pack(len(topics))]
    for topic, partitions in topics:
        parts += (_INT16.pack(len(topic)), topic, _INT32.pack(len(partitions)))
        for produced in partitions:
            partition, error_code, base_offset, append_time_ms, log_start_offset, message, records, _ = (
                produced
            )
            if version < 5:
                parts.append(_RESULT.pack(partition, error_code, base_offset, append_time_ms))
                continue
            result = (partition, error_code, base_offset, append_time_ms, log_start_offset)
            if version < 8:
                parts.append(_RESULT_V5.pack(*result))
                continue
            text = None if message is None else message.encode()
            parts.append(_RESULT_V8.pack(*result, len(records)))
            for index, reason in records:
                reason_text = reason.encode()
                parts += (_INT32.pack(index), _INT16.pack(len(reason_text)), reason_text)
            parts += (b"\xff\xff",) if text is None else (_INT16.pack(len(text)), text)
    return b"".join(parts)
