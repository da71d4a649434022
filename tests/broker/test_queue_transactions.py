"""Queues deliver committed messages only, once they are committed."""

import asyncio
from pathlib import Path

from alpacamq.broker.publishing import Message
from alpacamq.queues.messages import QueueId
from tests.waiting import soon

from .open_brokers import running, sent
from .queue_steps import ORDERS, values, waits
from .transactions import begun, end


async def test_messages_of_an_aborted_transaction_are_not_delivered(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        aborted, committed = await begun(broker, "one"), await begun(broker, "two")
        for number in range(3):
            await broker.publisher.publish("orders", [Message(value=b"never")], producer=aborted)
            message = Message(value=str(number).encode())
            await broker.publisher.publish("orders", [message], producer=committed)
        await end(broker, aborted, committed=False)
        await end(broker, committed, committed=True)
        received = await broker.queues.receive(ORDERS, wait_ms=10_000)
        assert values(received) == [b"0", b"1", b"2"]
    async with running(tmp_path) as broker:
        await sent(broker, "orders", b"3")
        assert values(await broker.queues.receive(QueueId("later", "orders"))) == [b"0", b"1", b"2", b"3"]


async def test_a_waiting_receive_returns_when_the_transaction_commits(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        producer = await begun(broker, "one")
        receiving = asyncio.create_task(broker.queues.receive(ORDERS, wait_ms=20_000))
        await soon(lambda: waits(broker))
        await broker.publisher.publish("orders", [Message(value=b"a")], producer=producer)
        await sent(broker, "orders", b"b")
        assert await waits(broker)
        await end(broker, producer, committed=True)
        assert values(await receiving) == [b"a", b"b"]
