"""Loads on queues and delays: over HTTP and SQS, at any node.

A request that fails or is not answered in time has an unknown outcome; the next one goes to another node.
"""

import http.client
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any
from urllib.parse import urlencode

import boto3
import botocore.exceptions
import msgspec
from botocore.config import Config
from confluent_kafka import Consumer, TopicPartition

from tests.waiting import eventually

from .history import (
    Acked,
    Delayed,
    Delaying,
    Drained,
    Event,
    Failed,
    History,
    Leased,
    Read,
    Sent,
    Settled,
    Settling,
)
from .loads import FINISH_S, IMPATIENT, PARTITIONS, Workers, ends_of, read_back
from .nodes import CALL_S, Cluster

PAUSE_S = 0.05
LEASE_MS = 6000
WAIT_MS = 1000
# A queue is empty if nothing came for longer than any lease.
EMPTY_S = LEASE_MS / 1000 + 3
ACTIONS = {"ack": 85, "nack": 5, "forget": 10}


class NotAnswered(Exception):
    """There was no answer, or one that says so little."""


class AnyNode:
    """The HTTP API of whichever node answers."""

    def __init__(self, nodes: Cluster, history: History, client: str, dice: Random) -> None:
        self._nodes = nodes
        self._history = history
        self._client = client
        self._dice = dice
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """Return the answer; raises NotAnswered, and the next request goes to another node."""
        if self._connection is None:
            self._connection = self._nodes.connect(self._dice.choice(list(self._nodes)).http)
        target = f"{path}?{urlencode(query)}" if query else path
        begun_s = time.monotonic()
        data = None if body is None else msgspec.json.encode(body)
        try:
            self._connection.request(
                method, target, data, {"Content-Type": "application/json"} if data else {}
            )
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(f"{method} {path}: {error!r}", begun_s) from error
        if response.status >= 400:
            raise self._failed(f"{method} {path}: {response.status} {answer.decode()[:200]}", begun_s)
        return msgspec.json.decode(answer) if answer else None

    def _failed(self, error: str, begun_s: float) -> NotAnswered:
        assert self._connection is not None
        where = f"{self._connection.host}:{self._connection.port}"
        self._history.write(Failed(self._client, f"{error} from {where}", time.monotonic() - begun_s))
        self.close()
        return NotAnswered(error)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class QueueLoad:
    """Publishers and consumers of a queue. Consumers acknowledge, release or forget what they receive."""

    topic = "jobs"
    group = "workers"

    def __init__(self, nodes: Cluster, history: History, seed: int) -> None:
        self._nodes = nodes
        self._history = history
        self._seed = seed
        self._publishers = Workers(history)
        self._consumers = Workers(history)
        self._is_draining = False
        self._last_delivery_s = 0.0

    def prepare(self) -> None:
        self._nodes.create(
            self.topic, PARTITIONS, {"queue.max.deliveries": "1000", "queue.backoff.max.ms": "1000"}
        )

    def start(self) -> None:
        self._publishers.start("publisher", partial(self._publish, "j"))
        for number in range(3):
            self._consumers.start(f"consumer-{number}", partial(self._consume, f"c{number}"))

    def finish(self) -> None:
        self._publishers.stop()
        self._is_draining = True
        self._last_delivery_s = time.monotonic()
        eventually(
            lambda: time.monotonic() > self._last_delivery_s + EMPTY_S,
            within_s=FINISH_S,
            what="an empty queue",
        )
        self._consumers.stop()
        self._history.write(Drained(self.topic))

    def _publish(self, name: str) -> None:
        dice = Random(f"{self._seed}-{name}")
        api = AnyNode(self._nodes, self._history, name, dice)
        number = 0
        while not self._publishers.stopping.is_set():
            values = [f"{name}.{number + each}" for each in range(dice.randrange(1, 10))]
            number += len(values)
            self._history.write(*(Sent(self.topic, -1, name, value) for value in values))
            try:
                body = {"messages": [{"value": value} for value in values]}
                answer = api.ask("POST", f"/topics/{self.topic}/messages", body)
            except NotAnswered:
                time.sleep(PAUSE_S)
                continue
            self._history.write(
                *(
                    Acked(self.topic, result["partition"], value, result["offset"])
                    for value, result in zip(values, answer["results"], strict=True)
                    if "error" not in result
                )
            )
            time.sleep(PAUSE_S)

    def _consume(self, name: str) -> None:
        dice = Random(f"{self._seed}-{name}")
        api = AnyNode(self._nodes, self._history, name, dice)
        while not self._consumers.stopping.is_set():
            asked_s = time.monotonic()
            try:
                answer = api.ask(
                    "GET",
                    f"/groups/{self.group}/poll",
                    topic=self.topic,
                    max=dice.choice([1, 5, 20]),
                    wait_ms=WAIT_MS,
                    visibility_ms=LEASE_MS,
                    consumer=name,
                )
            except NotAnswered:
                time.sleep(PAUSE_S)
                continue
            messages = answer["messages"]
            if not messages:
                continue
            self._last_delivery_s = time.monotonic()
            self._history.write(
                *(Leased(self.topic, name, each["value"], LEASE_MS, asked_s) for each in messages)
            )
            by_action: dict[str, list[Any]] = {}
            for message in messages:
                (action,) = dice.choices(list(ACTIONS), list(ACTIONS.values()))
                by_action.setdefault("ack" if self._is_draining else action, []).append(message)
            by_action.pop("forget", None)
            for action, chosen in by_action.items():
                with suppress(NotAnswered):  # its outcome is unknown, or the lease has expired
                    self._settle(api, name, action, chosen)

    def _settle(self, api: AnyNode, consumer: str, action: str, messages: list[Any]) -> None:
        self._history.write(*(Settling(self.topic, consumer, each["value"], action) for each in messages))
        answer = api.ask("POST", f"/messages/{action}", {"receipts": [each["receipt"] for each in messages]})
        self._history.write(
            *(
                Settled(self.topic, consumer, message["value"], action)
                for message, result in zip(messages, answer["results"], strict=True)
                if "error" not in result
            )
        )


