"""Delayed messages in a running broker: schedule, deliver, list, cancel, restart."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.clock import SystemClock
from alpacamq.broker.delay import host as delay_shard
from alpacamq.broker.delay.service import DelayedMessage, DelaySettings
from alpacamq.broker.partition.housekeeping import Housekeeping
from alpacamq.broker.statemachine import topic as shards
from alpacamq.model.errors import (
    InvalidDelay,
    InvalidTopicName,
    TooManyDelayed,
    UnknownDelayed,
    UnknownTopic,
)
from alpacamq.model.headers import DELIVER_AT
from alpacamq.model.ids import BrokerId, TimestampMs
from alpacamq.model.ports import Buffer
from alpacamq.model.records import Header, Record
from alpacamq.model.topics import DELAYS_TOPIC
from alpacamq.timers import spill
from tests.waiting import soon

from .open_brokers import BreakableDisk, SettableClock, running, stored

DAY_MS = 86_400_000


def delayed(
    broker: Broker, value: bytes, delay_ms: int, topic: str = "orders", partition: int = 0
) -> DelayedMessage:
    return DelayedMessage(
        topic=topic,
        partition=partition,
        due_ms=broker.clock.now_ms() + delay_ms,
        key=b"k",
        value=value,
        headers=(Header("h", b"1"),),
    )


async def schedule(broker: Broker, *messages: tuple[bytes, int]) -> list[int]:
    """Schedule values with their delays, relative to now."""
    now_ms = broker.clock.now_ms()
    return await broker.delays.schedule(
        [replace(delayed(broker, value, 0), due_ms=now_ms + delay_ms) for value, delay_ms in messages]
    )


async def values(broker: Broker, topic: str = "orders", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in stored(broker, topic, partition)]


async def delivered(
    broker: Broker, expected: Sequence[bytes], topic: str = "orders", *, in_order: bool = True
) -> None:
    async def is_there() -> bool:
        return len(await values(broker, topic)) >= len(expected)

    await soon(is_there)
    found = await values(broker, topic)
    assert (found if in_order else sorted(found, key=str)) == list(expected)


class SetClock(SystemClock):
    """A wall clock that can be set."""

    ahead_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(super().now_ms() + self.ahead_ms)


class RefusingDisk(BreakableDisk):
    """A breakable disk that counts refused writes."""

    refused = 0

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        self.refused += self.full
        super().write(descriptor, buffers, position)


async def test_a_message_is_delivered_unchanged_when_it_is_due(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        message = delayed(broker, b"later", 120)
        await broker.delays.schedule([message])
        assert await values(broker) == []
        await delivered(broker, [b"later"])
        [record] = stored(broker, "orders")
        assert record.key == b"k"
        assert record.headers == (Header("h", b"1"), Header(DELIVER_AT, str(message.due_ms).encode()))
        assert record.timestamp_ms >= message.due_ms
        stats = await broker.delays.stats()
        assert (stats.pending, stats.next_due_ms) == (0, None)
        assert (stats.scheduled_total, stats.fired_total) == (1, 1)


async def test_messages_are_delivered_in_order_of_due_time_and_share_batches(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        # Far enough ahead that all are scheduled before the first is due, on a busy machine too.
        wanted = [(f"{number}".encode(), 3000 - number % 3) for number in range(2500)]
        await schedule(broker, *wanted)
        await delivered(broker, [value for value, _ in sorted(wanted, key=lambda each: each[1])])
        assert broker.topics.partition("orders", 0).log.end_offset == 2500
        assert len({record.timestamp_ms for record in stored(broker, "orders")}) < 100


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"compression.type": "zstd"}, id="compressed"),
        pytest.param({"message.timestamp.type": "LogAppendTime"}, id="stamped by the broker"),
        pytest.param({"max.message.bytes": "2000"}, id="in small batches"),
        pytest.param({"flush.messages": "1"}, id="synced at once"),
        pytest.param({"cleanup.policy": "compact"}, id="compacted"),
    ],
)
async def test_delayed_messages_work_with_all_topic_settings(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides=settings)
        sent = [f"{number:0500}".encode() for number in range(20)]
        await schedule(broker, *[(value, 30) for value in sent])
        await delivered(broker, sent)
        assert min(record.timestamp_ms for record in stored(broker, "orders")) > 0


async def test_pending_and_overdue_messages_survive_a_restart(tmp_path: Path) -> None:
    clock = SettableClock()
    async with running(tmp_path, clock=clock) as broker:
        await broker.topics.create("orders", partitions=1)
        ids = await schedule(broker, (b"soon", 60_000), (b"later", 40 * DAY_MS), (b"never", 60_000))
        await broker.delays.cancel("orders", 0, ids[2])
    clock.ahead_ms = 120_000
    async with running(tmp_path, clock=clock) as broker:
        await delivered(broker, [b"soon"])
        [waiting] = await broker.delays.waiting("orders")
        assert waiting.id == ids[1]
    clock.ahead_ms = 41 * DAY_MS
    async with running(tmp_path, clock=clock) as broker:
        await delivered(broker, [b"soon", b"later"])


async def test_a_power_loss_of_unsynced_data_loses_no_delayed_message(tmp_path: Path) -> None:
    """Delivered messages are kept until their topic, which syncs when it likes, has them on disk."""
    # Those that are due together, as on a busy machine, come in any order.
    never = {"flush.ms": str(2**63 - 1)}
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides=never)
        sent = [f"{number}".encode() for number in range(8)]
        await schedule(broker, *[(value, 300 + 30 * number) for number, value in enumerate(sent)])
        await delivered(broker, sent, in_order=False)
        assert tombstones(broker) == 0
    broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path / "data"))
    broker.open()
    # More batches are lost than a partition would recognise as duplicates.
    broker.topics.partition("orders", 0).log.truncate_to(1)
    await broker.close()
    async with running(tmp_path) as broker:
        await delivered(broker, sent, in_order=False)


async def test_delivered_messages_are_removed_once_their_topic_has_synced_them(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"flush.ms": "50"})
        await schedule(broker, (b"a", 10), (b"b", 20))
        await delivered(broker, [b"a", b"b"])

        async def are_removed() -> bool:
            return tombstones(broker) == 2

        await soon(are_removed)


async def test_compaction_removes_done_messages_and_keeps_pending_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shards.OVERRIDES, "segment.bytes", "4096")
    monkeypatch.setattr(delay_shard, "GARBAGE_MESSAGES", 100)
    clock = SettableClock()
    options: dict[str, Any] = {"clock": clock, "checkpoint_bytes": 1024}
    async with running(tmp_path, **options) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"flush.messages": "1"})
        late = [f"{number:0300}".encode() for number in range(20)]
        early = [f"{number:0300}".encode() for number in range(20, 120)]
        for number in range(20):
            # Interleaved, so that pending messages lie between done ones.
            await schedule(broker, (late[number], 60_000), *[(value, 1) for value in early[number::20]])

        async def all_are_done() -> bool:
            return tombstones(broker) == 100

        await soon(all_are_done)
        partitions = broker.topics.partitions_of(DELAYS_TOPIC)
        for partition in partitions:
            await partition.flush_to(partition.log.end_offset)  # only flushed data is compacted
        before = max(partition.log.size_bytes for partition in partitions)
        housekeeping = Housekeeping(
            lambda: partitions, broker.work_threads, clock, 1000, broker.delays.is_worth_compacting
        )
        for partition in partitions:
            await housekeeping.clean(partition)
        assert (
            max(partition.log.size_bytes for partition in partitions) < before * 3 / 4
        )  # the fill of the last segments depends on the batching of deliveries
        assert len(await broker.delays.waiting("orders")) == 20
        assert not any(broker.delays.is_worth_compacting(partition) for partition in partitions)
    clock.ahead_ms = 120_000
    async with running(tmp_path, **options) as broker:
        await soon(lambda: fired(broker, 20))
        assert (await values(broker))[100:] == late


async def fired(broker: Broker, count: int) -> bool:
    return (await broker.delays.stats()).fired_total == count


def tombstones(broker: Broker) -> int:
    records = stored_everywhere(broker)
    return sum(record.value is None for record in records if record.key and record.key[:1] == b"m")


async def test_setting_the_clock_forward_delivers_messages_that_become_due(tmp_path: Path) -> None:
    clock = SetClock()
    async with running(tmp_path, clock=clock) as broker:
        await broker.topics.create("orders", partitions=1)
        await schedule(broker, (b"later", 3_600_000))
        clock.ahead_ms = 3_700_000
        await delivered(broker, [b"later"])


async def test_deliveries_are_retried_until_the_target_accepts_them(tmp_path: Path) -> None:
    disk = RefusingDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("orders", partitions=1)
        await schedule(broker, (b"a", 150), (b"b", 160))
        disk.full = True

        async def is_refused() -> bool:
            return disk.refused > 1

        await soon(is_refused)
        assert await values(broker) == []
        disk.full = False
        await delivered(broker, [b"a", b"b"])


async def test_a_recreated_topic_gets_no_messages_delayed_for_the_deleted_one(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await schedule(broker, (b"lost", 2000), (b"lost", 10 * DAY_MS))
        await broker.topics.delete("orders")
        await broker.topics.create("orders", partitions=1)
        assert await broker.delays.waiting("orders") == []
        await schedule(broker, (b"found", 2050))
        await delivered(broker, [b"found"])
        stats = await broker.delays.stats()
        assert (stats.pending, stats.dropped_total) == (0, 2)


async def test_a_cancelled_message_is_not_delivered(tmp_path: Path) -> None:
    clock = SetClock()
    async with running(tmp_path, clock=clock) as broker:
        await broker.topics.create("orders", partitions=2)
        first, second = await schedule(broker, (b"first", 60_000), (b"second", 60_000))
        waiting = await broker.delays.cancel("orders", 0, first)
        assert (waiting.id, waiting.partition, waiting.size_bytes) == (first, 0, 6)
        for topic, partition, id_ in [("orders", 0, first), ("orders", 1, second), ("orders", 0, 10**12)]:
            with pytest.raises(UnknownDelayed, match=f"no delayed message {id_}"):
                await broker.delays.cancel(topic, partition, id_)
        with pytest.raises(UnknownTopic):
            await broker.delays.cancel("nowhere", 0, second)
        clock.ahead_ms = 60_000
        await delivered(broker, [b"second"])
        with pytest.raises(UnknownDelayed):
            await broker.delays.cancel("orders", 0, second)


async def test_pending_messages_are_listed_in_pages(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=3)
        await broker.topics.create("other", partitions=1)
        assert await broker.delays.waiting("orders") == []
        ids = await broker.delays.schedule(
            [delayed(broker, b"v", DAY_MS * (number + 1), "orders", number % 3) for number in range(30)]
        )
        await broker.delays.schedule([delayed(broker, b"v", DAY_MS, "other")])
        assert len(set(ids)) == 30
        listed: list[int] = []
        after_id = -1
        while page := await broker.delays.waiting("orders", after_id=after_id, limit=7):
            listed += [waiting.id for waiting in page]
            after_id = listed[-1]
        assert listed == sorted(ids)
        of_one = await broker.delays.waiting("orders", partition=1)
        assert [waiting.id for waiting in of_one] == sorted(ids[1::3])
        stats = await broker.delays.stats("orders")
        first_due_ms = min(waiting.due_ms for waiting in await broker.delays.waiting("orders"))
        assert (stats.pending, stats.next_due_ms) == (30, first_due_ms)
        with pytest.raises(UnknownTopic):
            await broker.delays.waiting("nowhere")


async def test_spilled_messages_are_listed_and_cancelled_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "BLOCK_MESSAGES", 4)
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        ids = await schedule(broker, *[(b"v", 30 * DAY_MS + at) for at in range(10)])

        async def are_spilled() -> bool:
            return "f" in {record.key[:1].decode() for record in stored_everywhere(broker) if record.key}

        await soon(are_spilled)
        await broker.delays.cancel("orders", 0, ids[1])
        with pytest.raises(UnknownDelayed):
            await broker.delays.cancel("orders", 0, ids[1])
        listed = await broker.delays.waiting("orders")
        assert [waiting.id for waiting in listed] == [ids[0], *ids[2:]]
        assert [w.id for w in await broker.delays.waiting("orders", after_id=ids[2], limit=3)] == ids[3:6]
        stats = await broker.delays.stats("orders")
        assert (stats.pending, stats.next_due_ms) == (9, listed[0].due_ms)


def stored_everywhere(broker: Broker) -> list[Record]:
    return [record for number in range(8) for record in stored(broker, DELAYS_TOPIC, number)]


async def test_limits_are_enforced_and_named_in_errors(tmp_path: Path) -> None:
    settings = DelaySettings(max_pending=3, max_delay_ms=30 * DAY_MS)
    async with running(tmp_path, delays=settings) as broker:
        await broker.topics.create("orders", partitions=1)
        await schedule(broker, (b"a", 30 * DAY_MS))
        with pytest.raises(InvalidDelay, match="max_delay_ms=2592000000"):
            await schedule(broker, (b"a", 30 * DAY_MS + 10_000))
        with pytest.raises(TooManyDelayed, match="max_pending=3"):
            await schedule(broker, *[(b"a", DAY_MS)] * 3)
        ids = await schedule(broker, *[(b"a", DAY_MS)] * 2)
        with pytest.raises(TooManyDelayed):
            await schedule(broker, (b"a", DAY_MS))
        await broker.delays.cancel("orders", 0, ids[0])
        await schedule(broker, (b"a", DAY_MS))
        with pytest.raises(UnknownTopic):
            await broker.delays.schedule([delayed(broker, b"a", 1, "nowhere")])
        with pytest.raises(UnknownTopic, match="no partition 7"):
            await broker.delays.schedule([delayed(broker, b"a", 1, "orders", 7)])
        with pytest.raises(InvalidTopicName):
            await broker.delays.schedule([delayed(broker, b"a", 1, DELAYS_TOPIC)])


async def test_a_broker_without_delays_has_no_delay_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        assert (await broker.delays.stats()).pending == 0
        with pytest.raises(UnknownDelayed):
            await broker.delays.cancel("orders", 0, 0)
        assert DELAYS_TOPIC not in broker.topics.image.topics
