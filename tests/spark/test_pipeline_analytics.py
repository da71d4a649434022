"""Analytics: statistics as a reader of the topic would count them, and a self-contained page."""

import re
from html.parser import HTMLParser

import pytest

from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.pipelines.analytics.html_report import Series, bar_plot, html_report, short, time_plot
from alpacamq_spark.pipelines.analytics.results import (
    AnalyticsResults,
    KeyShare,
    PartitionLoad,
    TopicStats,
    WindowStats,
)

from .pipeline_files import NOON_MS, Sent, Workshop, json_of, send
from .topics import make_topic

MINUTE_MS = 60_000


def test_topics_are_measured_by_window_key_and_partition(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    # In the first minute ten records of 10 bytes, 100 ms old; in the third five of 100 bytes, 1 s old.
    first = [
        Sent(
            value="v" * 9,
            key="a" if number < 8 else "b",
            partition=number % 2,
            timestamp_ms=NOON_MS + number,
            headers={"sent-at": str(NOON_MS + number - 100)},
        )
        for number in range(10)
    ]
    third = [
        Sent(
            value="v" * 100,
            timestamp_ms=NOON_MS + 2 * MINUTE_MS,
            headers={"sent-at": "2026-01-31T12:01:59Z"},
        )
        for _ in range(5)
    ]
    send(workshop.broker, topic, [*first, *third])
    pipeline = workshop.example("analytics.toml", **{'archive = "archive"': f'topics = ["{topic}"]'})
    outcome = workshop.run(pipeline)
    data = json_of(outcome)
    assert outcome.rows == 15
    [found] = data["topics"]
    assert (found["records"], found["bytes"], found["without_key"], found["distinct_keys"]) == (15, 600, 5, 2)
    assert found["latency_ms"] == {"p50": 100, "p90": 1000, "p99": 1000, "max": 1000}
    windows = [
        (row["start"], row["records"], row["bytes_per_s"], row["latency_ms"]["p99"])
        for row in data["windows"]
    ]
    assert windows == [
        ("2026-01-31T12:00:00.000+00:00", 10, round(100 / 60, 3), 100),
        ("2026-01-31T12:02:00.000+00:00", 5, round(500 / 60, 3), 1000),
    ]
    keys = [(row["key"], row["records"], row["share"]) for row in data["keys"]]
    assert keys == [("a", 8, round(8 / 15, 6)), ("b", 2, round(2 / 15, 6))]
    partitions = [(row["partition"], row["records"]) for row in data["partitions"]]
    assert partitions == [(0, 10), (1, 5)]
    stored = workshop.spark.read.parquet(str(workshop.directory / "figures" / "windows"))
    assert [row.records for row in stored.orderBy("start_ms").collect()] == [10, 5]
    page = (workshop.directory / "report.html").read_text()
    assert topic in page
    assert page.count("<polyline") >= 5


class Balanced(HTMLParser):
    """Notes what a page refers to, and fails where an element is not closed."""

    VOID = frozenset({"meta", "line", "rect", "circle", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def stats(topic: str, key: str) -> AnalyticsResults:
    windows = [
        WindowStats(
            topic=topic, start_ms=NOON_MS + number * MINUTE_MS, records=number, size=number,
            records_per_s=1.5, bytes_per_s=2e6, sizes=(1, 2, 3), latencies=(1, 2, 3), slowest_ms=4,
        )
        for number in range(3)
    ]  # fmt: skip
    whole = TopicStats(
        topic=topic, records=3, size=3, first_ms=NOON_MS, last_ms=NOON_MS, sizes=(1, 2, 3),
        latencies=(1, 2, 3), slowest_ms=4, distinct_keys=1, without_key=0,
    )  # fmt: skip
    return AnalyticsResults(
        window_ms=MINUTE_MS,
        topics=[whole],
        windows=windows,
        partitions=[PartitionLoad(topic=topic, partition=0, records=3, size=3, share=1.0)],
        keys=[KeyShare(topic=topic, key=key, records=3, size=3, share=1.0)],
    )


def test_the_page_is_self_contained_and_escapes_keys() -> None:
    page = html_report("shop", stats("orders", '<script>alert("&")</script>'), NOON_MS)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.links == []
    assert "<script" not in page
    assert not re.search(r"url\(|@import|https?:", page)
    assert "prefers-color-scheme: dark" in page


def test_a_plot_stays_inside_its_frame() -> None:
    plot = time_plot("t", [Series("a", [(0, 0), (50, 97), (100, 12)])], "")
    [points] = re.findall(r'points="([^"]+)"', plot)
    places = [tuple(map(float, point.split(","))) for point in points.split()]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert all(0 <= x <= 760 and 0 <= y <= 240 for x, y in places)
    assert time_plot("t", [], "") == ""
    assert bar_plot("t", {}) == ""
    assert "<circle" in time_plot("t", [Series("alone", [(5, 5)])], "")


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0"), (950, "950"), (1500, "1.5k"), (20_000_000, "20M"), (3e9, "3G")]
)
def test_numbers_are_shortened(value: float, expected: str) -> None:
    assert short(value) == expected
