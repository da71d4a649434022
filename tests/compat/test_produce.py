"""Produce: every compression and acks setting; records are read as they were sent."""

import time

import pytest

from tests import stored
from tests.brokers import Broker
from tests.waiting import eventually

from .client import ACKS, COMPRESSIONS, Client, Record
from .confluent import Confluent
from .conftest import skip_if_unable

COUNT = 60


def varied(count: int) -> list[Record]:
    """Return records with keys and headers that compress well."""
    return [
        Record(
            key=b"key-%d" % (number % 7),
            value=b"value %06d " % number + b"alpaca " * 20,
            headers=(("source", b"compat"), ("kind", b"test")),
        )
        for number in range(count)
    ]


def content(records: list[Record]) -> list[tuple[bytes | None, bytes | None, object]]:
    return [(record.key, record.value, record.headers) for record in records]


@pytest.mark.parametrize("acks", ACKS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_are_read_as_they_were_sent(
    client: Client, confluent: Confluent, broker: Broker, topic: str, compression: str, acks: str
) -> None:
    skip_if_unable(type(client), compression)
    confluent.create_topic(topic)
    sent = varied(COUNT)

    offsets = client.produce(topic, sent, compression=compression, acks=acks)
    # With acks=0 the client cannot tell when its records have arrived.
    eventually(lambda: confluent.ends(topic) == (0, COUNT), what=f"the end of {topic} is {COUNT}")

    assert offsets in (None, list(range(COUNT)))
    read = client.read(topic, count=COUNT)
    assert [record.offset for record in read] == list(range(COUNT))
    assert content(read) == content(sent)
    codecs = {batch.header.codec.name.lower() for batch in stored.batches(broker.directory_of(topic), topic)}
    assert codecs == {compression}


def test_an_idempotent_producer_numbers_its_batches(
    client: Client, confluent: Confluent, broker: Broker, topic: str
) -> None:
    confluent.create_topic(topic)

    client.produce(topic, varied(COUNT), idempotent=True)

    assert content(client.read(topic, count=COUNT)) == content(varied(COUNT))
    headers = [batch.header for batch in stored.batches(broker.directory_of(topic), topic)]
    assert all(header.is_idempotent and header.producer_epoch == 0 for header in headers)
    assert len({header.producer_id for header in headers}) == 1
    assert [header.base_sequence for header in headers] == [header.base_offset for header in headers]


def test_two_idempotent_producers_have_different_ids(
    client: Client, confluent: Confluent, broker: Broker, topic: str
) -> None:
    confluent.create_topic(topic)

    client.produce(topic, varied(1), idempotent=True)
    client.produce(topic, varied(1), idempotent=True)

    ids = [batch.header.producer_id for batch in stored.batches(broker.directory_of(topic), topic)]
    assert len(ids) == len(set(ids)) == 2


def test_each_partition_has_its_own_offsets(client: Client, confluent: Confluent, topic: str) -> None:
    confluent.create_topic(topic, partitions=3)
    sent = [Record(value=b"%d" % number, partition=number % 3) for number in range(12)]

    client.produce(topic, sent)

    for partition in range(3):
        read = client.read(topic, partition=partition, count=4)
        assert [record.offset for record in read] == [0, 1, 2, 3]
        assert [record.value for record in read] == [b"%d" % number for number in range(partition, 12, 3)]


def test_missing_keys_and_values_stay_missing(client: Client, confluent: Confluent, topic: str) -> None:
    confluent.create_topic(topic)
    # kcat turns every empty key and value into a missing one, so only the other clients test empty ones.
    sent = [Record(key=b"gone", value=None), Record(key=None, value=b"no key")]

    client.produce(topic, sent)

    assert content(client.read(topic, count=2)) == content(sent)


def test_any_byte_may_be_in_a_value(client: Client, confluent: Confluent, topic: str) -> None:
    confluent.create_topic(topic)
    value = bytes(byte for byte in range(256) if byte not in b"\x1e\x1f")  # kcat's delimiters here

    client.produce(topic, [Record(key=b"binary", value=value)])

    (read,) = client.read(topic, count=1)
    assert read.value == value


def test_timestamps_are_the_producers(client: Client, confluent: Confluent, topic: str) -> None:
    if not client.sets_timestamps:
        pytest.skip("kcat always uses its own clock")
    confluent.create_topic(topic, settings={"retention.ms": "-1"})
    times = [1_600_000_000_000 + 37 * number for number in range(20)]

    client.produce(topic, [Record(value=b"x", timestamp_ms=time_ms) for time_ms in times])

    assert [record.timestamp_ms for record in client.read(topic, count=20)] == times


def test_timestamps_are_the_brokers_with_log_append_time(
    client: Client, confluent: Confluent, topic: str
) -> None:
    confluent.create_topic(topic, settings={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)

    client.produce(topic, [Record(value=b"x", timestamp_ms=1_600_000_000_000)] * 3)

    for record in client.read(topic, count=3):
        assert record.timestamp_ms is not None
        assert before <= record.timestamp_ms <= int(time.time() * 1000)


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
def test_a_topic_can_choose_the_compression_it_stores(
    confluent: Confluent, client: Client, broker: Broker, topic: str, compression: str
) -> None:
    skip_if_unable(type(client), compression)
    confluent.create_topic(topic, settings={"compression.type": compression})

    client.produce(topic, varied(COUNT), compression="none")

    codecs = {batch.header.codec.name.lower() for batch in stored.batches(broker.directory_of(topic), topic)}
    assert codecs == {compression}
    assert content(client.read(topic, count=COUNT)) == content(varied(COUNT))


def test_a_record_larger_than_the_fetch_limit_is_read(
    client: Client, confluent: Confluent, topic: str
) -> None:
    confluent.create_topic(topic, settings={"max.message.bytes": "8000000"})
    large = b"0123456789" * 300_000

    client.produce(topic, [Record(key=b"a", value=large), Record(key=b"b", value=b"small")])

    assert [record.value for record in client.read(topic, count=2)] == [large, b"small"]
