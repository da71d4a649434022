"""Pipelines report their progress to the broker; failures to do so do not affect them."""

import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.topics import topic_settings
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.pipelines import PIPELINES_TOPIC
from alpacamq_spark.pipelines import streaming
from alpacamq_spark.pipelines.malformed import Malformed, malformed_in
from alpacamq_spark.pipelines.reporting import ProgressReports
from alpacamq_spark.pipelines.run import BatchDone, ProgressListener, Report, RunResult
from tests.brokers import Broker
from tests.waiting import eventually

from .driving import plan
from .pipeline_files import Sent, Workshop, send
from .topics import make_topic, produce

BATCH = BatchDone(batch=3, rows=10, rows_per_second=2.5, duration_ms=4000, lag=7, total_rows=40, malformed=4)


def listed(broker: Broker, name: str) -> dict[str, Any]:
    found = httpx.get(f"http://{broker.http_address}/pipelines").raise_for_status().json()["pipelines"]
    return next((each for each in found if each["name"] == name), {})


@pytest.mark.parametrize(
    ("metrics", "count"),
    [
        pytest.param({"count": 2, "first": {"a": "t", "b": 1, "c": 7}}, 2, id="a session"),
        pytest.param(
            {"values": [2, {"values": ["t", 1, 7], "schema": {}}], "schema": {}}, 2, id="Spark Connect"
        ),
        pytest.param({"values": [0, None], "schema": {}}, 0, id="Spark Connect, none"),
    ],
)
def test_malformed_values_are_counted_by_every_kind_of_session(metrics: dict[str, Any], count: int) -> None:
    found = malformed_in({"observedMetrics": {"malformed values": metrics, "other": {"x": 1}}})
    place = TopicPartition(TopicName("t"), 1)
    assert found == ({"values": Malformed(count=2, place=place, offset=7)} if count else {})


class BusyQuery:
    """A query whose last 100 batches are known, as with Spark."""

    def __init__(self) -> None:
        self._done: list[int] = []
        self.looks = 0

    def complete(self, batches: int) -> None:
        self._done += range(len(self._done), len(self._done) + batches)

    @property
    def recentProgress(self) -> list[SimpleNamespace]:  # noqa: N802 - Spark's name
        self.looks += 1
        progress = [
            {"batchId": number, "durationMs": {"addBatch": 1}, "sources": [{"numInputRows": 2}]}
            for number in self._done[-100:]
        ]
        return [SimpleNamespace(json=json.dumps(each)) for each in progress]


def test_batches_during_long_work_after_a_batch_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "COLLECT_S", 0.01)
    query, told, followed = BusyQuery(), list[BatchDone](), list[int]()

    def merge(done: BatchDone) -> None:
        followed.append(done.batch)
        for _ in range(3 if len(followed) == 1 else 0):
            query.complete(90)
            # The first of these may have begun before.
            seen = query.looks
            eventually(lambda: query.looks > seen + 1)  # noqa: B023 - called here

    run: Any = SimpleNamespace(listener=ProgressListener(batch=told.append))
    following = streaming._QueryFollower(run, Any, (), merge)
    query.complete(5)
    following._report_batches(query)
    following._report_batches(query)
    assert [each.batch for each in told] == [*range(275)]
    assert (following.batches, following.rows, followed) == (275, 550, [4, 274])


def test_a_run_is_reported_from_start_to_end(broker: Broker) -> None:
    told: list[BatchDone] = []
    reports = ProgressReports(broker.address, "from-start-to-end", "archive")
    with reports:
        eventually(lambda: listed(broker, "from-start-to-end").get("state") == "running")
        reports.reporting_listener(ProgressListener(batch=told.append)).batch(BATCH)
        assert told == [BATCH]
        eventually(lambda: listed(broker, "from-start-to-end").get("batch") == 3)
        shown = listed(broker, "from-start-to-end")
        assert (shown["rows"], shown["rows_per_second"], shown["lag"]) == (40, 2.5, 7)
        assert shown["malformed"] == 4
        reports.done(RunResult(rows=40, report=Report(data={})))
    assert listed(broker, "from-start-to-end")["state"] == "done"


def test_a_run_that_fails_says_why(broker: Broker) -> None:
    reports = ProgressReports(broker.address, "failing", "transform")
    with pytest.raises(ValueError, match="no such column"), reports:
        raise ValueError("no such column")
    shown = listed(broker, "failing")
    assert (shown["state"], shown["error"]) == ("failed", "ValueError: no such column")


def test_a_broker_that_is_not_there_does_not_disturb_a_run() -> None:
    with ProgressReports("127.0.0.1:1", "alone", "archive") as reports:
        reports.reporting_listener(ProgressListener()).batch(BATCH)
        reports.done(RunResult(rows=40, report=Report(data={})))


def test_reports_are_kept_in_a_compacted_topic_that_patterns_pass_over(
    broker: Broker, cluster: Cluster, topic: str
) -> None:
    produce(broker, make_topic(cluster, topic), ["a"])
    with ProgressReports(broker.address, "compacted", "archive"):
        pass
    settings = {each.name: each.value for each in topic_settings(cluster, PIPELINES_TOPIC)}
    assert settings["cleanup.policy"] == "compact"
    _, ranges = plan(broker, subscribePattern=".*")
    topics = {each.partition.topic for each in ranges}
    assert topic in topics
    assert PIPELINES_TOPIC not in topics


def test_a_pipeline_that_has_run_is_listed_with_its_rows(workshop: Workshop, cluster: Cluster) -> None:
    make_topic(cluster, "reported")
    send(workshop.broker, "reported", [Sent(value=str(n)) for n in range(3)])
    pipeline = workshop.pipeline(
        """
        kind = "archive"
        [source]
        topics = ["reported"]
        [sink]
        path = "archive"
        """,
        "reported.toml",
    )
    workshop.run(pipeline)
    shown = listed(workshop.broker, "reported")
    assert (shown["state"], shown["kind"], shown["rows"]) == ("done", "archive", 3)
