"""Log start and end, the newest record, and deletion of the oldest records."""

import pytest

from tests.brokers import Broker

from .client import Admin, Record, Refused
from .confluent import Confluent
from .conftest import name_of
from .kafka_python import KafkaPython

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC = 3


def test_an_empty_log_starts_and_ends_at_zero(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)

    assert admin.ends(topic) == (0, 0)


def test_the_end_is_the_offset_of_the_next_record(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    admin.produce(topic, [Record(value=b"x", partition=1)] * 5)

    assert admin.ends(topic, partition=0) == (0, 0)
    assert admin.ends(topic, partition=1) == (0, 5)


def test_deleted_records_are_not_returned_to_any_reader(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    admin.produce(topic, [Record(value=b"%d" % number) for number in range(10)])

    assert admin.delete_records(topic, before=4) == 4

    assert admin.ends(topic) == (4, 10)
    assert [record.offset for record in admin.read(topic, start=4, count=6)] == [4, 5, 6, 7, 8, 9]
    with pytest.raises(Refused) as refusal:
        admin.read(topic, start=3, count=1)
    assert refusal.value.code == OFFSET_OUT_OF_RANGE


def test_all_records_can_be_deleted(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    admin.produce(topic, [Record(value=b"x")] * 10)

    assert admin.delete_records(topic, before=-1) == 10

    assert admin.ends(topic) == (10, 10)
    admin.produce(topic, [Record(value=b"next")])
    assert [record.offset for record in admin.read(topic, start=10, count=1)] == [10]


def test_deletion_beyond_the_end_is_refused(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    admin.produce(topic, [Record(value=b"x")])

    with pytest.raises(Refused) as refusal:
        admin.delete_records(topic, before=5)

    assert refusal.value.code == OFFSET_OUT_OF_RANGE
    assert admin.ends(topic) == (0, 1)


@pytest.mark.parametrize("kind", [Confluent, KafkaPython], ids=name_of)
def test_the_newest_record_need_not_be_the_last(
    broker: Broker, topic: str, kind: type[Confluent | KafkaPython]
) -> None:
    client = kind(broker.address)
    client.create_topic(topic, settings={"retention.ms": "-1"})
    client.produce(topic, [Record(value=b"x", timestamp_ms=1_700_000_000_000 + at) for at in (1, 9, 4)])

    assert client.newest(topic) == (1, 1_700_000_000_009)


@pytest.mark.parametrize("kind", [Confluent, KafkaPython], ids=name_of)
def test_an_empty_log_has_no_newest_record(
    broker: Broker, topic: str, kind: type[Confluent | KafkaPython]
) -> None:
    client = kind(broker.address)
    client.create_topic(topic)

    assert client.newest(topic) == (-1, -1)
