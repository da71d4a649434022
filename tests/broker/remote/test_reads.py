"""Reading partitions of three brokers through any of them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.read.record_reader import Limits
from alpacamq.broker.remote import reads as module
from alpacamq.broker.remote.read_values import Bounds, FetchedBatches, ReadBounds
from alpacamq.cluster.commands import CreateTopic
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.log.reader import TimestampOffset
from alpacamq.model.batch import TRANSACTIONAL
from alpacamq.model.control import marker_batch
from alpacamq.model.errors import (
    AlpacaError,
    LeaderNotAvailable,
    OffsetOutOfRange,
    UnknownTopic,
    UnknownTopicId,
)
from alpacamq.model.ids import TopicId
from alpacamq.model.records import Record, read_records, write_batch
from alpacamq.model.topics import INT64_MAX
from tests.broker.replication.nodes import (
    SOON_SECONDS,
    TOPIC,
    TOPIC_ID,
    ReplicaCluster,
    a_cluster,
    produce,
    staged,
    until,
)

ALL = Limits(records=1000, size_bytes=1 << 20, before_offset=INT64_MAX)


def place(index: int = 0) -> PartitionId:
    return PartitionId(TOPIC_ID, index)


def spread(cluster: ReplicaCluster, *leaders: int) -> None:
    """Create the topic with a partition without other replicas on each of these brokers."""
    assignments = tuple((leader,) for leader in leaders)
    cluster.decide(
        CreateTopic(name=TOPIC, topic_id=TOPIC_ID, partitions=len(leaders), assignments=assignments)
    )


async def filled(cluster: ReplicaCluster, *counts: int) -> None:
    """Write so many records to each partition."""
    for index, count in enumerate(counts):
        for number in range(count):
            await produce(await cluster.leader(index), b"%d-%d" % (index, number))


def values_of(fetched: FetchedBatches) -> list[bytes | None]:
    return [record.value for record in read_records(fetched.data)]


def known(found: Sequence[Bounds | AlpacaError]) -> list[Bounds]:
    for each in found:
        assert isinstance(each, Bounds), each
    return [each for each in found if isinstance(each, Bounds)]


async def test_the_bounds_of_every_partition_are_known_on_every_broker(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        spread(cluster, 1, 2, 3, 1)
        await filled(cluster, 1, 2, 3, 4)
        for node in cluster.nodes.values():
            found = known(await node.reads.bounds([place(index) for index in range(4)]))
            assert [each.high_watermark for each in found] == [1, 2, 3, 4]
            assert [each.messages for each in found] == [1, 2, 3, 4]
            assert all(each.size_bytes > 0 for each in found)


async def test_bounds_wait_until_a_new_leader_knows_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise a client would miss records that the former leader has acknowledged."""
    async with a_cluster(tmp_path, 1, 2) as cluster:
        spread(cluster, 1)
        await filled(cluster, 1)
        answers: list[bool] = []
        monkeypatch.setattr(
            Partition, "covers_former_epochs", property(lambda _: answers.pop() if answers else True)
        )
        for node in cluster.nodes.values():
            answers += [True, False, False]
            assert len(known(await node.reads.bounds([place()]))) == 1
            assert not answers


async def test_a_thousand_partitions_cost_one_call_per_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        spread(cluster, *[1, 2, 3, 3] * 25)
        for index in range(100):
            await cluster.leader(index)
        reads, calls = cluster.nodes[1].reads, []
        call = cluster.nodes[1].peers.call

        async def counted(node_id: Any, value: Any, timeout_ms: int) -> Any:
            calls.append((node_id, type(value)))
            return await call(node_id, value, timeout_ms)

        monkeypatch.setattr(cluster.nodes[1].peers, "call", counted)
        assert len(known(await reads.bounds([place(index) for index in range(100)]))) == 100
        assert sorted(calls) == [(2, ReadBounds), (3, ReadBounds)]


