"""Queues themselves: made, listed, described, changed and deleted, through boto3."""

import gc
import json
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from alpacamq.api.sqs.directory import Queue

from .refusals import refused
from .serving import Client, SqsBroker, client, served


def attributes_of(sqs: Client, url: str, *names: str) -> dict[str, str]:
    found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[*names] or ["All"]).get(
        "Attributes", {}
    )
    return found


def test_a_new_queue_has_the_attributes_sqs_gives_one(sqs: Client, queue: str, name: str) -> None:
    found = attributes_of(sqs, queue)
    assert found.pop("CreatedTimestamp") == found.pop("LastModifiedTimestamp")
    assert found == {
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "QueueArn": f"arn:aws:sqs:us-east-1:000000000000:{name}",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "false",
        "VisibilityTimeout": "30",
    }


def test_a_fifo_queue_has_its_attributes(sqs: Client, fifo: str) -> None:
    found = attributes_of(sqs, fifo)
    assert found["FifoQueue"] == "true"
    assert found["ContentBasedDeduplication"] == "false"
    assert (found["DeduplicationScope"], found["FifoThroughputLimit"]) == ("queue", "perQueue")


def test_set_attributes_are_returned(sqs: Client, name: str) -> None:
    given = {
        "DelaySeconds": "5",
        "MaximumMessageSize": "2048",
        "MessageRetentionPeriod": "600",
        "ReceiveMessageWaitTimeSeconds": "3",
        "VisibilityTimeout": "0",
        "KmsMasterKeyId": "alias/key",
        "KmsDataKeyReusePeriodSeconds": "60",
        "Policy": json.dumps({"Version": "2012-10-17", "Statement": []}),
    }
    url = sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"]
    assert given.items() <= attributes_of(sqs, url).items()
    changed = {"DelaySeconds": "0", "VisibilityTimeout": "43200", "KmsMasterKeyId": "", "Policy": ""}
    sqs.set_queue_attributes(QueueUrl=url, Attributes=changed)
    found = attributes_of(sqs, url)
    assert (found["DelaySeconds"], found["VisibilityTimeout"]) == ("0", "43200")
    assert found["MessageRetentionPeriod"] == "600"
    assert not {"KmsMasterKeyId", "Policy"} & found.keys()


def test_only_requested_attributes_are_returned(sqs: Client, queue: str) -> None:
    assert attributes_of(sqs, queue, "DelaySeconds", "Policy") == {"DelaySeconds": "0"}
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=queue)
    with refused("InvalidAttributeName", "Colour"):
        attributes_of(sqs, queue, "Colour")


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("DelaySeconds", "-1"),
        ("DelaySeconds", "901"),
        ("DelaySeconds", "1.5"),
        ("DelaySeconds", ""),
        ("MaximumMessageSize", "1023"),
        ("MaximumMessageSize", "1048577"),
        ("MessageRetentionPeriod", "59"),
        ("MessageRetentionPeriod", "1209601"),
        ("ReceiveMessageWaitTimeSeconds", "21"),
        ("VisibilityTimeout", "43201"),
        ("VisibilityTimeout", "٣"),
        ("VisibilityTimeout", "9" * 5000),
        ("VisibilityTimeout", "0" * 20 + "43201"),
        ("VisibilityTimeout", "0" * 5000),
        ("KmsDataKeyReusePeriodSeconds", "59"),
        ("SqsManagedSseEnabled", "yes"),
        ("KmsMasterKeyId", "\x00"),
        ("Policy", "[]"),
        ("Policy", '{"a":'),
        ("RedrivePolicy", "7"),
    ],
)
def test_values_out_of_bounds_are_refused(
    either: Client, queue: str, name: str, attribute: str, value: str
) -> None:
    with refused("InvalidAttributeValue", attribute):
        either.set_queue_attributes(QueueUrl=queue, Attributes={attribute: value})
    with refused("InvalidAttributeValue", attribute):
        either.create_queue(QueueName=f"{name[-70:]}-new", Attributes={attribute: value})


