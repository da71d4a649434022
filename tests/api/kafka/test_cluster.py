"""The Kafka API of one broker in a cluster; the other brokers are registered and do not exist."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from alpacamq.api.kafka.brokers import preferred_replica
from alpacamq.api.kafka.handlers.configs import Resource, Source
from alpacamq.broker.broker import Broker
from alpacamq.cluster.brokers import Endpoint
from alpacamq.cluster.commands import AlterPartitions, Heartbeat, IsrMember, IsrProposal, RegisterBroker
from alpacamq.cluster.image import FEATURES
from alpacamq.cluster.partition_state import PartitionId, PartitionState
from alpacamq.cluster.topics import MIN_ISR
from alpacamq.coordinator.groups import DescribeRequest
from alpacamq.model.errors import GroupIdNotFound, NotCoordinator
from alpacamq.model.ids import BrokerId, TopicName
from alpacamq.model.records import Record, write_batch
from alpacamq.model.topics import OFFSETS_TOPIC
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.cluster import DescribeClusterRequest
from alpacamq.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from alpacamq.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from alpacamq.protocol.messages.groups import FindCoordinatorRequest, HeartbeatRequest
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from alpacamq.protocol.messages.quorum import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    FeatureUpdateKey,
    QuorumPartition,
    QuorumTopic,
    RemoveRaftVoterRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from alpacamq.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from alpacamq.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DescribeTopicPartitionsRequest,
)
from alpacamq.protocol.notation import Message
from tests.broker.open_brokers import running
from tests.broker.replication.nodes import until

from .served import served
from .wire import Wire

TOPIC, BROKER = Resource.TOPIC, Resource.BROKER
HERE, SECOND, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)


@dataclass
class Cluster:
    """A broker that serves, and others that only send heartbeats."""

    broker: Broker
    wire: Wire
    address: tuple[str, int]
    epochs: dict[BrokerId, int] = field(default_factory=dict)

    async def ask(self, request: Message, version: int | None = None) -> Any:
        """The response to a request, over a connection."""
        return await asyncio.to_thread(self.wire.ask, request, version)

    async def register(self, broker_id: BrokerId) -> None:
        """Register a broker of another rack and let it live."""
        name = f"node-{broker_id}"
        registered = await self.broker.metadata.ask(
            RegisterBroker(
                features=FEATURES,
                id=broker_id,
                incarnation_id=uuid4(),
                directory_id=uuid4(),
                rack=f"rack-{broker_id}",
                endpoints=(Endpoint("kafka", name, 9092), Endpoint("cluster", name, 9093)),
            )
        )
        self.epochs[broker_id] = registered.epoch
        await self.beat(broker_id)

    async def beat(self, broker_id: BrokerId, *, wants_shutdown: bool = False) -> None:
        """Send a heartbeat for a broker."""
        await self.broker.metadata.ask(
            Heartbeat(
                broker_id=broker_id,
                broker_epoch=self.epochs[broker_id],
                applied_index=2**40,
                wants_shutdown=wants_shutdown,
            )
        )

    async def fence(self, broker_id: BrokerId) -> None:
        """Let a broker leave."""
        while not self.broker.topics.image.brokers[broker_id].is_fenced:
            await self.beat(broker_id, wants_shutdown=True)
            for other in self.epochs:
                if other != broker_id:
                    await self.beat(other)

    async def create(self, topic: str, *replicas: Sequence[int]) -> None:
        """Create a topic with these replicas of its partitions."""
        wanted = CreatableTopic(
            name=topic,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
                for index, brokers in enumerate(replicas)
            ],
        )
        (created,) = (await self.ask(CreateTopicsRequest(topics=[wanted]))).topics
        assert (created.error_code, created.replication_factor) == (0, len(replicas[0]))

    def state(self, topic: str, index: int) -> PartitionState:
        image = self.broker.topics.image
        state = image.partition(PartitionId(image.topic(topic).id, index))
        assert state is not None
        return state

    def topic_id(self, topic: str) -> UUID:
        return self.broker.topics.image.topic(topic).id


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(tmp_path) as broker, served(broker) as (wire, address):
        cluster = Cluster(broker, wire, address)
        await cluster.register(SECOND)
        await cluster.register(THIRD)
        yield cluster


async def test_metadata_lists_brokers_leaders_and_replicas(cluster: Cluster) -> None:
    await cluster.create("orders", [HERE, SECOND, THIRD], [SECOND, THIRD, HERE])
    response = await cluster.ask(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]))
    assert [(each.node_id, each.host, each.port, each.rack) for each in response.brokers] == [
        (HERE, *cluster.address, None),
        (SECOND, "node-2", 9092, "rack-2"),
        (THIRD, "node-3", 9092, "rack-3"),
    ]
    assert response.controller_id == HERE
    first, second = response.topics[0].partitions
    assert (first.leader_id, first.replica_nodes, first.isr_nodes) == (HERE, [1, 2, 3], [1, 2, 3])
    assert (second.error_code, second.leader_id, second.replica_nodes) == (0, SECOND, [2, 3, 1])
    assert second.leader_epoch == cluster.state("orders", 1).leader_epoch


async def test_the_default_of_min_insync_replicas_is_described_by_the_number_of_replicas(
    cluster: Cluster,
) -> None:
    await cluster.create("one", [HERE])
    await cluster.create("three", [HERE, SECOND, THIRD])
    await cluster.create("own", [HERE, SECOND, THIRD])
    own = IncrementalAlterConfigsResource(
        resource_type=TOPIC,
        resource_name="own",
        configs=[IncrementallyAlterableConfig(name=MIN_ISR, config_operation=0, value="3")],
    )
    await cluster.ask(IncrementalAlterConfigsRequest(resources=[own]))

    async def described(kind: int, name: str, setting: str) -> tuple[str | None, int]:
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name)
        response = await cluster.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True))
        (entry,) = (each for each in response.results[0].configs if each.name == setting)
        if kind == TOPIC:
            assert entry.synonyms[0].value == entry.value
        return entry.value, entry.config_source

    assert await described(TOPIC, "one", MIN_ISR) == ("1", Source.DEFAULT)
    assert await described(TOPIC, "three", MIN_ISR) == ("2", Source.DEFAULT)
    assert await described(TOPIC, "own", MIN_ISR) == ("3", Source.TOPIC)
    assert (await described(BROKER, "1", "default.replication.factor"))[0] == "3"


async def test_a_broker_that_left_is_not_listed_and_its_replicas_are_offline(cluster: Cluster) -> None:
    await cluster.create("orders", [SECOND, THIRD], [SECOND, HERE])
    await cluster.create("alone", [SECOND])
    await cluster.fence(SECOND)
    names = [MetadataRequestTopic(name=name) for name in ("orders", "alone")]
    response = await cluster.ask(MetadataRequest(topics=names))
    assert [each.node_id for each in response.brokers] == [HERE, THIRD]
    orders, alone = response.topics
    assert [(each.leader_id, each.offline_replicas) for each in orders.partitions] == [
        (THIRD, [SECOND]),
        (HERE, [SECOND]),
    ]
    (partition,) = alone.partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    page = await cluster.ask(DescribeTopicPartitionsRequest())
    (described,) = (topic for topic in page.topics if topic.name == "alone")
    assert described.partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert described.partitions[0].offline_replicas == [SECOND]


async def test_the_cluster_is_described_with_and_without_fenced_brokers(cluster: Cluster) -> None:
    await cluster.fence(THIRD)

    async def described(**options: Any) -> list[tuple[int, bool]]:
        response = await cluster.ask(DescribeClusterRequest(**options))
        assert response.error_code == 0
        return [(each.broker_id, each.is_fenced) for each in response.brokers]

    assert await described() == [(1, False), (2, False)]
    assert await described(include_fenced_brokers=True) == [(1, False), (2, False), (3, True)]
    assert await described(endpoint_type=2) == [(1, False)]
    refused = await cluster.ask(DescribeClusterRequest(endpoint_type=3))
    assert refused.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


def produce(topic_id: UUID, index: int) -> ProduceRequest:
    batch = bytes(write_batch([Record(0, 0, b"k", b"v")]))
    data = TopicProduceData(
        topic_id=topic_id, partition_data=[PartitionProduceData(index=index, records=batch)]
    )
    return ProduceRequest(acks=1, timeout_ms=5000, topic_data=[data])


def fetch(topic_id: UUID, index: int, **options: Any) -> FetchRequest:
    wanted = FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic_id=topic_id, partitions=[wanted])
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[topic], **options)


async def test_a_producer_is_told_the_leader_on_another_broker(cluster: Cluster) -> None:
    await cluster.create("orders", [SECOND])
    response = await cluster.ask(produce(cluster.topic_id("orders"), 0))
    (result,) = response.responses[0].partition_responses
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (result.current_leader.leader_id, result.current_leader.leader_epoch) == (SECOND, 0)
    (node,) = response.node_endpoints
    assert (node.node_id, node.host, node.port, node.rack) == (SECOND, "node-2", 9092, "rack-2")


async def test_a_consumer_is_told_the_leader_on_another_broker(cluster: Cluster) -> None:
    await cluster.create("orders", [THIRD])
    response = await cluster.ask(fetch(cluster.topic_id("orders"), 0))
    (result,) = response.responses[0].partitions
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert result.current_leader.leader_id == THIRD
    assert [node.node_id for node in response.node_endpoints] == [THIRD]
    # Version 15 has no addresses.
    former = await cluster.ask(fetch(cluster.topic_id("orders"), 0), 15)
    assert former.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_offsets_of_a_partition_on_another_broker_are_not_listed(cluster: Cluster) -> None:
    await cluster.create("orders", [SECOND])
    wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="orders", partitions=[wanted])])
    (topic,) = (await cluster.ask(request)).topics
    assert topic.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_consumer_is_sent_to_a_follower_in_its_rack(cluster: Cluster) -> None:
    await cluster.create("orders", [HERE, SECOND])
    topic_id = cluster.topic_id("orders")
    for rack, replica in (("rack-2", SECOND), ("rack-3", -1), ("", -1)):
        response = await cluster.ask(fetch(topic_id, 0, rack_id=rack))
        (result,) = response.responses[0].partitions
        assert (result.error_code, result.preferred_read_replica) == (0, replica), rack
    image = cluster.broker.topics.image
    assert preferred_replica(image, PartitionId(topic_id, 0), HERE, "rack-2") == SECOND


async def test_a_follower_serves_consumers_up_to_its_watermark(cluster: Cluster) -> None:
    await cluster.create("orders", [SECOND, HERE])
    response = await cluster.ask(fetch(cluster.topic_id("orders"), 0, rack_id="rack-1"))
    (result,) = response.responses[0].partitions
    assert (result.error_code, result.high_watermark, result.preferred_read_replica) == (0, 0, -1)
    # Clients before KIP-392 expect the leader.
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    former = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic="orders", partitions=[wanted])])
    (result,) = (await cluster.ask(former, 10)).responses[0].partitions
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def coordinators(cluster: Cluster, *keys: str, kind: int = 0) -> list[Any]:
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=keys)
    return list((await cluster.ask(request)).coordinators)


async def move(cluster: Cluster, topic: str, index: int, *replicas: int) -> int:
    """Ask for other replicas of a partition; returns the error code."""
    partition = ReassignablePartition(partition_index=index, replicas=replicas or None)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=[partition])]
    )
    response = await cluster.ask(request)
    assert response.error_code == 0
    code: int = response.responses[0].partitions[0].error_code
    return code


async def in_sync(cluster: Cluster, topic: str, index: int, *members: BrokerId) -> None:
    """Let the leader of a partition report these replicas as in sync."""
    state = cluster.state(topic, index)
    brokers = cluster.broker.topics.image.brokers
    assert state.leader is not None
    leader = brokers[BrokerId(state.leader)]
    proposal = IsrProposal(
        cluster.topic_id(topic),
        index,
        state.leader_epoch,
        state.partition_epoch,
        tuple(IsrMember(member, brokers[member].epoch) for member in members),
    )
    command = AlterPartitions(broker_id=leader.id, broker_epoch=leader.epoch, proposals=(proposal,))
    (result,) = (await cluster.broker.metadata.ask(command)).results
    assert result.failure is None, result.failure


async def test_a_coordinator_is_the_leader_of_its_partition(cluster: Cluster) -> None:
    groups = [f"group-{number}" for number in range(40)]
    found = await coordinators(cluster, *groups)
    assert {each.error_code for each in found} == {0}
    assert {each.node_id for each in found} == {HERE, SECOND, THIRD}
    by_name = {each.key: each for each in found}
    for name in groups:
        partition = await cluster.broker.groups.offsets_partition(name)
        assert by_name[name].node_id == cluster.state(OFFSETS_TOPIC, partition.partition).leader
    elsewhere = next(each.key for each in found if each.node_id == SECOND)
    here = next(each.key for each in found if each.node_id == HERE)
    beat = HeartbeatRequest(group_id=elsewhere, generation_id=1, member_id="m")
    assert (await cluster.ask(beat)).error_code == ErrorCode.NOT_COORDINATOR
    beat = HeartbeatRequest(group_id=here, generation_id=1, member_id="m")
    assert (await cluster.ask(beat)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    (transaction,) = await coordinators(cluster, "t", kind=1)
    assert transaction.error_code == 0


async def test_groups_move_with_the_leader_of_their_partition(cluster: Cluster) -> None:
    groups = cluster.broker.groups
    found = await coordinators(cluster, *(f"group-{number}" for number in range(40)))
    group = next(each.key for each in found if each.node_id == HERE)
    index = (await groups.offsets_partition(group)).partition
    with pytest.raises(GroupIdNotFound):
        await groups.ask(DescribeRequest(group=group))
    state = cluster.state(OFFSETS_TOPIC, index)
    other = next(replica for replica in state.replicas if replica != HERE)
    assert await move(cluster, OFFSETS_TOPIC, index, other) == 0
    assert cluster.state(OFFSETS_TOPIC, index).leader == other
    await applied(cluster, OFFSETS_TOPIC)
    with pytest.raises(NotCoordinator) as moved:
        await groups.ask(DescribeRequest(group=group))
    assert moved.value.coordinator == other
    (found_again,) = await coordinators(cluster, group)
    assert found_again.node_id == other


async def applied(cluster: Cluster, topic: str) -> None:
    """Wait until this broker has applied the image."""
    topics = cluster.broker.topics
    states = topics.image.partitions_of(topics.image.topics[TopicName(topic)].id)
    led = {index for index, state in enumerate(states) if state.leader == HERE}
    await until(lambda: set(topics.ready_partitions_of(topic)) == led, "other partitions led here")


async def test_a_coordinator_without_a_leader_is_not_available(cluster: Cluster) -> None:
    found = await coordinators(cluster, *(f"group-{number}" for number in range(40)))
    group = next(each.key for each in found if each.node_id == SECOND)
    index = (await cluster.broker.groups.offsets_partition(group)).partition
    assert await move(cluster, OFFSETS_TOPIC, index, SECOND) == 0
    await in_sync(cluster, OFFSETS_TOPIC, index, SECOND)
    await cluster.fence(SECOND)
    assert cluster.state(OFFSETS_TOPIC, index).leader is None
    (found_again,) = await coordinators(cluster, group)
    assert found_again.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    beat = HeartbeatRequest(group_id=group, generation_id=1, member_id="m")
    assert (await cluster.ask(beat)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_reassignment_is_begun_listed_and_cancelled(cluster: Cluster) -> None:
    await cluster.create("orders", [SECOND], [THIRD])
    assert await move(cluster, "orders", 0, THIRD, HERE) == 0

    async def listed(*names: str) -> list[tuple[str, int, list[int], list[int], list[int]]]:
        topics = [ListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 1]) for name in names]
        response = await cluster.ask(ListPartitionReassignmentsRequest(topics=topics or None))
        return [
            (topic.name, each.partition_index, each.replicas, each.adding_replicas, each.removing_replicas)
            for topic in response.topics
            for each in topic.partitions
        ]

    moving = [("orders", 0, [3, 1, 2], [3, 1], [2])]
    assert await listed() == moving
    assert await listed("orders", "nobody") == moving
    assert await move(cluster, "orders", 0) == 0
    assert await listed() == []
    assert await move(cluster, "orders", 0) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert await move(cluster, "orders", 0, 99) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await move(cluster, "nobody", 0, HERE) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_reassignment_can_be_forbidden_to_change_the_number_of_replicas(cluster: Cluster) -> None:
    await cluster.create("orders", [SECOND])
    partition = ReassignablePartition(partition_index=0, replicas=[SECOND, THIRD])
    topics = [ReassignableTopic(name="orders", partitions=[partition])]
    request = AlterPartitionReassignmentsRequest(topics=topics, allow_replication_factor_change=False)
    (result,) = (await cluster.ask(request)).responses[0].partitions
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


async def test_the_preferred_leader_is_elected(cluster: Cluster) -> None:
    await cluster.create("orders", [SECOND, THIRD], [THIRD, SECOND])

    async def elect(*indexes: int, kind: int = 0) -> list[tuple[str, int, int]]:
        named = [TopicPartitions(topic="orders", partitions=indexes)] if indexes else None
        response = await cluster.ask(ElectLeadersRequest(election_type=kind, topic_partitions=named))
        assert response.error_code == 0
        return [
            (topic.topic, each.partition_id, each.error_code)
            for topic in response.replica_election_results
            for each in topic.partition_result
        ]

    await cluster.fence(SECOND)
    assert cluster.state("orders", 0).leader == THIRD
    assert await elect(0) == [("orders", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    await cluster.beat(SECOND)
    await in_sync(cluster, "orders", 0, SECOND, THIRD)
    assert await elect() == [("orders", 0, 0)]
    assert cluster.state("orders", 0).leader == SECOND
    assert await elect(0, 1) == [
        ("orders", 0, ErrorCode.ELECTION_NOT_NEEDED),
        ("orders", 1, ErrorCode.ELECTION_NOT_NEEDED),
    ]
    assert await elect(9, kind=1) == [("orders", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    refused = await cluster.ask(ElectLeadersRequest(election_type=7))
    assert refused.error_code == ErrorCode.INVALID_REQUEST


async def test_the_quorum_is_described(cluster: Cluster) -> None:
    topics = [
        QuorumTopic(topic_name="__cluster_metadata", partitions=[QuorumPartition(partition_index=0)]),
        QuorumTopic(topic_name="orders", partitions=[QuorumPartition(partition_index=0)]),
    ]
    response = await cluster.ask(DescribeQuorumRequest(topics=topics))
    metadata, orders = (topic.partitions[0] for topic in response.topics)
    assert orders.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (metadata.error_code, metadata.leader_id) == (0, HERE)
    assert metadata.leader_epoch == cluster.broker.metadata.quorum.term
    (voter,) = metadata.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (HERE, metadata.high_watermark)
    (node,) = response.nodes
    listeners = [(each.name, each.host, each.port) for each in node.listeners]
    # Kafka's own client fails on names in lower case.
    assert (node.node_id, listeners) == (HERE, [("KAFKA", *cluster.address)])


async def test_voters_are_checked(cluster: Cluster) -> None:
    (own,) = cluster.broker.metadata.quorum.voters
    codes = [
        (await cluster.ask(request)).error_code
        for request in (
            AddRaftVoterRequest(cluster_id="another", voter_id=2, voter_directory_id=uuid4()),
            AddRaftVoterRequest(voter_id=2),
            AddRaftVoterRequest(voter_id=1, voter_directory_id=own.directory),
            # It has not caught up: it does not exist.
            AddRaftVoterRequest(voter_id=2, voter_directory_id=uuid4()),
            RemoveRaftVoterRequest(voter_id=2, voter_directory_id=uuid4()),
            RemoveRaftVoterRequest(voter_id=1, voter_directory_id=own.directory),
        )
    ]
    assert codes == [
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.DUPLICATE_VOTER,
        ErrorCode.INCONSISTENT_VOTER_SET,
        ErrorCode.VOTER_NOT_FOUND,
        ErrorCode.INCONSISTENT_VOTER_SET,
    ]


async def test_a_broker_that_left_is_unregistered(cluster: Cluster) -> None:
    assert (await cluster.ask(UnregisterBrokerRequest(broker_id=THIRD))).error_code != 0
    await cluster.fence(THIRD)
    assert (await cluster.ask(UnregisterBrokerRequest(broker_id=THIRD))).error_code == 0
    assert THIRD not in cluster.broker.topics.image.brokers
    response = await cluster.ask(UnregisterBrokerRequest(broker_id=THIRD))
    assert response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize(
    ("feature", "level", "options", "code"),
    [
        pytest.param("group.version", 1, {}, 0, id="the level that it has"),
        pytest.param("group.version", 2, {}, ErrorCode.FEATURE_UPDATE_FAILED, id="no such level"),
        pytest.param("unknown", 1, {}, ErrorCode.FEATURE_UPDATE_FAILED, id="unknown"),
        pytest.param(
            "alpacamq.version", 0, {"upgrade_type": 2}, ErrorCode.FEATURE_UPDATE_FAILED, id="downgrade"
        ),
        pytest.param("", 1, {}, ErrorCode.INVALID_REQUEST, id="no name"),
    ],
)
async def test_feature_levels(
    cluster: Cluster, feature: str, level: int, options: dict[str, Any], code: int
) -> None:
    update = FeatureUpdateKey(feature=feature, max_version_level=level, **options)
    assert (await cluster.ask(UpdateFeaturesRequest(feature_updates=[update]))).error_code == code
    (result,) = (await cluster.ask(UpdateFeaturesRequest(feature_updates=[update]), 1)).results
    assert (result.feature, result.error_code) == (feature, code)


async def test_topics_are_created_and_grown_with_replicas(cluster: Cluster) -> None:
    await cluster.create("chosen", [SECOND, HERE], [HERE, THIRD])
    assert [cluster.state("chosen", index).replicas for index in (0, 1)] == [(2, 1), (1, 3)]
    added = CreatePartitionsTopic(
        name="chosen", count=3, assignments=[CreatePartitionsAssignment(broker_ids=[THIRD, SECOND])]
    )
    (grown,) = (await cluster.ask(CreatePartitionsRequest(topics=[added], timeout_ms=5000))).results
    assert grown.error_code == 0
    assert cluster.state("chosen", 2).replicas == (3, 2)
    placed = CreatableTopic(name="placed", num_partitions=3, replication_factor=2)
    (created,) = (await cluster.ask(CreateTopicsRequest(topics=[placed]))).topics
    assert (created.error_code, created.replication_factor) == (0, 2)
    assert {len(cluster.state("placed", index).replicas) for index in range(3)} == {2}


async def test_more_replicas_than_brokers_are_refused_with_their_number(cluster: Cluster) -> None:
    wanted = CreatableTopic(name="large", num_partitions=1, replication_factor=4)
    (refused,) = (await cluster.ask(CreateTopicsRequest(topics=[wanted]))).topics
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "3 brokers" in refused.error_message
