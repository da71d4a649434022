"""One node whose clock is wrong serves like the others: timestamps, checks and leases follow cluster time."""

import time
from collections.abc import Iterator, Mapping

import httpx
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.waiting import eventually

from .nodes import ChaosNodes, Needs, chaos_nodes
from .system_calls import missing_for_calls

HOURS = 6
TOLERANCE_MS = 60_000
DEADLINE_S = 60

pytestmark = pytest.mark.skipif(missing_for_calls() is not None, reason=missing_for_calls() or "")


@pytest.fixture(scope="module", params=[-HOURS, HOURS], ids=["behind", "ahead"])
def nodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosNodes]:
    with chaos_nodes(tmp_path_factory.mktemp("clock"), Needs(calls=True)) as nodes:
        nodes.create("records", 3)
        nodes.create("stamped", 3, {"message.timestamp.type": "LogAppendTime"})
        nodes.calls[1].set_clock(request.param * 3600)
        http = nodes.by_id[1].http
        eventually(lambda: is_noticed(http), within_s=DEADLINE_S, what="a clock that is wrong")
        yield nodes


def is_noticed(http: str) -> bool:
    checks = httpx.get(f"http://{http}/healthz", timeout=DEADLINE_S).json()["checks"]
    return bool(checks["clock"]["status"] != "ok")


@pytest.mark.parametrize("topic", ["records", "stamped"])
def test_records_of_right_producers_are_accepted_by_a_node_whose_clock_is_wrong(
    nodes: ChaosNodes, topic: str
) -> None:
    led = next(index for index, leader in nodes.leaders(topic).items() if leader == 1)
    delivered: list[object] = []
    producer = Producer(nodes.kafka_settings)
    producer.produce(topic, b"now", partition=led, on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert delivered == [None]
    assert abs(first(nodes, topic, led).timestamp()[1] - time.time() * 1000) < TOLERANCE_MS


def first(nodes: ChaosNodes, topic: str, partition: int) -> Message:
    consumer = Consumer({**nodes.kafka_settings, "group.id": "unused"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        assert message.error() is None
        return message
    finally:
        consumer.close()


def test_a_lease_lasts_as_long_at_a_node_whose_clock_is_wrong(nodes: ChaosNodes) -> None:
    with httpx.Client(base_url=f"http://{nodes.by_id[1].http}", timeout=DEADLINE_S) as http:
        http.post("/topics/records/messages", json={"messages": [{"value": "job"}]}).raise_for_status()
        polling: Mapping[str, str | int] = {
            "topic": "records",
            "max": 100,
            "visibility_ms": 60_000,
            "wait_ms": 10_000,
        }
        leased = http.get("/groups/workers/poll", params=polling).raise_for_status().json()["messages"]
        assert leased
        again = http.get("/groups/workers/poll", params={**polling, "wait_ms": 0}).raise_for_status().json()
        assert not {each["offset"] for each in again["messages"]} & {each["offset"] for each in leased}
        receipts = {"receipts": [each["receipt"] for each in leased]}
        settled = http.post("/messages/ack", json=receipts).raise_for_status().json()["results"]
        assert not [each for each in settled if "error" in each]


def test_a_delayed_message_is_due_at_the_right_time_at_a_node_whose_clock_is_wrong(nodes: ChaosNodes) -> None:
    with httpx.Client(base_url=f"http://{nodes.by_id[1].http}", timeout=DEADLINE_S) as http:
        due_ms = int(time.time() * 1000) + 1000
        body = {"messages": [{"value": "later", "deliver_at": due_ms}]}
        http.post("/topics/records/messages", json=body).raise_for_status()
        polling: Mapping[str, str | int] = {"topic": "records", "max": 100, "wait_ms": 10_000}

        def delivered() -> bool:
            polled = http.get("/groups/reminded/poll", params=polling).raise_for_status().json()["messages"]
            return "later" in [each["value"] for each in polled]

        eventually(delivered, within_s=DEADLINE_S, what="the delayed message")
        assert due_ms - 100 < time.time() * 1000 < due_ms + TOLERANCE_MS
