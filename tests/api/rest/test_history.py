"""GET /history."""

from collections.abc import Callable

import httpx

from alpacamq.telemetry.history import SLOTS
from tests.waiting import eventually

from .problems import refused


def shown(http: httpx.Client, **wanted: str) -> Callable[[str], list[float]]:
    answer = http.get("/history", params=wanted).raise_for_status().json()

    def of(measure: str) -> list[float]:
        found = [each["values"] for each in answer["series"] if each["measure"] == measure]
        assert all(len(values) == len(answer["times"]) for values in found)
        return [value for values in found for value in values if value is not None]

    return of


def test_published_messages_and_lag_appear_in_the_history(http: httpx.Client, made: str) -> None:
    http.post(f"/topics/{made}/messages", json={"messages": [{"value": 1}] * 40}).raise_for_status()
    offsets = [{"topic": made, "partition": index, "offset": 0} for index in (0, 1)]
    http.post(f"/groups/{made}/offsets", json={"offsets": offsets}).raise_for_status()
    eventually(lambda: any(value > 0 for value in shown(http, topic=made)("published")))
    eventually(lambda: 40 in shown(http, group=made)("lag"))
    assert any(value > 0 for value in shown(http)("published"))
    assert shown(http, topic="no-such-topic")("published") == []


def test_a_deleted_topic_leaves_the_history(http: httpx.Client, made: str) -> None:
    http.post(f"/topics/{made}/messages", json={"messages": [{"value": 1}]}).raise_for_status()
    eventually(lambda: shown(http, topic=made)("published"))
    http.delete(f"/topics/{made}").raise_for_status()
    eventually(lambda: not http.get("/history", params={"topic": made}).raise_for_status().json()["series"])


def test_invalid_parameters_are_refused(http: httpx.Client) -> None:
    refused(http.get("/history", params={"points": SLOTS + 1}), 400, "invalid-input")
    refused(http.get("/history", params={"after": "0.5"}), 400, "invalid-input")
    refused(http.get("/history", params={"after": "2026-02-31T00:00:00Z"}), 422, "conflicting-input")
