"""What /metrics counts, and that there is an end to it."""

import re

import httpx
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.brokers import Broker
from tests.compat.confluent import Confluent
from tests.conftest import NewBroker

LIMITS = "[metrics]\nmax_topics = 5\nmax_groups = 7\n"
GROUPS = 500
TOPICS = 30
MANY = 3000
MANY_S = 600


def numbers(http: httpx.Client) -> dict[str, float]:
    lines = http.get("/metrics").raise_for_status().text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def series(found: dict[str, float], name: str) -> dict[str, float]:
    """The samples of one metric by their labels."""
    return {key.removeprefix(name): value for key, value in found.items() if key.partition("{")[0] == name}


def test_messages_of_kafka_clients_are_counted_by_topic(
    broker: Broker, http: httpx.Client, made: str
) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 500, "acks": "all"})
    for _ in range(100):
        producer.produce(made, b"x" * 1000, partition=0)
    assert producer.flush(30) == 0
    assert len(Confluent(broker.address).read(made, count=100)) == 100

    found = numbers(http)
    label = f'{{topic="{made}"}}'
    assert found[f"alpacamq_topic_messages_written_total{label}"] == 100
    assert found[f"alpacamq_topic_written_bytes_total{label}"] == found[f"alpacamq_topic_size_bytes{label}"]
    assert 1 <= found[f"alpacamq_topic_written_batches_total{label}"] < 100
    assert found[f"alpacamq_topic_messages_fetched_total{label}"] == 100
    assert found[f"alpacamq_topic_fetched_bytes_total{label}"] >= 100_000
    assert found['alpacamq_kafka_request_seconds_count{api="Produce"}'] >= 1
    assert found['alpacamq_kafka_request_seconds_count{api="Fetch"}'] >= 1
    assert found['alpacamq_received_bytes_total{door="kafka"}'] > 100_000
    assert found['alpacamq_connections_opened_total{door="kafka"}'] >= 1


def test_an_error_is_counted_by_api_and_name(broker: Broker, http: httpx.Client) -> None:
    name = 'alpacamq_kafka_errors_total{api="DeleteTopics",error="UNKNOWN_TOPIC_OR_PARTITION"}'
    before = numbers(http).get(name, 0)
    admin = AdminClient({"bootstrap.servers": broker.address})
    for deleting in admin.delete_topics(["absent-1", "absent-2"]).values():
        with pytest.raises(KafkaException):
            deleting.result(30)
    assert numbers(http)[name] == before + 2


def test_a_batch_that_is_refused_is_counted(broker: Broker, http: httpx.Client, topic: str) -> None:
    settings = {"max.message.bytes": "100"}
    http.post("/topics", json={"name": topic, "partitions": 1, "settings": settings}).raise_for_status()
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce(topic, b"x" * 1000)
    producer.flush(30)
    assert numbers(http)['alpacamq_kafka_errors_total{api="Produce",error="MESSAGE_TOO_LARGE"}'] >= 1


def test_requests_that_cannot_be_read_are_counted(http: httpx.Client) -> None:
    name = 'alpacamq_http_requests_total{method="GET",path="/topics",status="400"}'
    before = numbers(http).get(name, 0)
    assert http.get("/topics?prefix=%ff").status_code == 400
    assert numbers(http)[name] == before + 1


