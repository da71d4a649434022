"""Decisions about creating, growing and configuring topics.

Each function takes an image and returns the topic as it should be, or raises an error. The caller
records the result.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from alpacamq.model.errors import (
    InvalidConfig,
    InvalidPartitionCount,
    InvalidReplication,
    InvalidTopicName,
    TopicExists,
)
from alpacamq.model.ids import TopicId
from alpacamq.model.names import split_topic
from alpacamq.model.topics import (
    INTERNAL_TOPICS,
    ConfigKind,
    Setting,
    Topic,
    check_setting,
    check_settings,
    check_topic_name,
)

from .image import ClusterImage
from .partition_state import min_isr

BY_DEFAULT = -1
MIN_ISR = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
# Internal topics, created by the broker when needed.
RESERVED_NAMES = INTERNAL_TOPICS | {"__cluster_metadata"}


class TopicLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults for topics, and the cluster's capacity."""

    default_partitions: int = 3
    max_partitions: int = 10_000


def created(
    image: ClusterImage,
    name: str,
    *,
    topic_id: TopicId,
    partitions: int,
    replication_factor: int,
    overrides: Mapping[str, str],
    limits: TopicLimits,
    may_collide: bool = False,
    brokers: int = 1,
) -> Topic:
    """Return a new topic for a cluster of so many brokers. Raises an error if it cannot be created.

    Like Kafka, refuses a name that differs from another in dots and underscores only, unless it
    `may_collide`: metrics and tools take them for the same topic.
    """
    topic_name = check_topic_name(name)
    tenant, local = split_topic(name)
    if tenant is not None and tenant not in image.tenants:
        raise InvalidTopicName(f"no tenant has the id {tenant!r}")
    if local in RESERVED_NAMES:
        raise InvalidTopicName(f"the name {name!r} is reserved")
    if topic_name in image.topics:
        raise TopicExists(f"topic {name!r} exists already")
    if not may_collide and (other := image.collision(name)) is not None:
        raise InvalidTopicName(
            f"topic {name!r} collides with existing topic {other!r}: '.' and '_' are alike"
        )
    if partitions == BY_DEFAULT:
        partitions = limits.default_partitions
    if partitions < 1:
        raise InvalidPartitionCount(f"a topic needs at least one partition, not {partitions}")
    _check_room(image, partitions, limits)
    if replication_factor != BY_DEFAULT and not 1 <= replication_factor <= brokers:
        count = "1 broker" if brokers == 1 else f"{brokers} brokers"
        raise InvalidReplication(f"replication factor {replication_factor}: this cluster has {count}")
    check_settings(overrides)
    return Topic(name=topic_name, id=topic_id, partitions=partitions, overrides=dict(overrides))


def grown(image: ClusterImage, name: str, partitions: int, limits: TopicLimits) -> Topic:
    """Return the topic with partitions added."""
    topic = image.topic(name)
    if partitions <= topic.partitions:
        raise InvalidPartitionCount(
            f"topic {name!r} has {topic.partitions} partitions; {partitions} would not be more"
        )
    _check_room(image, partitions - topic.partitions, limits)
    return msgspec.structs.replace(topic, partitions=partitions)


def configured(image: ClusterImage, name: str, overrides: Mapping[str, str]) -> Topic:
    """Return the topic with exactly these overrides; other settings get their defaults."""
    topic = image.topic(name)
    check_settings(overrides)
    return msgspec.structs.replace(topic, overrides=dict(overrides))


class EditOperation(StrEnum):
    """What an edit does to a setting; words are added to and removed from lists only."""

    SET = "set"
    DELETE = "delete"
    APPEND = "append"
    SUBTRACT = "subtract"


class SettingEdit(msgspec.Struct, frozen=True, array_like=True):
    """One edit of the overrides of a topic or a broker."""

    operation: EditOperation
    name: str
    value: str | None = None


def edited(
    before: Mapping[str, str],
    edits: Iterable[SettingEdit],
    *,
    settings: Mapping[str, Setting],
    check_name: Callable[[str], object],
    default: Callable[[str], str],
) -> dict[str, str]:
    """Return overrides after edits. Raises InvalidConfig.

    `default` returns the text of a setting without an override; `check_name` raises if a name is unknown.
    """
    overrides = dict(before)
    for operation, name, value in ((edit.operation, edit.name, edit.value) for edit in edits):
        if operation is EditOperation.DELETE:
            if name not in overrides:
                check_name(name)
            overrides.pop(name, None)
            continue
        if value is None:
            raise InvalidConfig(f"{name} has no value")
        if operation is EditOperation.SET:
            overrides[name] = value
            continue
        if (setting := settings.get(name)) is None or setting.kind is not ConfigKind.LIST:
            raise InvalidConfig(f"{name} is not a list: APPEND and SUBTRACT are not supported")
        current = overrides[name] if name in overrides else default(name)
        added, removed = (value, "") if operation is EditOperation.APPEND else ("", value)
        overrides[name] = edit_list(
            name, current, added=added, removed=removed, may_be_empty=bool(setting.pattern)
        )
    return overrides


def cluster_setting(image: ClusterImage, topic: Topic, name: str) -> Any | None:
    """Return a setting that all brokers must agree on: the topic's, or that of all brokers; None if unset.

    Settings of one broker, and of its configuration file, do not count. Neither does a value that this
    version cannot read.
    """
    for overrides in (topic.overrides, image.broker_overrides("")):
        if name in overrides:
            try:
                return check_setting(name, overrides[name])
            except InvalidConfig:
                continue
    return None


def configured_min_isr(image: ClusterImage, topic: Topic) -> int | None:
    """Return min.insync.replicas if it is set; see `min_isr` for the number that applies."""
    return cluster_setting(image, topic, MIN_ISR)


def described_min_isr(image: ClusterImage, topic: Topic, replication_factor: int) -> int:
    """Return min.insync.replicas as it is described: what is set, or the default for so many replicas."""
    configured = configured_min_isr(image, topic)
    return min_isr(None, replication_factor) if configured is None else configured


def edit_list(
    name: str, current: str, *, added: str = "", removed: str = "", may_be_empty: bool = False
) -> str:
    """Return a list setting with words added or removed. Raises InvalidConfig if none are left."""
    words = {word for word in current.split(",") if word}
    words |= {word for word in added.split(",") if word}
    words -= {word for word in removed.split(",") if word}
    if not (words or may_be_empty):
        raise InvalidConfig(f"{name} cannot be empty")
    return ",".join(sorted(words))


def _check_room(image: ClusterImage, added: int, limits: TopicLimits) -> None:
    if image.partition_count + added > limits.max_partitions:
        raise InvalidPartitionCount(
            f"{added} more partitions would exceed the {limits.max_partitions} this broker holds "
            f"(topics.max_partitions); it has {image.partition_count}"
        )
