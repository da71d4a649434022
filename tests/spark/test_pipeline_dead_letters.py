"""Dead letters: counted by reason, age and source; sent back by a condition, once."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from alpacamq.client.errors import NotFound
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.topics import add_topic_partitions, delete_topic
from alpacamq.model import headers
from alpacamq_spark.commit import committer as committing
from alpacamq_spark.commit.committer import commit
from alpacamq_spark.options import write_options
from alpacamq_spark.pipelines import Pipeline
from alpacamq_spark.pipelines.checkpoint import Checkpoint
from alpacamq_spark.pipelines.dead_letters import redrive
from alpacamq_spark.pipelines.dead_letters.letters import dead_letter_topics, letters_frame
from alpacamq_spark.pipelines.dead_letters.pipeline import Summary
from alpacamq_spark.pipelines.dead_letters.redrive import covering, packed
from alpacamq_spark.pipelines.definition import DeadLetterSource
from alpacamq_spark.pipelines.errors import InvalidPipeline
from alpacamq_spark.pipelines.run import PipelineRun
from alpacamq_spark.write.staging import JOBS, Batch, StagingArea

from .pipeline_files import RecordedProgress, Sent, Workshop, json_of, send
from .topics import deliveries, make_topic

DAY_MS = 86_400_000
TEXT = """
kind = "dead-letters"
schema = "amount INT"

[source]
topics = ["{topic}"]

[redrive]
where = "{where}"
execute = {execute}
"""


def letter(topic: str, number: int, *, reason: str, age_days: float = 0, partition: int = 1) -> Sent:
    """A dead letter as the broker writes them."""
    now_ms = time.time_ns() // 1_000_000
    return Sent(
        value=json.dumps({"amount": number}),
        key=f"k{number}",
        headers={
            "own": "kept",
            headers.ORIGIN_TOPIC: topic,
            headers.ORIGIN_PARTITION: str(partition),
            headers.ORIGIN_OFFSET: str(number),
            headers.ORIGIN_TIMESTAMP: str(now_ms),
            headers.ORIGIN_GROUP: "kitchen",
            headers.DELIVERY_COUNT: "4",
            headers.DEAD_LETTER_REASON: reason,
            headers.DEAD_LETTERED_AT: str(now_ms - int(age_days * DAY_MS)),
        },
    )


def pipeline(workshop: Workshop, topic: str, where: str, *, execute: bool) -> Pipeline:
    return workshop.pipeline(TEXT.format(topic=topic, where=where, execute=str(execute).lower()))


@pytest.fixture
def given_up(workshop: Workshop, cluster: Cluster, topic: str) -> str:
    """A topic with six dead letters."""
    make_topic(cluster, topic)
    make_topic(cluster, f"{topic}.dlq", partitions=1)
    send(
        workshop.broker,
        f"{topic}.dlq",
        [
            *(letter(topic, number, reason="timeout") for number in range(3)),
            letter(topic, 3, reason="rejected", age_days=2),
            letter(topic, 4, reason="rejected", age_days=30),
            Sent(value="not from us", key="k"),
        ],
    )
    return topic


def test_dead_letters_are_counted_and_nothing_is_sent_back_until_it_is_executed(
    workshop: Workshop, cluster: Cluster, given_up: str
) -> None:
    named = {'topics = ["orders"]': f'topics = ["{given_up}"]'}
    outcome = workshop.run(workshop.example("dead-letters.toml", **named))
    data = json_of(outcome)
    assert data["total"] == 6
    counts = {name: {row[name[:-1]]: row["count"] for row in data[name]} for name in ("reasons", "ages")}
    # A dead letter without a header for its time is as old as its record.
    assert counts == {
        "reasons": {"timeout": 3, "rejected": 2, "unknown": 1},
        "ages": {"under 1h": 3, "1d to 7d": 1, "over 7d": 2},
    }
    sources = {(row["topic"], row["group"]): row["count"] for row in data["sources"]}
    assert sources == {(given_up, "kitchen"): 5, (given_up, None): 1}
    assert (data["redrive"]["executed"], data["redrive"]["matching"]) == (False, 3)
    assert "--execute" in outcome.report.notes[0]
    assert deliveries(cluster, given_up) == []


def test_matching_dead_letters_are_redriven_unchanged_and_once(
    workshop: Workshop, cluster: Cluster, given_up: str
) -> None:
    shown = pipeline(workshop, given_up, "reason = 'timeout' AND data.amount > 0", execute=False)
    assert workshop.run(shown.executing()).rows == 2
    found = deliveries(cluster, given_up)
    assert sorted((each.partition.partition, each.record.key) for each in found) == [(1, b"k1"), (1, b"k2")]
    assert [list(each.record.headers) for each in found] == [[("own", b"kept")]] * 2

    # As if it had died after sending the messages and before recording that.
    (Path(shown.checkpoint_place) / "redrive-done.json").unlink()
    wider = pipeline(workshop, given_up, "reason IN ('timeout', 'unknown')", execute=True)
    workshop.run(wider)
    assert sorted(each.record.key or b"" for each in deliveries(cluster, given_up)) == [
        b"k",
        b"k0",
        b"k1",
        b"k2",
    ]
    assert workshop.run(wider).rows == 0


def test_a_partition_that_is_added_during_a_run_is_left_to_the_next(
    workshop: Workshop, cluster: Cluster, given_up: str
) -> None:
    widened = f"{given_up}.dlq"
    run = PipelineRun(
        name="letters",
        kind="dead-letters",
        broker=workshop.broker.address,
        spark=workshop.spark,
        checkpoint=Checkpoint(str(workshop.directory)),
        place=str,
    )
    letters = dead_letter_topics(run.broker, DeadLetterSource(topics=(given_up,)))
    add_topic_partitions(cluster, widened, 2)
    send(workshop.broker, widened, [replace(letter(given_up, 5, reason="timeout"), partition=1)])
    assert letters_frame(run, letters, None, 0).count() == 6


def test_no_number_of_reasons_hides_a_topic(spark: SparkSession) -> None:
    query = """
        SELECT concat('why ', id % 450) AS reason, if(id < 900, 'a.dlq', 'b.dlq') AS topic,
        'a' AS origin_topic, 'g' AS origin_group, id AS age_ms, timestamp_millis(id) AS dead_lettered_at,
        1 AS delivery_count
        FROM range(901)
    """
    plain: Any = Summary(spark.sql(query), ["1h"]).plain()
    assert (plain["total"], len(plain["reasons"])) == (901, 100)
    assert [(row["topic"], row["count"]) for row in plain["topics"]] == [("a.dlq", 900), ("b.dlq", 1)]


class Died(Exception):
    """A run that was killed."""


def die(*_: object) -> None:
    raise Died


@pytest.fixture
def chosen(workshop: Workshop, given_up: str, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A redrive that died when it had written down what it would send: the first three."""

    unfinished = pipeline(workshop, given_up, "reason = 'timeout'", execute=True)
    with monkeypatch.context() as patch:
        patch.setattr(redrive, "write_records", die)
        with pytest.raises(Died):
            workshop.run(unfinished)
    return unfinished


