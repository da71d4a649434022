"""Secrets of the configuration and of clients do not appear in anything that a broker prints or answers."""

import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from io import StringIO
from pathlib import Path

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from alpacamq.telemetry import Format, Level
from alpacamq.telemetry.logs import configure, get_logger
from tests.brokers import Broker
from tests.ports import lasting_address
from tests.waiting import eventually

PASSWORD, WRONG = "planted-password-of-admin", "planted-wrong-password"
SQS_SECRET, OTLP_SECRET = "planted-sqs-secret", "planted-otlp-secret"
CLUSTER_SECRET = "planted-cluster-secret-of-all-nodes"  # noqa: S105 - planted
NEW_PASSWORD, CHANGED_PASSWORD = "planted-password-of-a-user", "planted-password-changed"
PLANTED = (NEW_PASSWORD, CHANGED_PASSWORD, PASSWORD, WRONG, SQS_SECRET, OTLP_SECRET, CLUSTER_SECRET)
ADMIN = ("admin", PASSWORD)
PATIENCE_S = 20
EXPORT_FAILED = "spans_not_exported"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("secrets")
    users = written(directory / "users", f"admin:{PASSWORD}\n")
    secret = written(directory / "secret", CLUSTER_SECRET)
    node = lasting_address()
    config = f"""
[cluster]
nodes = ["1@{node}"]
listen = "{node}"
secret_file = "{secret}"

[security]
authentication = true
acls = true
super_users = ["User:admin", "User:AKIAPLANTED"]
users_file = "{users}"

[audit]
enabled = true
file = "{directory / "audit.log"}"
reads_and_writes = true

[sqs]
access_key_id = "AKIAPLANTED"

[tracing]
otlp_endpoint = "http://127.0.0.1:9"

[logging]
level = "debug"
"""
    environment = {
        "ALPACAMQ_SQS_SECRET_ACCESS_KEY": SQS_SECRET,
        "ALPACAMQ_TRACING_OTLP_HEADERS": f"x-key={OTLP_SECRET}",
    }
    broker = Broker(directory / "data", config=config, environment=environment)
    try:
        yield broker.start()
    finally:
        broker.end()


def over_http(broker: Broker) -> tuple[list[str], list[str]]:
    """Use the HTTP API with right and wrong secrets; return what it answered, and the secrets of new keys."""
    found, secrets = [], []
    with httpx.Client(base_url=f"http://{broker.http_address}") as http:

        def ask(method: str, path: str, **options: object) -> httpx.Response:
            answer = http.request(method, path, **options)  # type: ignore[arg-type]
            found.append(f"{answer.status_code} {answer.headers} {answer.text}")
            return answer

        assert ask("POST", "/topics", json={"name": "orders"}, auth=ADMIN).status_code == 201
        traced = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
        ask("POST", "/topics/orders/messages", json={"value": "tea", "headers": traced}, auth=ADMIN)
        for path in (
            "/metrics", "/cluster", "/cluster/status", "/stats", "/healthz", "/version", "/keys", "/session",
            "/traces", "/openapi.json", "/topics", "/topics/__audit/messages",
        ):  # fmt: skip
            ask("GET", path, auth=ADMIN)
        assert ask("GET", "/topics", auth=("admin", WRONG)).status_code == 401
        broken = b64encode(WRONG.encode()).decode()
        for header in (f"Basic {WRONG}", f"Basic {broken}", f"Bearer {WRONG}", f"Digest {WRONG}"):
            assert ask("GET", "/topics", headers={"Authorization": header}).status_code == 401
        assert ask("POST", "/session", json={"user": "admin", "password": WRONG}).status_code == 401
        assert ask("POST", "/session", json={"user": "admin", "password": [WRONG]}).status_code == 400
        assert ask("POST", "/session", json={"user": "admin", "password": PASSWORD}).status_code == 200
        http.cookies.clear()
        named = {"name": "planted", "password": NEW_PASSWORD}
        for body in ({**named, "password": [NEW_PASSWORD]}, {**named, "iterations": 1}, named, named):
            ask("POST", "/users", json=body, auth=ADMIN)
        ask("PUT", "/users/planted/password", json={"password": CHANGED_PASSWORD}, auth=ADMIN)
        assert ask("GET", "/session", auth=("planted", CHANGED_PASSWORD)).status_code == 200
        ask("GET", "/users", auth=ADMIN)
        # The answer to the client that creates a key has its secret; nothing else has.
        key = http.post("/keys", json={}, auth=ADMIN).raise_for_status().json()
        secrets += [key["key"], key["key"].split("_", 2)[2], key["aws_secret_access_key"]]
        for name in ("key", "api_key", "access_token", "authorization"):
            assert ask("GET", f"/topics?{name}={key['key']}").status_code in (400, 401)
        ask("GET", "/topics", headers={"Authorization": f"Bearer {key['key']}"})
        ask("GET", "/keys", auth=ADMIN)
    return found, secrets


