"""One message through every API and a crash: its trace has each step, in the CLI and in OTLP, too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from tests.brokers import Broker
from tests.cli.command import Command
from tests.compat import sqs
from tests.telemetry.tracing.collector import Collector, attributes, collecting
from tests.waiting import eventually

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
JOURNEY = [
    "publish.received",
    "publish.partitioned",
    "publish.persisted",
    "consume.fetched",
    "visibility.timeout",
    "consume.fetched",
    "consume.rejected",
    "dlq.routed",
    "dlq.redriven",
    "consume.fetched",
    "consume.acked",
]
SPANS = ["publish orders", "receive orders", "receive orders", "dead_letter orders.dlq", "redrive orders"]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def broker(tmp_path: Path, collector: Collector) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data", config=f'[tracing]\notlp_endpoint = "{collector.endpoint}"\n')
    try:
        yield broker.start()
    finally:
        broker.end()


class Journey:
    """The steps of the test with one message."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def get(self, path: str, **query: Any) -> Any:
        answer = httpx.get(f"http://{self.broker.http_address}{path}", params=query, timeout=10)
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str, body: object) -> Any:
        answer = httpx.post(f"http://{self.broker.http_address}{path}", json=body, timeout=10)
        answer.raise_for_status()
        return answer.json()

    def publish(self, headers: dict[str, str]) -> str:
        """Publish over Kafka; return the trace id, found by searching for the message."""
        producer = Producer({"bootstrap.servers": self.broker.address, "client.id": "shop"})
        producer.produce("orders", b"tea", key=b"alice", headers=dict(headers))
        assert producer.flush(10) == 0
        (found,) = self.get("/traces/search", topic="orders", partition=0, offset=0)["traces"]
        trace_id: str = found["trace_id"]
        return trace_id

    def receive(self, visibility_s: int) -> str:
        """Receive over SQS; return the receipt."""
        client = sqs.client(self.broker.sqs_address)
        url = client.get_queue_url(QueueName="orders")["QueueUrl"]
        answer = client.receive_message(QueueUrl=url, VisibilityTimeout=visibility_s, WaitTimeSeconds=10)
        receipt: str = answer["Messages"][0]["ReceiptHandle"]
        return receipt

    def delete(self, receipt: str) -> None:
        client = sqs.client(self.broker.sqs_address)
        url = client.get_queue_url(QueueName="orders")["QueueUrl"]
        client.delete_message(QueueUrl=url, ReceiptHandle=receipt)

    def names(self, trace_id: str) -> list[str]:
        return [event["name"] for event in self.get(f"/traces/{trace_id}")["events"]]

    def wait_until_written(self) -> None:
        """Wait until a crash loses no recorded event."""

        def is_written() -> bool:
            stats = self.get("/traces/stats")
            return bool(stats["log_written_total"] == stats["events_total"])

        eventually(is_written)


@pytest.mark.parametrize("begun_by", ["the producer", "sampling"])
def test_a_message_is_traced_through_all_apis_and_a_crash(
    broker: Broker, collector: Collector, begun_by: str
) -> None:
    journey = Journey(broker)
    is_sampled = begun_by == "sampling"
    settings = {"trace.sample": "1"} if is_sampled else {}
    journey.post("/topics", {"name": "orders", "partitions": 1, "settings": settings})

    trace_id = journey.publish({} if is_sampled else {"traceparent": f"00-{TRACE}-{SPAN}-01"})
    assert is_sampled or trace_id == TRACE
    journey.receive(visibility_s=1)
    receipt = journey.receive(visibility_s=600)  # the second delivery, after the first timed out
    eventually(lambda: len(collector.spans) >= 2)
    journey.wait_until_written()
    broker.kill()
    broker.start()
    journey.post("/messages/reject", {"receipt": receipt, "reason": "cold"})
    eventually(lambda: "dlq.routed" in journey.names(trace_id))
    journey.post("/topics/orders.dlq/dead-letters/redrive", {})
    eventually(lambda: "dlq.redriven" in journey.names(trace_id))
    journey.delete(journey.receive(visibility_s=600))

    trace = journey.get(f"/traces/{trace_id}")
    assert [event["name"] for event in trace["events"]] == JOURNEY
    assert trace["status"] == "acked"
    addresses = [event["door"] for event in trace["events"]]
    assert addresses == ["kafka"] * 3 + ["sqs", "broker", "sqs", "http", "broker", "broker", "sqs", "sqs"]
    timestamps = [event["at"] for event in trace["events"]]
    assert timestamps == sorted(timestamps)

    alpacactl = Command(broker.address, broker.http_address)
    for message in (trace_id, "orders/0/0", "orders.dlq/0/0", "orders/0/1"):
        lines = alpacactl.ok("trace", message).splitlines()
        assert lines[0].startswith(f"trace {trace_id}: acked, 11 steps in ")
        assert [word for line in lines for word in line.split() if word in JOURNEY] == JOURNEY
    (listed,) = alpacactl.json("trace", "list", "--topic", "orders", "--status", "acked")
    assert (listed["trace_id"], listed["events"]) == (trace_id, 11)

    eventually(lambda: len(collector.spans) >= 6)
    spans = collector.spans
    assert [span.name for span in spans] == [*SPANS, "receive orders"]
    assert {span.trace_id.hex() for span in spans} == {trace_id}
    told = sorted((event.time_unix_nano, event.name) for span in spans for event in span.events)
    assert sorted(name for _, name in told) == sorted(JOURNEY)
    known = {span.span_id for span in spans}
    root, *others = spans
    assert root.parent_span_id.hex() == ("" if is_sampled else SPAN)
    assert all(span.parent_span_id in known for span in others)
    assert [attributes(span).get("alpacamq.delivery_count") for span in spans] == [None, 1, 2, 2, None, 1]


def test_an_unreachable_collector_does_not_affect_the_broker(tmp_path: Path) -> None:
    with collecting() as collector:
        pass  # its port is closed now
    broker = Broker(tmp_path / "data", config=f'[tracing]\notlp_endpoint = "{collector.endpoint}"\n')
    try:
        journey = Journey(broker.start())
        journey.post("/topics", {"name": "orders", "partitions": 1, "settings": {"trace.sample": "1"}})
        trace_id = journey.publish({})
        assert journey.names(trace_id) == JOURNEY[:3]
        broker.stop()
    finally:
        broker.end()