def test_selected_dead_letters_are_not_taken_from_a_recreated_topic(
    workshop: Workshop, cluster: Cluster, given_up: str, chosen: Pipeline
) -> None:
    delete_topic(cluster, f"{given_up}.dlq")
    make_topic(cluster, f"{given_up}.dlq", partitions=1)
    others = [letter(given_up, number, reason="rejected") for number in range(10, 14)]
    send(workshop.broker, f"{given_up}.dlq", [*others, letter(given_up, 14, reason="timeout")])
    told = RecordedProgress()
    assert workshop.run(chosen, told).rows == 1
    assert [each.record.key for each in deliveries(cluster, given_up)] == [b"k14"]
    assert "3 dead letters selected by an earlier run are gone" in told.sentences


def test_selected_dead_letters_lost_to_retention_do_not_block_the_rest(
    workshop: Workshop, cluster: Cluster, given_up: str, chosen: Pipeline
) -> None:
    admin = AdminClient({"bootstrap.servers": workshop.broker.address})
    for deleted in admin.delete_records([TopicPartition(f"{given_up}.dlq", 0, 2)]).values():
        deleted.result()
    assert workshop.run(chosen).rows == 1
    assert [each.record.key for each in deliveries(cluster, given_up)] == [b"k2"]


def test_a_decision_is_committed_although_its_dead_letters_are_gone(
    workshop: Workshop, cluster: Cluster, given_up: str, chosen: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the run had died a little later: with everything written, and nothing committed yet."""
    sink = f"redrive-{Checkpoint(chosen.checkpoint_place).identity()}"
    options = write_options({"kafka.bootstrap.servers": "unused", "topic": given_up})
    area = StagingArea(cluster, options, Batch(sink=sink, query=JOBS, run="died", number=0), 0, 0)
    area.begin()
    area.write(pa.RecordBatch.from_pydict({"value": ["k0", "k1", "k2"]}))
    with monkeypatch.context() as patch:
        patch.setattr(committing, "commit_transactions", die)
        with pytest.raises(Died):
            commit(cluster, [area.finish()])
    delete_topic(cluster, f"{given_up}.dlq")
    make_topic(cluster, f"{given_up}.dlq", partitions=1)
    assert workshop.run(chosen).rows == 0
    assert sorted(each.record.value or b"" for each in deliveries(cluster, given_up)) == [b"k0", b"k1", b"k2"]


def test_a_redrive_does_not_recreate_a_deleted_topic(
    workshop: Workshop, cluster: Cluster, given_up: str, chosen: Pipeline
) -> None:
    delete_topic(cluster, given_up)
    with pytest.raises(NotFound, match="topic to send dead letters back to"):
        workshop.run(chosen)
    make_topic(cluster, given_up)
    assert workshop.run(chosen).rows == 3


def test_a_redrive_that_cannot_run_fails_with_a_reason(
    workshop: Workshop, cluster: Cluster, given_up: str
) -> None:
    with pytest.raises(InvalidPipeline, match=r"redrive\.where.*reson"):
        workshop.run(pipeline(workshop, given_up, "reson = 'x'", execute=True))
    delete_topic(cluster, given_up)
    with pytest.raises(NotFound, match="topic to send dead letters back to"):
        workshop.run(pipeline(workshop, given_up, "true", execute=True))
    with pytest.raises(NotFound, match=r"dead-letter topic 'nothing\.dlq'"):
        pipeline(workshop, "nothing", "true", execute=True).check_broker()


@given(st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 30))))
def test_offsets_are_packed_without_gain_or_loss(places: set[tuple[str, int, int]]) -> None:
    spans = packed(sorted(places))
    assert {
        (span.topic, span.partition, offset) for span in spans for offset in range(span.start, span.end)
    } == places
    assert len(covering(spans)) == len({place[:2] for place in places})
