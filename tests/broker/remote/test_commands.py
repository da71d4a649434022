"""Commands to the controller while it changes, in a cluster of three."""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from alpacamq.api.http.messages import Request, Response
from alpacamq.api.kafka.handlers import metadata
from alpacamq.api.rest.app import RestApi
from alpacamq.api.sqs.app import SqsApi
from alpacamq.api.sqs.directory import SqsSettings
from alpacamq.broker.broker import Broker
from alpacamq.cluster.commands import AllocateProducerIds
from alpacamq.consensus.messages import Entry
from alpacamq.model.ids import TopicName
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from tests.api.kafka.served import served

from .three_brokers import three_brokers


async def test_repeatable_commands_outlast_a_change_of_the_controller(tmp_path: Path) -> None:
    """Also those of the controller's own node, which it has proposed and cannot know to be committed."""
    async with three_brokers(tmp_path) as cluster:
        controller = next(each for each in cluster.brokers.values() if each.metadata.is_controller)
        pending = [
            asyncio.ensure_future(broker.metadata.ask(AllocateProducerIds(count=1)))
            for _ in range(20)
            for broker in cluster.brokers.values()
        ]
        await asyncio.sleep(0)  # the first ones are proposed
        controller.metadata.quorum.transfer_leadership()
        blocks = await asyncio.gather(*pending)
        assert len({block.first for block in blocks}) == 60
        assert not controller.metadata.is_controller


@contextmanager
def held_back(broker: Broker) -> Iterator[None]:
    """Keep a broker from learning of metadata."""
    apply = broker.metadata.committed
    held: list[Sequence[Entry]] = []
    broker.metadata.committed = held.append  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        broker.metadata.committed = apply  # type: ignore[method-assign]
        for entries in held:
            apply(entries)


async def test_a_node_that_is_behind_knows_the_topics_created_through_others(tmp_path: Path) -> None:
    """HTTP and SQS clients may create a topic through one node and use it through another at once."""
    async with three_brokers(tmp_path) as cluster:
        controller = next(each for each in cluster.brokers.values() if each.metadata.is_controller)
        behind = next(each for each in cluster.brokers.values() if not each.metadata.is_controller)
        with held_back(behind):
            await controller.topics.create("letters", partitions=1)
            assert TopicName("letters") not in behind.topics.image.topics
            http = RestApi(behind, {})(Request("GET", "/topics/letters", "", {}, b"", "127.0.0.1:1"))
            send = b'{"QueueUrl": "http://localhost/000000000000/letters", "MessageBody": "hello"}'
            target = {"x-amz-target": "AmazonSQS.SendMessage", "content-type": "application/x-amz-json-1.0"}
            sqs = SqsApi(behind, SqsSettings())(Request("POST", "/", "", target, send, "127.0.0.1:1"))
            assert isinstance(http, Awaitable)
            assert isinstance(sqs, Awaitable)
            pending = [asyncio.ensure_future(http), asyncio.ensure_future(sqs)]
            await asyncio.wait(pending, timeout=0.1)
        assert [response.status for response in await asyncio.gather(*pending)] == [200, 200]


RESOURCE: dict[str, Any] = {"resource_type": 2, "resource_name": "letters"}


@pytest.mark.parametrize(
    "request_",
    [
        MetadataRequest(topics=[MetadataRequestTopic(name="letters")], allow_auto_topic_creation=False),
        DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name="letters")], response_partition_limit=10, cursor=None
        ),
        DescribeConfigsRequest(resources=[DescribeConfigsResource(configuration_keys=None, **RESOURCE)]),
        AlterConfigsRequest(resources=[AlterConfigsResource(configs=[], **RESOURCE)], validate_only=False),
        IncrementalAlterConfigsRequest(
            resources=[IncrementalAlterConfigsResource(configs=[], **RESOURCE)], validate_only=False
        ),
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="letters", count=2, assignments=None)], timeout_ms=1000
        ),
        DeleteTopicsRequest(topics=[DeleteTopicState(name="letters")], timeout_ms=1000),
    ],
    ids=lambda request: type(request).__name__,
)
async def test_a_kafka_client_uses_a_topic_through_a_node_that_is_behind(
    tmp_path: Path, request_: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may send the creation to one node and the next request to another."""
    monkeypatch.setattr(metadata, "LEARN_SECONDS", 30)
    async with three_brokers(tmp_path) as cluster:
        controller = next(each for each in cluster.brokers.values() if each.metadata.is_controller)
        behind = next(each for each in cluster.brokers.values() if not each.metadata.is_controller)
        async with served(behind) as (wire, _):
            with held_back(behind):
                await controller.topics.create("letters", partitions=1)
                assert TopicName("letters") not in behind.topics.image.topics
                pending = asyncio.ensure_future(asyncio.to_thread(wire.ask, request_))
                await asyncio.wait([pending], timeout=0.1)
            response: Any = await pending
            names = ("topics", "results", "responses")
            results = next(found for name in names if (found := getattr(response, name, None)))
            # Its leader may not have opened it.
            assert [result.error_code for result in results] in (
                [ErrorCode.NONE],
                [ErrorCode.LEADER_NOT_AVAILABLE],
            )


async def test_a_topic_that_no_node_has_is_unknown(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        for broker in cluster.brokers.values():
            answer = RestApi(broker, {})(Request("GET", "/topics/nothing", "", {}, b"", "127.0.0.1:1"))
            response = answer if isinstance(answer, Response) else await answer
            assert response.status == 404
