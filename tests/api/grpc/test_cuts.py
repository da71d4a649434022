"""Networks that fail in the middle of streams of Log: no record is missing, or comes after its commit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import grpc
import pytest

from alpacamq.v1 import groups_pb2, log_pb2
from tests.client.api.relay import Relay
from tests.secured import ADMIN
from tests.waiting import soon

from .client import connected
from .serving import GrpcBroker, served
from .streams import Subscription, read

RECORDS = 2000
CUTS = 10
# After how many bytes of responses connections are reset: within handshakes, headers, records and commits.
CUT_AFTER = (30, 131, 20_011, 300, 9_000, 30_003, 4_097)
_OURS = "LogService", "Subscription"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[GrpcBroker]:
    async with served(tmp_path / "data") as broker:
        await broker.publish("orders", [f"{number:0100}" for number in range(RECORDS)])
        yield broker


async def _nothing_is_left(broker: GrpcBroker) -> None:
    """Wait until the broker has neither a connection nor a task of a stream."""

    def is_idle() -> bool:
        names = [str(getattr(task.get_coro(), "__qualname__", "")) for task in asyncio.all_tasks()]
        return not broker.connections and not any(name.startswith(_OURS) for name in names)

    await soon(is_idle)


async def test_a_read_that_is_cut_continues_where_it_was(broker: GrpcBroker) -> None:
    key = await broker.key_of(ADMIN)
    values: list[int] = []
    next_offset = 0
    async with Relay(broker.address) as relay:
        limits = cycle(CUT_AFTER)
        while len(values) < RECORDS:
            relay.response_bytes_left = next(limits) if relay.cuts < CUTS else None
            async with connected(relay.address) as client:
                start = log_pb2.Position(offset=next_offset)
                stream = read(client, "orders", key, start=start, max_bytes=8192)
                with suppress(grpc.aio.AioRpcError):
                    while len(values) < RECORDS:
                        response = await stream.read()
                        values += [int(each.value) for each in response.records]
                        (position,) = response.positions
                        next_offset = position.next_offset
        assert relay.cuts >= CUTS
    assert values == list(range(RECORDS))
    await _nothing_is_left(broker)


async def test_a_subscription_that_is_cut_gets_nothing_again_that_it_has_committed(
    broker: GrpcBroker,
) -> None:
    key = await broker.key_of(ADMIN)
    values: set[int] = set()
    # The offset of the last commit that was confirmed, and of the last one that was sent.
    confirmed = sent = 0

    async def work(member: Subscription) -> None:
        nonlocal confirmed, sent
        await member.send(open=log_pb2.SubscribeOpen(group="g", topics=["orders"], max_bytes=8192))
        starts = await member.assigned(1)
        assert confirmed <= starts["orders", 0] <= sent
        expected = starts["orders", 0]
        while expected < RECORDS:
            found = await member.records(1)
            assert [each.offset for each in found] == list(range(expected, expected + len(found)))
            expected += len(found)
            values.update(int(each.value) for each in found)
            sent = expected
            committed = await member.commit(("orders", 0, sent))
            assert not any(each.error.code for each in committed.offsets)
            confirmed = sent
        await member.end()

    async with Relay(broker.address) as relay:
        limits = cycle(CUT_AFTER)
        while confirmed < RECORDS:
            relay.response_bytes_left = next(limits) if relay.cuts < CUTS else None
            async with connected(relay.address) as client:
                # Cut while it waits, or before it writes.
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await work(Subscription(client, key))
        assert relay.cuts >= CUTS
    assert values == set(range(RECORDS))
    async with connected(broker.address) as client:
        describe = client.unary(
            "/alpacamq.v1.Groups/DescribeGroup",
            groups_pb2.DescribeGroupRequest,
            groups_pb2.GroupDescription,
        )

        async def has_no_member() -> bool:
            group: Any = await describe(groups_pb2.DescribeGroupRequest(group="g"), metadata=key)
            return not group.members

        has_left: bool = await soon(has_no_member)
        assert has_left
    await _nothing_is_left(broker)
