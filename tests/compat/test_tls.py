"""Unmodified clients over TLS: with certificates, with passwords, and with certificates that are refused."""

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from aiokafka.helpers import create_ssl_context
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from cryptography.x509 import load_pem_x509_certificate

from tests import tokens
from tests.brokers import ANY_PORT, Broker
from tests.certificates import Authority, Pair, client_context, tls_section
from tests.ports import free_ports
from tests.waiting import eventually

from . import round_trips
from .round_trips import DEADLINE_S, OAUTHBEARER

PASSWORD = "correct horse battery staple"  # noqa: S105 - of this test


class Secured:
    """A broker with TLS on every API, and what clients need for it."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "certificates")
        self.server = self.authority.server()
        self.alice = self.authority.client("alice")
        self.revoked = self.authority.client("revoked")
        self.authority.revoke([self.revoked.serial])
        # Listeners without authentication.
        self.local, self.web = (f"127.0.0.1:{port}" for port in free_ports(2))
        users = directory / "users"
        users.write_text(f"alice:{PASSWORD}\n")
        users.chmod(0o600)
        keys = directory / "keys.json"
        keys.write_bytes(tokens.jwks())
        self.broker = Broker(directory / "data", config=self._config(users, keys))

    def _config(self, users: Path, keys: Path) -> str:
        api = "tls = true\nclient_certificates = 'requested'\n"
        return (
            tls_section(self.authority, self.server)
            + f"crl = '{self.authority.crl}'\nprincipal_rules = 'RULE:^CN=(.*)$/$1/L'\n"
            + "".join(f"[{name}]\n{api}" for name in ("kafka", "http", "sqs", "registry"))
            + f"[listeners.local]\nlisten = '{self.local}'\nauthentication = 'none'\n"
            f"[listeners.web]\napi = 'http'\nlisten = '{self.web}'\nauthentication = 'none'\n"
            + f"[security]\nauthentication = true\nacls = true\nsuper_users = ['User:alice']\n"
            f"users_file = '{users}'\njwks_file = '{keys}'\n"
            f"jwt_issuer = '{tokens.ISSUER}'\njwt_audience = '{tokens.AUDIENCE}'\n"
        )

    @property
    def librdkafka(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.broker.address,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.ca),
        }

    def with_certificate(self, pair: Pair) -> dict[str, Any]:
        files = {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
        return {**self.librdkafka, **files}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("tls"))
    try:
        secured.broker.start()
        yield secured
    finally:
        secured.broker.end()


# With a client certificate, a SASL mechanism for the password or a token, or both.
Client = Callable[[Secured, Pair | None, str | None, str], bytes]


def sasl(mechanism: str) -> dict[str, Any]:
    """The settings of librdkafka for a password or a token."""
    if mechanism == OAUTHBEARER:
        return {"security.protocol": "SASL_SSL", **round_trips.confluent_bearer(tokens.token("alice"))}
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }


def confluent(secured: Secured, pair: Pair | None, mechanism: str | None, topic: str) -> bytes:
    settings = secured.librdkafka if pair is None else secured.with_certificate(pair)
    return round_trips.confluent(settings if mechanism is None else {**settings, **sasl(mechanism)}, topic)


def _others(
    secured: Secured, mechanism: str | None, bearer: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """The settings of the clients written in Python."""
    address = {"bootstrap_servers": secured.broker.address}
    if mechanism is None:
        return {**address, "security_protocol": "SSL"}
    if mechanism == OAUTHBEARER:
        return {**address, "security_protocol": "SASL_SSL", **bearer(tokens.token("alice"))}
    return {
        **address,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }


def aiokafka(secured: Secured, pair: Pair | None, mechanism: str | None, topic: str) -> bytes:
    files = {} if pair is None else {"certfile": str(pair.certificate), "keyfile": str(pair.key)}
    context = create_ssl_context(cafile=str(secured.authority.ca), **files)
    settings = _others(secured, mechanism, round_trips.aiokafka_bearer)
    return round_trips.aiokafka({**settings, "ssl_context": context}, topic)


def kafka_python(secured: Secured, pair: Pair | None, mechanism: str | None, topic: str) -> bytes:
    settings = _others(secured, mechanism, round_trips.kafka_python_bearer)
    settings["ssl_cafile"] = str(secured.authority.ca)
    if pair is not None:
        settings |= {"ssl_certfile": str(pair.certificate), "ssl_keyfile": str(pair.key)}
    return round_trips.kafka_python(settings, topic)


CLIENTS = [confluent, aiokafka, kafka_python]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_certificate_authenticates_a_kafka_client(secured: Secured, topic: str, client: Client) -> None:
    assert client(secured, secured.alice, None, topic) == b"tea"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_password_or_token_authenticates_a_kafka_client_over_tls(
    secured: Secured, topic: str, client: Client, mechanism: str
) -> None:
    assert client(secured, None, mechanism, topic) == b"tea"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", OAUTHBEARER])
def test_the_user_that_logs_in_wins_over_that_of_the_certificate(
    secured: Secured, topic: str, mechanism: str
) -> None:
    bob = secured.authority.client("bob")
    assert confluent(secured, bob, mechanism, topic) == b"tea"


def test_listeners_may_be_open_where_others_require_authentication(secured: Secured) -> None:
    admin = AdminClient({"bootstrap.servers": secured.local})
    found = admin.list_topics(timeout=DEADLINE_S)
    # Access rules decide on every listener.
    assert found.topics == {}
    assert {f"{each.host}:{each.port}" for each in found.brokers.values()} == {secured.local}
    answered = httpx.get(f"http://{secured.web}/topics")
    assert (answered.status_code, answered.json()["topics"]) == (200, [])


def failures_of(settings: dict[str, Any], topic: str) -> list[KafkaError]:
    """Return the first errors of a producer that is not served."""
    failures: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": failures.append})

    def note(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error)

    producer.produce(topic, b"tea", on_delivery=note)

    def has_failed() -> bool:
        producer.poll(0.1)
        return bool(failures)

    eventually(has_failed, within_s=DEADLINE_S)
    producer.purge()
    return failures


def test_a_principal_without_rights_is_refused_by_the_access_rules(secured: Secured, topic: str) -> None:
    failures = failures_of(secured.with_certificate(secured.authority.client("carol")), topic)
    assert failures[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_client_without_a_certificate_and_a_password_is_not_served(secured: Secured, topic: str) -> None:
    assert failures_of(secured.librdkafka, topic)[0].code() in (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
    )
    secured.broker.errors.wait_for("before authentication", within_s=DEADLINE_S)


def test_a_client_that_does_not_trust_the_authority_does_not_connect(
    secured: Secured, topic: str, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "Another CA")
    failures = failures_of({**secured.librdkafka, "ssl.ca.location": str(stranger.ca)}, topic)
    assert "certificate verify failed" in failures[0].str()


def test_clients_with_a_revoked_expired_or_foreign_certificate_are_refused(
    secured: Secured, topic: str, tmp_path: Path
) -> None:
    expired = secured.authority.client("expired", valid_days=-1)
    foreign = Authority(tmp_path, "Another CA").client("alice")
    for pair, reason in ((secured.revoked, "revoked"), (expired, "expired"), (foreign, "unable to get")):
        failures = failures_of(secured.with_certificate(pair), topic)
        assert failures[0].code() in (KafkaError._SSL, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
        secured.broker.errors.wait_for(f"handshake_failed.*{reason}", within_s=DEADLINE_S)


def test_http_clients_authenticate_by_certificate_or_password(secured: Secured) -> None:
    url = f"https://{secured.broker.http_address}"
    with httpx.Client(verify=client_context(secured.authority), base_url=url) as anonymous:
        assert anonymous.get("/topics").status_code == 401
        assert anonymous.get("/topics", auth=("alice", PASSWORD)).status_code == 200
    with httpx.Client(verify=client_context(secured.authority, secured.alice), base_url=url) as alice:
        assert alice.get("/topics").status_code == 200
    bob = client_context(secured.authority, secured.authority.client("bob"))
    with httpx.Client(verify=bob, base_url=url) as other:
        assert other.get("/topics").json()["topics"] == []
        assert other.post("/topics", json={"name": "bobs"}).status_code == 403


def test_a_key_that_a_certificate_creates_ends_with_it(secured: Secured) -> None:
    bob = secured.authority.client("bob")
    end_ms = round(
        load_pem_x509_certificate(bob.certificate.read_bytes()).not_valid_after_utc.timestamp() * 1000
    )
    url = f"https://{secured.broker.http_address}"
    with httpx.Client(verify=client_context(secured.authority, bob), base_url=url) as client:
        made = client.post("/keys", json={}).json()
        assert abs(made["expires"] - end_ms) < 10_000
        shorter = client.post("/keys", json={"expires_in_ms": 60_000}).json()
        assert shorter["expires"] < end_ms
        longer = client.post("/keys", json={"expires_in_ms": end_ms})
        assert longer.status_code == 403
        assert client.post(f"/keys/{made['id']}/rotate", json={}).status_code == 403
    with httpx.Client(verify=client_context(secured.authority), base_url=url) as client:
        headers = {"Authorization": f"Bearer {made['key']}"}
        assert client.get("/topics", headers=headers).status_code == 200


def test_a_large_response_and_a_refused_request_arrive_whole_over_https(secured: Secured, topic: str) -> None:
    context = client_context(secured.authority, secured.alice)
    with httpx.Client(verify=context, base_url=f"https://{secured.broker.http_address}") as alice:
        metrics = alice.get("/metrics")
        assert metrics.text.endswith("\n")
        assert "alpacamq_certificate_expiry_seconds" in metrics.text
        # The response goes out before the body has arrived.
        assert alice.post(f"/topics/{topic}/messages", content=b"x" * (20 << 20)).status_code == 413


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_verifies_the_broker_and_presents_a_certificate(secured: Secured) -> None:
    command = ["curl", "-sS", "--cacert", str(secured.authority.ca)]
    command += ["--cert", str(secured.alice.certificate), "--key", str(secured.alice.key)]
    done = subprocess.run(
        [*command, f"https://{secured.broker.http_address}/version"], capture_output=True, check=True
    )
    assert b'"version"' in done.stdout


def sqs_client(secured: Secured, config: Config, key: str = "unknown", secret: str = "unknown") -> Any:  # noqa: S107 - not a key
    return boto3.client(
        "sqs",
        endpoint_url=f"https://{secured.broker.sqs_address}",
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        verify=str(secured.authority.ca),
        config=config,
    )


def is_delivered(sqs: Any, topic: str) -> bool:
    """Send a message to a new queue and receive it."""
    url = sqs.create_queue(QueueName=topic)["QueueUrl"]
    assert url.startswith("https://")
    sqs.send_message(QueueUrl=url, MessageBody="tea")
    (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10)["Messages"]
    return bool(message["Body"] == "tea")


def test_sqs_clients_use_certificates_and_get_secure_urls(secured: Secured, topic: str) -> None:
    pair = (str(secured.alice.certificate), str(secured.alice.key))
    assert is_delivered(sqs_client(secured, Config(signature_version=UNSIGNED, client_cert=pair)), topic)
    with pytest.raises((ClientError, BotoCoreError), match="security token"):
        sqs_client(secured, Config(retries={"max_attempts": 1})).list_queues()


def test_sqs_clients_sign_with_a_key_with_and_without_a_certificate(secured: Secured, topic: str) -> None:
    with httpx.Client(verify=client_context(secured.authority)) as client:
        url = f"https://{secured.broker.http_address}/keys"
        made = client.post(url, json={}, auth=("alice", PASSWORD)).json()
    key = (made["id"], made["aws_secret_access_key"])
    assert is_delivered(sqs_client(secured, Config(), *key), topic)
    # The key counts, not the certificate: bob may not use the queue.
    bob = secured.authority.client("bob")
    pair = (str(bob.certificate), str(bob.key))
    assert is_delivered(sqs_client(secured, Config(client_cert=pair), *key), f"{topic}-2")


def registry_client(
    secured: Secured, pair: Pair | None = None, settings: Mapping[str, str] | None = None
) -> SchemaRegistryClient:
    conf: dict[str, Any] = {
        "url": f"https://{secured.broker.registry_address}",
        "ssl.ca.location": str(secured.authority.ca),
        "max.retries": 0,
        **(settings or {}),
    }
    if pair is not None:
        conf |= {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
    return SchemaRegistryClient(conf)


def test_registry_clients_authenticate_by_certificate_password_or_token(secured: Secured, topic: str) -> None:
    schema = Schema('"string"', "AVRO")
    clients = {
        "certificate": registry_client(secured, secured.alice),
        "password": registry_client(secured, settings={"basic.auth.user.info": f"alice:{PASSWORD}"}),
        "token": registry_client(
            secured,
            settings={
                "bearer.auth.credentials.source": "STATIC_TOKEN",
                "bearer.auth.token": tokens.token("alice"),
                "bearer.auth.logical.cluster": "any",
                "bearer.auth.identity.pool.id": "any",
            },
        ),
    }
    for name, client in clients.items():
        subject = f"{topic}-{name}"
        client.register_schema(subject, schema)
        assert client.get_latest_version(subject).schema.schema_str == schema.schema_str
    # A user without rights, and one that does not say who it is.
    bob = registry_client(secured, secured.authority.client("bob"))
    assert bob.get_subjects() == []
    for client, status in ((bob, 403), (registry_client(secured), 401)):
        with pytest.raises(SchemaRegistryError) as refused:
            client.register_schema(f"{topic}-other", schema)
        assert refused.value.http_status_code == status


@pytest.mark.parametrize("api", ["http", "sqs", "registry"])
def test_https_listeners_refuse_names_that_are_not_theirs(secured: Secured, api: str) -> None:
    address = getattr(secured.broker, f"{api}_address")
    with httpx.Client(verify=client_context(secured.authority, secured.alice)) as client:
        refused = client.get(f"https://{address}/subjects", headers={"Host": "evil.example"})
    assert refused.status_code == 421


def serial_of(address: str, authority: Authority) -> int:
    """Return the serial number of the broker's certificate."""
    host, _, port = address.rpartition(":")
    context = client_context(authority)
    with (
        socket.create_connection((host, int(port)), timeout=DEADLINE_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        certificate = encrypted.getpeercert()
        assert certificate is not None
        return int(str(certificate["serialNumber"]), 16)


def test_certificates_are_replaced_under_load_without_a_lost_message(secured: Secured, topic: str) -> None:
    settings = secured.with_certificate(secured.alice)
    failures: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": failures.append, "linger.ms": 1})
    stop = threading.Event()
    delivered: list[int] = []

    def produce() -> None:
        number = 0
        while not stop.is_set():
            producer.produce(topic, str(number).encode(), partition=0, on_delivery=note)
            number += 1
            producer.poll(0.001)
        producer.flush(DEADLINE_S)

    def note(error: KafkaError | None, message: Any) -> None:
        assert error is None
        delivered.append(int(message.value()))

    writer = threading.Thread(target=produce)
    writer.start()
    try:
        eventually(lambda: delivered, within_s=DEADLINE_S)
        # A key without its certificate is refused, and the former pair stays in use.
        before = serial_of(secured.broker.address, secured.authority)
        certificate = secured.server.certificate.read_bytes()
        renewed = secured.authority.server()
        new_certificate = secured.server.certificate.read_bytes()
        secured.server.certificate.write_bytes(certificate)
        secured.broker.errors.wait_for("certificates_not_reloaded", within_s=DEADLINE_S)
        assert serial_of(secured.broker.address, secured.authority) == before
        secured.server.certificate.write_bytes(new_certificate)
        eventually(
            lambda: serial_of(secured.broker.address, secured.authority) == renewed.serial,
            within_s=DEADLINE_S,
        )
        written = len(delivered)
        eventually(lambda: len(delivered) > written, within_s=DEADLINE_S)
    finally:
        stop.set()
        writer.join()
    consumer = Consumer({**settings, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []

    def read() -> bool:
        for message in consumer.consume(1000, 0.5):
            assert message.error() is None
            found.append(int(message.value()))
        return len(found) >= len(delivered)

    eventually(read, within_s=DEADLINE_S)
    consumer.close()
    assert found == sorted(delivered)
    assert failures == []


def test_a_broker_with_an_expired_certificate_warns_and_clients_refuse_it(tmp_path: Path, topic: str) -> None:
    authority = Authority(tmp_path)
    server = authority.server(valid_days=-1)
    config = tls_section(authority, server) + "[kafka]\ntls = true\n[http]\nenabled = false\n"
    broker = Broker(tmp_path / "data", config=config + "[sqs]\nenabled = false\n", kafka=ANY_PORT)
    try:
        broker.start()
        broker.errors.wait_for("certificate_expired", within_s=DEADLINE_S)
        settings = {
            "bootstrap.servers": broker.address,
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority.ca),
        }
        assert "certificate verify failed" in failures_of(settings, topic)[0].str()
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            serial_of(broker.address, authority)
    finally:
        broker.end()
