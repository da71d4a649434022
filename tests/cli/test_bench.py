"""`alpacactl bench`: measurements and cleanup."""

import os
import re
import sys
import threading
from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.cli.bench.load import Histogram, Load, Meter
from alpacamq.client.kafka.producer import Acks
from alpacamq.model.batch import Codec
from tests.brokers import Broker

from .command import Command
from .terminals import Terminal

durations = st.lists(st.integers(0, 10**10), min_size=1, max_size=200)


def load(**changes: float | None) -> Load:
    wanted: dict[str, int | float | None] = {
        "clients": 1, "messages": None, "duration_s": None, "rate": None, "size_bytes": 10, "batch": 1,
    }  # fmt: skip
    return Load(**{**wanted, **changes}, acks=Acks.ALL, codec=Codec.NONE)  # type: ignore[arg-type]


def left_behind(ctl: Command) -> list[str]:
    """Topics and groups of benchmarks that are still there."""
    names = [each["name"] for each in ctl.json("topics", "list")]
    names += [each["group"] for each in ctl.json("queue", "list")]
    return [name for name in names if re.fullmatch("bench-[0-9a-f]{8}", name)]


@given(durations, st.floats(0.01, 1.0))
def test_quantiles_are_within_a_per_cent_of_those_of_all_values(values: list[int], quantile: float) -> None:
    histogram = Histogram()
    for each in values:
        histogram.add(each)
    ordered = sorted(values)
    exact = ordered[min(bisect_left(range(1, len(values) + 1), quantile * len(values)), len(values) - 1)]
    assert exact <= round(histogram.at(quantile) * 1000) <= exact * 1.01 + 1
    assert histogram.summary()["max"] == max(values) / 1000


@given(durations, durations)
def test_merged_histograms_equal_one_histogram_of_all_values(ours: list[int], theirs: list[int]) -> None:
    one, two, both = Histogram(), Histogram(), Histogram()
    for histogram, values in ((one, ours), (two, theirs), (both, ours + theirs)):
        for each in values:
            histogram.add(each)
    one.merge(two)
    assert one.summary() == both.summary()
    assert one.total == both.total


def test_a_rate_does_not_wait_for_slow_clients() -> None:
    planned = list(load(messages=50, rate=100_000).plan(0, threading.Event()))
    due = [each for _, each in planned]
    # However long each took: they were due ten microseconds apart.
    assert {later - earlier for earlier, later in pairwise(due)} == {10_000}


def test_latency_is_measured_from_the_scheduled_time() -> None:
    meter = Meter()
    [(_, first), (_, second)] = load(messages=2, rate=1_000_000).plan(0, threading.Event())
    meter.took("publish", first - 5_000_000_000)
    meter.took("publish", second)
    assert meter.times["publish"].at(1.0) >= 5000


def test_clients_share_the_work_and_take_turns() -> None:
    wanted = load(messages=10, rate=1000, clients=3)
    assert [wanted.share(client) for client in range(3)] == [4, 3, 3]
    assert load(rate=300, duration_s=2.0).planned == 600


@pytest.mark.parametrize(
    "arguments",
    [
        ["produce", "--messages", "300", "--clients", "2", "--compression", "zstd"],
        ["produce", "--messages", "300", "--acks", "none", "--size", "20"],
        ["produce", "--rate", "1000", "--duration", "300ms", "--acks", "leader"],
        ["consume", "--messages", "300", "--clients", "2"],
        ["queue", "--messages", "300"],
        ["queue", "--messages", "300", "--rate", "1000", "--clients", "2"],
        ["latency", "--messages", "300", "--clients", "2"],
    ],
    ids=" ".join,
)
def test_load_is_measured_and_nothing_is_left_behind(ctl: Command, arguments: list[str]) -> None:
    measured = ctl.json("bench", *arguments)
    assert measured["messages"] == 300
    assert measured["messages_per_second"] > 0
    assert measured["megabytes_per_second"] > 0
    times = {
        "produce": {"publish"},
        "consume": {"fetch"},
        "queue": {"receive", "ack", *(["publish", "end_to_end"] if "--rate" in arguments else [])},
        "latency": {"publish", "end_to_end"},
    }
    assert measured["latency_ms"].keys() == times[arguments[0]]
    for summary in measured["latency_ms"].values():
        assert list(summary) == ["p50", "p90", "p99", "p99.9", "max"]
        assert sorted(summary.values()) == list(summary.values())
    assert left_behind(ctl) == []


def test_keep_keeps_the_topic_and_an_existing_topic_is_not_deleted(
    ctl: Command, broker: Broker, topic: str
) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "2")
    ctl.ok("bench", "produce", "--topic", topic, "--messages", "10")
    made = ctl.json("bench", "produce", "--messages", "10", "--keep")["topic"]
    listed = {each["name"]: each["messages"] for each in ctl.json("topics", "list")}
    assert (listed[topic], listed[made]) == (10, 10)
    shown = ctl.ok("bench", "consume", "--topic", made)
    assert shown.split()[:4] == ["MESSAGES", "SECONDS", "MESSAGES/S", "DATA/S"]
    ctl.ok("topics", "delete", made, "--yes")


def test_a_missed_rate_is_reported(ctl: Command) -> None:
    ran = ctl("bench", "latency", "--rate", "2000000", "--duration", "300ms")
    assert ran.code == 0
    assert "of 600000 planned messages" in ran.errors


@pytest.mark.parametrize(
    "option", [["--size", "7"], ["--clients", "1000"], ["--acks", "some"], ["--rate", "0"]]
)
def test_invalid_load_is_a_usage_error(ctl: Command, option: list[str]) -> None:
    ctl.fails(2, "bench", "produce", *option)


def test_an_interrupted_run_reports_its_results_and_cleans_up(ctl: Command, broker: Broker) -> None:
    command = [sys.executable, "-m", "alpacamq.cli.main", "--broker", broker.address, "bench", "produce"]
    with Terminal([*command, "--duration", "10m"], os.environ) as bench:
        bench.wait_for("[1-9][0-9]*, [0-9,]+/s  writing")
        bench.press("\x03")
        assert bench.ended() == 130
        assert "MESSAGES/S" in bench.text
    assert left_behind(ctl) == []
