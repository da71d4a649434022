"""What share groups can be configured with, and that it is remembered."""

import pytest

from alpacamq.coordinator.records import parts_of
from alpacamq.coordinator.share.config import (
    SHARE_SETTINGS,
    ConfigureGroupRequest,
    DescribeGroupConfigRequest,
    GroupConfigs,
    ShareConfig,
)
from alpacamq.model.errors import InvalidConfig, InvalidGroupId
from alpacamq.model.state_machine import Change

LOCK = "share.record.lock.duration.ms"
RESET = "share.auto.offset.reset"


def configure(configs: GroupConfigs, group: str = "g", **overrides: str | None) -> list[Change]:
    named = {name.replace("_", "."): text for name, text in overrides.items()}
    return configs.configure(ConfigureGroupRequest(group=group, overrides=named))[0]


def overrides(configs: GroupConfigs, group: str = "g") -> dict[str, str]:
    return dict(configs.describe(DescribeGroupConfigRequest(group=group)).overrides)


def test_every_setting_has_a_default_of_its_own_kind() -> None:
    defaults = ShareConfig()
    for name, setting in SHARE_SETTINGS.items():
        value = getattr(defaults, setting.field)
        assert setting.parse(name, str(value)) == value


def test_a_setting_is_set_and_taken_away() -> None:
    configs = GroupConfigs()
    configure(configs, share_record_lock_duration_ms="5000")
    assert configs.share("g").record_lock_duration_ms == 5000
    assert configs.share("another") == ShareConfig()
    configure(configs, share_record_lock_duration_ms=None)
    assert configs.share("g") == ShareConfig()
    assert overrides(configs) == {}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        pytest.param("share.unheard.of", "1", "no setting", id="an unknown setting"),
        pytest.param(LOCK, "soon", "whole number", id="not a number"),
        pytest.param(LOCK, "1", "between 1000", id="too short a lock"),
        pytest.param(RESET, "by_duration:PT1H", "latest or earliest", id="an unknown beginning"),
        pytest.param("share.isolation.level", "read_uncommitted", "read_committed", id="uncommitted records"),
        pytest.param("share.session.timeout.ms", "4000", "would not be heard", id="no time for heartbeats"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(name: str, text: str, words: str) -> None:
    configs = GroupConfigs()
    with pytest.raises(InvalidConfig, match=words):
        configs.configure(ConfigureGroupRequest(group="g", overrides={RESET: "earliest", name: text}))
    assert overrides(configs) == {}


def test_a_group_needs_a_name() -> None:
    with pytest.raises(InvalidGroupId):
        configure(GroupConfigs(), group="", share_auto_offset_reset="latest")


def test_a_replacement_takes_away_what_it_does_not_name() -> None:
    configs = GroupConfigs()
    configure(configs, share_auto_offset_reset="earliest")
    configs.configure(ConfigureGroupRequest(group="g", overrides={LOCK: "1000"}, replace_all=True))
    assert overrides(configs) == {LOCK: "1000"}


def test_a_dry_run_changes_nothing() -> None:
    configs = GroupConfigs()
    changes, reply = configs.configure(
        ConfigureGroupRequest(group="g", overrides={RESET: "earliest"}, dry_run=True)
    )
    assert not changes
    assert reply.config.auto_offset_reset == "earliest"
    assert overrides(configs) == {}


def test_settings_are_rebuilt_from_the_log_and_from_a_snapshot() -> None:
    configs = GroupConfigs()
    log = configure(configs, share_auto_offset_reset="earliest")
    log += configure(configs, group="h", share_record_lock_duration_ms="2000")
    log += configure(configs, group="h", share_record_lock_duration_ms=None)
    for changes in (log, [*configs.snapshot()]):
        rebuilt = GroupConfigs()
        for key, value in changes:
            rebuilt.replay(parts_of(key)[1], value)
        assert overrides(rebuilt) == {RESET: "earliest"}
        assert overrides(rebuilt, "h") == {}
        assert rebuilt.share("g").auto_offset_reset == "earliest"
