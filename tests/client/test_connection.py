"""Connections to misbehaving brokers."""

from struct import pack

import pytest

from alpacamq.client.errors import Refused, Unreachable, only
from alpacamq.client.framing import MAX_RESPONSE_BYTES
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.connection import Connection
from alpacamq.client.kafka.offsets import Extent, ends, extents
from alpacamq.client.kafka.topics import list_topics
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.messages.cluster import ApiVersion, ApiVersionsResponse
from alpacamq.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from alpacamq.protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from alpacamq.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from alpacamq.protocol.schema import encode
from tests.waiting import eventually

from .peers import frame, handshake, peer

ORDERS_0 = TopicPartition(TopicName("orders"), 0)


@pytest.mark.parametrize(
    ("answer", "expected", "reason"),
    [
        pytest.param(b"", Unreachable, "closed the connection during ApiVersions", id="nothing"),
        pytest.param(b"\0\0", Unreachable, "closed the connection", id="half a size"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n", ProtocolError, "is it a Kafka listener", id="HTTP"),
        pytest.param(pack(">i", -1), ProtocolError, "answer of -1 bytes", id="a negative size"),
        pytest.param(pack(">i", MAX_RESPONSE_BYTES + 1), ProtocolError, "bytes", id="a size beyond reason"),
        pytest.param(pack(">ii", 4, 77), ProtocolError, "correlation id 77", id="another's answer"),
        pytest.param(frame(b"\0\0\x7f"), ProtocolError, "ApiVersions", id="an answer cut short"),
        pytest.param(
            frame(encode(ApiVersionsResponse(error_code=58), 3)), Refused, "SASL_AUTHENTICATION_FAILED",
            id="a refusal",
        ),
    ],
)  # fmt: skip
def test_a_peer_that_is_not_a_broker(answer: bytes, expected: type[AlpacaError], reason: str) -> None:
    with peer(answer) as address, pytest.raises(expected, match=reason):
        Connection(address)


def test_an_old_broker_gets_the_oldest_api_versions_request() -> None:
    unknown = frame(encode(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), 0))
    answer = encode(MetadataResponse(cluster_id="old"), 2)
    offered = [ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=2)]
    with peer(unknown, handshake(offered, version=0), frame(answer)) as address:
        connection = Connection(address)
        assert connection.call(MetadataRequest(), MetadataResponse).cluster_id == "old"
        connection.close()


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        pytest.param([], "the broker offers none", id="not at all"),
        pytest.param(
            [ApiVersion(api_key=ApiKey.DELETE_TOPICS, min_version=0, max_version=3)],
            "needs version 6 to 6, the broker offers versions 0 to 3",
            id="only long ago",
        ),
    ],
)
def test_a_request_the_broker_does_not_offer_is_not_sent(offered: list[ApiVersion], reason: str) -> None:
    with peer(handshake(offered)) as address:
        connection = Connection(address)
        with pytest.raises(Refused, match=reason):
            connection.call(DeleteTopicsRequest(), DeleteTopicsResponse)
        assert connection.is_open
        connection.close()


def test_a_failed_connection_is_not_reused() -> None:
    with peer(handshake(), pack(">ii", 4, 77)) as address:
        connection = Connection(address)
        with pytest.raises(ProtocolError):
            connection.call(MetadataRequest(), MetadataResponse)
        assert not connection.is_open


def test_an_unreachable_advertised_address_names_the_setting() -> None:
    advertised = MetadataResponseBroker(node_id=7, host="127.0.0.1", port=1)
    metadata = _flexible(MetadataResponse(brokers=[advertised], controller_id=7))
    expected = pytest.raises(Unreachable, match=r"broker 7 at 127\.0\.0\.1:1.*kafka\.advertised")
    with peer(handshake(), metadata) as address, Cluster(address) as cluster, expected:
        cluster.controller()


def test_a_broker_that_dies_between_requests_is_unreachable() -> None:
    with peer(handshake()) as address, Cluster(address) as cluster, pytest.raises(Unreachable):
        list_topics(cluster)


def test_errors_carry_the_name_kafka_gives_them() -> None:
    assert Refused("x", 68).name == "NON_EMPTY_GROUP"
    assert str(Refused("deleting", 36, "it exists")) == "deleting: TOPIC_ALREADY_EXISTS: it exists"
    assert Refused("x", 9999).name == "error 9999"


@pytest.mark.parametrize(
    ("code", "is_retriable"),
    [
        (ErrorCode.NOT_COORDINATOR, True),
        (ErrorCode.OFFSET_NOT_AVAILABLE, True),
        (ErrorCode.NOT_ENOUGH_REPLICAS, True),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True),
        (ErrorCode.NETWORK_EXCEPTION, True),
        (ErrorCode.REQUEST_TIMED_OUT, True),
        (ErrorCode.NON_EMPTY_GROUP, False),
    ],
)
def test_errors_that_pass_while_brokers_of_a_cluster_fail(code: ErrorCode, is_retriable: bool) -> None:
    assert Refused("x", code).retriable is is_retriable


def test_a_new_leader_that_does_not_know_its_end_yet_is_asked_again() -> None:
    refused = [_metadata(), _offset(0), _offset(-1, ErrorCode.OFFSET_NOT_AVAILABLE)]
    script = [*refused, _metadata(), _offset(0), _offset(7)]
    with peer(handshake(), *script) as address, Cluster(address) as cluster:
        assert extents(cluster, [ORDERS_0]) == {ORDERS_0: Extent(0, 7)}


def test_the_leaders_of_a_list_of_topics_are_used_once() -> None:
    """They may have changed meanwhile: after an error, and for the next question, they are requested."""
    script = [_metadata(), _offset(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER), _metadata(), _offset(7)]
    with peer(handshake(), *script, _metadata(), _offset(8)) as address, Cluster(address) as cluster:
        list_topics(cluster)
        assert ends(cluster, [ORDERS_0]) == {ORDERS_0: 7}
        assert ends(cluster, [ORDERS_0]) == {ORDERS_0: 8}


def test_a_connection_that_the_broker_closed_while_it_was_idle_is_opened_again() -> None:
    with peer(handshake(), _metadata()) as address, Cluster(address) as cluster:
        list_topics(cluster)
        connection = cluster.any_broker()
        assert eventually(connection.has_ended)
        cluster.close_ended()
        assert not connection.is_open


def _metadata() -> bytes:
    partition = MetadataResponsePartition(partition_index=0, leader_id=1)
    return _flexible(MetadataResponse(topics=[MetadataResponseTopic(name="orders", partitions=[partition])]))


def _offset(offset: int, error: ErrorCode = ErrorCode.NONE) -> bytes:
    partition = ListOffsetsPartitionResponse(partition_index=0, offset=offset, error_code=error)
    topic = ListOffsetsTopicResponse(name="orders", partitions=[partition])
    return _flexible(ListOffsetsResponse(topics=[topic]))


def _flexible(response: MetadataResponse | ListOffsetsResponse) -> bytes:
    """Return a frame of the highest version; a flexible header ends in a byte for its tagged fields."""
    api = next(api for api in APIS.values() if api.response is type(response))
    return frame(b"\0" + encode(response, api.max_version))


def test_only_requires_exactly_one_result() -> None:
    assert only("x", [5]) == 5
    for answers in ([], [1, 2]):
        with pytest.raises(ProtocolError, match=f"x: expected one result, got {len(answers)}"):
            only("x", answers)


def test_addresses_of_ipv6_print_in_brackets() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"