def over_kafka(broker: Broker) -> list[str]:
    login = {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": PASSWORD,
    }
    admin = AdminClient(login)
    resources = [ConfigResource(ResourceType.BROKER, "1"), ConfigResource(ResourceType.TOPIC, "orders")]
    described = [future.result(PATIENCE_S) for future in admin.describe_configs(resources).values()]
    found = [f"{entry.name}={entry.value}" for entries in described for entry in entries.values()]
    found.append(str(admin.describe_cluster().result(PATIENCE_S).nodes))
    consumer = Consumer({**login, "sasl.password": WRONG, "group.id": "g", "logger": _quiet()})
    with suppress(KafkaException):
        consumer.list_topics(timeout=1)
    consumer.close()
    return found


def _quiet() -> object:
    import logging

    logger = logging.getLogger("quiet")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def over_sqs(broker: Broker) -> list[str]:
    found = []
    for secret in (SQS_SECRET, WRONG):
        sqs = boto3.client(
            "sqs",
            endpoint_url=f"http://{broker.sqs_address}",
            region_name="us-east-1",
            aws_access_key_id="AKIAPLANTED",
            aws_secret_access_key=secret,
            config=Config(retries={"max_attempts": 1}),
        )
        try:
            found.append(str(sqs.list_queues()))
        except ClientError as error:
            found.append(str(error.response))
    return found


def test_planted_secrets_are_found_nowhere(broker: Broker) -> None:
    answers, of_keys = over_http(broker)
    answers += over_kafka(broker) + over_sqs(broker)
    audit = broker.data_dir.parent / "audit.log"
    eventually(lambda: "wrong user name or password" in audit.read_text() if audit.exists() else False)
    eventually(lambda: "authentication_failed" in broker.errors.text())
    eventually(lambda: EXPORT_FAILED in broker.errors.text())
    broker.stop()
    places = {
        "answers": "\n".join(answers),
        "standard output": broker.output.text(),
        "log": broker.errors.text(),
        "audit log": audit.read_text(),
    }
    shown = [
        (place, secret)
        for place, text in places.items()
        for secret in (*PLANTED, *of_keys)
        if secret in text or sha256(secret.encode()).hexdigest() in text
    ]
    assert shown == []
    # A test that looks at nothing finds nothing.
    assert "retention.ms" in places["answers"]
    assert "alpacamq_" in places["answers"]


@pytest.mark.parametrize(
    ("variable", "named"),
    [
        ("ALPACAMQ_SQS_SECRET_ACCESS_KEY", "sqs.secret_access_key"),
        ("ALPACAMQ_TRACING_OTLP_HEADERS", "tracing.otlp_headers"),
        ("ALPACAMQ_SQS_SECRET", "ALPACAMQ_SQS_SECRET"),
    ],
)
def test_a_refused_configuration_does_not_show_secrets(variable: str, named: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "alpacamq.node.main", "serve", "--data-dir", str(tmp_path)],
        env={variable: OTLP_SECRET},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert OTLP_SECRET not in ran.stdout + ran.stderr
    assert named in ran.stderr


@pytest.mark.parametrize("format", [Format.TEXT, Format.JSON])
def test_tracebacks_in_the_log_do_not_show_variables(format: Format) -> None:  # noqa: A002
    stream = StringIO()
    configure(Level.DEBUG, format, stream)
    try:
        _fail(PASSWORD)
    except ZeroDivisionError:
        get_logger("test").exception("failed")
    assert "ZeroDivisionError" in stream.getvalue()
    assert PASSWORD not in stream.getvalue()


def _fail(secret: str) -> float:
    return len(secret) / 0
