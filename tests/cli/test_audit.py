"""`alpacactl audit`, and what a broker records of each API."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from alpacamq.cli.reference import all_commands
from tests.brokers import Broker
from tests.waiting import eventually

from .command import As, InProcess

EXAMPLES = [example for each in all_commands() if each.words[0] == "audit" for example in each.examples]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("audited")
    users = directory / "users"
    users.write_text("admin:of-admin\nalice:of-alice\n")
    users.chmod(0o600)
    lines = (
        "[security]",
        "authentication = true",
        "acls = true",
        "super_users = ['User:admin']",
        f"users_file = '{users}'",
        "[audit]",
        "enabled = true",
        "reads_and_writes = true",
    )
    broker = Broker(directory / "data", config="\n".join(lines))
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def admin(audited: Broker, tmp_path: Path) -> As:
    return As(audited, tmp_path, "admin", "of-admin")


@pytest.fixture
def alice(audited: Broker, tmp_path: Path) -> As:
    return As(audited, tmp_path, "alice", "of-alice")


def events(admin: As, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in admin.ok("audit", *options, "-o", "json").splitlines()]


def found(admin: As, options: tuple[str, ...], **fields: object) -> dict[str, Any]:
    """Return an event with these fields, once it is in the log."""

    def look() -> dict[str, Any] | None:
        if "__audit" not in admin.ok("topics", "list", "--internal"):
            return None  # it is created with the first event
        return next((each for each in events(admin, *options) if fields.items() <= each.items()), None)

    event = eventually(look)
    assert event is not None
    return event


def test_a_denied_kafka_request_is_listed(admin: As, alice: As, topic: str) -> None:
    admin.ok("topics", "create", topic)
    assert alice("produce", topic, stdin=b"tea\n").code != 0
    event = found(admin, ("--denied",), resource=topic)
    assert (event["principal"], event["allowed"], event["api"]) == ("User:alice", False, "kafka")
    assert event["address"] == "127.0.0.1"
    table = admin.ok("audit", "--denied", "--resource", topic)
    assert "DENIED" in table
    assert f"topic {topic}" in table
    assert "User:admin" not in table
    created = found(admin, ("--principal", "admin", "--resource", topic), operation="CREATE")
    assert (created["allowed"], created["request"]) == (True, "CreateTopics")


def test_logins_are_listed(admin: As, audited: Broker, tmp_path: Path) -> None:
    wrong = As(audited, tmp_path, "alice", "wrong")
    assert wrong("topics", "list").code != 0
    event = found(admin, ("--kind", "authentication", "--denied"), principal="User:alice")
    assert "wrong user name or password" in event["detail"]
    event = found(admin, ("--kind", "authentication", "--principal", "admin"), allowed=True)
    assert event["detail"] == "SCRAM-SHA-256"


def test_http_and_sqs_requests_are_listed(admin: As, audited: Broker, topic: str) -> None:
    url = f"http://{audited.http_address}"
    headers = {"X-Request-ID": "r-1", "User-Agent": "shop/1"}
    assert httpx.get(f"{url}/topics/{topic}", auth=("alice", "of-alice"), headers=headers).status_code == 403
    event = found(admin, ("--denied",), resource=topic, api="http")
    assert (event["request"], event["request_id"], event["client_id"]) == (
        "GET /topics/{topic}",
        "r-1",
        "shop/1",
    )
    key = httpx.post(f"{url}/keys", json={"owner": "alice"}, auth=("admin", "of-admin")).json()
    event = found(admin, ("--kind", "change"), resource=key["id"])
    assert (event["principal"], event["operation"], event["resource_type"]) == ("User:admin", "CREATE", "key")
    sqs = boto3.client(
        "sqs",
        endpoint_url=f"http://{audited.sqs_address}",
        region_name="us-east-1",
        aws_access_key_id=key["id"],
        aws_secret_access_key=key["aws_secret_access_key"],
        config=Config(retries={"max_attempts": 1}),
    )
    with pytest.raises(ClientError):
        sqs.create_queue(QueueName=topic)
    event = found(admin, ("--denied",), resource=topic, api="sqs")
    assert (event["request"], event["key"], event["principal"]) == ("CreateQueue", key["id"], "User:alice")
    assert httpx.get(f"{url}/topics").status_code == 401
    missing = "no credentials: authentication is required"
    found(admin, ("--kind", "authentication", "--denied"), detail=missing)


@pytest.mark.parametrize("example", [each for each in EXAMPLES if "--follow" not in each])
def test_an_example_works_as_printed(admin: As, example: str) -> None:
    admin.ok(*shlex.split(example)[1:])


def test_new_events_are_followed(admin: As) -> None:
    line = admin.ok("audit", "--follow", "--since", "earliest", "--principal", "admin", "--max", "1")
    assert "User:admin" in line


def test_alice_may_not_read_the_log(alice: As) -> None:
    refused = alice("audit")
    assert refused.code != 0
    assert "__audit" in refused.errors


def test_lists_do_not_count_as_denied(admin: As, alice: As, topic: str) -> None:
    admin.ok("topics", "create", topic)
    assert topic not in alice.ok("topics", "list")
    found(admin, (), resource=topic, operation="CREATE")
    denied = events(admin, "--denied", "--principal", "alice")
    assert not [each for each in denied if each.get("resource") == topic]


def test_metrics_count_events(audited: Broker) -> None:
    text = httpx.get(f"http://{audited.http_address}/metrics", auth=("admin", "of-admin")).text
    assert "alpacamq_audit_dropped_events_total 0" in text
    assert "alpacamq_audit_events_total" in text


def test_without_an_audit_log_the_command_says_what_to_set(ctl: InProcess) -> None:
    refused = ctl("audit")
    assert refused.code != 0
    assert "audit.enabled = true" in refused.errors
