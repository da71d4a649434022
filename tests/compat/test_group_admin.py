"""Inspecting groups and changing their offsets, with the admin clients."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import MemberToRemove, OffsetSpec
from kafka.structs import OffsetAndMetadata

from tests.brokers import Broker

from .client import DEADLINE_S, Record
from .confluent import Confluent
from .members import Member, Style, members_of, settled

UNKNOWN_MEMBER_ID = 25
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
GROUP_SUBSCRIBED_TO_TOPIC = 86
PARTITIONS = 2
STYLES = [Style("confluent-kafka", "range"), Style("confluent-kafka", "kip-848")]


@pytest.fixture
def start(broker: Broker, confluent: Confluent, topic: str) -> Iterator[Callable[[Style], Member]]:
    """Start members of a group named like the test's topic."""
    confluent.create_topic(topic, partitions=PARTITIONS)
    with members_of(broker.address, topic, topic) as start:
        yield start


@pytest.fixture
def admin(broker: Broker) -> Any:
    return AdminClient({"bootstrap.servers": broker.address, "log_level": 0})


@pytest.fixture
def python_admin(broker: Broker) -> Iterator[Any]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
        yield admin


@pytest.fixture
def group(broker: Broker, confluent: Confluent, topic: str) -> str:
    """Create a group without members at offset 3 of partition 0, under an unusual name."""
    confluent.create_topic(topic, partitions=PARTITIONS)
    confluent.produce(topic, [Record(value=b"x")] * 10)
    name = f"{topic}/groups can have any name: älpaca"
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": name})
    with closing(consumer):
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    return name


def refusal(call: Callable[[], object]) -> int:
    with pytest.raises(KafkaException) as refused:
        call()
    code: int = refused.value.args[0].code()
    return code


def offsets(admin: Any, group: str, *partitions: TopicPartition) -> dict[int, int]:
    wanted = [ConsumerGroupTopicPartitions(group, list(partitions) or None)]
    found = admin.list_consumer_group_offsets(wanted)[group].result(DEADLINE_S).topic_partitions
    return {each.partition: each.offset for each in found}


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_a_group_is_described_with_its_members_and_assignments(
    start: Callable[[Style], Member], admin: Any, topic: str, style: Style
) -> None:
    members = [start(style), start(style)]
    settled(members, PARTITIONS)

    described = admin.describe_consumer_groups([topic])[topic].result(DEADLINE_S)

    assert described.state is ConsumerGroupState.STABLE
    assert {member.host for member in described.members} == {"127.0.0.1"}
    assert {member.client_id for member in described.members} == {"rdkafka"}
    assert sorted(
        (each.topic, each.partition)
        for member in described.members
        for each in member.assignment.topic_partitions
    ) == [(topic, 0), (topic, 1)]


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_groups_are_listed_by_state_and_type(
    start: Callable[[Style], Member], admin: Any, topic: str, style: Style
) -> None:
    settled([start(style)], PARTITIONS)
    own = ConsumerGroupType.CONSUMER if style.assignor == "kip-848" else ConsumerGroupType.CLASSIC
    (other,) = {ConsumerGroupType.CONSUMER, ConsumerGroupType.CLASSIC} - {own}

    def listed(**filters: Any) -> list[Any]:
        lines: list[Any] = admin.list_consumer_groups(**filters).result(DEADLINE_S).valid
        return lines

    (line,) = [line for line in listed() if line.group_id == topic]
    assert (line.state, line.type, line.is_simple_consumer_group) == (ConsumerGroupState.STABLE, own, False)
    assert topic in {line.group_id for line in listed(states={ConsumerGroupState.STABLE})}
    assert topic not in {line.group_id for line in listed(states={ConsumerGroupState.EMPTY})}
    assert topic in {line.group_id for line in listed(types={own})}
    assert topic not in {line.group_id for line in listed(types={other})}


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_a_group_with_members_can_be_neither_deleted_nor_reset(
    start: Callable[[Style], Member], admin: Any, topic: str, style: Style
) -> None:
    settled([start(style)], PARTITIONS)
    moved = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0, 0)])

    assert refusal(admin.delete_consumer_groups([topic])[topic].result) == NON_EMPTY_GROUP
    altered = admin.alter_consumer_group_offsets([moved])[topic].result(DEADLINE_S)
    assert [each.error.code() for each in altered.topic_partitions] == [UNKNOWN_MEMBER_ID]


