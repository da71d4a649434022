"""A data directory of an earlier version opens, and everything in it is served.

`data-0.1.zip` was written by version 0.1, which was then killed. To create one with the current version:
`python -m tests.integration.test_older_data DIRECTORY`.
"""

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.brokers import KEPT, Broker

ARCHIVE = Path(__file__).parent / "data-0.1.zip"
FAR_MS = 2_082_758_400_000  # the first day of 2036
YEARS_MS = 40 * 365 * 86_400_000


class Addresses(NamedTuple):
    """Where the data is served."""

    address: str
    http_address: str
    sqs_address: str


Served = Broker | Addresses


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("older")
    shutil.unpack_archive(ARCHIVE, directory)
    broker = Broker(directory / "data", config=KEPT).start()
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as client:
        yield client


def test_records_keys_and_headers_are_read(broker: Served) -> None:
    found = read(broker, "orders", "read_uncommitted")
    assert sorted((m.partition(), m.key(), m.value(), m.headers()) for m in found) == sorted(
        (number % 2, b"key-%d" % number, b"order %d" % number, [("n", b"%d" % number)])
        for number in range(20)
    )


def test_settings_of_topics_are_kept(http: httpx.Client) -> None:
    settings = http.get("/topics/orders").json()["settings"]
    assert settings["retention.ms"] == str(YEARS_MS)


def test_only_committed_records_of_transactions_are_read(broker: Served) -> None:
    assert [m.value() for m in read(broker, "paid", "read_committed")] == [b"committed"]
    assert [m.value() for m in read(broker, "paid", "read_uncommitted")] == [
        b"committed",
        b"aborted",
        b"open",
    ]


def test_a_producer_fences_the_killed_one_and_continues(broker: Served) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "left-open"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("later", b"after")
    producer.commit_transaction()
    assert [m.value() for m in read(broker, "later", "read_committed")] == [b"after"]


def test_groups_continue_at_their_committed_offsets(broker: Served) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "readers"})
    committed = consumer.committed([TopicPartition("orders", 0), TopicPartition("orders", 1)], timeout=30)
    assert [each.offset for each in committed] == [4, 7]
    consumer.close()


def test_a_queue_delivers_unfinished_messages(http: httpx.Client) -> None:
    """Messages in flight are redelivered; acknowledged and dead-lettered ones are not."""
    found = {message["value"]: message for message in poll(http, "jobs", 3)}
    assert set(found) == {"in flight", "retried", "waiting"}
    assert found["in flight"]["delivery_count"] == 2
    assert found["retried"]["delivery_count"] == 2


def test_dead_letters_record_their_origin(broker: Served) -> None:
    (letter,) = read(broker, "jobs.dlq", "read_committed")
    assert letter.value() == b"rejected"
    headers = dict(letter.headers() or [])
    assert any(b"jobs" in (value or b"") for value in headers.values())


def test_delayed_messages_are_pending_or_delivered(http: httpx.Client, broker: Served) -> None:
    (waiting,) = http.get("/topics/later-on/delayed").json()["messages"]
    assert waiting["deliver_at"] == FAR_MS
    deadline = time.monotonic() + 30
    while not (found := [m.value() for m in read(broker, "later-on", "read_committed")]):
        assert time.monotonic() < deadline
    assert found == [b"soon"]


def test_sqs_queues_have_their_messages(broker: Served) -> None:
    sqs = sqs_client(broker)
    standard = sqs.get_queue_url(QueueName="mail")["QueueUrl"]
    fifo = sqs.get_queue_url(QueueName="mail.fifo")["QueueUrl"]
    assert [m["Body"] for m in sqs.receive_message(QueueUrl=standard, WaitTimeSeconds=10)["Messages"]] == [
        "letter"
    ]
    received = sqs.receive_message(QueueUrl=fifo, WaitTimeSeconds=10, MaxNumberOfMessages=10)["Messages"]
    assert [m["Body"] for m in received] == ["first", "second"]


def check_all(served: Served) -> None:
    """Check everything; for data that is served elsewhere by now."""
    test_records_keys_and_headers_are_read(served)
    test_only_committed_records_of_transactions_are_read(served)
    test_a_producer_fences_the_killed_one_and_continues(served)
    test_groups_continue_at_their_committed_offsets(served)
    test_dead_letters_record_their_origin(served)
    test_sqs_queues_have_their_messages(served)
    with httpx.Client(base_url=f"http://{served.http_address}", timeout=60) as client:
        test_settings_of_topics_are_kept(client)
        test_a_queue_delivers_unfinished_messages(client)
        test_delayed_messages_are_pending_or_delivered(client, served)


