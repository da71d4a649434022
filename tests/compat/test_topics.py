"""Managing topics, and errors that every client must understand."""

from collections.abc import Iterator

import pytest

from tests.broker_cluster import make_broker
from tests.brokers import Broker
from tests.waiting import eventually

from .aio import AioKafka
from .client import Admin, Client, Record, Refused
from .confluent import Confluent
from .conftest import CLIENTS, name_of, skip_if_unable
from .kafka_python import KafkaPython

UNKNOWN_TOPIC = 3
MESSAGE_TOO_LARGE = 10
INVALID_TOPIC = 17
TOPIC_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION = 38
INVALID_CONFIG = 40


def partition_count(admin: Admin, topic: str) -> int:
    """Return the partitions of a topic, once the node that the client asks has heard of it."""

    def count() -> int:
        try:
            return admin.partition_count(topic)
        except Refused as refusal:
            if refusal.code != UNKNOWN_TOPIC:
                raise
            return 0

    return eventually(count)


def test_a_created_topic_has_its_partitions_and_settings(admin: Admin, topic: str) -> None:
    admin.create_topic(
        topic, partitions=5, settings={"retention.ms": "86400000", "cleanup.policy": "compact"}
    )

    assert topic in admin.topics()
    assert partition_count(admin, topic) == 5
    settings = admin.settings(topic)
    assert settings["retention.ms"] == "86400000"
    assert settings["cleanup.policy"] == "compact"
    assert settings["segment.bytes"] == "67108864"


def test_a_topic_without_a_partition_count_gets_the_brokers_default(admin: Admin, topic: str) -> None:
    if isinstance(admin, AioKafka):
        pytest.skip("aiokafka requires a number")
    admin.create_topic(topic, partitions=-1, replication=-1)

    assert partition_count(admin, topic) == 3


def test_the_longest_topic_name_of_kafka_is_accepted(admin: Admin) -> None:
    name = f"{admin.name}-".ljust(249, "x")

    admin.create_topic(name, partitions=12)

    admin.produce(name, [Record(value=b"x", partition=11)])
    assert [record.value for record in admin.read(name, partition=11, count=1)] == [b"x"]


def test_a_validate_only_creation_creates_nothing(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, only_check=True)

    assert topic not in admin.topics()


@pytest.mark.parametrize(
    ("name", "partitions", "replication", "settings", "code", "word"),
    [
        pytest.param("bad name!", 1, 1, {}, INVALID_TOPIC, "bad name!", id="a name with a space"),
        pytest.param("..", 1, 1, {}, INVALID_TOPIC, "", id="the parent directory as a name"),
        pytest.param("x" * 250, 1, 1, {}, INVALID_TOPIC, "249", id="a name too long"),
        pytest.param(None, 0, 1, {}, INVALID_PARTITIONS, "", id="no partitions"),
        pytest.param(None, 1, 9, {}, INVALID_REPLICATION, "9", id="more replicas than brokers"),
        pytest.param(
            None, 1, 1, {"retention.mss": "1"}, INVALID_CONFIG, "retention.ms", id="an unknown setting"
        ),
        pytest.param(
            None, 1, 1, {"retention.ms": "soon"}, INVALID_CONFIG, "soon", id="a value of the wrong kind"
        ),
        pytest.param(None, 1, 1, {"segment.bytes": "1"}, INVALID_CONFIG, "1024", id="a value too small"),
        pytest.param(
            None, 1, 1, {"cleanup.policy": "burn"}, INVALID_CONFIG, "compact", id="an invalid choice"
        ),
    ],
)
def test_an_invalid_topic_is_refused_with_the_reason(
    admin: Admin,
    topic: str,
    name: str | None,
    partitions: int,
    replication: int,
    settings: dict[str, str],
    code: int,
    word: str,
) -> None:
    with pytest.raises(Refused) as refusal:
        admin.create_topic(name or topic, partitions=partitions, replication=replication, settings=settings)

    assert refusal.value.code == code
    assert word in refusal.value.words
    assert (name or topic) not in admin.topics()


def test_a_topic_cannot_be_created_twice(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)

    with pytest.raises(Refused) as refusal:
        admin.create_topic(topic)

    assert refusal.value.code == TOPIC_EXISTS


