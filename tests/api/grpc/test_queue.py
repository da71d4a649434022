"""Queue mode over gRPC, by an unmodified client."""

import asyncio

import grpc
import httpx
import pytest

from alpacamq.v1 import messages_pb2, queue_pb2
from tests.brokers import Broker

from .client import TIMEOUT_S, connected, publish, refusal


def settled_counts(broker: Broker, topic: str, group: str = "g") -> dict[str, int]:
    found = httpx.get(f"http://{broker.http_address}/groups/{group}/queues/{topic}", timeout=TIMEOUT_S)
    totals: dict[str, int] = found.raise_for_status().json()["totals"]
    return totals


async def test_messages_are_delivered_with_all_they_have(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, ["a"], key="k", headers={"colour": "blue"}, priority="high")
    async with connected(broker.grpc_address) as client:
        work = await client.work(topic)
        (message,) = await work.messages(1)
    record = message.record
    assert (message.delivery_id, message.delivery_count) == (1, 1)
    assert message.priority == messages_pb2.PRIORITY_HIGH
    assert (record.key, record.value, record.partition, record.offset) == (b"k", b"a", 0, 0)
    assert ("colour", b"blue") in [(each.key, each.value) for each in record.headers]
    assert message.deadline_ms > record.timestamp_ms > 0
    assert message.receipt == ""


async def test_a_stream_delivers_no_more_than_its_credit(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, [str(number) for number in range(20)])
    async with connected(broker.grpc_address) as client:
        work = await client.work(topic, credit=5)
        first = await work.messages(5)
        assert settled_counts(broker, topic)["in_flight"] == 5
        await work.send(ack=[first[0].delivery_id, first[1].delivery_id])
        assert len(await work.messages(2)) == 2
        assert settled_counts(broker, topic)["in_flight"] == 5
        await work.send(credit=8)
        assert len(await work.messages(3)) == 3


async def test_a_stream_with_credit_0_pauses(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, ["a", "b", "c"])
    async with connected(broker.grpc_address) as client:
        work = await client.work(topic, credit=1)
        (first,) = await work.messages(1)
        await work.send(credit=0, ack=[first.delivery_id])
        assert await work.results(1) == ([first.delivery_id], {})
        assert settled_counts(broker, topic)["in_flight"] == 0
        await work.send(credit=2)
        assert len(await work.messages(2)) == 2


async def test_all_messages_are_delivered_and_acknowledged_once(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, [str(number) for number in range(300)], partitions=4)
    values: list[bytes] = []

    async def consume() -> None:
        async with connected(broker.grpc_address) as client:
            work = await client.work(topic, credit=10)
            while len(values) < 300:
                response = await work.response()
                assert not response.errors
                values.extend(each.record.value for each in response.messages)
                if response.messages:
                    await work.send(ack=[each.delivery_id for each in response.messages])

    consumers = [asyncio.create_task(consume()) for _ in range(3)]
    await asyncio.wait(consumers, return_when=asyncio.FIRST_COMPLETED)
    for task in consumers:
        task.cancel()
    assert sorted(values) == sorted(str(number).encode() for number in range(300))


async def test_a_nack_is_redelivered_and_a_reject_is_a_dead_letter(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, ["again", "never"])
    async with connected(broker.grpc_address) as client:
        work = await client.work(topic)
        again, never = await work.messages(2)
        await work.send(
            nack=[queue_pb2.Nack(delivery_id=again.delivery_id, delay_ms=0, reason="busy")],
            reject=[queue_pb2.Reject(delivery_id=never.delivery_id, reason="broken")],
        )
        (second,) = await work.messages(1)
        assert (second.record.value, second.delivery_count) == (b"again", 2)
        await work.send(ack=[second.delivery_id])
        await work.results(1)
    totals = settled_counts(broker, topic)
    assert (totals["nacked_total"], totals["rejected_total"], totals["acked_total"]) == (1, 1, 1)


async def test_an_extended_lease_ends_later(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, ["a"])
    async with connected(broker.grpc_address) as client:
        work = await client.work(topic, visibility_ms=1000)
        (message,) = await work.messages(1)
        await work.send(extend=[queue_pb2.Extend(delivery_id=message.delivery_id, visibility_ms=600_000)])
        assert await work.results(1) == ([message.delivery_id], {})
        other = await client.receive(
            queue_pb2.ReceiveRequest(topic=topic, group="g", wait_ms=2000), timeout=TIMEOUT_S
        )
        assert not other.messages
        await work.send(ack=[message.delivery_id])
        assert await work.results(1) == ([message.delivery_id], {})


async def test_expired_and_unknown_deliveries_fail_one_by_one(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, ["a"])
    async with connected(broker.grpc_address) as client:
        work = await client.work(topic, credit=2, visibility_ms=100)
        (first,) = await work.messages(1)
        (second,) = await work.messages(1)
        assert second.record.offset == first.record.offset
        await work.send(ack=[first.delivery_id, second.delivery_id, 77])
        settled, errors = await work.results(3)
    assert settled == [second.delivery_id]
    assert sorted(errors) == [first.delivery_id, 77]
    assert {status.code for status in errors.values()} == {grpc.StatusCode.FAILED_PRECONDITION.value[0]}


