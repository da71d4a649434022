"""Topics: listing, describing, creating, changing and deleting them."""

from http import HTTPStatus
from itertools import islice
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.errors import NotCompacted
from alpacamq.api.rest.parameters import OfTopic, TopicText
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.partition.leader import Partition
from alpacamq.cluster.topics import BY_DEFAULT
from alpacamq.model.errors import (
    InvalidConfig,
    InvalidPartitionCount,
    InvalidReplication,
    InvalidTopicName,
    PolicyViolation,
    StorageFailed,
    TopicExists,
    UnknownTopic,
)
from alpacamq.model.topics import INT32_MAX, INTERNAL_TOPICS, SETTINGS, Topic, check_setting
from alpacamq.wire.topics import CompactedPartition, CompactedTopic, PartitionDetails, PartitionList

SettingValue = str | int | float | bool


class TopicsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which topics to list."""

    prefix: Annotated[str, Meta(description="of their names")] = ""
    internal: Annotated[bool, Meta(description="whether to include internal topics")] = False
    after: Annotated[str, Meta(description="continue after this name")] = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class ListedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A listed topic; `messages` and `size_bytes` cover all partitions."""

    name: str
    topic_id: str
    partitions: int
    internal: bool
    messages: int
    size_bytes: int


class TopicList(msgspec.Struct, frozen=True, kw_only=True):
    """Topics by name. If there are more, `next` is the name to continue after."""

    topics: list[ListedTopic]
    next: str | None


class PartitionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets and size of a partition."""

    partition: int
    leader: int
    leader_epoch: int
    start_offset: int
    end_offset: int
    last_stable_offset: int
    size_bytes: int


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with its settings, and the names of those that override defaults."""

    name: str
    topic_id: str
    internal: bool
    partitions: list[PartitionDescription]
    settings: dict[str, str]
    overrides: dict[str, str]


class NewTopic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic to create."""

    name: TopicText
    partitions: Annotated[int, Meta(ge=1, le=INT32_MAX)] | UnsetType = UNSET
    replication_factor: Annotated[int, Meta(ge=1, le=32767)] | UnsetType = UNSET
    settings: Annotated[
        dict[str, SettingValue], Meta(max_length=100, examples=[{"retention.ms": 3_600_000}])
    ] = {}


class SettingChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings to change; null restores the default."""

    settings: Annotated[
        dict[str, SettingValue | None], Meta(max_length=100, examples=[{"retention.ms": None}])
    ]


