"""Stored batches that cannot be unpacked: readers get the records around them, and a report."""

from collections.abc import Iterator
from typing import Any

import boto3
import httpx
import pytest

from alpacamq.model.batch import CRC_AT, HEADER_BYTES, Codec, checksum
from alpacamq.model.records import Record, write_batch
from tests.brokers import Broker
from tests.conftest import NewBroker
from tests.waiting import eventually

from .raw import connected

TOPIC = "poisoned"
# More than log.unpacked_limit_bytes below.
BOMB_BYTES = 5 << 20
CONFIG = "[log]\nunpacked_limit_bytes = 4194304\n"


def with_body(batch: bytearray, body: bytes) -> bytearray:
    """Return a batch with another body behind its header, and a valid checksum."""
    changed = batch[:HEADER_BYTES] + body
    changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    changed[CRC_AT : CRC_AT + 4] = checksum(changed).to_bytes(4, "big")
    return changed


def garbage() -> bytearray:
    batch = write_batch([Record(n, 1000, b"k", bytes(100)) for n in range(3)])
    return with_body(batch, b"\xff" * (len(batch) - HEADER_BYTES))


def torn() -> bytearray:
    """Return a batch whose first record can be read and whose others cannot."""
    batch = write_batch([Record(n, 1000, b"k", bytes(100)) for n in range(3)])
    return with_body(batch, bytes(batch[HEADER_BYTES:-150]) + b"\xff" * 150)


def not_packed() -> bytearray:
    batch = write_batch([Record(n, 1000, b"k", bytes(100)) for n in range(3)], codec=Codec.GZIP)
    return with_body(batch, b"not what gzip writes")


def bomb() -> bytearray:
    return write_batch([Record(n, 1000, b"k", bytes(BOMB_BYTES)) for n in range(3)], codec=Codec.GZIP)


POISONS = {"garbage": garbage, "torn": torn, "not packed": not_packed, "bomb": bomb}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("poisoned") / "data", config=CONFIG)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as client:
        yield client


@pytest.fixture(params=POISONS)
def topic(request: pytest.FixtureRequest, broker: Broker, http: httpx.Client) -> Iterator[str]:
    """Create a topic with a good message, three unreadable offsets, and another good message."""
    name = f"{TOPIC}.{request.param.replace(' ', '-')}"
    http.post("/topics", json={"name": name, "partitions": 1}).raise_for_status()
    with connected(broker.host_and_port) as connection:
        for batch in (good("before"), POISONS[request.param](), good("after")):
            assert connection.produce(name, batch).error == 0
    yield name
    http.delete(f"/topics/{name}").raise_for_status()


def good(value: str) -> bytearray:
    return write_batch([Record(0, 1000, b"k", value.encode())])


def shown(answer: httpx.Response) -> list[str]:
    answer.raise_for_status()
    return [message["value"] for message in answer.json()["messages"]]


def check_skipped(answer: dict[str, Any], topic: str) -> None:
    (skipped,) = answer["skipped"]
    assert (skipped["topic"], skipped["partition"], skipped["base_offset"], skipped["count"]) == (
        topic,
        0,
        1,
        3,
    )
    assert skipped["reason"]


@pytest.mark.parametrize("path", ["/topics/{}/messages", "/topics/{}/partitions/0/messages"])
def test_http_readers_get_the_messages_around_it(
    http: httpx.Client, broker: Broker, topic: str, path: str
) -> None:
    answer = http.get(path.format(topic))
    assert shown(answer) == ["before", "after"]
    check_skipped(answer.json(), topic)
    # One at a time: nothing is returned or skipped twice.
    values, skipped, offset = [], [], 0
    while offset < 5:
        page = http.get(f"/topics/{topic}/partitions/0/messages", params={"offset": offset, "limit": 1})
        values += shown(page)
        skipped += page.json().get("skipped", [])
        assert page.json()["next_offset"] > offset
        offset = page.json()["next_offset"]
    assert values == ["before", "after"]
    assert [(each["base_offset"], each["count"]) for each in skipped] == [(1, 3)]
    broker.errors.wait_for(rf"unreadable_batch.*{topic}-0", within_s=60)
    counted = f'alpacamq_topic_skipped_batches_total{{topic="{topic}"}}'
    (line,) = [line for line in http.get("/metrics").text.splitlines() if line.startswith(counted)]
    assert int(line.rpartition(" ")[2]) >= 2


