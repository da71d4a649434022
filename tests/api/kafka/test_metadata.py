"""Metadata and DescribeTopicPartitions, with a broker in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from alpacamq.api.kafka.brokers import NO_LEADER, partition_view
from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.handlers.metadata import describe_topic_partitions, metadata
from alpacamq.broker.access import ANONYMOUS_CALLER
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.cluster.partition_state import PartitionState
from alpacamq.model.errors import UnknownTopic
from alpacamq.model.ids import BrokerId
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from alpacamq.protocol.messages.topics import Cursor, DescribeTopicPartitionsRequest, TopicRequest


async def no_pause() -> None:
    """Take no longer than a slice."""


CALL = Call(0, "tests", ANONYMOUS_CALLER, no_pause)


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path))
    broker.open()
    yield Backend(broker=broker, host="localhost", port=9092)
    await broker.close()


async def test_partitions_are_described_page_by_page(backend: Backend) -> None:
    await backend.broker.topics.create("a", partitions=3)
    await backend.broker.topics.create("b", partitions=2)
    seen: list[tuple[str | None, int]] = []
    cursor: Cursor | None = None
    while True:
        request = DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor)
        page = await describe_topic_partitions(backend, request, CALL)
        seen += [(topic.name, part.partition_index) for topic in page.topics for part in topic.partitions]
        if (cursor := page.next_cursor) is None:
            break
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]


async def test_lists_of_replicas_are_empty_and_never_null(backend: Backend) -> None:
    """Null is allowed by the schema, and Kafka's own admin client fails on it."""
    await backend.broker.topics.create("a", partitions=1)
    page = await describe_topic_partitions(backend, DescribeTopicPartitionsRequest(), CALL)
    (partition,) = page.topics[0].partitions
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])


@pytest.mark.parametrize(("epoch", "told"), [(0, 0), (1, 0), (2, 1), (7, 6)])
def test_no_client_forgets_an_epoch_or_skips_a_validation_without_a_leader(epoch: int, told: int) -> None:
    """librdkafka has skipped records after a broker that the controller did not answer had told it -1.

    It validates a position when the epoch becomes greater. Told -1, it does so twice in one epoch, and may
    take records that arrive between the two for truncated.
    """
    state = PartitionState(replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=epoch)
    live = {1, 2, 3}
    led = partition_view(state, own_id=1, is_led_here=True, live=live)
    not_led = partition_view(state, own_id=1, is_led_here=False, live=live)
    elsewhere = partition_view(state, own_id=2, is_led_here=False, live=live)
    assert (led.leader, led.leader_epoch) == (elsewhere.leader, elsewhere.leader_epoch) == (1, epoch)
    assert (not_led.leader, not_led.leader_epoch) == (NO_LEADER, told)
    assert (not_led.replicas, not_led.isr) == ((1, 2, 3), (1, 2))


async def test_a_leader_that_does_not_lead_yet_or_any_more_is_none_in_a_known_epoch(backend: Backend) -> None:
    await backend.broker.topics.create("a", partitions=1)
    (partition,) = backend.broker.topics.partitions_of("a")
    backend.broker.replicas.set_not_led(partition)
    (answer,) = (await ask(backend, "a")).topics[0].partitions
    assert (answer.error_code, answer.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER)
    assert answer.leader_epoch >= 0


async def test_an_unknown_topic_is_named_with_its_error(backend: Backend) -> None:
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="nobody")])
    (topic,) = (await describe_topic_partitions(backend, request, CALL)).topics
    assert (topic.name, topic.error_code) == ("nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def ask(backend: Backend, *names: str) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names]
    response = metadata(backend, MetadataRequest(topics=topics), CALL)
    return response if isinstance(response, MetadataResponse) else await response


@pytest.mark.parametrize("partitions", [1, 300])
@pytest.mark.parametrize(("version", "expected"), [(0, ["a"]), (1, []), (13, [])])
async def test_an_empty_list_stands_for_all_topics_only_before_there_was_null(
    backend: Backend, partitions: int, version: int, expected: list[str]
) -> None:
    await backend.broker.topics.create("a", partitions=partitions)
    answer = metadata(backend, MetadataRequest(topics=[]), CALL._replace(version=version))
    if not isinstance(answer, MetadataResponse):
        answer = await answer
    assert [topic.name for topic in answer.topics] == expected


async def test_clients_that_ask_for_a_new_topic_at_once_all_get_it(backend: Backend) -> None:
    # The client retries: the topic exists, its partitions follow.
    fine = {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}
    for number in range(10):
        answers = await asyncio.gather(*(ask(backend, f"new-{number}") for _ in range(6)))
        assert {answer.topics[0].error_code for answer in answers} <= fine
        ids = {topic.topic_id for answer in answers for topic in answer.topics if not topic.error_code}
        assert len(ids) == 1


async def test_a_topic_that_is_deleted_and_created_again_meanwhile_is_there_or_not_yet(
    backend: Backend,
) -> None:
    fine = {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}
    told: set[int] = set()

    async def client() -> None:
        for _ in range(10):
            told.update(topic.error_code for topic in (await ask(backend, "fleeting")).topics)
            await asyncio.sleep(0)

    async def administrator() -> None:
        for _ in range(10):
            with suppress(UnknownTopic):
                await backend.broker.topics.delete("fleeting")

    await asyncio.gather(administrator(), *(client() for _ in range(6)))
    assert told <= fine


async def test_a_topic_named_again_and_again_is_described_once(backend: Backend) -> None:
    await backend.broker.topics.create("wide", partitions=300)
    answer = await ask(backend, *["wide"] * 50)
    assert [len(topic.partitions) for topic in answer.topics] == [300]


async def test_a_name_that_cannot_be_a_topic_gets_its_error(backend: Backend) -> None:
    (topic,) = (await ask(backend, "no spaces, please")).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
