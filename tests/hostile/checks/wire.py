"""Checks 1 to 8: frames, other protocols, counts, varints, tagged fields and compression bombs."""

import json
import ssl
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from struct import pack
from time import time
from typing import Any

import cramjam
import lz4.frame
import msgspec
import zstandard

from alpacamq.model.batch import CHECKED_FROM, CRC_AT, FRAME_BYTES, HEADER, MAGIC, Codec, checksum
from alpacamq.model.headers import DELIVER_AT
from alpacamq.model.records import Record, write_batch
from alpacamq.protocol.apis import ApiKey
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from alpacamq.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from alpacamq.protocol.varint import uvarint
from tests.api.http.serving import Client
from tests.api.kafka.wire import wired
from tests.hostile.target import ADMIN, MALLORY, MIB, OPEN, Target, http_request

from . import Check, closed, first_answer

# The header of a Kafka request behind its key and version: correlation id, and no client id.
_REST_OF_HEADER = pack(">ih", 1, -1)
BOMB_BYTES = 128 * MIB
UNPACKED_RECORDS = 100_000


def _frame(size: int, sent: bytes = b"") -> Callable[[Target], str]:
    """Announce a frame of this size before authentication."""

    def attack(target: Target) -> str:
        with wired(target.kafka_address) as wire:
            wire.send_bytes(pack(">i", size) + sent)
            return closed(target, wire)

    return attack


def _frame_logged_in(size: int) -> Callable[[Target], str]:
    def attack(target: Target) -> str:
        with target.kafka(MALLORY) as wire:
            wire.send_bytes(pack(">i", size))
            return closed(target, wire)

    return attack


def _cluster_frame(size: int) -> Callable[[Target], str]:
    return lambda target: cluster_refusal(target, size.to_bytes(4, "big"))


def cluster_refusal(target: Target, sent: bytes) -> str:
    """Send bytes to the cluster listener; return the refusal."""
    with Client(target.cluster) as client:
        client.send(sent)
        data = b""
        with suppress(ConnectionError):
            while chunk := client.socket.recv(4096):
                data += chunk
    tag, refusal, _ = msgspec.msgpack.decode(data[4:])
    return f"{tag}: {refusal}"


def _kafka_to(listener: str) -> Callable[[Target], str]:
    """Send a Kafka request to an HTTP listener."""
    payload = pack(">hh", ApiKey.API_VERSIONS, 0) + _REST_OF_HEADER
    return lambda target: first_answer(getattr(target, listener), pack(">i", len(payload)) + payload)


def _tls_to(listener: str) -> Callable[[Target], str]:
    hello = client_hello()

    def attack(target: Target) -> str:
        if listener == "kafka":
            with wired(target.kafka_address) as wire:
                wire.send_bytes(hello)
                return closed(target, wire)
        if listener == "cluster":
            return cluster_refusal(target, hello)
        return first_answer(getattr(target, listener), hello)

    return attack


def client_hello() -> bytes:
    """Return the first bytes of a TLS client."""
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def _plain_to_tls(target: Target) -> str:
    """Send a Kafka request to a listener with TLS."""
    payload = pack(">hh", ApiKey.API_VERSIONS, 0) + _REST_OF_HEADER
    with wired(target.encrypted) as wire:
        wire.send_bytes(pack(">i", len(payload)) + payload)
        assert wire.is_closed, "the broker answered"
        name = wire.name

        def is_wanted(line: dict[str, Any]) -> bool:
            return bool(line["event"] == "handshake_failed" and line["peer"] == name)

        return f"closed: {target.wait_for_log(is_wanted)['reason']}"


def _http_to_kafka(target: Target) -> str:
    with wired(target.kafka_address) as wire:
        wire.send_bytes(http_request("GET", "/", b"", {}))
        return closed(target, wire)


def _http_to_cluster(target: Target) -> str:
    return cluster_refusal(target, http_request("GET", "/", b"", {}))


def _request(key: ApiKey, version: int, body: bytes, *, tags: bytes = b"\0") -> Callable[[Target], str]:
    """Send a request with a header of flexible versions if `tags` are given, as Mallory."""

    def attack(target: Target) -> str:
        with target.kafka(MALLORY) as wire:
            wire.send_frame(pack(">hh", key, version) + _REST_OF_HEADER + tags + body)
            return closed(target, wire)

    return attack


