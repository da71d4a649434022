"""The hand-written Fetch codec against the compiled one."""

from contextlib import suppress
from itertools import chain, zip_longest
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.errors import ManyEntries, ProtocolError
from alpacamq.protocol.fetch_codec import (
    FetchCall,
    PartitionFetched,
    PartitionWanted,
    decode_fetch,
    decode_fetch_in_slices,
    encode_fetch_response,
)
from alpacamq.protocol.framing import response_frame
from alpacamq.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from alpacamq.protocol.messages.leadership import LeaderIdAndEpoch, NodeEndpoint
from alpacamq.protocol.schema import encode, run_to_end

from .specimens import ADDRESSES, FIXED, LEADERS, TEXTS, Address, any_message, specimen

API = APIS[ApiKey.FETCH]
VERSIONS = range(API.min_version, API.max_version + 1)
MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def key_of(topic: FetchTopic | ForgottenTopic, version: int) -> bytes:
    return topic.topic.encode() if version < 13 else topic.topic_id.bytes


def as_call(request: FetchRequest, version: int) -> FetchCall:
    """Return the expected result of the hand-written decoder for `request`."""
    return FetchCall(
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        [
            (
                key_of(topic, version),
                [
                    PartitionWanted(
                        wanted.partition,
                        wanted.current_leader_epoch,
                        wanted.fetch_offset,
                        wanted.last_fetched_epoch,
                        wanted.log_start_offset,
                        wanted.partition_max_bytes,
                    )
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        [(key_of(topic, version), list(topic.partitions)) for topic in request.forgotten_topics_data],
        request.rack_id,
        request.replica_id if version < 15 else request.replica_state.replica_id,
        request.replica_state.replica_epoch,
    )


@pytest.mark.parametrize("version", VERSIONS)
@MANY
@given(data=st.data())
def test_a_request_reads_as_the_compiled_decoder_reads_it(version: int, data: st.DataObject) -> None:
    request = data.draw(any_message(FetchRequest, version))
    frame = memoryview(b"head" + encode(request, version))
    with suppress(ManyEntries):
        assert decode_fetch(version, frame, 4) == as_call(request, version)
    assert run_to_end(decode_fetch_in_slices(version, frame, 4)) == as_call(request, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_with_every_field_filled(version: int) -> None:
    request = specimen(FetchRequest, version)
    assert isinstance(request, FetchRequest)
    assert decode_fetch(version, memoryview(encode(request, version)), 0) == as_call(request, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_with_many_topics_and_partitions(version: int) -> None:
    request = FetchRequest(
        topics=[
            FetchTopic(
                topic="" if version >= 13 else f"topic-{number}" * 20,
                partitions=[
                    FetchPartition(partition=index, fetch_offset=index, partition_max_bytes=1)
                    for index in range(150)
                ],
            )
            for number in range(130)
        ],
    )
    frame = memoryview(encode(request, version))
    with pytest.raises(ManyEntries):
        decode_fetch(version, frame, 0)
    assert run_to_end(decode_fetch_in_slices(version, frame, 0)) == as_call(request, version)


def test_a_fault_is_named_by_its_field() -> None:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=0)
    frame = encode(FetchRequest(topics=[FetchTopic(topic="abc", partitions=[partition])]), 12)
    with pytest.raises(ProtocolError, match=r"^FetchRequest v12: topics.topic is not UTF-8$"):
        decode_fetch(12, memoryview(frame.replace(b"abc", b"\xff\xff\xff")), 0)


NUMBERS_BUT_DEFAULT = FIXED["q"].filter(lambda offset: offset != -1)
FETCHED = st.builds(
    PartitionFetched,
    FIXED["i"],
    FIXED["h"],
    FIXED["q"],
    FIXED["q"],
    FIXED["q"],
    st.sampled_from([0, 1, 126, 127, 5000]),
    st.none() | st.tuples(FIXED["i"], NUMBERS_BUT_DEFAULT),
    FIXED["i"],
    st.none() | st.lists(st.tuples(FIXED["q"], FIXED["q"]), max_size=2),
    LEADERS,
)
TOPICS = st.lists(st.tuples(st.uuids(), TEXTS, st.lists(FETCHED, max_size=3)), max_size=3)


def as_part(fetched: PartitionFetched) -> PartitionData:
    aborted = fetched.aborted_transactions
    diverging: dict[str, Any] = {}
    if fetched.diverging_epoch is not None:
        epoch, end_offset = fetched.diverging_epoch
        diverging = {"diverging_epoch": EpochEndOffset(epoch=epoch, end_offset=end_offset)}
    if fetched.current_leader is not None:
        leader, epoch = fetched.current_leader
        diverging["current_leader"] = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    return PartitionData(
        partition_index=fetched.partition,
        error_code=fetched.error_code,
        high_watermark=fetched.high_watermark,
        last_stable_offset=fetched.last_stable_offset,
        log_start_offset=fetched.log_start_offset,
        aborted_transactions=None
        if aborted is None
        else [AbortedTransaction(producer_id=producer, first_offset=first) for producer, first in aborted],
        preferred_read_replica=fetched.preferred_read_replica,
        records=b"r" * fetched.records_bytes,
        **diverging,
    )


@pytest.mark.parametrize("version", VERSIONS)
@MANY
@given(
    correlation_id=FIXED["i"],
    throttle_ms=FIXED["i"],
    error_code=FIXED["h"],
    session_id=FIXED["i"],
    topics=TOPICS,
    nodes=ADDRESSES,
)
def test_a_response_with_its_records_put_in_has_the_bytes_of_the_compiled_encoder(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error_code: int,
    session_id: int,
    topics: list[tuple[UUID, str, list[PartitionFetched]]],
    nodes: list[Address],
) -> None:
    response = FetchResponse(
        throttle_time_ms=throttle_ms,
        error_code=error_code,
        session_id=session_id,
        responses=[
            FetchableTopicResponse(
                topic=name, topic_id=topic_id, partitions=[as_part(fetched) for fetched in partitions]
            )
            for topic_id, name, partitions in topics
        ],
        node_endpoints=[
            NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack) for node in nodes
        ],
    )
    keyed = [
        (name.encode() if version < 13 else topic_id.bytes, partitions)
        for topic_id, name, partitions in topics
    ]
    pieces = encode_fetch_response(version, correlation_id, throttle_ms, error_code, session_id, keyed, nodes)
    sizes = [fetched.records_bytes for _, _, partitions in topics for fetched in partitions]
    records = [b"r" * size for size in sizes if size]
    assert len(pieces) == len(records) + 1
    sent = b"".join(chain.from_iterable(zip_longest(pieces, records, fillvalue=b"")))
    assert sent == response_frame(API, version, correlation_id, encode(response, version))
