"""Broker settings that can be changed at run time: defaults of topics and limits of replication.

They have Kafka's names, and are stored for one broker, by its id, or for all brokers, by an empty name.
A topic that does not set a setting uses that of its broker, then that of all brokers, then that of the
configuration file.
"""

from collections.abc import Mapping
from difflib import get_close_matches

import msgspec

from alpacamq.model.errors import InvalidConfig, InvalidRequest
from alpacamq.model.topics import (
    INT64_MAX,
    MAX_NAME_LENGTH,
    SETTINGS,
    ConfigKind,
    Setting,
    check_lags,
    check_setting,
)

from .image import ClusterImage

ALL_BROKERS = ""

# Topic settings whose default has another name on a broker.
_RENAMED = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
}
# Settings that make sense for a single topic only, or have no default on a broker in Kafka 4.
_OF_TOPICS_ONLY = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.downconversion.enable",
        "queue.deduplication.start",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "sqs.attributes",
    }
)
# Names on a broker by names on a topic.
BROKER_NAMES: Mapping[str, str] = {
    name: _RENAMED.get(name, name) for name in SETTINGS if name not in _OF_TOPICS_ONLY
}
TOPIC_NAMES: Mapping[str, str] = {broker_name: name for name, broker_name in BROKER_NAMES.items()}
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
_NO_LIMIT = INT64_MAX
# Settings of brokers that are not defaults of topics.
OWN_SETTINGS: Mapping[str, Setting] = {
    FOLLOWER_RATE: Setting(
        kind=ConfigKind.LONG, default=_NO_LIMIT, minimum=0, maximum=INT64_MAX,
        doc="Bytes a second that a broker fetches for replicas that are not in sync and that a reassignment "
        "adds or follower.replication.throttled.replicas of their topic names; 0 stops them.",
    ),
    LEADER_RATE: Setting(
        kind=ConfigKind.LONG, default=_NO_LIMIT, minimum=0, maximum=INT64_MAX,
        doc="Bytes a second that a broker sends to replicas that are not in sync and that a reassignment "
        "adds, or to any of partitions that leader.replication.throttled.replicas of their topic names; "
        "0 stops them.",
    ),
    "replica.alter.log.dirs.io.max.bytes.per.second": Setting(
        kind=ConfigKind.LONG, default=_NO_LIMIT, minimum=0, maximum=INT64_MAX,
        doc="No effect: a broker has one data directory.",
    ),
}  # fmt: skip
# The settings that can be changed at run time, by their names on a broker.
BROKER_SETTINGS: Mapping[str, Setting] = {
    **{broker_name: SETTINGS[TOPIC_NAMES[broker_name]] for broker_name in sorted(TOPIC_NAMES)},
    **OWN_SETTINGS,
}
# Settings of Kafka that it does not change at run time either.
STATIC_SETTINGS = frozenset(
    {
        "advertised.listeners",
        "auto.create.topics.enable",
        "broker.id",
        "default.replication.factor",
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.max.size",
        "group.consumer.session.timeout.ms",
        "group.initial.rebalance.delay.ms",
        "group.max.size",
        "listeners",
        "log.dir",
        "log.dirs",
        "log.retention.hours",
        "log.retention.minutes",
        "log.roll.hours",
        "log.roll.jitter.hours",
        "node.id",
        "num.partitions",
        "offsets.retention.minutes",
        "process.roles",
        "transaction.max.timeout.ms",
        "transactional.id.expiration.ms",
    }
)
_LAGS = {BROKER_NAMES[name] for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")}


class TopicDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of topic settings on a broker, by their names on a topic, and by where they are set."""

    of_broker: Mapping[str, str]
    of_all_brokers: Mapping[str, str]
    of_file: Mapping[str, str]
    # Those in force.
    merged: Mapping[str, str]


def topic_defaults(image: ClusterImage, node_id: int, of_file: Mapping[str, str]) -> TopicDefaults:
    """Return the defaults of topic settings on a broker."""
    of_broker, of_all = (
        defaults_in(image.broker_overrides(resource)) for resource in (str(node_id), ALL_BROKERS)
    )
    return TopicDefaults(
        of_broker=of_broker, of_all_brokers=of_all, of_file=of_file, merged={**of_file, **of_all, **of_broker}
    )


def defaults_in(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults of topic settings among those of a broker, by their names on a topic."""
    return {TOPIC_NAMES[name]: text for name, text in usable(overrides).items() if name in TOPIC_NAMES}


def own_setting(image: ClusterImage, node_id: int, name: str) -> int:
    """Return the value of a setting that is not a default of topics."""
    for resource in (str(node_id), ALL_BROKERS):
        if (text := usable(image.broker_overrides(resource)).get(name)) is not None:
            return int(text)
    value: int = OWN_SETTINGS[name].default
    return value


def throttled_rate(image: ClusterImage, node_id: int, name: str) -> int | None:
    """Return the bytes a second of LEADER_RATE or FOLLOWER_RATE on a broker; None: no limit."""
    rate = own_setting(image, node_id, name)
    return None if rate == _NO_LIMIT else rate


def usable(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return stored settings without those that are unknown or invalid in this version."""
    return {name: text for name, text in overrides.items() if _is_usable(name, text)}


def check_overrides(
    image: ClusterImage, resource: str, overrides: Mapping[str, str], defaults: TopicDefaults
) -> None:
    """Check the new settings of a broker or of all brokers. Raises InvalidConfig or InvalidRequest.

    Stored settings that do not change are not checked: a later version may have written them.
    """
    before = image.broker_overrides(resource)
    for name, text in overrides.items():
        if before.get(name) != text:
            check_broker_setting(name, text)
    if any(before.get(name) != overrides.get(name) for name in _LAGS):
        own = defaults_in(overrides)
        if resource == ALL_BROKERS:
            check_lags({**defaults.of_file, **own})
            check_lags({**defaults.of_file, **own, **defaults.of_broker})
        else:
            check_lags({**defaults.of_file, **defaults.of_all_brokers, **own})


def check_broker_setting(name: str, text: str) -> None:
    """Check one setting. Raises InvalidConfig, or InvalidRequest if it cannot be changed at run time."""
    check_is_dynamic(name)
    if name in SETTINGS:
        check_setting(name, text)
    else:
        BROKER_SETTINGS[name].parse(name, text)


def check_is_dynamic(name: str) -> None:
    """Raise InvalidRequest if a setting cannot be changed at run time, InvalidConfig if it is unknown."""
    if name in BROKER_SETTINGS:
        return
    if name in STATIC_SETTINGS:
        in_ms = f"{name.rpartition('.')[0]}.ms"
        instead = f"set {in_ms}" if in_ms in BROKER_SETTINGS else "change the configuration file"
        raise InvalidRequest(f"{name} cannot be changed at run time; {instead} instead")
    near = [BROKER_NAMES[name]] if name in BROKER_NAMES else []
    near = near or get_close_matches(name[:MAX_NAME_LENGTH], BROKER_SETTINGS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InvalidConfig(f"no broker setting that can be changed at run time is named {name!r}{hint}")


def _is_usable(name: str, text: str) -> bool:
    try:
        check_broker_setting(name, text)
    except (InvalidConfig, InvalidRequest):
        return False
    return True
