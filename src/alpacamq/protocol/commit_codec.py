"""Hand-written codec for OffsetCommit, which every consumer sends, and its response.

Same bytes as the generated codecs of `messages.committed_offsets`, in fewer steps. Topics are identified by
their bytes on the wire: the name before version 10, the 16 bytes of the id from then on.
"""

import struct
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from .messages.committed_offsets import OffsetCommitRequest
from .schema import decode
from .varint import Malformed, uvarint

FLEXIBLE_FROM = OffsetCommitRequest.flexible_from
TOPIC_IDS_FROM = 10
_TOPIC_ID_BYTES = 16
_THROTTLE_TIME_FROM = 3
_LAST_WITH_RETENTION = 4
_LEADER_EPOCH_FROM = 6
_INSTANCE_ID_FROM = 7
_NO_LEADER_EPOCH = -1

# An offset for one partition: its index, the offset, the leader epoch and the metadata.
PartitionCommit = tuple[int, int, int, str]

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_GENERATION = Struct(">ih")  # … and the length of the member id
_FLEXIBLE_GENERATION = Struct(">iB")
_PARTITION = Struct(">iqh")  # index, offset, length of metadata
_PARTITION_V6 = Struct(">iqih")  # … with the leader epoch
_FLEXIBLE_PARTITION = Struct(">iqiB")

_HEAD = Struct(">iii")  # size, correlation id, number of topics
_HEAD_V3 = Struct(">iiii")  # … with the throttle time
_FLEXIBLE_HEAD = Struct(">iixi")
_RESULT = Struct(">ih")  # index, error
_FLEXIBLE_RESULT = Struct(">ihx")


class CommitCall(NamedTuple):
    """An OffsetCommit request; topics as pairs of name or id and the offsets of their partitions."""

    group: str
    generation: int
    member_id: str
    instance_id: str | None
    topics: list[tuple[bytes, list[PartitionCommit]]]


def decode_offset_commit(version: int, data: memoryview, at: int) -> CommitCall:
    """Decode the OffsetCommit request in `data` from `at` to the end. Raises ProtocolError."""
    try:
        if version < FLEXIBLE_FROM:
            return _decode_legacy(version, data, at)
        return _decode_flexible(version, data, at)
    except (struct.error, IndexError, ValueError):
        # Left to the generated decoder, which names the field: long names, tagged fields and what is wrong.
        return _call_of(decode(OffsetCommitRequest, version, data, at), version)


