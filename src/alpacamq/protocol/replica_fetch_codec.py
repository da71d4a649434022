"""Codec for the Fetch requests and responses of followers, in one fixed version.

Same bytes as the generated codecs of `messages.fetch`. The leader decodes requests and encodes responses with
`fetch_codec`; this is the other side of both.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from .apis import ApiKey
from .errors import ProtocolError
from .fetch_codec import TOPIC_ID_BYTES, PartitionFetched, PartitionWanted
from .varint import Malformed, read_uvarint, skip_tagged_fields, uvarint

# With topic ids, and with id and epoch of the replica.
VERSION = 15

_FRAME = Struct(">ihhihBiiibii")  # size, header without a client id, and the request up to its session
_SIZE_BYTES = 4
_PARTITION = Struct(">iiqiqix")
_INT32 = Struct(">i")
# No rack; then the tagged field 1 of 13 bytes: replica id and epoch.
_TAIL = Struct(">BBBBiqx")
_RESPONSE = Struct(">ixihi")  # correlation id, throttle time, error, session
_RESULT = Struct(">ihqqqBi")
_DIVERGING = Struct(">BBBiqx")
_DIVERGING_TAG = (1, 0, 13)

PartitionKey = tuple[bytes, int]


class ReplicaFetch(NamedTuple):
    """A replica fetch: positions by topic id, and the partitions that the follower has dropped."""

    correlation_id: int
    max_wait_ms: int
    max_bytes: int
    topics: Mapping[bytes, Sequence[PartitionWanted]]
    forgotten: Mapping[bytes, Sequence[int]]
    replica_id: int
    replica_epoch: int


class ReplicaFetched(NamedTuple):
    """The response for one partition. `last_stable_offset` is the end of the leader's log."""

    topic_id: bytes
    fetched: PartitionFetched
    records: memoryview


def encode_replica_fetch(call: ReplicaFetch) -> bytes:
    """Return the request as a frame."""
    out = bytearray(_FRAME.size)
    out += uvarint(len(call.topics) + 1)
    for topic_id, partitions in call.topics.items():
        out += topic_id
        out += uvarint(len(partitions) + 1)
        for wanted in partitions:
            out += _PARTITION.pack(*wanted)
        out.append(0)
    out += uvarint(len(call.forgotten) + 1)
    for topic_id, indexes in call.forgotten.items():
        out += topic_id
        out += uvarint(len(indexes) + 1)
        for index in indexes:
            out += _INT32.pack(index)
        out.append(0)
    out += _TAIL.pack(1, 1, 1, 13, call.replica_id, call.replica_epoch)
    _FRAME.pack_into(
        out,
        0,
        len(out) - _SIZE_BYTES,
        ApiKey.FETCH.value,
        VERSION,
        call.correlation_id,
        -1,  # no client id
        0,
        call.max_wait_ms,
        1,
        call.max_bytes,
        0,
        0,
        -1,
    )
    return bytes(out)


def read_correlation_id(frame: memoryview) -> int:
    """Return the id of the request that a response frame answers. Raises ProtocolError."""
    if len(frame) < _RESPONSE.size:
        raise ProtocolError(f"a fetch response of {len(frame)} bytes")
    correlation_id: int = _INT32.unpack_from(frame)[0]
    return correlation_id


def decode_replica_fetched(frame: memoryview) -> Iterator[ReplicaFetched]:
    """Yield the partitions of a response frame without its size. Raises ProtocolError."""
    try:
        yield from _decode(frame)
    except (struct.error, IndexError, Malformed) as error:
        raise ProtocolError(f"a fetch response of {len(frame)} bytes cannot be read: {error}") from error


def _decode(frame: memoryview) -> Iterator[ReplicaFetched]:
    _, _, error_code, _ = _RESPONSE.unpack_from(frame)
    if error_code:
        raise ProtocolError(f"the leader refused the fetch with error {error_code}")
    topic_count, at = read_uvarint(frame, _RESPONSE.size)
    for _ in range(topic_count - 1):
        topic_id = bytes(frame[at : at + TOPIC_ID_BYTES])
        partition_count, at = read_uvarint(frame, at + TOPIC_ID_BYTES)
        for _ in range(partition_count - 1):
            index, code, watermark, log_end, log_start, aborted, _ = _RESULT.unpack_from(frame, at)
            if aborted:
                raise ProtocolError("the response lists aborted transactions, as for a consumer")
            length, at = read_uvarint(frame, at + _RESULT.size)
            length = max(length - 1, 0)
            records = frame[at : at + length]
            if len(records) != length:
                raise ProtocolError(f"{length} bytes of records are announced, {len(records)} are there")
            at += length
            diverging = None
            if frame[at]:
                *tag, epoch, end_offset = _DIVERGING.unpack_from(frame, at)
                if tuple(tag) == _DIVERGING_TAG:
                    diverging = epoch, end_offset
                at = skip_tagged_fields(frame, at)
            else:
                at += 1
            yield ReplicaFetched(
                topic_id,
                PartitionFetched(index, code, watermark, log_end, log_start, length, diverging),
                records,
            )
        at = skip_tagged_fields(frame, at) if frame[at] else at + 1
