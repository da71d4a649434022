"""Traces through each API, with common clients."""

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import Consumer, Producer

from tests.brokers import Broker
from tests.compat import share, sqs
from tests.waiting import eventually

SPAN = "b7ad6b7169203331"
PUBLISHED = ["publish.received", "publish.partitioned", "publish.persisted"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("traced") / "data")
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=30) as client:
        yield client


@pytest.fixture
def topic(http: httpx.Client) -> str:
    name = f"orders-{uuid4().hex[:8]}"
    made(http, name)
    return name


def made(http: httpx.Client, name: str, **settings: str) -> None:
    http.post("/topics", json={"name": name, "partitions": 1, "settings": settings}).raise_for_status()


def traceparent(trace_id: str) -> str:
    return f"00-{trace_id}-{SPAN}-01"


def events(http: httpx.Client, trace_id: str) -> list[dict[str, Any]]:
    answer = http.get(f"/traces/{trace_id}")
    return [] if answer.status_code == 404 else list(answer.json()["events"])


def names(http: httpx.Client, trace_id: str) -> list[str]:
    return [event["name"] for event in events(http, trace_id)]


def produced(broker: Broker, topic: str, *traces: str | None, **settings: Any) -> None:
    """Send one batch of messages over Kafka, each with or without a trace."""
    # Nothing is sent before `flush`, however long the loop takes: it would be more than one batch.
    producer = Producer(
        {"bootstrap.servers": broker.address, "client.id": "shop", "linger.ms": 60_000, **settings}
    )
    # Messages of a topic that the client does not know yet are given to its partition one by one,
    # and a flush that has begun sends the first ones as a batch of their own.
    assert topic in producer.list_topics(topic, timeout=20).topics
    for place, trace_id in enumerate(traces):
        headers = {} if trace_id is None else {"traceparent": traceparent(trace_id)}
        producer.produce(topic, b"value" * 20, key=b"%d" % place, headers=dict(headers))
    assert producer.flush(20) == 0