async def test_expired_deliveries_do_not_use_up_the_credit(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, ["a"])
    async with connected(broker.grpc_address) as client:
        work = await client.work(topic, credit=1, visibility_ms=100)
        first, second = await work.messages(2)
    assert (first.delivery_count, second.delivery_count) == (1, 2)


@pytest.mark.parametrize("how", ["cancelled", "ended", "disconnected"])
async def test_leases_of_a_stream_that_ends_are_returned_at_once(
    broker: Broker, topic: str, how: str
) -> None:
    publish(broker.http_address, topic, ["a", "b", "c"])
    async with connected(broker.grpc_address) as other:
        async with connected(broker.grpc_address) as client:
            work = await client.work(topic, visibility_ms=600_000)
            await work.messages(3)
            if how == "cancelled":
                work.stream.cancel()
            elif how == "ended":
                assert await work.end() is grpc.StatusCode.OK
        waiting = await other.work(topic)
        assert [each.delivery_count for each in await waiting.messages(3)] == [2, 2, 2]


async def test_messages_that_arrive_later_are_delivered(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, ["a"])
    async with connected(broker.grpc_address) as client:
        work = await client.work(topic)
        await work.messages(1)
        publish(broker.http_address, topic, ["b"])
        (message,) = await work.messages(1)
        assert message.record.value == b"b"


async def test_receive_and_settle_by_receipt(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, ["a", "b", "c"])
    async with connected(broker.grpc_address) as client:
        reply = await client.receive(
            queue_pb2.ReceiveRequest(topic=topic, group="g", wait_ms=5000), timeout=TIMEOUT_S
        )
        receipts = [each.receipt for each in reply.messages]
        assert [each.delivery_id for each in reply.messages] == [0, 0, 0]
        kind = queue_pb2.Settlement
        result = await client.settle(
            queue_pb2.SettleRequest(
                settlements=[
                    kind(receipt=receipts[0], action=kind.ACTION_ACK),
                    kind(receipt=receipts[1], action=kind.ACTION_NACK, delay_ms=0),
                    kind(receipt="nonsense", action=kind.ACTION_ACK),
                    kind(receipt=receipts[2], action=kind.ACTION_EXTEND, visibility_ms=0),
                ]
            )
        )
        assert [each.code for each in result.results] == [0, 0, 3, 0]
        again = await client.receive(
            queue_pb2.ReceiveRequest(topic=topic, group="g", wait_ms=5000), timeout=TIMEOUT_S
        )
    assert sorted(each.record.value for each in again.messages) == [b"b", b"c"]


async def test_a_receive_that_finds_nothing_returns_before_its_deadline(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, [])
    async with connected(broker.grpc_address) as client:
        reply = await client.receive(
            queue_pb2.ReceiveRequest(topic=topic, group="g", wait_ms=30_000), timeout=2.0
        )
    assert not reply.messages


@pytest.mark.parametrize(
    ("opened", "field"),
    [
        ({"topic": "t", "group": "g", "credit": 0}, "open.credit"),
        ({"topic": "t", "group": "g", "credit": 10_001}, "open.credit"),
        ({"topic": "t", "credit": 1}, "open.group"),
        ({"group": "g", "credit": 1}, "open.topic"),
        ({"topic": "t", "group": "g", "credit": 1, "visibility_ms": -1}, "open.visibility_ms"),
        ({"topic": "t", "group": "g", "credit": 1, "consumer": "x" * 256}, "open.consumer"),
        ({"topic": "t", "group": "g", "credit": 1, "start": 9}, "open.start"),
    ],
)
async def test_invalid_fields_are_named(broker: Broker, opened: dict[str, object], field: str) -> None:
    async with connected(broker.grpc_address) as client:
        stream = client.stream()
        await stream.write(queue_pb2.WorkRequest(open=queue_pb2.WorkOpen(**opened)))  # type: ignore[arg-type]
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stream.read()
    found = refusal(failed.value)
    assert (failed.value.code(), found.fields) == (grpc.StatusCode.INVALID_ARGUMENT, [field])


async def test_an_unknown_topic_is_not_found(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        work = await client.work("missing")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await work.response()
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    assert refusal(failed.value).reason == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_a_stream_that_does_not_open_a_queue_is_refused(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        stream = client.stream()
        await stream.write(queue_pb2.WorkRequest(ack=[1]))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stream.read()
    assert refusal(failed.value).fields == ["open"]


async def test_unknown_deliveries_are_answered_up_to_a_limit(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, [])
    async with connected(broker.grpc_address) as client:
        work = await client.work(topic)
        await work.send(ack=range(1, 10_001))
        settled, errors = await work.results(10_000)
        assert (settled, len(errors)) == ([], 10_000)
        await work.send(ack=range(1, 10_002))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await work.response()
    assert refusal(failed.value).fields == ["ack"]
