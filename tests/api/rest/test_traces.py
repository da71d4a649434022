"""Traces over HTTP: listing, finding and showing them."""

import re
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.waiting import eventually

from .problems import refused, wrong_field

SPAN = "b7ad6b7169203331"
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def publish(http: httpx.Client, topic: str, **fields: Any) -> str:
    """A message as part of a trace of its own; the id of that."""
    trace_id = uuid4().hex
    headers = {"traceparent": f"00-{trace_id}-{SPAN}-01"}
    message = {"value": "tea", "partition": 0, **fields}
    http.post(f"/topics/{topic}/messages", json=message, headers=headers).raise_for_status()
    return trace_id


def found(http: httpx.Client, path: str = "/traces", **query: Any) -> list[str]:
    answer = http.get(path, params=query).raise_for_status()
    return [each["trace_id"] for each in answer.json()["traces"]]


def test_a_trace_is_shown_from_its_first_step_to_its_last(http: httpx.Client, made: str) -> None:
    trace_id = publish(http, made, key="alice")
    shown = http.get(f"/traces/{trace_id}").json()
    assert (shown["trace_id"], shown["status"]) == (trace_id, "published")
    received, partitioned, persisted = shown["events"]
    assert received.keys() == {
        "at", "name", "span_id", "parent_span_id", "topic", "partition", "offset", "group", "consumer",
        "door", "attributes",
    }  # fmt: skip
    assert all(TIMESTAMP.fullmatch(event["at"]) for event in shown["events"])
    assert [event["name"] for event in (received, partitioned, persisted)] == [
        "publish.received", "publish.partitioned", "publish.persisted",
    ]  # fmt: skip
    assert (received["parent_span_id"], received["door"]) == (SPAN, "http")
    assert (persisted["topic"], persisted["partition"], persisted["offset"]) == (made, 0, 0)
    assert received["group"] is received["consumer"] is None


def test_traces_are_listed_newest_first_page_by_page(http: httpx.Client, made: str) -> None:
    traces = [publish(http, made) for _ in range(7)]
    seen: list[str] = []
    query: dict[str, Any] = {"topic": made, "limit": 3}
    while True:
        page = http.get("/traces", params=query).json()
        assert len(page["traces"]) <= 3
        seen += [each["trace_id"] for each in page["traces"]]
        if page["cursor"] is None:
            break
        query["cursor"] = page["cursor"]
    assert seen == traces[::-1]


def test_a_trace_in_short(http: httpx.Client, made: str) -> None:
    trace_id = publish(http, made)
    (each,) = http.get("/traces", params={"topic": made}).json()["traces"]
    assert each.keys() == {
        "trace_id", "topic", "partition", "offset", "started_at", "ended_at", "duration_ms", "events",
        "status",
    }  # fmt: skip
    assert (each["trace_id"], each["topic"], each["partition"], each["offset"]) == (trace_id, made, 0, 0)
    assert (each["events"], each["status"]) == (3, "published")
    took = datetime.fromisoformat(each["ended_at"]) - datetime.fromisoformat(each["started_at"])
    assert each["duration_ms"] == pytest.approx(took / timedelta(milliseconds=1))


def test_looking_at_a_message_neither_prolongs_its_trace_nor_acknowledges_it(
    http: httpx.Client, made: str
) -> None:
    trace_id = publish(http, made)
    (before,) = http.get("/traces", params={"topic": made}).json()["traces"]
    assert http.get(f"/topics/{made}/messages").json()["messages"]
    offsets = [{"topic": made, "partition": 0, "offset": 1}]
    http.post(f"/groups/{made}/offsets", json={"offsets": offsets}).raise_for_status()
    (after,) = http.get("/traces", params={"topic": made}).json()["traces"]
    assert (after["status"], after["duration_ms"]) == ("published", before["duration_ms"])
    names = [each["name"] for each in http.get(f"/traces/{trace_id}").json()["events"]]
    assert names[3:] == ["consume.fetched"]


