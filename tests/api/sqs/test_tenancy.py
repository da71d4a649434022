"""Tenants over SQS, with boto3: queues of the same names, and nothing of one tenant visible to another."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from alpacamq.api.http.messages import Request, Response
from alpacamq.api.sqs.app import SqsApi
from alpacamq.broker.access import SecuritySettings
from alpacamq.broker.broker import Broker
from alpacamq.cluster.commands import AlterTenant
from alpacamq.security.principals import user
from alpacamq.security.tenants import TenantLimits, TenantStatus
from tests.executed_lines import ExecutedLines
from tests.waiting import eventually

from .serving import Client, SqsBroker, served
from .test_rights import ARN, SAMPLES, client_of

RED, BLUE = "crimson", "azure"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsBroker]:
    security = SecuritySettings(authentication=True, acls=True, super_users=(user("admin"),))

    async def create(asked: Broker) -> None:
        for name, tenant in (("anna", RED), ("boris", BLUE)):
            await asked.access.create_tenant(tenant, description="", limits=TenantLimits())
            await asked.access.add_member(tenant, f"User:{name}", is_admin=True)

    with served(tmp_path_factory.mktemp("tenants") / "data", security=security) as broker:
        broker.ask(create)
        yield broker


@pytest.fixture(scope="module")
def anna(broker: SqsBroker) -> Client:
    return client_of(broker, "anna")


@pytest.fixture(scope="module")
def boris(broker: SqsBroker) -> Client:
    return client_of(broker, "boris")


def received(client: Client, url: str) -> list[Any]:
    found: list[Any] = client.receive_message(QueueUrl=url, WaitTimeSeconds=5).get("Messages", [])
    return found


def test_queues_of_the_same_name_are_different_queues(anna: Client, boris: Client) -> None:
    urls = [client.create_queue(QueueName="orders")["QueueUrl"] for client in (anna, boris)]
    assert urls[0] == urls[1]
    assert urls[0].endswith("/orders")
    for client, text in ((anna, "of anna"), (boris, "of boris")):
        client.send_message(QueueUrl=urls[0], MessageBody=text)
    for client, text in ((anna, "of anna"), (boris, "of boris")):
        (message,) = received(client, urls[0])
        assert message["Body"] == text
        client.delete_message(QueueUrl=urls[0], ReceiptHandle=message["ReceiptHandle"])
    anna.delete_queue(QueueUrl=urls[0])
    assert boris.get_queue_url(QueueName="orders")["QueueUrl"] == urls[0]


def test_names_arns_and_policies_have_no_tenant(anna: Client, boris: Client) -> None:
    dead = anna.create_queue(QueueName="zebra-dead")["QueueUrl"]
    attributes = ["All"]
    arn = anna.get_queue_attributes(QueueUrl=dead, AttributeNames=attributes)["Attributes"]["QueueArn"]
    assert arn == f"{ARN}zebra-dead"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    url = anna.create_queue(QueueName="zebra", Attributes={"RedrivePolicy": policy})["QueueUrl"]
    assert anna.create_queue(QueueName="zebra", Attributes={"RedrivePolicy": policy})["QueueUrl"] == url
    assert anna.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    anna.send_message(QueueUrl=url, MessageBody="bad")
    (message,) = received(anna, url)
    for _ in range(2):
        anna.change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
        )
        again = received(anna, url)
        if not again:
            break
        (message,) = again
    (letter,) = anna.receive_message(QueueUrl=dead, WaitTimeSeconds=10, AttributeNames=["All"])["Messages"]
    assert letter["Body"] == "bad"
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == f"{ARN}zebra"
    anna.change_message_visibility(QueueUrl=dead, ReceiptHandle=letter["ReceiptHandle"], VisibilityTimeout=0)
    handle = anna.start_message_move_task(SourceArn=arn)["TaskHandle"]
    assert handle
    (moved,) = anna.receive_message(QueueUrl=url, WaitTimeSeconds=10)["Messages"]
    assert moved["Body"] == "bad"
    (task,) = anna.list_message_move_tasks(SourceArn=arn)["Results"]
    assert task["SourceArn"] == arn
    # It is known to whom it belongs, and has ended.
    eventually(lambda: anna.list_message_move_tasks(SourceArn=arn)["Results"][0]["Status"] == "COMPLETED")
    with pytest.raises(ClientError, match="Only active tasks"):
        anna.cancel_message_move_task(TaskHandle=handle)
    with pytest.raises(ClientError, match="doesn't exist"):
        boris.cancel_message_move_task(TaskHandle=handle)
    assert "zebra" not in str(boris.list_queues())
    assert RED not in str(anna.list_queues())


@pytest.mark.parametrize("action", SAMPLES)
def test_a_queue_of_another_tenant_is_as_unknown_as_any(
    anna: Client, boris: Client, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked up on the same path as well."""
    executed: dict[str, ExecutedLines] = {}
    serve = SqsApi.__call__

    async def served(api: SqsApi, request: Request) -> Response:
        response = serve(api, request)
        return response if isinstance(response, Response) else await response

    def answer(name: str) -> str:
        executed[name] = lines = ExecutedLines()

        async def recorded(api: SqsApi, request: Request) -> Response:
            return await lines.awaiting(served(api, request))

        monkeypatch.setattr(SqsApi, "__call__", recorded)
        text = json.dumps(SAMPLES[action]).replace("orders", name).replace("new", name)
        try:
            return str(boris._make_api_call(action, json.loads(text)).get("QueueUrl", ""))
        except ClientError as error:
            return str(error.response["Error"]).replace(name, "it")

    for name in ("secret", "secret-dead"):
        anna.create_queue(QueueName=name)
    answer("earlier")  # what is made once is there
    found, unknown = answer("secret"), answer("absent")
    assert found.replace("secret", "it") == unknown.replace("absent", "it")
    assert executed["secret"].lines
    if action != "CreateQueue":
        assert executed["secret"].lines == executed["absent"].lines
    # For other actions the names are to be unknown again.
    for url in boris.list_queues().get("QueueUrls", []):
        if url.rpartition("/")[2] in executed:
            boris.delete_queue(QueueUrl=url)
    assert RED not in found
    assert BLUE not in found


