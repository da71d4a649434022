"""Log.Read and Log.Subscribe."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import h2.events
import httpx
import pytest
from confluent_kafka import Producer

from alpacamq.api.grpc.record_encoding import RecordChunks
from alpacamq.model.batch import Codec
from alpacamq.model.records import Header, Record, read_records, write_batch
from alpacamq.v1 import groups_pb2 as g
from alpacamq.v1 import log_pb2 as pb
from alpacamq.v1 import messages_pb2 as m
from alpacamq.v1 import producer_pb2 as p
from tests.brokers import Broker
from tests.waiting import soon

from .client import Client, connected, raw_connection, refusal
from .streams import (
    NOW,
    Produce,
    Subscription,
    create_topic,
    init_producer,
    read,
    read_all,
    read_some,
    record,
    send,
)


def _name(kind: str = "read") -> str:
    return f"{kind}-{uuid4().hex[:8]}"


async def _filled(client: Client, partitions: int = 1, count: int = 10, **fields: Any) -> str:
    """Create a topic with numbered records in every partition, whose timestamps are 1000, 2000, …"""
    topic = _name()
    await create_topic(client, topic, partitions)
    for partition in range(partitions):
        records = [
            record(b"%d" % number, partition=partition, timestamp_ms=1000 * (number + 1), **fields)
            for number in range(count)
        ]
        await send(client, topic, *records)
    return topic


def _values(records: Any) -> list[int]:
    return [int(each.value) for each in records]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, range(10), id="earliest"),
        pytest.param({"start": pb.Position(start=m.START_LATEST)}, [], id="latest"),
        pytest.param({"start": pb.Position(offset=7)}, [7, 8, 9], id="an offset"),
        pytest.param({"start": pb.Position(timestamp_ms=7500)}, [7, 8, 9], id="a timestamp"),
        pytest.param({"start": pb.Position(timestamp_ms=99_000)}, [], id="a timestamp after all"),
        pytest.param({"start": pb.Position(ago_ms=3_600_000)}, [], id="the last hour"),
        pytest.param({"until": pb.Until(offset=3)}, [0, 1, 2], id="until an offset"),
        pytest.param({"until": pb.Until(timestamp_ms=3000)}, [0, 1], id="until a timestamp"),
        pytest.param({"start": pb.Position(offset=4), "until": pb.Until(offset=6)}, [4, 5], id="both ends"),
        pytest.param(
            {"partitions": [pb.PartitionPosition(partition=0, position=pb.Position(offset=8))]},
            [8, 9],
            id="a partition with its own start",
        ),
        pytest.param({"isolation": pb.ISOLATION_READ_UNCOMMITTED}, range(10), id="uncommitted"),
    ],
)
async def test_a_read_begins_and_ends_where_it_should(
    broker: Broker, fields: dict[str, Any], expected: Any
) -> None:
    async with connected(broker.grpc_address) as client:
        topic = await _filled(client)
        assert _values(await read_all(client, topic, **fields)) == list(expected)


async def test_positions_say_where_to_continue(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        topic = await _filled(client, partitions=3)
        continued = {}
        async for response in read(client, topic, until=NOW):
            for each in response.positions:
                continued[each.partition] = (each.next_offset, each.end_offset)
        assert continued == dict.fromkeys(range(3), (10, 10))


async def test_a_read_follows_new_records(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        topic = await _filled(client, partitions=2, count=1)
        stream = read(client, topic)
        assert _values(await read_some(stream, 2)) == [0, 0]
        for number in range(1, 20):
            await send(client, topic, record(b"%d" % number, partition=number % 2))
            assert _values(await read_some(stream, 1)) == [number]
        stream.cancel()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param({"start": pb.Position(offset=11)}, "OUT_OF_RANGE", id="an offset after the end"),
        pytest.param({"max_bytes": 5}, "INVALID_ARGUMENT", id="responses too small"),
        pytest.param({"format": 9}, "INVALID_ARGUMENT", id="an unknown format"),
        pytest.param(
            {"partitions": [pb.PartitionPosition(partition=9)]}, "NOT_FOUND", id="an unknown partition"
        ),
        pytest.param(
            {"partitions": [pb.PartitionPosition(), pb.PartitionPosition()]},
            "INVALID_ARGUMENT",
            id="a partition twice",
        ),
    ],
)
async def test_impossible_reads_are_refused(broker: Broker, fields: dict[str, Any], code: str) -> None:
    async with connected(broker.grpc_address) as client:
        topic = await _filled(client)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await read_all(client, topic, **fields)
        assert raised.value.code().name == code
        assert refusal(raised.value).reason


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
async def test_what_a_kafka_client_writes_is_read_as_messages_and_as_batches(
    broker: Broker, codec: Codec
) -> None:
    topic = _name()
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic)
        producer = Producer(
            {"bootstrap.servers": broker.kafka, "compression.type": codec.name.lower(), "linger.ms": 50}
        )
        for number in range(500):
            headers = [("h", b"\xff"), ("n", None)] if number % 7 == 0 else None
            producer.produce(
                topic,
                b"%d" % number * 10,
                b"k%d" % number,
                headers=headers,
                timestamp=1_700_000_000_000 + number,
            )
        assert producer.flush(30) == 0
        found = await read_all(client, topic, max_bytes=4096)
        assert [each.offset for each in found] == list(range(500))
        for number, each in enumerate(found):
            assert (each.key, each.value) == (b"k%d" % number, b"%d" % number * 10)
            assert each.timestamp_ms == 1_700_000_000_000 + number
            expected = [m.Header(key="h", value=b"\xff"), m.Header(key="n")] if number % 7 == 0 else []
            assert list(each.headers) == expected
        batches = b"".join(
            [
                batch.data
                async for response in read(client, topic, until=NOW, format=pb.FORMAT_RECORD_BATCH)
                for batch in response.batches
            ]
        )
    at, records = 0, list[Record]()
    while at < len(batches):
        length = int.from_bytes(batches[at + 8 : at + 12]) + 12
        records += read_records(batches[at : at + length])
        at += length
    assert [each.value for each in records] == [b"%d" % number * 10 for number in range(500)]


async def test_records_of_aborted_transactions_are_read_only_if_uncommitted(broker: Broker) -> None:
    name = _name("tx")
    async with connected(broker.grpc_address) as client:
        topic = await _filled(client, count=1)
        producer = await init_producer(client, transactional_id=name)
        state = p.ProducerState(
            producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transactional_id=name
        )
        await send(client, topic, record(b"1"), producer=state)
        # A new producer of the same id aborts it.
        await init_producer(client, transactional_id=name)
        await send(client, topic, record(b"2"))
        assert _values(await read_all(client, topic)) == [0, 2]
        uncommitted = await read_all(client, topic, isolation=pb.ISOLATION_READ_UNCOMMITTED)
        assert _values(uncommitted) == [0, 1, 2]
        aborted = [
            (each.producer_id, each.first_offset)
            async for response in read(client, topic, until=NOW, format=pb.FORMAT_RECORD_BATCH)
            for batch in response.batches
            for each in batch.aborted
        ]
        assert aborted == [(producer.producer_id, 1)]


async def test_a_slow_reader_holds_little_in_the_broker(broker: Broker) -> None:
    """What a client does not read is not read from the log either."""
    topic = _name()
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic)
        stream = Produce(client)
        for number in range(100):
            await stream.write(number, topic, *[record(b"x" * 9000) for _ in range(100)])
        assert len(await stream.end()) == 100
    before = broker.resident_bytes
    request = pb.ReadRequest(topic=topic).SerializeToString()
    async with raw_connection(broker.grpc_address) as connection:
        connection.begin()
        numbers = [connection.call("/alpacamq.v1.Log/Read") for _ in range(20)]
        for number in numbers:
            connection.send(number, request, end_stream=True)
        # Pings are answered, data is not acknowledged.
        connection.h2.acknowledge_received_data = lambda *_: None
        for ping in range(50):
            connection.h2.ping(ping.to_bytes(8))
            connection.flush()
            assert await connection.receive()
        assert broker.resident_bytes - before < 60 << 20


async def test_a_read_ends_when_the_broker_stops_and_continues_after_a_kill(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data").start()
    try:
        async with connected(broker.grpc_address) as client:
            topic = await _filled(client)
            stream = read(client, topic)
            assert len(await read_some(stream, 10)) == 10
            broker.kill()
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stream.read()
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        broker.start()
        async with connected(broker.grpc_address) as client:
            stream = read(client, topic, start=pb.Position(offset=5))
            assert _values(await read_some(stream, 5)) == [5, 6, 7, 8, 9]
            waiting = asyncio.ensure_future(stream.read())
            await asyncio.to_thread(broker.stop)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await waiting
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        broker.end()


# Subscriptions.


async def test_a_member_reads_commits_and_is_continued_by_the_next(broker: Broker) -> None:
    group = _name("group")
    async with connected(broker.grpc_address) as client:
        topic = await _filled(client, partitions=2)
        first = await Subscription.open(client, group, topic)
        assert await first.assigned(2) == {(topic, 0): 0, (topic, 1): 0}
        assert sorted(_values(await first.records(20))) == sorted([*range(10)] * 2)
        result = await first.commit((topic, 0, 4))
        assert [(each.partition, each.offset, each.error.code) for each in result.offsets] == [(0, 4, 0)]
        assert await first.end() is grpc.StatusCode.OK
        second = await Subscription.open(client, group, topic)
        assert await second.assigned(2) == {(topic, 0): 4, (topic, 1): 0}
        assert len(await second.records(16)) == 16
        result = await second.commit()  # what was sent
        assert sorted((each.partition, each.offset) for each in result.offsets) == [(0, 10), (1, 10)]
        await second.end()
        describe = client.unary(
            "/alpacamq.v1.Groups/DescribeGroup", g.DescribeGroupRequest, g.GroupDescription
        )
        assert not (await describe(g.DescribeGroupRequest(group=group))).members


async def test_what_a_client_has_no_room_for_is_not_committed_as_sent(broker: Broker) -> None:
    group = _name("group")
    async with connected(broker.grpc_address) as client, raw_connection(broker.grpc_address) as raw:
        topic = _name()
        await create_topic(client, topic)
        await send(client, topic, *[record(bytes(10_000)) for _ in range(30)])
        raw.is_reading = False
        raw.begin()
        number = raw.call("/alpacamq.v1.Log/Subscribe")
        opened = pb.SubscribeRequest(open=pb.SubscribeOpen(group=group, topics=[topic]))
        raw.send(number, opened.SerializeToString())
        while sum(len(each.data) for each in raw.events if isinstance(each, h2.events.DataReceived)) < 65_535:
            assert await raw.receive()
        raw.send(number, pb.SubscribeRequest(commit=pb.CommitOffsets()).SerializeToString())
        async with httpx.AsyncClient(base_url=f"http://{broker.http_address}", timeout=30) as http:

            async def committed() -> list[int]:
                answer = await http.get(f"/groups/{group}/offsets")
                return [each["offset"] for each in answer.json()["offsets"]] if answer.is_success else []

            assert await soon(committed) == [0]


async def test_partitions_move_when_the_client_has_released_them(broker: Broker) -> None:
    group = _name("group")
    async with connected(broker.grpc_address) as client:
        topic = await _filled(client, partitions=4)
        first = await Subscription.open(client, group, topic)
        await first.assigned(4)
        await first.records(40)
        second = await Subscription.open(client, group, topic)
        revoked = await first.next("revoked")
        taken = {(each.topic, index) for each in revoked.topics for index in each.partitions}
        assert len(taken) == 2
        # Committed before they are released: the other continues there.
        result = await first.commit(*((name, index, 10) for name, index in taken))
        assert [each.error.code for each in result.offsets] == [0, 0]
        await first.send(released=pb.Released())
        assert await second.assigned(2) == dict.fromkeys(taken, 10)
        for partition in range(4):
            await send(client, topic, record(b"%d" % partition, partition=partition))
        kept = {0, 1, 2, 3} - {index for _, index in taken}
        assert set(_values(await first.records(2))) == kept
        assert set(_values(await second.records(2))) == {index for _, index in taken}
        # Leaving gives the partitions back at once.
        await second.end()
        assert (await first.assigned(2)).keys() == taken
        await first.end()


async def test_a_pattern_finds_topics_created_later(broker: Broker) -> None:
    prefix = _name("pattern")
    async with connected(broker.grpc_address) as client:
        member = Subscription(client)
        opened = pb.SubscribeOpen(group=_name("group"), pattern=f"{prefix}-.*")
        await member.send(open=opened)
        await member.next("joined")
        await create_topic(client, f"{prefix}-a")
        await send(client, f"{prefix}-a", record(b"1"))
        assert await member.assigned(1) == {(f"{prefix}-a", 0): 0}
        assert _values(await member.records(1)) == [1]
        await member.end()


async def test_a_paused_partition_is_not_read_until_it_is_resumed(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        topic = await _filled(client, partitions=2, count=1)
        member = await Subscription.open(client, _name("group"), topic)
        await member.assigned(2)
        await member.records(2)
        paused = pb.PartitionSet(topics=[pb.TopicPartitions(topic=topic, partitions=[0])])
        await member.send(pause=paused)
        await member.commit()  # its response comes after the pause took effect
        await send(client, topic, record(b"5", partition=0))
        await send(client, topic, record(b"6", partition=1))
        assert _values(await member.records(1)) == [6]
        await member.send(resume=paused)
        assert _values(await member.records(1)) == [5]
        await member.end()


async def test_a_seek_continues_elsewhere(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        topic = await _filled(client)
        member = await Subscription.open(client, _name("group"), topic)
        await member.records(10)
        for position, expected in (
            (pb.Position(offset=7), [7, 8, 9]),
            (pb.Position(timestamp_ms=9500), [9]),
            (pb.Position(start=m.START_EARLIEST), list(range(10))),
        ):
            await member.send(seek=pb.Seek(topic=topic, position=position))
            assert _values(await member.records(len(expected))) == expected
        await member.end()


async def test_no_more_is_sent_than_the_credit_allows(broker: Broker) -> None:
    topic = _name()
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic)
        for _ in range(10):
            await send(client, topic, record(b"x" * 10_000))
        member = await Subscription.open(client, _name("group"), topic, credit_bytes=25_000)
        # Records are sent whole: the last one may exceed the credit.
        assert len(await member.records(3)) == 3
        await member.commit()
        waiting = [each for each in member._waiting if each.WhichOneof("response") == "records"]
        assert waiting == []
        await member.send(credit_bytes=100_000)
        assert len(await member.records(7)) == 7
        await member.end()


async def test_batches_are_passed_on_to_members(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        topic = await _filled(client)
        member = await Subscription.open(client, _name("group"), topic, format=pb.FORMAT_RECORD_BATCH)
        response = await member.next("records")
        (batch,) = response.batches
        assert [each.value for each in read_records(batch.data)] == [b"%d" % each for each in range(10)]
        assert [each.next_offset for each in response.positions] == [10]
        await member.end()


async def test_latest_skips_what_is_there(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        topic = await _filled(client)
        member = await Subscription.open(client, _name("group"), topic, start=m.START_LATEST)
        assert await member.assigned(1) == {(topic, 0): 10}
        await send(client, topic, record(b"77"))
        assert _values(await member.records(1)) == [77]
        await member.end()


async def test_a_member_whose_connection_is_cut_leaves_at_once(broker: Broker) -> None:
    group = _name("group")
    async with connected(broker.grpc_address) as client:
        topic = await _filled(client, partitions=2)
        async with connected(broker.grpc_address) as other:
            lost = await Subscription.open(other, group, topic)
            await lost.assigned(2)
        member = await Subscription.open(client, group, topic)
        assert len(await member.assigned(2)) == 2
        await member.end()


@pytest.mark.parametrize(
    "opened",
    [
        pytest.param({}, id="no group"),
        pytest.param({"group": "g"}, id="no topic"),
        pytest.param({"group": "g", "topics": ["t"], "pattern": "x"}, id="topics and a pattern"),
        pytest.param({"group": "g", "pattern": "("}, id="a pattern that is none"),
        pytest.param({"group": "g", "topics": ["t"], "isolation": 7}, id="an unknown isolation"),
    ],
)
async def test_impossible_subscriptions_are_refused(broker: Broker, opened: dict[str, Any]) -> None:
    async with connected(broker.grpc_address) as client:
        member = Subscription(client)
        await member.send(open=pb.SubscribeOpen(**opened))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await member.stream.read()
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# Encoding.


@pytest.mark.parametrize("limit", [1, 100, 5000, 1 << 20])
@pytest.mark.parametrize("same_time", [True, False], ids=["one timestamp", "several timestamps"])
def test_records_are_encoded_as_protobuf_does(limit: int, same_time: bool) -> None:
    """In chunks of any size, no record is missing, twice or different."""
    records = [
        Record(
            120 + number,
            1000 if same_time else 1000 + number,
            None if number % 3 == 0 else b"k" * number,
            None if number % 5 == 0 else b"v" * (number * 40),
            (Header("a", None), Header("b", b"x" * 200)) if number % 4 == 0 else (),
        )
        for number in range(150)
    ]
    data = bytes(write_batch(records[:70])) + bytes(write_batch(records[70:], codec=Codec.LZ4))
    chunks = RecordChunks(
        data, 5, range(125, 260), (), tag=0x0A, limit_bytes=limit, unpacked_limit_bytes=1 << 20
    )
    found: list[Any] = []
    while not chunks.is_over:
        fields, count = chunks.next_chunk()
        some = pb.ReadResponse.FromString(fields).records
        assert len(some) == count
        found += some
        if found and not chunks.is_over:
            assert chunks.next_offset == found[-1].offset + 1
    expected = []
    for each in records[5:140]:
        encoded = m.Record(
            partition=5, offset=each.offset, timestamp_ms=each.timestamp_ms, key=each.key, value=each.value
        )
        for name, value in each.headers:
            encoded.headers.add(key=name, value=value)
        expected.append(encoded)
    assert found == expected


def test_a_batch_that_cannot_be_unpacked_is_skipped_and_named() -> None:
    good = bytes(write_batch([Record(number, 1, None, b"x") for number in range(3)]))
    large = bytes(
        write_batch([Record(number, 1, None, b"y" * 1000) for number in range(3, 6)], codec=Codec.GZIP)
    )
    after = bytes(write_batch([Record(6, 1, None, b"z")]))
    chunks = RecordChunks(
        good + large + after, 0, range(100), (), tag=0x0A, limit_bytes=1 << 20, unpacked_limit_bytes=100
    )
    fields, count = chunks.next_chunk()
    assert count == 4
    assert [each.offset for each in pb.ReadResponse.FromString(fields).records] == [0, 1, 2, 6]
    assert [(each.base_offset, each.count) for each in chunks.skipped] == [(3, 3)]
