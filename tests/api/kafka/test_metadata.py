"""Metadata and DescribeTopicPartitions, asked of a broker in this process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from alpacamq.api.kafka.door import Call, Door
from alpacamq.api.kafka.handlers.metadata import describe_topic_partitions
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.model.ids import BrokerId
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.topics import Cursor, DescribeTopicPartitionsRequest, TopicRequest


async def no_pause() -> None:
    """Take no longer than a slice."""


CALL = Call(0, "tests", "127.0.0.1", no_pause)


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path))
    broker.open()
    yield Door(broker=broker, host="localhost", port=9092)
    await broker.close()


async def test_partitions_are_described_page_by_page(door: Door) -> None:
    await door.broker.topics.create("a", partitions=3)
    await door.broker.topics.create("b", partitions=2)
    seen: list[tuple[str | None, int]] = []
    cursor: Cursor | None = None
    while True:
        request = DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor)
        page = await describe_topic_partitions(door, request, CALL)
        seen += [(topic.name, part.partition_index) for topic in page.topics for part in topic.partitions]
        if (cursor := page.next_cursor) is None:
            break
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]


async def test_lists_of_replicas_are_empty_and_never_null(door: Door) -> None:
    """Null is allowed by the schema, and Kafka's own admin client fails on it."""
    await door.broker.topics.create("a", partitions=1)
    page = await describe_topic_partitions(door, DescribeTopicPartitionsRequest(), CALL)
    (partition,) = page.topics[0].partitions
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])


async def test_an_unknown_topic_is_named_with_its_error(door: Door) -> None:
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="nobody")])
    (topic,) = (await describe_topic_partitions(door, request, CALL)).topics
    assert (topic.name, topic.error_code) == ("nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
