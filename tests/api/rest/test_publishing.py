"""Publishing and reading over HTTP: what goes in comes out, and what is wrong is named."""

from typing import Any

import httpx
import pytest
import requests
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.brokers import Broker

from .problems import refused, wrong_field


def messages(http: httpx.Client, topic: str, **query: object) -> list[dict[str, Any]]:
    answer = http.get(f"/topics/{topic}/messages", params=query)  # type: ignore[arg-type]
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


def test_a_message_is_published_and_read(http: httpx.Client, made: str) -> None:
    sent = http.post(f"/topics/{made}/messages", json={"key": "k", "value": "hello", "partition": 1})
    assert sent.status_code == 200
    assert {"topic": made, "partition": 1, "offset": 0}.items() <= sent.json().items()
    (message,) = messages(http, made)
    assert message == {
        "partition": 1,
        "offset": 0,
        "timestamp": sent.json()["timestamp"],
        "key": "k",
        "value": "hello",
    }


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        pytest.param({"value": "text ✓"}, {"value": "text ✓"}, id="text"),
        pytest.param({"value": None}, {"value": None}, id="a tombstone"),
        pytest.param({"value": {"a": [1, 2.50, True]}}, {"value": '{"a":[1,2.5,true]}'}, id="an object"),
        pytest.param({"value": 12345678901234567890}, {"value": "12345678901234567890"}, id="a large number"),
        pytest.param({"value_base64": "aGk="}, {"value": "hi"}, id="base64 that is text"),
        pytest.param({"value_base64": "/w=="}, {"value_base64": "/w=="}, id="bytes"),
        pytest.param({"value": "", "key": ""}, {"value": "", "key": ""}, id="nothing, but not null"),
        pytest.param({"value": "v", "key_base64": "/w=="}, {"key_base64": "/w=="}, id="a key of bytes"),
        pytest.param(
            {"value": "v", "headers": {"a": "1", "b": {"base64": "/w=="}, "c": None}},
            {"headers": {"a": "1", "b": {"base64": "/w=="}, "c": None}},
            id="headers by name",
        ),
        pytest.param(
            {"value": "v", "headers": [["a", "1"], ["a", "2"]]},
            {"headers": [["a", "1"], ["a", "2"]]},
            id="headers that repeat",
        ),
        pytest.param(
            {"value": "v", "timestamp": 1_700_000_000_000}, {"timestamp": 1_700_000_000_000}, id="a time"
        ),
        pytest.param(
            {"value": "v", "timestamp": "2023-11-14T23:13:20.5+01:00"},
            {"timestamp": 1_700_000_000_500},
            id="a time as text",
        ),
        pytest.param(
            {"value": "v", "priority": "high"}, {"headers": {"alpacamq-lane": "high"}}, id="a priority"
        ),
    ],
)
def test_values_are_stored_as_documented(
    http: httpx.Client, made: str, sent: dict[str, object], stored: dict[str, object]
) -> None:
    http.post(f"/topics/{made}/messages", json=sent).raise_for_status()
    (message,) = messages(http, made)
    assert stored.items() <= message.items()


def test_values_are_returned_as_json_or_base64_on_request(http: httpx.Client, made: str) -> None:
    batch = [{"value": {"a": 1}, "partition": 0}, {"value": "not json", "partition": 0}]
    http.post(f"/topics/{made}/messages", json={"messages": batch}).raise_for_status()
    assert [each["value"] for each in messages(http, made, values="json")] == [{"a": 1}, "not json"]
    assert messages(http, made, values="base64")[0]["value_base64"] == "eyJhIjoxfQ=="


def test_a_thousand_messages_go_in_one_request(http: httpx.Client, made: str) -> None:
    batch = [{"key": str(number), "value": number} for number in range(1000)]
    answer = http.post(f"/topics/{made}/messages", json={"messages": batch}).json()
    assert answer["errors"] == 0
    places = {(each["partition"], each["offset"]) for each in answer["results"]}
    assert len(places) == 1000
    read = messages(http, made, limit=1000)
    assert sorted(int(each["value"]) for each in read) == list(range(1000))


def test_more_than_a_thousand_are_refused_by_name(http: httpx.Client, made: str) -> None:
    answer = http.post(f"/topics/{made}/messages", json={"messages": [{"value": 1}] * 1001})
    assert refused(answer, 400, "invalid-input")["field"] == "/messages"


