"""Unmodified clients that authenticate: every mechanism, right and wrong passwords, users by AdminClient."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka.errors import KafkaError as KafkaPythonError

from tests.broker_cluster import make_broker
from tests.brokers import Broker
from tests.waiting import eventually

from . import round_trips
from .round_trips import DEADLINE_S

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
USER, PASSWORD = "alice", "se:cret, größer"
WRONG = "wrong"
LIFETIME_MS = 2000

Client = Callable[[str, str, str, str], bytes]


def secured(path: Path, *settings: str, nodes: int = 1) -> Iterator[Broker]:
    path.mkdir(parents=True)
    users = path / "users"
    users.write_text(f"{USER}:{PASSWORD}\n")
    users.chmod(0o600)
    lines = ["[security]", "authentication = true", f"users_file = '{users}'", *settings]
    broker = make_broker(path / "data", nodes, config="\n".join(lines))
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture(scope="module")
def broker(node_count: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose clients must authenticate."""
    yield from secured(tmp_path_factory.mktemp("sasl") / "broker", nodes=node_count)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker of this test: clients repeat a wrong password, until their address is refused."""
    yield from secured(tmp_path / "broker")


@pytest.fixture
def short_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker whose clients must authenticate again and again."""
    yield from secured(tmp_path / "broker", f"session_lifetime_ms = {LIFETIME_MS}")


def confluent(address: str, mechanism: str, password: str, topic: str) -> bytes:
    return round_trips.confluent(librdkafka(address, mechanism, password), topic)


def librdkafka(address: str, mechanism: str, password: str, user: str = USER) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def others(address: str, mechanism: str, password: str) -> dict[str, Any]:
    """The settings of the clients written in Python."""
    return {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": password,
    }


def aiokafka(address: str, mechanism: str, password: str, topic: str) -> bytes:
    return round_trips.aiokafka(others(address, mechanism, password), topic)


def kafka_python(address: str, mechanism: str, password: str, topic: str) -> bytes:
    return round_trips.kafka_python(others(address, mechanism, password), topic)


CLIENTS = [confluent, aiokafka, kafka_python]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_the_password_writes_and_reads(
    broker: Broker, topic: str, client: Client, mechanism: str
) -> None:
    assert client(broker.address, mechanism, PASSWORD, topic) == b"tea"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_wrong_password_is_told_so(
    own_broker: Broker, topic: str, client: Client, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises((KafkaException, AioError, KafkaPythonError)) as refused:
        client(own_broker.address, mechanism, WRONG, topic)
    # Some raise that no broker is left, and log why.
    assert "wrong user name or password" in str(refused.value) + caplog.text
    own_broker.errors.wait_for(f"authentication_failed.*{mechanism}", within_s=DEADLINE_S)
    assert client(own_broker.address, mechanism, PASSWORD, topic) == b"tea"


def test_a_client_that_authenticates_again_is_served_beyond_the_end_of_its_session(
    short_broker: Broker, topic: str
) -> None:
    failures: list[KafkaError] = []
    settings = librdkafka(short_broker.address, "SCRAM-SHA-256", PASSWORD)
    producer = Producer({**settings, "error_cb": failures.append, "linger.ms": 0})
    end = time.monotonic() + 3 * LIFETIME_MS / 1000

    def is_over() -> bool:
        producer.produce(topic, b"tea")
        assert producer.flush(DEADLINE_S) == 0
        return time.monotonic() > end

    eventually(is_over, within_s=DEADLINE_S)
    assert failures == []
    assert short_broker.errors.find("after the end of the session") is None


def result(futures: dict[str, Future[Any]], name: str) -> Any:
    return futures[name].result(DEADLINE_S)


@pytest.mark.parametrize("mechanism", [ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512])
def test_users_are_created_described_and_deleted_by_the_admin_client(
    broker: Broker, topic: str, mechanism: ScramMechanism
) -> None:
    name, sasl_name = f"user-{topic}", mechanism.name.replace("_", "-")
    admin = AdminClient(librdkafka(broker.address, sasl_name, PASSWORD))
    info = ScramCredentialInfo(mechanism, 5000)
    created = UserScramCredentialUpsertion(name, info, password=b"another")
    assert result(admin.alter_user_scram_credentials([created]), name) is None

    described = result(admin.describe_user_scram_credentials([name]), name)
    (found,) = described.scram_credential_infos
    assert (found.mechanism, found.iterations) == (mechanism, 5000)
    assert name in admin.describe_user_scram_credentials().result(DEADLINE_S)

    of_user = AdminClient(librdkafka(broker.address, sasl_name, "another", name))
    assert of_user.list_topics(timeout=DEADLINE_S).brokers
    deleted = UserScramCredentialDeletion(name, mechanism)
    assert result(admin.alter_user_scram_credentials([deleted]), name) is None
    with pytest.raises(KafkaException) as refused:
        result(admin.describe_user_scram_credentials([name]), name)
    assert refused.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND


@pytest.mark.parametrize("iterations", [100, 100_000])
def test_an_unacceptable_credential_is_refused(broker: Broker, topic: str, iterations: int) -> None:
    admin = AdminClient(librdkafka(broker.address, "PLAIN", PASSWORD))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, iterations)
    with pytest.raises(KafkaException) as refused:
        result(
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion(topic, info, password=b"x")]),
            topic,
        )
    assert refused.value.args[0].code() == KafkaError.UNACCEPTABLE_CREDENTIAL
