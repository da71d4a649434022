"""Topics used as queues on a real broker, across restarts."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from alpacamq.broker.clock import SystemClock
from alpacamq.broker.partition.leader import delete_before
from alpacamq.broker.queue import host as queue_host
from alpacamq.broker.queue.service import Receipted
from alpacamq.model.errors import (
    CoordinatorUnavailable,
    GroupIdNotFound,
    InvalidGroupId,
    InvalidReceipt,
    InvalidRequest,
    PartitionNotReady,
    PolicyViolation,
    StaleReceipt,
    UnknownTopic,
)
from alpacamq.model.ids import TimestampMs
from alpacamq.model.ports import Buffer
from alpacamq.model.topics import QUEUES_TOPIC
from alpacamq.queues.messages import Action, QueueId, Settlement, Start
from tests.waiting import soon

from .open_brokers import BreakableDisk, SettableClock, running, sent
from .queue_steps import ORDERS, acknowledge, made, settle, values, waits


async def test_acknowledged_messages_are_not_redelivered_after_restarts(tmp_path: Path) -> None:
    clock = SettableClock()
    async with running(tmp_path, clock=clock) as broker:
        await broker.topics.create("orders", partitions=1)
        await sent(broker, "orders", b"a", b"b", b"c")
        first, second, third = await broker.queues.receive(ORDERS)
        assert values([first, second, third]) == [b"a", b"b", b"c"]
        await acknowledge(broker, first, third)
    clock.ahead_ms = 30_001
    async with running(tmp_path, clock=clock) as broker:
        (again,) = await broker.queues.receive(ORDERS)
        assert (again.record.value, again.delivery_count) == (b"b", 2)
        assert again.first_delivered_ms == second.first_delivered_ms


async def test_leases_counts_and_receipts_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await sent(broker, "orders", b"a", key=b"k")
        (delivery,) = await broker.queues.receive(ORDERS, visibility_ms=600_000)
    async with running(tmp_path) as broker:
        assert await broker.queues.receive(ORDERS) == []
        await acknowledge(broker, delivery)
    async with running(tmp_path) as broker:
        assert (await broker.queues.describe(ORDERS)).partitions[delivery.partition].in_flight == 0


async def test_a_message_is_redelivered_when_its_lease_expires(tmp_path: Path) -> None:
    clock = SettableClock()
    async with running(tmp_path, clock=clock) as broker:
        await sent(broker, "orders", b"a")
        (first,) = await broker.queues.receive(ORDERS, consumer="one", visibility_ms=1000)
        assert await broker.queues.receive(ORDERS, consumer="two") == []
        clock.ahead_ms = 1001
        (second,) = await broker.queues.receive(ORDERS, consumer="two")
        assert (second.delivery_count, second.receipt != first.receipt) == (2, True)
        (late,) = await settle(broker, Action.ACK, first)
        assert isinstance(late, StaleReceipt)
        await acknowledge(broker, second)


async def test_a_waiting_receive_returns_when_a_message_arrives(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=3)
        receiving = asyncio.create_task(broker.queues.receive(ORDERS, wait_ms=20_000))
        await soon(lambda: waits(broker))
        await sent(broker, "orders", b"a")
        assert values(await receiving) == [b"a"]


async def test_a_waiting_receive_at_its_limit_returns_when_what_it_leases_is_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"queue.max.in.flight": "1"})
        await sent(broker, "orders", b"a", b"b")
        assert values(await broker.queues.receive(ORDERS, consumer="one")) == [b"a"]
        receiving = asyncio.create_task(broker.queues.receive(ORDERS, consumer="one", wait_ms=20_000))
        await soon(lambda: waits(broker))
        await delete_before(broker.topics.partition("orders", 0), 1, broker.work_threads)
        async with asyncio.timeout(10):
            assert values(await receiving) == [b"b"]


async def test_a_waiting_receive_sees_new_partitions(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        receiving = asyncio.create_task(broker.queues.receive(ORDERS, wait_ms=20_000))
        await soon(lambda: waits(broker))
        await broker.topics.grow("orders", 2)
        await sent(broker, "orders", b"a", partition=1)
        assert values(await receiving) == [b"a"]


async def test_a_receive_during_creation_of_its_topic_does_not_break_later_ones(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("other", partitions=1)
        await broker.queues.receive(QueueId("workers", "other"))  # creates the internal topic
        making = asyncio.create_task(broker.topics.create("orders", partitions=1))
        while "orders" not in broker.topics.image.topics:  # noqa: ASYNC110 - each turn counts
            await asyncio.sleep(0)
        with pytest.raises(PartitionNotReady):
            await broker.queues.receive(ORDERS, wait_ms=1000)
        await making
        waiting = asyncio.create_task(broker.queues.receive(ORDERS, wait_ms=60_000))
        await soon(lambda: waits(broker))
        await sent(broker, "orders", b"a")
        async with asyncio.timeout(10):
            assert values(await waiting) == [b"a"]


async def test_a_receive_is_woken_in_a_topic_that_nobody_waited_for_when_it_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is looked for the partition before its leader has opened it, and before the second receive.
    monkeypatch.setattr(queue_host, "OPENING_SECONDS", 0.0)
    async with running(tmp_path) as broker:
        await broker.topics.create("other", partitions=1)
        await broker.queues.receive(QueueId("workers", "other"))  # creates the internal topic
        making = asyncio.create_task(broker.topics.create("orders", partitions=1))
        while "orders" not in broker.topics.image.topics:  # noqa: ASYNC110 - each turn counts
            await asyncio.sleep(0)
        with pytest.raises(PartitionNotReady):
            await broker.queues.receive(ORDERS, wait_ms=1000)
        await making
        waiting = asyncio.create_task(broker.queues.receive(ORDERS, wait_ms=600_000))
        await soon(lambda: waits(broker))
        await sent(broker, "orders", b"a")
        async with asyncio.timeout(60):
            assert values(await waiting) == [b"a"]


async def test_a_waiting_receive_fails_when_its_topic_is_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders")
        receiving = asyncio.create_task(broker.queues.receive(ORDERS, wait_ms=20_000))
        await soon(lambda: waits(broker))
        await broker.topics.delete("orders")
        with pytest.raises(UnknownTopic):
            await receiving


async def test_receipts_of_a_deleted_topic_are_stale_in_its_successor(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await sent(broker, "orders", b"old")
        (old,) = await broker.queues.receive(ORDERS)
        await broker.topics.delete("orders")
        await broker.topics.create("orders", partitions=1)
        await sent(broker, "orders", b"new")
        (new,) = await broker.queues.receive(ORDERS)
        assert new.delivery_count == 1
        (refused,) = await settle(broker, Action.ACK, old)
        assert isinstance(refused, StaleReceipt)


async def test_messages_over_the_byte_limit_are_released_without_a_delivery_count(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await sent(broker, "orders", *(bytes([65 + number]) * 1000 for number in range(8)))
        seen = []
        for _ in range(8):
            received = await broker.queues.receive(ORDERS, max_bytes=1500)
            assert len(received) == 1
            seen += received
        assert [delivery.record.offset for delivery in seen] == list(range(8))
        assert {delivery.delivery_count for delivery in seen} == {1}


async def test_expired_messages_are_dropped_and_the_receive_continues(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"queue.ttl.ms": "60000"})
        long_ago_ms = broker.clock.now_ms() - 100_000
        await sent(broker, "orders", *(b"old" for _ in range(1200)), timestamp_ms=long_ago_ms)
        await sent(broker, "orders", b"new")
        received = await broker.queues.receive(ORDERS)
        assert values(received) == [b"new"]
        await acknowledge(broker, *received)
        (stats,) = (await broker.queues.describe(ORDERS)).partitions
        assert stats.start_offset == 1201


async def test_a_clock_ahead_at_start_does_not_expire_messages(tmp_path: Path) -> None:
    class WallClock(SystemClock):
        ahead_ms = 86_400_000

        def now_ms(self) -> TimestampMs:
            return TimestampMs(super().now_ms() + self.ahead_ms)

    clock = WallClock()
    async with running(tmp_path, clock=clock) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"queue.ttl.ms": "60000"})
        clock.ahead_ms = 0
        await sent(broker, "orders", b"new")
        assert values(await broker.queues.receive(ORDERS)) == [b"new"]


async def test_a_group_may_override_the_ttl_and_dead_letter_expired_messages(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await broker.queues.configure(ORDERS, {"queue.ttl.ms": "60000", "queue.ttl.action": "dead-letter"})
        await sent(broker, "orders", b"old", timestamp_ms=broker.clock.now_ms() - 100_000)
        receiving = asyncio.create_task(broker.queues.receive(ORDERS, wait_ms=20_000))
        dead = QueueId("auditors", "orders.dlq")
        await soon(lambda: made(broker, "orders.dlq"))
        (letter,) = await broker.queues.receive(dead, wait_ms=10_000)
        headers = dict(letter.record.headers)
        assert headers["alpacamq-dead-letter-reason"] == b"expired"
        others = await broker.queues.receive(QueueId("others", "orders"))
        assert values(others) == [b"old"]
        await sent(broker, "orders", b"new")
        assert values(await receiving) == [b"new"]


async def test_a_receive_cancelled_while_waiting_leases_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders")
        receiving = asyncio.create_task(broker.queues.receive(ORDERS, wait_ms=20_000))
        await soon(lambda: waits(broker))
        receiving.cancel()
        await asyncio.wait([receiving])
        assert not await waits(broker)
        await sent(broker, "orders", b"a")
        (delivery,) = await broker.queues.receive(ORDERS)
        assert delivery.delivery_count == 1


async def test_messages_of_a_cancelled_receive_are_delivered_to_the_next(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        # fsync for every batch: replies take a while.
        await broker.topics.create_internal(
            QUEUES_TOPIC, partitions=8, overrides={"cleanup.policy": "compact", "flush.messages": "1"}
        )
        await broker.topics.create("orders", partitions=1)
        await broker.queues.receive(ORDERS)
        await sent(broker, "orders", b"a")
        for turns in range(12):
            receiving = asyncio.create_task(broker.queues.receive(ORDERS, wait_ms=10_000))
            for _ in range(turns):
                await asyncio.sleep(0)
            receiving.cancel()
            await asyncio.wait([receiving])
            if not receiving.cancelled():
                await settle(broker, Action.RELEASE_UNSEEN, *receiving.result())
            (delivery,) = await broker.queues.receive(ORDERS, wait_ms=10_000)
            assert delivery.delivery_count == 1
            assert await settle(broker, Action.RELEASE_UNSEEN, delivery) == [None]


async def test_settle_returns_an_error_for_each_invalid_receipt(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await broker.topics.create("bills", partitions=1)
        await sent(broker, "orders", b"a", b"b")
        await sent(broker, "bills", b"c")
        one, two = await broker.queues.receive(ORDERS)
        (three,) = await broker.queues.receive(QueueId("others", "bills"))
        damaged = one.receipt[:5] + ("B" if one.receipt[5] == "A" else "A") + one.receipt[6:]
        receipts = [one.receipt, "garbage", three.receipt, damaged, two.receipt]
        results = await broker.queues.settle(
            [Receipted(receipt=receipt, action=Action.ACK) for receipt in receipts]
        )
        assert [type(result) for result in results] == [
            type(None), InvalidReceipt, type(None), InvalidReceipt, type(None),
        ]  # fmt: skip


async def test_acknowledgements_of_one_turn_are_one_write(tmp_path: Path) -> None:
    class CountingDisk(BreakableDisk):
        writes = 0

        def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
            self.writes += 1
            super().write(descriptor, buffers, position)

    disk = CountingDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("orders", partitions=1)
        await sent(broker, "orders", *(b"x" for _ in range(100)))
        received = await broker.queues.receive(ORDERS, max_messages=100)
        disk.writes = 0
        await asyncio.gather(*(acknowledge(broker, delivery) for delivery in received))
        assert disk.writes == 1


async def test_a_wait_for_queues_that_are_not_available_ends_early(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        unknown = QueueId("workers", "unknown")
        async with asyncio.timeout(60):
            await broker.queues.wait_for_messages({unknown: None}, 600_000)


async def test_a_share_consumer_is_woken_by_new_and_released_messages(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=2)
        assert await broker.queues.acquire(ORDERS, consumer="one", partitions=(1,), max_messages=5) == ()
        waiting = asyncio.create_task(broker.queues.wait_for_messages({ORDERS: None}, 20_000))
        await soon(lambda: waits(broker))
        await sent(broker, "orders", b"a", partition=1)
        await waiting
        (lease,) = await broker.queues.acquire(ORDERS, consumer="one", partitions=(1,), max_messages=5)
        unknown = QueueId("workers", "unknown")
        waiting = asyncio.create_task(broker.queues.wait_for_messages({unknown: None, ORDERS: None}, 20_000))
        await soon(lambda: waits(broker))
        given_back = Settlement(1, lease.offset, Action.RELEASE, consumer="one")
        assert await broker.queues.settle_acquired(ORDERS, [given_back]) == [None]
        await waiting
        (again,) = await broker.queues.acquire(ORDERS, consumer="two", partitions=(1,), max_messages=5)
        assert again.delivery_count == 2
        await broker.queues.release_consumer(ORDERS, "two")
        assert len(await broker.queues.acquire(ORDERS, consumer="two", partitions=(1,), max_messages=5)) == 1


async def test_a_queue_can_be_described_peeked_purged_reset_and_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        assert await broker.queues.queues() == []
        with pytest.raises(GroupIdNotFound):
            await broker.queues.describe(ORDERS)
        assert QUEUES_TOPIC not in broker.topics.image.topics
        await broker.topics.create("orders", partitions=2)
        await sent(broker, "orders", b"a", b"b", b"c", partition=0)
        await sent(broker, "orders", b"d", partition=1)
        first, *_ = await broker.queues.receive(ORDERS, max_messages=1, partitions=(0,))
        await acknowledge(broker, first)
        peeked = await broker.queues.peek(ORDERS, 10)
        assert [(place, record.value) for place, record in peeked] == [(0, b"b"), (0, b"c"), (1, b"d")]
        assert [record.value for _, record in await broker.queues.peek(ORDERS, 1)] == [b"b"]
        assert sum(stats.ready for stats in (await broker.queues.stats())[0].partitions) == 3
        await broker.queues.purge(ORDERS)
        assert await broker.queues.receive(ORDERS) == []
        await broker.queues.reset(ORDERS, {0: 1, 1: 0})
        assert set(values(await broker.queues.receive(ORDERS))) == {b"b", b"c", b"d"}
        assert await broker.queues.queues() == [ORDERS]
        await broker.queues.delete(ORDERS)
        assert await broker.queues.queues() == []


async def test_a_group_that_starts_at_the_end_receives_only_later_messages(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await sent(broker, "orders", b"old")
        assert await broker.queues.receive(ORDERS, start=Start.LATEST) == []
        await sent(broker, "orders", b"new")
        assert values(await broker.queues.receive(ORDERS, start=Start.LATEST)) == [b"new"]


@pytest.mark.parametrize("group", ["", "x" * 256, "\udcff"])
async def test_group_names_that_do_not_fit_a_receipt_are_refused(tmp_path: Path, group: str) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders")
        with pytest.raises(InvalidGroupId):
            await broker.queues.receive(QueueId(group, "orders"))
        with pytest.raises(InvalidRequest):
            await broker.queues.receive(ORDERS, max_messages=0)


async def test_missing_and_internal_topics_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        with pytest.raises(UnknownTopic):
            await broker.queues.receive(ORDERS)
        assert QUEUES_TOPIC not in broker.topics.image.topics
        await broker.topics.create("orders")
        await broker.queues.receive(ORDERS)
        with pytest.raises(PolicyViolation):
            await broker.queues.receive(QueueId("workers", QUEUES_TOPIC))


async def test_a_full_disk_refuses_receives_without_counting_deliveries(tmp_path: Path) -> None:
    disk = BreakableDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("orders", partitions=1)
        waiting = asyncio.create_task(broker.queues.receive(ORDERS, wait_ms=20_000))
        await soon(lambda: waits(broker))
        disk.full = True
        with pytest.raises(CoordinatorUnavailable):
            await broker.queues.configure(ORDERS, {"queue.ttl.ms": "1000"})
        with pytest.raises(CoordinatorUnavailable):
            await waiting
        disk.full = False
        await sent(broker, "orders", b"a")
        (delivery,) = await broker.queues.receive(ORDERS, wait_ms=10_000)
        assert delivery.delivery_count == 1
        assert (await broker.queues.describe(ORDERS)).overrides == {}