@pytest.mark.parametrize(
    ("attributes", "code", "text"),
    [
        ({"Colour": "red"}, "InvalidAttributeName", "Unknown Attribute Colour."),
        ({"FifoQueue": "false"}, "InvalidAttributeName", "Unknown Attribute FifoQueue."),
        ({"ContentBasedDeduplication": "true"}, "InvalidAttributeName", "Unknown Attribute"),
        ({"DeduplicationScope": "queue"}, "InvalidAttributeName", "only when FifoQueue"),
        ({"FifoThroughputLimit": "perQueue"}, "InvalidAttributeName", "only when FifoQueue"),
        ({"KmsMasterKeyId": "k", "SqsManagedSseEnabled": "true"}, "InvalidAttributeName", "one type"),
        ({"RedriveAllowPolicy": '{"redrivePermission": "some"}'}, "InvalidParameterValue", "allowAll"),
        (
            {"RedriveAllowPolicy": '{"redrivePermission": "byQueue"}'},
            "InvalidParameterValue",
            "sourceQueueArns",
        ),
    ],
)
def test_attributes_that_cannot_be_are_refused(
    sqs: Client, queue: str, attributes: dict[str, str], code: str, text: str
) -> None:
    with refused(code, text):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes=attributes)


def test_invalid_stored_attributes_are_ignored(either: Client, server: SqsBroker, queue: str) -> None:
    name = queue.rpartition("/")[2]
    for text in (
        "junk",
        "[]",
        '{"attributes": {"ReceiveMessageWaitTimeSeconds": "soon", "Policy": "{", "x": "y"}}',
    ):
        stored = {"sqs.attributes": text}
        server.ask(lambda broker: broker.topics.configure(name, lambda topic: {**topic.overrides, **stored}))  # noqa: B023
        assert attributes_of(either, queue)["ReceiveMessageWaitTimeSeconds"] == "0"
        either.receive_message(QueueUrl=queue)
        with refused("InvalidParameterValue", "can't find label"):
            either.remove_permission(QueueUrl=queue, Label="l")


def test_the_type_of_a_queue_cannot_be_changed(sqs: Client, fifo: str) -> None:
    with refused("InvalidAttributeValue", "Modifying queue type"):
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": "false"})
    with refused("InvalidAttributeValue", "DeduplicationScope"):
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoThroughputLimit": "perMessageGroupId"})


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("", {}),
        ("a" * 81, {}),
        ("dotted.name", {}),
        ("sp ace", {}),
        ("q.fifo", {}),
        ("q", {"FifoQueue": "true"}),
        (".fifo", {"FifoQueue": "true"}),
        (f"{'a' * 76}.fifo", {"FifoQueue": "true"}),
    ],
)
def test_names_that_queues_cannot_have_are_refused(
    sqs: Client, name: str, attributes: dict[str, str]
) -> None:
    with refused("InvalidParameterValue", "80"):
        sqs.create_queue(QueueName=name, Attributes=attributes)


def test_making_a_queue_again_is_finding_it_unless_it_would_be_another(sqs: Client, name: str) -> None:
    given = {"DelaySeconds": "5", "Policy": '{"Version": "2012-10-17"}'}
    url = sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"]
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url
    assert sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"] == url
    same = {"Policy": '{ "Version" : "2012-10-17" }'}
    assert sqs.create_queue(QueueName=name, Attributes=same)["QueueUrl"] == url
    with refused("QueueAlreadyExists", "DelaySeconds"):
        sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "6"})


def test_queues_are_listed_by_prefix_in_pages(sqs: Client, name: str) -> None:
    stem = name[-60:]
    urls = [sqs.create_queue(QueueName=f"{stem}-{index}")["QueueUrl"] for index in range(5)]
    assert sqs.list_queues(QueueNamePrefix=f"{stem}-")["QueueUrls"] == urls
    pages = sqs.get_paginator("list_queues").paginate(
        QueueNamePrefix=f"{stem}-", PaginationConfig={"PageSize": 2}
    )
    assert [page["QueueUrls"] for page in pages] == [urls[:2], urls[2:4], urls[4:]]
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=f"{stem}-none")
    with refused("InvalidParameterValue", "MaxResults"):
        sqs.list_queues(MaxResults=1001)
    with refused("InvalidParameterValue", "token"):
        sqs.list_queues(MaxResults=1, NextToken="=junk=")


