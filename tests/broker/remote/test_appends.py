"""Appends to partitions that other brokers lead, in a cluster of three."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker import publishing
from alpacamq.broker.broker import Broker
from alpacamq.broker.publishing import Message, Published, Result
from alpacamq.broker.queue.fifo import DeduplicationScope, FifoMessage, FifoPublished
from alpacamq.broker.read.record_reader import Limits, RecordReader
from alpacamq.broker.remote import appends
from alpacamq.broker.remote.appends import Placed
from alpacamq.broker.tracing.partition import Origin
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import (
    AlpacaError,
    InvalidTimestamp,
    LeaderNotAvailable,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    RequestTimedOut,
    UnknownTopic,
    UnknownTopicId,
)
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.records import Record, write_batch

from .three_brokers import ThreeBrokers, three_brokers


def batch(*values: bytes) -> bytearray:
    return write_batch([Record(delta, 1, None, value, ()) for delta, value in enumerate(values)])


async def stored(cluster: ThreeBrokers, topic: str, index: int = 0) -> list[bytes | None]:
    """Return everything that consumers can read of a partition."""
    partition = await cluster.led(topic, index)
    reader = RecordReader(cluster.any.work_threads, 1 << 30)
    limits = Limits(records=1000, size_bytes=1 << 20, before_offset=1 << 40)
    found: list[bytes | None] = []
    offset = 0
    while offset < partition.high_watermark:
        page = await reader.read(partition, offset, limits, committed=True)
        found += [record.value for record in page.records]
        offset = page.next_offset
    return found


def offsets(results: Sequence[Result]) -> list[tuple[int, int | None]]:
    return [(each.partition, each.offset) for each in results if isinstance(each, Published)]


async def test_a_broker_appends_to_partitions_of_others(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("orders", partitions=3, replication_factor=1)
        assert {cluster.leader_id("orders", index) for index in range(3)} == {1, 2, 3}
        for number, broker in cluster.brokers.items():
            placed = [
                await broker.appends.append(topic.id, index, batch(b"%d" % number)) for index in range(3)
            ]
            assert [each.base_offset for each in placed] == [number - 1] * 3
        for index in range(3):
            assert await stored(cluster, "orders", index) == [b"1", b"2", b"3"]


async def test_batches_of_one_broker_stay_in_order(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("orders", partitions=1)
        broker = cluster.follower_of("orders")
        placed = await asyncio.gather(
            *(broker.appends.append(topic.id, 0, batch(b"%d" % number)) for number in range(100))
        )
        assert [each.base_offset for each in placed] == list(range(100))
        assert await stored(cluster, "orders") == [b"%d" % number for number in range(100)]


async def test_a_call_that_lost_its_connection_is_repeated_and_appends_once(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("orders", partitions=1)
        broker = cluster.follower_of("orders")

        async def lose_connections() -> None:
            for _ in range(20):
                cluster.wires.lose(broker.settings.node_id, cluster.leader_id("orders"))
                await asyncio.sleep(0.01)

        losing = asyncio.create_task(lose_connections())
        placed: list[Placed] = []
        while not losing.done():
            placed.append(await broker.appends.append(topic.id, 0, batch(b"%d" % len(placed))))
        await losing
        assert [each.base_offset for each in placed] == list(range(len(placed)))
        assert await stored(cluster, "orders") == [b"%d" % number for number in range(len(placed))]


async def test_a_batch_is_appended_once_though_leadership_moves(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("orders", partitions=1)
        broker = cluster.follower_of("orders")
        appending = [
            asyncio.create_task(broker.appends.append(topic.id, 0, batch(b"%d" % number)))
            for number in range(50)
        ]
        await appending[5]
        await cluster.kill(cluster.leader_id("orders"))
        appending += [
            asyncio.create_task(broker.appends.append(topic.id, 0, batch(b"%d" % number)))
            for number in range(50, 100)
        ]
        await asyncio.gather(*appending)
        assert await stored(cluster, "orders") == [b"%d" % number for number in range(100)]


async def test_a_refused_batch_does_not_hold_up_those_behind_it(tmp_path: Path) -> None:
    """It is too large for any call, and its sequence is missing at the leader."""
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("orders", partitions=1, overrides={"max.message.bytes": "1000"})
        broker = cluster.follower_of("orders")
        submitted = [
            broker.appends.append(topic.id, 0, batch(value)) for value in (b"a", b"b" * 70_000_000, b"c")
        ]
        first, too_large, last = await asyncio.gather(*submitted, return_exceptions=True)
        assert isinstance(first, Placed)
        assert isinstance(too_large, AlpacaError)
        assert isinstance(last, Placed)
        assert await stored(cluster, "orders") == [b"a", b"c"]


async def test_the_outcome_is_unknown_when_no_leader_answers_in_time(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("orders", partitions=1, replication_factor=1)
        broker = cluster.follower_of("orders")
        await broker.appends.append(topic.id, 0, batch(b"a"))
        await cluster.kill(cluster.leader_id("orders"))
        with pytest.raises(AlpacaError):
            await broker.appends.append(topic.id, 0, batch(b"b"), timeout_ms=300)


async def test_a_deleted_topic_is_an_error_at_once(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("orders", partitions=1)
        broker = cluster.follower_of("orders")
        await broker.topics.delete("orders")
        with pytest.raises((UnknownTopic, UnknownTopicId)):
            await broker.appends.append(topic.id, 0, batch(b"a"))


async def publish_through_each(cluster: ThreeBrokers, topic: str, partitions: int) -> list[list[Result]]:
    messages = [Message(value=b"x", partition=index) for index in range(partitions)]
    return [await broker.publisher.publish(topic, messages) for broker in cluster.brokers.values()]


async def test_messages_are_published_through_any_broker(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=3, replication_factor=1)
        found = await publish_through_each(cluster, "orders", 3)
        assert [offsets(each) for each in found] == [
            [(index, turn) for index in range(3)] for turn in range(3)
        ]


async def test_a_message_that_its_topic_refuses_is_refused_by_any_broker(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1, overrides={"message.timestamp.before.max.ms": "1000"})
        for broker in cluster.brokers.values():
            (result,) = await broker.publisher.publish("orders", [Message(value=b"x", timestamp_ms=1)])
            assert isinstance(result, InvalidTimestamp)


async def test_a_topic_is_created_by_the_first_message_to_any_broker(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        publishers: list[Broker] = list(cluster.brokers.values())
        results = await asyncio.gather(
            *(broker.publisher.publish("new", [Message(value=b"x", partition=0)]) for broker in publishers)
        )
        assert sorted(offsets(each)[0] for each in results) == [(0, 0), (0, 1), (0, 2)]


def replying(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, *errors: AlpacaError
) -> Callable[[], Sequence[AlpacaError]]:
    """Let the next calls append and answer with these errors; return those that are left."""
    left = list(errors)
    call = broker.appends.call

    async def answer(
        place: PartitionId, sent: Sequence[Any], deadline: float
    ) -> Sequence[Placed | AlpacaError]:
        if not left:
            return await call(place, sent, deadline)
        error = left.pop(0)
        if isinstance(error, NotEnoughReplicasAfterAppend):
            await call(place, sent, deadline)
        return [error] * len(sent)

    monkeypatch.setattr(broker.appends, "call", answer)
    return lambda: left


async def test_a_batch_that_may_be_in_the_log_is_repeated_although_replicas_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below min ISR a leader refuses without looking whether it has the batch."""
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("orders", partitions=1)
        broker = cluster.follower_of("orders")
        left = replying(broker, monkeypatch, NotEnoughReplicasAfterAppend("late"), NotEnoughReplicas("few"))
        placed = await broker.appends.append(topic.id, 0, batch(b"a"))
        assert placed.base_offset == 0
        assert not left()
        assert await stored(cluster, "orders") == [b"a"]


