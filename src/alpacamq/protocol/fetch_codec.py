"""Hand-written codec for Fetch, the most frequent request of consumers, and its response.

Same bytes as the generated codecs of `messages.fetch`, in fewer steps. Records are not part of the
response here: they go from file to socket, so the encoder takes their lengths and returns the pieces
between them. Topics are identified by their bytes on the wire, as in `produce_codec`.
"""

import struct
from collections.abc import Generator, Sequence
from struct import Struct
from typing import NamedTuple

from .errors import ManyEntries, ProtocolError
from .messages.fetch import FetchRequest
from .produce_codec import Node, encode_nodes
from .schema import decode, decode_in_slices, run_to_end
from .varint import Malformed, check_count, check_tag_count, read_uvarint, skip_tagged_fields, uvarint

FLEXIBLE_FROM = FetchRequest.flexible_from
SESSIONS_FROM = 7
RACK_FROM = 11
TOPIC_IDS_FROM = 13
REPLICA_STATE_FROM = 15
NODES_FROM = 16
TOPIC_ID_BYTES = 16
_REPLICA_STATE_TAG = 1
# Topics and partitions that are decoded or encoded without a yield.
ENTRIES_AT_ONCE = 256

# Twice as fast as the named tuple's own constructor, which matters for every partition.
_new = tuple.__new__

_HEAD_V4 = Struct(">iiiib")  # replica, max wait, min bytes, max bytes, isolation level
_HEAD_V7 = Struct(">iiiibii")  # … and session id and epoch
_HEAD_V15 = Struct(">iiibii")  # … without the replica
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_REPLICA_STATE = Struct(">iq")

# index, [leader epoch,] fetch offset, [last fetched epoch,] [log start offset,] max bytes
_PARTITION_V4 = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
_PARTITION_V12 = Struct(">iiqiqiB")  # … and the number of tagged fields

_FRAME_V4 = Struct(">iii")  # size, correlation id, throttle time
_FRAME_V7 = Struct(">iiihi")  # … and error and session id
_FRAME_V12 = Struct(">iixihi")  # … behind a header with tagged fields
_RESULT_V4 = Struct(">ihqq")  # index, error, high watermark, last stable offset
_RESULT_V5 = Struct(">ihqqq")  # … and log start offset
_RESULT_V12 = Struct(">ihqqqBi")  # … and no aborted transactions, and preferred read replica
_ABORTED = Struct(">qq")
_ABORTED_V12 = Struct(">qqx")
_DIVERGING_EPOCH = Struct(">BBiqx")  # a tagged field: its number, size, epoch and end offset
_CURRENT_LEADER = Struct(">BBiix")  # … and id and epoch


class PartitionWanted(NamedTuple):
    """The requested position and limits of one partition."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchCall(NamedTuple):
    """A Fetch request; topics as pairs of name or id and their partitions."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[bytes, list[PartitionWanted]]]
    forgotten: list[tuple[bytes, list[int]]]
    rack_id: str
    replica_id: int
    replica_epoch: int


