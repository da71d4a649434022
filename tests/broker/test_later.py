"""Results that come later: their reader, changes, cancellation, and what requests leave behind."""

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.later import Later
from alpacamq.broker.publishing import Message
from alpacamq.broker.queue.service import Receipted
from alpacamq.model.errors import InvalidRequest
from alpacamq.queues.messages import Action, QueueId

from .open_brokers import running

ORDERS = QueueId("workers", "orders")


def test_the_reader_gets_the_changed_result_at_once():
    later: Later[int] = Later()
    heard: list[object] = []
    later.map(lambda number: number + 1).then(str).when_done(heard.append)
    assert heard == []
    later.set_result(1)
    assert heard == ["2"]


def test_a_known_result_is_changed_and_passed_on_at_once():
    later: Later[int] = Later()
    later.set_result(1)
    heard: list[object] = []
    later.map(str).when_done(heard.append)
    assert heard == ["1"]


def test_what_a_change_raises_is_the_result_and_is_not_mapped():
    later: Later[int] = Later()
    heard: list[object] = []
    error = InvalidRequest("no")

    def refuse(_number: int) -> int:
        raise error

    later.map(refuse).map(str).when_done(heard.append)
    later.set_result(1)
    assert heard == [error]


def test_nothing_is_passed_on_after_a_cancellation():
    cancelled: list[bool] = []
    later: Later[int] = Later(lambda: cancelled.append(True))
    heard: list[object] = []
    later.map(str).when_done(heard.append)
    later.cancel()
    later.cancel()
    later.set_result(1)
    assert (heard, cancelled) == ([], [True])
    assert later.done()


async def test_it_can_be_awaited_before_and_after_it_is_known():
    before: Later[int] = Later()
    waiting = asyncio.ensure_future(before)
    await asyncio.sleep(0)
    before.set_result(1)
    after: Later[int] = Later()
    after.set_result(2)
    assert [await waiting, await after] == [1, 2]
    with pytest.raises(InvalidRequest):
        await Later.of(InvalidRequest("no"))


async def test_a_coroutine_does_the_rest():
    async def rest() -> int:
        return 1

    later: Later[int] = Later()
    changed = later.map(lambda number: number + 1)
    later.set_result(rest())
    assert await changed == 2


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_reader_that_is_cancelled_goes_without_the_result(is_known: bool):
    """Also if it was known already and had not been read."""
    cancelled: list[bool] = []
    later: Later[int] = Later(lambda: cancelled.append(True))
    reading = asyncio.ensure_future(later)
    await asyncio.sleep(0)
    if is_known:
        later.set_result(1)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    assert cancelled == [True]


async def publish(broker: Broker) -> None:
    await broker.publisher.publish("orders", [Message(value=b"a")])


async def receive_and_settle(broker: Broker) -> None:
    (delivery,) = await broker.queues.receive(ORDERS, max_messages=1, wait_ms=5000)
    await broker.queues.settle([Receipted(receipt=delivery.receipt, action=Action.ACK)])


@pytest.mark.parametrize("work", [publish, receive_and_settle])
async def test_requests_leave_nothing_for_the_garbage_collector(
    tmp_path: Path, work: Callable[[Broker], Awaitable[None]]
):
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await broker.publisher.publish("orders", [Message(value=b"a")] * 30)
        await work(broker)
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(20):
                await work(broker)
            gc.collect()
            found = Counter(type(each).__name__ for each in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    kinds = (
        "Append",
        "Appended",
        "Publication",
        "Later",
        "Acquired",
        "Settlement",
        "Outcome",
        "ReceiveReply",
    )
    assert {name: found[name] for name in kinds if found[name]} == {}