class PartitionCount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new number of partitions of a topic."""

    partitions: Annotated[int, Meta(ge=1, le=INT32_MAX)]


def list_topics(call: Call[TopicsQuery, Nothing]) -> TopicList:
    query = call.parameters
    topics = call.backend.broker.topics.image.topics
    names = sorted(
        name
        for name in topics
        if name.startswith(query.prefix)
        and name > query.after
        and (query.internal or name not in INTERNAL_TOPICS)
    )
    return TopicList(
        topics=[_listed(call.backend, topics[name]) for name in islice(names, query.limit)],
        next=names[query.limit - 1] if len(names) > query.limit else None,
    )


def _listed(backend: Backend, topic: Topic) -> ListedTopic:
    partitions = backend.broker.topics.partitions_of(topic.name)
    return ListedTopic(
        name=topic.name,
        topic_id=str(topic.id),
        partitions=topic.partitions,
        internal=topic.is_internal,
        messages=sum(each.high_watermark - each.start_offset for each in partitions),
        size_bytes=sum(each.size_bytes for each in partitions),
    )


async def create_topic(call: Call[Nothing, NewTopic]) -> TopicDescription:
    query = call.body
    topic = await call.backend.broker.topics.create(
        query.name,
        partitions=BY_DEFAULT if query.partitions is UNSET else query.partitions,
        replication_factor=BY_DEFAULT if query.replication_factor is UNSET else query.replication_factor,
        overrides={name: setting_text(value) for name, value in query.settings.items()},
    )
    return _described(call.backend, topic)


def describe_topic(call: Call[OfTopic, Nothing]) -> TopicDescription:
    return _described(call.backend, call.backend.broker.topics.image.topic(call.parameters.topic))


async def delete_topic(call: Call[OfTopic, Nothing]) -> None:
    await call.backend.broker.topics.delete(call.parameters.topic)


async def change_settings(call: Call[OfTopic, SettingChanges]) -> TopicDescription:
    name = call.parameters.topic
    _check_changeable(name)

    def changed(topic: Topic) -> dict[str, str]:
        overrides = dict(topic.overrides)
        for setting, value in call.body.settings.items():
            if value is not None:
                overrides[setting] = setting_text(value)
            elif setting in SETTINGS:
                overrides.pop(setting, None)
            else:
                check_setting(setting, "")  # raises InvalidConfig with the closest known name
        return overrides

    return _described(call.backend, await call.backend.broker.topics.configure(name, changed))


async def add_partitions(call: Call[OfTopic, PartitionCount]) -> TopicDescription:
    name = call.parameters.topic
    _check_changeable(name)
    return _described(call.backend, await call.backend.broker.topics.grow(name, call.body.partitions))


def list_partitions(call: Call[OfTopic, Nothing]) -> PartitionList:
    backend = call.backend
    topic = backend.broker.topics.image.topic(call.parameters.topic)
    node = int(backend.broker.settings.node_id)
    return PartitionList(
        topic=topic.name,
        partitions=[
            PartitionDetails(
                partition=each.identity.partition,
                leader=node,
                leader_epoch=each.leader_epoch,
                replicas=[node],
                in_sync_replicas=[node],
                start_offset=each.start_offset,
                high_watermark=each.high_watermark,
                last_stable_offset=each.last_stable_offset,
                messages=each.high_watermark - each.start_offset,
                size_bytes=each.size_bytes,
            )
            for each in backend.broker.topics.partitions_of(topic.name)
        ],
    )


async def compact_topic(call: Call[OfTopic, Nothing]) -> CompactedTopic:
    broker, name = call.backend.broker, call.parameters.topic
    _check_changeable(name)
    policy = broker.topics.config_of(broker.topics.image.topic(name)).cleanup_policy
    if "compact" not in policy:
        raise NotCompacted(f"topic {name!r} has cleanup.policy={','.join(policy)}, without 'compact'")
    results = []
    for partition in list(broker.topics.partitions_of(name)):
        before = partition.size_bytes
        try:
            compacted = await broker.housekeeping.compact(partition)
        except StorageFailed:
            broker.topics.image.topic(name)  # raises UnknownTopic if it was deleted meanwhile
            raise
        results.append(
            CompactedPartition(
                partition=partition.identity.partition,
                compacted=compacted,
                size_before_bytes=before,
                size_bytes=partition.size_bytes,
            )
        )
    return CompactedTopic(topic=name, partitions=results)


def _check_changeable(name: str) -> None:
    if name in INTERNAL_TOPICS:
        raise PolicyViolation(f"topic {name!r} is internal and cannot be changed")


def _described(backend: Backend, topic: Topic) -> TopicDescription:
    topics = backend.broker.topics
    config = topics.config_of(topic)
    return TopicDescription(
        name=topic.name,
        topic_id=str(topic.id),
        internal=topic.is_internal,
        partitions=[_partition(backend, each) for each in topics.partitions_of(topic.name)],
        settings={
            name: setting.text(getattr(config, name.replace(".", "_"))) for name, setting in SETTINGS.items()
        },
        overrides=dict(topic.overrides),
    )


def _partition(backend: Backend, partition: Partition) -> PartitionDescription:
    return PartitionDescription(
        partition=partition.identity.partition,
        leader=backend.broker.settings.node_id,
        leader_epoch=partition.leader_epoch,
        start_offset=partition.start_offset,
        end_offset=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        size_bytes=partition.size_bytes,
    )


def setting_text(value: SettingValue) -> str:
    """Format the value of a setting."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # for settings that are whole numbers
    return str(value)


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/topics",
        summary="List topics",
        handler=list_topics,
        parameters=TopicsQuery,
        body=Nothing,
        answers=(TopicList,),
    ),
    Route(
        method="POST",
        path="/topics",
        summary="Make a topic",
        handler=create_topic,
        parameters=Nothing,
        body=NewTopic,
        answers=(TopicDescription,),
        status=HTTPStatus.CREATED,
        errors=(
            TopicExists,
            InvalidTopicName,
            InvalidPartitionCount,
            InvalidReplication,
            InvalidConfig,
            StorageFailed,
        ),
    ),
    Route(
        method="GET",
        path="/topics/{topic}",
        summary="Describe a topic, its partitions and its settings",
        handler=describe_topic,
        parameters=OfTopic,
        body=Nothing,
        answers=(TopicDescription,),
        errors=(UnknownTopic,),
    ),
    Route(
        method="DELETE",
        path="/topics/{topic}",
        summary="Delete a topic and all its messages",
        handler=delete_topic,
        parameters=OfTopic,
        body=Nothing,
        status=HTTPStatus.NO_CONTENT,
        errors=(UnknownTopic, PolicyViolation),
    ),
    Route(
        method="GET",
        path="/topics/{topic}/partitions",
        summary="List the partitions of a topic with leaders, offsets and sizes",
        handler=list_partitions,
        parameters=OfTopic,
        body=Nothing,
        answers=(PartitionList,),
        errors=(UnknownTopic,),
    ),
    Route(
        method="PATCH",
        path="/topics/{topic}/settings",
        summary="Change settings of a topic",
        handler=change_settings,
        parameters=OfTopic,
        body=SettingChanges,
        answers=(TopicDescription,),
        errors=(UnknownTopic, InvalidConfig, PolicyViolation),
    ),
    Route(
        method="POST",
        path="/admin/topics/{topic}/partitions",
        summary="Add partitions to a topic, up to the given number",
        handler=add_partitions,
        parameters=OfTopic,
        body=PartitionCount,
        answers=(TopicDescription,),
        errors=(UnknownTopic, InvalidPartitionCount, PolicyViolation, StorageFailed),
    ),
    Route(
        method="POST",
        path="/admin/topics/{topic}/compact",
        summary="Compact a topic now, and wait for it",
        handler=compact_topic,
        parameters=OfTopic,
        body=Nothing,
        answers=(CompactedTopic,),
        errors=(UnknownTopic, NotCompacted, PolicyViolation, StorageFailed),
    ),
)
