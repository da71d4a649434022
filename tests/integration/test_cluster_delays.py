"""Delayed messages of a cluster of real processes: each is delivered once, when it is due, across kills."""

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from fastcrc.crc32 import iscsi as crc32c

from alpacamq.model.headers import DELIVER_AT
from alpacamq.model.topics import DELAYS_TOPIC
from tests.waiting import eventually

from .nodes import Node, Nodes, running_nodes
from .test_cluster import PARTITIONS, leaders

TOPIC = "orders"
MESSAGES = 150
DELAY_S = 6


def is_past(at: float) -> bool:
    return time.monotonic() >= at


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def sqs_client(node: Node) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=f"http://{node.sqs}",
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106 - signatures are not checked
        config=Config(read_timeout=60, retries={"max_attempts": 1}),
    )


def send_over_http(node: Node, values: list[str]) -> None:
    with httpx.Client(base_url=f"http://{node.http}", timeout=60) as http:
        for value in values:
            body = {"value": value, "delay_ms": DELAY_S * 1000}
            answer = http.post(f"/topics/{TOPIC}/messages", json=body)
            answer.raise_for_status()
            assert "delayed_id" in answer.json(), answer.text


def send_over_sqs(node: Node, values: list[str]) -> None:
    sqs = sqs_client(node)
    url = sqs.get_queue_url(QueueName=TOPIC)["QueueUrl"]
    # The queue's URL names the node that was asked first.
    for value in values:
        sqs.send_message(QueueUrl=url, MessageBody=value, DelaySeconds=DELAY_S)


def send_over_kafka(nodes: Nodes, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": nodes.kafka, "enable.idempotence": True, "log_level": 2})
    for at, value in enumerate(values):
        due_ms = str(now_ms() + DELAY_S * 1000)
        producer.produce(
            TOPIC, value.encode(), partition=at % PARTITIONS, headers=[(DELIVER_AT, due_ms.encode())]
        )
        producer.poll(0)
    assert producer.flush(60) == 0


def send_everywhere(nodes: Nodes, values: list[str]) -> None:
    """Send a part of the values over each API of each node."""
    calls = [(send_over_http, node) for node in nodes] + [(send_over_sqs, node) for node in nodes]
    with ThreadPoolExecutor(7) as threads:
        sending = [
            threads.submit(send, node, values[at :: len(calls) + 1]) for at, (send, node) in enumerate(calls)
        ]
        sending.append(threads.submit(send_over_kafka, nodes, values[len(calls) :: len(calls) + 1]))
        for each in sending:
            each.result()


def read(nodes: Nodes, count: int) -> list[Any]:
    """Return the messages of the topic, once there are so many, and what comes in the second after that."""
    consumer = Consumer({"bootstrap.servers": nodes.kafka, "group.id": "unused", "log_level": 2})
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: list[Any] = []

    def is_read() -> bool:
        found.extend(each for each in consumer.consume(1000, 0.2) if each.error() is None)
        return len(found) >= count

    try:
        eventually(is_read, within_s=40)
        found.extend(each for each in consumer.consume(1000, 1.0) if each.error() is None)
        return found
    finally:
        consumer.close()


def check(messages: list[Any], values: list[str]) -> None:
    """Check that each value is there once, and was not delivered early."""
    assert Counter(message.value().decode() for message in messages) == Counter(values)
    for message in messages:
        due_ms = int(dict(message.headers())[DELIVER_AT])
        assert message.timestamp()[1] >= due_ms, (message.value(), message.timestamp(), due_ms)


@pytest.mark.heavy
def test_delayed_messages_are_delivered_once_though_brokers_are_killed(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        admin = AdminClient({"bootstrap.servers": nodes.kafka})
        new = NewTopic(TOPIC, PARTITIONS, 3, config={"message.delays": "true"})
        admin.create_topics([new])[TOPIC].result(30)
        eventually(lambda: all(leader > 0 for leader in leaders(nodes, TOPIC)), what="leaders")
        values: list[str] = []

        def broker_of_delay_log() -> int:
            found = leaders(nodes, DELAYS_TOPIC)
            return found[crc32c(f"{TOPIC}-0".encode()) % len(found)]

        def leader_of_target() -> int:
            return leaders(nodes, TOPIC)[0]

        for wave, victim_id in enumerate((broker_of_delay_log, leader_of_target)):
            some = [json.dumps([wave, number]) for number in range(MESSAGES)]
            began = time.monotonic()
            send_everywhere(nodes, some)
            values += some
            victim = nodes.by_id[victim_id()]
            # The first ones are being delivered.
            eventually(partial(is_past, began + DELAY_S + 0.05))
            victim.kill()
            check(read(nodes, len(values)), values)
            if wave == 0:
                victim.start()
                victim.wait_until_ready(2)
        for node in nodes:
            if not node.is_running:
                continue
            answer = httpx.get(f"http://{node.http}/delay/stats", timeout=60).json()
            assert answer["pending"] == 0
