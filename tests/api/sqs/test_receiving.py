"""ReceiveMessage, DeleteMessage and ChangeMessageVisibility, through boto3."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.publishing import Message as PublishedMessage
from alpacamq.broker.queue.service import Queues, Receipted
from alpacamq.model.errors import CoordinatorUnavailable
from alpacamq.model.headers import ORIGIN_OFFSET, ORIGIN_PARTITION, ORIGIN_TOPIC
from alpacamq.model.records import Header
from alpacamq.queues.messages import BUILT_IN_GROUP, Action, QueueId
from tests.waiting import eventually

from .refusals import refused
from .serving import Client, SqsBroker, client, served

Message = dict[str, Any]


def receive(sqs: Client, url: str, count: int = 10, **options: Any) -> list[Message]:
    """What one receive gives."""
    answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=count, **options)
    messages: list[Message] = answer.get("Messages", [])
    return messages


def drain(sqs: Client, url: str, count: int, **options: Any) -> list[Message]:
    """So many messages, in as many receives as it takes."""
    messages: list[Message] = []
    while len(messages) < count:
        got = receive(sqs, url, WaitTimeSeconds=5, **options)
        assert got, f"{len(messages)} of {count} messages came"
        messages += got
    return messages


def send(sqs: Client, url: str, *bodies: str, **fields: Any) -> list[str]:
    return [sqs.send_message(QueueUrl=url, MessageBody=body, **fields)["MessageId"] for body in bodies]


def test_a_sent_message_is_received_once_and_can_be_deleted(sqs: Client, queue: str) -> None:
    ids = send(sqs, queue, "a", "b", "c")
    messages = drain(sqs, queue, 3)
    assert sorted(message["MessageId"] for message in messages) == sorted(ids)
    assert sorted(message["Body"] for message in messages) == ["a", "b", "c"]
    assert receive(sqs, queue) == []
    for message in messages:
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
        # Deleting twice succeeds too.
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def test_message_attributes_come_back_as_they_were_sent(sqs: Client, queue: str) -> None:
    attributes = {
        "text": {"DataType": "String.json", "StringValue": '{"a": "ü"}'},
        "count": {"DataType": "Number", "StringValue": "1.50"},
        "photo": {"DataType": "Binary.png", "BinaryValue": b"\x00text"},
    }
    sent = sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=attributes)
    (message,) = receive(sqs, queue, MessageAttributeNames=["All"], VisibilityTimeout=0)
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    (message,) = receive(sqs, queue, MessageAttributeNames=["co.*"], VisibilityTimeout=0)
    assert message["MessageAttributes"].keys() == {"count"}
    (message,) = receive(sqs, queue)
    assert "MessageAttributes" not in message
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def test_requested_system_attributes_are_returned(sqs: Client, queue: str) -> None:
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2"}}
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageGroupId="tenant", MessageSystemAttributes=trace)
    (message,) = receive(sqs, queue, MessageSystemAttributeNames=["All"], VisibilityTimeout=0)
    attributes = message["Attributes"]
    assert attributes.keys() == {
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "MessageGroupId",
        "AWSTraceHeader",
    }
    assert attributes["AWSTraceHeader"] == "Root=1-2"
    assert attributes["MessageGroupId"] == "tenant"
    assert int(attributes["SentTimestamp"]) <= int(attributes["ApproximateFirstReceiveTimestamp"])
    (again,) = receive(
        sqs, queue, AttributeNames=["ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp"]
    )
    first = attributes["ApproximateFirstReceiveTimestamp"]
    assert again["Attributes"] == {"ApproximateReceiveCount": "2", "ApproximateFirstReceiveTimestamp": first}
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=again["ReceiptHandle"])


def test_a_message_that_is_not_deleted_is_redelivered_with_a_new_receipt(either: Client, queue: str) -> None:
    (sent,) = send(either, queue, "x")
    (first,) = receive(either, queue, VisibilityTimeout=1)
    (second,) = receive(either, queue, WaitTimeSeconds=10)
    assert (second["MessageId"], first["MessageId"]) == (sent, sent)
    assert first["ReceiptHandle"] != second["ReceiptHandle"]
    # The first had its time: deleting is too late, and it is the second's to do.
    either.delete_message(QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"])
    either.change_message_visibility(
        QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=0
    )
    assert len(receive(either, queue, WaitTimeSeconds=5)) == 1


def test_visibility_can_be_shortened_or_extended(sqs: Client, queue: str) -> None:
    send(sqs, queue, "x")
    (message,) = receive(sqs, queue, VisibilityTimeout=1)
    sqs.change_message_visibility(
        QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=600
    )
    assert receive(sqs, queue, WaitTimeSeconds=1) == []
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    (message,) = receive(sqs, queue)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def test_batches_settle_each_entry_for_itself(sqs: Client, queue: str) -> None:
    send(sqs, queue, *"abcd")
    receipts = [message["ReceiptHandle"] for message in drain(sqs, queue, 4)]
    entries = [
        {"Id": f"e{index}", "ReceiptHandle": receipt} for index, receipt in enumerate([*receipts, "junk"])
    ]
    changed = sqs.change_message_visibility_batch(
        QueueUrl=queue,
        Entries=[entry | {"VisibilityTimeout": 60 if entry["Id"] != "e0" else 43201} for entry in entries],
    )
    assert [each["Id"] for each in changed["Successful"]] == ["e1", "e2", "e3"]
    assert {each["Id"]: each["Code"] for each in changed["Failed"]} == {
        "e0": "InvalidParameterValue",
        "e4": "ReceiptHandleIsInvalid",
    }
    deleted = sqs.delete_message_batch(QueueUrl=queue, Entries=entries)
    assert [each["Id"] for each in deleted["Successful"]] == ["e0", "e1", "e2", "e3"]
    assert [(each["Id"], each["SenderFault"]) for each in deleted["Failed"]] == [("e4", True)]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"MaxNumberOfMessages": 0}, "InvalidParameterValue", "between 1 and 10"),
        ({"MaxNumberOfMessages": 11}, "InvalidParameterValue", "between 1 and 10"),
        ({"WaitTimeSeconds": -1}, "InvalidParameterValue", "<= 20"),
        ({"WaitTimeSeconds": 21}, "InvalidParameterValue", "<= 20"),
        ({"VisibilityTimeout": -1}, "InvalidParameterValue", "<= 43200"),
        ({"VisibilityTimeout": 43201}, "InvalidParameterValue", "<= 43200"),
        ({"AttributeNames": ["Colour"]}, "InvalidAttributeName", "Colour"),
        ({"ReceiveRequestAttemptId": "a"}, "InvalidParameterValue", "FIFO"),
    ],
)
def test_receives_have_limits(sqs: Client, queue: str, options: dict[str, Any], code: str, text: str) -> None:
    with refused(code, text):
        sqs.receive_message(QueueUrl=queue, **options)


def test_a_receipt_that_is_none_is_refused(sqs: Client, queue: str) -> None:
    with refused("ReceiptHandleIsInvalid", "junk"):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle="junk")
    with refused("ReceiptHandleIsInvalid", "junk"):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle="junk", VisibilityTimeout=1)


def test_a_receipt_of_another_queue_is_refused(either: Client, queue: str, name: str) -> None:
    other = either.create_queue(QueueName=f"{name[-70:]}-other")["QueueUrl"]
    send(either, other, "x")
    (message,) = receive(either, other)
    with refused("ReceiptHandleIsInvalid"):
        either.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def test_visibility_of_a_message_that_another_consumer_holds_cannot_be_changed(
    sqs: Client, queue: str
) -> None:
    send(sqs, queue, "x")
    (first,) = receive(sqs, queue, VisibilityTimeout=0)
    (second,) = receive(sqs, queue)
    with refused("AWS.SimpleQueueService.MessageNotInflight"):
        sqs.change_message_visibility(
            QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=5
        )
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"])


def test_visibility_of_a_deleted_message_cannot_be_changed(sqs: Client, queue: str) -> None:
    send(sqs, queue, "x")
    (message,) = receive(sqs, queue)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    with refused("InvalidParameterValue"):
        sqs.change_message_visibility(
            QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=5
        )


def test_a_long_poll_returns_when_a_message_arrives(either: Client, server: SqsBroker, queue: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receive, client(server.url), queue, WaitTimeSeconds=20)
        send(either, queue, "at last")
        assert [message["Body"] for message in waiting.result(15)] == ["at last"]


def test_a_queue_can_have_its_receives_wait(either: Client, server: SqsBroker, name: str) -> None:
    url = either.create_queue(QueueName=name, Attributes={"ReceiveMessageWaitTimeSeconds": "20"})["QueueUrl"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receive, client(server.url), url)
        send(either, url, "at last")
        assert len(waiting.result(15)) == 1
    assert receive(either, url, WaitTimeSeconds=0) == []


def test_a_long_poll_of_a_disconnected_client_leases_nothing(
    either: Client, server: SqsBroker, queue: str
) -> None:
    def waiting() -> int:
        queue_id = QueueId(BUILT_IN_GROUP, queue.rpartition("/")[2])
        return server.ask(lambda broker: broker.queues.describe(queue_id)).waiting_receives

    assert receive(either, queue) == []
    body = json.dumps({"QueueUrl": queue, "WaitTimeSeconds": 20}).encode()
    head = (
        f"POST / HTTP/1.1\r\nHost: h\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\nContent-Length: {len(body)}"
    )
    with socket.create_connection(server.address) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        eventually(lambda: waiting() == 1)
    eventually(lambda: waiting() == 0)
    send(either, queue, "x")
    assert [message["Body"] for message in receive(either, queue)] == ["x"]


def test_more_in_flight_than_allowed_is_over_the_limit(sqs: Client, server: SqsBroker, queue: str) -> None:
    name = queue.rpartition("/")[2]
    limit = {"queue.max.in.flight.total": "2"}
    server.ask(lambda broker: broker.topics.configure(name, lambda topic: {**topic.overrides, **limit}))
    send(sqs, queue, "a", "b", "c")
    messages = drain(sqs, queue, 2)
    with refused("OverLimit", status=403):
        receive(sqs, queue)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=messages[0]["ReceiptHandle"])
    assert len(receive(sqs, queue)) == 1


def test_a_message_older_than_the_retention_period_is_not_received(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        sqs = client(broker.url)
        url = sqs.create_queue(QueueName="q", Attributes={"MessageRetentionPeriod": "60"})["QueueUrl"]
        send(sqs, url, "old")
        broker.clock.ahead_s = 61
        send(sqs, url, "new")
        assert [message["Body"] for message in receive(sqs, url, WaitTimeSeconds=1)] == ["new"]


def test_message_counts_by_visibility(sqs: Client, queue: str) -> None:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

    def stats() -> list[str]:
        found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
        return [found[name] for name in names]

    assert stats() == ["0", "0"]
    send(sqs, queue, "a", "b", "c")
    assert stats() == ["3", "0"]
    (message,) = receive(sqs, queue, 1)
    receive(sqs, queue, 1)
    assert stats() == ["1", "2"]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert stats() == ["1", "1"]


def test_a_purged_queue_is_empty_and_not_purged_again_within_a_minute(
    either: Client, server: SqsBroker, queue: str
) -> None:
    send(either, queue, "a", "b")
    either.purge_queue(QueueUrl=queue)
    assert receive(either, queue) == []
    with refused("AWS.SimpleQueueService.PurgeQueueInProgress", "60 seconds", status=403):
        either.purge_queue(QueueUrl=queue)
    send(either, queue, "c")
    assert [message["Body"] for message in receive(either, queue)] == ["c"]


def test_a_purge_that_failed_can_be_tried_again_at_once(
    either: Client, server: SqsBroker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(_: QueueId) -> None:
        raise CoordinatorUnavailable("the disk is full")

    async def queues_of(broker: Broker) -> Queues:
        return broker.queues

    send(either, queue, "a")
    with monkeypatch.context() as patched:
        patched.setattr(server.ask(queues_of), "purge", unavailable)
        with refused("ServiceUnavailable", "the disk is full", status=503):
            either.purge_queue(QueueUrl=queue)
    either.purge_queue(QueueUrl=queue)
    assert receive(either, queue) == []


def test_messages_of_a_group_come_in_order_and_wait_for_those_before_them(sqs: Client, name: str) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    url = sqs.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)["QueueUrl"]
    for number in range(6):
        send(sqs, url, f"a{number}", MessageGroupId="a")
    send(sqs, url, "b0", MessageGroupId="b")
    got = receive(sqs, url, 3, MessageSystemAttributeNames=["All"], WaitTimeSeconds=5)
    got += receive(sqs, url, MessageSystemAttributeNames=["All"], WaitTimeSeconds=1)
    of_a = [message for message in got if message["Body"].startswith("a")]
    assert [message["Body"] for message in of_a] == [f"a{number}" for number in range(len(of_a))]
    assert [message["Body"] for message in got if message not in of_a] == ["b0"]
    numbers = [message["Attributes"]["SequenceNumber"] for message in of_a]
    assert numbers == sorted(set(numbers))
    assert {message["Attributes"]["MessageGroupId"] for message in of_a} == {"a"}
    assert receive(sqs, url, ReceiveRequestAttemptId="again") == []
    for message in got:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert [message["Body"] for message in receive(sqs, url, WaitTimeSeconds=5)] == [
        f"a{number}" for number in range(len(of_a), 6)
    ]


def test_a_fifo_message_that_was_received_again_is_not_deleted_by_the_earlier_receipt(
    either: Client, fifo: str
) -> None:
    send(either, fifo, "x", MessageGroupId="g", MessageDeduplicationId="d")
    (first,) = receive(either, fifo, VisibilityTimeout=0)
    receive(either, fifo)
    with refused("InvalidParameterValue", "The receipt handle has expired"):
        either.delete_message(QueueUrl=fifo, ReceiptHandle=first["ReceiptHandle"])


def redriven(sqs: Client, name: str, *, fifo: bool = False, max_receives: int = 1) -> tuple[str, str]:
    """A queue and its dead-letter queue."""
    suffix, attributes = (".fifo", {"FifoQueue": "true"}) if fifo else ("", {})
    dead = sqs.create_queue(QueueName=f"{name[-60:]}-dead{suffix}", Attributes=attributes)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": max_receives})
    url = sqs.create_queue(
        QueueName=f"{name[-60:]}{suffix}", Attributes=attributes | {"RedrivePolicy": policy}
    )
    return url["QueueUrl"], dead


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_message_received_too_often_is_dead_lettered_and_keeps_its_id(
    either: Client, name: str, fifo: bool
) -> None:
    url, dead = redriven(either, name, fifo=fifo, max_receives=2)
    attributes = {"n": {"DataType": "Number", "StringValue": "7"}}
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if fifo else {}
    (sent,) = send(either, url, "poison", MessageAttributes=attributes, **ids)
    for _ in range(2):
        (message,) = receive(either, url, VisibilityTimeout=0, WaitTimeSeconds=5, AttributeNames=["All"])
    assert receive(either, url) == []
    (letter,) = receive(
        either, dead, WaitTimeSeconds=10, AttributeNames=["All"], MessageAttributeNames=["All"]
    )
    assert (letter["MessageId"], letter["Body"], letter["MessageAttributes"]) == (sent, "poison", attributes)
    assert letter["Attributes"]["ApproximateReceiveCount"] == "3"
    assert letter["Attributes"]["SentTimestamp"] == message["Attributes"]["SentTimestamp"]
    assert letter["Attributes"]["DeadLetterQueueSourceArn"].endswith(f":{url.rpartition('/')[2]}")
    sources = either.list_dead_letter_source_queues(QueueUrl=dead)
    assert sources["queueUrls"] == [url]


def test_invalid_dead_letter_headers_do_not_block_receives(
    either: Client, server: SqsBroker, queue: str, name: str
) -> None:
    async def publish(broker: Broker) -> None:
        headers = (
            Header(ORIGIN_TOPIC, name.encode()),
            Header(ORIGIN_PARTITION, b"9" * 19),
            Header(ORIGIN_OFFSET, b"9" * 19),
        )
        await broker.publisher.publish(name, [PublishedMessage(value=b"from elsewhere", headers=headers)])

    server.ask(publish)
    (message,) = drain(either, queue, 1)
    assert message["Body"] == "from elsewhere"


def test_dead_letters_are_moved_back(sqs: Client, name: str) -> None:
    url, dead = redriven(sqs, name)
    send(sqs, url, "a", "b")
    drain(sqs, url, 2, VisibilityTimeout=0)
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    count = "ApproximateNumberOfMessages"
    eventually(
        lambda: sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=[count])["Attributes"][count] == "2"
    )
    handle = sqs.start_message_move_task(SourceArn=arn, MaxNumberOfMessagesPerSecond=100)["TaskHandle"]
    assert handle

    def ended() -> Any:
        (task,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
        return task if task["Status"] == "COMPLETED" else None

    task = eventually(ended)
    assert (task["ApproximateNumberOfMessagesMoved"], task["SourceArn"]) == (2, arn)
    assert task["MaxNumberOfMessagesPerSecond"] == 100
    assert sorted(message["Body"] for message in drain(sqs, url, 2)) == ["a", "b"]
    with refused("ResourceNotFoundException", "active", status=404):
        sqs.cancel_message_move_task(TaskHandle=handle)


def test_a_move_task_fails_when_its_destination_is_deleted(sqs: Client, name: str) -> None:
    url, dead = redriven(sqs, name)
    send(sqs, url, *"abcdef")
    drain(sqs, url, 6, VisibilityTimeout=0)
    count = "ApproximateNumberOfMessages"
    eventually(
        lambda: sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=[count])["Attributes"][count] == "6"
    )
    target = sqs.create_queue(QueueName=f"{name[-60:]}-target")["QueueUrl"]
    arn, target_arn = (
        sqs.get_queue_attributes(QueueUrl=each, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        for each in (dead, target)
    )
    sqs.start_message_move_task(SourceArn=arn, DestinationArn=target_arn, MaxNumberOfMessagesPerSecond=4)

    def task() -> dict[str, Any]:
        (found,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
        return dict(found)

    eventually(lambda: task()["ApproximateNumberOfMessagesMoved"] >= 2)
    sqs.delete_queue(QueueUrl=target)
    eventually(lambda: task()["Status"] != "RUNNING")
    found = task()
    moved = found["ApproximateNumberOfMessagesMoved"]
    assert (found["Status"], found["ApproximateNumberOfMessagesToMove"]) == ("FAILED", 6)
    assert 2 <= moved < 6
    assert found["FailureReason"].startswith("AWS.SimpleQueueService.NonExistentQueue: ")
    assert f"{6 - moved} messages were not moved" in found["FailureReason"]
    assert len(drain(sqs, dead, 6 - moved)) == 6 - moved


@pytest.mark.parametrize(
    ("length", "group", "target"),
    [
        pytest.param(249, "queue", "", id="longest topic name"),
        pytest.param(40, "queue", "of-the-group", id="override of the group that SQS uses"),
        pytest.param(40, "workers", "of-the-group", id="override of another group"),
    ],
)
def test_move_tasks_find_the_dead_letter_topic_that_the_engine_uses(
    either: Client, server: SqsBroker, name: str, length: int, group: str, target: str
) -> None:
    topic = f"{group}-{target}-{name}".ljust(length, "x")[-length:]
    queue = QueueId(group, topic)
    target = target and f"{topic[-60:]}-{target}"

    async def reject(broker: Broker) -> str | None:
        await broker.topics.create(topic, partitions=1)
        await broker.publisher.publish(topic, [PublishedMessage(value=b"a")])
        if target:
            await broker.queues.configure(queue, {"queue.dead.letter.topic": target})
        (delivery,) = await broker.queues.receive(queue, wait_ms=5000)
        await broker.queues.settle([Receipted(receipt=delivery.receipt, action=Action.REJECT)])
        return (await broker.queues.describe(queue)).dead_letter_topic

    dead = server.ask(reject)
    assert dead is not None
    assert not target or dead == target

    async def is_readable(broker: Broker) -> bool:
        # A topic is known before its partitions are open.
        return bool(broker.topics.ready_partitions_of(dead))

    eventually(lambda: server.ask(is_readable))
    arn = f"arn:aws:sqs:us-east-1:000000000000:{dead}"
    assert either.start_message_move_task(SourceArn=arn)["TaskHandle"]
    if group == "queue":
        sources = either.list_dead_letter_source_queues(QueueUrl=f"{server.url}/0/{dead}")["queueUrls"]
        assert [url.rpartition("/")[2] for url in sources] == [topic]
        policy = either.get_queue_attributes(
            QueueUrl=f"{server.url}/0/{topic}", AttributeNames=["RedrivePolicy"]
        )["Attributes"]["RedrivePolicy"]
        assert json.loads(policy)["deadLetterTargetArn"] == arn


def test_invalid_move_tasks_are_refused(sqs: Client, queue: str, name: str) -> None:
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    with refused("InvalidParameterValue", "Dead Letter Queue"):
        sqs.start_message_move_task(SourceArn=arn)
    with refused("ResourceNotFoundException", "SourceArn", status=404):
        sqs.start_message_move_task(SourceArn=f"{arn}-not")
    with refused("InvalidParameterValue"):
        sqs.start_message_move_task(SourceArn="arn:aws:s3:::bucket")
    with refused("InvalidParameterValue", "TaskHandle"):
        sqs.cancel_message_move_task(TaskHandle="junk")
    assert sqs.list_message_move_tasks(SourceArn=arn).get("Results", []) == []