def test_an_answer_without_skipped_batches_has_no_report(http: httpx.Client, topic: str) -> None:
    answer = http.get(f"/topics/{topic}/partitions/0/messages", params={"offset": 4})
    assert shown(answer) == ["after"]
    assert "skipped" not in answer.json()


def test_messages_are_found_by_key(http: httpx.Client, topic: str) -> None:
    answer = http.get(f"/topics/{topic}/messages/find", params={"key": "k"})
    assert shown(answer) == ["before", "after"]
    check_skipped(answer.json(), topic)


def test_a_queue_skips_it(http: httpx.Client, topic: str) -> None:
    answer = http.get("/groups/workers/poll", params={"topic": topic, "wait_ms": 5000})
    received = answer.json()["messages"]
    if len(received) < 2:
        received += http.get("/groups/workers/poll", params={"topic": topic, "wait_ms": 5000}).json()[
            "messages"
        ]
    assert [message["value"] for message in received] == ["before", "after"]
    again = http.get("/groups/workers/poll", params={"topic": topic, "wait_ms": 0})
    assert shown(again) == []


def test_a_member_of_a_group_reads_past_it(http: httpx.Client, topic: str) -> None:
    joined = http.post(f"/groups/{topic}/join", json={"topics": [topic]})
    joined.raise_for_status()
    member = joined.json()["member_id"]
    values: list[str] = []
    skipped: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while len(values) < 2:
        answer = http.get(f"/groups/{topic}/poll", params={"member": member, "wait_ms": 10_000, **cursor})
        values += shown(answer)
        skipped += answer.json().get("skipped", [])
        cursor = {"cursor": answer.json()["cursor"]}
    assert values == ["before", "after"]
    check_skipped({"skipped": skipped}, topic)


def test_sqs_receives_the_messages_around_it(broker: Broker, http: httpx.Client, topic: str) -> None:
    sqs = boto3.client(
        "sqs",
        endpoint_url=f"http://{broker.sqs_address}",
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106 - not checked
    )
    url = f"http://{broker.sqs_address}/000000000000/{topic}"
    bodies: list[str] = []

    def are_all_there() -> bool:
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        bodies.extend(message["Body"] for message in answer.get("Messages", []))
        return len(bodies) >= 2

    eventually(are_all_there, within_s=30)
    assert bodies == ["before", "after"]


@pytest.mark.parametrize("poison", POISONS)
def test_dead_letters_around_it_are_redriven(broker: Broker, http: httpx.Client, poison: str) -> None:
    target, source = f"home.{poison.replace(' ', '-')}", f"dead.{poison.replace(' ', '-')}"
    for name in (target, source):
        http.post("/topics", json={"name": name, "partitions": 1}).raise_for_status()
    with connected(broker.host_and_port) as connection:
        for batch in (good("before"), POISONS[poison](), good("after")):
            assert connection.produce(source, batch).error == 0
    started = http.post(f"/topics/{source}/dead-letters/redrive", json={"target": target})
    started.raise_for_status()
    task = started.json()["id"]
    eventually(lambda: http.get(f"/redrives/{task}").json()["state"] == "completed", within_s=30)
    assert shown(http.get(f"/topics/{target}/messages")) == ["before", "after"]


@pytest.mark.parametrize("poison", POISONS)
def test_a_topic_with_it_is_compacted(new_broker: NewBroker, poison: str) -> None:
    broker = new_broker(config="[log]\nretention_check_ms = 100\nunpacked_limit_bytes = 4194304\n").start()
    with (
        httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as http,
        connected(broker.host_and_port) as connection,
    ):
        settings = {"segment.bytes": 1024, "min.cleanable.dirty.ratio": 0.01, "retention.ms": -1}
        http.post("/topics", json={"name": "t", "partitions": 1, "settings": settings}).raise_for_status()
        assert connection.produce("t", POISONS[poison]()).error == 0
        for n in range(12):
            batch = write_batch([Record(0, 1000, f"k{n % 3}".encode(), bytes(300))])
            assert connection.produce("t", batch).error == 0
        # Only now: records for a compacted topic are unpacked to check their keys.
        compact = {"settings": {"cleanup.policy": "compact"}}
        http.patch("/topics/t/settings", json=compact).raise_for_status()
        broker.errors.wait_for("log_compacted.*t-0", within_s=60)
        answer = http.get("/topics/t/messages", params={"limit": 1000}).json()
        assert {message["key"] for message in answer["messages"]} == {"k0", "k1", "k2"}
        assert len(answer["messages"]) < 12
        assert [(each["base_offset"], each["count"]) for each in answer["skipped"]] == [(0, 3)]
