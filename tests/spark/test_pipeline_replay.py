"""Replays: the right range, in order, once, with the original position."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.pipelines import Pipeline
from alpacamq_spark.pipelines.errors import BadPlan
from alpacamq_spark.pipelines.replay.pipeline import (
    REPLAY_OFFSET,
    REPLAY_PARTITION,
    REPLAY_TIMESTAMP,
    REPLAY_TOPIC,
)
from alpacamq_spark.pipelines.replay.plan import PlannedRange, ReplayPlan, batches_for
from alpacamq_spark.pipelines.run import Interruption

from .pipeline_files import HOUR_MS, NOON_MS, RecordedProgress, Sent, Workshop, send
from .topics import deliveries, make_topic, values

FROM_LOG = """
kind = "replay"
batch = {batch}

[source]
topics = ["{topic}"]
from = {begin}
to = {end}

[sink]
topic = "{topic}-again"
timestamp = "original"
partition = "original"
"""


def replay(workshop: Workshop, topic: str, *, batch: int = 1000, begin: int = 2, end: int = 8) -> Pipeline:
    return workshop.pipeline(FROM_LOG.format(topic=topic, batch=batch, begin=begin, end=end))


def ten(partition: int) -> list[Sent]:
    return [
        Sent(
            value=f"{partition}-{number}",
            key=f"k{number}",
            partition=partition,
            timestamp_ms=NOON_MS + number,
        )
        for number in range(10)
    ]


@pytest.fixture
def filled(workshop: Workshop, cluster: Cluster, topic: str) -> str:
    """A topic with ten records in each of two partitions, and one for the replay."""
    make_topic(cluster, topic)
    make_topic(cluster, f"{topic}-again")
    send(workshop.broker, topic, [*ten(0), *ten(1)])
    return topic


def test_offsets_of_a_topic_are_replayed_in_order_with_their_times_and_where_they_were(
    workshop: Workshop, cluster: Cluster, filled: str
) -> None:
    outcome = workshop.run(replay(workshop, filled, batch=5))
    assert outcome.rows == 12
    assert outcome.report.data["batches"] == 3
    found = deliveries(cluster, f"{filled}-again")
    for partition in (0, 1):
        those = [each.record for each in found if each.partition.partition == partition]
        assert [record.value for record in those] == [f"{partition}-{n}".encode() for n in range(2, 8)]
        assert [record.timestamp_ms for record in those] == [NOON_MS + n for n in range(2, 8)]
        assert {header.key: header.value for header in those[0].headers} == {
            REPLAY_TOPIC: filled.encode(),
            REPLAY_PARTITION: str(partition).encode(),
            REPLAY_OFFSET: b"2",
            REPLAY_TIMESTAMP: str(NOON_MS + 2).encode(),
        }


def test_an_interrupted_replay_continues_without_duplicates(
    workshop: Workshop, cluster: Cluster, filled: str
) -> None:
    pipeline = replay(workshop, filled, batch=5)
    interruption = Interruption()
    interruption.request()
    first = workshop.run(pipeline, interruption=interruption)
    assert first.is_stopped
    assert first.report.data["batches"] == 1
    # As if it had died after writing the batch and before recording that.
    (Path(pipeline.checkpoint_place) / "replay-progress.json").unlink()
    assert workshop.run(pipeline).report.data["batches"] == 3
    expected = sorted(f"{partition}-{n}" for partition in (0, 1) for n in range(2, 8))
    assert values(cluster, f"{filled}-again") == expected
    again = workshop.run(pipeline)
    assert again.rows == 0
    assert "already replayed" in again.report.notes[0]
    assert values(cluster, f"{filled}-again") == expected
    with pytest.raises(BadPlan, match="another source"):
        workshop.run(replay(workshop, filled, end=9))


def test_times_choose_from_an_archive_however_records_are_ordered(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    make_topic(cluster, f"{topic}-again")
    hours = (12, 11, 13, 12, 14)
    send(
        workshop.broker,
        topic,
        [
            Sent(value=json.dumps({"amount": hour}), key="k", timestamp_ms=NOON_MS + (hour - 12) * HOUR_MS)
            for hour in hours
        ],
    )
    orders = f'topics = ["{topic}"]'
    told = RecordedProgress()
    workshop.run(workshop.example("archive.toml", **{'topics = ["orders", "payments"]': orders}), told)
    names = {'topics = ["orders"]': orders, '"orders-again"': f'"{topic}-again"'}
    outcome = workshop.run(workshop.example("replay.toml", **names), told)
    assert outcome.rows == 2
    assert "2 records to replay from 2026-01-31T12:00:00.000+00:00" in " ".join(told.sentences)
    found = [each.record for each in deliveries(cluster, f"{topic}-again")]
    assert [record.timestamp_ms for record in found] == [NOON_MS, NOON_MS]
    assert [dict(record.headers)[REPLAY_OFFSET] for record in found] == [b"0", b"3"]


@given(
    lengths=st.lists(st.integers(1, 500), min_size=1, max_size=5),
    rows=st.integers(1, 2000),
    at_most=st.integers(1, 300),
)
def test_the_batches_of_a_plan_hold_every_offset_once(lengths: list[int], rows: int, at_most: int) -> None:
    spans = tuple(
        PlannedRange(topic="t", partition=number, start=7 * number, end=7 * number + length)
        for number, length in enumerate(lengths)
    )
    plan = ReplayPlan(
        id="x",
        wanted="",
        begin_ms=None,
        end_ms=None,
        rows=rows,
        batches=batches_for(rows, spans, at_most),
        spans=spans,
    )
    covered = [
        (span.partition, offset)
        for number in range(plan.batches)
        for span in plan.batch(number)
        for offset in range(span.start, span.end)
    ]
    assert sorted(covered) == [
        (span.partition, offset) for span in spans for offset in range(span.start, span.end)
    ]
    assert all(plan.batch(number) for number in range(plan.batches))
