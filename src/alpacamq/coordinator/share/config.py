"""Settings of share, consumer and streams groups, with Kafka's names, and the overrides of each group."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from alpacamq.coordinator.consumer.messages import ConsumerGroupSettings
from alpacamq.coordinator.messages import GroupRequest
from alpacamq.coordinator.records import key
from alpacamq.coordinator.streams.messages import StreamsGroupSettings
from alpacamq.model.errors import InvalidConfig, InvalidGroupId, TooManyGroups
from alpacamq.model.state_machine import Change

GROUP_CONFIG = "group-config"
MAX_CONFIGURED_GROUPS = 10_000

_DAY_MS = 24 * 3_600_000
_overrides_decoder = msgspec.msgpack.Decoder(dict[str, str])


class ShareConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one share group."""

    auto_offset_reset: str = "latest"
    delivery_count_limit: int = 0
    heartbeat_interval_ms: int = 5_000
    isolation_level: str = "read_committed"
    record_lock_duration_ms: int = 30_000
    session_timeout_ms: int = 45_000


class GroupSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: its field, valid values and description."""

    field: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
    unit: str = "milliseconds"
    doc: str

    @property
    def is_number(self) -> bool:
        return not self.choices

    def parse(self, name: str, text: str) -> str | int:
        """Parse a value; raise InvalidConfig."""
        if self.choices:
            if text not in self.choices:
                raise InvalidConfig(f"{name} must be {' or '.join(self.choices)}, not {text!r}")
            return text
        try:
            value = int(text)
        except ValueError:
            raise InvalidConfig(f"{name} must be a whole number of {self.unit}, not {text!r}") from None
        if not self.minimum <= value <= self.maximum:
            raise InvalidConfig(f"{name} must be {self.minimum} to {self.maximum}, not {value}")
        return value


SHARE_SETTINGS: Mapping[str, GroupSetting] = {
    "share.auto.offset.reset": GroupSetting(
        field="auto_offset_reset", choices=("latest", "earliest"),
        doc="Where the group starts in a partition that it has not read before.",
    ),
    "share.delivery.count.limit": GroupSetting(
        field="delivery_count_limit", minimum=0, maximum=1_000,
        doc="Deliveries of a record before it is dead-lettered; 0 is queue.max.deliveries of its topic.",
    ),
    "share.heartbeat.interval.ms": GroupSetting(
        field="heartbeat_interval_ms", minimum=100, maximum=60_000,
        doc="Heartbeat interval of members.",
    ),
    "share.isolation.level": GroupSetting(
        field="isolation_level", choices=("read_committed", "read_uncommitted"),
        doc="Whether records of open and aborted transactions are delivered.",
    ),
    "share.record.lock.duration.ms": GroupSetting(
        field="record_lock_duration_ms", minimum=1_000, maximum=_DAY_MS // 2,
        doc="Time to acknowledge a record before it is delivered to another member.",
    ),
    "share.session.timeout.ms": GroupSetting(
        field="session_timeout_ms", minimum=1_000, maximum=1_800_000,
        doc="Time without a heartbeat after which a member is removed.",
    ),
}  # fmt: skip


CONSUMER_SETTINGS: Mapping[str, GroupSetting] = {
    "consumer.heartbeat.interval.ms": GroupSetting(
        field="heartbeat_interval_ms", minimum=100, maximum=60_000,
        doc="Heartbeat interval of members of a consumer group; by default shorter in small groups.",
    ),
    "consumer.session.timeout.ms": GroupSetting(
        field="session_timeout_ms", minimum=1_000, maximum=1_800_000,
        doc="Time without a heartbeat after which a member of a consumer group is removed.",
    ),
}  # fmt: skip

STREAMS_SETTINGS: Mapping[str, GroupSetting] = {
    "streams.heartbeat.interval.ms": GroupSetting(
        field="heartbeat_interval_ms", minimum=100, maximum=60_000,
        doc="Heartbeat interval of members of a streams group.",
    ),
    "streams.num.standby.replicas": GroupSetting(
        field="num_standby_replicas", minimum=0, maximum=2, unit="replicas",
        doc="Standby tasks for each stateful task of a streams group.",
    ),
    "streams.session.timeout.ms": GroupSetting(
        field="session_timeout_ms", minimum=1_000, maximum=1_800_000,
        doc="Time without a heartbeat after which a member of a streams group is removed.",
    ),
}  # fmt: skip

GROUP_SETTINGS: Mapping[str, GroupSetting] = {**CONSUMER_SETTINGS, **SHARE_SETTINGS, **STREAMS_SETTINGS}


def _check_known(name: str) -> None:
    if name not in GROUP_SETTINGS:
        raise InvalidConfig(
            f"unknown group setting {name!r}: must be one of {', '.join(sorted(GROUP_SETTINGS))}"
        )


def _fields(overrides: Mapping[str, str], settings: Mapping[str, GroupSetting]) -> dict[str, Any]:
    return {
        settings[name].field: settings[name].parse(name, text)
        for name, text in overrides.items()
        if name in settings
    }


def _check_interval(kind: str, interval_ms: int, timeout_ms: int) -> None:
    if interval_ms >= timeout_ms:
        raise InvalidConfig(
            f"{kind}.heartbeat.interval.ms ({interval_ms}) must be less than "
            f"{kind}.session.timeout.ms ({timeout_ms})"
        )


def share_config(overrides: Mapping[str, str]) -> ShareConfig:
    """Return the settings of a share group with these overrides; raise InvalidConfig."""
    config = ShareConfig(**_fields(overrides, SHARE_SETTINGS))
    _check_interval("share", config.heartbeat_interval_ms, config.session_timeout_ms)
    return config


def consumer_config(overrides: Mapping[str, str], defaults: ConsumerGroupSettings) -> ConsumerGroupSettings:
    """Return the settings of a consumer group with these overrides; raise InvalidConfig."""
    fields = _fields(overrides, CONSUMER_SETTINGS)
    if (interval_ms := fields.get("heartbeat_interval_ms")) is not None:
        # A chosen interval is exact, whatever the size of the group.
        fields["min_heartbeat_interval_ms"] = interval_ms
    config = msgspec.structs.replace(defaults, **fields)
    if fields:
        _check_interval("consumer", config.heartbeat_interval_ms, config.session_timeout_ms)
    return config


def streams_config(overrides: Mapping[str, str]) -> StreamsGroupSettings:
    """Return the settings of a streams group with these overrides; raise InvalidConfig."""
    config = StreamsGroupSettings(**_fields(overrides, STREAMS_SETTINGS))
    _check_interval("streams", config.heartbeat_interval_ms, config.session_timeout_ms)
    return config


class GroupConfigReply(msgspec.Struct, frozen=True, kw_only=True):
    """The overrides of a group, and all of its settings."""

    overrides: Mapping[str, str]
    config: ShareConfig
    consumer: ConsumerGroupSettings
    consumer_defaults: ConsumerGroupSettings
    streams: StreamsGroupSettings

    def value(self, name: str) -> str:
        """Return the value of a setting as text."""
        return _text(name, self.consumer, self.streams, self.config)

    def default(self, name: str) -> str:
        """Return the default of a setting as text."""
        return _text(name, self.consumer_defaults, _STREAMS_DEFAULTS, _DEFAULTS)


def _text(
    name: str, consumer: ConsumerGroupSettings, streams: StreamsGroupSettings, share: ShareConfig
) -> str:
    """Return the value of a setting in the settings of its kind of group."""
    part: msgspec.Struct = share
    if name in CONSUMER_SETTINGS:
        part = consumer
    elif name in STREAMS_SETTINGS:
        part = streams
    return str(getattr(part, GROUP_SETTINGS[name].field))


class ConfigureGroupRequest(GroupRequest[GroupConfigReply], frozen=True, kw_only=True):
    """Change the overrides of a group; None removes one."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    overrides: Mapping[str, str | None]
    replace_all: bool = False  # remove all other overrides
    dry_run: bool = False