_FETCH_HEAD = pack(">iiibii", 0, 0, MIB, 0, 0, -1)
_PRODUCE_HEAD = b"\0" + pack(">hi", 1, 1000)
_HUGE_VARINT = b"\xff\xff\xff\xff\x0f"
_ENDLESS_VARINT = b"\xff" * 12


def _many_tags(count: int) -> bytes:
    return uvarint(count) + b"".join(uvarint(number) + b"\0" for number in range(count))


def _tags_in_every_entry(target: Target) -> str:
    """The most tagged fields that are served: 100 in each of many entries."""
    entry = b"\2x" + _many_tags(100)
    count = (8 * MIB - 1000) // len(entry)
    body = uvarint(count + 1) + entry * count + b"\0\0\0\0"
    with target.kafka(MALLORY) as wire:
        wire.send_frame(pack(">hh", ApiKey.METADATA, 9) + _REST_OF_HEADER + b"\0" + body)
        wire.receive_frame()
    return "answered"


def _record_count(count: int, codec: Codec = Codec.NONE) -> Callable[[Target], str]:
    """Produce a batch that claims more records than it has."""

    def attack(target: Target) -> str:
        batch = write_batch([Record(0, 0, b"k", b"v")], codec=codec)
        fields = list(HEADER.unpack_from(batch))
        fields[6], fields[12] = count - 1, count
        HEADER.pack_into(batch, 0, *fields)
        batch[CRC_AT:CHECKED_FROM] = checksum(batch).to_bytes(4, "big")
        return produced(target, OPEN, bytes(batch))

    return attack


def produced(target: Target, topic: str, batch: bytes) -> str:
    """Produce a batch as Mallory; return the error."""
    data = [PartitionProduceData(index=0, records=batch)]
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )
    with target.kafka(MALLORY) as wire:
        response = wire.ask(request, 9)
    return ErrorCode(response.responses[0].partition_responses[0].error_code).name


def packed(codec: Codec, chunks: Iterable[bytes]) -> bytes:
    """Compress data without having all of it in memory."""
    match codec:
        case Codec.GZIP:
            packer = zlib.compressobj(wbits=31)
            return b"".join(map(packer.compress, chunks)) + packer.flush()
        case Codec.LZ4:
            frame = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB)
            return bytes(frame.begin()) + b"".join(map(frame.compress, chunks)) + bytes(frame.flush())
        case Codec.ZSTD:
            zstd = zstandard.ZstdCompressor(level=3).compressobj()
            return b"".join(map(zstd.compress, chunks)) + zstd.flush()
    return bytes(cramjam.snappy.compress_raw(b"".join(chunks)))


def bomb(codec: Codec, chunks: Iterable[bytes], records: int = 1) -> bytes:
    """Return a batch with these compressed bytes as its records."""
    body = packed(codec, chunks)
    now_ms = int(time() * 1000)
    batch = bytearray(HEADER.size + len(body))
    batch[HEADER.size :] = body
    HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - FRAME_BYTES,
        0,
        MAGIC,
        0,
        codec,
        records - 1,
        now_ms,
        now_ms,
        -1,
        -1,
        -1,
        records,
    )
    batch[CRC_AT:CHECKED_FROM] = checksum(batch).to_bytes(4, "big")
    return bytes(batch)


