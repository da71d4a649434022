"""Topic names and settings: what is accepted, what is refused, and how the refusal reads."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.model.errors import InvalidConfig, InvalidTopicName
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.topics import (
    INT64_MAX,
    SETTINGS,
    TOPIC_RECORD_NAME_STRATEGY,
    TopicConfig,
    check_setting,
    check_settings,
    check_topic_name,
    topic_config,
)


@pytest.mark.parametrize("name", ["a", "orders", "Orders_2.eu-west", "...", "-", "__offsets", "x" * 249])
def test_a_topic_may_be_named(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "cannot be named"),
        ("..", "cannot be named"),
        ("x" * 250, "at most 249 characters, this one 250"),
        ("a b", "may contain only"),
        ("a/b", "may contain only"),
        ("../a", "may contain only"),
        ("a\n", "may contain only"),
        ("a\0", "may contain only"),
        ("größe", "may contain only"),
        ("A:b", "may contain only"),
        (":b", "may contain only"),
        ("a:b:c", "may contain only"),
        ("a:", "cannot be empty"),
    ],
)
def test_a_topic_may_not_be_named(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicName, match=reason):
        check_topic_name(name)


@given(st.text())
def test_a_name_that_passes_is_a_safe_directory_name(name: str) -> None:
    try:
        check_topic_name(name)
    except InvalidTopicName:
        return
    assert name.isascii()
    assert not set(name) & set("/\\\0\n ")
    assert name not in {"", ".", ".."}


def test_a_partition_prints_as_its_directory() -> None:
    assert str(TopicPartition(TopicName("orders"), 3)) == "orders-3"


def test_a_topic_without_overrides_has_the_defaults() -> None:
    config = topic_config({})
    for name, setting in SETTINGS.items():
        assert getattr(config, name.replace(".", "_")) == setting.default


def test_every_setting_is_a_field_and_every_field_a_setting() -> None:
    derived = {"checks_schemas"}
    assert {name.replace(".", "_") for name in SETTINGS} | derived == set(TopicConfig.__struct_fields__)


def test_a_topics_own_settings_win_over_the_brokers() -> None:
    config = topic_config({"retention.ms": "5"}, {"retention.ms": "7", "segment.bytes": "2048"})
    assert (config.retention_ms, config.segment_bytes) == (5, 2048)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_default_written_out_is_read_back(name: str) -> None:
    setting = SETTINGS[name]
    assert check_setting(name, setting.text(setting.default)) == setting.default


@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.minimum is not None])
def test_bounds_are_inclusive(name: str) -> None:
    setting = SETTINGS[name]
    assert setting.minimum is not None
    assert setting.maximum is not None
    assert check_setting(name, str(setting.minimum)) == setting.minimum
    assert check_setting(name, str(setting.maximum)) == setting.maximum
    with pytest.raises(InvalidConfig, match=f"{name}=.* below its minimum"):
        check_setting(name, str(setting.minimum - 1))
    with pytest.raises(InvalidConfig, match=f"{name}=.* above its maximum"):
        check_setting(name, str(setting.maximum + 1))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", " 60000 ", 60_000),
        ("retention.ms", "-1", -1),
        ("flush.messages", str(INT64_MAX), INT64_MAX),
        ("min.cleanable.dirty.ratio", "0.25", 0.25),
        ("min.cleanable.dirty.ratio", "1", 1.0),
        ("cleanup.policy", "delete", ("delete",)),
        ("cleanup.policy", "compact, delete", ("compact", "delete")),
        ("cleanup.policy", "delete,compact,delete", ("compact", "delete")),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("compression.type", "zstd", "zstd"),
    ],
)
def test_a_setting_is_read(name: str, text: str, value: object) -> None:
    assert check_setting(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "", "is not a valid long"),
        ("retention.ms", "soon", "is not a valid long"),
        ("retention.ms", "1.5", "is not a valid long"),
        ("retention.ms", "1_000", "is not a valid long"),
        ("retention.ms", "١٢", "is not a valid long"),
        ("retention.ms", "9" * 5000, "is not a valid long|above its maximum"),
        ("segment.bytes", "0x400", "is not a valid int"),
        ("min.cleanable.dirty.ratio", "nan", "is not a valid double"),
        ("min.cleanable.dirty.ratio", "inf", "is not a valid double"),
        ("min.cleanable.dirty.ratio", "half", "is not a valid double"),
        ("cleanup.policy", "", "is not a valid list"),
        ("cleanup.policy", ",", "is not a valid list"),
        ("cleanup.policy", "compact,shred", "is not one of compact, delete"),
        ("compression.type", "brotli", "is not one of producer, uncompressed, gzip, snappy, lz4, zstd"),
        ("message.timestamp.type", "logappendtime", "is not one of CreateTime, LogAppendTime"),
        pytest.param("queue.dead.letter.topic", "../x", "may contain only letters", id="no topic's name"),
        ("remote.storage.enable", "true", "can only be false"),
        ("local.retention.ms", "1000", "can only be -2"),
        ("local.retention.bytes", "-1", "can only be -2"),
        ("compression.gzip.level", "0", "cannot be 0"),
        ("compression.zstd.level", "23", "above its maximum 22"),
        ("leader.replication.throttled.replicas", "1:2,x", "'x', which does not match"),
    ],
)
def test_a_setting_is_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        check_setting(name, text)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("retention.msec", "retention.ms"),
        ("retension.bytes", "retention.bytes"),
        ("cleanup_policy", "cleanup.policy"),
        ("min.insync.replica", "min.insync.replicas"),
    ],
)
def test_a_misspelt_setting_suggests_the_nearest_name(name: str, near: str) -> None:
    with pytest.raises(InvalidConfig, match=f"no topic setting is named '{name}'; did you mean {near}"):
        check_setting(name, "1")


def test_a_setting_unlike_any_other_is_refused_without_a_guess() -> None:
    with pytest.raises(InvalidConfig, match=r"no topic setting is named 'colour'$"):
        topic_config({"colour": "blue"})


@pytest.mark.parametrize(
    ("policy", "compacted", "deletes"),
    [("delete", False, True), ("compact", True, False), ("compact,delete", True, True)],
)
def test_the_cleanup_policy_determines_deletion_and_compaction(
    policy: str, compacted: bool, deletes: bool
) -> None:
    config = topic_config({"cleanup.policy": policy})
    assert (config.is_compacted, config.deletes_old) == (compacted, deletes)


@given(st.sampled_from(sorted(SETTINGS)), st.text(max_size=30))
def test_any_text_is_refused_or_means_the_same_when_written_out(name: str, text: str) -> None:
    with suppress(InvalidConfig):
        value = check_setting(name, text)
        assert check_setting(name, SETTINGS[name].text(value)) == value


# As DescribeConfigs of Apache Kafka 4.1 returns them, without those whose default is our own.
KAFKA_SETTINGS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


@pytest.mark.parametrize("name", KAFKA_SETTINGS)
def test_kafkas_settings_have_kafkas_defaults(name: str) -> None:
    setting = SETTINGS[name]
    assert setting.text(setting.default) == KAFKA_SETTINGS[name]
    check_settings({name: KAFKA_SETTINGS[name]})


def test_compaction_lags_must_not_contradict_each_other() -> None:
    check_settings({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms=6 is above max"):
        check_settings({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


@pytest.mark.parametrize(
    ("settings", "checks"),
    [
        ({}, False),
        ({"schema.validation.subject": "orders"}, False),
        ({"confluent.value.subject.name.strategy": "RecordNameStrategy"}, False),
        ({"schema.validation": "id"}, True),
        ({"schema.validation": "full"}, True),
        ({"confluent.value.schema.validation": "true"}, True),
        ({"confluent.key.schema.validation": "true"}, True),
    ],
)
def test_schemas_are_checked_if_a_setting_says_so(settings: dict[str, str], checks: bool) -> None:
    assert topic_config(settings).checks_schemas is checks


def test_strategies_have_short_names() -> None:
    name = "confluent.key.subject.name.strategy"
    assert check_setting(name, "TopicRecordNameStrategy") == TOPIC_RECORD_NAME_STRATEGY
    assert check_setting(name, TOPIC_RECORD_NAME_STRATEGY) == TOPIC_RECORD_NAME_STRATEGY
    with pytest.raises(InvalidConfig, match="is not one of"):
        check_setting(name, "com.example.OwnStrategy")
    with pytest.raises(InvalidConfig, match="does not match"):
        check_setting("schema.validation.subject", "a\nb")