def test_some_messages_fail_without_the_others(http: httpx.Client, made: str) -> None:
    batch = [{"value": "good", "partition": 0}, {"value": "bad", "partition": 17}]
    answer = http.post(f"/topics/{made}/messages", json={"messages": batch})
    assert answer.status_code == 200
    assert answer.json()["errors"] == 1
    good, bad = answer.json()["results"]
    assert good["offset"] == 0
    assert bad["error"]["type"] == "urn:alpacamq:problem:unknown-topic"


def test_a_batch_that_fails_as_one_is_a_problem(http: httpx.Client, made: str) -> None:
    batch = [{"value": "bad", "partition": 17}] * 2
    refused(http.post(f"/topics/{made}/messages", json={"messages": batch}), 404, "unknown-topic")


def test_a_message_too_large_is_refused(http: httpx.Client, made: str) -> None:
    answer = http.post(f"/topics/{made}/messages", json={"value": "x" * (2 << 20)})
    assert "max.message.bytes" in refused(answer, 413, "batch-too-large")["detail"]


def test_a_record_that_breaks_a_rule_of_its_topic_is_refused(http: httpx.Client, topic: str) -> None:
    http.post("/topics", json={"name": topic, "settings": {"cleanup.policy": "compact"}}).raise_for_status()
    refused(http.post(f"/topics/{topic}/messages", json={"value": "no key"}), 400, "invalid-record")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param(b"", "/value", id="nothing"),
        pytest.param(b"{", "", id="no json"),
        pytest.param(b'{"value":"\xff"}', "/value", id="no utf-8 in text"),
        pytest.param(b'{"value":{"a":"\xff"}}', "/value", id="no utf-8 in json"),
        pytest.param(b'{"value":"\\ud800"}', "", id="half a character"),
        pytest.param(b'{"value":' + b"[" * 100_000, "", id="nested for ever"),
        pytest.param(b"[]", "", id="a list"),
        pytest.param(b'{"key":"k"}', "/value", id="no value"),
        pytest.param(b'{"value":1,"value_base64":""}', "/value_base64", id="two values"),
        pytest.param(b'{"value":1,"key":1,"key_base64":""}', "/key_base64", id="two keys"),
        pytest.param(b'{"value_base64":"!"}', "/value_base64", id="no base64"),
        pytest.param(b'{"value":1,"partition":-1}', "/partition", id="a negative partition"),
        pytest.param(b'{"value":1,"partition":1e99}', "/partition", id="a huge partition"),
        pytest.param(b'{"value":1,"timestamp":"yesterday"}', "/timestamp", id="no time"),
        pytest.param(b'{"value":1,"timestamp":"2020-01-01T00:00:00"}', "/timestamp", id="a time nowhere"),
        pytest.param(b'{"value":1,"priority":"urgent"}', "/priority", id="no priority"),
        pytest.param(b'{"value":1,"delay":"soon"}', "/delay", id="no duration"),
        pytest.param(b'{"value":1,"delay":"5s","delay_ms":5000}', "/delay", id="two delays"),
        pytest.param(b'{"value":1,"headers":{"a":1}}', "/headers", id="a header that is no text"),
        pytest.param(b'{"messages":[]}', "/messages", id="no messages"),
        pytest.param(b'{"value":1,"messages":[{"value":1}]}', "/messages", id="one and several"),
        pytest.param(b'{"messages":[{"value":1},{"value":2,"valeu":3}]}', "/messages/1/valeu", id="misspelt"),
        pytest.param(b'{"messages":[{"value":1},{}]}', "/messages/1/value", id="one without value"),
    ],
)
def test_bad_input_is_refused_with_its_place(http: httpx.Client, made: str, body: bytes, field: str) -> None:
    answer = http.post(f"/topics/{made}/messages", content=body)
    assert wrong_field(answer) == field
    assert messages(http, made) == []


def test_a_time_before_1970_is_refused(http: httpx.Client, made: str) -> None:
    body = {"value": 1, "timestamp": "1969-01-01T00:00:00Z"}
    refused(http.post(f"/topics/{made}/messages", json=body), 422, "invalid-timestamp")


def test_a_misspelt_field_is_answered_with_the_nearest(http: httpx.Client, made: str) -> None:
    answer = http.post(f"/topics/{made}/messages", json={"valeu": 1})
    assert "did you mean 'value'?" in refused(answer, 400, "invalid-input")["detail"]


