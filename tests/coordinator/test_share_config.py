"""Settings of share groups: validation, overrides and storage."""

import pytest

from alpacamq.coordinator.consumer.messages import ConsumerGroupSettings
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


def test_an_override_can_be_set_and_removed() -> None:
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
        pytest.param("share.unheard.of", "1", "unknown group setting", id="an unknown setting"),
        pytest.param(LOCK, "soon", "whole number", id="not a number"),
        pytest.param(LOCK, "1", "1000 to", id="too short a lock"),
        pytest.param(RESET, "by_duration:PT1H", "latest or earliest", id="an unknown reset"),
        pytest.param(
            "share.isolation.level", "read_anything", "read_committed or", id="an unknown isolation level"
        ),
        pytest.param(
            "share.session.timeout.ms",
            "4000",
            "must be less than",
            id="heartbeat interval above the session timeout",
        ),
    ],
)
def test_an_invalid_setting_is_rejected_and_changes_nothing(name: str, text: str, words: str) -> None:
    configs = GroupConfigs()
    with pytest.raises(InvalidConfig, match=words):
        configs.configure(ConfigureGroupRequest(group="g", overrides={RESET: "earliest", name: text}))
    assert overrides(configs) == {}


def test_an_empty_group_id_is_rejected() -> None:
    with pytest.raises(InvalidGroupId):
        configure(GroupConfigs(), group="", share_auto_offset_reset="latest")


def test_replace_all_removes_other_overrides() -> None:
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


def test_settings_of_a_group_are_kept_when_other_defaults_make_them_invalid() -> None:
    overrides = {"consumer.session.timeout.ms": "6000", "share.delivery.count.limit": "50"}
    changes, _ = GroupConfigs(ConsumerGroupSettings()).configure(
        ConfigureGroupRequest(group="g", overrides=overrides)
    )
    defaults = ConsumerGroupSettings(heartbeat_interval_ms=8000)
    restarted = GroupConfigs(defaults)
    restarted.replay("g", changes[0].value)
    described = restarted.describe(DescribeGroupConfigRequest(group="g"))
    assert described.config.delivery_count_limit == 50
    assert described.consumer == defaults
    assert [change.value for change in restarted.snapshot()] == [changes[0].value]
