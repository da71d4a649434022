"""Authorized operations: without access control a client may do everything, and responses say so on request.

The sets are those that Apache Kafka 4.1 answers without an authorizer.
"""

from collections.abc import Callable
from typing import Any

import pytest

from alpacamq.protocol.messages.cluster import DescribeClusterRequest
from alpacamq.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from alpacamq.protocol.messages.groups import DescribeGroupsRequest
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.protocol.messages.share import ShareGroupDescribeRequest, ShareGroupHeartbeatRequest
from alpacamq.protocol.messages.topics import DescribeTopicPartitionsRequest, TopicRequest

from .test_committed_offsets import commit
from .test_groups import consumer_heartbeat
from .wire import Wire

ON_TOPIC = 3576
ON_GROUP = 3400
ON_CLUSTER = 8096
NOT_ASKED = -(2**31)

Ask = Callable[[Wire, str, bool], int]


def on_topic(wire: Wire, topic: str, include: bool) -> Any:
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], include_topic_authorized_operations=include
    )
    return wire.ask(asked).topics[0].topic_authorized_operations


def on_cluster_by_metadata(wire: Wire, _topic: str, include: bool) -> Any:
    asked = MetadataRequest(topics=[], include_cluster_authorized_operations=include)
    return wire.ask(asked, 10).cluster_authorized_operations


def on_cluster(wire: Wire, _topic: str, include: bool) -> Any:
    asked = DescribeClusterRequest(include_cluster_authorized_operations=include)
    return wire.ask(asked).cluster_authorized_operations


def on_classic_group(wire: Wire, topic: str, include: bool) -> Any:
    commit(wire, topic, topic, 0)
    asked = DescribeGroupsRequest(groups=[topic], include_authorized_operations=include)
    return wire.ask(asked).groups[0].authorized_operations


def on_dead_group(wire: Wire, topic: str, include: bool) -> Any:
    asked = DescribeGroupsRequest(groups=[topic], include_authorized_operations=include)
    return wire.ask(asked, 5).groups[0].authorized_operations


def on_consumer_group(wire: Wire, topic: str, include: bool) -> Any:
    wire.ask(consumer_heartbeat(topic, topic))
    asked = ConsumerGroupDescribeRequest(group_ids=[topic], include_authorized_operations=include)
    return wire.ask(asked).groups[0].authorized_operations


def on_share_group(wire: Wire, topic: str, include: bool) -> Any:
    joins: dict[str, Any] = {
        "group_id": topic,
        "member_id": "me",
        "member_epoch": 0,
        "subscribed_topic_names": [topic],
    }
    wire.ask(ShareGroupHeartbeatRequest(**joins))
    asked = ShareGroupDescribeRequest(group_ids=[topic], include_authorized_operations=include)
    return wire.ask(asked).groups[0].authorized_operations


@pytest.mark.parametrize(
    ("ask", "allowed"),
    [
        pytest.param(on_topic, ON_TOPIC, id="topic"),
        pytest.param(on_cluster_by_metadata, ON_CLUSTER, id="cluster, by Metadata"),
        pytest.param(on_cluster, ON_CLUSTER, id="cluster"),
        pytest.param(on_classic_group, ON_GROUP, id="classic group"),
        pytest.param(on_dead_group, ON_GROUP, id="dead group"),
        pytest.param(on_consumer_group, ON_GROUP, id="consumer group"),
        pytest.param(on_share_group, ON_GROUP, id="share group"),
    ],
)
def test_operations_are_returned_if_asked_for(wire: Wire, made: str, ask: Ask, allowed: int) -> None:
    assert ask(wire, made, True) == allowed
    assert ask(wire, made, False) == NOT_ASKED


def test_operations_of_an_unknown_topic_are_returned(wire: Wire) -> None:
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name="not-there")],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    assert wire.ask(asked).topics[0].topic_authorized_operations == ON_TOPIC


def test_paged_descriptions_of_topics_always_have_their_operations(wire: Wire, made: str) -> None:
    asked = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=made)])
    assert wire.ask(asked).topics[0].topic_authorized_operations == ON_TOPIC