def test_a_body_of_another_type_is_refused(http: httpx.Client, made: str) -> None:
    answer = http.post(f"/topics/{made}/messages", content=b"<a/>", headers={"Content-Type": "text/xml"})
    refused(answer, 415, "unsupported-media-type")


def test_curl_need_not_say_that_it_sends_json(http: httpx.Client, made: str) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert http.post(f"/topics/{made}/messages", content=b'{"value":1}', headers=headers).status_code == 200


def test_a_page_of_another_site_is_refused(http: httpx.Client, made: str) -> None:
    path = f"/topics/{made}/messages"
    answer = http.post(path, json={"value": 1}, headers={"Origin": "http://evil.example"})
    refused(answer, 403, "cross-origin")
    own = {"Origin": f"http://{http.base_url.host}:{http.base_url.port}"}
    assert http.post(path, json={"value": 1}, headers=own).status_code == 200


def test_a_kafka_consumer_reads_messages_published_over_http(
    broker: Broker, http: httpx.Client, made: str
) -> None:
    http.post(
        f"/topics/{made}/messages", json={"key": "k", "value": "v", "headers": {"h": "1"}, "partition": 0}
    ).raise_for_status()
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": made})
    consumer.assign([TopicPartition(made, 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert (message.key(), message.value(), message.headers()) == (b"k", b"v", [("h", b"1")])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_http_reads_messages_of_a_kafka_producer(
    broker: Broker, http: httpx.Client, made: str, codec: str
) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": codec, "linger.ms": 100})
    for number in range(500):
        producer.produce(made, key=b"k", value=str(number).encode() * 20, partition=0)
    producer.flush()
    read = messages(http, made, limit=1000)
    assert [each["value"] for each in read] == [str(number) * 20 for number in range(500)]


def test_keys_go_where_kafka_clients_put_them(broker: Broker, http: httpx.Client, made: str) -> None:
    placed = {}
    producer = Producer({"bootstrap.servers": broker.address, "partitioner": "murmur2_random"})

    def on_delivery(_error: object, message: Any) -> None:
        placed[message.key().decode()] = message.partition()

    for number in range(20):
        producer.produce(made, key=f"key-{number}", value=b"", on_delivery=on_delivery)
    producer.flush()
    for key, partition in placed.items():
        answer = http.post(f"/topics/{made}/messages", json={"key": key, "value": ""})
        assert answer.json()["partition"] == partition


def test_requests_works_as_well(broker: Broker, made: str) -> None:
    url = f"http://{broker.http_address}/topics/{made}/messages"
    with requests.Session() as session:
        assert session.post(url, json={"value": "from requests"}, timeout=30).status_code == 200
        (message,) = session.get(url, timeout=30).json()["messages"]
    assert message["value"] == "from requests"


def test_whole_floats_are_integers(http: httpx.Client, made: str) -> None:
    body = '{"value": {"price": 1.0}, "partition": 1.0, "timestamp": 1.7e12}'
    sent = http.post(f"/topics/{made}/messages", content=body)
    assert (sent.status_code, sent.json()["partition"]) == (200, 1)
    (message,) = messages(http, made)
    assert (message["value"], message["timestamp"]) == ('{"price":1.0}', 1_700_000_000_000)
    batch = {"messages": [{"value": "a", "headers": {"n": "1"}}, {"value": "b", "partition": 0.0}]}
    assert http.post(f"/topics/{made}/messages", json=batch).json()["results"][1]["partition"] == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({"value": "a", "partition": 0.5}, "/partition", id="a fraction"),
        pytest.param({"value": "a", "partition": -1.0}, "/partition", id="out of bounds"),
        pytest.param({"value": "a", "delay_ms": 1e300}, "/delay_ms", id="too large"),
        pytest.param({"value": "a", "timestamp": 1.5}, "/timestamp", id="a fraction for a time"),
        pytest.param({"value": "a", "delay_ms": 1.0, "partition": "0"}, "/partition", id="text beside one"),
        pytest.param({"value": "a", "delay_ms": 1.0, "timestamp": "17"}, "/timestamp", id="text for a time"),
        pytest.param(
            {"messages": [{"value": "a"}, {"value": "b", "delay_ms": 1.0, "partition": "0"}]},
            "/messages/1/partition",
            id="text in a batch",
        ),
    ],
)
def test_other_floats_and_text_are_not_integers(
    http: httpx.Client, made: str, body: dict[str, Any], field: str
) -> None:
    assert wrong_field(http.post(f"/topics/{made}/messages", json=body)) == field
