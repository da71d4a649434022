"""Sending to FIFO queues: order, and every message once."""

import json
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.queues.messages import BUILT_IN_GROUP, QueueId

from .refusals import refused
from .serving import Client, SqsBroker, client, served


def send(
    sqs: Client, url: str, body: str = "b", group: str = "g", known_as: str | None = "t"
) -> tuple[str, str]:
    """What a message is called: its id and its number."""
    ids = {} if known_as is None else {"MessageDeduplicationId": known_as}
    answer = sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, **ids)
    return answer["MessageId"], answer["SequenceNumber"]


def test_numbers_rise_within_a_group(sqs: Client, fifo: str) -> None:
    numbers = [send(sqs, fifo, known_as=f"{id(sqs)}-{index}")[1] for index in range(5)]
    assert numbers == sorted(set(numbers))


def test_the_same_id_again_is_the_same_message(sqs: Client, fifo: str) -> None:
    known_as = f"t{id(sqs)}"
    assert send(sqs, fifo, known_as=known_as) == send(
        sqs, fifo, body="other", group="other", known_as=known_as
    )


def test_a_batch_can_hold_its_own_duplicates(either: Client, fifo: str) -> None:
    entries = [
        {
            "Id": f"e{index}",
            "MessageBody": "b",
            "MessageGroupId": "g",
            "MessageDeduplicationId": str(index % 2),
        }
        for index in range(4)
    ]
    sent = either.send_message_batch(QueueUrl=fifo, Entries=entries)["Successful"]
    ids = {entry["Id"]: entry["MessageId"] for entry in sent}
    assert ids["e0"] == ids["e2"] != ids["e1"] == ids["e3"]


def test_content_based_deduplication(either: Client, fifo: str) -> None:
    either.set_queue_attributes(QueueUrl=fifo, Attributes={"ContentBasedDeduplication": "true"})
    assert send(either, fifo, known_as=None) == send(either, fifo, group="other", known_as=None)
    assert send(either, fifo, body="other", known_as=None) != send(either, fifo, known_as=None)
    assert send(either, fifo, known_as=sha256(b"b").hexdigest()) == send(either, fifo, known_as=None)


def test_deduplication_per_message_group(either: Client, name: str) -> None:
    attributes = {
        "FifoQueue": "true",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
    }
    url = either.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)["QueueUrl"]
    assert send(either, url, group="a")[0] != send(either, url, group="b")[0]
    assert send(either, url, group="a") == send(either, url, group="a")


def test_concurrent_duplicates_are_published_once_with_one_result(server: SqsBroker, fifo: str) -> None:
    def rush(_: int) -> tuple[str, str]:
        return send(client(server.url), fifo)

    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(rush, range(8)))
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        pytest.param({"MessageDeduplicationId": "d"}, "MissingParameter", "MessageGroupId", id="no group"),
        pytest.param(
            {"MessageGroupId": "g"}, "InvalidParameterValue", "ContentBasedDeduplication", id="no id"
        ),
        pytest.param(
            {"MessageGroupId": "g", "MessageDeduplicationId": "d" * 129},
            "InvalidParameterValue",
            "1 to 128",
            id="a long id",
        ),
        pytest.param(
            {"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 2},
            "InvalidParameterValue",
            "queue type",
            id="a delay of its own",
        ),
    ],
)
def test_required_fifo_parameters_are_checked(
    sqs: Client, fifo: str, fields: dict[str, Any], code: str, text: str
) -> None:
    with refused(code, text):
        sqs.send_message(QueueUrl=fifo, MessageBody="b", **fields)


