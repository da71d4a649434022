"""Broker settings that can be changed at run time: names, layers and checks."""

import pytest

from alpacamq.cluster.broker_config import (
    ALL_BROKERS,
    BROKER_NAMES,
    BROKER_SETTINGS,
    FOLLOWER_RATE,
    LEADER_RATE,
    OWN_SETTINGS,
    STATIC_SETTINGS,
    check_overrides,
    throttled_rate,
    topic_defaults,
    usable,
)
from alpacamq.cluster.image import ClusterImage, broker_config_change
from alpacamq.model.errors import AlpacaError, CorruptState, InvalidConfig, InvalidRequest
from alpacamq.model.state_machine import Change
from alpacamq.model.topics import SETTINGS

FILE = {"retention.ms": "1", "segment.bytes": "1024", "flush.ms": "1"}

# The defaults of topic settings that Kafka 4.1 changes at run time.
OF_KAFKA = {
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "log.cleaner.delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio",
    "log.cleaner.min.compaction.lag.ms",
    "log.cleanup.policy",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
    "log.index.interval.bytes",
    "log.index.size.max.bytes",
    "log.local.retention.bytes",
    "log.local.retention.ms",
    "log.message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms",
    "log.message.timestamp.type",
    "log.preallocate",
    "log.retention.bytes",
    "log.retention.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
    "log.segment.bytes",
    "log.segment.delete.delay.ms",
    "message.max.bytes",
    "min.insync.replicas",
    "unclean.leader.election.enable",
}


def image_of(broker: dict[str, str] | None = None, all_brokers: dict[str, str] | None = None) -> ClusterImage:
    image = ClusterImage()
    image.apply([broker_config_change("1", broker or {}), broker_config_change("", all_brokers or {})])
    return image


def check(image: ClusterImage, resource: str, overrides: dict[str, str]) -> None:
    check_overrides(image, resource, overrides, topic_defaults(image, 1, FILE))


def test_the_names_are_those_of_kafka_and_of_settings_that_kafka_lacks() -> None:
    assert BROKER_SETTINGS.keys() >= OF_KAFKA
    own = BROKER_SETTINGS.keys() - OF_KAFKA - OWN_SETTINGS.keys()
    families = {"confluent", "message", "queue", "schema", "table", "trace"}
    assert {name.partition(".")[0] for name in own} == families
    assert own <= SETTINGS.keys()
    assert len(set(BROKER_NAMES.values())) == len(BROKER_NAMES)


def test_a_broker_precedes_all_brokers_and_these_precede_the_file() -> None:
    image = image_of({"log.retention.ms": "3"}, {"log.retention.ms": "2", "log.segment.bytes": "2048"})
    image.apply([broker_config_change("2", {"log.flush.interval.ms": "9"})])

    defaults = topic_defaults(image, 1, FILE)

    assert defaults.merged == {"retention.ms": "3", "segment.bytes": "2048", "flush.ms": "1"}
    assert defaults.of_broker == {"retention.ms": "3"}
    assert defaults.of_all_brokers == {"retention.ms": "2", "segment.bytes": "2048"}


def test_settings_are_replaced_as_a_whole_and_removed_when_none_are_left() -> None:
    image = image_of({"log.retention.ms": "3"})
    image.apply([broker_config_change("1", {"log.segment.bytes": "2048"})])
    assert image.broker_overrides("1") == {"log.segment.bytes": "2048"}

    removal = broker_config_change("1", {})

    assert removal.value is None, "compaction forgets the key"
    image.apply([removal])
    assert image.broker_overrides("1") == {}


@pytest.mark.parametrize("change", [Change(b"broker-secrets/1", b"\xff"), Change(b"other", None)])
def test_records_of_later_versions_stop_the_node(change: Change) -> None:
    with pytest.raises(CorruptState, match="later version"):
        ClusterImage().apply([change])


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        pytest.param(
            "log.retention.ms", "-2", InvalidConfig, r"log\.retention\.ms=-2", id="a value too small"
        ),
        pytest.param("log.cleanup.policy", "shred", InvalidConfig, "log.cleanup.policy", id="a choice"),
        pytest.param("log.local.retention.ms", "5", InvalidConfig, "not supported", id="tiered storage"),
        pytest.param("queue.dead.letter.topic", "a/b", InvalidConfig, "a/b", id="not the name of a topic"),
        pytest.param("log.retention.mss", "1", InvalidConfig, r"log\.retention\.ms\?", id="a misspelt name"),
        pytest.param("retention.ms", "1", InvalidConfig, r"log\.retention\.ms\?", id="its name on a topic"),
        pytest.param("sqs.attributes", "{}", InvalidConfig, "sqs.attributes", id="a setting of one topic"),
        pytest.param("broker.id", "2", InvalidRequest, "configuration file", id="a static setting"),
        pytest.param("log.retention.hours", "2", InvalidRequest, r"log\.retention\.ms", id="in hours"),
        pytest.param("num.partitions", "2", InvalidRequest, "num.partitions", id="a number of partitions"),
    ],
)
@pytest.mark.parametrize("resource", ["1", ALL_BROKERS])
def test_an_invalid_setting_is_refused(
    resource: str, name: str, value: str, error: type[AlpacaError], words: str
) -> None:
    with pytest.raises(error, match=words):
        check(image_of(), resource, {"log.segment.bytes": "2048", name: value})


def test_a_limit_of_replication_is_that_of_the_broker_then_of_all_brokers() -> None:
    image = image_of({LEADER_RATE: "3"}, {LEADER_RATE: "2", FOLLOWER_RATE: "7"})
    assert throttled_rate(image, 1, LEADER_RATE) == 3
    assert throttled_rate(image, 2, LEADER_RATE) == 2
    assert throttled_rate(image, 1, FOLLOWER_RATE) == 7
    assert throttled_rate(image_of(), 1, FOLLOWER_RATE) is None
    assert topic_defaults(image, 1, {}).merged == {}


def test_no_setting_is_both_static_and_dynamic() -> None:
    assert not STATIC_SETTINGS & BROKER_SETTINGS.keys()


@pytest.mark.parametrize("resource", ["1", ALL_BROKERS])
def test_lags_of_compaction_are_checked_over_all_layers(resource: str) -> None:
    longest = {"log.cleaner.max.compaction.lag.ms": "5"}
    image = image_of(all_brokers=longest) if resource == "1" else image_of(longest)
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms=6"):
        check(image, resource, {"log.cleaner.min.compaction.lag.ms": "6"})
    check(image, resource, {"log.cleaner.min.compaction.lag.ms": "5"})


def test_what_a_later_version_stored_is_kept_but_not_used() -> None:
    stored = {"log.shiny.ms": "1", "log.retention.ms": "soon", "log.segment.bytes": "2048"}
    image = image_of(stored)

    assert usable(stored) == {"log.segment.bytes": "2048"}
    assert topic_defaults(image, 1, {}).merged == {"segment.bytes": "2048"}
    check(image, "1", {**stored, "log.segment.bytes": "4096"})
    with pytest.raises(InvalidConfig, match=r"log\.shiny\.ms"):
        check(image, "1", {**stored, "log.shiny.ms": "2"})
