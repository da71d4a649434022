"""Producers against a real broker: delivery, order, bounds, retries and cancellation."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from alpacamq.client.aio.cluster import Cluster
from alpacamq.client.aio.producer import Acks, Delivery, Producer, ProducerSettings
from alpacamq.client.aio.reader import ConsumedRecord, Reader
from alpacamq.client.connect import parse_address
from alpacamq.client.errors import (
    BufferFull,
    Closed,
    DelaysDisabled,
    DeliveryTimedOut,
    NotFound,
    RecordRejected,
    RecordTooLarge,
)
from alpacamq.model.address import Address
from alpacamq.model.batch import Codec
from alpacamq.model.lanes import Lane
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.records import Header
from tests.brokers import Broker
from tests.ports import free_ports
from tests.waiting import soon


async def read(cluster: Cluster, topic: str) -> list[ConsumedRecord]:
    async with Reader(cluster, topic, until="now") as reader:
        return [record async for record in reader]


async def test_a_record_is_written_where_its_key_belongs(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster) as producer:
        written = await (
            await producer.put(topic, b"tea", key=b"alice", headers=[Header("a", b"1")], timestamp_ms=123_456)
        )
    assert (written.topic, written.offset, written.timestamp_ms) == (topic, 0, 123_456)
    assert written.partition == partition_for_key(b"alice", 3)
    [record] = await read(cluster, topic)
    assert (record.partition.partition, record.offset) == (written.partition, written.offset)
    assert (record.key, record.value, record.headers) == (b"alice", b"tea", (Header("a", b"1"),))
    assert record.timestamp_ms == 123_456


async def test_records_of_a_partition_keep_their_order(cluster: Cluster, topic: str) -> None:
    values = [b"%d" % number for number in range(3000)]
    async with Producer(cluster, ProducerSettings(batch_bytes=1000)) as producer:
        await producer.prepare(topic)
        # One of them is where records without a partition would go now.
        for partition in range(3):
            deliveries = [producer.send(topic, value, partition=partition) for value in values]
            written = [await each for each in deliveries]
            assert {each.partition for each in written} == {partition}
            assert [each.offset for each in written] == list(range(3000))
    records = await read(cluster, topic)
    for partition in range(3):
        assert [each.value for each in records if each.partition.partition == partition] == values


async def test_records_without_a_key_reach_every_partition(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster, ProducerSettings(batch_bytes=1000)) as producer:
        for number in range(2000):
            await producer.put(topic, b"%d" % number)
    records = await read(cluster, topic)
    assert {record.partition.partition for record in records} == {0, 1, 2}
    assert sorted(int(record.value or b"") for record in records) == list(range(2000))


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
async def test_every_compression_is_read_back(cluster: Cluster, topic: str, codec: Codec) -> None:
    values = [b"value %d" % number for number in range(1000)]
    async with Producer(cluster, ProducerSettings(compression=codec)) as producer:
        for value in values:
            await producer.put(topic, value, partition=0)
    assert [record.value for record in await read(cluster, topic)] == values


@pytest.mark.parametrize("acks", list(Acks))
async def test_every_acks_writes(cluster: Cluster, topic: str, acks: Acks) -> None:
    async with Producer(cluster, ProducerSettings(acks=acks)) as producer:
        written = [await (await producer.put(topic, b"%d" % number, partition=0)) for number in range(5)]
        assert [each.offset for each in written] == ([-1] * 5 if acks is Acks.NONE else list(range(5)))
        # With Acks.NONE nothing says when they are written.
        async with asyncio.timeout(60):
            while len(records := await read(cluster, topic)) < 5:
                pass
    assert [record.value for record in records] == [b"%d" % number for number in range(5)]


async def test_without_acknowledgements_a_broker_that_reads_late_holds_up_the_producer_and_gets_everything(
    broker: Broker, cluster: Cluster, topic: str
) -> None:
    count = 20_000  # more than sockets take
    settings = ProducerSettings(acks=Acks.NONE, buffer_bytes=1 << 20)
    async with Producer(cluster, settings) as producer:
        await (await producer.put(topic, b"first", partition=0))
        connection = cluster.open_connection(1, producer)
        assert connection is not None

        async def put_all() -> None:
            for _ in range(count):
                await producer.put(topic, bytes(1000), partition=0)

        broker.process.send_signal(signal.SIGSTOP)
        try:
            putting = asyncio.ensure_future(put_all())
            await soon(lambda: putting.done() or (producer.is_full and not connection.is_writable))
            assert not putting.done()
        finally:
            broker.process.send_signal(signal.SIGCONT)
        await putting
        await producer.flush()
    async with Reader(cluster, topic) as reader:
        found = 0
        async with asyncio.timeout(60):
            while found < 1 + count:
                found += len(await reader.take(1000))


async def test_a_full_buffer_refuses_records_until_there_is_room(cluster: Cluster, topic: str) -> None:
    settings = ProducerSettings(buffer_bytes=10_000)
    async with Producer(cluster, settings) as producer:
        await producer.prepare(topic)
        accepted = 0
        while not producer.is_full:
            producer.send(topic, bytes(1000))
            accepted += 1
        with pytest.raises(BufferFull) as full:
            producer.send(topic, b"one more")
        assert full.value.retriable
        assert accepted < 12
        await producer.room()
        assert not producer.is_full
        producer.send(topic, b"more")
    assert len(await read(cluster, topic)) == accepted + 1


async def test_put_waits_for_room_and_a_cancelled_one_sends_nothing(cluster: Cluster, topic: str) -> None:
    # Nothing is sent as long as nothing reaches the broker: its address is wrong.
    with unused_address() as address:
        async with Cluster([address]) as lost:
            settings = ProducerSettings(buffer_bytes=1000, delivery_s=1.0)
            producer = await Producer(lost, settings).__aenter__()
            topic_of = await cluster.topic(topic)
            producer._add_topic(topic_of)
            held = producer.send(topic, bytes(2000))
            waiting = asyncio.ensure_future(producer.put(topic, b"never"))
            await asyncio.sleep(0)
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(DeliveryTimedOut) as late:
                await held
            assert not late.value.is_sent
            await producer.close()


@contextmanager
def unused_address() -> Iterator[Address]:
    [port] = free_ports(1)
    yield parse_address(f"127.0.0.1:{port}")


async def test_a_record_can_be_taken_back_until_it_is_sent(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster, ProducerSettings(linger_ms=10_000)) as producer:
        await producer.prepare(topic)
        kept, taken, last = (producer.send(topic, value, partition=0) for value in (b"a", b"b", b"c"))
        assert taken.cancel()
        await producer.flush()
        assert not kept.cancel()
        assert [(await each).offset for each in (kept, last)] == [0, 1]
    assert [record.value for record in await read(cluster, topic)] == [b"a", b"c"]


async def test_a_cancelled_wait_does_not_cancel_the_record(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster) as producer:
        delivery = await producer.put(topic, b"tea", partition=0)

        async def wait(each: Delivery) -> None:
            await each

        waiting = asyncio.ensure_future(wait(delivery))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await delivery).offset == 0


async def test_an_error_that_nobody_awaits_is_raised_by_flush(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster) as producer:
        # Larger than max.message.bytes of the topic, but not than a request.
        settings = ProducerSettings(max_request_bytes=4 << 20)
        async with Producer(cluster, settings) as large:
            delivery = await large.put(topic, bytes(2 << 20), partition=0)
            with pytest.raises(RecordRejected, match=r"MESSAGE_TOO_LARGE") as refused:
                await large.flush()
            assert (refused.value.topic, refused.value.partition) == (topic, 0)
            with pytest.raises(RecordRejected):
                await delivery
            await large.flush()
            # Records after it are written.
            assert (await (await large.put(topic, b"small", partition=0))).offset == 0
        assert (await (await producer.put(topic, b"other", partition=0))).offset == 1


async def test_a_record_larger_than_a_request_is_refused_at_once(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster) as producer:
        with pytest.raises(RecordTooLarge):
            await producer.put(topic, bytes(3 << 20))


async def test_what_does_not_exist_is_named(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster) as producer:
        with pytest.raises(NotFound, match="prepared topic"):
            producer.send(topic, b"tea")
        with pytest.raises(NotFound, match="partition"):
            await producer.put(topic, b"tea", partition=3)
    with pytest.raises(Closed):
        producer.send(topic, b"tea")


async def test_a_delay_needs_a_topic_that_delays(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster) as producer:
        with pytest.raises(DelaysDisabled, match=r"message\.delays"):
            await producer.put(topic, b"later", delay_ms=1000)


async def test_delayed_records_arrive_when_they_are_due(
    cluster: Cluster, topic: str, delaying_topic: str
) -> None:
    del topic
    async with Producer(cluster) as producer:
        delivery = await producer.put(delaying_topic, b"later", partition=0, delay_ms=500)
        await producer.put(delaying_topic, b"urgent", partition=0, priority=Lane.HIGH)
        assert (await delivery).offset == -1
    async with Reader(cluster, delaying_topic) as reader:
        first = await anext(reader)
        second = await anext(reader)
    assert (first.value, first.headers) == (b"urgent", (Header("alpacamq-lane", b"high"),))
    assert second.value == b"later"
    assert second.timestamp_ms >= int(dict(second.headers)["alpacamq-deliver-at"] or b"")


@pytest.fixture
def delaying_topic(topic: str, broker: object) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    from tests.brokers import Broker

    assert isinstance(broker, Broker)
    admin = AdminClient({"bootstrap.servers": broker.address})
    name = f"{topic}-delaying"
    new = NewTopic(name, num_partitions=1, config={"message.delays": "true"})
    for created in admin.create_topics([new]).values():
        created.result()
    return name


async def test_values_of_other_buffers_are_copied(cluster: Cluster, topic: str) -> None:
    value = bytearray(b"before")
    async with Producer(cluster, ProducerSettings(linger_ms=10_000)) as producer:
        await producer.prepare(topic)
        producer.send(topic, value, partition=0)  # type: ignore[arg-type]
        value[:] = b"after!"
        with pytest.raises(TypeError):
            producer.send(topic, "text")  # type: ignore[arg-type]
    assert [record.value for record in await read(cluster, topic)] == [b"before"]