def test_a_suspended_tenant_is_denied(broker: SqsBroker, anna: Client) -> None:
    async def set_status(asked: Broker, status: TenantStatus) -> None:
        await asked.access.alter_tenant(AlterTenant(id=RED, status=status, reason="invoice 17"))

    broker.ask(lambda asked: set_status(asked, TenantStatus.SUSPENDED))
    with pytest.raises(ClientError, match="invoice 17"):
        anna.create_queue(QueueName="late")
    with pytest.raises(ClientError, match="invoice 17"):
        anna.list_queues()
    broker.ask(lambda asked: set_status(asked, TenantStatus.ACTIVE))
    anna.create_queue(QueueName="late")


@pytest.mark.parametrize("limit", ["produce_messages_per_second", "fetch_messages_per_second"])
def test_a_tenant_sends_and_receives_as_many_messages_as_its_rates_allow(
    broker: SqsBroker, anna: Client, boris: Client, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def set_limits(asked: Broker, limits: dict[str, int | None]) -> None:
        monkeypatch.setattr(asked.quotas, "now", lambda: 1.0)
        await asked.access.alter_tenant(AlterTenant(id=RED, limits=limits))

    broker.ask(lambda asked: set_limits(asked, {limit: 8}))
    name = f"rates-{limit.replace('_', '-')}"
    for client in (boris, anna):
        url = client.create_queue(QueueName=name)["QueueUrl"]
        entries = [{"Id": str(number), "MessageBody": "x"} for number in range(3)]
        client.send_message_batch(QueueUrl=url, Entries=entries)

    def again(client: Client) -> None:
        if limit.startswith("produce"):
            client.send_message(QueueUrl=url, MessageBody="x")
            return
        client.receive_message(QueueUrl=url, WaitTimeSeconds=5, MaxNumberOfMessages=10)
        client.receive_message(QueueUrl=url)

    with pytest.raises(ClientError) as refused:
        again(anna)
    assert refused.value.response["Error"]["Code"] == "RequestThrottled"
    again(boris)
    broker.ask(lambda asked: set_limits(asked, {limit: None}))
