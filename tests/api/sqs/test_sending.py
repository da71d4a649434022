"""SendMessage and SendMessageBatch, through boto3."""

from hashlib import md5
from typing import Any

import pytest

from .refusals import refused
from .serving import Client

MIB = 1 << 20


def entries(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"Id": f"e{index}", "MessageBody": f"body {index}"} | fields for index in range(count)]


def test_digests_match_the_sent_message(sqs: Client, queue: str) -> None:
    answer = sqs.send_message(
        QueueUrl=queue,
        MessageBody="grüße\r\n",
        MessageAttributes={"MyAttribute": {"DataType": "String", "StringValue": "foobar"}},
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
    )
    assert answer["MD5OfMessageBody"] == md5("grüße\r\n".encode(), usedforsecurity=False).hexdigest()
    assert answer["MD5OfMessageAttributes"] == "adb59cd4678ea5a855436b949cd07ab6"
    assert len(answer["MD5OfMessageSystemAttributes"]) == 32
    assert "SequenceNumber" not in answer


def test_every_message_of_a_batch_has_an_id_of_its_own(sqs: Client, queue: str) -> None:
    answer = sqs.send_message_batch(QueueUrl=queue, Entries=entries(10))
    assert [sent["Id"] for sent in answer["Successful"]] == [f"e{index}" for index in range(10)]
    assert len({sent["MessageId"] for sent in answer["Successful"]}) == 10
    assert "Failed" not in answer


def test_one_bad_entry_does_not_keep_the_others_out(sqs: Client, queue: str) -> None:
    bad = {"Id": "bad", "MessageBody": "x", "DelaySeconds": 901}
    answer = sqs.send_message_batch(QueueUrl=queue, Entries=[*entries(2), bad])
    assert [sent["Id"] for sent in answer["Successful"]] == ["e0", "e1"]
    (failed,) = answer["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("bad", "InvalidParameterValue", True)
    assert "901" in failed["Message"]


@pytest.mark.parametrize(
    ("batch", "code", "text"),
    [
        pytest.param(entries(11), "TooManyEntriesInBatchRequest", "You have sent 11", id="eleven"),
        pytest.param([*entries(1), *entries(1)], "BatchEntryIdsNotDistinct", "e0", id="twice the same id"),
        pytest.param(entries(1, Id="a b"), "InvalidBatchEntryId", "80 letters", id="a space in an id"),
        pytest.param(entries(1, Id="a" * 81), "InvalidBatchEntryId", "80 letters", id="a long id"),
        pytest.param(
            entries(2, MessageBody="x" * (MIB // 2 + 1)),
            "BatchRequestTooLong",
            "1048578",
            id="too much together",
        ),
    ],
)
def test_batches_have_limits(
    sqs: Client, queue: str, batch: list[dict[str, Any]], code: str, text: str
) -> None:
    with refused(f"AWS.SimpleQueueService.{code}", text):
        sqs.send_message_batch(QueueUrl=queue, Entries=batch)


def test_an_empty_batch_is_refused(either: Client, queue: str) -> None:
    with refused("AWS.SimpleQueueService.EmptyBatchRequest"):
        either.send_message_batch(QueueUrl=queue, Entries=[])


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        pytest.param({"MessageBody": ""}, "MissingParameter", "MessageBody", id="no body"),
        pytest.param({"MessageBody": "\x00"}, "InvalidMessageContents", "#x9", id="a character XML lacks"),
        pytest.param({"MessageBody": "\ufffe"}, "InvalidMessageContents", "#x9", id="a noncharacter"),
        pytest.param(
            {"MessageAttributes": {"a": {"DataType": "String", "StringValue": "\x08"}}},
            "InvalidParameterValue",
            "Invalid characters found in the value of message attribute 'a'",
            id="a control character in an attribute",
        ),
        pytest.param(
            {"MessageAttributes": {"a\x08": {"DataType": "String", "StringValue": "v"}}},
            "InvalidParameterValue",
            "name",
            id="a control character in the name of an attribute",
        ),
        pytest.param(
            {"MessageAttributes": {"a": {"DataType": "String.\x08", "StringValue": "v"}}},
            "InvalidParameterValue",
            "type",
            id="a control character in the type of an attribute",
        ),
        pytest.param(
            {"MessageBody": "x" * (MIB + 1)}, "InvalidParameterValue", "1048576 bytes", id="too long"
        ),
        pytest.param(
            {"DelaySeconds": -1}, "InvalidParameterValue", "DelaySeconds", id="a delay into the past"
        ),
        pytest.param({"DelaySeconds": 901}, "InvalidParameterValue", "900", id="a delay too long"),
        pytest.param(
            {"MessageGroupId": "a b"}, "InvalidParameterValue", "MessageGroupId", id="a group with a space"
        ),
        pytest.param(
            {"MessageGroupId": "g" * 129}, "InvalidParameterValue", "MessageGroupId", id="a long group"
        ),
        pytest.param(
            {"MessageDeduplicationId": "d"}, "InvalidParameterValue", "queue type", id="an id for FIFO only"
        ),
        pytest.param(
            {"MessageAttributes": {"alpacamq-lane": {"DataType": "String", "StringValue": "urgent"}}},
            "InvalidParameterValue",
            "critical",
            id="an unknown lane",
        ),
        pytest.param(
            {"MessageSystemAttributes": {"Other": {"DataType": "String", "StringValue": "x"}}},
            "InvalidParameterValue",
            "Other",
            id="an unknown system attribute",
        ),
    ],
)
def test_invalid_input_is_refused(
    sqs: Client, queue: str, fields: dict[str, Any], code: str, text: str
) -> None:
    with refused(code, text):
        sqs.send_message(QueueUrl=queue, **({"MessageBody": "x"} | fields))


def test_attribute_names_may_have_letters_of_any_script(sqs: Client, queue: str) -> None:
    attributes = {
        "attr.1øßä": {"DataType": "String", "StringValue": "v"},
        "число": {"DataType": "Number", "StringValue": "7"},
    }
    sent = sqs.send_message(QueueUrl=queue, MessageBody="b", MessageAttributes=attributes)
    (message,) = sqs.receive_message(
        QueueUrl=queue, MessageAttributeNames=["attr.*", "число"], WaitTimeSeconds=5
    )["Messages"]
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]


