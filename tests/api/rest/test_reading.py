"""Reading the log over HTTP: by offset, by time, page by page, and waiting for what is to come."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from .problems import refused, wrong_field


def publish(http: httpx.Client, topic: str, count: int, partition: int = 0, first_ms: int = 0) -> None:
    batch = [
        {"value": str(number), "partition": partition, "timestamp": first_ms + number}
        for number in range(count)
    ]
    http.post(f"/topics/{topic}/messages", json={"messages": batch}).raise_for_status()


def test_a_partition_is_read_page_by_page(http: httpx.Client, made: str) -> None:
    publish(http, made, 10)
    path, offset, read = f"/topics/{made}/partitions/0/messages", 0, []
    while True:
        page = http.get(path, params={"offset": offset, "limit": 3}).json()
        read += [each["value"] for each in page["messages"]]
        offset = page["next_offset"]
        if offset == page["end_offset"]:
            break
    assert read == [str(number) for number in range(10)]


def test_a_page_may_begin_and_end_within_a_batch(http: httpx.Client, made: str) -> None:
    publish(http, made, 10)
    page = http.get(f"/topics/{made}/partitions/0/messages", params={"offset": 4, "limit": 2}).json()
    assert [each["offset"] for each in page["messages"]] == [4, 5]
    assert page["next_offset"] == 6


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param({"timestamp": 1000}, range(10), id="from the first"),
        pytest.param({"timestamp": 1004}, range(4, 10), id="from a time on"),
        pytest.param({"timestamp": 1004, "until": 1007}, range(4, 7), id="a range"),
        pytest.param({"until": 1003}, range(3), id="up to a time"),
        pytest.param({"timestamp": "1970-01-01T00:00:01.008Z"}, range(8, 10), id="a time as text"),
        pytest.param({"timestamp": 5000}, range(0), id="after the last"),
        pytest.param({"start": "latest"}, range(0), id="from the end"),
        pytest.param({"start": "earliest"}, range(10), id="from the start"),
    ],
)
def test_reading_by_time(http: httpx.Client, made: str, query: dict[str, str | int], expected: range) -> None:
    publish(http, made, 10, first_ms=1000)
    page = http.get(f"/topics/{made}/partitions/0/messages", params=query).json()
    assert [int(each["value"]) for each in page["messages"]] == list(expected)
    assert page["next_offset"] == page["end_offset"]


def test_a_topic_is_read_by_time_over_all_partitions(http: httpx.Client, made: str) -> None:
    publish(http, made, 3, partition=0, first_ms=1000)
    publish(http, made, 3, partition=1, first_ms=1001)
    page = http.get(f"/topics/{made}/messages").json()
    assert [each["timestamp"] for each in page["messages"]] == [1000, 1001, 1001, 1002, 1002, 1003]
    assert page["next_offsets"] == page["end_offsets"] == {"0": 3, "1": 3}


def test_a_topic_is_read_on_with_the_offsets_of_the_last_answer(http: httpx.Client, made: str) -> None:
    publish(http, made, 5, partition=0)
    publish(http, made, 5, partition=1)
    seen: set[tuple[int, int]] = set()
    query: dict[str, str | int] = {"limit": 3}
    while True:
        page = http.get(f"/topics/{made}/messages", params=query).json()
        places = {(each["partition"], each["offset"]) for each in page["messages"]}
        assert not places & seen
        assert len(places) <= 3
        seen |= places
        if page["next_offsets"] == page["end_offsets"]:
            break
        query["offsets"] = ",".join(f"{index}:{offset}" for index, offset in page["next_offsets"].items())
    assert len(seen) == 10


def test_one_large_message_is_read_although_it_is_over_the_limit(http: httpx.Client, made: str) -> None:
    batch = [{"value": "x" * 100_000, "partition": 0}] * 2
    http.post(f"/topics/{made}/messages", json={"messages": batch}).raise_for_status()
    page = http.get(f"/topics/{made}/partitions/0/messages", params={"max_bytes": 10}).json()
    assert [each["offset"] for each in page["messages"]] == [0]


def test_reading_waits_for_new_messages(http: httpx.Client, made: str) -> None:
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(http.get, f"/topics/{made}/messages", params={"wait_ms": 30_000})
        http.post(f"/topics/{made}/messages", json={"value": "at last"}).raise_for_status()
        assert [each["value"] for each in waiting.result().json()["messages"]] == ["at last"]


def test_a_topic_that_is_deleted_while_it_is_read_is_not_found(http: httpx.Client, made: str) -> None:
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(http.get, f"/topics/{made}/messages", params={"wait_ms": 30_000})
        http.delete(f"/topics/{made}").raise_for_status()
        assert waiting.result().status_code == 404


def test_waiting_ends_when_the_time_is_over(http: httpx.Client, made: str) -> None:
    assert http.get(f"/topics/{made}/messages", params={"wait_ms": 10}).json()["messages"] == []


async def test_a_reader_that_goes_away_costs_nothing(http: httpx.Client, made: str) -> None:
    async with httpx.AsyncClient(base_url=http.base_url, timeout=60) as client:
        gone = [
            asyncio.create_task(client.get(f"/topics/{made}/messages", params={"wait_ms": 30_000}))
            for _ in range(20)
        ]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        sent = await client.post(f"/topics/{made}/messages", json={"value": "still here"})
    assert sent.status_code == 200


def test_an_offset_outside_of_the_log_is_refused(http: httpx.Client, made: str) -> None:
    path = f"/topics/{made}/partitions/0/messages"
    refused(http.get(path, params={"offset": 5}), 416, "offset-out-of-range")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"offset": 0, "start": "latest"}, "start"),
        ({"offset": -1}, "offset"),
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"wait_ms": 30_001}, "wait_ms"),
        ({"isolation": "none"}, "isolation"),
        ({"ofset": 1}, "ofset"),
        ({"topic": "other"}, "topic"),
        ([("limit", 1), ("limit", 2)], "limit"),
    ],
)
def test_bad_parameters_are_refused_by_name(
    http: httpx.Client, made: str, query: dict[str, str | int], field: str
) -> None:
    answer = http.get(f"/topics/{made}/partitions/0/messages", params=query)
    assert wrong_field(answer) == field


@pytest.mark.parametrize("path", ["/topics/{}/partitions/9/messages", "/topics/{}-not/messages"])
def test_unknown_partitions_are_not_found(http: httpx.Client, made: str, path: str) -> None:
    refused(http.get(path.format(made)), 404, "unknown-topic")
