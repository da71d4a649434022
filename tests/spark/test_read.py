"""Batch reads: the records read with various options, and the errors."""

import json
from typing import Any

import pytest
from confluent_kafka import Producer

from alpacamq.client.errors import NotFound, Unreachable
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import extents
from alpacamq.client.kafka.topics import find_topic
from alpacamq_spark.commit.committer import DecisionLog
from alpacamq_spark.errors import DataLost, InvalidColumns, InvalidOption
from alpacamq_spark.read.subscription import COMMITS_TOPIC
from tests.brokers import Broker
from tests.waiting import eventually

from .driving import plan, read, source, values
from .topics import make_topic, produce


@pytest.fixture
def filled(broker: Broker, cluster: Cluster, topic: str) -> str:
    """Two partitions with ten and five records, 1,000 ms apart from 1,000 on."""
    make_topic(cluster, topic)
    producer = Producer({"bootstrap.servers": broker.address})
    for partition, count in ((0, 10), (1, 5)):
        for n in range(count):
            producer.produce(topic, f"{partition}.{n}", partition=partition, timestamp=1000 * (n + 1))
    assert producer.flush(30) == 0
    return topic


def test_reads_by_pattern_and_by_partition_numbers(broker: Broker, filled: str) -> None:
    assert read(broker, subscribePattern=f"{filled[:-3]}.*").num_rows == 15
    assert values(read(broker, assign=json.dumps({filled: [1]}))) == [f"1.{n}" for n in range(5)]


def test_a_pattern_does_not_read_the_connectors_own_topic(
    broker: Broker, cluster: Cluster, filled: str
) -> None:
    DecisionLog(cluster, filled)  # which makes the topic
    produce(broker, COMMITS_TOPIC, ["a decision"])
    _, ranges = plan(broker, subscribePattern=".*")
    topics = {each.partition.topic for each in ranges}
    assert filled in topics
    assert COMMITS_TOPIC not in topics