async def test_each_partition_has_its_own_error(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        spread(cluster, 2)
        await filled(cluster, 1)
        places = [place(), place(1), PartitionId(TopicId(int=5), 0), place()]
        first, absent, unknown, again = await cluster.nodes[1].reads.bounds(places)
        assert isinstance(first, Bounds)
        assert first.high_watermark == 1
        assert isinstance(absent, UnknownTopic)
        assert isinstance(unknown, UnknownTopicId)
        assert again == first


async def test_batches_are_read_on_every_broker(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        spread(cluster, 2)
        await filled(cluster, 3)
        for node in cluster.nodes.values():
            fetched = await node.reads.read_batches(place(), 1, 1, committed=True)
            assert values_of(fetched) == [b"0-1"]
            assert (fetched.next_offset, fetched.bounds.high_watermark) == (2, 3)
            rest = await node.reads.read_batches(place(), 3, 1, committed=True)
            assert (rest.data, rest.next_offset) == (b"", 3)
            with pytest.raises(OffsetOutOfRange):
                await node.reads.read_batches(place(), 4, 1, committed=True)


async def test_records_are_read_within_their_limits_on_every_broker(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        spread(cluster, 2)
        await filled(cluster, 5)
        for node in cluster.nodes.values():
            limits = Limits(records=2, size_bytes=1 << 20, before_offset=4)
            first = await node.reads.read_page(place(), 1, limits, committed=True)
            assert [record.value for record in first.page.records] == [b"0-1", b"0-2"]
            second = await node.reads.read_page(place(), first.page.next_offset, limits, committed=True)
            assert [record.offset for record in second.page.records] == [3]
            assert second.page.next_offset == 4
            assert second.bounds.high_watermark == 5


async def test_a_read_waits_at_the_leader_for_the_next_record(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        spread(cluster, 2)
        leader = await cluster.leader()
        waiting = [
            asyncio.ensure_future(
                node.reads.read_batches(place(), 0, 1 << 20, committed=True, wait_ms=60_000)
            )
            for node in cluster.nodes.values()
        ]
        await until(lambda: len(leader._watchers) == 3, "three readers that wait")
        await produce(leader, b"a")
        async with asyncio.timeout(SOON_SECONDS):
            assert [values_of(await each) for each in waiting] == [[b"a"]] * 3
        assert not leader._watchers


async def test_a_read_that_is_cancelled_does_not_wait_at_the_leader(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        spread(cluster, 2)
        leader = await cluster.leader()
        read = cluster.nodes[1].reads.read_batches(place(), 0, 1, committed=True, wait_ms=60_000)
        waiting = asyncio.ensure_future(read)
        await until(lambda: leader._watchers, "a reader that waits")
        waiting.cancel()
        await until(lambda: not leader._watchers, "the end of the wait")


async def test_a_read_goes_on_waiting_leg_by_leg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEG_MS", 5)
    async with a_cluster(tmp_path, 1, 2) as cluster:
        spread(cluster, 2)
        await filled(cluster, 1)
        reads = cluster.nodes[1].reads
        fetched = await reads.read_batches(place(), 1, 1, committed=True, wait_ms=30)
        assert (fetched.data, fetched.bounds.high_watermark) == (b"", 1)
        waiting = asyncio.ensure_future(reads.read_page(place(), 1, ALL, committed=True, wait_ms=60_000))
        await asyncio.wait([waiting], timeout=0.05)
        await produce(await cluster.leader(), b"late")
        async with asyncio.timeout(SOON_SECONDS):
            assert [record.value for record in (await waiting).page.records] == [b"late"]


async def test_a_read_finds_the_leader_that_takes_over(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(2, 3)
        leader = await cluster.leader()
        await produce(leader, b"a")
        read = cluster.nodes[1].reads.read_batches(place(), 1, 1 << 20, committed=True, wait_ms=60_000)
        waiting = asyncio.ensure_future(read)
        await until(lambda: leader._watchers, "a reader that waits")
        await cluster.kill(2)
        await produce(await cluster.leader(), b"b")
        async with asyncio.timeout(SOON_SECONDS):
            assert values_of(await waiting) == [b"b"]


async def test_a_read_waits_for_a_leader_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        spread(cluster, 2)
        await filled(cluster, 1)
        await cluster.kill(2)
        reads = cluster.nodes[1].reads
        monkeypatch.setattr(reads._leaders, "_retry_ms", 50)
        with pytest.raises(LeaderNotAvailable):
            await reads.read_batches(place(), 0, 1, committed=True)
        (found,) = await reads.bounds([place()])
        assert isinstance(found, LeaderNotAvailable)


async def test_a_read_with_an_old_image_asks_the_leader_that_the_former_one_names(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(2, 3)
        await produce(await cluster.leader(), b"a")
        await cluster.replicated()
        cluster.nodes[1].metadata.is_deaf = True
        cluster.reassign(3)
        await until(lambda: cluster.state().leader == 3, "the new leader")
        await cluster.leader()
        async with asyncio.timeout(SOON_SECONDS):
            fetched = await cluster.nodes[1].reads.read_batches(place(), 0, 1, committed=True)
        assert values_of(fetched) == [b"a"]


async def test_a_wait_for_several_partitions_ends_with_the_first_record(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        spread(cluster, 1, 2, 3)
        await filled(cluster, 1, 1, 1)
        positions = {place(index): 1 for index in range(3)}
        for index in range(3):
            waiting = asyncio.ensure_future(
                cluster.nodes[1].reads.wait(dict(positions), 60_000, committed=True)
            )
            leaders = [await cluster.leader(each) for each in range(3)]
            await until(lambda: all(each._watchers for each in leaders), "a reader that waits")  # noqa: B023
            await produce(leaders[index], b"next")
            positions[place(index)] += 1
            async with asyncio.timeout(SOON_SECONDS):
                await waiting
            await until(lambda: not any(each._watchers for each in leaders), "no reader")  # noqa: B023


async def test_a_wait_returns_at_once_if_there_are_records(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        spread(cluster, 1, 2)
        await filled(cluster, 1, 1)
        async with asyncio.timeout(SOON_SECONDS):
            for positions in ({place(0): 0, place(1): 1}, {place(0): 1, place(1): 0}):
                await cluster.nodes[1].reads.wait(positions, 60_000, committed=True)


async def test_a_follower_serves_what_it_has_without_its_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(2, 1)
        await produce(await cluster.leader(), b"a")
        await cluster.replicated()
        node = cluster.nodes[1]
        await until(lambda: node.partition().high_watermark == 1, "the watermark")
        monkeypatch.setattr(node.peers, "call", None)
        assert values_of(await node.reads.read_batches(place(), 0, 1, committed=True)) == [b"a"]
        fetched = await node.reads.read_page(place(), 0, ALL, committed=True)
        assert [record.value for record in fetched.page.records] == [b"a"]


async def test_committed_reads_of_a_follower_end_before_open_and_without_aborted_transactions(
    tmp_path: Path,
) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(2, 1)
        leader = await cluster.leader()

        async def write(batch: bytearray) -> None:
            async with asyncio.timeout(SOON_SECONDS):
                await staged(leader, batch)

        def transactional(producer_id: int, value: bytes) -> bytearray:
            return write_batch(
                [Record(0, 1000, None, value)],
                attributes=TRANSACTIONAL,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
            )

        await produce(leader, b"plain")
        await write(transactional(7, b"aborted"))
        await write(transactional(8, b"committed"))
        await write(marker_batch(7, 0, False, 0, 1000))
        await write(marker_batch(8, 0, True, 0, 1000))
        await write(transactional(9, b"open"))
        await produce(leader, b"behind")
        await cluster.replicated()
        node = cluster.nodes[1]
        await until(lambda: node.partition().high_watermark == leader.end_offset, "the watermark")
        assert node.partition().last_stable_offset == leader.last_stable_offset == 5
        fetched = await node.reads.read_batches(place(), 0, 1 << 20, committed=True)
        assert (fetched.next_offset, fetched.aborted) == (5, ((7, 1),))
        page = (await node.reads.read_page(place(), 0, ALL, committed=True)).page
        assert [record.value for record in page.records] == [b"plain", b"committed"]
        page = (await node.reads.read_page(place(), 0, ALL, committed=False)).page
        assert [record.value for record in page.records][-2:] == [b"open", b"behind"]


async def test_the_first_record_since_a_timestamp_is_found_in_all_partitions(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        spread(cluster, 1, 2, 3)
        for index in range(3):
            leader = await cluster.leader(index)
            for timestamp_ms in range(0, 500, 100):
                await staged(leader, write_batch([Record(0, timestamp_ms + index, None, b"v")]))
        for node in cluster.nodes.values():
            places = [place(index) for index in range(3)]
            found = await node.reads.offsets_for_timestamp(places, 201)
            assert [each.offset for each in found if isinstance(each, TimestampOffset)] == [3, 2, 2]
            latest = await node.reads.offset_for_timestamp(place(1), 10_000)
            assert latest is None


async def test_records_are_deleted_and_flushed_at_the_leader(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        spread(cluster, 2)
        await filled(cluster, 5)
        reads, leader = cluster.nodes[1].reads, await cluster.leader()
        assert await reads.flush(place()) == 5
        assert leader.log.flushed_offset == 5
        assert (await reads.delete_before(place(), 3)).start_offset == leader.start_offset == 3
        with pytest.raises(OffsetOutOfRange):
            await reads.delete_before(place(), 6)
        assert (await reads.delete_before(place(), -1)).messages == 0


async def test_a_reply_is_no_larger_than_a_frame_allows(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        spread(cluster, 2)
        value = bytes(900_000)
        for _ in range(20):
            await produce(await cluster.leader(), value)
        unlimited = Limits(records=10**9, size_bytes=10**12, before_offset=INT64_MAX)
        found = await cluster.nodes[1].reads.read_page(place(), 0, unlimited, committed=True)
        assert 10 < len(found.page.records) < 20
        fetched = await cluster.nodes[1].reads.read_batches(place(), 0, 10**12, committed=True)
        assert 10 * len(value) < len(fetched.data) <= module.MAX_READ_BYTES


async def test_a_lost_connection_does_not_end_a_wait(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        spread(cluster, 2)
        leader = await cluster.leader()
        read = cluster.nodes[1].reads.read_batches(place(), 0, 1, committed=True, wait_ms=60_000)
        waiting = asyncio.ensure_future(read)
        await until(lambda: leader._watchers, "a reader that waits")
        for connection in list(cluster.nodes[2].listener._served):
            connection.close("by the test")
        await until(lambda: not leader._watchers, "the end of the first call")
        await produce(leader, b"a")
        async with asyncio.timeout(SOON_SECONDS):
            assert values_of(await waiting) == [b"a"]
