"""Settings of share groups, with Kafka's names, and the overrides of each group."""

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
    """One setting: its field, valid values and description."""

    field: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
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
            raise InvalidConfig(f"{name} must be a whole number of milliseconds, not {text!r}") from None
        if not self.minimum <= value <= self.maximum:
            raise InvalidConfig(f"{name} must be {self.minimum} to {self.maximum}, not {value}")
        return value


SHARE_SETTINGS: Mapping[str, ShareSetting] = {
    "share.auto.offset.reset": ShareSetting(
        field="auto_offset_reset", choices=("latest", "earliest"),
        doc="Where the group starts in a partition that it has not read before.",
    ),
    "share.heartbeat.interval.ms": ShareSetting(
        field="heartbeat_interval_ms", minimum=100, maximum=60_000,
        doc="Heartbeat interval of members.",
    ),
    "share.isolation.level": ShareSetting(
        field="isolation_level", choices=("read_committed",),
        doc="Share groups read committed records only.",
    ),
    "share.record.lock.duration.ms": ShareSetting(
        field="record_lock_duration_ms", minimum=1_000, maximum=_DAY_MS // 2,
        doc="Time to acknowledge a record before it is delivered to another member.",
    ),
    "share.session.timeout.ms": ShareSetting(
        field="session_timeout_ms", minimum=1_000, maximum=1_800_000,
        doc="Time without a heartbeat after which a member is removed.",
    ),
}  # fmt: skip


def share_config(overrides: Mapping[str, str]) -> ShareConfig:
    """Return the settings of a group with these overrides; raise InvalidConfig."""
    fields: dict[str, Any] = {}
    for name, text in overrides.items():
        if (setting := SHARE_SETTINGS.get(name)) is None:
            raise InvalidConfig(
                f"unknown group setting {name!r}: must be one of {', '.join(sorted(SHARE_SETTINGS))}"
            )
        fields[setting.field] = setting.parse(name, text)
    config = ShareConfig(**fields)
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise InvalidConfig(
            f"share.heartbeat.interval.ms ({config.heartbeat_interval_ms}) must be less than "
            f"share.session.timeout.ms ({config.session_timeout_ms})"
        )
    return config


class GroupConfigReply(msgspec.Struct, frozen=True, kw_only=True):
    """The overrides of a group, and all of its settings."""

    overrides: Mapping[str, str]
    config: ShareConfig


class ConfigureGroupRequest(GroupRequest[GroupConfigReply], frozen=True, kw_only=True):
    """Change the overrides of a group; None removes one."""

    overrides: Mapping[str, str | None]
    replace_all: bool = False  # remove all other overrides
    dry_run: bool = False


class DescribeGroupConfigRequest(GroupRequest[GroupConfigReply], frozen=True, kw_only=True):
    """Return the settings of a group, which need not exist: it can be configured before."""


class GroupConfigs:
    """The settings of all groups of a coordinator."""

    def __init__(self) -> None:
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._configs: dict[str, ShareConfig] = {}

    def share(self, group: str) -> ShareConfig:
        """Return the settings of a group."""
        return self._configs.get(group, _DEFAULTS)

    def groups(self) -> list[str]:
        """Return the groups with overrides."""
        return [*self._overrides]

    def describe(self, request: DescribeGroupConfigRequest) -> GroupConfigReply:
        return GroupConfigReply(
            overrides=self._overrides.get(request.group, {}), config=self.share(request.group)
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
            if name not in SHARE_SETTINGS:
                share_config({name: ""})  # raises an error that lists the settings
        after = {name: text for name, text in merged.items() if text is not None}
        config = share_config(after)
        if request.dry_run or after == before:
            return [], GroupConfigReply(overrides=after, config=config)
        if not before and len(self._overrides) >= MAX_CONFIGURED_GROUPS:
            raise TooManyGroups(f"too many groups with settings: the limit is {MAX_CONFIGURED_GROUPS}")
        self._set(group, after, config)
        return [_change(group, after)], GroupConfigReply(overrides=after, config=config)

    def replay(self, group: str, value: bytes | None) -> None:
        """Apply a stored record; ignore settings that are unknown or invalid in this version."""
        stored = {} if value is None else _overrides_decoder.decode(value)
        known = {name: text for name, text in stored.items() if name in SHARE_SETTINGS}
        try:
            self._set(group, known, share_config(known))
        except InvalidConfig:
            self._set(group, {}, _DEFAULTS)

    def snapshot(self) -> Iterator[Change]:
        """Yield the changes that lead to the current state."""
        for group, overrides in list(self._overrides.items()):
            yield _change(group, overrides)

    def _set(self, group: str, overrides: Mapping[str, str], config: ShareConfig) -> None:
        if overrides:
            self._overrides[group], self._configs[group] = overrides, config
        else:
            self._overrides.pop(group, None)
            self._configs.pop(group, None)


_DEFAULTS = ShareConfig()


def _change(group: str, overrides: Mapping[str, str]) -> Change:
    return Change(key(GROUP_CONFIG, group), msgspec.msgpack.encode(overrides) if overrides else None)