def _call_of(request: OffsetCommitRequest, version: int) -> CommitCall:
    return CommitCall(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        [
            (
                topic.topic_id.bytes if version >= TOPIC_IDS_FROM else topic.name.encode(),
                [
                    (
                        each.partition_index,
                        each.committed_offset,
                        each.committed_leader_epoch,
                        each.committed_metadata or "",
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _decode_legacy(version: int, data: memoryview, at: int) -> CommitCall:
    (length,) = _INT16.unpack_from(data, at)
    at += 2 + length
    group = str(data[at - length : at], "utf-8")
    generation, member_length = _GENERATION.unpack_from(data, at)
    at += 6 + member_length
    member_id = str(data[at - member_length : at], "utf-8")
    if length < 0 or member_length < 0:
        raise Malformed("a length is negative")
    instance_id = None
    if version >= _INSTANCE_ID_FROM:
        (length,) = _INT16.unpack_from(data, at)
        at += 2
        if length != -1:
            if length < 0:
                raise Malformed("a length is negative")
            instance_id = str(data[at : at + length], "utf-8")
            at += length
    elif version <= _LAST_WITH_RETENTION:
        _INT64.unpack_from(data, at)
        at += 8
    (topic_count,) = _INT32.unpack_from(data, at)
    at += 4
    has_epoch = version >= _LEADER_EPOCH_FROM
    topics: list[tuple[bytes, list[PartitionCommit]]] = []
    for _ in range(topic_count):
        (length,) = _INT16.unpack_from(data, at)
        at += 2 + length
        topic = bytes(data[at - length : at])
        (count,) = _INT32.unpack_from(data, at)
        at += 4
        if length < 0 or count < 0:
            raise Malformed("a length is negative")
        if not topic.isascii():
            topic.decode()  # must be UTF-8
        partitions: list[PartitionCommit] = []
        for _ in range(count):
            if has_epoch:
                index, offset, leader_epoch, length = _PARTITION_V6.unpack_from(data, at)
                at += 18
            else:
                index, offset, length = _PARTITION.unpack_from(data, at)
                leader_epoch = _NO_LEADER_EPOCH
                at += 14
            metadata = ""
            if length > 0:
                metadata = str(data[at : at + length], "utf-8")
                at += length
            elif length < -1:
                raise Malformed("a length is negative")
            partitions.append((index, offset, leader_epoch, metadata))
        topics.append((topic, partitions))
    if topic_count < 0 or at > len(data):
        raise Malformed("a length is negative, or the data ends first")
    return CommitCall(group, generation, member_id, instance_id, topics)


def _decode_flexible(version: int, data: memoryview, at: int) -> CommitCall:
    # Lengths and counts are one more than their value, 0 for null, above 127 if they have more bytes.
    group_length = data[at]
    start = at + 1
    at += group_length
    group = str(data[start:at], "utf-8")
    generation, member_length = _FLEXIBLE_GENERATION.unpack_from(data, at)
    start = at + 5
    at += 4 + member_length
    member_id = str(data[start:at], "utf-8")
    instance_id, instance_length = None, data[at]
    start = at + 1
    if instance_length:
        at += instance_length
        instance_id = str(data[start:at], "utf-8")
    else:
        at = start
    topic_count = data[at]
    at += 1
    if not (group_length and member_length and topic_count) or (
        max(group_length, member_length, instance_length, topic_count) > 127
    ):
        raise Malformed("a name is missing or long, or there are many topics")
    topics: list[tuple[bytes, list[PartitionCommit]]] = []
    for _ in range(topic_count - 1):
        if version >= TOPIC_IDS_FROM:
            topic = bytes(data[at : at + _TOPIC_ID_BYTES])
            at += _TOPIC_ID_BYTES
        else:
            length = data[at]
            topic = bytes(data[at + 1 : at + length])
            at += length
            if not length or length > 127:
                raise Malformed("a name is missing or long")
            if not topic.isascii():
                topic.decode()  # must be UTF-8
        count = data[at]
        at += 1
        if not count or count > 127:
            raise Malformed("partitions are missing or many")
        partitions: list[PartitionCommit] = []
        for _ in range(count - 1):
            index, offset, leader_epoch, length = _FLEXIBLE_PARTITION.unpack_from(data, at)
            at += 17
            metadata = ""
            if length > 1:
                metadata = str(data[at : at + length - 1], "utf-8")
                at += length - 1
            if length > 127 or data[at]:
                raise Malformed("metadata is long, or there are tagged fields")
            at += 1
            partitions.append((index, offset, leader_epoch, metadata))
        if data[at]:
            raise Malformed("there are tagged fields")
        at += 1
        topics.append((topic, partitions))
    if data[at]:
        raise Malformed("there are tagged fields")
    return CommitCall(group, generation, member_id, instance_id, topics)


def encode_offset_commit_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[PartitionCommit]]],
    codes: Iterable[int],
) -> bytes:
    """Encode the whole response frame, size included; `codes` are those of the partitions, in order."""
    code_at = iter(codes)
    if version < FLEXIBLE_FROM:
        parts = [b""]
        for topic, partitions in topics:
            parts += (_INT16.pack(len(topic)), topic, _INT32.pack(len(partitions)))
            for each in partitions:
                parts.append(_RESULT.pack(each[0], next(code_at)))
        body = b"".join(parts)
        if version < _THROTTLE_TIME_FROM:
            return _HEAD.pack(len(body) + 8, correlation_id, len(topics)) + body
        return _HEAD_V3.pack(len(body) + 12, correlation_id, 0, len(topics)) + body
    parts = [uvarint(len(topics) + 1)]
    for topic, partitions in topics:
        if version < TOPIC_IDS_FROM:
            parts.append(uvarint(len(topic) + 1))
        parts += (topic, uvarint(len(partitions) + 1))
        for each in partitions:
            parts.append(_FLEXIBLE_RESULT.pack(each[0], next(code_at)))
        parts.append(b"\0")
    parts.append(b"\0")
    body = b"".join(parts)
    return _FLEXIBLE_HEAD.pack(len(body) + 9, correlation_id, 0) + body
