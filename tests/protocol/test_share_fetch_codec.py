"""The hand-written ShareFetch response against the compiled encoder, which kio judges."""

from itertools import chain, zip_longest
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.framing import response_frame
from alpacamq.protocol.messages.leadership import LeaderIdAndEpoch, NodeEndpoint
from alpacamq.protocol.messages.share import (
    AcquiredRecords,
    ShareFetchedPartition,
    ShareFetchedTopic,
    ShareFetchResponse,
)
from alpacamq.protocol.schema import encode, run_to_end
from alpacamq.protocol.share_fetch_codec import (
    AcquiredRange,
    PartitionShared,
    encode_share_fetch_response_in_slices,
)

from .specimens import FIXED, TEXTS

API = APIS[ApiKey.SHARE_FETCH]
MAYBE_TEXT = st.none() | TEXTS

ACQUIRED = st.builds(AcquiredRange, FIXED["q"], FIXED["q"], st.integers(1, 100_000))
SHARED = st.builds(
    PartitionShared,
    FIXED["i"],
    FIXED["h"],
    MAYBE_TEXT,
    FIXED["h"],
    MAYBE_TEXT,
    st.sampled_from([0, 1, 126, 127, 5000]),
    st.lists(ACQUIRED, max_size=3) | st.just([AcquiredRange(0, 1, 1)] * 130),
    st.none() | st.tuples(FIXED["i"], FIXED["i"]),
)


class Endpoint(NamedTuple):
    """The address of a broker."""

    id: int
    host: str
    port: int
    rack: str | None


ENDPOINTS = st.builds(Endpoint, FIXED["i"], TEXTS, FIXED["i"], MAYBE_TEXT)


def as_part(shared: PartitionShared) -> ShareFetchedPartition:
    return ShareFetchedPartition(
        partition_index=shared.partition,
        error_code=shared.error_code,
        error_message=shared.error_message,
        acknowledge_error_code=shared.acknowledge_error_code,
        acknowledge_error_message=shared.acknowledge_error_message,
        current_leader=LeaderIdAndEpoch()
        if shared.current_leader is None
        else LeaderIdAndEpoch(leader_id=shared.current_leader[0], leader_epoch=shared.current_leader[1]),
        records=b"r" * shared.records_bytes,
        acquired_records=[
            AcquiredRecords(first_offset=first, last_offset=last, delivery_count=min(count, 32_767))
            for first, last, count in shared.acquired
        ],
    )


@pytest.mark.parametrize("version", range(API.min_version, API.max_version + 1))
@settings(max_examples=60, deadline=None)
@given(
    correlation_id=FIXED["i"],
    error_code=FIXED["h"],
    error_message=MAYBE_TEXT,
    lock_timeout_ms=FIXED["i"],
    topics=st.lists(st.tuples(st.uuids(), st.lists(SHARED, max_size=3)), max_size=3),
    nodes=st.lists(ENDPOINTS, max_size=2),
)
def test_a_response_with_its_records_put_in_has_the_bytes_of_the_compiled_encoder(
    version: int,
    correlation_id: int,
    error_code: int,
    error_message: str | None,
    lock_timeout_ms: int,
    topics: list[tuple[UUID, list[PartitionShared]]],
    nodes: list[Endpoint],
) -> None:
    response = ShareFetchResponse(
        error_code=error_code,
        error_message=error_message,
        acquisition_lock_timeout_ms=lock_timeout_ms,
        responses=[
            ShareFetchedTopic(topic_id=topic_id, partitions=[as_part(shared) for shared in partitions])
            for topic_id, partitions in topics
        ],
        node_endpoints=[
            NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack) for node in nodes
        ],
    )
    pieces = run_to_end(
        encode_share_fetch_response_in_slices(
            correlation_id,
            [(topic_id.bytes, partitions) for topic_id, partitions in topics],
            lock_timeout_ms=lock_timeout_ms,
            error_code=error_code,
            error_message=error_message,
            nodes=nodes,
        )
    )
    sizes = [shared.records_bytes for _, partitions in topics for shared in partitions]
    records = [b"r" * size for size in sizes if size]
    assert len(pieces) == len(records) + 1
    sent = b"".join(chain.from_iterable(zip_longest(pieces, records, fillvalue=b"")))
    assert sent == response_frame(API, version, correlation_id, encode(response, version))
