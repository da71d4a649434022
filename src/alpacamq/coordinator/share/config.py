"""The settings that a share group can have of its own, under Kafka's names, and which group has set which."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from alpacamq.coordinator.messages import GroupRequest
from alpacamq.coordinator.records import key
from alpacamq.model.errors import InvalidConfig, InvalidGroupId, TooManyGroups
from alpacamq.model.state_machine import Change

GROUP_CONFIG = "group-config"
MAX_CONFIGURED_GROUPS = 10_000

_DAY_MS = 24 * 3_600_000
_overrides_decoder = msgspec.msgpack.Decoder(dict[str, str])


class ShareConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one share group."""

    auto_offset_reset: str = "latest"
    heartbeat_interval_ms: int = 5_000
    isolation_level: str = "read_committed"
    record_lock_duration_ms: int = 30_000
    session_timeout_ms: int = 45_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSetting:
    """One setting: the field that holds it, what it may be, and what it is for."""

    field: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
    doc: str

    @property
    def is_number(self) -> bool:
        return not self.choices

    def parse(self, name: str, text: str) -> str | int:
        """The value that `text` stands for, or InvalidConfig."""
        if self.choices:
            if text not in self.choices:
                raise InvalidConfig(f"{name} is {' or '.join(self.choices)}, not {text!r}")
            return text
        try:
            value = int(text)
        except ValueError:
            raise InvalidConfig(f"{name} is a whole number of milliseconds, not {text!r}") from None
        if not self.minimum <= value <= self.maximum:
            raise InvalidConfig(f"{name} lies between {self.minimum} and {self.maximum}, not at {value}")
        return value


SHARE_SETTINGS: Mapping[str, ShareSetting] = {
    "share.auto.offset.reset": ShareSetting(
        field="auto_offset_reset", choices=("latest", "earliest"),
        doc="Where the group begins in a partition it has never been in.",
    ),
    "share.heartbeat.interval.ms": ShareSetting(
        field="heartbeat_interval_ms", minimum=100, maximum=60_000,
        doc="How often members report.",
    ),
    "share.isolation.level": ShareSetting(
        field="isolation_level", choices=("read_committed",),
        doc="Share groups are given committed records only.",
    ),
    "share.record.lock.duration.ms": ShareSetting(
        field="record_lock_duration_ms", minimum=1_000, maximum=_DAY_MS // 2,
        doc="How long a member has to acknowledge a record before it is given to another.",
    ),
    "share.session.timeout.ms": ShareSetting(
        field="session_timeout_ms", minimum=1_000, maximum=1_800_000,
        doc="How long a member may be silent before it is taken out of the group.",
    ),
}  # fmt: skip


def share_config(overrides: Mapping[str, str]) -> ShareConfig:
    """The settings of a group that has set these, or InvalidConfig."""
    fields: dict[str, Any] = {}
    for name, text in overrides.items():
        if (setting := SHARE_SETTINGS.get(name)) is None:
            raise InvalidConfig(f"groups have no setting {name!r}, only {', '.join(sorted(SHARE_SETTINGS))}")
        fields[setting.field] = setting.parse(name, text)
    config = ShareConfig(**fields)
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise InvalidConfig(
            f"members that report every {config.heartbeat_interval_ms} ms (share.heartbeat.interval.ms) "
            f"would not be heard within {config.session_timeout_ms} ms (share.session.timeout.ms)"
        )
    return config


class GroupConfigReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a group has set, and its settings in full."""

    overrides: Mapping[str, str]
    config: ShareConfig


class ConfigureGroupRequest(GroupRequest[GroupConfigReply], frozen=True, kw_only=True):
    """Give a group these settings; None takes one away."""

    overrides: Mapping[str, str | None]
    replace_all: bool = False  # what is not named is taken away, too
    dry_run: bool = False


class DescribeGroupConfigRequest(GroupRequest[GroupConfigReply], frozen=True, kw_only=True):
    """Answered by GroupConfigReply, for any name: a group can be configured before it exists."""


class GroupConfigs:
    """The settings of every group of a shard."""

    def __init__(self) -> None:
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._configs: dict[str, ShareConfig] = {}

    def share(self, group: str) -> ShareConfig:
        """The settings of a group."""
        return self._configs.get(group, _DEFAULTS)

    def describe(self, request: DescribeGroupConfigRequest) -> GroupConfigReply:
        return GroupConfigReply(
            overrides=self._overrides.get(request.group, {}), config=self.share(request.group)
        )

    def configure(self, request: ConfigureGroupRequest) -> tuple[list[Change], GroupConfigReply]:
        """Change a group's settings; what raises has changed nothing."""
        group = request.group
        if not group:
            raise InvalidGroupId("a group id cannot be empty")
        before = self._overrides.get(group, {})
        merged: dict[str, str | None] = {} if request.replace_all else dict(before)
        merged.update(request.overrides)
        for name in merged:
            if name not in SHARE_SETTINGS:
                share_config({name: ""})  # says what there is
        after = {name: text for name, text in merged.items() if text is not None}
        config = share_config(after)
        if request.dry_run or after == before:
            return [], GroupConfigReply(overrides=after, config=config)
        if not before and len(self._overrides) >= MAX_CONFIGURED_GROUPS:
            raise TooManyGroups(f"{MAX_CONFIGURED_GROUPS} groups have settings of their own already")
        self._keep(group, after, config)
        return [_change(group, after)], GroupConfigReply(overrides=after, config=config)

    def replay(self, group: str, value: bytes | None) -> None:
        """Take in a stored record; settings that only another version takes have no effect."""
        stored = {} if value is None else _overrides_decoder.decode(value)
        known = {name: text for name, text in stored.items() if name in SHARE_SETTINGS}
        try:
            self._keep(group, known, share_config(known))
        except InvalidConfig:
            self._keep(group, {}, _DEFAULTS)

    def snapshot(self) -> Iterator[Change]:
        """The changes from which all this can be rebuilt."""
        for group, overrides in list(self._overrides.items()):
            yield _change(group, overrides)

    def _keep(self, group: str, overrides: Mapping[str, str], config: ShareConfig) -> None:
        if overrides:
            self._overrides[group], self._configs[group] = overrides, config
        else:
            self._overrides.pop(group, None)
            self._configs.pop(group, None)


_DEFAULTS = ShareConfig()


def _change(group: str, overrides: Mapping[str, str]) -> Change:
    return Change(key(GROUP_CONFIG, group), msgspec.msgpack.encode(overrides) if overrides else None)
