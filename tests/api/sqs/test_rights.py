"""The rights of every SQS action, with boto3 and API keys: denied without them, allowed with them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from alpacamq.api.sqs.app import table_of_actions
from alpacamq.api.sqs.directory import SqsSettings
from alpacamq.api.sqs.rights import RIGHTS
from alpacamq.broker.access import SecuritySettings
from alpacamq.broker.broker import Broker
from alpacamq.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from alpacamq.security.principals import user

from .serving import Client, SqsBroker, client, served

QUEUE, DEAD = "orders", "orders-dead"
ARN = "arn:aws:sqs:us-east-1:000000000000:"
ENTRY = {"Id": "1", "ReceiptHandle": "x"}
OF_QUEUE: dict[str, Any] = {"QueueUrl": f"http://h/000000000000/{QUEUE}"}
# Parameters of every action; what they lead to does not matter, unless it is AccessDenied.
SAMPLES: dict[str, dict[str, Any]] = {
    "CreateQueue": {"QueueName": "new"},
    "GetQueueUrl": {"QueueName": QUEUE},
    "ListDeadLetterSourceQueues": OF_QUEUE,
    "DeleteQueue": {"QueueUrl": "http://h/000000000000/missing"},
    "PurgeQueue": OF_QUEUE,
    "GetQueueAttributes": OF_QUEUE,
    "SetQueueAttributes": {**OF_QUEUE, "Attributes": {"VisibilityTimeout": "20"}},
    "SendMessage": {**OF_QUEUE, "MessageBody": "hello"},
    "SendMessageBatch": {**OF_QUEUE, "Entries": [{"Id": "1", "MessageBody": "hello"}]},
    "ReceiveMessage": OF_QUEUE,
    "DeleteMessage": {**OF_QUEUE, "ReceiptHandle": "x"},
    "DeleteMessageBatch": {**OF_QUEUE, "Entries": [ENTRY]},
    "ChangeMessageVisibility": {**OF_QUEUE, "ReceiptHandle": "x", "VisibilityTimeout": 1},
    "ChangeMessageVisibilityBatch": {**OF_QUEUE, "Entries": [{**ENTRY, "VisibilityTimeout": 1}]},
    "StartMessageMoveTask": {"SourceArn": f"{ARN}{DEAD}", "DestinationArn": f"{ARN}{QUEUE}"},
    "ListMessageMoveTasks": {"SourceArn": f"{ARN}{DEAD}"},
    "TagQueue": {**OF_QUEUE, "Tags": {"a": "b"}},
    "UntagQueue": {**OF_QUEUE, "TagKeys": ["a"]},
    "ListQueueTags": OF_QUEUE,
    "AddPermission": {**OF_QUEUE, "Label": "l", "AWSAccountIds": ["000000000000"], "Actions": ["*"]},
    "RemovePermission": {**OF_QUEUE, "Label": "l"},
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsBroker]:
    security = SecuritySettings(authentication=True, acls=True, super_users=(user("admin"),))
    with served(tmp_path_factory.mktemp("guarded") / "data", security=security) as broker:
        admin = client_of(broker, "admin")
        for name in (QUEUE, DEAD):
            admin.create_queue(QueueName=name)
        yield broker


def client_of(broker: SqsBroker, owner: str) -> Client:
    async def create(asked: Broker) -> tuple[str, str]:
        key, _ = await asked.access.create_api_key(owner, expires_ms=None, scopes=(), description="")
        return key.id, key.aws_secret

    key_id, secret = broker.ask(create)
    return client(broker.url, key=key_id, secret=secret)


@pytest.fixture
def bob(guarded: SqsBroker) -> Client:
    return client_of(guarded, "bob")


def grant(broker: SqsBroker, *rights: tuple[Operation, ResourceType, str]) -> None:
    rules = [
        Acl(kind, name, PatternType.LITERAL, "User:bob", "*", operation, Permission.ALLOW)
        for operation, kind, name in rights
    ]

    async def create(asked: Broker) -> None:
        assert not any((await asked.access.create_acls(rules)).failures)

    broker.ask(create)


def revoke(broker: SqsBroker) -> None:
    async def delete(asked: Broker) -> None:
        await asked.access.delete_acls([AclFilter()])

    broker.ask(delete)


def code(client: Client, action: str) -> str:
    """Return the code of an action's error; empty without one."""
    try:
        client._make_api_call(action, SAMPLES[action])
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def needed(action: str) -> list[tuple[Operation, ResourceType, str]]:
    fields = {
        "QueueUrl": "queue_url",
        "QueueName": "queue_name",
        "SourceArn": "source_arn",
        "DestinationArn": "destination_arn",
    }
    request = type(
        "Sample", (), {fields[key]: value for key, value in SAMPLES[action].items() if key in fields}
    )
    return [(right.operation, right.kind, name) for right in RIGHTS[action] for name in right.names(request)]


