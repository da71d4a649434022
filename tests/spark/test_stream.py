"""Streaming reads: limits, new partitions, progress for operators, lost data."""

from itertools import chain
from typing import Any

import pytest
from confluent_kafka import Consumer

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import committed_offsets, extents
from alpacamq.client.kafka.topics import add_topic_partitions, delete_topic, find_topic
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq_spark.errors import DataLost, InvalidOption
from alpacamq_spark.options import ReadMode, read_options
from alpacamq_spark.read.ranges import OffsetRange
from alpacamq_spark.read.stream import PlainStreamReader
from tests.brokers import Broker
from tests.waiting import eventually

from .driving import HAS_ADMISSION_CONTROL, Stream, plan, source, values
from .topics import make_topic, produce


def find(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), partition)


def numbers(*some: int) -> list[str]:
    return [f"{n:04}" for n in some]


def test_positions_have_the_form_of_sparks_kafka_source(broker: Broker, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    produce(broker, topic, numbers(1, 2), partition=1)
    stream = Stream(broker, subscribe=topic)
    assert stream.position == {topic: {"0": 0, "1": 0}}
    assert values(stream.batch()) == numbers(1, 2)
    assert stream.position == {topic: {"0": 0, "1": 2}}
    assert Stream(broker, subscribe=topic, startingOffsets="latest").position == stream.position
    stream.stop()


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="Spark has it from 4.2 on")
def test_batches_are_limited_and_every_partition_moves(broker: Broker, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic, partitions=3)
    produce(broker, topic, numbers(*range(100)), partition=0)
    produce(broker, topic, numbers(*range(100, 106)), partition=1)
    produce(broker, topic, numbers(*range(106, 112)), partition=2)
    stream = Stream(broker, subscribe=topic, maxOffsetsPerTrigger=40)
    batches = [values(stream.batch()) for _ in range(4)]
    assert [len(batch) for batch in batches] == [40, 40, 32, 0]
    # The small partitions are through with the first batch, in spite of the big one.
    assert set(numbers(*range(100, 112))) < set(batches[0])
    assert sorted(chain(*batches)) == numbers(*range(112))
    stream.stop()


