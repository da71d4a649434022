"""Topics as queues over HTTP: leases, settling them, dead letters and their way back."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from alpacamq.api.rest.handlers.polling import NextPoll, Processed, ack_and_poll
from alpacamq.broker.later import Later
from alpacamq.broker.queue.service import Delivery
from alpacamq.model.errors import AlpacaError, CoordinatorUnavailable
from tests.waiting import eventually

from .problems import refused, wrong_field


def publish(http: httpx.Client, topic: str, *values: str, **fields: object) -> None:
    batch = [{"value": value, **fields} for value in values]
    http.post(f"/topics/{topic}/messages", json={"messages": batch}).raise_for_status()


def poll(http: httpx.Client, topic: str, **query: object) -> list[dict[str, Any]]:
    parameters = {"topic": topic, "wait_ms": 0, **query}
    answer = http.get("/groups/workers/poll", params=parameters)  # type: ignore[arg-type]
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


def settle(http: httpx.Client, verb: str, *messages: dict[str, Any], **fields: object) -> httpx.Response:
    receipts = [each["receipt"] for each in messages]
    return http.post(f"/messages/{verb}", json={"receipts": receipts, **fields})


def test_a_message_is_leased_and_acknowledged(http: httpx.Client, made: str) -> None:
    publish(http, made, "work", key="k", headers={"h": "1"})
    (message,) = poll(http, made, visibility_ms=60_000)
    assert {
        "topic": made,
        "key": "k",
        "value": "work",
        "headers": {"h": "1"},
        "delivery_count": 1,
        "priority": "normal",
    }.items() <= message.items()
    assert message["deadline"] - message["first_delivered"] == 60_000
    assert poll(http, made) == []
    answer = http.post("/messages/ack", json={"receipt": message["receipt"]})
    assert answer.json() == {"results": [{"receipt": message["receipt"]}], "errors": 0}
    totals = http.get(f"/groups/workers/queues/{made}").json()["totals"]
    assert (totals["acked_total"], totals["in_flight"], totals["ready"]) == (1, 0, 0)


def test_acknowledged_messages_stay_in_the_log(http: httpx.Client, made: str) -> None:
    publish(http, made, "work")
    settle(http, "ack", *poll(http, made)).raise_for_status()
    assert len(http.get(f"/topics/{made}/messages").json()["messages"]) == 1


def test_a_poll_waits_for_a_message(http: httpx.Client, made: str) -> None:
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(poll, http, made, wait_ms=30_000)
        publish(http, made, "at last")
        (message,) = waiting.result()
    assert message["value"] == "at last"
    settle(http, "ack", message).raise_for_status()


def next_poll(http: httpx.Client, topic: str, *messages: dict[str, Any], **query: object) -> dict[str, Any]:
    """Acknowledge messages, and lease the next."""
    parameters = {"topic": topic, "wait_ms": 0, **query}
    body = {"receipts": [each["receipt"] for each in messages]}
    answer = http.post("/groups/workers/poll", params=parameters, json=body)  # type: ignore[arg-type]
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def totals_of(http: httpx.Client, topic: str) -> tuple[int, int, int]:
    totals = http.get(f"/groups/workers/queues/{topic}").json()["totals"]
    return totals["acked_total"], totals["in_flight"], totals["ready"]


def test_messages_are_acknowledged_with_the_poll_for_the_next(http: httpx.Client, made: str) -> None:
    publish(http, made, *"abc")
    first = next_poll(http, made, max=2)
    assert [each["value"] for each in first["messages"]] == ["a", "b"]
    second = next_poll(http, made, *first["messages"], max=2)
    assert [each["value"] for each in second["messages"]] == ["c"]
    assert "refused" not in second
    assert totals_of(http, made) == (2, 1, 0)
    assert next_poll(http, made, *second["messages"])["messages"] == []
    assert totals_of(http, made) == (3, 0, 0)


def test_a_poll_that_waits_has_acknowledged(http: httpx.Client, made: str) -> None:
    publish(http, made, "a")
    messages = poll(http, made)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next_poll, http, made, *messages, wait_ms=30_000)
        eventually(lambda: totals_of(http, made) == (1, 0, 0))
        publish(http, made, "b")
        (message,) = waiting.result()["messages"]
    assert message["value"] == "b"
    settle(http, "ack", message).raise_for_status()


def test_a_poll_names_the_receipts_that_it_refuses(http: httpx.Client, made: str, topic: str) -> None:
    topic = f"{topic}-other"
    http.post("/topics", json={"name": topic}).raise_for_status()
    publish(http, made, *"ab")
    publish(http, topic, "other")
    stale, good = poll(http, made)
    settle(http, "nack", stale, delay_ms=0).raise_for_status()
    eventually(lambda: poll(http, made))
    (other,) = poll(http, topic)
    publish(http, made, "c")
    answer = next_poll(http, made, stale, good, other, {"receipt": "garbage"})
    assert [(each["receipt"], each["error"]["type"].rpartition(":")[2]) for each in answer["refused"]] == [
        (stale["receipt"], "stale-receipt"),
        (other["receipt"], "invalid-receipt"),
        ("garbage", "invalid-receipt"),
    ]
    assert [each["value"] for each in answer["messages"]] == ["c"]
    assert totals_of(http, made) == (1, 2, 0)
    assert totals_of(http, topic) == (0, 1, 0)


def test_acknowledged_messages_make_room_for_the_next(http: httpx.Client, made: str) -> None:
    publish(http, made, *map(str, range(1000)))
    publish(http, made, "the next")
    messages = poll(http, made, max=1000, consumer="one")
    query = {"topic": made, "consumer": "one", "wait_ms": "0"}
    refused(http.get("/groups/workers/poll", params=query), 429, "too-many-in-flight")
    assert len(next_poll(http, made, *messages, consumer="one")["messages"]) == 1


class MovingQueues:
    """Queues whose engine is at another broker when it gets the requests of a poll, which are sent on."""

    def __init__(self, error: AlpacaError | None) -> None:
        self.error = error
        self.done: list[str] = []

    def settle_later(self, _settlements: object, **_: object) -> Later[list[AlpacaError | None]]:
        return self._later(self._settle())

    def receive_later(self, _request: object, **_: object) -> Later[list[Delivery]]:
        return self._later(self._receive())

    def _later(self, rest: Coroutine[Any, Any, Any]) -> Later[Any]:
        later: Later[Any] = Later()
        asyncio.get_running_loop().call_soon(later.set_result, rest)
        return later

    async def _settle(self) -> list[AlpacaError | None]:
        await asyncio.sleep(0)
        self.done.append("acknowledged")
        return [None]

    async def _receive(self) -> list[Delivery]:
        self.done.append("polled")
        if self.error is not None:
            raise self.error
        return []


@pytest.mark.parametrize("error", [None, CoordinatorUnavailable("gone")])
async def test_messages_are_acknowledged_before_a_poll_that_another_broker_has_to_answer(
    error: AlpacaError | None,
) -> None:
    queues = MovingQueues(error)
    call: Any = SimpleNamespace(
        parameters=NextPoll(group="workers", topic="orders"),
        body=Processed(receipts=["a receipt"]),
        backend=SimpleNamespace(broker=SimpleNamespace(queues=queues)),
        request=SimpleNamespace(peer="127.0.0.1"),
        sees_all=True,
    )
    with nullcontext() if error is None else pytest.raises(type(error)):
        assert (await ack_and_poll(call)).messages == []
    assert queues.done == ["acknowledged", "polled"]


@pytest.mark.parametrize(
    ("query", "body", "field"),
    [
        ({}, {}, "topic"),
        ({"topic": "t", "member": "m"}, {}, "member"),
        ({"topic": "t"}, {"receipts": "r"}, "/receipts"),
        ({"topic": "t"}, {"receipts": ["r"] * 1001}, "/receipts"),
        ({"topic": "t"}, {"receipt": "r"}, "/receipt"),
    ],
)
def test_a_poll_that_acknowledges_is_of_a_queue(
    http: httpx.Client, query: dict[str, str], body: dict[str, Any], field: str
) -> None:
    assert wrong_field(http.post("/groups/workers/poll", params=query, json=body)) == field


def test_many_are_settled_in_one_request_and_stale_ones_named(http: httpx.Client, made: str) -> None:
    publish(http, made, *"abc")
    messages = poll(http, made)
    assert sorted(each["value"] for each in messages) == list("abc")
    settle(http, "ack", messages[0]).raise_for_status()
    answer = settle(http, "reject", *messages).json()
    assert answer["errors"] == 1
    assert answer["results"][0]["error"]["type"] == "urn:alpacamq:problem:stale-receipt"
    assert [each["receipt"] for each in answer["results"]] == [each["receipt"] for each in messages]


def test_an_acknowledgement_is_repeated_without_harm(http: httpx.Client, made: str) -> None:
    publish(http, made, "work")
    messages = poll(http, made)
    for _ in range(2):
        assert settle(http, "ack", *messages).json()["errors"] == 0


@pytest.mark.parametrize(("verb", "more"), [("nack", {}), ("reject", {}), ("visibility", {"timeout_ms": 1})])
def test_a_single_stale_receipt_is_a_conflict(
    http: httpx.Client, made: str, verb: str, more: dict[str, int]
) -> None:
    publish(http, made, "work")
    (message,) = poll(http, made)
    body = {"receipt": message["receipt"]}
    http.post("/messages/ack", json=body).raise_for_status()
    refused(http.post(f"/messages/{verb}", json={**body, **more}), 409, "stale-receipt")


def test_after_the_end_of_a_lease_a_message_is_acknowledged_or_leased_again_but_not_returned(
    http: httpx.Client, made: str
) -> None:
    publish(http, made, "work")
    (message,) = poll(http, made, visibility_ms=0)
    body = {"receipt": message["receipt"]}
    refused(http.post("/messages/nack", json=body), 409, "stale-receipt")
    refused(http.post("/messages/reject", json=body), 409, "stale-receipt")
    http.post("/messages/visibility", json={**body, "timeout_ms": 60_000}).raise_for_status()
    assert poll(http, made) == []
    http.post("/messages/visibility", json={**body, "timeout_ms": 0}).raise_for_status()
    http.post("/messages/ack", json=body).raise_for_status()
    assert poll(http, made) == []


def test_garbage_is_no_receipt(http: httpx.Client) -> None:
    refused(http.post("/messages/ack", json={"receipt": "garbage"}), 422, "invalid-receipt")


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("ack", {}, "/receipt"),
        ("ack", {"receipt": "a", "receipts": ["b"]}, "/receipt"),
        ("ack", {"receipts": []}, "/receipts"),
        ("ack", {"receipts": ["a"] * 1001}, "/receipts"),
        ("ack", {"reciept": "a"}, "/reciept"),
        ("nack", {"receipt": "a", "delay_ms": -1}, "/delay_ms"),
        ("visibility", {"receipt": "a"}, "/timeout_ms"),
    ],
)
def test_bad_receipts_are_refused_with_their_place(
    http: httpx.Client, verb: str, body: dict[str, object], field: str
) -> None:
    assert wrong_field(http.post(f"/messages/{verb}", json=body)) == field


def test_a_nacked_message_is_redelivered_after_its_delay(http: httpx.Client, made: str) -> None:
    publish(http, made, "work")
    settle(http, "nack", *poll(http, made), delay_ms=0).raise_for_status()
    (again,) = poll(http, made, wait_ms=30_000)
    assert again["delivery_count"] == 2
    settle(http, "nack", again, delay_ms=3_600_000).raise_for_status()
    assert poll(http, made) == []
    assert http.get(f"/groups/workers/queues/{made}").json()["totals"]["resting"] == 1


def test_a_lease_that_ends_is_given_to_another(http: httpx.Client, made: str) -> None:
    publish(http, made, "work")
    poll(http, made, visibility_ms=50)
    (again,) = eventually(lambda: poll(http, made, wait_ms=1000))
    assert again["delivery_count"] == 2


def test_a_lease_is_extended_or_released(http: httpx.Client, made: str) -> None:
    publish(http, made, "work")
    (message,) = poll(http, made, visibility_ms=60_000)
    settle(http, "visibility", message, timeout_ms=120_000).raise_for_status()
    settle(http, "visibility", message, timeout_ms=0).raise_for_status()
    assert eventually(lambda: poll(http, made))


def test_urgent_messages_come_first_in_strict_order(http: httpx.Client, topic: str) -> None:
    settings = {"queue.priority.mode": "strict"}
    http.post("/topics", json={"name": topic, "partitions": 1, "settings": settings}).raise_for_status()
    for priority in ("background", "low", "normal", "high", "critical"):
        publish(http, topic, priority, priority=priority)
    messages = poll(http, topic)
    assert [each["priority"] for each in messages] == ["critical", "high", "normal", "low", "background"]
    stats = http.get("/priority/stats", params={"topic": topic}).json()
    assert stats["lanes"]["critical"]["delivered_total"] == 1
    (partition,) = stats["partitions"]
    assert partition["lanes"]["background"]["in_flight"] == 1


def test_a_rejected_message_is_dead_lettered_and_redriven(http: httpx.Client, made: str) -> None:
    publish(http, made, "poison", key="k")
    settle(http, "reject", *poll(http, made), reason="cannot be read").raise_for_status()

    def dead_letters() -> list[dict[str, Any]]:
        answer = http.get(f"/topics/{made}.dlq/messages")
        return answer.json()["messages"] if answer.status_code == 200 else []

    (letter,) = eventually(dead_letters)
    assert (letter["key"], letter["value"]) == ("k", "poison")
    assert letter["headers"]["alpacamq-origin-topic"] == made
    assert letter["headers"]["alpacamq-dead-letter-reason"] == "cannot be read"
    stats = http.get("/reliability/stats", params={"topic": made}).json()
    assert (stats["totals"]["rejected_total"], stats["totals"]["dead_lettered_total"]) == (1, 1)

    started = http.post(f"/topics/{made}.dlq/dead-letters/redrive", json={})
    assert started.status_code == 202
    task = started.json()["id"]
    eventually(lambda: http.get(f"/redrives/{task}").json()["state"] == "completed")
    assert http.get(f"/redrives/{task}").json()["moved"] == 1
    listed = http.get("/redrives", params={"topic": f"{made}.dlq"}).json()["redrives"]
    assert [each["id"] for each in listed] == [task]
    (back,) = eventually(lambda: poll(http, made))
    assert back["value"] == "poison"
    assert back["delivery_count"] == 1
    assert "headers" not in back


def test_a_redrive_to_a_deleted_topic_fails_and_counts_what_was_moved(http: httpx.Client, made: str) -> None:
    publish(http, made, *"abcdef")
    settle(http, "reject", *poll(http, made, max=6)).raise_for_status()
    path = f"/groups/queue/queues/{made}.dlq"

    def are_dead() -> bool:
        return len(http.get(f"/topics/{made}.dlq/messages").json().get("messages", ())) == 6

    eventually(are_dead)
    http.post("/topics", json={"name": f"{made}-target"}).raise_for_status()
    body = {"target": f"{made}-target", "messages_per_second": 4}
    task = http.post(f"/topics/{made}.dlq/dead-letters/redrive", json=body).json()["id"]
    eventually(lambda: http.get(f"/redrives/{task}").json()["moved"] >= 2)
    http.delete(f"/topics/{made}-target").raise_for_status()
    eventually(lambda: http.get(f"/redrives/{task}").json()["state"] == "failed")
    ended = http.get(f"/redrives/{task}").json()
    left = ended["to_move"] - ended["moved"]
    assert ended["failure"] == f"{left} messages were not moved: topic '{made}-target' has been deleted"
    assert eventually(lambda: http.get(path).json()["totals"]["ready"] == left)


def test_an_unknown_redrive_is_not_found(http: httpx.Client) -> None:
    refused(http.get("/redrives/nothing"), 404, "unknown-task")
    refused(http.delete("/redrives/nothing"), 404, "unknown-task")
    refused(http.post("/topics/no-such.dlq/dead-letters/redrive", json={}), 404, "unknown-topic")


def test_a_queue_has_settings_of_its_own(http: httpx.Client, made: str) -> None:
    path = f"/groups/workers/queues/{made}"
    settings = {"queue.visibility.timeout.ms": 90_000}
    assert http.put(path, json={"settings": settings}).json()["settings"] == {
        "queue.visibility.timeout.ms": "90000"
    }
    publish(http, made, "work")
    (message,) = poll(http, made)
    assert message["deadline"] - message["first_delivered"] == 90_000
    back = http.put(path, json={"settings": {"queue.visibility.timeout.ms": None}})
    assert back.json()["settings"] == {}
    refused(http.put(path, json={"settings": {"retention.ms": 1}}), 422, "invalid-config")


def test_whole_floats_are_integers_in_every_body(http: httpx.Client, made: str) -> None:
    path = f"/groups/workers/queues/{made}"
    publish(http, made, *"ab", partition=0)
    changed = http.put(path, json={"settings": {"queue.visibility.timeout.ms": 90_000.0}}).json()
    assert changed["settings"] == {"queue.visibility.timeout.ms": "90000"}
    http.post(f"{path}/reset", json={"partition": 0.0, "offset": 1.0}).raise_for_status()
    assert [each["value"] for each in poll(http, made)] == ["b"]
    body = {"messages_per_second": 5.0, "max_messages": 1.0, "target": made}
    http.post("/topics", json={"name": f"{made}.dlq", "partitions": 1.0}).raise_for_status()
    assert http.post(f"/topics/{made}.dlq/dead-letters/redrive", json=body).status_code == 202


def test_a_queue_is_emptied_and_begun_again(http: httpx.Client, made: str) -> None:
    path = f"/groups/workers/queues/{made}"
    publish(http, made, *"abc", partition=0)
    assert len(poll(http, made, max=1)) == 1
    assert http.post(f"{path}/purge").json()["totals"]["in_flight"] == 0
    assert poll(http, made) == []
    http.post(f"{path}/reset", json={"to": "earliest"}).raise_for_status()
    assert [each["value"] for each in poll(http, made)] == ["a", "b", "c"]
    http.post(f"{path}/reset", json={"partition": 0, "offset": 2}).raise_for_status()
    assert [each["value"] for each in poll(http, made)] == ["c"]


def test_peeking_does_not_lease_messages(http: httpx.Client, made: str) -> None:
    path = f"/groups/workers/queues/{made}"
    refused(http.get(f"{path}/messages"), 404, "group-id-not-found")
    publish(http, made, *"abc", partition=0)
    settle(http, "ack", *poll(http, made, max=1)).raise_for_status()
    leased = poll(http, made, max=1)
    peeked = http.get(f"{path}/messages").json()["messages"]
    assert [(each["partition"], each["value"]) for each in peeked] == [(0, "b"), (0, "c")]
    assert len(http.get(f"{path}/messages", params={"limit": 1}).json()["messages"]) == 1
    settle(http, "ack", *leased).raise_for_status()


def test_queues_are_shown_among_the_groups_and_deleted_with_them(http: httpx.Client, made: str) -> None:
    group = f"group-of-{made}"
    http.get(f"/groups/{group}/poll", params={"topic": made, "wait_ms": 0}).raise_for_status()
    listed = [each for each in http.get("/groups").json()["groups"] if each["group"] == group]
    assert listed == [{"group": group, "type": "queue", "topics": [made]}]
    assert http.get(f"/groups/{group}").json()["queues"] == [made]
    assert http.delete(f"/groups/{group}").status_code == 204
    refused(http.get(f"/groups/{group}/queues/{made}"), 404, "group-id-not-found")


def test_a_queue_of_no_topic_is_not_found(http: httpx.Client) -> None:
    refused(http.get("/groups/g/poll", params={"topic": "no-such-topic", "wait_ms": 0}), 404, "unknown-topic")
    refused(http.get("/groups/g/queues/no-such-topic"), 404, "group-id-not-found")


def test_metrics_tell_of_queues(http: httpx.Client, made: str) -> None:
    publish(http, made, *"abc")
    poll(http, made, max=1)
    text = http.get("/metrics").text
    labels = f'{{group="workers",topic="{made}"}}'
    assert f"alpacamq_queue_ready{labels} 2" in text
    assert f"alpacamq_queue_in_flight{labels} 1" in text
    assert f"alpacamq_queue_received_total{labels} 1" in text
