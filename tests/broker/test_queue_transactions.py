"""Queues deliver committed messages only, once they are committed, unless they read uncommitted ones."""

import asyncio
from pathlib import Path

import pytest

from alpacamq.broker.publishing import Message
from alpacamq.model.errors import PartitionNotReady
from alpacamq.queues.messages import Action, QueueId, Settlement, ShareTerms, Start
from tests.waiting import soon

from .open_brokers import running, sent, stored
from .queue_steps import ORDERS, values, waits
from .transactions import begun, end, end_with_new_epoch


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


async def test_a_message_behind_an_open_transaction_is_not_missing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        producer = await begun(broker, "one")
        await broker.publisher.publish("orders", [Message(value=b"a")], producer=producer)
        await sent(broker, "orders", b"b")
        reader = broker.queues._host.reader
        with pytest.raises(PartitionNotReady):
            await reader.read("orders", [(0, 1)])
        assert (await reader.read("orders", [(0, 1)], is_committed=False))[0, 1].value == b"b"
        await end_with_new_epoch(broker, producer, committed=True)
        assert (await reader.read("orders", [(0, 1)]))[0, 1].value == b"b"


@pytest.mark.parametrize("is_aborted", [False, True])
async def test_a_queue_that_reads_uncommitted_messages_delivers_and_dead_letters_them(
    tmp_path: Path, is_aborted: bool
) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        producer = await begun(broker, "one")
        await broker.publisher.publish("orders", [Message(value=b"a")], producer=producer)
        await sent(broker, "orders", b"b")
        if is_aborted:
            await end_with_new_epoch(broker, producer, committed=False)
        terms = ShareTerms(max_deliveries=5, is_committed=False)
        acquired = await broker.queues.acquire(
            ORDERS, consumer="c", partitions=(0,), max_messages=1, start=Start.EARLIEST, share=terms
        )
        assert [each.offset for each in acquired] == [0]
        assert values(await broker.queues.receive(ORDERS)) == [b"b"]
        rejected = [Settlement(0, offset, Action.REJECT) for offset in (0, 1)]
        assert await broker.queues.settle_acquired(ORDERS, rejected) == [None, None]

        async def is_moved() -> bool:
            (stats,) = (await broker.queues.describe(ORDERS)).partitions
            return not stats.dead_lettering

        await soon(is_moved)
        assert [record.value for record in stored(broker, "orders.dlq")] == [b"a", b"b"]