def test_attributes_count_towards_the_size_of_a_message(either: Client, name: str) -> None:
    url = either.create_queue(QueueName=name, Attributes={"MaximumMessageSize": "1024"})["QueueUrl"]
    attribute = {"a": {"DataType": "String", "StringValue": "v"}}
    either.send_message(QueueUrl=url, MessageBody="x" * 1016, MessageAttributes=attribute)
    with refused("InvalidParameterValue", "1024 bytes"):
        either.send_message(QueueUrl=url, MessageBody="x" * 1017, MessageAttributes=attribute)


def test_the_largest_message_with_the_largest_attributes_is_taken(either: Client, queue: str) -> None:
    attributes = {
        f"{index}{'n' * 250}": {"DataType": f"String.{'t' * 240}", "StringValue": "v"} for index in range(10)
    }
    size = sum(len(name) + len(a["DataType"]) + 1 for name, a in attributes.items())
    answer = either.send_message(QueueUrl=queue, MessageBody="x" * (MIB - size), MessageAttributes=attributes)
    assert answer["MessageId"]


def test_an_unknown_queue_is_reported(sqs: Client, queue: str) -> None:
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        sqs.send_message(QueueUrl=f"{queue}-not", MessageBody="x")


def test_a_url_without_a_queue_is_no_address(either: Client, queue: str) -> None:
    with refused("InvalidAddress", status=404):
        either.send_message(QueueUrl="http://localhost", MessageBody="x")
