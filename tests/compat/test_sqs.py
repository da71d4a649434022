"""Queues through boto3, and the same messages through Kafka clients."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from random import Random

import boto3
import pytest

from alpacamq.model.headers import LANE
from alpacamq.model.murmur2 import partition_for_key
from tests.brokers import Broker
from tests.conftest import NewBroker

from . import sqs as boto
from .client import Record
from .confluent import Confluent
from .sqs import ACCESS_KEY_ID, SECRET_ACCESS_KEY, Sqs, drain

SIGNED = f"""
[sqs]
access_key_id = "{ACCESS_KEY_ID}"
secret_access_key = "{SECRET_ACCESS_KEY}"
region = "eu-central-1"
account_id = "123456789012"
"""


@pytest.fixture(scope="module")
def sqs(broker: Broker) -> Sqs:
    return boto.client(broker.sqs_address)


@pytest.fixture
def queue(sqs: Sqs, topic: str) -> str:
    url: str = sqs.create_queue(QueueName=topic[-80:].strip("-_"))["QueueUrl"]
    return url


def test_a_kafka_consumer_reads_messages_sent_over_sqs(sqs: Sqs, confluent: Confluent, queue: str) -> None:
    attributes = {
        "color": {"DataType": "String", "StringValue": "blau"},
        "count": {"DataType": "Number", "StringValue": "7"},
        "photo": {"DataType": "Binary", "BinaryValue": b"\x00\x01"},
    }
    sqs.send_message(
        QueueUrl=queue, MessageBody="grüße", MessageGroupId="tenant", MessageAttributes=attributes
    )
    name = queue.rpartition("/")[2]
    partition = partition_for_key(b"tenant", confluent.partition_count(name))
    (record,) = confluent.read(name, count=1, partition=partition)
    assert (record.key, record.value) == (b"tenant", "grüße".encode())
    assert {("color", b"blau"), ("count", b"7"), ("photo", b"\x00\x01")} <= set(record.headers)


def test_sqs_receives_messages_of_a_kafka_producer(sqs: Sqs, confluent: Confluent, topic: str) -> None:
    confluent.create_topic(topic, partitions=2)
    binary = b"\xff\x00 not text"
    confluent.produce(
        topic,
        [
            Record(
                value=b"text",
                key=b"key",
                headers=(("trace", b"1-2"), ("raw", b"\xff"), ("not an attribute", b"x")),
            ),
            Record(value=binary, partition=1),
            Record(value=None, key=b"tombstone", partition=1),
        ],
    )
    url = sqs.get_queue_url(QueueName=topic)["QueueUrl"]
    by_body = {message["Body"]: message for message in drain(sqs, url, 3)}
    text = by_body.pop("text")
    assert text["MessageAttributes"] == {
        "trace": {"DataType": "String", "StringValue": "1-2"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\xff"},
    }
    assert text["Attributes"]["MessageGroupId"] == "key"
    encoded = by_body.pop(base64.b64encode(binary).decode())
    assert encoded["MessageAttributes"]["alpacamq-encoding"]["StringValue"] == "base64"
    assert by_body.keys() == {""}


def test_an_attribute_sets_the_lane_of_a_message(sqs: Sqs, queue: str) -> None:
    lanes = ["background"] * 10 + ["critical"]
    for lane in lanes:
        attributes = {LANE: {"DataType": "String", "StringValue": lane}}
        # All of one group, which is one partition.
        sqs.send_message(QueueUrl=queue, MessageBody=lane, MessageGroupId="g", MessageAttributes=attributes)
    first_ten = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    (urgent,) = [message for message in first_ten["Messages"] if message["Body"] == "critical"]
    assert urgent["MessageAttributes"] == {LANE: {"DataType": "String", "StringValue": "critical"}}


def test_queues_messages_and_leases_survive_a_kill(new_broker: NewBroker) -> None:
    broker = new_broker()
    broker.start()
    sqs = boto.client(broker.sqs_address)
    url = sqs.create_queue(QueueName="q", Attributes={"VisibilityTimeout": "600"}, tags={"a": "b"})[
        "QueueUrl"
    ]
    sent = {sqs.send_message(QueueUrl=url, MessageBody=f"m{index}")["MessageId"] for index in range(9)}
    held, deleted, *_ = drain(sqs, url, 2, VisibilityTimeout=600)[:2]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=deleted["ReceiptHandle"])
    fifo = sqs.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    once = {"QueueUrl": fifo, "MessageBody": "b", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    first = sqs.send_message(**once)
    name = "ApproximateNumberOfMessagesNotVisible"
    in_flight = int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])
    broker.kill()
    broker.start()
    sqs = boto.client(broker.sqs_address)
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "b"}
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout", name])["Attributes"]
    assert found == {"VisibilityTimeout": "600", name: str(in_flight)}
    left = 9 - 1 - in_flight
    rest = drain(sqs, url, left) if left else []
    assert {message["MessageId"] for message in rest} < sent - {held["MessageId"], deleted["MessageId"]}
    again = sqs.send_message(**once)
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    # The receipt from before the kill is still valid.
    sqs.delete_message(QueueUrl=url, ReceiptHandle=held["ReceiptHandle"])


def test_concurrent_consumers_keep_the_order_within_groups(broker: Broker, sqs: Sqs, topic: str) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    url = sqs.create_queue(QueueName=f"{topic[-75:]}.fifo".lstrip("-_"), Attributes=attributes)["QueueUrl"]
    groups, count = "abcde", 30
    for number in range(0, count, 2):
        entries = [
            {"Id": f"{group}{each}", "MessageBody": f"{group}{each:02}", "MessageGroupId": group}
            for group in groups
            for each in (number, number + 1)
        ]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    done: list[str] = []

    def consume(seed: int) -> None:
        own, random = boto.client(broker.sqs_address), Random(seed)
        while len(done) < len(groups) * count:
            answer = own.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=random.randint(1, 10),
                WaitTimeSeconds=1,
                VisibilityTimeout=60,
            )
            for message in answer.get("Messages", []):
                # Before it is deleted: after that the next of its group may be delivered to any consumer.
                done.append(message["Body"])
                own.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(consume, range(4)))
    for group in groups:
        assert [body for body in done if body.startswith(group)] == [
            f"{group}{each:02}" for each in range(count)
        ]


def test_signatures_are_checked_if_credentials_are_configured(new_broker: NewBroker) -> None:
    broker = new_broker(config=SIGNED)
    broker.start()
    sqs = boto.client(broker.sqs_address, region="eu-central-1")
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    assert url == f"http://{broker.sqs_address}/123456789012/q"
    sqs.send_message(QueueUrl=url, MessageBody="x")
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    assert arn == "arn:aws:sqs:eu-central-1:123456789012:q"
    stranger = boto.client(broker.sqs_address, secret=SECRET_ACCESS_KEY[::-1], region="eu-central-1")
    with pytest.raises(stranger.exceptions.ClientError, match="SignatureDoesNotMatch"):
        stranger.receive_message(QueueUrl=url)


def test_boto3s_resources_work(broker: Broker, sqs: Sqs, topic: str) -> None:
    """Test the object-oriented half of boto3, which reads attributes and sub-resources from our answers."""
    resource = boto3.resource(
        "sqs",
        endpoint_url=f"http://{broker.sqs_address}",
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
    )
    dead = resource.create_queue(QueueName=f"{topic[-70:]}-dead")
    policy = json.dumps({"deadLetterTargetArn": dead.attributes["QueueArn"], "maxReceiveCount": 5})
    queue = resource.create_queue(QueueName=topic[-80:], Attributes={"RedrivePolicy": policy})
    assert [source.url for source in dead.dead_letter_source_queues.all()] == [queue.url]
    assert queue.url in {each.url for each in resource.queues.filter(QueueNamePrefix=topic[-80:])}
    queue.send_message(MessageBody="hello")
    (message,) = queue.receive_messages(WaitTimeSeconds=10)
    assert message.body == "hello"
    message.change_visibility(VisibilityTimeout=60)
    message.delete()
    queue.delete()
