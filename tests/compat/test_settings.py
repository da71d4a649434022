"""Describing and altering the settings of a topic."""

import pytest

from tests.brokers import Broker

from .aio import AioKafka
from .client import Admin, Record, Refused
from .confluent import Confluent
from .conftest import name_of
from .kafka_python import KafkaPython

INVALID_CONFIG = 40
UNKNOWN_TOPIC = 3

Incremental = Confluent | KafkaPython


@pytest.fixture(params=(Confluent, KafkaPython), ids=name_of)
def incremental(request: pytest.FixtureRequest, broker: Broker) -> Incremental:
    """The clients that can change single settings."""
    kind: type[Incremental] = request.param
    return kind(broker.address)


@pytest.fixture(params=(Confluent, AioKafka), ids=name_of)
def replacing(request: pytest.FixtureRequest, broker: Broker) -> Admin:
    """The clients with a true replacement; kafka-python adds the current settings."""
    kind: type[Admin] = request.param
    return kind(broker.address)


def test_every_setting_is_described(admin: Admin, broker: Broker, topic: str) -> None:
    admin.create_topic(topic)

    settings = admin.settings(topic)

    assert settings["cleanup.policy"] == "delete"
    assert settings["compression.type"] == "producer"
    assert settings["flush.ms"] == "1000"
    assert settings["max.message.bytes"] == str((1 << 20) + 12)
    assert settings["message.timestamp.type"] == "CreateTime"
    assert settings["min.insync.replicas"] == ("2" if len(broker.by_id) >= 3 else "1")
    assert settings["retention.bytes"] == "-1"
    assert settings["retention.ms"] == "604800000"


def test_more_in_sync_replicas_than_there_are_replicas_count_as_all(admin: Admin, topic: str) -> None:
    """As in Kafka, where one replica of one in sync is enough for acks=all whatever the setting says."""
    admin.create_topic(topic, settings={"min.insync.replicas": "3"})

    assert admin.produce(topic, [Record(value=b"x")], acks="all") == [0]

    assert admin.settings(topic)["min.insync.replicas"] == "3"


@pytest.mark.parametrize(
    ("codec", "low", "high"), [("gzip", "1", "9"), ("lz4", "9", "17"), ("zstd", "-100", "19")]
)
def test_the_broker_compresses_at_the_level_of_the_topic(
    confluent: Confluent, broker: Broker, topic: str, codec: str, low: str, high: str
) -> None:
    text = b" ".join(b"%d" % (number * number) for number in range(20_000))
    sizes = []
    for level in (low, high):
        name = f"{topic}-{level}"
        settings = {"compression.type": codec, f"compression.{codec}.level": level}
        confluent.create_topic(name, settings=settings)
        confluent.produce(name, [Record(value=text)])
        assert [record.value for record in confluent.read(name, start=0, count=1)] == [text]
        sizes.append(sum(file.stat().st_size for file in broker.directory_of(name).rglob(f"{name}-0*/*.log")))
    assert 0 < sizes[1] < sizes[0]


def test_a_replaced_setting_takes_effect_at_once(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)

    admin.replace_settings(topic, {"max.message.bytes": "1500"})

    assert admin.settings(topic)["max.message.bytes"] == "1500"
    with pytest.raises(Refused) as refusal:
        admin.produce(topic, [Record(value=b"x" * 3000)])
    assert refusal.value.code == 10


def test_replacing_resets_unnamed_settings_to_their_defaults(replacing: Admin, topic: str) -> None:
    replacing.create_topic(topic, settings={"retention.ms": "1000000"})

    replacing.replace_settings(topic, {"retention.bytes": "5000000"})

    settings = replacing.settings(topic)
    assert settings["retention.bytes"] == "5000000"
    assert settings["retention.ms"] == "604800000"


def test_one_setting_can_be_changed_and_the_rest_stays(incremental: Incremental, topic: str) -> None:
    incremental.create_topic(topic, settings={"retention.ms": "1000000"})

    incremental.change_settings(topic, {"segment.bytes": ("set", "2000000")})

    settings = incremental.settings(topic)
    assert settings["segment.bytes"] == "2000000"
    assert settings["retention.ms"] == "1000000"


def test_a_setting_can_be_reset_to_its_default(incremental: Incremental, topic: str) -> None:
    incremental.create_topic(topic, settings={"retention.ms": "1000000"})

    incremental.change_settings(topic, {"retention.ms": ("delete", None)})

    assert incremental.settings(topic)["retention.ms"] == "604800000"


def test_a_list_can_grow_and_shrink(incremental: Incremental, topic: str) -> None:
    incremental.create_topic(topic)

    incremental.change_settings(topic, {"cleanup.policy": ("append", "compact")})
    assert set(incremental.settings(topic)["cleanup.policy"].split(",")) == {"compact", "delete"}

    incremental.change_settings(topic, {"cleanup.policy": ("subtract", "delete")})
    assert incremental.settings(topic)["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("retention.milliseconds", "1", id="an unknown setting"),
        pytest.param("retention.ms", "-5", id="a value too small"),
        pytest.param("cleanup.policy", "shred", id="an invalid choice"),
    ],
)
def test_an_invalid_change_is_refused_and_changes_nothing(
    incremental: Incremental, topic: str, name: str, value: str
) -> None:
    incremental.create_topic(topic)
    before = incremental.settings(topic)

    with pytest.raises(Refused) as refusal:
        incremental.change_settings(topic, {"segment.bytes": ("set", "2000000"), name: ("set", value)})

    assert refusal.value.code == INVALID_CONFIG
    assert name in refusal.value.words
    assert incremental.settings(topic) == before


def test_an_invalid_replacement_is_refused_and_changes_nothing(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    before = admin.settings(topic)

    with pytest.raises(Refused) as refusal:
        admin.replace_settings(topic, {"retention.ms": "never"})

    assert refusal.value.code == INVALID_CONFIG
    assert admin.settings(topic) == before


def test_settings_of_an_unknown_topic_are_refused(replacing: Admin, topic: str) -> None:
    with pytest.raises(Refused) as refusal:
        replacing.settings(topic)

    assert refusal.value.code == UNKNOWN_TOPIC
