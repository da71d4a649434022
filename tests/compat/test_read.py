"""Reads by offset, by timestamp, and out of range."""

import pytest

from tests.brokers import Broker

from .client import Client, Record, Refused
from .confluent import Confluent
from .conftest import skip_if_unable
from .kcat import Kcat

FIRST_MS = 1_700_000_000_000
STEP_MS = 1000
COUNT = 100
# These records are years old.
KEEP = {"retention.ms": "-1"}


@pytest.fixture
def filled(confluent: Confluent, topic: str) -> str:
    """Fill a topic with 100 records, one second apart."""
    confluent.create_topic(topic, settings=KEEP)
    confluent.produce(
        topic,
        [Record(value=b"%d" % number, timestamp_ms=FIRST_MS + STEP_MS * number) for number in range(COUNT)],
    )
    return topic


@pytest.mark.parametrize("start", [0, 1, 57, 99])
def test_reading_starts_at_any_offset(client: Client, filled: str, start: int) -> None:
    read = client.read(filled, start=start, count=COUNT - start)

    assert [record.offset for record in read] == list(range(start, COUNT))
    assert [record.value for record in read] == [b"%d" % number for number in range(start, COUNT)]


@pytest.mark.parametrize(
    ("timestamp_ms", "offset"),
    [
        pytest.param(0, 0, id="before the first record"),
        pytest.param(FIRST_MS, 0, id="at the first record"),
        pytest.param(FIRST_MS + 40 * STEP_MS, 40, id="at a record"),
        pytest.param(FIRST_MS + 40 * STEP_MS + 1, 41, id="between two records"),
        pytest.param(FIRST_MS + (COUNT - 1) * STEP_MS, COUNT - 1, id="at the last record"),
        pytest.param(FIRST_MS + COUNT * STEP_MS, None, id="after the last record"),
    ],
)
def test_a_timestamp_maps_to_the_first_record_not_older(
    client: Client, filled: str, timestamp_ms: int, offset: int | None
) -> None:
    assert client.offset_at(filled, timestamp_ms) == offset


def test_kcat_reads_everything_since_a_time(broker: Broker, filled: str) -> None:
    skip_if_unable(Kcat)

    read = Kcat(broker.address).read_since(filled, FIRST_MS + 90 * STEP_MS)

    assert [record.offset for record in read] == list(range(90, COUNT))


def test_a_timestamp_is_found_among_unordered_timestamps(
    client: Client, confluent: Confluent, topic: str
) -> None:
    confluent.create_topic(topic, settings={**KEEP, "segment.bytes": "1024"})
    seconds = [5, 3, 9, 1, 7, 20, 2, 30, 4, 25]
    for second in seconds:
        confluent.produce(topic, [Record(value=b"x" * 300, timestamp_ms=FIRST_MS + STEP_MS * second)])

    for asked in range(32):
        expected = next((at for at, second in enumerate(seconds) if second >= asked), None)
        assert client.offset_at(topic, FIRST_MS + STEP_MS * asked) == expected


def test_out_of_range_resets_to_the_earliest_offset_if_configured(client: Client, filled: str) -> None:
    read = client.read(filled, start=COUNT + 1000, count=COUNT, reset="earliest")

    assert [record.offset for record in read] == list(range(COUNT))


def test_out_of_range_is_an_error_without_a_reset_policy(client: Client, filled: str) -> None:
    with pytest.raises(Refused) as refusal:
        client.read(filled, start=COUNT + 1000, count=1)

    assert refusal.value.code == 1


def test_below_the_start_of_the_log_is_out_of_range(
    client: Client, confluent: Confluent, filled: str
) -> None:
    confluent.delete_records(filled, before=30)

    read = client.read(filled, start=10, count=70, reset="earliest")

    assert [record.offset for record in read] == list(range(30, COUNT))


def test_reading_continues_across_many_segments(client: Client, confluent: Confluent, topic: str) -> None:
    confluent.create_topic(topic, settings={"segment.bytes": "1024"})
    for start in range(0, 300, 10):
        confluent.produce(
            topic, [Record(value=b"%d" % number + b"." * 50) for number in range(start, start + 10)]
        )

    read = client.read(topic, count=300)

    assert [record.offset for record in read] == list(range(300))
    assert [record.value for record in read] == [b"%d" % number + b"." * 50 for number in range(300)]
    assert [record.offset for record in client.read(topic, start=155, count=145)] == list(range(155, 300))


def test_metadata_counts_the_partitions(client: Client, confluent: Confluent, topic: str) -> None:
    confluent.create_topic(topic, partitions=7)

    assert client.partition_count(topic) == 7
