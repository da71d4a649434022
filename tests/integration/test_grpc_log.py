"""Producing and reading over gRPC through any node of a cluster, also while nodes are killed."""

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from alpacamq.model.batch import Codec
from alpacamq.model.records import Record, write_batch
from alpacamq.v1 import log_pb2 as pb
from alpacamq.v1 import producer_pb2 as p
from tests.api.grpc.client import connected
from tests.api.grpc.streams import (
    Produce,
    Subscription,
    create_topic,
    init_producer,
    read_all,
    record,
    send,
)

from .nodes import Nodes


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    root = tmp_path_factory.mktemp("nodes")
    nodes = Nodes(root, 3, "replication_factor = 3\n")
    try:
        nodes.start()
        yield nodes
    finally:
        for node in nodes:
            node.end()


async def test_records_are_written_and_read_through_every_node(nodes: Nodes, topic: str) -> None:
    async with connected(nodes.by_id[1].grpc) as client:
        await create_topic(client, topic, 3)
    for node in nodes:
        async with connected(node.grpc) as client:
            stream = Produce(client)
            for number in range(20):
                records = [record(b"%d %d" % (node.id, number), partition=each) for each in range(3)]
                await stream.write(number, topic, *records)
            for response in await stream.end():
                assert not response.error.code, response.error
                assert not response.result.errors, response.result.errors
    for node in nodes:
        async with connected(node.grpc) as client:
            found = await read_all(client, topic)
            assert len(found) == 180
            for partition in range(3):
                for writer in nodes:
                    mine = [each.value.split() for each in found if each.partition == partition]
                    numbers = [int(number) for name, number in mine if int(name) == writer.id]
                    assert numbers == list(range(20))


async def test_encoded_batches_and_sequences_go_to_the_leader_in_order(nodes: Nodes, topic: str) -> None:
    """Pipelined requests of an idempotent producer through a node that does not lead the partition."""
    async with connected(nodes.by_id[1].grpc) as client:
        await create_topic(client, topic, 1)
    for node in nodes:
        async with connected(node.grpc) as client:
            producer = await init_producer(client)
            stream = Produce(client)
            for number in range(30):
                state = p.ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    base_sequence=number,
                )
                await stream.write(number, topic, record(b"%d" % number), producer=state)
            responses = await stream.end()
            assert [each.result.errors for each in responses] == [[]] * 30
            batch = bytes(write_batch([Record(0, 0, None, b"encoded")], codec=Codec.ZSTD))
            stream = Produce(client)
            await stream.write(1, topic, batches=[p.EncodedBatch(partition=0, data=batch)])
            (response,) = await stream.end()
            assert not response.result.errors, response
    async with connected(nodes.by_id[1].grpc) as client:
        values = [each.value for each in await read_all(client, topic)]
    assert values == [*(b"%d" % number for number in range(30)), b"encoded"] * 3


async def test_members_of_a_group_are_on_different_nodes(nodes: Nodes, topic: str) -> None:
    async with connected(nodes.by_id[1].grpc) as first, connected(nodes.by_id[2].grpc) as second:
        await create_topic(first, topic, 4)
        one = await Subscription.open(first, topic, topic)
        await one.assigned(4)
        other = await Subscription.open(second, topic, topic)
        await one.next("revoked")
        await one.send(released=pb.Released())
        await other.assigned(2)
        for partition in range(4):
            await send(first, topic, record(b"%d" % partition, partition=partition))
        values = [each.value for member in (one, other) for each in await member.records(2)]
        assert sorted(values) == [b"0", b"1", b"2", b"3"]
        for member in (one, other):
            result = await member.commit()
            assert [each.error.code for each in result.offsets] == [0, 0]
            assert await member.end() is grpc.StatusCode.OK


async def test_acknowledged_records_survive_a_killed_leader_and_none_is_double(
    nodes: Nodes, topic: str
) -> None:
    count = 150
    async with connected(nodes.by_id[1].grpc) as client:
        await create_topic(client, topic, 1, min_insync_replicas="2")
        producer = await init_producer(client)
    leader = next(node for node in nodes if node.id == _leader(nodes, topic))
    others = [node for node in nodes if node is not leader]
    acknowledged = 0
    attempts = 0
    while acknowledged < count:
        attempts += 1
        assert attempts < 100
        async with connected(others[attempts % 2].grpc) as client:
            stream = Produce(client)
            sent = acknowledged
            try:
                while acknowledged < count:
                    while sent < min(acknowledged + 4, count):
                        state = p.ProducerState(
                            producer_id=producer.producer_id,
                            producer_epoch=producer.producer_epoch,
                            base_sequence=sent,
                        )
                        await stream.write(sent, topic, record(b"%d" % sent), producer=state)
                        sent += 1
                    response = await stream.response()
                    if response.error.code or response.result.errors:
                        break  # its outcome is unknown, or it came too early: sent again
                    if response.correlation_id != acknowledged:
                        break
                    acknowledged += 1
                    if acknowledged == 50:
                        await asyncio.to_thread(leader.kill)
            except grpc.aio.AioRpcError:
                continue
    try:
        async with connected(others[0].grpc) as client:
            values = [int(each.value) for each in await read_all(client, topic)]
        assert values == list(range(count))
    finally:
        leader.start()


def _leader(nodes: Nodes, topic: str) -> Any:
    found = httpx.get(f"http://{nodes.by_id[1].http}/topics/{topic}", timeout=30).json()
    return found["partitions"][0]["leader"]
