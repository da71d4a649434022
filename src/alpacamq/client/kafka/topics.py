"""Lists, describes, creates, changes and deletes topics."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from alpacamq.client.errors import ErrorCode, Refused, check, only, refusal
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.messages.cluster import DescribeLogDirsRequest, DescribeLogDirsResponse
from alpacamq.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementallyAlterableConfig,
)
from alpacamq.protocol.messages.metadata import MetadataResponseTopic
from alpacamq.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

from .cluster import NAMES_PER_REQUEST, Cluster, batched, retry_transient

_TIMEOUT_MS = 20_000
_TOPIC = 2
_SET_ON_TOPIC = 1


class _Change(IntEnum):
    SET = 0
    DELETE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Leader and replicas of a partition."""

    index: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic and its partitions."""

    name: TopicName
    id: str
    is_internal: bool
    partitions: tuple[Partition, ...]

    @property
    def replication(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    def all_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, partition.index) for partition in self.partitions]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value of a topic setting, and whether the topic itself sets it."""

    name: str
    value: str | None
    is_own: bool


def list_topics(cluster: Cluster, names: Sequence[str] | None = None) -> list[Topic]:
    """List all topics by name, or these; NotFound if one of `names` does not exist."""
    return [_topic(described) for described in cluster.topics(names)]


def find_topic(cluster: Cluster, name: str, *, may_create: bool = False) -> Topic:
    """Describe a topic; NotFound if it does not exist and `may_create` does not auto-create it."""
    return _topic(only(f"topic {name!r}", cluster.topics([name], may_create=may_create)))


def _topic(described: MetadataResponseTopic) -> Topic:
    partitions = [
        Partition(
            index=partition.partition_index,
            leader=partition.leader_id,
            replicas=tuple(partition.replica_nodes),
            in_sync=tuple(partition.isr_nodes),
        )
        for partition in described.partitions
    ]
    return Topic(
        name=TopicName(described.name or ""),
        id=str(described.topic_id),
        is_internal=described.is_internal,
        partitions=tuple(sorted(partitions, key=lambda partition: partition.index)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """The outcome of creating a topic; -1 partitions if the broker does not say."""

    name: str
    partitions: int
    refusal: Refused | None


def create_topic(
    cluster: Cluster, name: str, *, partitions: int, replicas: int, settings: Mapping[str, str]
) -> int:
    """Create a topic, and return its number of partitions; -1 if the broker does not say.

    -1 partitions or replicas leave the number to the broker.
    """
    created = only(
        f"creating topic {name!r}",
        create_topics(cluster, [name], partitions=partitions, replicas=replicas, settings=settings),
    )
    if created.refusal is not None:
        raise created.refusal
    return created.partitions


def create_topics(
    cluster: Cluster, names: Sequence[str], *, partitions: int, replicas: int, settings: Mapping[str, str]
) -> list[Created]:
    """Create topics that differ only in their names; a refused one does not prevent the others."""
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in settings.items()]
    controller = cluster.controller()
    created = []
    for some in batched(names, NAMES_PER_REQUEST):
        wanted = [
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=configs)
            for name in some
        ]
        request = CreateTopicsRequest(topics=wanted, timeout_ms=_TIMEOUT_MS)
        for result in controller.call(request, CreateTopicsResponse).topics:
            about, code = f"creating topic {result.name!r}", result.error_code
            refused = refusal(about, code, result.error_message) if code else None
            created.append(Created(name=result.name, partitions=result.num_partitions, refusal=refused))
    return created


def delete_topic(cluster: Cluster, name: str) -> None:
    """Delete a topic; NotFound if it does not exist."""
    delete_topics(cluster, [name])


def delete_topics(cluster: Cluster, names: Sequence[str]) -> None:
    """Delete topics; NotFound if one of them does not exist, and then none is deleted."""
    cluster.topics(names)
    controller = cluster.controller()
    for some in batched(names, NAMES_PER_REQUEST):
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in some], timeout_ms=_TIMEOUT_MS
        )
        for result in controller.call(request, DeleteTopicsResponse).responses:
            check(f"deleting topic {result.name!r}", result.error_code, result.error_message)


def add_topic_partitions(cluster: Cluster, name: str, partitions: int) -> None:
    """Increase the number of partitions of a topic."""
    find_topic(cluster, name)
    wanted = CreatePartitionsTopic(name=name, count=partitions)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=_TIMEOUT_MS)
    for result in cluster.controller().call(request, CreatePartitionsResponse).results:
        check(f"adding partitions to topic {name!r}", result.error_code, result.error_message)


@retry_transient
def topic_settings(cluster: Cluster, name: str) -> list[Setting]:
    """Return all settings of a topic by name."""
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=_TOPIC, resource_name=name)]
    )
    settings = []
    for result in cluster.any_broker().call(request, DescribeConfigsResponse).results:
        check(f"reading the settings of topic {name!r}", result.error_code, result.error_message)
        settings += [
            Setting(name=entry.name, value=entry.value, is_own=entry.config_source == _SET_ON_TOPIC)
            for entry in result.configs
        ]
    return sorted(settings, key=lambda setting: setting.name)


@retry_transient
def own_settings(cluster: Cluster, topics: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return which of some settings topics have set themselves; a topic deleted meanwhile has none."""
    found: dict[str, dict[str, str]] = {topic: {} for topic in topics}
    for some in batched(topics, NAMES_PER_REQUEST):
        resources = [
            DescribeConfigsResource(resource_type=_TOPIC, resource_name=topic, configuration_keys=list(names))
            for topic in some
        ]
        request = DescribeConfigsRequest(resources=resources)
        for result in cluster.any_broker().call(request, DescribeConfigsResponse).results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            check(f"reading the settings of topic {result.resource_name!r}", result.error_code)
            found[result.resource_name] = {
                entry.name: entry.value or ""
                for entry in result.configs
                if entry.config_source == _SET_ON_TOPIC
            }
    return found


def alter_topic(cluster: Cluster, name: str, *, put: Mapping[str, str], drop: Sequence[str]) -> None:
    """Set some settings and reset others to their defaults, atomically."""
    find_topic(cluster, name)
    changes = [
        IncrementallyAlterableConfig(name=key, config_operation=_Change.SET, value=value)
        for key, value in put.items()
    ]
    changes += [IncrementallyAlterableConfig(name=key, config_operation=_Change.DELETE) for key in drop]
    request = IncrementalAlterConfigsRequest(
        resources=[IncrementalAlterConfigsResource(resource_type=_TOPIC, resource_name=name, configs=changes)]
    )
    for result in cluster.controller().call(request, IncrementalAlterConfigsResponse).responses:
        check(f"changing topic {name!r}", result.error_code, result.error_message)


def partition_bytes(cluster: Cluster) -> dict[TopicPartition, int]:
    """Return the size on disk of each partition, all replicas together; empty if not supported."""
    found: dict[TopicPartition, int] = defaultdict(int)
    for broker in cluster.all_brokers():
        try:
            answer = broker.call(DescribeLogDirsRequest(), DescribeLogDirsResponse)
            check(f"reading the sizes at {broker.address}", answer.error_code)
        except Refused:
            return {}
        for directory in answer.results:
            for topic in directory.topics:
                for each in topic.partitions:
                    place = TopicPartition(TopicName(topic.name), each.partition_index)
                    found[place] += each.partition_size
    return dict(found)
