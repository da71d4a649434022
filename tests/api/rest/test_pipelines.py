"""Pipelines are listed by the last they told; what is no progress is passed over."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.brokers import Broker

TOPIC = "alpacamq-pipelines"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[httpx.Client]:
    """A broker that knows of no pipeline."""
    broker = Broker(tmp_path / "data")
    try:
        with httpx.Client(base_url=f"http://{broker.start().http_address}", timeout=60) as client:
            yield client
        assert "Traceback" not in broker.errors.text()
    finally:
        broker.end()


def progress(name: str, **told: object) -> dict[str, object]:
    now_ms = time.time_ns() // 1_000_000
    return {"name": name, "kind": "archive", "state": "running", "started": now_ms, "updated": now_ms, **told}


def tell(http: httpx.Client, key: str, value: object) -> None:
    http.post(f"/topics/{TOPIC}/messages", json={"key": key, "value": value}).raise_for_status()


def listed(http: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get("/pipelines").raise_for_status().json()["pipelines"]
    return found


def test_pipelines_are_listed_by_their_last_word(own: httpx.Client) -> None:
    assert listed(own) == []
    tell(own, "b", progress("b", rows=1))
    tell(own, "a", progress("a", state="failed", error="no room", lag=3, batch=7))
    tell(own, "b", progress("b", rows=2, rows_per_second=0.5))
    assert [(each["name"], each["rows"], each["error"]) for each in listed(own)] == [
        ("a", 0, "no room"),
        ("b", 2, ""),
    ]
    tell(own, "a", None)
    assert [each["name"] for each in listed(own)] == ["b"]
    own.delete(f"/topics/{TOPIC}").raise_for_status()
    assert listed(own) == []
    tell(own, "c", progress("c"))
    assert [each["name"] for each in listed(own)] == ["c"]


def test_a_pipeline_without_recent_reports_is_silent(own: httpx.Client) -> None:
    tell(own, "a", progress("a"))
    tell(own, "b", progress("b", updated=1))
    tell(own, "c", progress("c", updated=1, state="done"))
    assert [each["silent"] for each in listed(own)] == [False, True, False]


@pytest.mark.parametrize(
    "value", ["no json", {"name": "x"}, [1], progress("x", error="e" * 3000), progress("x", state="dancing")]
)
def test_invalid_progress_records_are_ignored(own: httpx.Client, value: object) -> None:
    tell(own, "x", value)
    own.post(f"/topics/{TOPIC}/messages", json={"value": "without a key"}).raise_for_status()
    tell(own, "y", progress("y"))
    assert [each["name"] for each in listed(own)] == ["y"]