def test_a_recreated_queue_is_empty(sqs: Client, queue: str, name: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    sqs.delete_queue(QueueUrl=queue)
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        sqs.get_queue_url(QueueName=name)
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        sqs.delete_queue(QueueUrl=queue)
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == queue
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)


def test_of_queues_that_come_and_go_nothing_is_kept(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        sqs = client(broker.url)
        for index in range(60):
            url = sqs.create_queue(QueueName=f"short-lived-{index}")["QueueUrl"]
            sqs.delete_queue(QueueUrl=url)
        stored = [each for each in gc.get_objects() if isinstance(each, Queue)]
    assert sum(queue.name.startswith("short-lived") for queue in stored) < 30


def test_urls_lead_where_the_client_found_us(
    either: Client, server: SqsBroker, queue: str, name: str
) -> None:
    answer = httpx.post(
        server.url,
        json={"QueueName": name},
        headers={"X-Amz-Target": "AmazonSQS.GetQueueUrl", "Host": "queues.example:99"},
    )
    assert answer.json() == {"QueueUrl": f"http://queues.example:99/000000000000/{name}"}
    answer = httpx.post(
        server.url,
        json={"QueueName": name},
        headers={
            "X-Amz-Target": "AmazonSQS.GetQueueUrl",
            "Host": "queues.example",
            "X-Forwarded-Proto": "https",
        },
    )
    assert answer.json() == {"QueueUrl": f"https://queues.example/000000000000/{name}"}


def test_tags_are_kept(sqs: Client, name: str) -> None:
    url = sqs.create_queue(QueueName=name, tags={"a": "1", "b": "2"})["QueueUrl"]
    sqs.tag_queue(QueueUrl=url, Tags={"b": "3", "c": ""})
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "1", "b": "3", "c": ""}
    sqs.untag_queue(QueueUrl=url, TagKeys=["a", "c", "missing"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"b": "3"}
    sqs.untag_queue(QueueUrl=url, TagKeys=["b"])
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)
    with refused("InvalidParameterValue", "128"):
        sqs.tag_queue(QueueUrl=url, Tags={"k" * 129: ""})
    with refused("InvalidParameterValue", "50"):
        sqs.tag_queue(QueueUrl=url, Tags={f"k{index}": "" for index in range(51)})


def test_concurrent_tagging_loses_no_tags(server: SqsBroker, queue: str) -> None:
    def tag(index: int) -> None:
        client(server.url).tag_queue(QueueUrl=queue, Tags={f"k{index}": ""})

    with ThreadPoolExecutor(8) as pool:
        deque(pool.map(tag, range(16)), 0)
    assert len(client(server.url).list_queue_tags(QueueUrl=queue)["Tags"]) == 16


def test_concurrent_permissions_are_all_kept(server: SqsBroker, queue: str) -> None:
    def add(index: int) -> None:
        client(server.url).add_permission(
            QueueUrl=queue, Label=f"l{index}", AWSAccountIds=["111111111111"], Actions=["SendMessage"]
        )

    with ThreadPoolExecutor(8) as pool:
        deque(pool.map(add, range(16)), 0)
    policy = json.loads(attributes_of(client(server.url), queue, "Policy")["Policy"])
    assert len(policy["Statement"]) == 16