async def test_an_unknown_outcome_is_not_reported_as_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("orders", partitions=1)
        broker = cluster.follower_of("orders")
        replying(broker, monkeypatch, NotEnoughReplicasAfterAppend("late"), *[NotEnoughReplicas("few")] * 100)
        with pytest.raises(RequestTimedOut, match="may have been appended"):
            await broker.appends.append(topic.id, 0, batch(b"a"), timeout_ms=500)


async def test_a_refusal_before_anything_was_written_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("orders", partitions=1)
        broker = cluster.follower_of("orders")
        replying(broker, monkeypatch, NotEnoughReplicas("few"))
        with pytest.raises(NotEnoughReplicas):
            await broker.appends.append(topic.id, 0, batch(b"a"))


async def test_a_fifo_message_of_unknown_outcome_is_published_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("jobs.fifo", partitions=2, replication_factor=3)
        await cluster.move_leader("jobs.fifo", 0, 1)
        await cluster.move_leader("jobs.fifo", 1, 2)
        key = next(key for key in (b"%d" % number for number in range(100)) if partition_for_key(key, 2) == 1)
        message = FifoMessage(message=Message(value=b"a", key=key), deduplication_id="d")
        replying(
            cluster[1], monkeypatch, NotEnoughReplicasAfterAppend("late"), *[RequestTimedOut("late")] * 100
        )
        monkeypatch.setattr(publishing, "REPLICATION_TIMEOUT_MS", 300)

        async def publish() -> object:
            (result,) = await cluster[1].fifo.publish(
                topic, [message], scope=DeduplicationScope.QUEUE, origin=Origin()
            )
            return result

        assert isinstance(await publish(), RequestTimedOut)
        assert isinstance(await publish(), FifoPublished)
        assert len(await stored(cluster, "jobs.fifo", 1)) == 1


async def test_batches_beyond_a_limit_are_refused_while_their_leaders_do_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "MAX_WAITING_BYTES", 1000)
    async with three_brokers(tmp_path) as cluster:
        topic = await cluster.create("orders", partitions=1)
        broker = cluster.follower_of("orders")
        place = PartitionId(topic.id, 0)
        waiting = broker.appends.submit(place, batch(b"a" * 600))
        assert isinstance(await broker.appends.submit(place, batch(b"b" * 600)), LeaderNotAvailable)
        assert isinstance(await waiting, Placed)
        assert isinstance(await broker.appends.submit(place, batch(b"c" * 600)), Placed)
        assert await stored(cluster, "orders") == [b"a" * 600, b"c" * 600]
