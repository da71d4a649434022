"""The hand-written Produce codec against the compiled one."""

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alpacamq.model.errors import RecordError
from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.errors import ManyEntries, ProtocolError
from alpacamq.protocol.framing import response_frame
from alpacamq.protocol.messages.leadership import LeaderIdAndEpoch, NodeEndpoint
from alpacamq.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from alpacamq.protocol.produce_codec import (
    PartitionProduced,
    ProduceCall,
    decode_produce,
    decode_produce_in_slices,
    encode_produce_response,
)
from alpacamq.protocol.schema import encode, run_to_end

from .specimens import ADDRESSES, FIXED, LEADERS, TEXTS, Address, any_message

API = APIS[ApiKey.PRODUCE]
VERSIONS = range(API.min_version, API.max_version + 1)
MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def as_call(request: ProduceRequest, version: int) -> ProduceCall:
    """Return the expected result of the hand-written decoder for `request`."""
    return ProduceCall(
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        [
            (
                topic.name.encode() if version < 13 else topic.topic_id.bytes,
                [
                    (data.index, None if data.records is None else memoryview(data.records))
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ],
    )


@pytest.mark.parametrize("version", VERSIONS)
@MANY
@given(data=st.data())
def test_a_request_reads_as_the_compiled_decoder_reads_it(version: int, data: st.DataObject) -> None:
    request = data.draw(any_message(ProduceRequest, version))
    frame = memoryview(b"head" + encode(request, version))
    with suppress(ManyEntries):
        assert decode_produce(version, frame, 4) == as_call(request, version)
    assert run_to_end(decode_produce_in_slices(version, frame, 4)) == as_call(request, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_with_many_topics_and_partitions_and_large_records(version: int) -> None:
    request = ProduceRequest(
        transactional_id="t" * 300,
        topic_data=[
            TopicProduceData(
                name="" if version >= 13 else f"topic-{number}" * 20,
                partition_data=[
                    PartitionProduceData(index=index, records=memoryview(bytes(index * 7)))
                    for index in range(150)
                ],
            )
            for number in range(130)
        ],
    )
    frame = memoryview(encode(request, version))
    with pytest.raises(ManyEntries):
        decode_produce(version, frame, 0)
    assert run_to_end(decode_produce_in_slices(version, frame, 0)) == as_call(request, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_slices_of_the_request(version: int) -> None:
    data = [PartitionProduceData(index=0, records=b"abc")]
    frame = memoryview(encode(ProduceRequest(topic_data=[TopicProduceData(partition_data=data)]), version))
    ((_, ((_, records),)),) = decode_produce(version, frame, 0).topics
    assert records is not None
    assert records.obj is frame.obj


def test_a_fault_is_named_by_its_field() -> None:
    frame = encode(ProduceRequest(topic_data=[TopicProduceData(name="abc")]), 7)
    with pytest.raises(ProtocolError, match=r"^ProduceRequest v7: topic_data.name is not UTF-8$"):
        decode_produce(7, memoryview(frame.replace(b"abc", b"\xff\xff\xff")), 0)


NUMBERS = (FIXED["i"], FIXED["h"], FIXED["q"], FIXED["q"], FIXED["q"])
# Only errors name records, and a leader.
PRODUCED = st.builds(PartitionProduced, *NUMBERS, st.none(), st.just(()), st.none()) | st.builds(
    PartitionProduced,
    *NUMBERS,
    TEXTS,
    st.lists(st.builds(RecordError, FIXED["i"], TEXTS), max_size=3),
    LEADERS,
)
TOPICS = st.lists(st.tuples(st.uuids(), TEXTS, st.lists(PRODUCED, max_size=3)), max_size=3)


@pytest.mark.parametrize("version", VERSIONS)
@MANY
@given(correlation_id=FIXED["i"], topics=TOPICS, throttle_ms=FIXED["i"], nodes=ADDRESSES)
def test_a_response_has_the_bytes_of_the_compiled_encoder(
    version: int,
    correlation_id: int,
    topics: list[tuple[UUID, str, list[PartitionProduced]]],
    throttle_ms: int,
    nodes: list[Address],
) -> None:
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=name,
                topic_id=topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=produced.partition,
                        error_code=produced.error_code,
                        base_offset=produced.base_offset,
                        log_append_time_ms=produced.log_append_time_ms,
                        log_start_offset=produced.log_start_offset,
                        error_message=produced.error_message,
                        record_errors=[
                            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
                            for index, reason in produced.record_errors
                        ],
                        current_leader=LeaderIdAndEpoch()
                        if produced.current_leader is None
                        else LeaderIdAndEpoch(
                            leader_id=produced.current_leader[0], leader_epoch=produced.current_leader[1]
                        ),
                    )
                    for produced in partitions
                ],
            )
            for topic_id, name, partitions in topics
        ],
        throttle_time_ms=throttle_ms,
        node_endpoints=[
            NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack) for node in nodes
        ],
    )
    keyed = [
        (name.encode() if version < 13 else topic_id.bytes, partitions)
        for topic_id, name, partitions in topics
    ]
    assert encode_produce_response(version, correlation_id, keyed, throttle_ms, nodes) == response_frame(
        API, version, correlation_id, encode(response, version)
    )
