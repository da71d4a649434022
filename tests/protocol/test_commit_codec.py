"""The hand-written OffsetCommit codec against the compiled one."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.commit_codec import CommitCall, decode_offset_commit, encode_offset_commit_response
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.framing import response_frame
from alpacamq.protocol.messages.committed_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from alpacamq.protocol.schema import decode, encode

from .specimens import FIXED, any_message

API = APIS[ApiKey.OFFSET_COMMIT]
VERSIONS = range(API.min_version, API.max_version + 1)
MANY = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def as_call(request: OffsetCommitRequest, version: int) -> CommitCall:
    """Return the expected result of the hand-written decoder for `request`."""
    return CommitCall(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        [
            (
                topic.topic_id.bytes if version >= 10 else topic.name.encode(),
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


def outcome(version: int, frame: memoryview) -> CommitCall | str:
    try:
        return decode_offset_commit(version, frame, 4)
    except ProtocolError as error:
        return str(error)


def compiled_outcome(version: int, frame: memoryview) -> CommitCall | str:
    try:
        return as_call(decode(OffsetCommitRequest, version, frame, 4), version)
    except ProtocolError as error:
        return str(error)


@pytest.mark.parametrize("version", VERSIONS)
@MANY
@given(data=st.data())
def test_a_request_reads_as_the_compiled_decoder_reads_it(version: int, data: st.DataObject) -> None:
    request = data.draw(any_message(OffsetCommitRequest, version))
    frame = memoryview(b"head" + encode(request, version))
    assert decode_offset_commit(version, frame, 4) == as_call(request, version)


@pytest.mark.parametrize("version", VERSIONS)
@MANY
@given(data=st.data())
def test_a_damaged_request_is_read_or_refused_as_by_the_compiled_decoder(
    version: int, data: st.DataObject
) -> None:
    partition = OffsetCommitRequestPartition(
        partition_index=1, committed_offset=2, committed_metadata=data.draw(st.none() | st.text(max_size=3))
    )
    topic = OffsetCommitRequestTopic(name="" if version >= 10 else "topic", partitions=[partition])
    request = OffsetCommitRequest(group_id="group", member_id="member", topics=[topic])
    whole = bytearray(b"head" + encode(request, version))
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.integers(4, len(whole) - 1))
        whole[place] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255]) | st.integers(0, 255))
    frame = memoryview(whole)[: data.draw(st.integers(4, len(whole)))]
    assert outcome(version, frame) == compiled_outcome(version, frame)


def test_a_fault_is_named_by_its_field() -> None:
    topics = [OffsetCommitRequestTopic(name="abc")]
    frame = encode(OffsetCommitRequest(group_id="group", topics=topics), 7)
    with pytest.raises(ProtocolError, match=r"^OffsetCommitRequest v7: topics.name is not UTF-8$"):
        decode_offset_commit(7, memoryview(frame.replace(b"abc", b"\xff\xff\xff")), 0)


@pytest.mark.parametrize("version", VERSIONS)
@MANY
@given(correlation_id=FIXED["i"], data=st.data())
def test_a_response_has_the_bytes_of_the_compiled_encoder(
    version: int, correlation_id: int, data: st.DataObject
) -> None:
    request = data.draw(any_message(OffsetCommitRequest, version))
    count = sum(len(topic.partitions) for topic in request.topics)
    codes: list[int] = data.draw(st.lists(st.integers(-(2**15), 2**15 - 1), min_size=count, max_size=count))
    code_at = iter(codes)
    response = OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=next(code_at)
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    topics = as_call(request, version).topics
    expected = response_frame(API, version, correlation_id, encode(response, version))
    assert encode_offset_commit_response(version, correlation_id, topics, codes) == expected