def one_large_record(size: int) -> Iterable[bytes]:
    """Yield the bytes of one record with a key and a value of zeros."""
    zeros = bytes(MIB)
    inner = b"\0\0\0" + _varint(1) + b"k" + _varint(size)
    yield _varint(len(inner) + size + 1) + inner
    for _ in range(size // MIB):
        yield zeros
    yield b"\0"


def small_records(count: int, header: bytes = b"\0") -> Iterable[bytes]:
    """Yield the bytes of the smallest records that have a key."""
    for first in range(0, count, 10_000):
        out = bytearray()
        for number in range(first, min(count, first + 10_000)):
            inner = b"\0\0" + _varint(number) + b"\0\1" + header
            out += _varint(len(inner)) + inner
        yield bytes(out)


def _varint(value: int) -> bytes:
    return uvarint(value << 1)


COMPACTED, REPACKED, DELAYED = f"{OPEN}-compacted", f"{OPEN}-repacked", f"{OPEN}-delayed"
QUEUE = f"{OPEN}-queue"
LARGE = str(16 * MIB)


def create(target: Target, topic: str, **settings: str) -> None:
    """Create a topic, unless an earlier check has."""
    configs = [
        CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in settings.items()
    ]
    new = CreatableTopic(name=topic, num_partitions=1, replication_factor=1, configs=configs)
    with target.kafka(ADMIN) as wire:
        (result,) = wire.ask(CreateTopicsRequest(topics=[new])).topics
    assert result.error_code in {0, ErrorCode.TOPIC_ALREADY_EXISTS}, result


def _bomb_validated(codec: Codec) -> Callable[[Target], str]:
    """Produce a bomb to topics whose batches are unpacked: compacted, and with their own compression."""

    def attack(target: Target) -> str:
        create(target, COMPACTED, cleanup_policy="compact", max_message_bytes=LARGE)
        create(target, REPACKED, compression_type="uncompressed", max_message_bytes=LARGE)
        create(target, DELAYED, message_delays="true", max_message_bytes=LARGE)
        batch = bomb(codec, one_large_record(BOMB_BYTES))
        answers = {produced(target, topic, batch) for topic in (COMPACTED, REPACKED, DELAYED)}
        return " and ".join(sorted(answers))

    return attack


def _many_unpacked(target: Target) -> str:
    """Produce as many records as a batch may have to topics that unpack batches."""
    create(target, COMPACTED, cleanup_policy="compact", max_message_bytes=LARGE)
    create(target, REPACKED, compression_type="uncompressed", max_message_bytes=LARGE)
    batch = bomb(Codec.ZSTD, small_records(UNPACKED_RECORDS), UNPACKED_RECORDS)
    return " and ".join(produced(target, topic, batch) for topic in (COMPACTED, REPACKED))


def _many_delayed(count: int) -> Callable[[Target], str]:
    """Produce a batch of delayed records."""

    def attack(target: Target) -> str:
        create(target, DELAYED, message_delays="true", max_message_bytes=LARGE)
        due_ms = str(int(time() * 1000) + 3_600_000).encode()
        name = DELIVER_AT.encode()
        header = _varint(1) + _varint(len(name)) + name + _varint(len(due_ms)) + due_ms
        return produced(target, DELAYED, bomb(Codec.ZSTD, small_records(count, header), count))

    return attack


def _bomb_read(codec: Codec) -> Callable[[Target], str]:
    """Read a stored bomb through every path that decompresses: HTTP, search, timestamps, queues."""

    def attack(target: Target) -> str:
        topic = f"{QUEUE}-{codec.name.lower()}"
        create(target, topic, max_message_bytes=LARGE)
        batch = bomb(codec, one_large_record(BOMB_BYTES))
        assert produced(target, topic, batch) == "NONE"
        assert produced(target, topic, bytes(write_batch([Record(0, 0, None, b"behind the bomb")]))) == "NONE"
        headers = target.bearer(MALLORY)
        read = target.ask_http("GET", f"/topics/{topic}/messages?limit=10", headers=headers)
        found = target.ask_http("GET", f"/topics/{topic}/messages/find?key=k", headers=headers)
        assert {read.status, found.status} == {200}, (read, found)
        polled = target.ask_http(
            "GET", f"/groups/mallory-group/poll?topic={topic}&wait_ms=0", headers=headers
        )
        assert polled.status == 200, polled
        body = json.dumps({"QueueUrl": target.queue_url(topic), "WaitTimeSeconds": 0}).encode()
        received = target.ask_sqs(target.signed("ReceiveMessage", body, MALLORY))
        assert received.status == 200, received
        wanted = ListOffsetsPartition(partition_index=0, timestamp=1)
        with target.kafka(MALLORY) as wire:
            listed = wire.ask(ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[wanted])]))
        assert listed.topics[0].partitions[0].error_code == 0, listed
        behind = b64encode(b"behind the bomb").decode()
        assert b"behind the bomb" in read.body or behind.encode() in read.body, read.body
        return "skipped"

    return attack


def _json(nesting: int) -> Callable[[Target], str]:
    """Publish a value that is nested deeply."""

    def attack(target: Target) -> str:
        body = b'{"value": ' + b"[" * nesting + b"]" * nesting + b"}"
        answer = target.ask_http("POST", f"/topics/{OPEN}/messages", body, target.bearer(MALLORY))
        return str(answer.status)

    return attack


def _schemas(kind: str, name: str, texts: Callable[[], Sequence[str]]) -> Callable[[Target], str]:
    """Register schemas that take long to parse or to compare, one after the other."""

    def attack(target: Target) -> str:
        statuses = []
        for text in texts():
            body = json.dumps({"schemaType": kind, "schema": text}).encode()
            path = f"/subjects/{OPEN}-{name}/versions"
            statuses.append(target.ask_registry("POST", path, body, target.bearer(MALLORY)).status)
        return ", ".join(map(str, statuses))

    return attack


