"""One topic, several ways to read it, all at once."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import httpx
from confluent_kafka import Consumer
from pyspark.sql import SparkSession

from alpacamq.client.kafka.cluster import Cluster
from tests.brokers import Broker
from tests.waiting import eventually

from .topics import make_topic, produce

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC = "read-by-all"
HALF = 500
VALUES = [f"message-{number:04}" for number in range(2 * HALF)]


def _kafka(broker: Broker, seen: list[str]) -> None:
    """A member of a consumer group."""
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "by-log", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    while len(seen) < len(VALUES):
        seen += [(message.value() or b"").decode() for message in consumer.consume(100, 1)]
    consumer.close()


def _queue(broker: Broker, seen: list[str]) -> None:
    """A consumer that acknowledges message by message, over HTTP."""
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=30) as client:
        while len(seen) < len(VALUES):
            wanted: dict[str, str | int] = {"topic": TOPIC, "max": 50, "wait_ms": 1000}
            messages = client.get("/groups/by-queue/poll", params=wanted).json()["messages"]
            seen += [message["value"] for message in messages]
            if messages:
                receipts = [message["receipt"] for message in messages]
                client.post("/messages/ack", json={"receipts": receipts}).raise_for_status()


def _sqs(broker: Broker, seen: list[str]) -> None:
    """An AWS SDK."""
    client = boto3.client(
        "sqs",
        endpoint_url=f"http://{broker.sqs_address}",
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106 - not a secret
    )
    url = client.get_queue_url(QueueName=TOPIC)["QueueUrl"]
    while len(seen) < len(VALUES):
        answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        messages = answer.get("Messages", [])
        seen += [message["Body"] for message in messages]
        entries = [
            {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
            for number, message in enumerate(messages)
        ]
        if entries:
            client.delete_message_batch(QueueUrl=url, Entries=entries)


def test_a_group_two_queues_and_spark_read_the_same_topic_at_once(
    spark: SparkSession, broker: Broker, cluster: Cluster, tmp_path: Path
) -> None:
    make_topic(cluster, TOPIC, partitions=3)
    readers: dict[str, Callable[[Broker, list[str]], None]] = {"kafka": _kafka, "http": _queue, "sqs": _sqs}
    seen: dict[str, list[str]] = {name: [] for name in readers}
    produce(broker, TOPIC, VALUES[:HALF], partition=0)
    query = (
        spark.readStream.format("alpacamq")
        .option("kafka.bootstrap.servers", broker.address)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("CAST(value AS STRING) value")
        .writeStream.format("memory")
        .queryName("seen_by_spark")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    threads = [
        threading.Thread(target=read, args=(broker, seen[name]), daemon=True)
        for name, read in readers.items()
    ]
    for thread in threads:
        thread.start()
    produce(broker, TOPIC, VALUES[HALF:], partition=1)
    try:
        for thread in threads:
            thread.join(60)
        eventually(lambda: spark.table("seen_by_spark").count() >= len(VALUES), within_s=60)
        seen["spark"] = [row.value for row in spark.table("seen_by_spark").collect()]
    finally:
        query.stop()
    assert {name: sorted(values) for name, values in seen.items()} == dict.fromkeys(seen, VALUES)