class PartitionFetched(NamedTuple):
    """The response for one partition, without its records."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records_bytes: int = 0
    # Epoch and end offset where the client's log diverges.
    diverging_epoch: tuple[int, int] | None = None
    preferred_read_replica: int = -1
    # Producer id and first offset of each aborted transaction; None unless read-committed.
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    # Id and epoch of the leader, if another broker leads the partition.
    current_leader: tuple[int, int] | None = None


def decode_fetch(version: int, data: memoryview, at: int) -> FetchCall:
    """Decode the Fetch request in `data` from `at` to the end. Raises ProtocolError.

    Raises ManyEntries for one that has to be decoded by `decode_fetch_in_slices`.
    """
    try:
        return (_decode_legacy if version < FLEXIBLE_FROM else _decode_flexible)(version, data, at)
    except (struct.error, IndexError, ValueError) as error:
        # The generated decoder fails at the same place and can name the field.
        decode(FetchRequest, version, data, at)
        raise ProtocolError(f"FetchRequest v{version}: {error}") from error


def decode_fetch_in_slices(version: int, data: memoryview, at: int) -> Generator[None, None, FetchCall]:
    """Decode a Fetch request of any size in slices."""
    request = yield from decode_in_slices(FetchRequest, version, data, at)
    topics = []
    for topic in request.topics:
        key = topic.topic_id.bytes if version >= TOPIC_IDS_FROM else topic.topic.encode()
        partitions: list[PartitionWanted] = []
        for number, each in enumerate(topic.partitions):
            if not number % ENTRIES_AT_ONCE:
                yield
            partitions.append(
                PartitionWanted(
                    each.partition,
                    each.current_leader_epoch,
                    each.fetch_offset,
                    each.last_fetched_epoch,
                    each.log_start_offset,
                    each.partition_max_bytes,
                )
            )
        topics.append((key, partitions))
    forgotten = []
    for each_forgotten in request.forgotten_topics_data:
        yield
        by_id = version >= TOPIC_IDS_FROM
        key = each_forgotten.topic_id.bytes if by_id else each_forgotten.topic.encode()
        forgotten.append((key, list(each_forgotten.partitions)))
    state = request.replica_state
    return FetchCall(
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        topics,
        forgotten,
        request.rack_id,
        state.replica_id if version >= REPLICA_STATE_FROM else request.replica_id,
        state.replica_epoch,
    )


def _decode_legacy(version: int, data: memoryview, at: int) -> FetchCall:
    session_id, session_epoch, rack_id = 0, -1, ""
    forgotten = []
    if version < SESSIONS_FROM:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = _HEAD_V4.unpack_from(data, at)
        at += _HEAD_V4.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = (
            _HEAD_V7.unpack_from(data, at)
        )
        at += _HEAD_V7.size
    layout = _PARTITION_V4 if version < 5 else _PARTITION_V5 if version < 9 else _PARTITION_V9
    topic_count, at = _legacy_count(data, at, 6)
    entries = topic_count
    topics = []
    for _ in range(topic_count):
        topic, at = _legacy_text(data, at)
        count, at = _legacy_count(data, at, layout.size)
        entries += count
        if entries > ENTRIES_AT_ONCE:
            raise ManyEntries
        stop = at + count * layout.size
        rows = layout.iter_unpack(data[at:stop])
        if version < 5:
            partitions = [
                _new(PartitionWanted, (partition, -1, offset, -1, -1, size))
                for partition, offset, size in rows
            ]
        elif version < 9:
            partitions = [
                _new(PartitionWanted, (partition, -1, offset, -1, start, size))
                for partition, offset, start, size in rows
            ]
        else:
            partitions = [
                _new(PartitionWanted, (partition, epoch, offset, -1, start, size))
                for partition, epoch, offset, start, size in rows
            ]
        topics.append((topic, partitions))
        at = stop
    if version >= SESSIONS_FROM:
        topic_count, at = _legacy_count(data, at, 6)
        entries += topic_count
        for _ in range(topic_count):
            topic, at = _legacy_text(data, at)
            count, at = _legacy_count(data, at, 4)
            entries += count
            if entries > ENTRIES_AT_ONCE:
                raise ManyEntries
            forgotten.append((topic, list(struct.unpack_from(f">{count}i", data, at))))
            at += count * 4
    if version >= RACK_FROM:
        rack, at = _legacy_text(data, at)
        rack_id = rack.decode()
    return FetchCall(
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch,
        topics, forgotten, rack_id, replica_id, -1,
    )  # fmt: skip


def _legacy_count(data: memoryview, at: int, least_bytes: int) -> tuple[int, int]:
    (count,) = _INT32.unpack_from(data, at)
    at += 4
    if count < 0:
        raise Malformed(f"an array has {count} entries")
    check_count(count, least_bytes, len(data) - at)
    return count, at


def _legacy_text(data: memoryview, at: int) -> tuple[bytes, int]:
    (length,) = _INT16.unpack_from(data, at)
    at += 2
    if not 0 <= length <= len(data) - at:
        raise Malformed(f"a text has length {length}")
    return _utf8(data[at : at + length]), at + length


def _utf8(slice_: memoryview) -> bytes:
    text = bytes(slice_)
    if not text.isascii():
        text.decode()  # must be UTF-8
    return text


def _decode_flexible(version: int, data: memoryview, at: int) -> FetchCall:
    replica_id = replica_epoch = -1
    if version < REPLICA_STATE_FROM:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = (
            _HEAD_V7.unpack_from(data, at)
        )
        at += _HEAD_V7.size
    else:
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = _HEAD_V15.unpack_from(
            data, at
        )
        at += _HEAD_V15.size
    topics = []
    topic_count, at = _flexible_count(data, at, 3)
    entries = topic_count
    for _ in range(topic_count):
        topic, at = _flexible_topic(version, data, at)
        count, at = _flexible_count(data, at, _PARTITION_V12.size)
        entries += count
        if entries > ENTRIES_AT_ONCE:
            raise ManyEntries
        partitions = []
        for _ in range(count):
            row = _PARTITION_V12.unpack_from(data, at)
            partitions.append(_new(PartitionWanted, row[:6]))
            at += _PARTITION_V12.size
            if row[6]:
                at = skip_tagged_fields(data, at - 1)
        topics.append((topic, partitions))
        at = skip_tagged_fields(data, at) if data[at] else at + 1
    # Usually there are no forgotten topics and no rack: an empty array's byte each.
    forgotten, at = ([], at + 1) if data[at] == 1 else _flexible_forgotten(version, data, at)
    rack, at = (b"", at + 1) if data[at] == 1 else _flexible_text(data, at)
    if data[at]:
        if version >= REPLICA_STATE_FROM:
            replica_id, replica_epoch = _replica_state(data, at)
        skip_tagged_fields(data, at)
    return FetchCall(
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch,
        topics, forgotten, rack.decode(), replica_id, replica_epoch,
    )  # fmt: skip


def _flexible_forgotten(version: int, data: memoryview, at: int) -> tuple[list[tuple[bytes, list[int]]], int]:
    forgotten = []
    topic_count, at = _flexible_count(data, at, 3)
    entries = topic_count
    for _ in range(topic_count):
        topic, at = _flexible_topic(version, data, at)
        count, at = _flexible_count(data, at, 4)
        entries += count
        if entries > ENTRIES_AT_ONCE:
            raise ManyEntries
        forgotten.append((topic, list(struct.unpack_from(f">{count}i", data, at))))
        at += count * 4
        at = skip_tagged_fields(data, at) if data[at] else at + 1
    return forgotten, at


def _flexible_count(data: memoryview, at: int, least_bytes: int) -> tuple[int, int]:
    count = data[at]
    at += 1
    if count > 127:
        count, at = read_uvarint(data, at - 1)
    if not count:
        raise Malformed("an array may not be null")
    check_count(count - 1, least_bytes, len(data) - at)
    return count - 1, at


def _flexible_topic(version: int, data: memoryview, at: int) -> tuple[bytes, int]:
    if version < TOPIC_IDS_FROM:
        return _flexible_text(data, at)
    stop = at + TOPIC_ID_BYTES
    return bytes(data[at:stop]), stop


def _flexible_text(data: memoryview, at: int) -> tuple[bytes, int]:
    length, at = _flexible_count(data, at, 1)
    return _utf8(data[at : at + length]), at + length


def _replica_state(data: memoryview, at: int) -> tuple[int, int]:
    """Return id and epoch of a replica from the tagged fields at `at`; -1 each for a consumer."""
    state = (-1, -1)
    count, at = read_uvarint(data, at)
    check_tag_count(count, len(data) - at)
    for _ in range(count):
        number, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        if number == _REPLICA_STATE_TAG:
            state = _REPLICA_STATE.unpack_from(data, at)
        at += size
    return state


def encode_fetch_response(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[bytes, Sequence[PartitionFetched]]],
    nodes: Sequence[Node] = (),
) -> list[bytes]:
    """Encode the response frame without its records, as pieces between which the records go.

    There is one piece more than there are partitions with records, in the order of the partitions; the
    frame size includes the records.
    """
    return run_to_end(
        encode_fetch_response_in_slices(
            version, correlation_id, throttle_ms, error_code, session_id, topics, nodes
        )
    )


def encode_fetch_response_in_slices(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[bytes, Sequence[PartitionFetched]]],
    nodes: Sequence[Node] = (),
) -> Generator[None, None, list[bytes]]:
    """Encode the response in slices, as `encode_fetch_response` does in one go."""
    if version < FLEXIBLE_FROM:
        pieces, records_bytes = yield from _encode_legacy(version, topics)
    else:
        pieces, records_bytes = yield from _encode_flexible(
            version, topics, nodes if version >= NODES_FROM else ()
        )
    size = sum(map(len, pieces)) + records_bytes
    if version < SESSIONS_FROM:
        head = _FRAME_V4.pack(size + _FRAME_V4.size - 4, correlation_id, throttle_ms)
    else:
        frame = _FRAME_V7 if version < FLEXIBLE_FROM else _FRAME_V12
        head = frame.pack(size + frame.size - 4, correlation_id, throttle_ms, error_code, session_id)
    pieces[0] = head + pieces[0]
    return pieces


def _encode_legacy(
    version: int, topics: Sequence[tuple[bytes, Sequence[PartitionFetched]]]
) -> Generator[None, None, tuple[list[bytes], int]]:
    """Return the pieces of the topics, and the bytes of records between them."""
    pieces = []
    total = 0
    out = bytearray(_INT32.pack(len(topics)))
    for topic, partitions in topics:
        out += _INT16.pack(len(topic)) + topic + _INT32.pack(len(partitions))
        for number, partition in enumerate(partitions, 1):
            if not number % ENTRIES_AT_ONCE:
                yield
            out += _RESULT_V4.pack(*partition[:4]) if version < 5 else _RESULT_V5.pack(*partition[:5])
            if partition.aborted_transactions is None:
                out += _INT32.pack(-1)
            else:
                out += _INT32.pack(len(partition.aborted_transactions))
                for transaction in partition.aborted_transactions:
                    out += _ABORTED.pack(*transaction)
            if version >= RACK_FROM:
                out += _INT32.pack(partition.preferred_read_replica)
            out += _INT32.pack(partition.records_bytes)
            if partition.records_bytes:
                total += partition.records_bytes
                pieces.append(bytes(out))
                out.clear()
    pieces.append(bytes(out))
    return pieces, total


def _tagged(partition: PartitionFetched) -> bytes:
    """Return the tagged fields of a partition."""
    fields = []
    if partition.diverging_epoch is not None:
        fields.append(_DIVERGING_EPOCH.pack(0, 13, *partition.diverging_epoch))
    if partition.current_leader is not None:
        fields.append(_CURRENT_LEADER.pack(1, 9, *partition.current_leader))
    return bytes([len(fields)]) + b"".join(fields)


def _encode_flexible(
    version: int, topics: Sequence[tuple[bytes, Sequence[PartitionFetched]]], nodes: Sequence[Node]
) -> Generator[None, None, tuple[list[bytes], int]]:
    """Return the pieces of the topics, and the bytes of records between them."""
    pieces = []
    total = 0
    out = bytearray(uvarint(len(topics) + 1))
    for topic, partitions in topics:
        if version < TOPIC_IDS_FROM:
            out += uvarint(len(topic) + 1)
        out += topic
        out += uvarint(len(partitions) + 1)
        for number, partition in enumerate(partitions, 1):
            if not number % ENTRIES_AT_ONCE:
                yield
            aborted = partition.aborted_transactions
            if aborted is None:
                out += _RESULT_V12.pack(*partition[:5], 0, partition.preferred_read_replica)
            else:
                out += _RESULT_V5.pack(*partition[:5])
                out += uvarint(len(aborted) + 1)
                for transaction in aborted:
                    out += _ABORTED_V12.pack(*transaction)
                out += _INT32.pack(partition.preferred_read_replica)
            out += uvarint(partition.records_bytes + 1)
            if partition.records_bytes:
                total += partition.records_bytes
                pieces.append(bytes(out))
                out.clear()
            if partition.diverging_epoch is None and partition.current_leader is None:
                out.append(0)
            else:
                out += _tagged(partition)
        out.append(0)
    out += encode_nodes(nodes)
    pieces.append(bytes(out))
    return pieces, total
