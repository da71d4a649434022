"""Queues read the log: lanes, gaps, damage, and the end of a long backlog."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from threading import get_ident
from typing import TYPE_CHECKING

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.leader import append
from alpacamq.broker.queue.host import QueueSettings
from alpacamq.broker.read import block_cache as stored_blocks
from alpacamq.model.batch import CRC_AT, HEADER_BYTES, BatchHeader, Codec, checksum
from alpacamq.model.headers import LANE
from alpacamq.model.lanes import Lane
from alpacamq.model.ports import Buffer
from alpacamq.model.record_index import IndexedBatch
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.model.version import is_compiled
from tests.waiting import soon

from .open_brokers import batch_sent, running, sent
from .queue_steps import ORDERS, acknowledge, values

if TYPE_CHECKING:
    from alpacamq.broker.queue.service import Delivery

REPLACED = "compiled functions do not look for what a test puts in place of a class"


@pytest.mark.parametrize("codec", list(Codec))
async def test_lanes_are_found_in_batches_of_every_compression(tmp_path: Path, codec: Codec) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"queue.priority.mode": "strict"})
        lanes = [Lane.LOW, None, Lane.CRITICAL, Lane.BACKGROUND, Lane.HIGH, None]
        await batch_sent(
            broker,
            "orders",
            [
                Record(place, 1000, None, b"alpacamq-lane", () if lane is None else (laned(lane),))
                for place, lane in enumerate(lanes)
            ],
            codec=codec,
        )
        received = await broker.queues.receive(ORDERS)
        assert [delivery.record.offset for delivery in received] == [2, 4, 1, 5, 0, 3]
        assert [delivery.lane for delivery in received][:2] == [Lane.CRITICAL, Lane.HIGH]


def laned(lane: Lane) -> Header:
    return Header(LANE, lane.text.encode())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_records_removed_by_compaction_are_skipped(tmp_path: Path, codec: Codec) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        records = [Record(offset, 1000, b"k", str(offset).encode()) for offset in (2, 3, 7)]
        await batch_sent(broker, "orders", records, base_offset=0, last_offset=9, codec=codec)
        await sent(broker, "orders", b"10")
        received = await broker.queues.receive(ORDERS)
        assert [delivery.record.offset for delivery in received] == [2, 3, 7, 10]
        await acknowledge(broker, *received)
        (stats,) = (await broker.queues.describe(ORDERS)).partitions
        assert stats.start_offset == 11


async def test_an_unreadable_batch_is_skipped(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await sent(broker, "orders", b"before")
        garbage = [Record(place, 1000, None, bytes(100)) for place in range(3)]
        await garbage_sent(broker, garbage)
        await sent(broker, "orders", b"after")
        received = await broker.queues.receive(ORDERS)
        assert values(received) == [b"before", b"after"]
        assert await broker.queues.receive(ORDERS) == []
        await acknowledge(broker, *received)
        (stats,) = (await broker.queues.describe(ORDERS)).partitions
        assert (stats.start_offset, stats.in_flight) == (stats.end_offset, 0)


async def garbage_sent(broker: Broker, records: Sequence[Record]) -> None:
    """Append a batch with a valid checksum and invalid records."""
    batch = write_batch(records)
    batch[HEADER_BYTES:] = b"\xff" * (len(batch) - HEADER_BYTES)
    batch[CRC_AT : CRC_AT + 4] = checksum(batch).to_bytes(4, "big")
    await append(broker.topics.partition("orders", 0), batch)


@pytest.mark.parametrize("ordered", ["none", "key"])
async def test_a_queue_continues_behind_a_flipped_bit(tmp_path: Path, ordered: str) -> None:
    async with running(tmp_path) as broker:
        overrides = {"segment.bytes": "2000", "queue.ordering": ordered}
        await broker.topics.create("orders", partitions=1, overrides=overrides)
        for number in range(10):
            await sent(broker, "orders", bytes([65 + number]) * 700)
        directory = broker.topics.partition("orders", 0).log.directory
    segment = sorted(directory.glob("*.log"))[1]
    data = bytearray(segment.read_bytes())
    data[500] ^= 1
    segment.write_bytes(data)
    async with running(tmp_path) as broker:
        received: list[Delivery] = []
        while len(received) < 9:
            received += (more := await broker.queues.receive(ORDERS, wait_ms=10_000))
            assert more
        assert [delivery.record.offset for delivery in received] == [0, 1, 3, 4, 5, 6, 7, 8, 9]
        listed = await broker.queues.peek(ORDERS, max_messages=100)
        assert [record.offset for _, record in listed] == [0, 1, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.skipif(is_compiled(), reason=REPLACED)
async def test_a_long_batch_is_unpacked_once_for_many_small_receives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = 0

    class Counted(IndexedBatch):
        def __init__(self, batch: Buffer, limit: int, header: BatchHeader) -> None:
            nonlocal unpacked
            unpacked += 1
            super().__init__(batch, limit, header)

    monkeypatch.setattr(stored_blocks, "IndexedBatch", Counted)
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await batch_sent(
            broker, "orders", [Record(n, 1, None, b"x" * 50) for n in range(1000)], codec=Codec.ZSTD
        )
        for _ in range(100):
            received = await broker.queues.receive(ORDERS)
            assert len(received) == 10
            await acknowledge(broker, *received)
        assert unpacked == 1


async def test_an_urgent_message_at_the_end_of_a_long_backlog_is_found(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        for batch in range(100):
            await batch_sent(broker, "orders", [Record(n, batch, None, b"x" * 100) for n in range(1000)])
        await sent(broker, "orders", b"urgent", lane=Lane.CRITICAL)
        received: list[Delivery] = []

        async def found() -> bool:
            nonlocal received
            received = await broker.queues.receive(ORDERS, max_messages=1)
            await acknowledge(broker, *received)
            return received[0].lane is Lane.CRITICAL

        await soon(found)
        (stats,) = (await broker.queues.describe(ORDERS)).partitions
        assert stats.start_offset < 50_000


@pytest.mark.parametrize("restarts", [False, True], ids=["new", "after a restart"])
async def test_a_receive_without_wait_finds_messages_that_are_slow_to_unpack(
    tmp_path: Path, restarts: bool
) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"segment.bytes": "100000"})
        for _ in range(3):
            records = [Record(n, 1, None, n.to_bytes(4, "big") * 25) for n in range(2000)]
            await batch_sent(broker, "orders", records, codec=Codec.LZ4)
        if not restarts:
            assert len(await broker.queues.receive(ORDERS)) == 10
            return
    async with running(tmp_path) as broker:
        assert len(await broker.queues.receive(ORDERS)) == 10


@pytest.mark.parametrize("ordering", ["none", "key"])
async def test_a_batch_larger_than_the_cache_is_delivered(tmp_path: Path, ordering: str) -> None:
    async with running(tmp_path, queues=QueueSettings(cache_bytes=64 << 10)) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"queue.ordering": ordering})
        noise = Random(5)
        records = [Record(place, 1000, b"%d" % place, noise.randbytes(10_000)) for place in range(30)]
        await batch_sent(broker, "orders", records, codec=Codec.ZSTD)
        received = await broker.queues.receive(ORDERS, max_messages=30, wait_ms=5000)
        assert [delivery.record.offset for delivery in received] == [*range(30)]


@pytest.mark.skipif(is_compiled(), reason=REPLACED)
async def test_highly_compressed_batches_are_not_unpacked_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    class Watched(IndexedBatch):
        def __init__(self, batch: Buffer, limit: int, header: BatchHeader) -> None:
            super().__init__(batch, limit, header)
            threads.add(get_ident())

    monkeypatch.setattr(stored_blocks, "IndexedBatch", Watched)
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        records = [Record(place, 1000, None, bytes(100_000)) for place in range(50)]
        await batch_sent(broker, "orders", records, codec=Codec.ZSTD)
        assert len(await broker.queues.receive(ORDERS, wait_ms=5000)) == 10
    assert threads
    assert get_ident() not in threads


@pytest.mark.parametrize("segment", [0, 1])
@pytest.mark.parametrize("ordering", ["none", "key"])
async def test_a_receive_does_not_wait_behind_damage(tmp_path: Path, ordering: str, segment: int) -> None:
    overrides = {"segment.bytes": "2000", "queue.ordering": ordering}
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides=overrides)
        for number in range(10):
            await sent(broker, "orders", bytes([65 + number]) * 700)
        directory = broker.topics.partition("orders", 0).log.directory
    damaged = sorted(directory.glob("*.log"))[segment]
    data = bytearray(damaged.read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    async with running(tmp_path) as broker:
        received: list[Delivery] = []
        while len(received) < 8:
            more = await broker.queues.receive(ORDERS, wait_ms=20_000)
            assert more, "the receive waited although there are messages"
            received += more