def consumed(broker: Broker, topic: str, count: int, group: str) -> None:
    """Read messages over Kafka and commit."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "client.id": "kitchen-1",
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        read = 0
        while read < count:
            read += len(consumer.consume(count - read, timeout=20))
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_message_over_kafka_is_traced_to_the_commit_of_its_consumers(
    broker: Broker, http: httpx.Client, topic: str, compression: str
) -> None:
    trace_id = uuid4().hex
    produced(broker, topic, trace_id, **{"compression.type": compression})
    consumed(broker, topic, 1, f"{topic}-one")
    assert names(http, trace_id) == [*PUBLISHED, "consume.fetched", "consume.acked"]
    *_, fetched, acked = events(http, trace_id)
    assert (fetched["door"], fetched["consumer"]) == ("kafka", "kitchen-1")
    assert acked["group"] == f"{topic}-one"
    consumed(broker, topic, 1, f"{topic}-two")
    assert names(http, trace_id)[5:] == ["consume.fetched", "consume.acked"]
    assert events(http, trace_id)[-1]["group"] == f"{topic}-two"


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_large_batch_whose_first_record_is_traced_is_searched(
    broker: Broker, http: httpx.Client, topic: str, compression: str
) -> None:
    traces = [uuid4().hex if place % 50 == 0 else None for place in range(300)]
    produced(broker, topic, *traces, **{"compression.type": compression})
    consumed(broker, topic, 300, f"{topic}-group")
    eventually(lambda: all(names(http, trace_id) for trace_id in traces if trace_id is not None))
    for place, trace_id in enumerate(traces):
        if trace_id is not None:
            assert "publish.persisted" in names(http, trace_id)
            assert events(http, trace_id)[0]["attributes"]["key"] == str(place)
            assert events(http, trace_id)[2]["offset"] == place
            assert "consume.fetched" in names(http, trace_id)


@pytest.mark.parametrize(("headers", "is_found"), [("first", False), ("all", True), ("none", False)])
def test_a_topic_setting_selects_the_batches_to_search(
    broker: Broker, http: httpx.Client, headers: str, is_found: bool
) -> None:
    topic = f"orders-{uuid4().hex[:8]}"
    made(http, topic, **{"trace.headers": headers})
    behind, first = uuid4().hex, uuid4().hex
    produced(broker, topic, None, behind)
    produced(broker, topic, first)
    assert bool(names(http, behind)) is is_found
    assert bool(names(http, first)) is (headers != "none")


def test_a_share_consumer_is_traced_to_its_acknowledgement(broker: Broker, http: httpx.Client) -> None:
    queue = share.Queue(broker.address, f"shared-{uuid4().hex[:8]}").create()
    trace_id = uuid4().hex
    produced(broker, queue.topic, trace_id)
    with queue.consumer() as consumer:
        assert share.drain(consumer, 1) == ["value" * 20]
    assert names(http, trace_id) == [*PUBLISHED, "consume.fetched", "consume.acked"]
    fetched, acked = events(http, trace_id)[3:]
    assert fetched["door"] == acked["door"] == "kafka"
    assert fetched["group"] == queue.group
    assert fetched["attributes"]["delivery_count"] == 1
    assert fetched["span_id"] == acked["span_id"]


def test_the_context_of_an_http_request_is_continued(http: httpx.Client, topic: str) -> None:
    trace_id = uuid4().hex
    answer = http.post(
        f"/topics/{topic}/messages",
        json={"messages": [{"value": "tea"}, {"value": "cake"}]},
        headers={"traceparent": traceparent(trace_id)},
    )
    assert [result["trace_id"] for result in answer.json()["results"]] == [trace_id] * 2
    polled = http.get(f"/groups/kitchen/poll?topic={topic}&max=1&consumer=bob").json()["messages"]
    http.post("/messages/nack", json={"receipt": polled[0]["receipt"], "reason": "no milk"})
    assert names(http, trace_id)[6:] == ["consume.fetched", "consume.nacked"]
    nacked = events(http, trace_id)[-1]
    assert (nacked["door"], nacked["group"], nacked["consumer"]) == ("http", "kitchen", "bob")
    assert nacked["attributes"]["reason"] == "no milk"
    http.get(f"/topics/{topic}/partitions/0/messages")
    assert names(http, trace_id)[8:] == ["consume.fetched"] * 2


def test_publishing_a_single_message_over_http_returns_its_trace(http: httpx.Client, topic: str) -> None:
    trace_id = uuid4().hex
    headers = {"traceparent": traceparent(trace_id)}
    answer = http.post(f"/topics/{topic}/messages", json={"value": "tea", "headers": headers}).json()
    assert answer["trace_id"] == trace_id
    assert "trace_id" not in http.post(f"/topics/{topic}/messages", json={"value": "tea"}).json()
    wrong = {"traceparent": "00-tea"}
    assert (
        "trace_id" not in http.post(f"/topics/{topic}/messages", json={"value": "tea"}, headers=wrong).json()
    )


def test_a_member_over_http_is_traced_to_its_commit(http: httpx.Client, topic: str) -> None:
    trace_id = uuid4().hex
    http.post(
        f"/topics/{topic}/messages", json={"value": "tea"}, headers={"traceparent": traceparent(trace_id)}
    )
    member = http.post(f"/groups/{topic}/join", json={"topics": [topic]}).json()["member_id"]
    answer = eventually(
        lambda: (
            (found := http.get(f"/groups/{topic}/poll?member={member}&wait_ms=500").json())["messages"]
            and found
        )
    )
    http.get(
        f"/groups/{topic}/poll",
        params={"member": member, "cursor": answer["cursor"], "commit": True, "wait_ms": 0},
    ).raise_for_status()
    fetched, acked = events(http, trace_id)[3:]
    assert (fetched["name"], acked["name"]) == ("consume.fetched", "consume.acked")
    assert fetched["group"] == acked["group"] == topic
    assert fetched["consumer"] == acked["consumer"] == member


@pytest.mark.parametrize("carrier", ["attribute", "AWSTraceHeader", "sampling"])
def test_a_message_over_sqs_is_traced_to_its_deletion(
    broker: Broker, http: httpx.Client, carrier: str
) -> None:
    topic = f"orders-{uuid4().hex[:8]}"
    made(http, topic, **({"trace.sample": "1"} if carrier == "sampling" else {}))
    trace_id = uuid4().hex
    client = sqs.client(broker.sqs_address)
    url = client.get_queue_url(QueueName=topic)["QueueUrl"]
    options: dict[str, Any] = {}
    if carrier == "attribute":
        text = {"DataType": "String", "StringValue": traceparent(trace_id)}
        options["MessageAttributes"] = {"traceparent": text}
    elif carrier == "AWSTraceHeader":
        root = f"Root=1-{trace_id[:8]}-{trace_id[8:]};Parent={SPAN};Sampled=1"
        text = {"DataType": "String", "StringValue": root}
        options["MessageSystemAttributes"] = {"AWSTraceHeader": text}
    client.send_message(QueueUrl=url, MessageBody="tea", **options)
    if carrier == "sampling":
        (found,) = http.get("/traces", params={"topic": topic}).json()["traces"]
        trace_id = found["trace_id"]
    (message,) = sqs.drain(client, url, 1)
    client.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=60
    )
    client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert names(http, trace_id) == [*PUBLISHED, "consume.fetched", "visibility.extended", "consume.acked"]
    assert {event["door"] for event in events(http, trace_id)} == {"sqs"}


def test_delayed_records_of_kafka_clients_are_traced(broker: Broker, http: httpx.Client) -> None:
    topic = f"orders-{uuid4().hex[:8]}"
    made(http, topic, **{"message.delays": "true"})
    trace_id = uuid4().hex
    producer = Producer({"bootstrap.servers": broker.address})
    due_ms = time.time_ns() // 1_000_000 + 1000
    headers = {"traceparent": traceparent(trace_id), "alpacamq-deliver-at": str(due_ms)}
    producer.produce(topic, b"later", headers=dict(headers))
    assert producer.flush(20) == 0
    assert names(http, trace_id)[-1] == "delay.scheduled"
    eventually(lambda: names(http, trace_id)[-1] == "publish.persisted")
    assert names(http, trace_id)[2:] == ["delay.scheduled", "delay.ready", "publish.persisted"]
    assert events(http, trace_id)[0]["door"] == "kafka"
