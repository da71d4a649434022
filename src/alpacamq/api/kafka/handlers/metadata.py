"""Metadata and DescribeTopicPartitions: which topics there are and who leads their partitions."""

from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from alpacamq.api.kafka.door import Call, Door
from alpacamq.api.kafka.errors import code_of
from alpacamq.broker.partition import Partition
from alpacamq.model.errors import AlpacaError, UnknownTopicId
from alpacamq.model.topics import Topic
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from alpacamq.protocol.messages.topics import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

_MAX_DESCRIBED_PARTITIONS = 2000
_NO_LEADER = -1


def metadata(
    door: Door, request: MetadataRequest, _call: Call
) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
    image = door.broker.topics.image
    if request.topics is None:
        return _response(door, [_described(door, topic) for topic in image.topics.values()])
    if request.allow_auto_topic_creation and door.broker.settings.auto_create_topics:
        missing = [t.name for t in request.topics if t.name is not None and t.name not in image.topics]
        if missing:
            return _created_then(door, request, missing)
    return _named(door, request.topics)


def describe_topic_partitions(
    door: Door, request: DescribeTopicPartitionsRequest, _call: Call
) -> DescribeTopicPartitionsResponse:
    """Pages through partitions by name and index, so that no response grows with the cluster."""
    image = door.broker.topics.image
    names = sorted({topic.name for topic in request.topics} or image.topics)
    first = 0
    if request.cursor is not None:
        names = [name for name in names if name >= request.cursor.topic_name]
        first = request.cursor.partition_index if names[:1] == [request.cursor.topic_name] else 0
    room = min(max(request.response_partition_limit, 1), _MAX_DESCRIBED_PARTITIONS)
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        if room == 0:
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=0)
            )
        if (topic := image.topics.get(name)) is None:  # type: ignore[call-overload]
            topics.append(
                DescribeTopicPartitionsResponseTopic(
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name
                )
            )
            continue
        ready = door.broker.topics.partitions_of(name)
        partitions = ready[first : first + room]
        topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.id,
                is_internal=topic.is_internal,
                partitions=[_paged(door, partition) for partition in partitions],
            )
        )
        room -= len(partitions)
        if first + len(partitions) < len(ready):
            cursor = Cursor(topic_name=name, partition_index=first + len(partitions))
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
        first = 0
    return DescribeTopicPartitionsResponse(topics=topics)


async def _created_then(door: Door, request: MetadataRequest, missing: Sequence[str]) -> MetadataResponse:
    """Create what is missing and answer; a topic that cannot be created gets the reason as its error."""
    failures: dict[str, AlpacaError] = {}
    for name in missing:
        if name in door.broker.topics.image.topics:
            continue  # another request was faster
        try:
            await door.broker.topics.create(name)
        except AlpacaError as error:
            failures[name] = error
    assert request.topics is not None
    return _named(door, request.topics, failures)


def _named(
    door: Door, wanted: Sequence[MetadataRequestTopic], failures: dict[str, AlpacaError] | None = None
) -> MetadataResponse:
    return _response(door, list(_look_up(door, wanted, failures or {})))


def _look_up(
    door: Door, wanted: Sequence[MetadataRequestTopic], failures: dict[str, AlpacaError]
) -> Iterator[MetadataResponseTopic]:
    image = door.broker.topics.image
    for entry in wanted:
        topic: Topic | None = None
        try:
            if entry.name is None:
                topic = image.topic_by_id(entry.topic_id)
                if topic is None:
                    raise UnknownTopicId(f"no topic has the id {entry.topic_id}")
            else:
                if (failure := failures.get(entry.name)) is not None:
                    raise failure
                topic = image.topic(entry.name)
        except AlpacaError as error:
            # Versions before 12 cannot say that there is no name.
            yield MetadataResponseTopic(
                error_code=code_of(error), name=entry.name or "", topic_id=entry.topic_id
            )
            continue
        yield _described(door, topic)


def _response(door: Door, topics: list[MetadataResponseTopic]) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=door.node_id, host=door.host, port=door.port)],
        cluster_id=door.broker.cluster_id,
        controller_id=door.node_id,
        topics=topics,
    )


def _described(door: Door, topic: Topic) -> MetadataResponseTopic:
    here = [door.node_id]
    ready = door.broker.topics.ready_partitions_of(topic.name)
    return MetadataResponseTopic(
        # While its partitions are being made, clients are to ask again.
        error_code=ErrorCode.NONE if ready else ErrorCode.LEADER_NOT_AVAILABLE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            MetadataResponsePartition(
                partition_index=index,
                leader_id=door.node_id,
                leader_epoch=partition.leader_epoch,
                replica_nodes=here,
                isr_nodes=here,
            )
            if (partition := ready.get(index)) is not None
            else MetadataResponsePartition(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=_NO_LEADER,
                leader_epoch=-1,
                replica_nodes=here,
                isr_nodes=here,
            )
            for index in (range(topic.partitions) if ready else ())
        ],
    )


def _paged(door: Door, partition: Partition) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        partition_index=partition.identity.partition,
        leader_id=door.node_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=[door.node_id],
        isr_nodes=[door.node_id],
        # Not null, which the schema allows: Kafka's own client fails on it.
        eligible_leader_replicas=[],
        last_known_elr=[],
    )