def test_deleting_a_group_deletes_its_offsets(admin: Any, group: str, topic: str) -> None:
    admin.delete_consumer_groups([group])[group].result(DEADLINE_S)

    assert group not in {line.group_id for line in admin.list_consumer_groups().result(DEADLINE_S).valid}
    assert offsets(admin, group, TopicPartition(topic, 0)) == {0: -1001}
    assert refusal(admin.delete_consumer_groups([group])[group].result) == GROUP_ID_NOT_FOUND


def test_offsets_of_a_group_without_members_can_be_reset(
    broker: Broker, admin: Any, group: str, topic: str
) -> None:
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 0)])

    admin.alter_consumer_group_offsets([moved])[group].result(DEADLINE_S)

    assert offsets(admin, group) == {0: 7, 1: 0}
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    with closing(consumer):
        assert [each.offset for each in consumer.committed([TopicPartition(topic, 0)])] == [7]


def test_offsets_of_unknown_partitions_are_refused(admin: Any, group: str, topic: str) -> None:
    wanted = [TopicPartition(topic, 0, 1), TopicPartition(topic, 99, 1), TopicPartition("no-such", 0, 1)]
    moved = ConsumerGroupTopicPartitions(group, wanted)

    altered = admin.alter_consumer_group_offsets([moved])[group].result(DEADLINE_S)

    codes = {
        (each.topic, each.partition): 0 if each.error is None else each.error.code()
        for each in altered.topic_partitions
    }
    assert codes == {(topic, 0): 0, (topic, 99): 3, ("no-such", 0): 3}


def test_an_offset_is_returned_with_its_metadata(python_admin: Any, group: str, topic: str) -> None:
    where = KafkaPythonPartition(topic, 0)

    python_admin.alter_group_offsets(group, {where: OffsetAndMetadata(4, "so far", 0)})

    assert python_admin.list_group_offsets({group: None})[group] == {where: OffsetAndMetadata(4, "so far", 0)}


def test_kafka_python_alters_resets_and_deletes_offsets(python_admin: Any, group: str, topic: str) -> None:
    first, second = KafkaPythonPartition(topic, 0), KafkaPythonPartition(topic, 1)

    def found() -> dict[Any, int]:
        listed = python_admin.list_group_offsets({group: None})[group]
        return {where: each.offset for where, each in listed.items()}

    python_admin.alter_group_offsets(group, {first: OffsetAndMetadata(5, "", -1)})
    assert found() == {first: 5}
    python_admin.reset_group_offsets(group, {first: OffsetSpec.LATEST, second: OffsetSpec.EARLIEST})
    assert found() == {first: 10, second: 0}
    python_admin.delete_group_offsets(group, [first])
    assert found() == {second: 0}


def test_offsets_of_subscribed_topics_are_not_deleted(
    start: Callable[[Style], Member], python_admin: Any, topic: str
) -> None:
    settled([start(STYLES[0])], PARTITIONS)

    result = python_admin.delete_group_offsets(topic, [KafkaPythonPartition(topic, 0)])

    assert [error.errno for error in result.values()] == [GROUP_SUBSCRIBED_TO_TOPIC]


def test_kafka_python_describes_lists_and_deletes(python_admin: Any, group: str) -> None:
    described = python_admin.describe_groups([group])[group]
    assert (described["group_state"], described["members"]) == ("Empty", [])
    assert group in {line["group_id"] for line in python_admin.list_groups()}

    python_admin.delete_groups([group])

    assert group not in {line["group_id"] for line in python_admin.list_groups()}


def test_a_static_member_can_be_removed(
    broker: Broker, confluent: Confluent, python_admin: Any, topic: str
) -> None:
    confluent.create_topic(topic, partitions=PARTITIONS)
    with members_of(broker.address, topic, topic) as start:
        staying, absent = [start(STYLES[0], instance=name, session_ms=60_000) for name in ("one", "two")]
        settled([staying, absent], PARTITIONS)
        absent.kill()

        python_admin.remove_group_members(topic, [MemberToRemove(group_instance_id="two")])

        settled([staying], PARTITIONS)


def test_aiokafka_lists_and_describes(broker: Broker, group: str, topic: str) -> None:
    async def ask() -> tuple[Any, Any, Any]:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await admin.start()
        try:
            return (
                await admin.list_consumer_groups(),
                await admin.describe_consumer_groups([group]),
                await admin.list_consumer_group_offsets(group),
            )
        finally:
            await admin.close()

    listed, described, found = asyncio.run(ask())

    assert group in {line[0] for line in listed}
    (answer,) = described
    assert [(each[1], each[2]) for each in answer.groups] == [(group, "Empty")]
    assert {(where.topic, where.partition): each.offset for where, each in found.items()} == {(topic, 0): 3}
