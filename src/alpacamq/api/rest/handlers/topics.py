"""Topics: listing, describing, creating, changing and deleting them."""

from collections.abc import Sequence
from http import HTTPStatus
from itertools import islice
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.errors import NotCompacted
from alpacamq.api.rest.parameters import OfTopic, TopicText
from alpacamq.api.rest.partition_reading import bounds_of_topics
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.remote.read_values import Bounds
from alpacamq.cluster.partition_state import PartitionState
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
    UnknownTopicId,
)
from alpacamq.model.topics import INT32_MAX, INTERNAL_TOPICS, SETTINGS, Topic, check_setting
from alpacamq.wire.topics import CompactedPartition, CompactedTopic, PartitionDetails, PartitionList

SettingValue = str | int | float | bool
NO_LEADER = -1
# How long to look for leaders: those of a new topic are about to open their partitions.
DESCRIBE_MS = 2000


class TopicsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which topics to list."""

    prefix: Annotated[str, Meta(description="of their names")] = ""
    internal: Annotated[bool, Meta(description="whether to include internal topics")] = False
    after: Annotated[str, Meta(description="continue after this name")] = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class ListedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A listed topic; `messages` and `size_bytes` cover all partitions whose leaders have answered.

    `unavailable_partitions` is the number of the others, if there are any.
    """

    name: str
    topic_id: str
    partitions: int
    internal: bool
    messages: int
    size_bytes: int
    unavailable_partitions: int | UnsetType = UNSET


class TopicList(msgspec.Struct, frozen=True, kw_only=True):
    """Topics by name. If there are more, `next` is the name to continue after."""

    topics: list[ListedTopic]
    next: str | None


class PartitionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets and size of a partition, null if its leader does not answer; `leader` is -1 without one."""

    partition: int
    leader: int
    leader_epoch: int
    start_offset: int | None
    end_offset: int | None
    last_stable_offset: int | None
    size_bytes: int | None


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


async def list_topics(call: Call[TopicsQuery, Nothing]) -> TopicList:
    query, broker = call.parameters, call.backend.broker
    topics = broker.topics.image.topics
    names = sorted(
        name
        for name in topics
        if name.startswith(query.prefix)
        and name > query.after
        and (query.internal or name not in INTERNAL_TOPICS)
        and call.sees_topic(name)
    )
    listed = [topics[name] for name in islice(names, query.limit)]
    bounds = await bounds_of_topics(broker, listed)
    return TopicList(
        topics=[_listed(topic, bounds[topic.name]) for topic in listed],
        next=names[query.limit - 1] if len(names) > query.limit else None,
    )


def _listed(topic: Topic, bounds: Sequence[Bounds | None]) -> ListedTopic:
    known = [each for each in bounds if each is not None]
    return ListedTopic(
        name=topic.name,
        topic_id=str(topic.id),
        partitions=topic.partitions,
        internal=topic.is_internal,
        messages=sum(each.messages for each in known),
        size_bytes=sum(each.size_bytes for each in known),
        unavailable_partitions=len(bounds) - len(known) or UNSET,
    )


async def create_topic(call: Call[Nothing, NewTopic]) -> TopicDescription:
    query = call.body
    if (mutations := call.mutations) is not None:
        mutations.check()
    topic = await call.backend.broker.topics.create(
        query.name,
        partitions=BY_DEFAULT if query.partitions is UNSET else query.partitions,
        replication_factor=BY_DEFAULT if query.replication_factor is UNSET else query.replication_factor,
        overrides={name: setting_text(value) for name, value in query.settings.items()},
    )
    if mutations is not None:
        mutations.charge(topic.partitions)
    return await _described(call.backend, topic)


async def describe_topic(call: Call[OfTopic, Nothing]) -> TopicDescription:
    return await _described(call.backend, call.backend.broker.topics.image.topic(call.parameters.topic))


async def delete_topic(call: Call[OfTopic, Nothing]) -> None:
    if (mutations := call.mutations) is not None:
        mutations.check()
    topic = await call.backend.broker.topics.delete(call.parameters.topic)
    if mutations is not None:
        mutations.charge(topic.partitions)


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

    return await _described(call.backend, await call.backend.broker.topics.configure(name, changed))


async def add_partitions(call: Call[OfTopic, PartitionCount]) -> TopicDescription:
    name = call.parameters.topic
    _check_changeable(name)
    topics = call.backend.broker.topics
    before = topics.image.topic(name).partitions
    if (mutations := call.mutations) is not None:
        mutations.check()
    topic = await topics.grow(name, call.body.partitions)
    if mutations is not None:
        mutations.charge(topic.partitions - before)
    return await _described(call.backend, topic)


async def list_partitions(call: Call[OfTopic, Nothing]) -> PartitionList:
    broker = call.backend.broker
    topic = broker.topics.image.topic(call.parameters.topic)
    bounds = (await bounds_of_topics(broker, [topic], DESCRIBE_MS))[topic.name]
    states = broker.topics.image.partitions_of(topic.id)
    return PartitionList(
        topic=topic.name,
        partitions=[
            PartitionDetails(
                partition=index,
                leader=NO_LEADER if state.leader is None else state.leader,
                leader_epoch=state.leader_epoch if found is None else found.leader_epoch,
                replicas=list(state.replicas),
                in_sync_replicas=list(state.isr),
                start_offset=None if found is None else found.start_offset,
                high_watermark=None if found is None else found.high_watermark,
                last_stable_offset=None if found is None else found.last_stable_offset,
                messages=None if found is None else found.messages,
                size_bytes=None if found is None else found.size_bytes,
            )
            for index, (state, found) in enumerate(zip(states, bounds, strict=False))
        ],
    )


async def compact_topic(call: Call[OfTopic, Nothing]) -> CompactedTopic:
    broker, name = call.backend.broker, call.parameters.topic
    _check_changeable(name)
    policy = broker.topics.config_of(broker.topics.image.topic(name)).cleanup_policy
    if "compact" not in policy:
        raise NotCompacted(f"topic {name!r} has cleanup.policy={','.join(policy)}, without 'compact'")
    results = []
    for place in broker.topics.places_of(name):
        try:
            compacted = await broker.reads.compact(place)
        except (StorageFailed, UnknownTopicId):
            broker.topics.image.topic(name)  # raises UnknownTopic if it was deleted meanwhile
            raise
        results.append(
            CompactedPartition(
                partition=place.partition,
                compacted=compacted.is_compacted,
                size_before_bytes=compacted.before_bytes,
                size_bytes=compacted.size_bytes,
            )
        )
    return CompactedTopic(topic=name, partitions=results)


def _check_changeable(name: str) -> None:
    if name in INTERNAL_TOPICS:
        raise PolicyViolation(f"topic {name!r} is internal and cannot be changed")


async def _described(backend: Backend, topic: Topic) -> TopicDescription:
    topics = backend.broker.topics
    bounds = (await bounds_of_topics(backend.broker, [topic], DESCRIBE_MS))[topic.name]
    states = topics.image.partitions_of(topic.id)
    return TopicDescription(
        name=topic.name,
        topic_id=str(topic.id),
        internal=topic.is_internal,
        partitions=[
            _partition(index, state, found)
            for index, (state, found) in enumerate(zip(states, bounds, strict=False))
        ],
        settings=topics.settings_of(topic),
        overrides=dict(topic.overrides),
    )


def _partition(index: int, state: PartitionState, bounds: Bounds | None) -> PartitionDescription:
    return PartitionDescription(
        partition=index,
        leader=NO_LEADER if state.leader is None else state.leader,
        leader_epoch=state.leader_epoch if bounds is None else bounds.leader_epoch,
        start_offset=None if bounds is None else bounds.start_offset,
        end_offset=None if bounds is None else bounds.high_watermark,
        last_stable_offset=None if bounds is None else bounds.last_stable_offset,
        size_bytes=None if bounds is None else bounds.size_bytes,
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