def test_tiny_records_are_decoded_a_limited_number_at_a_time(
    broker: Broker, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(cluster, topic, partitions=1)
    produce(broker, topic, ["x"] * 30, **{"batch.num.messages": 5})
    monkeypatch.setattr("alpacamq_spark.read.reader._DECODED_RECORDS", 10)
    reader, [whole] = plan(broker, subscribe=topic)
    sizes = [batch.num_rows for batch in reader.read(whole)]
    assert sum(sizes) == 30
    assert max(sizes) < 15


def test_offsets_limit_a_read(broker: Broker, filled: str) -> None:
    bounds: dict[str, Any] = {
        "startingOffsets": json.dumps({filled: {"0": 8, "1": -2}}),
        "endingOffsets": json.dumps({filled: {"0": -1, "1": 2}}),
    }
    assert values(read(broker, subscribe=filled, **bounds)) == ["0.8", "0.9", "1.0", "1.1"]


def test_times_limit_a_read(broker: Broker, filled: str) -> None:
    assert values(read(broker, subscribe=filled, startingTimestamp=3500, endingTimestamp=5000)) == [
        "0.3",
        "1.3",
    ]
    late = json.dumps({filled: {"0": 10_000, "1": 6000}})
    with pytest.raises(InvalidOption, match=f"{filled}-1 has no record of 6000 or later"):
        read(broker, subscribe=filled, startingOffsetsByTimestamp=late)
    lenient = {"startingOffsetsByTimestamp": late, "startingOffsetsByTimestampStrategy": "latest"}
    assert values(read(broker, subscribe=filled, **lenient)) == ["0.9"]


def test_positions_name_every_partition_and_no_other(broker: Broker, filled: str) -> None:
    with pytest.raises(InvalidOption, match=f"startingOffsets does not name {filled}-1"):
        read(broker, subscribe=filled, startingOffsets=json.dumps({filled: {"0": 1}}))
    with pytest.raises(InvalidOption, match=f"endingOffsets names {filled}-7, which the read does not cover"):
        read(broker, subscribe=filled, endingOffsets=json.dumps({filled: {"0": 1, "1": 1, "7": 1}}))
    with pytest.raises(
        InvalidOption, match=f"endingOffsets requests {filled}-0 at 11, but its log ends at 10"
    ):
        read(broker, subscribe=filled, endingOffsets=json.dumps({filled: {"0": 11, "1": 1}}))


def test_big_partitions_are_split(broker: Broker, filled: str) -> None:
    assert len(plan(broker, subscribe=filled, minPartitions=6)[1]) == 6
    assert len(plan(broker, subscribe=filled, maxRecordsPerPartition=2)[1]) == 8
    assert read(broker, subscribe=filled, minPartitions=6).num_rows == 15


def test_an_empty_topic_has_no_rows(broker: Broker, cluster: Cluster, topic: str) -> None:
    assert read(broker, subscribe=make_topic(cluster, topic)).num_rows == 0


def test_a_schema_with_fewer_columns_reads_only_those(broker: Broker, filled: str) -> None:
    from pyspark.sql.types import IntegerType, LongType, StructType

    loaded = source(broker, subscribe=filled)
    reader = loaded.reader(StructType().add("offset", LongType()))
    [batch] = reader.read(reader.partitions()[1])
    assert batch.to_pydict() == {"offset": list(range(5))}
    with pytest.raises(InvalidColumns, match="column 'offset' is bigint, not int"):
        loaded.reader(StructType().add("offset", IntegerType()))
    with pytest.raises(InvalidColumns, match="unknown column 'ofset'; columns are key"):
        loaded.reader(StructType().add("ofset", LongType()))


def test_a_missing_topic_is_named_with_the_nearest(broker: Broker, filled: str) -> None:
    with pytest.raises(NotFound, match=f"there is no topic '{filled}s'; did you mean '{filled}'"):
        read(broker, subscribe=f"{filled}s")
    with pytest.raises(NotFound, match=f"there is no partition '{filled}-2'"):
        read(broker, assign=json.dumps({filled: [2]}))


def test_brokers_are_tried_in_turn(broker: Broker, filled: str) -> None:
    both = {"kafka.bootstrap.servers": f"127.0.0.1:1,{broker.address}"}
    assert read(broker, subscribe=filled, **both).num_rows == 15
    with pytest.raises(Unreachable, match=r"no broker answers at 127\.0\.0\.1:1"):
        read(broker, subscribe=filled, kafka__bootstrap__servers="127.0.0.1:1")


def test_records_that_retention_took_are_lost_by_name_or_skipped(
    broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1, segment_bytes="1024", retention_bytes="2048")
    produce(broker, topic, [f"{n:0400}" for n in range(40)], **{"batch.num.messages": 1})
    [place] = find_topic(cluster, topic).all_partitions()
    start = eventually(lambda: extents(cluster, [place])[place].start)
    lost = {"startingOffsets": json.dumps({topic: {"0": 0}})}
    with pytest.raises(DataLost, match=f"requests {topic}-0 from 0, but its log begins at [0-9]+"):
        read(broker, subscribe=topic, **lost)
    kept = read(broker, subscribe=topic, failOnDataLoss="false", **lost)
    assert 0 < kept.num_rows <= 40 - start


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_aborted_and_open_transactions_are_seen_as_the_isolation_says(
    broker: Broker, cluster: Cluster, topic: str, isolation: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    for fate in ("committed", "aborted", "open"):
        producer = Producer(
            {"bootstrap.servers": broker.address, "transactional.id": f"{topic}-{fate}-{isolation}"}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, fate)
        assert producer.flush(30) == 0
        if fate == "committed":
            producer.commit_transaction(30)
        elif fate == "aborted":
            producer.abort_transaction(30)
    expected = ["committed"] if isolation == "read_committed" else ["aborted", "committed", "open"]
    assert values(read(broker, subscribe=topic, kafka__isolation__level=isolation)) == expected
    producer.abort_transaction(30)
