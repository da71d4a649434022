"""Partitions, brokers and features in the image: deltas, snapshots, copies, and data of version 0.1."""

from uuid import UUID

import msgspec
import pytest

from alpacamq.cluster import commands
from alpacamq.cluster.brokers import BrokerRegistration, Endpoint, FeatureRange
from alpacamq.cluster.commands import (
    AlterPartitions,
    CreateTopic,
    Failure,
    IsrMember,
    IsrProposal,
    PartitionResult,
    PartitionResults,
    RegisterBroker,
)
from alpacamq.cluster.image import (
    CURRENT_LEVEL,
    VERSION_FEATURE,
    ClusterImage,
    Delta,
    adopt,
    broker_change,
    broker_config_change,
    broker_removal,
    difference,
    feature_change,
    partition_change,
    producer_ids_change,
    start_change,
    time_change,
    topic_change,
    topic_removal,
)
from alpacamq.cluster.partition_state import PartitionId, PartitionState
from alpacamq.model.errors import AlpacaError, CorruptState, NotLeader, UnknownBroker
from alpacamq.model.ids import BrokerId, TopicName
from alpacamq.model.state_machine import Change
from alpacamq.model.topics import Topic

from .clusters import Cluster, snapshot

TOPIC = Topic(name=TopicName("t"), id=UUID(int=7), partitions=2)
FIRST, SECOND = PartitionId(TOPIC.id, 0), PartitionId(TOPIC.id, 1)
STATE = PartitionState(replicas=(1, 2), isr=(1, 2), leader=1)
BROKER = BrokerRegistration(
    id=BrokerId(3),
    incarnation_id=UUID(int=1),
    directory_id=UUID(int=2),
    epoch=4,
    rack="r",
    endpoints=(Endpoint("kafka", "host", 9092),),
    features={VERSION_FEATURE: FeatureRange(1, 2)},
)


def image_of(*changes: Change) -> ClusterImage:
    image = ClusterImage()
    image.apply(changes)
    return image


def test_a_delta_names_what_changed() -> None:
    image = ClusterImage()
    delta = image.apply(
        [
            topic_change(TOPIC),
            partition_change(FIRST, STATE),
            broker_change(BROKER),
            broker_config_change("", {"log.retention.ms": "1"}),
            feature_change(VERSION_FEATURE, 1),
            producer_ids_change(5),
            time_change(6),
        ]
    )
    assert delta == Delta(
        topics={TOPIC.name},
        partitions={FIRST},
        brokers={BROKER.id},
        broker_configs={""},
        features={VERSION_FEATURE},
    )
    assert image.broker(3) == BROKER
    assert BROKER.endpoint("kafka") == Endpoint("kafka", "host", 9092)
    assert BROKER.endpoint("http") is None
    assert not image.apply([time_change(7)])
    image.apply([broker_removal(BROKER.id)])
    with pytest.raises(UnknownBroker):
        image.broker(3)


def test_a_deleted_topic_is_in_the_delta_as_it_was() -> None:
    image = image_of(topic_change(TOPIC), partition_change(FIRST, STATE))
    later = msgspec.structs.replace(TOPIC, id=UUID(int=8))
    delta = image.apply([partition_change(SECOND, STATE), topic_removal(TOPIC.name)])
    assert delta == Delta(deleted={TOPIC.id: TOPIC})
    delta |= image.apply([topic_change(later), partition_change(PartitionId(later.id, 0), STATE)])
    assert delta == Delta(
        deleted={TOPIC.id: TOPIC}, topics={TOPIC.name}, partitions={PartitionId(later.id, 0)}
    )
    assert not image.partitions_of(TOPIC.id)
    assert set(image.replicas_on(1)) == {PartitionId(later.id, 0)}


def test_a_topic_replaced_by_a_namesake_is_deleted() -> None:
    image = image_of(topic_change(TOPIC), partition_change(FIRST, STATE))
    later = msgspec.structs.replace(TOPIC, id=UUID(int=8))
    delta = image.apply([topic_change(later)])
    assert (delta.deleted, delta.topics) == ({TOPIC.id: TOPIC}, {TOPIC.name})
    assert not image.replicas_on(1)


def test_indexes_follow_the_partitions() -> None:
    image = image_of(topic_change(TOPIC), partition_change(FIRST, STATE), partition_change(SECOND, STATE))
    assert set(image.replicas_on(2)) == {FIRST, SECOND}
    assert (image.led_by(1), image.led_by(2)) == (2, 0)
    moving = PartitionState(replicas=(1, 3), isr=(3,), leader=3, adding=(3,))
    image.apply([partition_change(FIRST, moving)])
    assert set(image.replicas_on(2)) == {SECOND}
    assert set(image.replicas_on(3)) == {FIRST}
    assert (image.led_by(1), image.led_by(3)) == (1, 1)
    assert set(image.not_preferred) == {FIRST}
    assert set(image.moving) == {FIRST}
    image.apply([partition_change(SECOND, PartitionState(replicas=(1, 2), isr=(), elr=(1,)))])
    assert set(image.leaderless) == {SECOND}
    image.apply([topic_removal(TOPIC.name)])
    for index in (image.leaderless, image.moving, image.not_preferred, image.replicas_on(3)):
        assert not index


