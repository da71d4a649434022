"""The notation and its compiler: every wire type, absent fields, tagged fields, and what is refused."""

import tracemalloc
from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import pytest

from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.messages.fetch import FetchRequest
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from alpacamq.protocol.messages.produce import ProduceRequest
from alpacamq.protocol.messages.topics import DescribeTopicPartitionsRequest
from alpacamq.protocol.notation import (
    ZERO_UUID,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Uint16,
    Uint32,
    Uuid,
    between,
    null_since,
    since,
    tag,
    until,
)
from alpacamq.protocol.schema import decode, encode


class Part(Message):
    number: Int8 = 0


class Everything(Message, flexible_from=1):
    boolean: Bool = False
    int8: Int8 = 0
    int16: Int16 = 0
    int32: Int32 = 0
    int64: Int64 = 0
    uint16: Uint16 = 0
    uint32: Uint32 = 0
    float64: Float64 = 0.0
    uuid: Uuid = ZERO_UUID
    string: String = ""
    null_string: String | None = None
    content: Bytes = b""
    null_content: Bytes | None = None
    records: Records | None = None
    numbers: Sequence[Int64] = []
    words: Sequence[String] = []
    ids: Sequence[Uuid] = []
    parts: Sequence[Part] = []
    null_parts: Sequence[Part] | None = None
    null_part: Part | None = None


FULL = Everything(
    boolean=True,
    int8=-1,
    int16=-2,
    int32=-3,
    int64=-4,
    uint16=0xFFFE,
    uint32=0xFFFFFFFD,
    float64=1.5,
    uuid=UUID(int=7),
    string="ä",
    null_string="b",
    content=b"c",
    null_content=b"d",
    records=memoryview(b"e"),
    numbers=[1, 2],
    words=["f", ""],
    ids=[UUID(int=8), ZERO_UUID],
    parts=[Part(number=1), Part(number=2)],
    null_parts=[Part(number=3)],
    null_part=Part(number=4),
)
FIXED_HEX = (
    "01 ff fffe fffffffd fffffffffffffffc fffe fffffffd 3ff8000000000000 00000000000000000000000000000007"
)
NUMBERS_HEX = "0000000000000001 0000000000000002"
IDS_HEX = "00000000000000000000000000000008 00000000000000000000000000000000"


@pytest.mark.parametrize(("version", "text"), [
    pytest.param(
        0,
        f"{FIXED_HEX} 0002 c3a4 0001 62 00000001 63 00000001 64 00000001 65 00000002 {NUMBERS_HEX}"
        f"00000002 0001 66 0000 00000002 {IDS_HEX} 00000002 01 02 00000001 03 01 04",
        id="legacy",
    ),
    pytest.param(
        1,
        f"{FIXED_HEX} 03 c3a4 02 62 02 63 02 64 02 65 03 {NUMBERS_HEX}"
        f"03 02 66 01 03 {IDS_HEX} 03 01 00 02 00 02 03 00 01 04 00 00",
        id="flexible",
    ),
])  # fmt: skip
def test_every_type_has_its_form(version: int, text: str) -> None:
    assert encode(FULL, version).hex() == text.replace(" ", "")
    assert decode(Everything, version, memoryview(bytes.fromhex(text))) == FULL


@pytest.mark.parametrize("version", [0, 1])
def test_nulls_and_empties_come_back_as_they_went(version: int) -> None:
    assert decode(Everything, version, memoryview(encode(Everything(), version))) == Everything()


def test_records_are_a_slice_of_the_request() -> None:
    data = memoryview(encode(FULL, 1))
    records = decode(Everything, 1, data).records
    assert isinstance(records, memoryview)
    assert records.obj is data.obj


def test_a_message_may_begin_anywhere_in_the_data() -> None:
    data = memoryview(b"header" + encode(FULL, 1))
    assert decode(Everything, 1, data, at=6) == FULL


class Ages(Message, flexible_from=9):
    old: Annotated[Int8, until(1)] = 10
    middle: Annotated[Int8, between(1, 2)] = 20
    young: Annotated[Int8, since(2)] = 30


@pytest.mark.parametrize(("version", "data", "read"), [
    (0, b"\x01", Ages(old=1)),
    (1, b"\x01\x02", Ages(old=1, middle=2)),
    (2, b"\x02\x03", Ages(middle=2, young=3)),
    (3, b"\x03", Ages(young=3)),
])  # fmt: skip
def test_a_field_a_version_does_not_have_is_not_written_and_reads_as_its_default(
    version: int, data: bytes, read: Ages
) -> None:
    assert encode(Ages(old=1, middle=2, young=3), version) == data
    assert decode(Ages, version, memoryview(data)) == read


class Tagged(Message, flexible_from=0):
    # Declared out of order on purpose: numbers decide the order on the wire.
    second: Annotated[String | None, tag(1, since=0)] = None
    first: Annotated[Int8, tag(0, since=0)] = -1
    third: Annotated[Sequence[Int8], tag(2, since=1)] = []
    part: Annotated[Part, tag(300, since=0)] = Part(number=1)


@pytest.mark.parametrize(("message", "version", "text"), [
    pytest.param(Tagged(), 1, "00", id="nothing differs"),
    pytest.param(Tagged(first=3, second="a"), 1, "02 00 01 03 01 02 0261", id="by number"),
    pytest.param(Tagged(third=[1, 2]), 1, "01 02 03 030102", id="an array"),
    pytest.param(Tagged(part=Part(number=5)), 1, "01 ac02 02 0500", id="a part, and a two-byte tag"),
])  # fmt: skip
def test_tagged_fields(message: Tagged, version: int, text: str) -> None:
    assert encode(message, version).hex() == text.replace(" ", "")
    assert decode(Tagged, version, memoryview(bytes.fromhex(text))) == message