class SqsLoad:
    """Senders and receivers of an SQS queue, with the AWS SDK's own retries."""

    queue = "payments"

    def __init__(self, nodes: Cluster, history: History, seed: int) -> None:
        self._nodes = nodes
        self._history = history
        self._seed = seed
        self._senders = Workers(history)
        self._receivers = Workers(history)
        self._last_delivery_s = 0.0

    def prepare(self) -> None:
        def is_created() -> bool:
            try:
                self._client(Random(self._seed)).create_queue(
                    QueueName=self.queue, Attributes={"VisibilityTimeout": str(LEASE_MS // 1000)}
                )
            except botocore.exceptions.ClientError:
                return False
            return True

        eventually(is_created, within_s=FINISH_S, what="an SQS queue")

    def start(self) -> None:
        self._senders.start("sender", partial(self._run, self._senders, "s", self._send))
        for number in range(2):
            name = f"r{number}"
            self._receivers.start(name, partial(self._run, self._receivers, name, self._receive))

    def finish(self) -> None:
        self._senders.stop()
        self._last_delivery_s = time.monotonic()
        eventually(
            lambda: time.monotonic() > self._last_delivery_s + EMPTY_S,
            within_s=FINISH_S,
            what="an empty queue",
        )
        self._receivers.stop()
        self._history.write(Drained(self.queue))

    def _run(self, workers: Workers, name: str, step: Callable[[Any, str, Random, int], None]) -> None:
        dice = Random(f"{self._seed}-{name}")
        client = self._client(dice)
        number = 0
        while not workers.stopping.is_set():
            number += 1
            try:
                step(client, name, dice, number)
            except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
                self._history.write(Failed(name, str(error), 0.0))
                client = self._client(dice)
                time.sleep(PAUSE_S)

    def _send(self, client: Any, name: str, dice: Random, number: int) -> None:
        value = f"{name}.{number}"
        self._history.write(Sent(self.queue, -1, name, value))
        client.send_message(QueueUrl=self._url(client), MessageBody=value)
        self._history.write(Acked(self.queue, -1, value, -1))
        time.sleep(PAUSE_S)

    def _receive(self, client: Any, name: str, dice: Random, number: int) -> None:
        asked_s = time.monotonic()
        url = self._url(client)
        answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        for message in answer.get("Messages", ()):
            self._last_delivery_s = time.monotonic()
            value = message["Body"]
            self._history.write(Leased(self.queue, name, value, LEASE_MS, asked_s))
            if dice.random() < 0.1 and not self._senders.stopping.is_set():
                continue  # it comes again after its lease
            self._history.write(Settling(self.queue, name, value))
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            self._history.write(Settled(self.queue, name, value))

    def _url(self, client: Any) -> str:
        return f"{client.meta.endpoint_url}/000000000000/{self.queue}"

    def _client(self, dice: Random) -> Any:
        node = dice.choice(list(self._nodes))
        authority = self._nodes.authority
        return boto3.client(
            "sqs",
            endpoint_url=f"{'https' if authority else 'http'}://{node.sqs}",
            verify=str(authority.ca) if authority else None,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",  # noqa: S106
            # A send that is repeated by the library would be a duplicate that no API promises to find.
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=3, read_timeout=CALL_S),
        )


class DelayLoad:
    """Delayed messages over HTTP, and a reader of their topic."""

    topic = "reminders"

    def __init__(self, nodes: Cluster, history: History, seed: int) -> None:
        self._nodes = nodes
        self._history = history
        self._seed = seed
        self._publishers = Workers(history)
        self._readers = Workers(history)
        self._last_due_s = 0.0

    def prepare(self) -> None:
        self._nodes.create(self.topic, PARTITIONS)

    def start(self) -> None:
        self._publishers.start("delayer", self._publish)
        self._readers.start("reminded", self._read)

    def finish(self) -> None:
        self._publishers.stop()
        eventually(
            lambda: time.monotonic() > self._last_due_s + 2, within_s=FINISH_S, what="the last due time"
        )
        ends = ends_of(self._nodes, self.topic)
        eventually(
            lambda: self._read_to >= sum(ends.values()), within_s=FINISH_S, what="all delayed messages"
        )
        self._readers.stop()
        read_back(self._nodes, self._history, self.topic)

    def _publish(self) -> None:
        dice = Random(f"{self._seed}-delays")
        api = AnyNode(self._nodes, self._history, "delayer", dice)
        number = 0
        while not self._publishers.stopping.is_set():
            delays = [(f"d.{number + each}", dice.choice((300, 1000, 5000, 15_000))) for each in range(3)]
            number += len(delays)
            self._history.write(*(Delaying(self.topic, value, delay_ms) for value, delay_ms in delays))
            now_ms = int(time.time() * 1000) + 1
            self._last_due_s = max(self._last_due_s, time.monotonic() + 15)
            body = {"messages": [{"value": value, "deliver_at": now_ms + delay} for value, delay in delays]}
            try:
                answer = api.ask("POST", f"/topics/{self.topic}/messages", body)
            except NotAnswered:
                time.sleep(PAUSE_S)
                continue
            self._history.write(
                *(
                    Delayed(self.topic, value)
                    for (value, _), result in zip(delays, answer["results"], strict=True)
                    if "error" not in result
                )
            )
            time.sleep(PAUSE_S)

    def _read(self) -> None:
        consumer = Consumer(
            {
                **self._nodes.kafka_settings,
                **IMPATIENT_READER,
                "group.id": "unused",
                "fetch.wait.max.ms": 100,
            }
        )
        consumer.assign([TopicPartition(self.topic, index, 0) for index in range(PARTITIONS)])
        ends = [0] * PARTITIONS
        try:
            while not self._readers.stopping.is_set():
                read: list[Event] = []
                for message in consumer.consume(100, 0.1):
                    if message.error() is None:
                        index, offset = message.partition(), message.offset()
                        read.append(Read("reminded", self.topic, index, offset, message.value().decode()))
                        ends[index] = offset + 1
                self._history.write(*read)
                self._read_to = sum(ends)
        finally:
            consumer.close()

    _read_to = 0


IMPATIENT_READER = {"socket.timeout.ms": IMPATIENT["socket.timeout.ms"]}