def _wide_avro() -> Sequence[str]:
    """Return records of many fields, each of which is another record; the second has one field more."""
    fields = [
        {"name": f"f{number}", "type": {"type": "record", "name": f"r{number}", "fields": []}}
        for number in range(10_001)
    ]
    return [json.dumps({"type": "record", "name": "wide", "fields": each}) for each in (fields[1:], fields)]


def _doubling_avro() -> Sequence[str]:
    """Return a schema whose written out form doubles with each of its types."""
    inner: Any = "int"
    for number in range(40):
        first = {"type": "record", "name": f"d{number}", "fields": [{"name": "a", "type": inner}]}
        inner = {
            "type": "record",
            "name": f"e{number}",
            "fields": [{"name": "a", "type": first}, {"name": "b", "type": f"d{number}"}],
        }
    return [json.dumps({**inner, "doc": text}) for text in ("one", "two")]


def _doubling_json() -> Sequence[str]:
    """Return a schema whose written out form doubles with each of its definitions."""
    last = 60
    definitions: dict[str, Any] = {f"d{last}": {"type": "string"}}
    for number in range(last):
        both = [{"$ref": f"#/definitions/d{number + 1}"}] * 2
        definitions[f"d{number}"] = {"type": "object", "properties": {"a": both[0], "b": both[1]}}
    first = {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/d0"}
    texts = []
    for description in ("one", "two"):
        texts.append(json.dumps({**first, "description": description, "definitions": definitions}))
    return texts


def _wide_protobuf() -> Sequence[str]:
    messages = "".join(f"message M{number} {{ int32 a = 1; }}\n" for number in range(5_000))
    return [f'syntax = "proto3";\n{messages}', f'syntax = "proto3";\n{messages}message Last {{}}']


_NESTED_AVRO = '{"type":"array","items":' * 100_000 + '"int"' + "}" * 100_000
_COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]