def test_a_broker_without_its_disk_still_shows_metrics(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    away = broker.data_dir.rename(broker.data_dir.with_name("away"))
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as http:
        found = numbers(http)
    away.rename(broker.data_dir)
    assert found['alpacamq_health{check="disk"}'] == 0
    assert "alpacamq_disk_free_bytes" not in found


def test_where_metrics_are_switched_off_there_are_none(new_broker: NewBroker) -> None:
    broker = new_broker(config="[metrics]\nenabled = false\n").start()
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as http:
        http.post("/topics/t/messages", json={"value": "x", "partition": 1}).raise_for_status()
        answer = http.get("/metrics")
        assert answer.status_code == 404
        assert "metrics.enabled" in answer.json()["detail"]
        assert http.get("/healthz").status_code == 200
        # What `alpacactl top` shows is no metric.
        Confluent(broker.address).read("t", partition=1, count=1)
        (row,) = http.get("/stats/topics").json()["topics"]
        assert (row["topic"], row["fetched_total"]) == ("t", 1)


def test_many_groups_queues_and_topics_make_a_bounded_number_of_series(
    new_broker: NewBroker,
) -> None:
    broker = new_broker(config=LIMITS).start()
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as http:
        for number in range(TOPICS):
            http.post("/topics", json={"name": f"t{number}", "partitions": 1}).raise_for_status()
        http.post("/topics/t7/messages", json={"messages": [{"value": "x"}] * 10}).raise_for_status()
        for number in range(GROUPS):
            offsets = [{"topic": "t7", "partition": 0, "offset": 9 if number else 0}]
            http.post(f"/groups/g{number}/offsets", json={"offsets": offsets}).raise_for_status()
        for number in range(30):
            http.get(f"/groups/q{number}/poll", params={"topic": "t7", "max": 1}).raise_for_status()

        found = numbers(http)

        topics = series(found, "alpacamq_topic_messages")
        assert len(topics) == 5 + 1
        assert topics['{topic="t7"}'] == 10, "the largest are shown"
        assert sum(series(found, "alpacamq_topic_partitions").values()) == found["alpacamq_partitions"]
        lags = series(found, "alpacamq_group_lag")
        assert len(lags) == 7 + 1
        assert lags['{group="g0",topic="t7"}'] == 10
        assert sum(lags.values()) == 10 + GROUPS - 1
        assert len(series(found, "alpacamq_group_members")) == 7
        queues = series(found, "alpacamq_queue_in_flight")
        assert len(queues) == 7 + 1
        assert sum(queues.values()) == 30
        assert len(series(found, "alpacamq_queue_lane_ready")) == 7 * 5
        assert sum(series(found, "alpacamq_queue_received_total").values()) == 30
        assert found['alpacamq_metrics_series_dropped{label="group"}'] == GROUPS - 7
        assert found['alpacamq_metrics_series_dropped{label="queue"}'] == 30 - 7
        assert found['alpacamq_metrics_series_dropped{label="topic"}'] == found["alpacamq_topics"] - 5
        assert len(found) < 1000


def test_a_group_named_like_the_rest_is_no_second_series_of_it(new_broker: NewBroker) -> None:
    broker = new_broker(config=LIMITS).start()
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as http:
        http.post("/topics", json={"name": "t", "partitions": 1}).raise_for_status()
        for group in ["%28other%29", *map(str, range(20))]:
            offsets = [{"topic": "t", "partition": 0, "offset": 0}]
            http.post(f"/groups/{group}/offsets", json={"offsets": offsets}).raise_for_status()
        text = http.get("/metrics").text
        names = [re.sub(r" \S+$", "", line) for line in text.splitlines()]
        assert len(names) == len(set(names))


@pytest.mark.heavy
def test_thousands_of_topics_and_groups_make_a_bounded_number_of_series(new_broker: NewBroker) -> None:
    broker = new_broker(config=LIMITS).start()
    admin = AdminClient({"bootstrap.servers": broker.address})
    for first in range(0, MANY, 100):
        topics = [NewTopic(f"t{first + number}", 1) for number in range(100)]
        for making in admin.create_topics(topics, operation_timeout=MANY_S, request_timeout=60).values():
            making.result(MANY_S)
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as http:
        for number in range(MANY):
            offsets = [{"topic": f"t{number}", "partition": 0, "offset": 0}]
            http.post(f"/groups/g{number}/offsets", json={"offsets": offsets}).raise_for_status()
        found = numbers(http)
    assert found["alpacamq_topics"] == MANY + 1
    assert len(series(found, "alpacamq_group_lag")) == 7 + 1
    assert len(series(found, "alpacamq_topic_messages")) == 5 + 1
    assert len(found) < 1000