def read(broker: Served, topic: str, isolation: str) -> list[Any]:
    """Return every record of a topic, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    found = []
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    for partition in partitions:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                break  # the end of the partition
            found.append(message)
    consumer.close()
    return found


def poll(http: httpx.Client, topic: str, count: int) -> list[dict[str, Any]]:
    """Receive `count` messages of a queue, in as many polls as necessary."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, found
        answer = http.get(
            "/groups/workers/poll",
            params={"topic": topic, "max": 10, "wait_ms": 1000, "visibility_ms": 60_000},
        )
        found += answer.json()["messages"]
    return found


def sqs_client(broker: Served) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=f"http://{broker.sqs_address}",
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106 - signatures are not checked
    )


def fill(broker: Broker) -> None:
    """Write everything that the tests expect."""
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as http:

        def post(path: str, body: Any) -> Any:
            answer = http.post(path, json=body)
            answer.raise_for_status()
            return answer.json()

        settings = {"retention.ms": str(YEARS_MS)}
        for topic, partitions in (("orders", 2), ("paid", 1), ("later", 1), ("later-on", 1), ("jobs", 1)):
            post("/topics", {"name": topic, "partitions": partitions, "settings": settings})
        producer = Producer({"bootstrap.servers": broker.address, "compression.type": "gzip"})
        for number in range(20):
            producer.produce(
                "orders",
                b"order %d" % number,
                key=b"key-%d" % number,
                headers=[("n", b"%d" % number)],
                partition=number % 2,
            )
        producer.flush(30)
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "readers"})
        consumer.commit(
            offsets=[TopicPartition("orders", 0, 4), TopicPartition("orders", 1, 7)], asynchronous=False
        )
        consumer.close()
        for end in ("committed", "aborted", "open"):
            transactional = Producer(
                {
                    "bootstrap.servers": broker.address,
                    "transactional.id": "left-open" if end == "open" else end,
                    "transaction.timeout.ms": 900_000,
                }
            )
            transactional.init_transactions()
            transactional.begin_transaction()
            transactional.produce("paid", end.encode())
            transactional.flush(30)
            if end == "committed":
                transactional.commit_transaction()
            elif end == "aborted":
                transactional.abort_transaction()
        for value in ("done", "rejected", "retried", "in flight", "waiting"):
            post("/topics/jobs/messages", {"value": value})
        leased = {m["value"]: m["receipt"] for m in poll_some(http, 4)}
        post("/messages/ack", {"receipts": [leased["done"]]})
        post("/messages/reject", {"receipts": [leased["rejected"]]})
        post("/messages/nack", {"receipts": [leased["retried"]]})
        post("/topics/later-on/messages", {"value": "far", "deliver_at": FAR_MS})
        post("/topics/later-on/messages", {"value": "soon", "delay_ms": 3_000})
        sqs = sqs_client(broker)
        attributes = {"MessageRetentionPeriod": "1209600"}
        mail = sqs.create_queue(QueueName="mail", Attributes=attributes)["QueueUrl"]
        sqs.send_message(QueueUrl=mail, MessageBody="letter")
        fifo = sqs.create_queue(QueueName="mail.fifo", Attributes={"FifoQueue": "true", **attributes})[
            "QueueUrl"
        ]
        for body in ("first", "second", "second"):
            sqs.send_message(QueueUrl=fifo, MessageBody=body, MessageGroupId="g", MessageDeduplicationId=body)
        deadline = time.monotonic() + 10
        while (
            "jobs.dlq"
            not in AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=10).topics
        ):
            assert time.monotonic() < deadline
        time.sleep(1)  # the dead letter is moved in the background


def poll_some(http: httpx.Client, count: int) -> list[dict[str, Any]]:
    answer = http.get(
        "/groups/workers/poll",
        params={"topic": "jobs", "max": count, "wait_ms": 10_000, "visibility_ms": 5_000},
    )
    answer.raise_for_status()
    messages: list[dict[str, Any]] = answer.json()["messages"]
    assert len(messages) == count
    return messages


def main(directory: Path) -> None:
    broker = Broker(directory / "data", config=KEPT + "[delays]\nmax_delay_ms = 315360000000\n").start()
    try:
        fill(broker)
    finally:
        broker.kill()
    shutil.make_archive(str(directory / ARCHIVE.stem), "zip", directory, "data")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
