"""Transactions over HTTP: all of it or nothing, and one producer at a time."""

from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.brokers import Broker

from .problems import refused


class Producer:
    """A transactional producer over HTTP, which keeps the identity it was last answered."""

    def __init__(self, http: httpx.Client, transactional_id: str, **options: object) -> None:
        self._http = http
        answer = http.post("/producers/init", json={"transactional_id": transactional_id, **options})
        answer.raise_for_status()
        self.identity: dict[str, Any] = answer.json()

    def ask(self, verb: str, **fields: object) -> httpx.Response:
        return self._http.post(f"/transactions/{verb}", json={**self.identity, **fields})

    def publish(self, topic: str, *values: str, partition: int = 0) -> None:
        messages = [{"value": value, "partition": partition} for value in values]
        self.ask("publish", topic=topic, messages=messages).raise_for_status()

    def end(self, verb: str) -> None:
        answer = self.ask(verb)
        answer.raise_for_status()
        self.identity = answer.json()

    def heartbeat(self) -> httpx.Response:
        path = f"/producers/{self.identity['producer_id']}/heartbeat"
        return self._http.post(path, json={"producer_epoch": self.identity["producer_epoch"]})


def values(http: httpx.Client, topic: str, **query: str) -> list[str]:
    answer = http.get(f"/topics/{topic}/messages", params=query)
    answer.raise_for_status()
    return [each["value"] for each in answer.json()["messages"]]


def test_nothing_is_read_before_the_commit_and_everything_after(http: httpx.Client, made: str) -> None:
    producer = Producer(http, made)
    producer.ask("begin").raise_for_status()
    producer.publish(made, "a", "b")
    producer.publish(made, "c", partition=1)
    assert values(http, made) == []
    assert sorted(values(http, made, isolation="read_uncommitted")) == ["a", "b", "c"]
    producer.end("commit")
    assert sorted(values(http, made)) == ["a", "b", "c"]


def test_aborted_messages_are_never_read(http: httpx.Client, made: str) -> None:
    producer = Producer(http, made)
    for verb in ("commit", "abort", "commit", "abort"):
        producer.ask("begin").raise_for_status()
        producer.publish(made, verb, verb)
        producer.end(verb)
    http.post(f"/topics/{made}/messages", json={"value": "plain", "partition": 0}).raise_for_status()
    assert values(http, made) == ["commit"] * 4 + ["plain"]
    for offset in range(13):
        path = f"/topics/{made}/partitions/0/messages"
        page = http.get(path, params={"offset": offset}).json()
        assert "abort" not in {each["value"] for each in page["messages"]}


def test_a_kafka_consumer_agrees(broker: Broker, http: httpx.Client, made: str) -> None:
    producer = Producer(http, made)
    for verb in ("abort", "commit"):
        producer.publish(made, verb)
        producer.end(verb)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": made})
    consumer.assign([TopicPartition(made, 0, 0)])
    assert consumer.poll(30).value() == b"commit"
    consumer.close()


def test_a_waiting_reader_gets_committed_messages(http: httpx.Client, made: str) -> None:
    producer = Producer(http, made)
    producer.publish(made, "a")
    producer.end("commit")
    assert values(http, made, wait_ms="30000") == ["a"]


def test_offsets_are_committed_with_the_transaction(http: httpx.Client, made: str) -> None:
    http.post(f"/topics/{made}/messages", json={"value": "in", "partition": 0}).raise_for_status()
    path, offsets = f"/groups/{made}/offsets", [{"topic": made, "partition": 0, "offset": 1}]
    producer = Producer(http, made)
    for verb in ("abort", "commit"):
        producer.publish(made, "out", partition=1)
        answer = producer.ask("offsets", group=made, offsets=offsets)
        assert answer.json()["errors"] == 0
        assert [each["offset"] for each in http.get(path).json()["offsets"]] == []
        producer.end(verb)
    assert [each["offset"] for each in http.get(path).json()["offsets"]] == [1]
    assert values(http, made, offsets="1:0") == ["out"]