def test_partitions_and_topics_that_are_added_are_read_from_their_first_record(
    broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    stream = Stream(broker, subscribePattern=f"{topic}.*", startingOffsets="latest")
    produce(broker, topic, numbers(1))
    assert values(stream.batch()) == numbers(1)
    add_topic_partitions(cluster, topic, 2)
    make_topic(cluster, f"{topic}-too", partitions=1)
    produce(broker, topic, numbers(2), partition=1)
    produce(broker, f"{topic}-too", numbers(3))
    assert values(stream.batch()) == numbers(2, 3)
    stream.stop()


def test_a_reader_without_the_start_of_a_batch_never_goes_back(
    broker: Broker, cluster: Cluster, topic: str
) -> None:
    """As for Spark 4.0 and 4.1, which request the latest offsets first and the initial ones after."""
    make_topic(cluster, topic, partitions=1)
    produce(broker, topic, numbers(*range(50)))
    loaded = source(broker, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    options = read_options(loaded.options, ReadMode.STREAM)
    reader = PlainStreamReader(options, loaded.schema())
    assert reader.latestOffset() == {topic: {"0": 50}}
    assert reader.initialOffset() == {topic: {"0": 0}}
    produce(broker, topic, numbers(*range(50, 75)))
    assert [reader.latestOffset()[topic]["0"] for _ in range(4)] == [60, 70, 75, 75]
    reader.stop()


def plain_reader(broker: Broker, **options: Any) -> PlainStreamReader:
    """The reader for Spark 4.0 and 4.1."""
    loaded = source(broker, **options)
    return PlainStreamReader(read_options(loaded.options, ReadMode.STREAM), loaded.schema())


def test_a_reader_without_the_start_of_a_batch_begins_at_the_end_that_it_gave_first(
    broker: Broker, cluster: Cluster, topic: str
) -> None:
    """Records and partitions that come between the two requests are no loss, and are read."""
    make_topic(cluster, topic, partitions=1)
    produce(broker, topic, numbers(1))
    reader = plain_reader(broker, subscribe=topic, startingOffsets="latest")
    end = reader.latestOffset()
    produce(broker, topic, numbers(2))
    add_topic_partitions(cluster, topic, 2)
    produce(broker, topic, numbers(3), partition=1)
    start = reader.initialOffset()
    assert start == end == {topic: {"0": 1}}
    assert reader.partitions(start, end) == []
    assert reader.latestOffset() == {topic: {"0": 2, "1": 1}}
    reader.stop()
    # After a restart the end of the first batch is that of the checkpoint.
    restarted = plain_reader(broker, subscribe=topic, startingOffsets="earliest")
    start = restarted.initialOffset()
    assert start == {topic: {"0": 0, "1": 0}}
    assert restarted.partitions(start, end) == [OffsetRange(find(topic, 0), 0, 1)]
    restarted.stop()


def test_a_loss_before_a_restart_is_noticed_without_the_start_of_a_batch(
    broker: Broker, cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As on Spark 4.0 and 4.1: the position in the checkpoint is known when the first batch is planned."""
    make_topic(cluster, topic, partitions=1)
    make_topic(cluster, f"{topic}-too", partitions=1)
    produce(broker, topic, numbers(1))
    produce(broker, f"{topic}-too", numbers(2))
    reached = {topic: {"0": 2}, f"{topic}-too": {"0": 0}, f"{topic}-deleted": {"0": 5}}
    strict = plain_reader(broker, subscribePattern=f"{topic}.*")
    end = strict.latestOffset()
    with pytest.raises(DataLost, match=rf"partitions were deleted: {topic}-deleted-0 \(read to 5\)"):
        strict.partitions(reached, end)
    del reached[f"{topic}-deleted"]
    with pytest.raises(DataLost, match=f"{topic}-0 was read to 2 and now ends at 1"):
        strict.partitions(reached, end)
    strict.stop()
    lenient = plain_reader(broker, subscribePattern=f"{topic}.*", failOnDataLoss="false")
    reached[f"{topic}-deleted"] = {"0": 5}
    ranges = lenient.partitions(reached, lenient.latestOffset())
    assert ranges == [OffsetRange(find(f"{topic}-too", 0), 0, 1)]
    assert f"{topic}-0 was read to 2 and now ends at 1" in caplog.text
    assert f"partitions were deleted: {topic}-deleted-0 (read to 5)" in caplog.text
    lenient.stop()


def test_a_batch_waits_for_enough_records(broker: Broker, cluster: Cluster, topic: str) -> None:
    """Except the first of a run, as with Spark's Kafka source."""
    make_topic(cluster, topic, partitions=1)
    produce(broker, topic, numbers(1))
    stream = Stream(broker, subscribe=topic, minOffsetsPerTrigger=3)
    assert values(stream.batch()) == numbers(1)
    produce(broker, topic, numbers(2, 3))
    assert values(stream.batch()) == []
    produce(broker, topic, numbers(4))
    assert values(stream.batch()) == numbers(2, 3, 4)
    produce(broker, topic, numbers(5))
    assert values(stream.batch()) == []
    stream.stop()
    impatient = Stream(
        broker, stream.position, subscribe=topic, minOffsetsPerTrigger=3, maxTriggerDelay="0ms"
    )
    assert values(impatient.batch()) == numbers(5)
    produce(broker, topic, numbers(6))
    assert values(impatient.batch()) == numbers(6)
    impatient.stop()


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="Spark has it from 4.2 on")
def test_a_query_with_available_now_waits_for_nothing(broker: Broker, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic, partitions=1)
    produce(broker, topic, numbers(1, 2, 3, 4))
    stream = Stream(broker, subscribe=topic, minOffsetsPerTrigger=3, maxOffsetsPerTrigger=3)
    stream.reader.prepareForTriggerAvailableNow()
    assert [values(stream.batch()) for _ in range(3)] == [numbers(1, 2, 3), numbers(4), []]
    stream.stop()


def test_options_without_effect_are_named_once(
    broker: Broker, cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(cluster, topic, partitions=1)
    tuned = {"kafka.fetch.min.bytes": "9", "kafka.max.poll.records": "5"}
    stream = Stream(broker, subscribe=topic, **tuned)
    stream.batch()
    stream.batch()
    stream.stop()
    expected = "options without effect on the connector: kafka.fetch.min.bytes, kafka.max.poll.records"
    assert caplog.messages == [expected]
    caplog.clear()
    plan(broker, subscribe=topic, **tuned)
    assert caplog.messages == [expected]


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="Spark has it from 4.2 on")
def test_a_query_with_available_now_ends_where_the_log_did_when_it_began(
    broker: Broker, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    produce(broker, topic, numbers(1, 2, 3))
    stream = Stream(broker, subscribe=topic, maxOffsetsPerTrigger=2)
    stream.reader.prepareForTriggerAvailableNow()
    produce(broker, topic, numbers(4))
    add_topic_partitions(cluster, topic, 2)
    produce(broker, topic, numbers(5), partition=1)
    assert [values(stream.batch()) for _ in range(3)] == [numbers(1, 2), numbers(3), []]
    assert stream.reader.reportLatestOffset() == {topic: {"0": 4, "1": 1}}
    stream.stop()


def test_progress_is_a_groups_so_that_lag_is_seen(broker: Broker, cluster: Cluster, topic: str) -> None:
    """Everything before the start of a batch is committed, even if Spark does not call commit."""
    make_topic(cluster, topic)
    produce(broker, topic, numbers(1, 2, 3), partition=0)
    stream = Stream(broker, subscribe=topic, groupId=f"of-{topic}")
    stream.batch()
    first, second = find_topic(cluster, topic).all_partitions()
    assert committed_offsets(cluster, f"of-{topic}") == {first: 0, second: 0}
    stream.batch()
    assert committed_offsets(cluster, f"of-{topic}") == {first: 3, second: 0}
    stream.stop()


def test_a_group_with_members_is_not_taken_over(broker: Broker, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic, partitions=1)
    produce(broker, topic, numbers(1))
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": f"taken-{topic}", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.5))
        stream = Stream(broker, subscribe=topic, groupId=f"taken-{topic}")
        with pytest.raises(InvalidOption, match="belongs to a consumer group with members"):
            stream.batch()
        stream.stop()
    finally:
        consumer.close()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_retention_that_passed_a_checkpoint_is_named_or_skipped(
    broker: Broker, cluster: Cluster, topic: str, fail: str
) -> None:
    make_topic(cluster, topic, partitions=1, segment_bytes="1024", retention_bytes="4096")
    produce(broker, topic, [f"{n:0400}" for n in range(60)], **{"batch.num.messages": 1})
    [place] = find_topic(cluster, topic).all_partitions()
    eventually(lambda: extents(cluster, [place])[place].start > 1)
    stream = Stream(broker, {topic: {"0": 1}}, subscribe=topic, failOnDataLoss=fail)
    if fail == "true":
        with pytest.raises(DataLost, match=f"the records 1 to [0-9]+ of {topic}-0 are gone"):
            stream.batch()
    else:
        kept = values(stream.batch())
        assert kept[-1] == f"{59:0400}"
        assert f"{1:0400}" not in kept
    stream.stop()


def test_a_deleted_or_recreated_topic_fails_or_is_skipped(
    broker: Broker, cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(cluster, topic, partitions=1)
    make_topic(cluster, f"{topic}-too", partitions=1)
    produce(broker, topic, numbers(1, 2))
    stream = Stream(broker, subscribePattern=f"{topic}.*")
    stream.batch()
    reached = stream.position
    lenient = Stream(broker, reached, subscribePattern=f"{topic}.*", failOnDataLoss="false")
    delete_topic(cluster, topic)
    with pytest.raises(DataLost, match=f"{topic}-0 \\(read to 2\\)"):
        stream.batch()
    with pytest.raises(
        DataLost, match=f"the records 0 to 1 of {topic}-0 are gone: the partition was deleted"
    ):
        list(stream.reader.read(OffsetRange(find(topic, 0), 0, 2)))
    assert list(lenient.reader.read(OffsetRange(find(topic, 0), 0, 2))) == []
    produce(broker, f"{topic}-too", numbers(3))
    assert values(lenient.batch()) == numbers(3)
    make_topic(cluster, topic, partitions=1)
    produce(broker, topic, numbers(4))
    with pytest.raises(DataLost, match=f"{topic}-0 was read to 2 and now ends at 1"):
        stream.batch()
    # As if the reader had not looked while the topic did not exist.
    late = Stream(broker, reached, subscribePattern=f"{topic}.*", failOnDataLoss="false")
    if HAS_ADMISSION_CONTROL:
        late.reader.prepareForTriggerAvailableNow()  # makes no difference
    assert values(late.batch()) == numbers(3)
    assert f"{topic}-0 was read to 2 and now ends at 1" in caplog.text
    assert late.position[topic] == {"0": 1}
    assert values(lenient.batch()) == numbers(4)
    for each in (stream, lenient, late):
        each.stop()
