"""Readers against a real broker: where they start and end, isolation, bounds."""

import asyncio
import time

import pytest

from alpacamq.client.aio.cluster import Cluster, Isolation
from alpacamq.client.aio.producer import Producer
from alpacamq.client.aio.reader import At, FetchSettings, Position, Reader, parse_position
from alpacamq.client.aio.transactions import TransactionalProducer
from alpacamq.client.errors import NotFound
from alpacamq.model.ids import TopicName, TopicPartition

NOW_MS = 1_700_000_000_000


async def write(cluster: Cluster, topic: str, count: int, *, first: int = 0, timestamp_ms: int = 0) -> None:
    async with Producer(cluster) as producer:
        for number in range(first, first + count):
            await producer.put(
                topic,
                b"%d" % number,
                partition=0,
                timestamp_ms=timestamp_ms + number if timestamp_ms else None,
            )


async def values(cluster: Cluster, topic: str, start: Position, until: Position = "now") -> list[int]:
    async with Reader(cluster, topic, start=start, until=until, partitions=[0]) as reader:
        return [int(record.value or b"") async for record in reader]


@pytest.mark.parametrize(
    ("start", "until", "expected"),
    [
        pytest.param("earliest", "now", range(10), id="all"),
        pytest.param("latest", "now", [], id="nothing"),
        pytest.param({0: 4}, "now", range(4, 10), id="from an offset"),
        pytest.param({0: 4}, {0: 6}, [4, 5], id="between offsets"),
        pytest.param(At(timestamp_ms=NOW_MS + 3), "now", range(3, 10), id="from a time"),
        pytest.param(At(timestamp_ms=NOW_MS + 3), At(timestamp_ms=NOW_MS + 5), [3, 4], id="between times"),
        pytest.param(At(timestamp_ms=NOW_MS + 99), "now", [], id="after the last"),
        pytest.param("2023-11-14T22:13:20.007+00:00", "now", [7, 8, 9], id="from a date"),
    ],
)
async def test_a_reader_starts_and_ends_where_it_should(
    cluster: Cluster, start: Position, until: Position, expected: range
) -> None:
    topic = "starts-and-ends"
    if topic not in await cluster.topic_names():
        await write(cluster, topic, 10, timestamp_ms=NOW_MS)
    assert await values(cluster, topic, start, until) == list(expected)


async def test_a_reader_without_an_end_waits_for_more(cluster: Cluster, topic: str) -> None:
    await write(cluster, topic, 3)
    async with Reader(cluster, topic) as reader:
        assert [int((await anext(reader)).value or b"") for _ in range(3)] == [0, 1, 2]
        assert await reader.take(wait_s=0.05) == []
        following = asyncio.ensure_future(anext(reader))
        await write(cluster, topic, 1, first=3)
        assert (await following).value == b"3"
        assert reader.positions()[TopicPartition(TopicName(topic), 0)] == 4


async def test_positions_are_those_of_what_was_read(cluster: Cluster, topic: str) -> None:
    await write(cluster, topic, 100)
    async with Reader(cluster, topic, partitions=[0]) as reader:
        place = TopicPartition(TopicName(topic), 0)
        for number in range(40):
            assert reader.positions() == {place: number}
            await anext(reader)
        reader.seek(0, 90)
        assert [int((await anext(reader)).value or b"") for _ in range(10)] == list(range(90, 100))
        reader.seek(0, 10)
        assert [int(record.value or b"") for record in await reader.take(5)] == list(range(10, 15))


async def test_bounds_do_not_lose_records(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster) as producer:
        for number in range(3000):
            await producer.put(topic, b"%d" % number + bytes(100))
    settings = FetchSettings(buffer_bytes=20_000, partition_bytes=5000)
    async with Reader(cluster, topic, until="now", settings=settings) as reader:
        found = sorted([int((record.value or b"").rstrip(b"\0")) async for record in reader])
    assert found == list(range(3000))


@pytest.mark.parametrize("isolation", list(Isolation))
async def test_aborted_records_are_seen_only_if_uncommitted_ones_are_read(
    cluster: Cluster, topic: str, isolation: Isolation
) -> None:
    async with TransactionalProducer(cluster, f"{topic}-{isolation}") as producer:
        for word in (b"committed", b"aborted", b"again"):
            transaction = producer.transaction()
            await transaction.put(topic, word, partition=0)
            await producer.producer.flush()
            await (transaction.abort() if word == b"aborted" else transaction.commit())
    async with Reader(cluster, topic, until="now", settings=FetchSettings(isolation=isolation)) as reader:
        found = [record.value async for record in reader]
    expected = [b"committed", b"aborted", b"again"]
    assert found == [word for word in expected if isolation is Isolation.UNCOMMITTED or word != b"aborted"]


async def test_deleted_records_are_skipped(cluster: Cluster, topic: str) -> None:
    await write(cluster, topic, 10)
    # No record has such an offset: as if it had been deleted.
    async with Reader(cluster, topic, start={0: 1_000_000}, partitions=[0]) as reader:
        assert (await anext(reader)).value == b"0"


async def test_what_does_not_exist_is_named(cluster: Cluster, topic: str) -> None:
    with pytest.raises(NotFound, match=f"there is no topic '{topic}"):
        await Reader(cluster, topic).__aenter__()
    await write(cluster, topic, 1)
    with pytest.raises(NotFound, match="partition"):
        await Reader(cluster, topic, partitions=[9]).__aenter__()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("now", "latest"),
        ("-1h", At(timestamp_ms=NOW_MS - 3_600_000)),
        ("2023-11-14T22:13:20Z", At(timestamp_ms=NOW_MS)),
        ("2023-11-14 22:13:20", At(timestamp_ms=NOW_MS)),
    ],
)
def test_positions_as_text(text: str, expected: object) -> None:
    assert parse_position(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "soon", "-", "-1 fortnight", "2023-13-01"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_position(text, int(time.time() * 1000))
