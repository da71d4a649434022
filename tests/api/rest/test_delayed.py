"""Delayed messages over HTTP: published, listed, cancelled, delivered in time."""

import httpx
import pytest

from tests.waiting import eventually

from .problems import refused

HOUR_MS = 3_600_000


def test_a_delayed_message_appears_when_it_is_due(http: httpx.Client, made: str) -> None:
    sent = http.post(f"/topics/{made}/messages", json={"value": "later", "delay_ms": 300}).json()
    assert "offset" not in sent
    assert sent["deliver_at"] == pytest.approx(sent["timestamp"] + 300, abs=200)
    assert http.get(f"/topics/{made}/messages").json()["messages"] == []
    found = http.get(f"/topics/{made}/messages", params={"wait_ms": 30_000}).json()["messages"]
    assert [each["value"] for each in found] == ["later"]
    assert found[0]["timestamp"] >= sent["deliver_at"]


@pytest.mark.parametrize(
    ("fields", "wait_ms"),
    [
        ({"delay_ms": HOUR_MS}, HOUR_MS),
        ({"delay": "2h"}, 2 * HOUR_MS),
        ({"delay": "90s"}, 90_000),
        ({"delay": "30d"}, 30 * 24 * HOUR_MS),
    ],
)
def test_delays_are_given_in_several_ways(
    http: httpx.Client, made: str, fields: dict[str, object], wait_ms: int
) -> None:
    sent = http.post(f"/topics/{made}/messages", json={"value": "later", **fields}).json()
    assert sent["deliver_at"] - sent["timestamp"] == pytest.approx(wait_ms, abs=1000)


def test_a_time_of_delivery_that_has_passed_is_now(http: httpx.Client, made: str) -> None:
    sent = http.post(f"/topics/{made}/messages", json={"value": "x", "deliver_at": "2001-01-01T00:00:00Z"})
    assert sent.json()["offset"] == 0


def test_a_delay_of_ages_is_refused(http: httpx.Client, made: str) -> None:
    answer = http.post(f"/topics/{made}/messages", json={"value": "x", "delay": "999999999999d"})
    refused(answer, 422, "invalid-delay")


def test_delayed_messages_are_listed_page_by_page_and_cancelled(http: httpx.Client, made: str) -> None:
    batch = [{"value": "x" * 10, "delay": "1h", "partition": number % 2} for number in range(5)]
    sent = http.post(f"/topics/{made}/messages", json={"messages": batch}).json()["results"]
    expected = sorted((each["partition"], each["delayed_id"]) for each in sent)
    seen = []
    query: dict[str, str | int] = {"limit": 2}
    while True:
        page = http.get(f"/topics/{made}/delayed", params=query).json()
        seen += [(each["partition"], each["id"]) for each in page["messages"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert seen == expected
    one = http.get(f"/topics/{made}/delayed", params={"partition": 1}).json()["messages"]
    assert [each["partition"] for each in one] == [1, 1]

    partition, delayed_id = expected[0]
    path = f"/topics/{made}/delayed/{partition}/{delayed_id}"
    cancelled = http.delete(path)
    assert {"topic": made, "partition": partition, "id": delayed_id}.items() <= cancelled.json().items()
    refused(http.delete(path), 404, "unknown-delayed")
    assert len(http.get(f"/topics/{made}/delayed").json()["messages"]) == 4


def test_delay_stats_count_scheduled_and_delivered_messages(http: httpx.Client, made: str) -> None:
    before = http.get("/delay/stats").json()
    http.post(f"/topics/{made}/messages", json={"value": "x", "delay": "1h"}).raise_for_status()
    http.post(f"/topics/{made}/messages", json={"value": "x", "delay": "200ms"}).raise_for_status()

    def delivered() -> bool:
        after = http.get("/delay/stats").json()
        return bool(
            after["scheduled_total"] == before["scheduled_total"] + 2
            and after["delivered_total"] > before["delivered_total"]
            and after["pending"] >= 1
        )

    eventually(delivered)
    assert len(http.get(f"/topics/{made}/delayed").json()["messages"]) == 1


def test_a_delayed_message_of_a_queue_is_received_when_due(http: httpx.Client, made: str) -> None:
    http.post(f"/topics/{made}/messages", json={"value": "later", "delay_ms": 200}).raise_for_status()
    query: dict[str, str | int] = {"topic": made, "wait_ms": 30_000}
    (message,) = http.get("/groups/workers/poll", params=query).json()["messages"]
    assert message["value"] == "later"


def test_a_delayed_message_is_shown_with_its_content_until_it_is_cancelled(
    http: httpx.Client, made: str
) -> None:
    body = {"key": "k", "value": {"n": 1}, "headers": {"h": "v"}, "delay": "1h", "partition": 1}
    sent = http.post(f"/topics/{made}/messages", json=body).json()
    path = f"/topics/{made}/delayed/{sent['delayed_id']}"
    shown = http.get(path).json()
    expected = {
        "topic": made,
        "partition": 1,
        "id": sent["delayed_id"],
        "deliver_at": sent["deliver_at"],
        "key": "k",
        "value": '{"n":1}',
        "headers": {"h": "v"},
    }
    assert expected.items() <= shown.items()
    assert http.get(path, params={"values": "json"}).json()["value"] == {"n": 1}
    http.delete(f"/topics/{made}/delayed/1/{sent['delayed_id']}").raise_for_status()
    refused(http.get(path), 404, "unknown-delayed")


def test_an_unknown_delayed_message_is_not_found(http: httpx.Client, made: str) -> None:
    sent = http.post(f"/topics/{made}/messages", json={"value": "x", "delay": "1h"}).json()
    http.post("/topics", json={"name": f"{made}-other"}).raise_for_status()
    for topic, number in (
        (made, sent["delayed_id"] + 1),
        (made, 2**63 - 1),
        (f"{made}-other", sent["delayed_id"]),
    ):
        refused(http.get(f"/topics/{topic}/delayed/{number}"), 404, "unknown-delayed")
    refused(http.get(f"/topics/{made}-not/delayed/1"), 404, "unknown-topic")
    refused(http.get(f"/topics/{made}/delayed/first"), 400, "invalid-input")