def test_a_deleted_topic_does_not_exist_and_its_name_can_be_reused(
    admin: Admin, broker: Broker, topic: str
) -> None:
    admin.create_topic(topic)
    admin.produce(topic, [Record(value=b"old")])

    admin.delete_topic(topic)

    assert topic not in admin.topics()
    with pytest.raises(Refused) as refusal:
        admin.partition_count(topic)
    assert refusal.value.code == UNKNOWN_TOPIC
    admin.create_topic(topic)
    # A new client: librdkafka remembers for a while that the old topic did not exist.
    fresh = type(admin)(broker.address)
    assert fresh.ends(topic) == (0, 0)
    fresh.produce(topic, [Record(value=b"new")])
    assert [record.value for record in fresh.read(topic, count=1)] == [b"new"]


def test_deleting_an_unknown_topic_is_refused(admin: Admin, topic: str) -> None:
    with pytest.raises(Refused) as refusal:
        admin.delete_topic(topic)

    assert refusal.value.code == UNKNOWN_TOPIC


def test_partitions_can_be_added_to_a_topic_in_use(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    admin.produce(topic, [Record(value=b"before", partition=1)])

    admin.add_partitions(topic, 4)

    assert admin.partition_count(topic) == 4
    admin.produce(topic, [Record(value=b"after", partition=3)])
    assert [record.value for record in admin.read(topic, partition=1, count=1)] == [b"before"]
    assert [record.value for record in admin.read(topic, partition=3, count=1)] == [b"after"]


@pytest.mark.parametrize("total", [1, 2])
def test_partitions_cannot_be_removed(admin: Admin, topic: str, total: int) -> None:
    admin.create_topic(topic, partitions=2)

    with pytest.raises(Refused) as refusal:
        admin.add_partitions(topic, total)

    assert refusal.value.code == INVALID_PARTITIONS
    assert admin.partition_count(topic) == 2


def test_adding_partitions_to_an_unknown_topic_is_refused(admin: Admin, topic: str) -> None:
    with pytest.raises(Refused) as refusal:
        admin.add_partitions(topic, 4)

    assert refusal.value.code == UNKNOWN_TOPIC


def test_an_unknown_topic_is_reported_as_such(client: Client, topic: str) -> None:
    with pytest.raises(Refused) as refusal:
        client.partition_count(topic)

    assert refusal.value.code == UNKNOWN_TOPIC


def test_writing_to_an_unknown_topic_does_not_create_it(
    client: Client, confluent: Confluent, topic: str
) -> None:
    # The error differs: kafka-python reports that the metadata never arrived.
    with pytest.raises(Refused):
        client.produce(topic, [Record(value=b"nowhere")])

    assert topic not in confluent.topics()


def test_a_message_too_large_for_its_topic_is_refused(
    client: Client, confluent: Confluent, topic: str
) -> None:
    confluent.create_topic(topic, settings={"max.message.bytes": "2000"})

    with pytest.raises(Refused) as refusal:
        client.produce(topic, [Record(value=b"x" * 5000)])

    assert refusal.value.code == MESSAGE_TOO_LARGE
    assert confluent.ends(topic) == (0, 0)
    client.produce(topic, [Record(value=b"y" * 1000)])
    assert confluent.ends(topic) == (0, 1)


@pytest.fixture(scope="module")
def generous(node_count: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with automatic topic creation."""
    config = "[topics]\nauto_create = true\ndefault_partitions = 4\n"
    broker = make_broker(tmp_path_factory.mktemp("generous") / "data", node_count, config=config)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.mark.parametrize("kind", CLIENTS, ids=name_of)
def test_writing_to_a_new_topic_creates_it_if_enabled(
    generous: Broker, topic: str, kind: type[Client]
) -> None:
    skip_if_unable(kind)
    client = kind(generous.address)

    client.produce(topic, [Record(key=b"k", value=b"first", partition=2)])

    assert [record.value for record in client.read(topic, partition=2, count=1)] == [b"first"]
    assert client.partition_count(topic) == 4


def test_a_client_can_decline_automatic_topic_creation(generous: Broker, topic: str) -> None:
    admin = KafkaPython(generous.address)

    with pytest.raises(Refused) as refusal:
        admin.partition_count(topic)

    assert refusal.value.code == UNKNOWN_TOPIC
    assert topic not in admin.topics()
