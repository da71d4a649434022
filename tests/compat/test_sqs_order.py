"""The order in which boto3 receives messages, and late changes of visibility."""

import time

import pytest
from botocore.exceptions import ClientError

from tests.brokers import Broker

from . import sqs as boto
from .sqs import Sqs


@pytest.fixture(scope="module")
def sqs(broker: Broker) -> Sqs:
    return boto.client(broker.sqs_address)


@pytest.fixture
def queue(sqs: Sqs, topic: str) -> str:
    url: str = sqs.create_queue(QueueName=topic[-80:].strip("-_"))["QueueUrl"]
    return url


@pytest.fixture
def fifo(sqs: Sqs, topic: str) -> str:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    name = f"{topic[-70:].strip('-_')}.fifo"
    url: str = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url


def send(sqs: Sqs, queue: str, body: str, **options: str) -> None:
    """Send a message a millisecond after the last one at the earliest."""
    sqs.send_message(QueueUrl=queue, MessageBody=body, **options)
    time.sleep(0.002)


def bodies(sqs: Sqs, queue: str, count: int, **options: int) -> list[str]:
    """Receive and delete `count` messages."""
    found: list[str] = []
    while len(found) < count:
        answer = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=5, **options)
        for message in answer["Messages"]:
            found.append(message["Body"])
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    return found


@pytest.mark.parametrize("max_messages", [1, 10])
def test_a_standard_queue_delivers_messages_in_the_order_in_which_they_were_sent(
    sqs: Sqs, queue: str, max_messages: int
) -> None:
    sent = [str(number) for number in range(20)]
    for body in sent:
        send(sqs, queue, body)
    assert bodies(sqs, queue, 20, MaxNumberOfMessages=max_messages) == sent


def test_the_groups_of_a_fifo_queue_arrive_in_the_order_in_which_they_were_sent(sqs: Sqs, fifo: str) -> None:
    sent = [str(number) for number in range(12)]
    for body in sent:
        send(sqs, fifo, body, MessageGroupId=f"group-{body}")
    assert bodies(sqs, fifo, 12) == sent


@pytest.mark.parametrize("is_fifo", [False, True])
def test_a_message_that_is_given_back_at_once_does_not_hold_up_the_others(
    sqs: Sqs, queue: str, fifo: str, is_fifo: bool
) -> None:
    url = fifo if is_fifo else queue
    others = [f"m{number}" for number in range(12)]
    for body in ["poison", *others]:
        send(sqs, url, body, **({"MessageGroupId": body} if is_fifo else {}))
    seen: list[str] = []
    for _ in range(26):
        for message in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1).get("Messages", []):
            receipt = message["ReceiptHandle"]
            seen.append(message["Body"])
            if message["Body"] == "poison":
                sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
            else:
                sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)
    assert [body for body in seen if body != "poison"] == others


def test_visibility_is_changed_after_the_timeout_with_any_receipt_of_a_free_message(
    sqs: Sqs, queue: str
) -> None:
    send(sqs, queue, "slow")
    receipts = []
    for _ in range(2):
        (message,) = sqs.receive_message(QueueUrl=queue, VisibilityTimeout=1, WaitTimeSeconds=5)["Messages"]
        receipts.append(message["ReceiptHandle"])
    time.sleep(1.1)
    for receipt in receipts:
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=receipt, VisibilityTimeout=30)
        assert "Messages" not in sqs.receive_message(QueueUrl=queue)
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=receipts[-1], VisibilityTimeout=0)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=receipts[-1])
    with pytest.raises(ClientError, match=r"InvalidParameterValue.*ReceiptHandle.*does not exist"):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=receipts[-1], VisibilityTimeout=30)


def test_the_first_message_of_a_group_is_received_after_its_own_timeout(sqs: Sqs, fifo: str) -> None:
    for body in ("first", "second"):
        send(sqs, fifo, body, MessageGroupId="group")
    answer = sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10, VisibilityTimeout=1)
    _, second = answer["Messages"]
    receipt = second["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=receipt, VisibilityTimeout=60)
    (first,) = sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10, WaitTimeSeconds=10)["Messages"]
    assert first["Body"] == "first"
