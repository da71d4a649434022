"""Filters that are taken over from Spark, and the offsets that remain to be read."""

from datetime import UTC, datetime
from typing import Any

import pytest

datasource = pytest.importorskip("pyspark.sql.datasource")
if not hasattr(datasource, "Filter"):
    pytest.skip("this version of Spark pushes no filters down", allow_module_level=True)

from pyspark.sql.datasource import (  # noqa: E402
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from alpacamq.client.kafka.cluster import Cluster  # noqa: E402
from alpacamq.client.kafka.transactional import add_partitions, claim, end_transaction, send_batches  # noqa: E402
from alpacamq.model.batch import TRANSACTIONAL  # noqa: E402
from alpacamq.model.ids import TopicName, TopicPartition  # noqa: E402
from alpacamq.model.records import Record, write_batch  # noqa: E402
from alpacamq_spark.read.predicates import EVERY_NUMBER, Interval, Predicates  # noqa: E402
from alpacamq_spark.read.pushdown import with_filter  # noqa: E402
from tests.brokers import Broker  # noqa: E402

from .driving import read, values  # noqa: E402
from .topics import make_topic  # noqa: E402

TIME = ("timestamp",)
OFFSET = ("offset",)
# 5,500 microseconds after 1970: between the milliseconds 5 and 6.
BETWEEN = datetime(1970, 1, 1, 0, 0, 0, 5500, tzinfo=UTC)
SIX = datetime(1970, 1, 1, 0, 0, 0, 6000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        pytest.param(EqualTo(OFFSET, 5), {"offset": Interval(5, 6)}, id="one offset"),
        pytest.param(GreaterThan(OFFSET, 5), {"offset": Interval(low=6)}, id="offsets above"),
        pytest.param(LessThanOrEqual(OFFSET, 5), {"offset": Interval(high=6)}, id="offsets to"),
        pytest.param(GreaterThanOrEqual(TIME, BETWEEN), {"timestamp_ms": Interval(low=6)}, id="times from"),
        pytest.param(GreaterThan(TIME, SIX), {"timestamp_ms": Interval(low=7)}, id="times after"),
        pytest.param(LessThan(TIME, BETWEEN), {"timestamp_ms": Interval(high=6)}, id="times before"),
        pytest.param(LessThanOrEqual(TIME, SIX), {"timestamp_ms": Interval(high=7)}, id="times to"),
        pytest.param(
            EqualNullSafe(TIME, BETWEEN), {"timestamp_ms": Interval(6, 6)}, id="no such millisecond"
        ),
        pytest.param(In(("topic",), ("a", "b")), {"topics": frozenset("ab")}, id="topics"),
        pytest.param(EqualTo(("partition",), 3), {"partitions": frozenset({3})}, id="a partition"),
        pytest.param(LessThan(("partition",), 3), {"partition": Interval(high=3)}, id="partitions below"),
        pytest.param(IsNotNull(("offset",)), {}, id="what is always there"),
    ],
)
def test_a_condition_that_can_be_held_is_taken(condition: Any, left: dict[str, Any]) -> None:
    assert with_filter(Predicates(), condition) == Predicates(**left)


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param(EqualTo(("value",), b"x"), id="a value"),
        pytest.param(Not(EqualTo(("partition",), 1)), id="a negation"),
        pytest.param(IsNotNull(("key",)), id="a key that may be absent"),
        pytest.param(IsNull(("offset",)), id="an offset that is absent"),
        pytest.param(In(OFFSET, (1, 5)), id="some offsets"),
        pytest.param(EqualTo(OFFSET, None), id="nothing"),
        pytest.param(GreaterThan(TIME, datetime(2020, 1, 1)), id="a time without a zone"),  # noqa: DTZ001
        pytest.param(EqualTo(("headers", "key"), "x"), id="a field of a field"),
        pytest.param(EqualTo(("topic",), 7), id="a topic that is no text"),
    ],
)
def test_any_other_condition_is_left_to_spark(condition: Any) -> None:
    assert with_filter(Predicates(), condition) is None


def test_conditions_hold_together() -> None:
    predicates: Predicates | None = Predicates()
    for condition in (
        In(("topic",), ("a", "b")),
        In(("topic",), ("b", "c")),
        GreaterThan(("partition",), 1),
        In(("partition",), (1, 2)),
    ):
        assert predicates is not None
        predicates = with_filter(predicates, condition)
    assert predicates is not None
    admitted = [
        (topic, number)
        for topic in "abc"
        for number in range(4)
        if predicates.admits(TopicPartition(TopicName(topic), number))
    ]
    assert admitted == [("b", 2)]
    assert predicates.timestamp_ms is EVERY_NUMBER


def test_records_without_a_time_are_as_old_as_spark_has_them(
    broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    producer = claim(cluster, topic, 10_000)
    batch = write_batch(
        [Record(0, -1, None, b"no time"), Record(1, 5, None, b"early"), Record(2, 7, None, b"late")],
        attributes=TRANSACTIONAL,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=0,
    )
    place = TopicPartition(TopicName(topic), 0)
    add_partitions(cluster, producer, [place])
    send_batches(cluster, producer, {place: batch})
    end_transaction(cluster, producer, committed=True)
    assert values(read(broker, [LessThan(TIME, SIX)], subscribe=topic)) == ["early", "no time"]