def test_partitions_may_come_in_any_order() -> None:
    image = image_of(partition_change(SECOND, STATE))
    assert image.partition(FIRST) is None
    assert image.partition(PartitionId(TOPIC.id, 2)) is None
    image.apply([topic_change(TOPIC), partition_change(FIRST, STATE)])
    assert list(image.partitions_of(TOPIC.id)) == [STATE, STATE]
    delta = image.apply([Change(partition_change(SECOND, STATE).key, None)])
    assert delta.partitions == {SECOND}
    assert list(image.partitions_of(TOPIC.id)) == [STATE]


def test_a_snapshot_rebuilds_the_image_and_a_copy_is_independent() -> None:
    cluster = Cluster()
    cluster.create("t", (1, 2, 3), (2, 3, 1))
    cluster.kill(2)
    image = cluster.image
    rebuilt = image_of(*image.changes())
    assert snapshot(rebuilt) == snapshot(image)
    assert not difference(image, rebuilt)
    copy = image.copy()
    before = snapshot(image)
    copy.apply([topic_removal(TopicName("t")), broker_removal(BrokerId(1)), producer_ids_change(9)])
    assert snapshot(image) == before
    assert image.led_by(1) == 1
    delta = difference(image, copy)
    assert [topic.name for topic in delta.deleted.values()] == ["t"]
    assert (delta.brokers, delta.topics, delta.partitions) == ({1}, set(), set())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(Change(b"unheard-of/1", b"{}"), id="an unknown kind"),
        pytest.param(Change(b"partitions", b""), id="an unknown key"),
        pytest.param(Change(b"feature", b"1"), id="a kind without a name"),
    ],
)
def test_unknown_records_are_those_of_a_later_version(change: Change) -> None:
    with pytest.raises(CorruptState, match="later version"):
        ClusterImage().apply([change])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(Change(b"topic/t", b"{"), id="a topic"),
        pytest.param(Change(b"broker/x", b"{}"), id="the id of a broker"),
        pytest.param(Change(b"broker/1", b"{}"), id="a broker"),
        pytest.param(Change(b"partition/0/0", b""), id="the key of a partition"),
        pytest.param(Change(partition_change(FIRST, STATE).key, b"\x90"), id="a partition"),
        pytest.param(Change(b"time", b"now"), id="a number"),
    ],
)
def test_records_that_cannot_be_read_are_named(change: Change) -> None:
    with pytest.raises(CorruptState, match=change.key.decode()):
        ClusterImage().apply([change])


def test_topics_of_the_first_version_get_their_partitions() -> None:
    image = image_of(topic_change(TOPIC), start_change(12), time_change(34), producer_ids_change(1000))
    assert not image.partitions_of(TOPIC.id)
    image.apply(adopt(image, BrokerId(1), lambda partition: 10 + partition.partition))
    assert [state.leader_epoch for state in image.partitions_of(TOPIC.id)] == [11, 12]
    assert image.partition(FIRST) == PartitionState(replicas=(1,), isr=(1,), leader=1, leader_epoch=11)
    assert image.features == {VERSION_FEATURE: CURRENT_LEVEL}
    assert (image.start_number, image.time_ms, image.next_producer_id) == (12, 34, 1000)
    assert adopt(image, BrokerId(1), lambda _: 0) == []


def test_an_adopted_partition_is_led_after_its_broker_has_registered() -> None:
    cluster = Cluster(0)
    image = image_of(topic_change(TOPIC))
    cluster.log = [topic_change(TOPIC), *adopt(image, BrokerId(1), lambda _: 4)]
    cluster.fail_over()
    cluster.start(1)
    state = cluster.state(TOPIC)
    assert (state.leader, state.isr, state.elr) == (1, (1,), ())
    assert state.leader_epoch > 4


PROPOSALS = AlterPartitions(
    broker_id=BrokerId(1),
    broker_epoch=2,
    proposals=(IsrProposal(UUID(int=1), 0, 1, 2, (IsrMember(BrokerId(1), 2),)),),
)
COMMANDS: list[commands.AnyCommand] = [
    PROPOSALS,
    CreateTopic(name="t", topic_id=UUID(int=1), assignments=((1, 2),), overrides={"a": "b"}),
    RegisterBroker(
        id=BrokerId(1),
        incarnation_id=UUID(int=1),
        directory_id=UUID(int=2),
        endpoints=(Endpoint("kafka", "a", 1),),
        features={"f": FeatureRange(1, 2)},
        damaged=(FIRST,),
    ),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_commands_survive_forwarding(command: commands.AnyCommand) -> None:
    assert commands.decode(commands.encode(command)) == command
    assert command.routing_key == ""


def test_replies_survive_forwarding() -> None:
    reply = PartitionResults(
        (
            PartitionResult(TOPIC.id, 0, STATE),
            PartitionResult(TOPIC.id, 1, failure=Failure.of(NotLeader("not me", 2))),
        )
    )
    assert commands.decode_reply(PROPOSALS, commands.encode_reply(reply)) == reply
    failure = reply.results[1].failure
    assert failure is not None
    error = failure.to_error()
    assert isinstance(error, NotLeader)
    assert str(error) == "not me"
    assert type(Failure("NeverHeardOf", "x").to_error()) is AlpacaError


def test_what_is_no_command_is_refused() -> None:
    for data in (b"", b"\x80", msgspec.msgpack.encode({"type": "shut-down"})):
        with pytest.raises(msgspec.DecodeError):
            commands.decode(data)