def test_every_action_has_a_row(guarded: SqsBroker) -> None:
    async def actions(broker: Broker) -> set[str]:
        return set(table_of_actions(broker, SqsSettings()))

    assert guarded.ask(actions) == RIGHTS.keys()
    assert {action for action, rights in RIGHTS.items() if rights} == SAMPLES.keys()


@pytest.mark.parametrize("action", SAMPLES)
def test_an_action_needs_its_rights(guarded: SqsBroker, bob: Client, action: str) -> None:
    assert "AccessDenied" in code(bob, action)
    rights = needed(action)
    for left_out in rights:
        grant(guarded, *(each for each in rights if each != left_out))
        assert "AccessDenied" in code(bob, action), left_out
        revoke(guarded)
    grant(guarded, *rights)
    assert "AccessDenied" not in code(bob, action)
    revoke(guarded)


def test_a_missing_queue_cannot_be_told_from_a_forbidden_one(bob: Client) -> None:
    for name in (QUEUE, "missing"):
        with pytest.raises(ClientError, match="AccessDenied"):
            bob.get_queue_url(QueueName=name)


def test_queues_are_listed_that_may_be_described(guarded: SqsBroker, bob: Client) -> None:
    assert bob.list_queues().get("QueueUrls", []) == []
    grant(guarded, (Operation.DESCRIBE, ResourceType.TOPIC, QUEUE))
    assert [url.rpartition("/")[2] for url in bob.list_queues()["QueueUrls"]] == [QUEUE]
    revoke(guarded)


@pytest.mark.parametrize(
    ("key", "refusal"),
    [("unknown", "InvalidClientTokenId"), (None, "SignatureDoesNotMatch")],
)
def test_unknown_keys_and_wrong_secrets_are_refused(
    guarded: SqsBroker, bob: Client, key: str | None, refusal: str
) -> None:
    known = bob._request_signer._credentials.access_key
    other = client(guarded.url, key=key or known, secret="wrong" * 8)
    with pytest.raises(ClientError, match=refusal):
        other.list_queues()


def test_a_deleted_key_is_refused_at_once(guarded: SqsBroker) -> None:
    admin = client_of(guarded, "admin")
    admin.list_queues()

    async def delete(asked: Broker) -> None:
        await asked.access.delete_api_key(admin._request_signer._credentials.access_key)

    guarded.ask(delete)
    with pytest.raises(ClientError, match="InvalidClientTokenId"):
        admin.list_queues()


def test_without_authentication_a_known_key_is_checked_and_others_pass(tmp_path: Path) -> None:
    with served(tmp_path / "data") as broker:
        alice = client_of(broker, "alice")
        alice.create_queue(QueueName="q")
        client(broker.url).list_queues()
        wrong = client(broker.url, key=alice._request_signer._credentials.access_key, secret="wrong")  # noqa: S106
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            wrong.list_queues()
