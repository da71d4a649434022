"""The follower's side of Fetch: the same bytes as the generated codecs."""

from uuid import UUID

import pytest

from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.fetch_codec import (
    PartitionFetched,
    PartitionWanted,
    decode_fetch,
    encode_fetch_response,
)
from alpacamq.protocol.framing import read_request_header
from alpacamq.protocol.messages.fetch import FetchRequest
from alpacamq.protocol.replica_fetch_codec import (
    VERSION,
    ReplicaFetch,
    ReplicaFetched,
    decode_replica_fetched,
    encode_replica_fetch,
    read_correlation_id,
)
from alpacamq.protocol.schema import decode

A, B = UUID(int=1), UUID(int=2)
CALL = ReplicaFetch(
    correlation_id=77,
    max_wait_ms=500,
    max_bytes=1 << 20,
    topics={
        A.bytes: [PartitionWanted(3, 5, 1000, 4, 10, 4096)],
        B.bytes: [PartitionWanted(0, 1, 0, -1, -1, 1)],
    },
    forgotten={B.bytes: [7, 300]},
    replica_id=2,
    replica_epoch=41,
)


def test_a_request_is_read_as_it_was_written() -> None:
    frame = memoryview(encode_replica_fetch(CALL))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header = read_request_header(frame[4:])
    assert (header.api_key, header.api_version, header.correlation_id) == (ApiKey.FETCH, VERSION, 77)
    call = decode_fetch(VERSION, frame[4:], header.body_at)
    assert dict(call.topics) == CALL.topics
    assert dict(call.forgotten) == CALL.forgotten
    assert (call.max_wait_ms, call.min_bytes, call.max_bytes) == (500, 1, 1 << 20)
    assert (call.replica_id, call.replica_epoch) == (2, 41)


def test_the_generated_codec_reads_the_same_request() -> None:
    frame = memoryview(encode_replica_fetch(CALL))[4:]
    request = decode(FetchRequest, VERSION, frame, read_request_header(frame).body_at)
    assert [(topic.topic_id, len(topic.partitions)) for topic in request.topics] == [(A, 1), (B, 1)]
    assert request.replica_state.replica_epoch == 41
    assert APIS[ApiKey.FETCH].flexible_from <= VERSION


def response(topics: list[tuple[bytes, list[PartitionFetched]]], *records: bytes) -> memoryview:
    pieces = encode_fetch_response(VERSION, 77, 0, 0, 0, topics)
    woven = bytearray(pieces[0])
    for part, piece in zip(records, pieces[1:], strict=True):
        woven += part + piece
    return memoryview(woven)[4:]


def test_a_response_is_read_as_it_was_written() -> None:
    with_records = PartitionFetched(3, 0, 9, 12, 1, 300)
    diverging = PartitionFetched(4, 0, 9, 12, 1, 0, (2, 8))
    failed = PartitionFetched(0, 6)
    frame = response([(A.bytes, [with_records, diverging]), (B.bytes, [failed])], b"r" * 300)
    assert read_correlation_id(frame) == 77
    assert list(decode_replica_fetched(frame)) == [
        ReplicaFetched(A.bytes, with_records, memoryview(b"r" * 300)),
        ReplicaFetched(A.bytes, diverging, memoryview(b"")),
        ReplicaFetched(B.bytes, failed, memoryview(b"")),
    ]


def test_a_response_cut_short_is_refused() -> None:
    frame = response([(A.bytes, [PartitionFetched(3, 0, 9, 12, 1, 30)])], b"r" * 30)
    for size in range(12, len(frame) - 2):
        with pytest.raises(ProtocolError):
            list(decode_replica_fetched(frame[:size]))
