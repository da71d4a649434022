"""Messages that are to be seen later, through boto3."""

from pathlib import Path
from typing import Any

from tests.waiting import eventually

from .serving import Client, client, served

Message = dict[str, Any]


def receive(sqs: Client, url: str, wait_s: int) -> list[Message]:
    answer = sqs.receive_message(
        QueueUrl=url, WaitTimeSeconds=wait_s, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"]
    )
    messages: list[Message] = answer.get("Messages", [])
    return messages


def delayed(sqs: Client, url: str) -> str:
    name = "ApproximateNumberOfMessagesDelayed"
    count: str = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name]
    return count


def test_a_delayed_message_keeps_the_id_returned_to_its_sender(sqs: Client, queue: str) -> None:
    sent = sqs.send_message(QueueUrl=queue, MessageBody="later", DelaySeconds=3)["MessageId"]
    assert receive(sqs, queue, 0) == []
    assert delayed(sqs, queue) == "1"
    (message,) = receive(sqs, queue, 10)
    assert (message["MessageId"], message["Body"]) == (sent, "later")
    attributes = message["Attributes"]
    # It was sent when its sender sent it, not when it appeared.
    assert int(attributes["ApproximateFirstReceiveTimestamp"]) - int(attributes["SentTimestamp"]) > 2000
    eventually(lambda: delayed(sqs, queue) == "0")


def test_the_delay_of_a_queue_is_the_default(either: Client, name: str) -> None:
    url = either.create_queue(QueueName=name, Attributes={"DelaySeconds": "600"})["QueueUrl"]
    either.send_message(QueueUrl=url, MessageBody="later")
    either.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    assert [message["Body"] for message in receive(either, url, 5)] == ["now"]
    assert delayed(either, url) == "1"


def test_a_purge_includes_delayed_messages(either: Client, queue: str) -> None:
    for _ in range(3):
        either.send_message(QueueUrl=queue, MessageBody="later", DelaySeconds=900)
    either.purge_queue(QueueUrl=queue)
    assert delayed(either, queue) == "0"


def test_delayed_messages_of_a_fifo_queue_are_sent_once_and_numbered_across_restarts(tmp_path: Path) -> None:
    attributes = {"FifoQueue": "true", "DelaySeconds": "900"}

    def send(known_as: str) -> tuple[str, str]:
        sent = sqs.send_message(
            QueueUrl=url, MessageBody="b", MessageGroupId="g", MessageDeduplicationId=known_as
        )
        return sent["MessageId"], sent["SequenceNumber"]

    with served(tmp_path) as broker:
        sqs = client(broker.url)
        url = sqs.create_queue(QueueName="q.fifo", Attributes=attributes)["QueueUrl"]
        first, second = send("a"), send("b")
        assert send("a") == first
    with served(tmp_path) as broker:
        sqs = client(broker.url)
        assert (send("b"), send("a")) == (second, first)
        third = send("c")
        assert first[1] < second[1] < third[1]
        assert delayed(sqs, url) == "3"


def test_a_delayed_fifo_message_is_received_under_its_number(either: Client, name: str) -> None:
    attributes = {"FifoQueue": "true", "DelaySeconds": "1", "ContentBasedDeduplication": "true"}
    url = either.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)["QueueUrl"]
    sent = [either.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g") for body in "abc"]
    messages: list[Message] = []
    while len(messages) < 3 and (came := receive(either, url, 10)):
        messages += came  # those that were due; the rest of the group follows once these are done
        for message in came:
            either.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert [message["Body"] for message in messages] == ["a", "b", "c"]
    assert [(m["MessageId"], m["Attributes"]["SequenceNumber"]) for m in messages] == [
        (each["MessageId"], each["SequenceNumber"]) for each in sent
    ]


def test_a_number_given_to_a_delayed_message_stays_its_own_when_others_before_it_are_purged(
    either: Client, name: str
) -> None:
    attributes = {"FifoQueue": "true", "DelaySeconds": "900", "ContentBasedDeduplication": "true"}
    url = either.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)["QueueUrl"]
    either.send_message(QueueUrl=url, MessageBody="never", MessageGroupId="g")
    either.purge_queue(QueueUrl=url)
    either.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "1"})
    sent = either.send_message(QueueUrl=url, MessageBody="later", MessageGroupId="g")
    (message,) = receive(either, url, 10)
    assert message["Attributes"]["SequenceNumber"] == sent["SequenceNumber"]