def test_permissions_are_statements_of_the_policy(sqs: Client, queue: str, name: str) -> None:
    accounts = ["111111111111", "222222222222"]
    sqs.add_permission(QueueUrl=queue, Label="ours", AWSAccountIds=accounts, Actions=["SendMessage"])
    arn = f"arn:aws:sqs:us-east-1:000000000000:{name}"
    policy = json.loads(attributes_of(sqs, queue, "Policy")["Policy"])
    assert policy["Statement"] == [
        {
            "Sid": "ours",
            "Effect": "Allow",
            "Principal": {"AWS": [f"arn:aws:iam::{account}:root" for account in accounts]},
            "Action": "SQS:SendMessage",
            "Resource": arn,
        }
    ]
    with refused("InvalidParameterValue", "Already exists"):
        sqs.add_permission(QueueUrl=queue, Label="ours", AWSAccountIds=accounts, Actions=["SendMessage"])
    with refused("InvalidParameterValue", "can't find label"):
        sqs.remove_permission(QueueUrl=queue, Label="theirs")
    sqs.remove_permission(QueueUrl=queue, Label="ours")
    assert attributes_of(sqs, queue, "Policy") == {}


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"Label": "a b"}, "InvalidParameterValue", "Label"),
        ({"AWSAccountIds": ["me"]}, "InvalidParameterValue", "PrincipalId"),
        ({"Actions": ["CreateQueue"]}, "InvalidParameterValue", "queue owner"),
        ({"Actions": ["SendMessage"] * 8}, "OverLimit", "8 Actions"),
    ],
)
def test_permissions_that_cannot_be_are_refused(
    sqs: Client, queue: str, fields: dict[str, Any], code: str, text: str
) -> None:
    good = {"Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["*"]}
    with refused(code, text, status=403 if code == "OverLimit" else 400):
        sqs.add_permission(QueueUrl=queue, **(good | fields))


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ('{"maxReceiveCount": 3}', "deadLetterTargetArn"),
        ('{"deadLetterTargetArn": "ARN", "maxReceiveCount": 0}', "from 1 to 1000"),
        ('{"deadLetterTargetArn": "ARN", "maxReceiveCount": 1001}', "from 1 to 1000"),
        ('{"deadLetterTargetArn": "ARN", "maxReceiveCount": "many"}', "Not a redrive policy"),
        ('{"deadLetterTargetArn": "ARN-not", "maxReceiveCount": 3}', "does not exist"),
        ('{"deadLetterTargetArn": "arn:aws:sns:a:b:c", "maxReceiveCount": 3}', "ARN"),
    ],
)
def test_redrive_policies_that_cannot_be_are_refused(sqs: Client, queue: str, policy: str, text: str) -> None:
    arn = attributes_of(sqs, queue, "QueueArn")["QueueArn"]
    with refused("InvalidParameterValue", text):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": policy.replace("ARN", arn)})


def test_a_queue_may_be_its_own_dead_letter_queue(sqs: Client, queue: str) -> None:
    arn = attributes_of(sqs, queue, "QueueArn")["QueueArn"]
    policy = {"deadLetterTargetArn": arn, "maxReceiveCount": 1}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": json.dumps(policy)})
    assert json.loads(attributes_of(sqs, queue, "RedrivePolicy")["RedrivePolicy"]) == policy
    assert sqs.list_dead_letter_source_queues(QueueUrl=queue)["queueUrls"] == [queue]
    sqs.send_message(QueueUrl=queue, MessageBody="stays")
    for _ in range(3):
        answer = sqs.receive_message(QueueUrl=queue, VisibilityTimeout=0, WaitTimeSeconds=5)
        assert [message["Body"] for message in answer["Messages"]] == ["stays"]


@pytest.mark.parametrize("true", ["True", "TRUE", "true"])
def test_booleans_are_read_in_any_case(sqs: Client, name: str, true: str) -> None:
    given = {"FifoQueue": true, "ContentBasedDeduplication": true, "SqsManagedSseEnabled": true}
    url = sqs.create_queue(QueueName=f"{name}.fifo", Attributes=given)["QueueUrl"]
    assert sqs.create_queue(QueueName=f"{name}.fifo", Attributes=given)["QueueUrl"] == url
    assert set(attributes_of(sqs, url, *given).values()) == {"true"}
    changed = {"FifoQueue": true, "ContentBasedDeduplication": "False"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes=changed)
    assert attributes_of(sqs, url, "ContentBasedDeduplication") == {"ContentBasedDeduplication": "false"}