CHECKS = [
    Check(1, "a frame of 2^31-1 bytes, Kafka", "closed: *2147483647*", _frame_logged_in(2**31 - 1)),
    Check(
        1,
        "a frame of 2^31-1 bytes, cluster listener",
        "refused: malformed_handshake",
        _cluster_frame(2**31 - 1),
    ),
    Check(2, "a frame of -1 bytes", "closed: *-1*", _frame_logged_in(-1)),
    Check(2, "a frame of -2^31 bytes before authentication", "closed: *-2147483648*", _frame(-(2**31))),
    Check(
        3,
        "a frame of 64 KiB + 1 before authentication",
        "closed: *the limit before authentication is 65536*",
        _frame(65537, bytes(4096)),
    ),
    Check(4, "HTTP on the Kafka listener", "closed: *", _http_to_kafka),
    Check(4, "HTTP on the cluster listener", "refused: malformed_handshake", _http_to_cluster),
    Check(4, "Kafka on the HTTP listener", "400 *malformed*", _kafka_to("http")),
    Check(4, "Kafka on the SQS listener", "400 *malformed*", _kafka_to("sqs")),
    Check(4, "Kafka on the registry listener", "400 *malformed*", _kafka_to("registry")),
    Check(4, "TLS on the Kafka listener", "closed: *", _tls_to("kafka")),
    Check(4, "TLS on the HTTP listener", "400 *malformed*", _tls_to("http")),
    Check(4, "TLS on the SQS listener", "400 *malformed*", _tls_to("sqs")),
    Check(4, "TLS on the registry listener", "400 *malformed*", _tls_to("registry")),
    Check(4, "Kafka on a TLS listener", "closed: *does not use TLS*", _plain_to_tls),
    Check(4, "TLS on the cluster listener", "refused: malformed_handshake", _tls_to("cluster")),
    Check(
        5,
        "an array of 2^31-1 topics, Metadata",
        "closed: *claims 2147483647 entries*",
        _request(ApiKey.METADATA, 4, pack(">i", 2**31 - 1), tags=b""),
    ),
    Check(
        5,
        "an array of 2^31-1 topics, Produce",
        "closed: *2147483647*",
        _request(ApiKey.PRODUCE, 7, pack(">hhii", -1, 1, 1000, 2**31 - 1), tags=b""),
    ),
    Check(
        5,
        "an array of -2 topics, Produce",
        "closed: *-2*",
        _request(ApiKey.PRODUCE, 7, pack(">hhii", -1, 1, 1000, -2), tags=b""),
    ),
    Check(
        5,
        "an array of 2^31-1 topics, Fetch",
        "closed: *2147483647*",
        _request(ApiKey.FETCH, 11, pack(">i", -1) + _FETCH_HEAD + pack(">i", 2**31 - 1), tags=b""),
    ),
    Check(5, "a batch that claims 2^31-1 records", "CORRUPT_MESSAGE", _record_count(2**31 - 1)),
    Check(
        5,
        "a compressed batch that claims 2^31-1 records",
        "CORRUPT_MESSAGE",
        _record_count(2**31 - 1, Codec.ZSTD),
    ),
    Check(
        5,
        "a compressed batch that claims 1,000,001 records",
        "CORRUPT_MESSAGE",
        _record_count(1_000_001, Codec.ZSTD),
    ),
    Check(
        6,
        "a varint of 2^32-1 topics, Produce",
        "closed: *4294967294*",
        _request(ApiKey.PRODUCE, 9, _PRODUCE_HEAD + _HUGE_VARINT),
    ),
    Check(
        6,
        "a varint without end, Produce",
        "closed: *more than 32 bits*",
        _request(ApiKey.PRODUCE, 9, _PRODUCE_HEAD + _ENDLESS_VARINT),
    ),
    Check(
        6,
        "a varint without end, Fetch",
        "closed: *more than 32 bits*",
        _request(ApiKey.FETCH, 15, _FETCH_HEAD + _ENDLESS_VARINT),
    ),
    Check(
        6,
        "a varint without end, Metadata",
        "closed: *more than 32 bits*",
        _request(ApiKey.METADATA, 9, _ENDLESS_VARINT),
    ),
    Check(
        7,
        "101 tagged fields in a header",
        "closed: *tagged fields*",
        _request(ApiKey.METADATA, 9, b"\1\0\0\0\0", tags=_many_tags(101)),
    ),
    Check(
        7,
        "2^32-1 tagged fields in a header",
        "closed: *tagged fields*",
        _request(ApiKey.METADATA, 9, b"\1\0\0\0\0", tags=_HUGE_VARINT + bytes(60_000)),
    ),
    Check(
        7,
        "a tagged field of 2^32-1 bytes",
        "closed: *4294967295*",
        _request(ApiKey.METADATA, 9, b"\1\0\0\0\0", tags=b"\1\0" + _HUGE_VARINT),
    ),
    Check(7, "100 tagged fields in each of 40,000 entries", "answered", _tags_in_every_entry),
    Check(7, "JSON nested 100,000 deep", "400", _json(100_000)),
    Check(
        7, "an Avro schema nested 100,000 deep", "422", _schemas("AVRO", "deep-avro", lambda: [_NESTED_AVRO])
    ),
    Check(
        7,
        "a JSON Schema nested 100,000 deep",
        "422",
        _schemas("JSON", "deep-json", lambda: ['{"not":' * 100_000]),
    ),
    Check(
        7, "Avro schemas of 10,000 records, compared", "200, 409", _schemas("AVRO", "wide-avro", _wide_avro)
    ),
    Check(
        7,
        "Avro schemas that double 40 times, compared",
        "200, 200",
        _schemas("AVRO", "doubling-avro", _doubling_avro),
    ),
    Check(
        7,
        "JSON Schemas that double 60 times, compared",
        "200, 200",
        _schemas("JSON", "doubling-json", _doubling_json),
    ),
    Check(
        7,
        "Protobuf schemas of 5,000 messages",
        "200, 200",
        _schemas("PROTOBUF", "wide-protobuf", _wide_protobuf),
    ),
    *(
        Check(
            8,
            f"a {codec.name.lower()} bomb for topics that unpack",
            "MESSAGE_TOO_LARGE",
            _bomb_validated(codec),
        )
        for codec in _COMPRESSED
    ),
    *(
        Check(
            8,
            f"a stored {codec.name.lower()} bomb that is read over HTTP, SQS and by time",
            "skipped",
            _bomb_read(codec),
        )
        for codec in _COMPRESSED
    ),
    Check(8, "100,000 records in a batch that is unpacked", "NONE and NONE", _many_unpacked),
    Check(8, "20,000 delayed records in a batch", "NONE", _many_delayed(20_000)),
    Check(8, "100,001 delayed records in a batch", "INVALID_RECORD", _many_delayed(100_001)),
]
