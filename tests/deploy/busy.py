"""Generates traffic of every kind, so that every metric of the broker has a value."""

import time
from contextlib import suppress
from typing import Any, Protocol

import boto3
import httpx
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import alpacamq
from alpacamq.model.pipelines import PIPELINES_TOPIC

TOPIC = "orders"
GROUP = "readers"
WORKERS = "workers"


class Addresses(Protocol):
    """Of a broker."""

    @property
    def address(self) -> str: ...
    @property
    def http_address(self) -> str: ...
    @property
    def sqs_address(self) -> str: ...
    @property
    def grpc_address(self) -> str: ...


class Traffic:
    """Clients of every API; each `round` is some of everything."""

    def __init__(self, broker: Addresses, suffix: str = "") -> None:
        """`suffix` makes names of topics and groups its own."""
        self._topic = TOPIC + suffix
        self._group = GROUP + suffix
        quiet = {"bootstrap.servers": broker.address, "log_level": 0}
        self._http = httpx.Client(base_url=f"http://{broker.http_address}", timeout=30)
        self._http.post("/topics", json={"name": self._topic, "partitions": 2}).raise_for_status()
        self._producer = Producer({**quiet, "linger.ms": 0})
        self._transactions = Producer({**quiet, "transactional.id": f"payments{suffix}", "linger.ms": 0})
        self._transactions.init_transactions(30)
        self._consumer = Consumer({**quiet, "group.id": self._group, "auto.offset.reset": "earliest"})
        self._consumer.subscribe([self._topic])
        self._has_committed = False
        self._admin = AdminClient(quiet)
        self._sqs: Any = boto3.client(
            "sqs",
            endpoint_url=f"http://{broker.sqs_address}",
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",  # noqa: S106 - any will do
        )
        self._url = self._sqs.create_queue(QueueName=f"jobs{suffix}")["QueueUrl"]
        self._grpc = alpacamq.connect(f"alpaca://{broker.grpc_address}")

    def close(self) -> None:
        self._consumer.close()
        self._http.close()
        self._grpc.close()

    def round(self) -> None:
        self._over_kafka()
        self._over_http()
        self._over_sqs()
        self._over_registry()
        self._over_grpc()
        self._of_a_pipeline()

    def _over_kafka(self) -> None:
        for number in range(20):
            self._producer.produce(self._topic, b"x" * 100, key=str(number))
        assert self._producer.flush(30) == 0
        for end in (self._transactions.commit_transaction, self._transactions.abort_transaction):
            self._transactions.begin_transaction()
            self._transactions.produce(self._topic, b"paid")
            assert self._transactions.flush(30) == 0
            end(30)
        messages = self._consumer.consume(10, timeout=0.3 if self._has_committed else 30)
        if messages:
            last = messages[-1]
            place = TopicPartition(last.topic(), last.partition(), last.offset() + 1)
            self._consumer.commit(offsets=[place], asynchronous=False)
            self._has_committed = True
        for deleting in self._admin.delete_topics(["absent"]).values():
            with suppress(KafkaException):
                deleting.result(30)

    def _over_http(self) -> None:
        http = self._http
        messages: list[dict[str, object]] = [
            {"value": "m", "priority": lane} for lane in ("critical", "normal", "low")
        ]
        messages += [{"value": "later", "delay_ms": 50}, {"value": "much later", "delay_ms": 600_000}]
        http.post(f"/topics/{self._topic}/messages", json={"messages": messages}).raise_for_status()
        polled = http.get(f"/groups/{WORKERS}/poll", params={"topic": self._topic, "max": 4}).json()[
            "messages"
        ]
        for ending, message in zip(("ack", "nack", "reject"), polled, strict=False):
            http.post(f"/messages/{ending}", json={"receipts": [message["receipt"]]}).raise_for_status()
        assert http.get("/topics/absent").status_code == 404

    def _of_a_pipeline(self) -> None:
        """Report progress as a data pipeline does."""
        now_ms = time.time_ns() // 1_000_000
        report = {"name": "archive", "kind": "archive", "state": "running", "lag": 3}
        times = dict.fromkeys(("started", "updated", "batch_at"), now_ms)
        message = {"key": "archive", "value": report | times}
        self._http.post(f"/topics/{PIPELINES_TOPIC}/messages", json=message).raise_for_status()

    def _over_sqs(self) -> None:
        self._sqs.send_message(QueueUrl=self._url, MessageBody="job")
        for message in self._sqs.receive_message(QueueUrl=self._url).get("Messages", ()):
            self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
        with suppress(ClientError):
            self._sqs.get_queue_url(QueueName="absent")

    def _over_registry(self) -> None:
        self._http.post("/schemas/subjects/busy/versions", json={"schema": '"string"'}).raise_for_status()
        assert self._http.get("/schemas/subjects/absent/versions").status_code == 404

    def _over_grpc(self) -> None:
        with self._grpc.topic(self._topic).queue("streams").receive(credit=5) as jobs, next(iter(jobs)):
            pass  # acknowledged
