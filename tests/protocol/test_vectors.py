"""Messages with known bytes, so that encoder and decoder cannot be wrong together."""

from uuid import UUID

import pytest

from alpacamq.protocol.messages.cluster import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from alpacamq.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from alpacamq.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from alpacamq.protocol.messages.topics import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from alpacamq.protocol.notation import Message
from alpacamq.protocol.schema import decode, encode

VECTORS = [
    pytest.param(ApiVersionsRequest(), 0, "", id="a request without fields is empty"),
    pytest.param(
        ApiVersionsRequest(client_software_name="kcat", client_software_version="1.7"), 3,
        "05 6b636174  04 312e37  00",
        id="compact strings carry their length plus one",
    ),
    pytest.param(
        ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)]),
        0,
        "0023  00000001  0012 0000 0004",
        id="the answer to an unknown ApiVersions version",
    ),
    pytest.param(
        ApiVersionsResponse(finalized_features_epoch=7), 3,
        "0000  01  00000000  01  01 08 0000000000000007",
        id="of the tagged fields only what differs from its default is written",
    ),
    pytest.param(MetadataRequest(topics=None), 1, "ffffffff", id="a null array is -1"),
    pytest.param(MetadataRequest(topics=[]), 1, "00000000", id="an empty array is 0"),
    pytest.param(
        MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False), 4,
        "00000001  0001 74  00",
        id="legacy strings have two bytes of length",
    ),
    pytest.param(
        MetadataRequest(topics=[MetadataRequestTopic(topic_id=UUID(int=1))]), 12,
        "02  00000000000000000000000000000001 00 00  01 00  00",
        id="a topic by its id, with a null name",
    ),
    pytest.param(
        MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="h", port=9092)],
            cluster_id="c",
            controller_id=1,
            topics=[
                MetadataResponseTopic(
                    name="t",
                    topic_id=UUID(int=2),
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=0, leader_id=1, leader_epoch=5, replica_nodes=[1], isr_nodes=[1]
                        )
                    ],
                )
            ],
        ), 12,
        "00000000  02 00000001 0268 00002384 00 00  0263  00000001"
        "02 0000 0274 00000000000000000000000000000002 00"
        "   02 0000 00000000 00000001 00000005 02 00000001 02 00000001 01 00"
        "   80000000 00  00",
        id="metadata of one topic",
    ),
    pytest.param(
        ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(
                    name="t", partition_data=[PartitionProduceData(index=1, records=memoryview(b"abc"))]
                )
            ],
        ), 9,
        "00 ffff 000003e8  02 0274  02 00000001 04616263 00  00  00",
        id="records are compact bytes",
    ),
    pytest.param(
        FetchRequest(
            replica_state=ReplicaState(replica_id=3, replica_epoch=4),
            max_wait_ms=500,
            min_bytes=1,
            topics=[
                FetchTopic(
                    topic_id=UUID(int=9),
                    partitions=[FetchPartition(partition=0, fetch_offset=5, partition_max_bytes=6)],
                )
            ],
        ), 17,
        "000001f4 00000001 7fffffff 00 00000000 ffffffff"
        "02 00000000000000000000000000000009"
        "   02 00000000 ffffffff 0000000000000005 ffffffff ffffffffffffffff 00000006 00  00"
        "01 01"
        "01  01 0d 00000003 0000000000000004 00",
        id="a follower names itself in a tagged field",
    ),
    pytest.param(
        DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")]), 0,
        "02 0274 00  000007d0  ff  00",
        id="a null part is one byte",
    ),
    pytest.param(
        DescribeTopicPartitionsRequest(cursor=Cursor(topic_name="t", partition_index=3)), 0,
        "01  000007d0  01 0274 00000003 00  00",
        id="a part that may be null has a marker in front",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("message", "version", "text"), VECTORS)
def test_a_message_has_exactly_these_bytes(message: Message, version: int, text: str) -> None:
    data = bytes.fromhex(text)
    assert encode(message, version).hex(" ") == data.hex(" ")
    assert decode(type(message), version, memoryview(data)) == message
