"""Unmodified clients with tokens: OAUTHBEARER of each, and delegation tokens of the Java client."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import KafkaError, KafkaException, Producer
from kafka.errors import KafkaError as KafkaPythonError

from tests import tokens
from tests.broker_cluster import make_broker
from tests.brokers import Broker
from tests.kafka_tools import JARS, require_kafka
from tests.waiting import eventually

from . import round_trips
from .round_trips import DEADLINE_S

USER, PASSWORD = "alice", "secret"
SOURCE = Path(__file__).parent / "tokens" / "Tokens.java"

Client = Callable[[str, str, str], bytes]


@pytest.fixture(scope="module")
def broker(node_count: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a provider of tokens, and delegation tokens."""
    directory = tmp_path_factory.mktemp("tokens")
    users, secret, keys = directory / "users", directory / "secret", directory / "keys.json"
    users.write_text(f"{USER}:{PASSWORD}\n")
    secret.write_text("a random text for tests")
    keys.write_bytes(tokens.jwks())
    for file in (users, secret):
        file.chmod(0o600)
    lines = [
        "[security]",
        "authentication = true",
        f"users_file = '{users}'",
        f"jwks_file = '{keys}'",
        f"jwt_issuer = '{tokens.ISSUER}'",
        f"jwt_audience = '{tokens.AUDIENCE}'",
        f"delegation_token_secret_file = '{secret}'",
    ]
    broker = make_broker(directory / "data", node_count, config="\n".join(lines))
    try:
        yield broker.start()
    finally:
        broker.end()


def librdkafka(address: str, token: Callable[[], tuple[str, float]]) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: token(),
    }


def confluent(address: str, token: str, topic: str) -> bytes:
    return round_trips.confluent(librdkafka(address, lambda: (token, time.time() + 600)), topic)


def aiokafka(address: str, token: str, topic: str) -> bytes:
    return round_trips.aiokafka(others(address, round_trips.aiokafka_bearer(token)), topic)


def kafka_python(address: str, token: str, topic: str) -> bytes:
    return round_trips.kafka_python(others(address, round_trips.kafka_python_bearer(token)), topic)


def others(address: str, bearer: dict[str, Any]) -> dict[str, Any]:
    """The settings of the clients written in Python."""
    return {"bootstrap_servers": address, "security_protocol": "SASL_PLAINTEXT", **bearer}


CLIENTS = [confluent, aiokafka, kafka_python]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_token_writes_and_reads(broker: Broker, topic: str, client: Client) -> None:
    assert client(broker.address, tokens.token(), topic) == b"tea"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_token_for_another_service_is_refused(
    broker: Broker, topic: str, client: Client
) -> None:
    with pytest.raises((KafkaException, AioError, KafkaPythonError)):
        client(broker.address, tokens.token(aud="another"), topic)
    broker.errors.wait_for("authentication_failed.*another audience", within_s=DEADLINE_S)


def test_a_client_renews_its_token_before_it_ends(broker: Broker, topic: str) -> None:
    given: list[float] = []

    def token() -> tuple[str, float]:
        expires = time.time() + 4  # librdkafka renews it after 80 % of that
        given.append(expires)
        return tokens.token(exp=int(expires), jti=str(expires)), expires

    failures: list[KafkaError] = []
    settings = librdkafka(broker.address, token)
    producer = Producer({**settings, "error_cb": failures.append, "linger.ms": 0})

    def is_renewed() -> bool:
        producer.produce(topic, b"tea")
        assert producer.flush(DEADLINE_S) == 0
        return len(given) > 2

    eventually(is_renewed, within_s=DEADLINE_S)
    assert failures == []


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_kafka()
    if which("javac") is None:
        pytest.skip("there is no JDK")
    directory = tmp_path_factory.mktemp("classes")
    subprocess.run(["javac", "-cp", f"{JARS}/*", "-d", str(directory), str(SOURCE)], check=True)
    return directory


def run_java(classes: Path, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    command = ["java", "-Xmx256m", *options, "-cp", f"{classes}:{JARS}/*", "Tokens", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return [line for line in ran.stdout.splitlines() if not line.startswith(("SLF4J", "["))]


def test_the_java_client_uses_delegation_tokens_and_logs_in_with_one(
    broker: Broker, classes: Path, node_count: int
) -> None:
    assert run_java(classes, "delegation", broker.address, USER, PASSWORD) == [
        f"owner User:{USER}",
        "described true",
        "renewed true",
        f"SCRAM-SHA-256 nodes {node_count}",
        "UnsupportedByAuthenticationException",
        f"SCRAM-SHA-512 nodes {node_count}",
        "UnsupportedByAuthenticationException",
        "DelegationTokenNotFoundException",
    ]


@pytest.mark.parametrize(("audience", "expected"), [(tokens.AUDIENCE, "nodes"), ("another", "Sasl")])
def test_the_java_client_logs_in_with_a_bearer_token(
    broker: Broker, classes: Path, tmp_path: Path, audience: str, expected: str
) -> None:
    file = tmp_path / "token"
    file.write_text(tokens.token(aud=audience))
    url = file.as_uri()
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"
    files = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={file}"
    (first, *_) = run_java(classes, "bearer", broker.address, url, options=(allowed, files))
    assert first.startswith(expected)
