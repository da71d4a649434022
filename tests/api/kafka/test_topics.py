"""CreateTopics, CreatePartitions and DeleteRecords: exact errors, those of Apache Kafka 4.1."""

import time
from collections.abc import Sequence

import pytest

from alpacamq.api.kafka.handlers.topics import CHANGES_AT_ONCE
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)

from .wire import Wire, versions

Result = tuple[int, str | None]

HERE = 1
ELSEWHERE = 99


def create(wire: Wire, topic: str, *assigned: tuple[int, Sequence[int]]) -> Result:
    """Create a topic with these replicas by partition, or with one partition."""
    count = -1 if assigned else 1
    wanted = CreatableTopic(
        name=topic,
        num_partitions=count,
        replication_factor=count,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in assigned
        ],
    )
    (result,) = wire.ask(CreateTopicsRequest(topics=[wanted])).topics
    return result.error_code, result.error_message


def grow(wire: Wire, topic: str, count: int, *assigned: Sequence[int]) -> Result:
    assignments = [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assigned]
    wanted = CreatePartitionsTopic(name=topic, count=count, assignments=assignments or None)
    (result,) = wire.ask(CreatePartitionsRequest(topics=[wanted], timeout_ms=5000)).results
    return result.error_code, result.error_message


def test_replicas_can_be_assigned_to_the_broker(wire: Wire, topic: str) -> None:
    assert create(wire, topic, (1, [HERE]), (0, [HERE])) == (0, None)
    assert grow(wire, topic, 3, [HERE]) == (0, None)


def test_many_topics_of_one_request_are_answered_in_its_order(wire: Wire, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(2 * CHANGES_AT_ONCE + 1)]
    expected = [(name, 0) for name in names]
    for twice in (0, CHANGES_AT_ONCE):
        expected[twice] = (names[twice], ErrorCode.TOPIC_ALREADY_EXISTS)
        assert create(wire, names[twice]) == (0, None)
    wanted = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    created = wire.ask(CreateTopicsRequest(topics=wanted)).topics
    assert [(each.name, each.error_code) for each in created] == expected
    unknown = [DeleteTopicState(name=name) for name in (f"{topic}-none", *names)]
    deleted = wire.ask(DeleteTopicsRequest(topics=unknown)).responses
    assert [(each.name, each.error_code) for each in deleted] == [
        (f"{topic}-none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        *((name, 0) for name in names),
    ]


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        pytest.param([ELSEWHERE], "id 99", id="an unknown broker"),
        pytest.param([HERE, ELSEWHERE], "id 99", id="an unknown follower"),
        pytest.param([-1], "id -1", id="no number of a broker"),
        pytest.param([HERE, HERE], "twice", id="the same broker twice"),
        pytest.param([], "at least one replica", id="no broker"),
    ],
)
def test_an_invalid_replica_assignment_is_refused(
    wire: Wire, topic: str, replicas: Sequence[int], words: str
) -> None:
    code, message = create(wire, topic, (0, replicas))
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert words in (message or "")

    assert create(wire, topic) == (0, None)
    code, message = grow(wire, topic, 2, replicas)
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert words in (message or "")


@pytest.mark.parametrize("indexes", [[1], [0, 2], [0, 0], [-1]])
def test_assigned_partitions_are_numbered_from_0(wire: Wire, topic: str, indexes: Sequence[int]) -> None:
    code, _ = create(wire, topic, *((index, [HERE]) for index in indexes))
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_added_partitions_are_assigned_all_or_none(wire: Wire, made: str) -> None:
    assert grow(wire, made, 3, [HERE], [HERE])[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(wire, made, 2, [HERE])[0] == ErrorCode.INVALID_PARTITIONS
    assert grow(wire, made, 1, [HERE])[0] == ErrorCode.INVALID_PARTITIONS


def test_a_name_that_collides_with_another_is_refused(wire: Wire, topic: str) -> None:
    assert create(wire, f"{topic}.a_b") == (0, None)

    code, message = create(wire, f"{topic}_a.b")
    assert code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "collides" in (message or "")
    assert f"{topic}.a_b" in (message or "")

    assert create(wire, f"{topic}.a_b")[0] == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_colliding_topic_is_not_created_automatically(wire: Wire, topic: str) -> None:
    assert create(wire, f"{topic}.a") == (0, None)
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=f"{topic}_a")])
    assert wire.ask(asked).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", versions(DeleteRecordsRequest))
def test_records_of_missing_partitions_are_refused_without_waiting(
    wire: Wire, made: str, version: int
) -> None:
    began_at = time.monotonic()
    wanted = {made: [0, 99, -1], "not-there": [0]}
    topics = [
        DeleteRecordsTopic(
            name=name,
            partitions=[DeleteRecordsPartition(partition_index=index, offset=0) for index in indexes],
        )
        for name, indexes in wanted.items()
    ]

    results = wire.ask(DeleteRecordsRequest(topics=topics, timeout_ms=15_000), version).topics

    codes = {each.name: [part.error_code for part in each.partitions] for each in results}
    assert codes == {made: [0, 3, 3], "not-there": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]}
    assert time.monotonic() - began_at < 5
