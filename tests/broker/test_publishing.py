"""Publishing single messages and many at a time to a real broker."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.publishing import Message, Published
from alpacamq.coordinator.transactions.transaction import AddPartitions, DescribeTransaction
from alpacamq.model.batch import Codec, read_header
from alpacamq.model.errors import (
    AlpacaError,
    BatchTooLarge,
    DiskFull,
    FencedProducer,
    InvalidDelay,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTopicName,
    UnknownTopic,
)
from alpacamq.model.headers import LANE
from alpacamq.model.ids import TopicPartition
from alpacamq.model.lanes import Lane
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.ports import Buffer
from alpacamq.model.records import Header
from alpacamq.model.topics import OFFSETS_TOPIC
from tests.waiting import soon

from .open_brokers import BreakableDisk, running, stored
from .transactions import begun, end


def published(result: Published | AlpacaError) -> Published:
    assert isinstance(result, Published), result
    return result


async def publish(broker: Broker, topic: str, *messages: Message) -> list[Published]:
    return [published(result) for result in await broker.publisher.publish(topic, messages)]


async def test_a_message_is_in_its_partition_when_publish_returns(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        message = Message(
            key=b"k",
            value=b"v",
            headers=(Header("a", b"1"), Header("b", None)),
            timestamp_ms=broker.clock.now_ms() - 5,
        )
        (result,) = await publish(broker, "orders", message)
        (record,) = stored(broker, "orders")
        assert (result.partition, result.offset, result.timestamp_ms) == (0, 0, message.timestamp_ms)
        assert record == (0, message.timestamp_ms, b"k", b"v", message.headers)


async def test_keys_choose_partitions_like_kafka_clients_and_others_are_round_robin(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=3)
        keys = [f"key-{number}".encode() for number in range(20)]
        results = await publish(broker, "orders", *(Message(key=key, value=b"") for key in keys))
        assert [result.partition for result in results] == [partition_for_key(key, 3) for key in keys]
        turns = [(await publish(broker, "orders", Message(value=b"x")))[0].partition for _ in range(6)]
        assert turns == [0, 1, 2, 0, 1, 2]


async def test_topics_are_created_automatically_only_if_enabled(tmp_path: Path) -> None:
    async with running(tmp_path / "yes") as broker:
        together = await asyncio.gather(*(publish(broker, "new", Message(value=b"x")) for _ in range(5)))
        assert len(together) == len(broker.topics.partitions_of("new")) + 2
    async with running(tmp_path / "no", auto_create_topics=False) as broker:
        with pytest.raises(UnknownTopic, match="new"):
            await broker.publisher.publish("new", [Message(value=b"x")])


async def test_an_invalid_message_does_not_affect_the_others(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create(
            "orders", partitions=2, overrides={"cleanup.policy": "compact", "max.message.bytes": "1000"}
        )
        now_ms = broker.clock.now_ms()
        results = await broker.publisher.publish(
            "orders",
            [
                Message(key=b"a", value=b"good", partition=0),
                Message(value=b"no key", partition=0),
                Message(key=b"a", value=b"from the future", timestamp_ms=now_ms + 10**9, partition=0),
                Message(key=b"a", value=b"no time", timestamp_ms=-2, partition=0),
                Message(key=b"a", value=bytes(1000), partition=0),
                Message(key=b"a", value=b"nowhere", partition=2),
                Message(key=b"b", value=b"good too", partition=0),
            ],
        )
        assert [type(result) for result in results] == [
            Published, InvalidRecord, InvalidTimestamp, InvalidTimestamp,
            BatchTooLarge, UnknownTopic, Published,
        ]  # fmt: skip
        assert [record.value for record in stored(broker, "orders")] == [b"good", b"good too"]


async def test_internal_topics_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        with pytest.raises(InvalidTopicName):
            await broker.publisher.publish(OFFSETS_TOPIC, [Message(value=b"x")])
        await broker.topics.create_internal(OFFSETS_TOPIC, partitions=1, overrides={})
        with pytest.raises(InvalidTopicName, match="by the broker only"):
            await broker.publisher.publish(OFFSETS_TOPIC, [Message(value=b"x")])


async def test_messages_of_one_call_go_in_as_few_batches_as_fit(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"max.message.bytes": "2000"})
        results = await publish(broker, "orders", *(Message(value=bytes([n]) * 100) for n in range(100)))
        assert [result.offset for result in results] == list(range(100))
        records = stored(broker, "orders")
        assert [record.value for record in records] == [bytes([n]) * 100 for n in range(100)]
        segment = next(broker.topics.partition("orders", 0).log.directory.glob("*.log")).read_bytes()
        assert max(_sizes(segment)) <= 2000
        assert len(_sizes(segment)) <= 10


def _sizes(segment: bytes) -> list[int]:
    sizes = []
    at = 0
    while at < len(segment):
        sizes.append(read_header(segment, at).size)
        at += sizes[-1]
    return sizes


@pytest.mark.parametrize("size", [10, 100_000], ids=["small", "large"])
async def test_a_topics_own_compression_is_applied(tmp_path: Path, size: int) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"compression.type": "zstd"})
        await publish(broker, "orders", Message(value=bytes(size)))
        segment = next(broker.topics.partition("orders", 0).log.directory.glob("*.log")).read_bytes()
        assert read_header(segment).codec is Codec.ZSTD
        assert stored(broker, "orders")[0].value == bytes(size)


async def test_the_result_has_the_brokers_timestamp_with_log_append_time(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create(
            "orders", partitions=1, overrides={"message.timestamp.type": "LogAppendTime"}
        )
        (result,) = await publish(broker, "orders", Message(value=b"x", timestamp_ms=1))
        assert result.timestamp_ms == stored(broker, "orders")[0].timestamp_ms > 1


async def test_a_lane_replaces_an_existing_lane_header(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        message = Message(value=b"x", headers=(Header(LANE, b"low"), Header("a", b"1")), lane=Lane.CRITICAL)
        (result,) = await publish(broker, "orders", message)
        (record,) = stored(broker, "orders", result.partition)
        assert record.headers == (Header("a", b"1"), Header(LANE, b"critical"))


async def test_publishes_of_one_turn_share_one_write(tmp_path: Path) -> None:
    class CountingDisk(BreakableDisk):
        writes = 0

        def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
            self.writes += 1
            super().write(descriptor, buffers, position)

    disk = CountingDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("orders", partitions=1)
        await publish(broker, "orders", Message(value=b"first"))  # starts a leader epoch
        disk.writes = 0
        await asyncio.gather(*(publish(broker, "orders", Message(value=b"x")) for _ in range(50)))
        assert disk.writes == 1
        assert len(stored(broker, "orders")) == 51


async def test_a_full_disk_fails_each_message_until_there_is_space(tmp_path: Path) -> None:
    disk = BreakableDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("orders", partitions=1)
        disk.full = True
        results = await broker.publisher.publish("orders", [Message(value=b"x"), Message(value=b"y")])
        assert [type(result) for result in results] == [DiskFull, DiskFull]
        disk.full = False
        assert (await publish(broker, "orders", Message(value=b"z")))[0].offset == 0


async def test_a_cancelled_publish_is_still_appended_and_affects_no_other(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"flush.messages": "1"})
        doomed = asyncio.create_task(publish(broker, "orders", Message(value=b"x")))
        await asyncio.sleep(0)
        doomed.cancel()
        await asyncio.wait([doomed])
        assert (await publish(broker, "orders", Message(value=b"y")))[0].offset == 1


async def test_a_transaction_spans_publishes_and_restarts_of_the_broker(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=2)
        producer = await begun(broker, "t")
        for number in range(3):
            messages = [Message(value=str(number).encode(), partition=number % 2)] * 2
            results = await asyncio.gather(
                *(broker.publisher.publish("orders", messages, producer=producer) for _ in range(2))
            )
            assert [type(result) for call in results for result in call] == [Published] * 4
        assert broker.topics.partition("orders", 0).last_stable_offset == 0
    async with running(tmp_path) as broker:
        (result,) = await broker.publisher.publish(
            "orders", [Message(value=b"after", partition=0)], producer=producer
        )
        assert published(result).offset == 8
        await end(broker, producer, committed=True)
        (delayed,) = await broker.publisher.publish(
            "orders", [Message(value=b"later", deliver_at_ms=2**50)], producer=producer
        )
        assert isinstance(delayed, InvalidDelay)


async def test_an_open_partition_whose_transaction_ends_while_others_join_joins_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=2)
        first = broker.topics.partition("orders", 0)
        producer = await begun(broker, "t")
        await broker.publisher.publish("orders", [Message(value=b"1", partition=0)], producer=producer)
        add_partitions = broker.transactions.add_partitions

        async def end_meanwhile(request: AddPartitions) -> dict[TopicPartition, AlpacaError]:
            if first.open_transaction(producer.producer_id) == 0:
                await end(broker, producer, committed=False)
                await soon(lambda: first.open_transaction(producer.producer_id) is None)
            return await add_partitions(request)

        monkeypatch.setattr(broker.transactions, "add_partitions", end_meanwhile)
        messages = [Message(value=b"2", partition=index) for index in range(2)]
        for result in await broker.publisher.publish("orders", messages, producer=producer):
            published(result)
        known = await broker.transactions.ask(DescribeTransaction(transactional_id="t"))
        assert set(known.partitions) == {each.identity for each in broker.topics.partitions_of("orders")}


async def test_a_fenced_producer_cannot_publish(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        former = await begun(broker, "t")
        await begun(broker, "t")
        (refused,) = await broker.publisher.publish("orders", [Message(value=b"late")], producer=former)
        assert isinstance(refused, FencedProducer)
        assert stored(broker, "orders") == []


async def test_a_delayed_message_has_an_id_instead_of_an_offset(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"max.message.bytes": "1000"})
        now_ms = broker.clock.now_ms()
        results = await broker.publisher.publish(
            "orders",
            [
                Message(value=b"later", deliver_at_ms=now_ms + 60_000, lane=Lane.LOW),
                Message(value=b"past", deliver_at_ms=now_ms - 60_000),
                Message(value=b"never", deliver_at_ms=2**62),
                Message(value=bytes(1000), deliver_at_ms=now_ms + 60_000),
                Message(value=b"too", deliver_at_ms=now_ms + 50_000),
            ],
        )
        later, past, never, large, too = results
        assert isinstance(never, InvalidDelay)
        assert isinstance(large, BatchTooLarge)
        assert published(past).offset == 0
        assert published(later).offset is None
        assert published(later).deliver_at_ms == now_ms + 60_000
        waiting = await broker.delays.waiting("orders")
        ids = {published(later).delayed_id, published(too).delayed_id}
        assert {each.id for each in waiting} == ids
        assert [record.value for record in stored(broker, "orders")] == [b"past"]


async def test_the_delay_of_a_topic_applies_to_messages_without_their_own(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"queue.delay.ms": "60000"})
        now_ms = broker.clock.now_ms()
        by_topic, at_once = await publish(
            broker, "orders", Message(value=b"a"), Message(value=b"b", deliver_at_ms=now_ms)
        )
        assert by_topic.delayed_id is not None
        assert (by_topic.deliver_at_ms or 0) >= now_ms + 60_000
        assert (at_once.delayed_id, at_once.offset) == (None, 0)