class DescribeGroupConfigRequest(GroupRequest[GroupConfigReply], frozen=True, kw_only=True):
    """Return the settings of a group, which need not exist: it can be configured before."""

    IS_IDEMPOTENT: ClassVar[bool] = True


class GroupConfigs:
    """The settings of all groups of a coordinator."""

    def __init__(self, consumer_defaults: ConsumerGroupSettings | None = None) -> None:
        self._consumer_defaults = consumer_defaults or ConsumerGroupSettings()
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._share: dict[str, ShareConfig] = {}
        self._consumer: dict[str, ConsumerGroupSettings] = {}
        self._streams: dict[str, StreamsGroupSettings] = {}

    def share(self, group: str) -> ShareConfig:
        """Return the settings of a share group."""
        return self._share.get(group, _DEFAULTS)

    def consumer(self, group: str) -> ConsumerGroupSettings:
        """Return the settings of a consumer group."""
        return self._consumer.get(group, self._consumer_defaults)

    def streams(self, group: str) -> StreamsGroupSettings:
        """Return the settings of a streams group."""
        return self._streams.get(group, _STREAMS_DEFAULTS)

    def groups(self) -> list[str]:
        """Return the groups with overrides."""
        return [*self._overrides]

    def has(self, group: str) -> bool:
        """Return whether a group has overrides."""
        return group in self._overrides

    def describe(self, request: DescribeGroupConfigRequest) -> GroupConfigReply:
        group = request.group
        if group not in self._overrides:
            return self._reply({})
        return GroupConfigReply(
            overrides=self._overrides[group],
            config=self._share[group],
            consumer=self._consumer[group],
            consumer_defaults=self._consumer_defaults,
            streams=self._streams[group],
        )

    def configure(self, request: ConfigureGroupRequest) -> tuple[list[Change], GroupConfigReply]:
        """Change the overrides of a group; change nothing if this raises."""
        group = request.group
        if not group:
            raise InvalidGroupId("invalid group id: must not be empty")
        before = self._overrides.get(group, {})
        merged: dict[str, str | None] = {} if request.replace_all else dict(before)
        merged.update(request.overrides)
        for name in merged:
            _check_known(name)
        after = {name: text for name, text in merged.items() if text is not None}
        reply = self._reply(after)
        if request.dry_run or after == before:
            return [], reply
        if not before and len(self._overrides) >= MAX_CONFIGURED_GROUPS:
            raise TooManyGroups(f"too many groups with settings: the limit is {MAX_CONFIGURED_GROUPS}")
        self._set(group, reply)
        return [_change(group, after)], reply

    def replay(self, group: str, value: bytes | None) -> None:
        """Apply a stored record; ignore settings that are unknown or invalid in this version."""
        stored = {} if value is None else _overrides_decoder.decode(value)
        known = {name: text for name, text in stored.items() if name in GROUP_SETTINGS}
        try:
            share = share_config(known)
        except InvalidConfig:
            share = ShareConfig()
        try:
            consumer = consumer_config(known, self._consumer_defaults)
        except InvalidConfig:  # with other defaults than when it was set
            consumer = self._consumer_defaults
        try:
            streams = streams_config(known)
        except InvalidConfig:
            streams = _STREAMS_DEFAULTS
        self._set(
            group,
            GroupConfigReply(
                overrides=known,
                config=share,
                consumer=consumer,
                consumer_defaults=self._consumer_defaults,
                streams=streams,
            ),
        )

    def snapshot(self) -> Iterator[Change]:
        """Yield the changes that lead to the current state."""
        for group, overrides in list(self._overrides.items()):
            yield _change(group, overrides)

    def _reply(self, overrides: Mapping[str, str]) -> GroupConfigReply:
        return GroupConfigReply(
            overrides=overrides,
            config=share_config(overrides),
            consumer=consumer_config(overrides, self._consumer_defaults),
            consumer_defaults=self._consumer_defaults,
            streams=streams_config(overrides),
        )

    def _set(self, group: str, reply: GroupConfigReply) -> None:
        if reply.overrides:
            self._overrides[group] = reply.overrides
            self._share[group], self._consumer[group] = reply.config, reply.consumer
            self._streams[group] = reply.streams
        else:
            self._overrides.pop(group, None)
            self._share.pop(group, None)
            self._consumer.pop(group, None)
            self._streams.pop(group, None)


_DEFAULTS = ShareConfig()
_STREAMS_DEFAULTS = StreamsGroupSettings()


def _change(group: str, overrides: Mapping[str, str]) -> Change:
    return Change(key(GROUP_CONFIG, group), msgspec.msgpack.encode(overrides) if overrides else None)