def test_a_tagged_field_a_version_does_not_have_is_left_out() -> None:
    assert encode(Tagged(third=[1]), 0) == b"\x00"


def test_unknown_tagged_fields_are_passed_over() -> None:
    data = bytes.fromhex("03 00 01 03 07 02 ffff 08 00")
    assert decode(Tagged, 0, memoryview(data)) == Tagged(first=3)
    assert decode(MetadataRequest, 9, memoryview(bytes.fromhex("00 01 00 00 01 09 02 ffff"))).topics is None


def test_messages_cannot_be_changed_and_take_no_positions() -> None:
    with pytest.raises(AttributeError):
        Part(number=1).number = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        Part(1)  # type: ignore[call-arg]


def test_a_value_that_may_not_be_null_yet_is_refused_when_it_is() -> None:
    class Nullable(Message, flexible_from=9):
        name: Annotated[String | None, null_since(1)] = None

    assert decode(Nullable, 1, memoryview(b"\xff\xff")) == Nullable()
    with pytest.raises(ProtocolError, match="Nullable v0: name may not be null"):
        decode(Nullable, 0, memoryview(b"\xff\xff"))


def test_trailing_bytes_are_ignored_because_librdkafka_sends_them() -> None:
    all_topics = memoryview(bytes.fromhex("00 00 00 00 010000"))
    assert decode(MetadataRequest, 13, all_topics) == MetadataRequest(
        topics=None, allow_auto_topic_creation=False
    )


# A Fetch request up to its tagged fields.
FETCH_HEX = "00000000 00000000 00000000 00 00000000 00000000 01 01 01"


@pytest.mark.parametrize(("message", "version", "text", "fault"), [
    (MetadataRequest, 0, "", "topics is cut off: 0 bytes are left"),
    (MetadataRequest, 0, "000000", "topics is cut off: 3 bytes are left"),
    (MetadataRequest, 0, "ffffffff", "topics may not be null"),
    (MetadataRequest, 0, "fffffffe", "topics has length -2"),
    (MetadataRequest, 1, "fffffffe", "topics has length -2"),
    (MetadataRequest, 1, "7fffffff", "topics claims 2147483647 entries where 0 bytes are left"),
    (MetadataRequest, 0, "00000001 0003 6162", "topics.name claims 3 bytes where 2 are left"),
    (MetadataRequest, 0, "00000001 0001 ff", "topics.name is not UTF-8"),
    (MetadataRequest, 0, "00000001 8000 ff", "topics.name has length -32768"),
    (MetadataRequest, 9, "00", "allow_auto_topic_creation is cut off: 0 bytes are left"),
    (MetadataRequest, 9, "00 01", "include_cluster_authorized_operations is cut off: 0 bytes are left"),
    (MetadataRequest, 9, "02 01", "topics claims 1 entries where 1 bytes are left"),
    (MetadataRequest, 9, "ffffffff0f", "topics claims 4294967294 entries where 0 bytes are left"),
    (MetadataRequest, 9, "ffffffff1f", "topics is a varint of more than 32 bits"),
    (MetadataRequest, 9, "ffffffffff01", "topics is a varint of more than 32 bits"),
    (MetadataRequest, 9, "ffff", "topics is cut off: 0 bytes are left"),
    (MetadataRequest, 9, "00 01 00 00 01", "tagged_fields claims 1 entries where 0 bytes are left"),
    (MetadataRequest, 9, "00 01 00 00 01 05 02 ff", "tagged_fields claims 2 bytes where 1 are left"),
    (MetadataResponse, 1, "00000001 00000001 0001", "brokers claims 1 entries where 6 bytes are left"),
    (ProduceRequest, 9, "00 0000 00000000 02 0261 02 00000000 09 61 00 00 00",
     "topic_data.partition_data.records claims 8 bytes where 4 are left"),
    (FetchRequest, 15, f"{FETCH_HEX} 01 01 0c 000000000000000000000000",
     "tagged_fields.replica_state.tagged_fields is cut off: 0 bytes are left"),
    (FetchRequest, 15, f"{FETCH_HEX} 01 01 0e 000000000000000000000000 00 00",
     "tagged_fields number 1 does not have the 14 bytes it claims"),
    (DescribeTopicPartitionsRequest, 0, "01 00000000 01 00 00000000 00 00",
     "cursor.topic_name may not be null"),
])  # fmt: skip
def test_unreadable_input_is_named(message: type[Message], version: int, text: str, fault: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(message, version, memoryview(bytes.fromhex(text)))
    assert str(caught.value) == f"{message.__name__} v{version}: {fault}"


def test_an_array_that_claims_everything_makes_no_room() -> None:
    data = memoryview(bytes.fromhex("7fffffff") + bytes(1000))
    with pytest.raises(ProtocolError):
        decode(MetadataRequest, 1, data)  # compiled before memory is watched
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        decode(MetadataRequest, 1, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 1024


def test_a_value_that_does_not_fit_is_our_own_mistake() -> None:
    with pytest.raises(Exception, match="32767"):
        encode(MetadataRequest(topics=[MetadataRequestTopic(name="x" * 40_000)]), 1)