@pytest.mark.parametrize("attribute", ["FifoQueue", "ContentBasedDeduplication", "SqsManagedSseEnabled"])
def test_an_invalid_boolean_is_refused_by_name(sqs: Client, queue: str, name: str, attribute: str) -> None:
    with refused("InvalidAttributeValue", f"parameter {attribute}."):
        sqs.create_queue(QueueName=f"{name[-60:]}-other", Attributes={attribute: "yes"})
    with refused("InvalidAttributeValue", f"parameter {attribute}."):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={attribute: "1"})


def test_the_key_reuse_period_is_shown_when_it_was_set(sqs: Client, name: str) -> None:
    period, key = "KmsDataKeyReusePeriodSeconds", "KmsMasterKeyId"
    url = sqs.create_queue(QueueName=name, Attributes={period: "300"})["QueueUrl"]
    assert sqs.create_queue(QueueName=name, Attributes={period: "300"})["QueueUrl"] == url
    assert attributes_of(sqs, url, period) == {period: "300"}
    other = sqs.create_queue(QueueName=f"{name[-70:]}-other")["QueueUrl"]
    assert period not in attributes_of(sqs, other, "All")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={key: "k", period: "300"})
    assert attributes_of(sqs, url, period, key) == {period: "300", key: "k"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={key: "", period: "600"})
    assert attributes_of(sqs, url, period, key) == {period: "600"}


def test_a_redrive_policy_can_be_set_read_and_taken_away(sqs: Client, queue: str, name: str) -> None:
    dead = sqs.create_queue(QueueName=f"{name[-70:]}-dead")["QueueUrl"]
    arn = attributes_of(sqs, dead, "QueueArn")["QueueArn"]
    given = {"deadLetterTargetArn": arn, "maxReceiveCount": "3"}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": json.dumps(given)})
    read = json.loads(attributes_of(sqs, queue, "RedrivePolicy")["RedrivePolicy"])
    assert read == {"deadLetterTargetArn": arn, "maxReceiveCount": 3}
    assert (
        sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": json.dumps(given)})["QueueUrl"] == queue
    )
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [queue]
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": ""})
    assert attributes_of(sqs, queue, "RedrivePolicy") == {}
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead).get("queueUrls", []) == []


def test_a_dead_letter_queue_decides_whose_it_is(either: Client, queue: str, fifo: str, name: str) -> None:
    dead = either.create_queue(QueueName=f"{name[-70:]}-dead")["QueueUrl"]
    arn = attributes_of(either, dead, "QueueArn")["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    own_arn = attributes_of(either, queue, "QueueArn")["QueueArn"]
    with refused("InvalidParameterValue", "same type"):
        either.set_queue_attributes(QueueUrl=fifo, Attributes={"RedrivePolicy": policy})
    for allowed, is_allowed in (
        ({"redrivePermission": "denyAll"}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [f"{own_arn}-not"]}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [own_arn]}, True),
        ({"redrivePermission": "allowAll"}, True),
    ):
        either.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": json.dumps(allowed)})
        if is_allowed:
            either.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": policy})
        else:
            with refused("InvalidParameterValue", "RedriveAllowPolicy"):
                either.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": policy})


def test_a_queue_follows_defaults_that_are_changed_at_run_time(
    server: SqsBroker, either: Client, name: str
) -> None:
    server.ask(lambda broker: broker.topics.create(name))  # CreateQueue would set every attribute
    url = either.get_queue_url(QueueName=name)["QueueUrl"]
    before = attributes_of(either, url, "DelaySeconds")

    def configure(settings: dict[str, str]) -> None:
        server.ask(lambda broker: broker.topics.configure_broker("1", lambda _: settings))

    configure({"queue.delay.ms": "7000"})
    try:
        after = attributes_of(either, url, "DelaySeconds")
    finally:
        configure({})
    assert (before, after) == ({"DelaySeconds": "0"}, {"DelaySeconds": "7"})
    assert attributes_of(either, url, "DelaySeconds") == before