def test_a_newer_instance_fences_the_older_and_aborts_its_transaction(http: httpx.Client, made: str) -> None:
    older = Producer(http, made)
    older.publish(made, "left behind")
    newer = Producer(http, made)
    asked: dict[str, dict[str, object]] = {
        "begin": {},
        "publish": {"topic": made, "messages": [{"value": "zombie", "partition": 0}]},
        "add-partition": {"topic": made, "partition": 0},
        "offsets": {"group": made, "offsets": [{"topic": made, "partition": 0, "offset": 0}]},
        "commit": {},
        "abort": {},
    }
    for verb, fields in asked.items():
        assert older.ask(verb, **fields).status_code == 409, verb
    assert older.heartbeat().status_code == 409
    newer.publish(made, "new")
    newer.end("commit")
    assert values(http, made) == ["new"]


def test_a_commit_is_repeated_without_harm(http: httpx.Client, made: str) -> None:
    producer = Producer(http, made)
    producer.publish(made, "a")
    first = producer.ask("commit")
    again = producer.ask("commit")
    assert first.json() == again.json()
    refused(producer.ask("abort"), 409, "invalid-transaction-state")
    assert values(http, made) == ["a"]


def test_a_transaction_in_which_nothing_happened_ends_as_well(http: httpx.Client, made: str) -> None:
    producer = Producer(http, made)
    producer.ask("begin").raise_for_status()
    producer.end("commit")
    producer.ask("begin").raise_for_status()


def test_a_transaction_is_begun_once(http: httpx.Client, made: str) -> None:
    producer = Producer(http, made)
    producer.publish(made, "a")
    refused(producer.ask("begin"), 409, "invalid-transaction-state")
    producer.end("abort")


def test_transactions_are_shown(http: httpx.Client, made: str) -> None:
    producer = Producer(http, made, timeout_ms=50_000)
    answer = producer.ask("add-partition", topic=made, partition=1).json()
    assert answer["state"] == "ongoing"
    assert answer["partitions"] == [{"topic": made, "partition": 1}]
    assert answer["expires"] - answer["started"] == answer["timeout_ms"] == 50_000
    assert producer.heartbeat().json() == answer
    for query in ({"transactional_id": made}, {"producer_id": producer.identity["producer_id"]}):
        assert http.get("/transactions", params=query).json() == {"transactions": [answer], "next": None}
    assert http.get("/transactions", params={"transactional_id": made, "state": "empty"}).json() == {
        "transactions": [],
        "next": None,
    }
    stats = http.get("/transactions/stats").json()
    assert stats["by_state"]["ongoing"] >= 1
    assert stats["oldest_started"] <= answer["started"]
    producer.end("abort")


def test_delays_are_no_part_of_transactions(http: httpx.Client, made: str) -> None:
    producer = Producer(http, made)
    answer = producer.ask("publish", topic=made, messages=[{"value": "later", "delay": "1h"}])
    refused(answer, 422, "invalid-delay")


def test_a_producer_without_transactions_has_an_id_of_its_own(http: httpx.Client) -> None:
    first, second = (http.post("/producers/init", json={}).json() for _ in range(2))
    assert first["producer_id"] != second["producer_id"]
    path = f"/producers/{first['producer_id']}/heartbeat"
    refused(http.post(path, json={"producer_epoch": 0}), 404, "unknown-producer")


@pytest.mark.parametrize(
    ("body", "status"),
    [({"timeout_ms": 0}, 400), ({"timeout_ms": 10**9}, 422), ({"transactional_id": ""}, 400)],
)
def test_a_producer_that_cannot_be_is_refused(
    http: httpx.Client, body: dict[str, object], status: int
) -> None:
    assert http.post("/producers/init", json={"transactional_id": "x", **body}).status_code == status
