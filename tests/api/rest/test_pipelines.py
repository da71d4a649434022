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


def metrics_of(http: httpx.Client, name: str) -> dict[str, float]:
    """Return the metrics of a pipeline by the end of their names; that of its state by the state."""
    found = {}
    for line in http.get("/metrics").raise_for_status().text.splitlines():
        if line.startswith("alpacamq_pipeline") and f'pipeline="{name}"' in line:
            labelled, _, number = line.rpartition(" ")
            metric, _, labels = labelled.removeprefix("alpacamq_pipeline").removeprefix("_").partition("{")
            state = labels.rpartition('state="')[2].partition('"')[0]
            found[metric or state] = float(number)
    return found


def test_metrics_show_the_last_reports_and_end_with_the_pipeline(own: httpx.Client) -> None:
    assert "alpacamq_pipeline" not in own.get("/metrics").text
    now_ms = time.time_ns() // 1_000_000
    tell(own, "a", progress("a", rows=40, lag=7, malformed=4, failures=2, batch_at=5000))
    tell(own, "b", progress("b", updated=now_ms - 70_000))
    tell(own, "c", progress("c", updated=now_ms - 3_700_000))
    shown = metrics_of(own, "a")
    assert shown.pop("last_report_timestamp_seconds") >= now_ms // 1000
    assert shown == {
        "running": 1,
        "lag": 7,
        "rows_total": 40,
        "malformed_total": 4,
        "failures_total": 2,
        "last_batch_timestamp_seconds": 5,
    }
    assert metrics_of(own, "b")["silent"] == 1
    assert "lag" not in metrics_of(own, "b")
    assert metrics_of(own, "c") == {}
    tell(own, "a", progress("a", state="failed"))
    assert metrics_of(own, "a")["failed"] == 1
    tell(own, "a", None)
    assert metrics_of(own, "a") == {}


def test_the_number_of_pipelines_with_metrics_is_bounded(own: httpx.Client) -> None:
    messages = [{"key": f"p{number}", "value": progress(f"p{number}")} for number in range(203)]
    own.post(f"/topics/{TOPIC}/messages", json={"messages": messages}).raise_for_status()
    text = own.get("/metrics").text
    assert text.count("alpacamq_pipeline_rows_total{") == 200
    assert 'alpacamq_metrics_series_dropped{label="pipeline"} 3' in text
