"""Producer.Produce and Producer.Send."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import grpc
import pytest
from confluent_kafka import Consumer, TopicPartition
from google.protobuf.message import DecodeError
from h2.settings import SettingCodes

from alpacamq.api.grpc.producing import MAX_UNACKNOWLEDGED_BYTES
from alpacamq.api.grpc.record_encoding import Produced, batch_body
from alpacamq.model.batch import Codec, read_header
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.records import Header, Record, frame_records, read_records, write_batch
from alpacamq.v1 import messages_pb2 as m
from alpacamq.v1 import producer_pb2 as p
from alpacamq.v1 import schemas_pb2 as s
from alpacamq.v1 import transactions_pb2 as t
from tests.brokers import Broker

from .client import connected, raw_connection, refusal
from .streams import Produce, Subscription, create_topic, init_producer, read_all, record, send


def _topic() -> str:
    return f"produced-{uuid4().hex[:8]}"


def _consumed(broker: Broker, topic: str, count: int, partition: int = 0) -> list[Any]:
    """Read messages by a Kafka client."""
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "unused"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[Any] = []
        while len(found) < count:
            messages = consumer.consume(count - len(found), timeout=30)
            assert messages, f"{len(found)} of {count} messages"
            for message in messages:
                assert message.error() is None, message.error()
            found += messages
        return found
    finally:
        consumer.close()


async def test_requests_are_pipelined_and_answered_by_correlation_id(broker: Broker) -> None:
    topic = _topic()
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic, 3)
        stream = Produce(client)
        for number in range(50):
            keys = [b"%d" % each for each in range(4)]
            await stream.write(
                number, topic if number == 0 else "", *(record(b"%d" % number, key=key) for key in keys)
            )
        found = {each.correlation_id: each.result for each in await stream.end()}
        assert sorted(found) == list(range(50))
        expected = [partition_for_key(b"%d" % each, 3) for each in range(4)]
        assert all(list(each.partitions) == expected for each in found.values())
        stored = await read_all(client, topic)
    # Those of one partition are in the order of the requests.
    for partition in range(3):
        values = [int(each.value) for each in stored if each.partition == partition]
        assert values == sorted(values)
    by_place = {(each.partition, each.offset): each.value for each in stored}
    for number, result in found.items():
        for place in zip(result.partitions, result.offsets, strict=True):
            assert by_place[place] == b"%d" % number


async def test_every_field_of_a_record_is_stored(broker: Broker) -> None:
    topic = _topic()
    headers = [m.Header(key="a", value=b"\x00"), m.Header(key="a"), m.Header(key="b", value=b"")]
    records = [
        record(b"v", key=b"k", partition=1, headers=headers, timestamp_ms=1_700_000_000_000),
        record(None, key=b"", partition=1),
        record(b"", partition=1, priority=m.PRIORITY_LOW),
        record(b"later", partition=1, delay_ms=3_600_000),
        record(b"nowhere", partition=7),
    ]
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic, 2)
        result = await send(client, topic, *records)
        assert list(result.offsets) == [0, 1, 2, -1, -1]
        assert list(result.partitions)[:4] == [1, 1, 1, 1]
        assert [each.index for each in result.delayed] == [3]
        assert [(each.index, each.status.code) for each in result.errors] == [
            (4, grpc.StatusCode.NOT_FOUND.value[0])
        ]
    first, second, third = _consumed(broker, topic, 3, 1)
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", b"v", 1_700_000_000_000)
    assert first.headers() == [("a", b"\x00"), ("a", None), ("b", b"")]
    assert (second.key(), second.value()) == (b"", None)
    assert (third.key(), third.value(), third.headers()) == (None, b"", [("alpacamq-lane", b"low")])


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
async def test_encoded_batches_are_stored_as_they_are(broker: Broker, codec: Codec) -> None:
    topic = _topic()
    records = [
        Record(index, 1_700_000_000_000 + index, None, b"%d" % index, (Header("h", b"x"),))
        for index in range(100)
    ]
    data = bytes(write_batch(records, codec=codec))
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic, 2)
        stream = Produce(client)
        batches = [
            p.EncodedBatch(partition=1, data=data),
            p.EncodedBatch(partition=1, data=damaged),
            p.EncodedBatch(partition=0, data=data),
            p.EncodedBatch(partition=5, data=data),
            p.EncodedBatch(partition=0, data=b"short"),
        ]
        await stream.write(1, topic, batches=batches)
        (response,) = await stream.end()
    result = response.result
    assert list(result.offsets) == [0, -1, 0, -1, -1]
    codes = {each.index: each.status.code for each in result.errors}
    invalid, unknown = (
        each.value[0] for each in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    )
    assert codes == {1: invalid, 3: unknown, 4: invalid}
    assert [each.value() for each in _consumed(broker, topic, 100, 1)] == [each.value for each in records]


async def test_a_repeated_request_of_an_idempotent_producer_is_recognised(broker: Broker) -> None:
    topic = _topic()
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic)
        producer = await init_producer(client)

        def state(sequence: int) -> Any:
            return p.ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=sequence,
            )

        first = await send(client, topic, record(b"0"), record(b"1"), producer=state(0))
        again = await send(client, topic, record(b"0"), record(b"1"), producer=state(0))
        assert list(first.offsets) == list(again.offsets) == [0, 1]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await send(client, topic, record(b"9"), producer=state(9))
        assert refusal(raised.value).reason == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        assert [each.value for each in await read_all(client, topic)] == [b"0", b"1"]


async def test_a_transaction_shows_its_records_when_it_is_committed(broker: Broker) -> None:
    topic = _topic()
    name = f"tx-{uuid4().hex}"
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic, 2)
        producer = await init_producer(client, transactional_id=name)
        state = p.ProducerState(
            producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transactional_id=name
        )
        stream = Produce(client)
        await stream.write(1, topic, record(b"0", partition=0), record(b"1", partition=1), producer=state)
        # The sequences of what the broker has written for the producer go on in an encoded batch.
        batch = write_batch(
            [Record(0, 0, None, b"2")],
            attributes=0x10,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=1,
        )
        first = await stream.response()
        assert list(first.result.offsets) == [0, 0]
        encoded = [p.EncodedBatch(partition=0, data=bytes(batch))]
        await stream.write(2, topic, batches=encoded, producer=p.ProducerState(transactional_id=name))
        (second,) = await stream.end()
        assert list(second.result.offsets) == [1], second
        assert await read_all(client, topic) == []
        commit = client.unary("/alpacamq.v1.Transactions/Commit", t.TransactionRequest, t.ProducerIdentity)
        await commit(
            t.TransactionRequest(
                transactional_id=name,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
            )
        )
        assert sorted(each.value for each in await read_all(client, topic)) == [b"0", b"1", b"2"]


async def test_a_refused_request_does_not_end_the_stream(broker: Broker) -> None:
    topic = _topic()
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic)
        stream = Produce(client)
        await stream.write(1, topic)
        await stream.write(2, topic, record(b"x", delay_ms=-1))
        await stream.write(3, topic, record(b"x"), acks=9)
        await stream.write(4, topic, record(b"x"))
        await stream.write(5, "no/topic", record(b"x"))
        found = {each.correlation_id: each for each in await stream.end()}
    invalid = grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert [found[each].error.code for each in (1, 2, 3, 4, 5)] == [invalid, invalid, invalid, 0, invalid]
    assert list(found[4].result.offsets) == [0]


async def test_without_acks_a_response_has_no_offsets(broker: Broker) -> None:
    topic = _topic()
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic)
        stream = Produce(client)
        await stream.write(1, topic, record(b"x"), acks=p.ACKS_NONE)
        await stream.write(2, topic, record(b"y"), acks=p.ACKS_LEADER)
        found = {each.correlation_id: list(each.result.offsets) for each in await stream.end()}
    assert found == {1: [-1], 2: [1]}


async def test_rules_of_a_topic_apply_to_single_records(broker: Broker) -> None:
    topic = _topic()
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic, 1, cleanup_policy="compact")
        result = await send(client, topic, record(b"x", key=b"k"), record(b"y"), record(b"z", key=b"l"))
        assert list(result.offsets) == [0, -1, 1]
        assert [each.index for each in result.errors] == [1]


async def test_topics_with_their_own_compression_and_small_batches_take_all_records(broker: Broker) -> None:
    topic = _topic()
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic, 1, compression_type="zstd", max_message_bytes="2000")
        values = [b"%04d" % each * 25 for each in range(100)]
        result = await send(client, topic, *(record(value) for value in values))
        assert list(result.offsets) == list(range(100))
        assert [each.value for each in await read_all(client, topic)] == values


async def test_a_client_that_takes_no_responses_is_held_back(broker: Broker) -> None:
    """The broker stops reading, and flow control does the rest."""
    topic = _topic()
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic)
    request = p.ProduceRequest(topic=topic, records=[record(b"x" * 100_000)]).SerializeToString()
    message = b"\0" + len(request).to_bytes(4) + request
    async with raw_connection(broker.grpc_address) as connection:
        connection.begin()
        connection.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        connection.flush()
        while connection.h2.local_settings.initial_window_size:
            assert await connection.receive()
        number = connection.call("/alpacamq.v1.Producer/Produce")
        sent = pings = 0
        # A ping that is answered without more window: the broker had its turn, and did not read.
        while pings < 50:
            if connection.h2.local_flow_control_window(number) < len(message):
                connection.h2.ping(pings.to_bytes(8))
                connection.flush()
                assert await connection.receive()
                pings += 1
                continue
            for at in range(0, len(message), 16_000):
                connection.h2.send_data(number, message[at : at + 16_000])
            connection.flush()
            await connection.writer.drain()
            sent += len(message)
            pings = 0
            assert sent < MAX_UNACKNOWLEDGED_BYTES + (4 << 20)
        assert sent > 0


async def test_a_stream_cut_in_the_middle_is_continued_without_loss_or_duplicates(broker: Broker) -> None:
    """An idempotent producer sends again what was not acknowledged, on a new connection."""
    topic = _topic()
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic)
        producer = await init_producer(client)
    await _produce_all(broker, topic, producer, 200, cut_after=17)
    async with connected(broker.grpc_address) as client:
        values = [int(each.value) for each in await read_all(client, topic)]
    assert values == list(range(200 * 10))


async def _write_numbers(stream: Produce, request: int, topic: str, producer: Any) -> None:
    """Write a request of ten numbers, with their sequence."""
    state = p.ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=request * 10,
    )
    values = [record(b"%d" % (request * 10 + each)) for each in range(10)]
    await stream.write(request, topic, *values, producer=state)


async def _produce_all(
    broker: Broker, topic: str, producer: Any, requests: int, *, cut_after: int, window: int = 4
) -> None:
    """Write requests of ten numbers each, `window` unacknowledged at most; cut the connection often."""
    acknowledged = 0
    while acknowledged < requests:
        async with connected(broker.grpc_address) as client:
            stream = Produce(client)
            sent = acknowledged
            received = 0
            try:
                while acknowledged < requests and received < cut_after:
                    while sent < min(acknowledged + window, requests):
                        await _write_numbers(stream, sent, topic, producer)
                        sent += 1
                    response = await stream.response()
                    assert not response.error.code, response.error
                    assert not response.result.errors, response.result.errors
                    assert response.correlation_id == acknowledged
                    acknowledged += 1
                    received += 1
            except grpc.aio.AioRpcError:
                continue
            # Leaving cuts the connection, with requests on their way.


async def test_a_killed_broker_has_all_acknowledged_records_once(tmp_path: Path) -> None:
    topic = "killed"
    broker = Broker(tmp_path / "data").start()
    try:
        async with connected(broker.grpc_address) as client:
            await create_topic(client, topic)
            producer = await init_producer(client)
        acknowledged = 0
        for _ in range(3):
            acknowledged = await _produce_until_killed(broker, topic, producer, acknowledged)
            broker.start()
        async with connected(broker.grpc_address) as client:
            values = [int(each.value) for each in await read_all(client, topic)]
        # What was sent last may be there, without a response.
        assert values == list(range(len(values)))
        assert len(values) >= acknowledged * 10
    finally:
        broker.end()


async def _produce_until_killed(broker: Broker, topic: str, producer: Any, acknowledged: int) -> int:
    """Write numbers while the broker is killed; return how many requests are acknowledged."""
    async with connected(broker.grpc_address) as client:
        stream = Produce(client)
        sent = begin = acknowledged
        try:
            while True:
                while sent < acknowledged + 4:
                    await _write_numbers(stream, sent, topic, producer)
                    sent += 1
                response = await stream.stream.read()
                if response is grpc.aio.EOF:
                    return acknowledged
                assert not response.error.code, response.error
                assert not response.result.errors, response.result.errors
                acknowledged += 1
                if acknowledged == begin + 20:
                    broker.kill()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return acknowledged


def test_plain_records_are_encoded_as_the_broker_does() -> None:
    """The short way from protobuf to a batch gives the same bytes as the long one."""
    contents = [
        (None, b""),
        (b"k", b"v"),
        (b"", None),
        (None, None),
        (b"k" * 200, b"v" * 5000),
        (None, b"x" * 63),
        (None, b"x" * 64),
    ] * 30
    request = p.ProduceRequest(
        correlation_id=7, topic="t", records=[m.NewRecord(key=key, value=value) for key, value in contents]
    )
    produced = Produced.FromString(request.SerializeToString())
    assert (produced.envelope.correlation_id, produced.envelope.topic) == (7, "t")
    plain = produced.plain()
    assert plain is not None
    data = frame_records(batch_body(content for content, _, _ in plain), len(plain), (1234, 1234))
    records = [Record(index, 1234, key, value) for index, (key, value) in enumerate(contents)]
    assert bytes(data) == bytes(write_batch(records))
    assert list(read_records(data)) == records
    assert read_header(data).record_count == len(records)


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": [m.Header(key="a")]},
        {"timestamp_ms": 5},
        {"priority": m.PRIORITY_HIGH},
        {"delay_ms": 5},
        {"deliver_at_ms": 5},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_records_with_other_fields_take_the_long_way(fields: Any) -> None:
    request = p.ProduceRequest(records=[m.NewRecord(value=b"1"), m.NewRecord(value=b"2", **fields)])
    produced = Produced.FromString(request.SerializeToString())
    assert produced.plain() is None
    assert produced.messages() == list(request.records)


def test_requests_cut_anywhere_are_malformed_or_shorter() -> None:
    """No prefix of a request makes the parser fail otherwise, or invent records."""
    records = [m.NewRecord(key=b"k", value=b"v" * 200, partition=3), m.NewRecord(value=b"w")]
    data = p.ProduceRequest(correlation_id=300, topic="t", records=records, timeout_ms=5).SerializeToString()
    for cut in range(len(data)):
        try:
            expected = p.ProduceRequest.FromString(data[:cut])
        except DecodeError:
            with pytest.raises(DecodeError):
                Produced.FromString(data[:cut])
            continue
        assert Produced.FromString(data[:cut]).messages() == list(expected.records)


def test_the_short_way_reads_what_protobuf_reads() -> None:
    """Requests with bytes changed, removed and added: the same records, or both refuse them."""
    random = Random(16)
    parsed = 0
    for _ in range(3000):
        records = [
            m.NewRecord(
                key=random.choice([None, b"", b"key", b"k" * 130]),
                value=random.choice([None, b"", b"value", b"v" * 300]),
                partition=random.choice([None, 0, 200]),
            )
            for _ in range(random.randrange(4))
        ]
        data = bytearray(p.ProduceRequest(correlation_id=300, topic="t", records=records).SerializeToString())
        for _ in range(random.randrange(4)):
            at = random.randrange(len(data))
            data[at : at + random.randrange(2)] = random.randbytes(random.randrange(2))
        changed = bytes(data)
        try:
            expected = list(p.ProduceRequest.FromString(changed).records)
        except DecodeError:
            with pytest.raises(DecodeError):
                Produced.FromString(changed).messages()
            continue
        produced = Produced.FromString(changed)
        assert produced.messages() == expected
        plain = produced.plain()
        if plain:
            parsed += 1
            batch = frame_records(batch_body(content for content, _, _ in plain), len(plain), (0, 0))
            assert [(each.key, each.value) for each in read_records(batch)] == [
                (
                    each.key if each.HasField("key") else None,
                    each.value if each.HasField("value") else None,
                )
                for each in expected
            ]
    assert parsed > 100


async def test_a_broker_that_stops_ends_streams_after_their_responses(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data").start()
    try:
        async with connected(broker.grpc_address) as client:
            await create_topic(client, "stopped")
            stream = Produce(client)
            await stream.write(1, "stopped", record(b"x"))
            assert list((await stream.response()).result.offsets) == [0]
            member = await Subscription.open(client, "group", "stopped")
            await member.records(1)
            stopping = asyncio.ensure_future(asyncio.to_thread(broker.stop))
            for each in (stream.stream, member.stream):
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await each.read()
                assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            await stopping
    finally:
        broker.end()


async def test_the_trace_of_a_call_is_continued_by_its_records(broker: Broker) -> None:
    topic = _topic()
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    own = "00-11111111111111111111111111111111-00f067aa0ba902b7-01"
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic)
        stream = Produce(client, (("traceparent", trace),))
        headers = [m.Header(key="traceparent", value=own.encode())]
        await stream.write(1, topic, record(b"x"), record(b"y", headers=headers))
        await stream.end()
        found = await read_all(client, topic)
    assert [[each.value.decode() for each in one.headers] for one in found] == [[trace], [own]]


async def test_topics_with_schemas_refuse_records_and_batches_without_one(broker: Broker) -> None:
    topic = _topic()
    async with connected(broker.grpc_address) as client:
        await create_topic(client, topic, 1, confluent_value_schema_validation="true")
        register = client.unary("/alpacamq.v1.Schemas/Register", s.RegisterRequest, s.Schema)
        schema = s.NewSchema(schema='"string"')
        registered = await register(s.RegisterRequest(subject=f"{topic}-value", schema=schema))
        valid = b"\x00" + registered.id.to_bytes(4) + b"\x02a"
        result = await send(client, topic, record(valid), record(b"plain"))
        assert (list(result.offsets), [each.index for each in result.errors]) == ([0, -1], [1])
        stream = Produce(client)
        batches = [
            p.EncodedBatch(data=bytes(write_batch([Record(0, 0, None, value)])))
            for value in (valid, b"plain")
        ]
        await stream.write(1, topic, batches=batches)
        (response,) = await stream.end()
        assert list(response.result.offsets) == [1, -1]
        (error,) = response.result.errors
        assert error.status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
