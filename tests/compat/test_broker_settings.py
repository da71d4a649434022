"""Changing broker settings at run time: topics without an override follow them."""

from collections.abc import Iterator, Mapping

import pytest

from tests.broker_cluster import make_broker
from tests.brokers import Broker
from tests.kafka_tools import kafka_configs, require_kafka
from tests.ports import lasting_address

from .client import Record, Refused
from .confluent import Confluent
from .conftest import CONFIG, name_of
from .kafka_python import KafkaPython

INVALID_CONFIG, INVALID_REQUEST, TOO_LARGE = 40, 42, 10
BROKER = 1

# aiokafka cannot change single settings.
BrokerAdmin = Confluent | KafkaPython


@pytest.fixture(scope="module")
def broker(node_count: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of these tests only: its settings would change other tests."""
    data_dir = tmp_path_factory.mktemp("settings") / "data"
    broker = make_broker(data_dir, node_count, config=CONFIG, kafka=lasting_address())
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture(params=(Confluent, KafkaPython), ids=name_of)
def brokers(request: pytest.FixtureRequest, broker: Broker) -> BrokerAdmin:
    kind: type[BrokerAdmin] = request.param
    return kind(broker.address)


Changes = Mapping[str, tuple[str, str | None]]


def change_each(brokers: BrokerAdmin, broker: Broker, changes: Changes) -> None:
    """Change every broker: the one that describes a topic, or leads it, applies its own settings."""
    for number in broker.by_id:
        brokers.change_broker_settings(number, changes)


def test_a_changed_setting_is_described_and_survives_a_restart(
    brokers: BrokerAdmin, broker: Broker, topic: str
) -> None:
    brokers.create_topic(topic)

    change_each(brokers, broker, {"log.retention.ms": ("set", "5000000")})
    for _ in range(2):
        assert brokers.broker_settings(BROKER)["log.retention.ms"] == ("5000000", "DYNAMIC_BROKER_CONFIG")
        assert brokers.settings(topic)["retention.ms"] == "5000000"
        broker.stop()
        broker.start()

    change_each(brokers, broker, {"log.retention.ms": ("delete", None)})
    assert brokers.broker_settings(BROKER)["log.retention.ms"] == ("604800000", "DEFAULT_CONFIG")
    assert brokers.settings(topic)["retention.ms"] == "604800000"


def test_a_topic_without_an_override_follows_at_once(
    brokers: BrokerAdmin, broker: Broker, topic: str
) -> None:
    own = f"{topic}-own"
    brokers.create_topic(topic)
    brokers.create_topic(own, settings={"max.message.bytes": "1000000"})
    large = [Record(value=b"x" * 3000)]
    assert brokers.produce(topic, large) == [0]

    change_each(brokers, broker, {"message.max.bytes": ("set", "1500")})
    try:
        with pytest.raises(Refused) as refusal:
            brokers.produce(topic, large)
        assert brokers.produce(own, large) == [0]
    finally:
        change_each(brokers, broker, {"message.max.bytes": ("delete", None)})

    assert refusal.value.code == TOO_LARGE
    assert brokers.produce(topic, large) == [1]


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        pytest.param("broker.id", "3", INVALID_REQUEST, id="the id"),
        pytest.param("num.partitions", "3", INVALID_REQUEST, id="a static setting"),
        pytest.param("log.retention.ms", "never", INVALID_CONFIG, id="an invalid value"),
        pytest.param("no.such.setting", "1", INVALID_CONFIG, id="an unknown setting"),
    ],
)
def test_an_invalid_change_is_refused_and_changes_nothing(
    brokers: BrokerAdmin, name: str, value: str, code: int
) -> None:
    before = brokers.broker_settings(BROKER)

    with pytest.raises(Refused) as refusal:
        brokers.change_broker_settings(
            BROKER, {"log.segment.bytes": ("set", "2000000"), name: ("set", value)}
        )

    assert refusal.value.code == code
    assert name in refusal.value.words
    assert brokers.broker_settings(BROKER) == before


def test_validation_alone_changes_nothing(brokers: BrokerAdmin) -> None:
    before = brokers.broker_settings(BROKER)
    brokers.change_broker_settings(BROKER, {"log.retention.ms": ("set", "5")}, only_check=True)
    assert brokers.broker_settings(BROKER) == before


def test_kafka_configs_changes_a_broker_and_all_brokers(
    broker: Broker, confluent: Confluent, topic: str
) -> None:
    """Only Kafka's own tools can name all brokers."""
    require_kafka()
    confluent.create_topic(topic)
    one = [("--entity-type", "brokers", "--entity-name", str(number)) for number in broker.by_id]
    every = ("--entity-type", "brokers", "--entity-default")

    for scope, settings in (
        *((each, "log.retention.ms=5000000") for each in one),
        (every, "log.segment.bytes=2000000"),
    ):
        done = kafka_configs(broker.address, *scope, "--alter", "--add-config", settings)
        assert done.returncode == 0, done.stderr

    told = kafka_configs(broker.address, "--entity-type", "brokers", "--describe").stdout
    # The tool lists what is set for each broker, and once what is set for all.
    for described, times in (
        ("log.retention.ms=5000000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:", len(broker.by_id)),
        ("log.segment.bytes=2000000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:", 1),
    ):
        assert told.count(described) >= times
    found = confluent.settings(topic)
    assert (found["retention.ms"], found["segment.bytes"]) == ("5000000", "2000000")

    for scope, name in (*((each, "log.retention.ms") for each in one), (every, "log.segment.bytes")):
        done = kafka_configs(broker.address, *scope, "--alter", "--delete-config", name)
        assert done.returncode == 0, done.stderr
    found = confluent.settings(topic)
    assert (found["retention.ms"], found["segment.bytes"]) == ("604800000", str(64 << 20))