def test_a_redriven_message_that_is_acknowledged_at_once_counts_as_acknowledged(
    http: httpx.Client, made: str
) -> None:
    def receive(wait_ms: int) -> str:
        query: dict[str, Any] = {"topic": made, "max": 1, "wait_ms": wait_ms}
        (message,) = http.get(f"/groups/{made}/poll", params=query).json()["messages"]
        return str(message["receipt"])

    def is_dead(trace_id: str) -> bool:
        return bool(http.get(f"/traces/{trace_id}").json()["status"] == "dead-lettered")

    http.get(f"/groups/{made}/poll", params={"topic": made, "max": 1})
    for _ in range(5):  # the steps after the redrive are a race
        trace_id = publish(http, made)
        http.post("/messages/reject", json={"receipt": receive(30_000)}).raise_for_status()
        eventually(partial(is_dead, trace_id), what="the message is a dead letter")
        http.post(f"/topics/{made}.dlq/dead-letters/redrive", json={}).raise_for_status()
        http.post("/messages/ack", json={"receipt": receive(30_000)}).raise_for_status()
        shown = http.get(f"/traces/{trace_id}").json()
        assert [each["name"] for each in shown["events"]][-3:] == [
            "dlq.redriven", "consume.fetched", "consume.acked",
        ]  # fmt: skip
        assert shown["status"] == "acked"


def test_traces_are_found_by_message_key_and_id(http: httpx.Client, made: str) -> None:
    first, second = publish(http, made, key="alice"), publish(http, made, key="bob")
    assert found(http, "/traces/search", topic=made, partition=0, offset=1) == [second]
    assert found(http, "/traces/search", topic=made, key="alice") == [first]
    assert found(http, "/traces/search", trace_id=first) == [first]
    assert found(http, "/traces/search", topic=made, partition=1) == []
    assert found(http, "/traces/search", topic=made, partition=0, offset=99) == []


def test_traces_are_found_by_status_and_time(http: httpx.Client, made: str) -> None:
    acked, waiting = publish(http, made), publish(http, made)
    later = publish(http, made, delay="1h")
    (message,) = http.get(f"/groups/{made}/poll", params={"topic": made, "max": 1}).json()["messages"]
    http.post("/messages/ack", json={"receipt": message["receipt"]}).raise_for_status()
    for status, expected in (("acked", acked), ("published", waiting), ("delayed", later)):
        assert found(http, topic=made, status=status) == [expected]
    began = http.get(f"/traces/{waiting}").json()["events"][0]["at"]
    assert found(http, topic=made, to=began) == [acked]
    assert later in found(http, topic=made, **{"from": began})
    after = datetime.fromisoformat(began) + timedelta(hours=1)
    assert found(http, topic=made, **{"from": after.strftime("%Y-%m-%dT%H:%M:%SZ")}) == []
    assert found(http, topic=made, **{"from": str(int(after.timestamp() * 1000))}) == []


def test_a_delayed_message_has_no_offset_yet(http: httpx.Client, made: str) -> None:
    trace_id = publish(http, made, delay="1h")
    (each,) = http.get("/traces", params={"topic": made}).json()["traces"]
    assert (each["trace_id"], each["offset"], each["status"]) == (trace_id, None, "delayed")
    assert [event["offset"] for event in http.get(f"/traces/{trace_id}").json()["events"]] == [None] * 3


def test_a_trace_that_is_not_known_is_not_found(http: httpx.Client) -> None:
    refused(http.get(f"/traces/{'f' * 32}"), 404, "unknown-trace")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/traces/tea", "trace_id"),
        (f"/traces/{'F' * 32}", "trace_id"),
        ("/traces?limit=0", "limit"),
        ("/traces?limit=1001", "limit"),
        ("/traces?status=lost", "status"),
        ("/traces?from=yesterday", "from"),
        ("/traces?from=2026-02-30T00:00:00Z", "from"),
        ("/traces?to=0.5", "to"),
        ("/traces?cursor=tea", "cursor"),
        ("/traces?trace_id=1", "trace_id"),
        ("/traces/search?offset=1", "offset"),
        ("/traces/search?topic=a&offset=1", "offset"),
        ("/traces/search?partition=-1", "partition"),
    ],
)
def test_invalid_parameters_are_refused_by_name(http: httpx.Client, path: str, field: str) -> None:
    assert wrong_field(http.get(path)) == field


def test_trace_stats(http: httpx.Client, made: str) -> None:
    before = http.get("/traces/stats").json()
    publish(http, made)
    after = http.get("/traces/stats").json()
    assert before["enabled"]
    assert (after["ring_size"], after["dropped_total"]) == (10_000, 0)
    assert after["events_total"] - before["events_total"] == 3
    assert after["traces_total"] - before["traces_total"] == 1