@pytest.mark.parametrize(
    ("fields", "text"), [({}, "MessageGroupId"), ({"MessageGroupId": "g"}, "MessageDeduplicationId")]
)
def test_a_batch_that_cannot_be_put_in_order_is_refused_whole(
    either: Client, fifo: str, fields: dict[str, str], text: str
) -> None:
    good = {"Id": "good", "MessageBody": "b", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    with refused("InvalidParameterValue", text):
        either.send_message_batch(QueueUrl=fifo, Entries=[good, {"Id": "bad", "MessageBody": "b"} | fields])


def test_duplicates_are_known_for_five_minutes_and_across_restarts(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        sqs = client(broker.url)
        url = sqs.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        first = send(sqs, url)
        broker.clock.ahead_s = 200
        second = send(sqs, url, known_as="other")
    with served(tmp_path, ahead_s=270) as broker:
        sqs = client(broker.url)
        assert (send(sqs, url), send(sqs, url, known_as="other")) == (first, second)
        broker.clock.ahead_s = 302
        assert send(sqs, url) != first
        assert send(sqs, url, known_as="other") == second


def received(sqs: Client, url: str) -> list[str]:
    messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
    return [message["Body"] for message in messages.get("Messages", [])]


def test_a_purge_forgets_deduplication_ids(sqs: Client, fifo: str) -> None:
    before = send(sqs, fifo)
    sqs.purge_queue(QueueUrl=fifo)
    after = send(sqs, fifo, body="again")
    assert after != before
    assert received(sqs, fifo) == ["again"]
    assert send(sqs, fifo, body="a duplicate") == after


def test_a_purge_forgets_ids_of_delayed_messages_and_keeps_numbers_rising(either: Client, name: str) -> None:
    attributes = {"FifoQueue": "true", "DelaySeconds": "2"}
    url = either.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)["QueueUrl"]
    before = send(either, url)
    either.purge_queue(QueueUrl=url)
    after = send(either, url, body="again")
    assert after[0] != before[0]
    assert after[1] > before[1]
    assert send(either, url, body="a duplicate") == after


@pytest.mark.parametrize("reset", ["purge", "reset to the end"])
def test_a_purge_over_another_api_forgets_ids_and_spares_messages_that_wait(
    server: SqsBroker, either: Client, fifo: str, reset: str
) -> None:
    queue = QueueId(BUILT_IN_GROUP, fifo.rpartition("/")[2])

    async def purge(broker: Broker) -> None:
        if reset == "purge":
            return await broker.purge_queue(queue)
        ends = {
            index: partition.high_watermark
            for index, partition in enumerate(broker.topics.partitions_of(queue.topic))
        }
        return await broker.reset_queue(queue, ends)

    send(either, fifo, known_as="purged")
    either.set_queue_attributes(QueueUrl=fifo, Attributes={"DelaySeconds": "900"})
    waiting = send(either, fifo, known_as="waiting")
    either.set_queue_attributes(QueueUrl=fifo, Attributes={"DelaySeconds": "0"})
    server.ask(purge)
    assert send(either, fifo, known_as="waiting") == waiting
    send(either, fifo, body="again", known_as="purged")
    assert received(either, fifo) == ["again"]


def test_a_purge_is_remembered_across_restarts(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        sqs = client(broker.url)
        url = sqs.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        before = send(sqs, url)
        sqs.purge_queue(QueueUrl=url)
        after = send(sqs, url, known_as="after")
    with served(tmp_path) as broker:
        sqs = client(broker.url)
        assert send(sqs, url, known_as="after") == after
        assert send(sqs, url, body="again") != before
        assert received(sqs, url) == ["b", "again"]


def test_a_redriven_message_does_not_make_a_later_one_a_duplicate_after_a_restart(tmp_path: Path) -> None:
    fifo = {"FifoQueue": "true"}
    with served(tmp_path) as broker:
        sqs = client(broker.url)
        dead = sqs.create_queue(QueueName="dead.fifo", Attributes=fifo)["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
        url = sqs.create_queue(QueueName="q.fifo", Attributes=fifo | {"RedrivePolicy": policy})["QueueUrl"]
        first = send(sqs, url)
        sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)
        assert sqs.receive_message(QueueUrl=dead, VisibilityTimeout=0, WaitTimeSeconds=5)["Messages"]
        broker.clock.ahead_s = 290
        sqs.start_message_move_task(SourceArn=arn)
        assert received(sqs, url) == ["b"]
    with served(tmp_path, ahead_s=400) as broker:
        sqs = client(broker.url)
        assert send(sqs, url, body="new") != first
        assert received(sqs, url) == ["new"]
