"""A topic that is deleted and created again starts fresh, even if no client hears of the deletion.

And one that exists, but not here, is not taken for a deleted one.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.delay.service import DelayedMessage
from alpacamq.broker.later import Later
from alpacamq.broker.publishing import Message, Published
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.messages import CommitRequest, FetchOffsetsRequest, OffsetToCommit
from alpacamq.model.errors import AlpacaError, StaleReceipt
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.queues.messages import Action, ReceiveReply, ReceiveRequest
from tests.waiting import soon

from .open_brokers import running, sent, stored
from .queue_steps import ORDERS, acknowledge, settle, values, waits
from .transactions import begun, end

GROUP = "readers"
HOUR_MS = 3_600_000
ORDERS_0 = TopicPartition(TopicName("orders"), 0)


@asynccontextmanager
async def unaware(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """Run a broker whose coordinators are not told of deleted topics, as on another node."""

    async def topic_deleted(self: Broker, topic: str) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(Broker, "topic_deleted", topic_deleted)
        async with running(path) as broker:
            yield broker


async def recreate(broker: Broker, topic: str) -> None:
    await broker.topics.delete(topic)
    await broker.topics.create(topic, partitions=1)


async def commit(broker: Broker, offset: int) -> None:
    offsets = (OffsetToCommit(topic="orders", partition=0, offset=offset),)
    results = await broker.groups.ask(CommitRequest(group=GROUP, offsets=offsets))
    assert [each.error for each in results.partitions] == [None]


async def committed(broker: Broker) -> int:
    """Return the committed offset; all offsets of the group, and its lag, are of the same topic."""
    reply = await broker.groups.ask(FetchOffsetsRequest(group=GROUP, partitions=(ORDERS_0,)))
    found = reply.offsets[0].offset
    everything = await broker.groups.ask(FetchOffsetsRequest(group=GROUP))
    assert [each.offset for each in everything.offsets] == ([found] if found >= 0 else [])
    assert [lag.reached for lag in await broker.lags.of([GROUP])] == ([found] if found >= 0 else [])
    return found


async def test_groups_are_examined_once_for_topics_that_are_deleted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"topic-{number}" for number in range(40)]
    examined = []
    groups_with_offsets = GroupCoordinator.groups_with_offsets

    def counted(coordinator: GroupCoordinator) -> Iterator[tuple[str, int]]:
        examined.append(coordinator)
        return groups_with_offsets(coordinator)

    async with running(tmp_path) as broker:
        await asyncio.gather(*(broker.topics.create(topic, partitions=1) for topic in topics))
        offsets = tuple(OffsetToCommit(topic=topic, partition=0, offset=0) for topic in topics)
        await broker.groups.ask(CommitRequest(group=GROUP, offsets=offsets))
        monkeypatch.setattr(GroupCoordinator, "groups_with_offsets", counted)
        await asyncio.gather(*(broker.topics.delete(topic) for topic in topics))
        assert (await broker.groups.ask(FetchOffsetsRequest(group=GROUP))).offsets == ()
        hosts = len(set(map(id, examined)))
        assert len(examined) < len(topics) * hosts, "less than once for each topic"


async def test_a_recreated_topic_has_no_committed_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with unaware(tmp_path, monkeypatch) as broker:
        await broker.topics.create("orders", partitions=1)
        await sent(broker, "orders", *[b"old"] * 5)
        await commit(broker, 5)
        await recreate(broker, "orders")
        await sent(broker, "orders", *[b"new"] * 9)
        assert await committed(broker) == -1
    async with running(tmp_path) as broker:
        assert await committed(broker) == -1
        assert GROUP not in await broker.groups.group_ids()  # nothing is left of the old topic
        await commit(broker, 2)
        assert await committed(broker) == 2
    async with running(tmp_path) as broker:
        assert await committed(broker) == 2


async def test_a_recreated_topic_has_no_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with unaware(tmp_path, monkeypatch) as broker:
        await broker.topics.create("orders", partitions=1)
        await sent(broker, "orders", *[b"old"] * 5)
        *done, leased = await broker.queues.receive(ORDERS, max_messages=4, wait_ms=5000)
        await acknowledge(broker, *done)
        await recreate(broker, "orders")
        await sent(broker, "orders", b"first", b"second")
        (error,) = await settle(broker, Action.ACK, leased)
        assert isinstance(error, StaleReceipt)
        (first,) = await broker.queues.receive(ORDERS, max_messages=1, wait_ms=5000)
        assert first.record.value == b"first"
        await acknowledge(broker, first)
        await recreate(broker, "orders")
        waiting = asyncio.create_task(broker.queues.receive(ORDERS, wait_ms=60_000))
        await soon(lambda: waits(broker))
        await sent(broker, "orders", b"arrives")
        async with asyncio.timeout(10):
            assert values(await waiting) == [b"arrives"]
        await recreate(broker, "orders")
        await sent(broker, "orders", b"third", b"fourth")
    async with running(tmp_path) as broker:
        received = await broker.queues.receive(ORDERS, max_messages=9, wait_ms=5000)
        assert values(received) == [b"third", b"fourth"]


@contextmanager
def absent(broker: Broker, topic: str) -> Iterator[None]:
    """Hide the partitions of a topic that exists, as if other brokers had them."""
    partitions = broker.replicas._led
    keys = (topic.encode(), broker.topics.image.topic(topic).id.bytes)
    hidden = {key: partitions.pop(key) for key in keys}
    try:
        yield
    finally:
        partitions.update(hidden)


async def test_leased_messages_that_cannot_be_read_here_are_not_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await sent(broker, "orders", b"a", b"b")
        (first,) = await broker.queues.receive(ORDERS, max_messages=1, wait_ms=5000)
        ask_later = broker.queues._host.ask_later

        def lose_partition(request: ReceiveRequest) -> Later[ReceiveReply]:
            patch.setattr(broker.queues._host, "ask_later", ask_later)
            replied = ask_later(request)
            assert replied is not None
            return replied.map(lose)

        def lose(leases: ReceiveReply) -> ReceiveReply:
            hiding.enter_context(absent(broker, "orders"))
            return leases

        with ExitStack() as hiding, monkeypatch.context() as patch:
            patch.setattr(broker.queues._host, "ask_later", lose_partition)
            with pytest.raises(AlpacaError):
                await broker.queues.receive(ORDERS, max_messages=1)
            with pytest.raises(AlpacaError):
                await broker.queues.purge(ORDERS)
            with pytest.raises(AlpacaError):
                await broker.queues._host.reader.read("orders", [(0, 0)])
        (second,) = await broker.queues.receive(ORDERS, max_messages=2, wait_ms=5000)
        assert second.record.value == b"b"
        await acknowledge(broker, first, second)


async def test_delayed_messages_wait_for_a_partition_that_is_not_here(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await broker.topics.create("others", partitions=1)
        now_ms = broker.clock.now_ms()
        await broker.delays.schedule(
            [
                DelayedMessage(
                    topic=topic, partition=0, due_ms=now_ms + delay_ms, key=None, value=b"later", headers=()
                )
                for topic, delay_ms in (("orders", 50), ("orders", HOUR_MS), ("others", 50))
            ]
        )
        with absent(broker, "orders"):
            await broker.topics.create("unrelated", partitions=1)
            await broker.topics.delete("unrelated")  # deleted topics are looked for

            async def is_delivered() -> bool:
                return bool(stored(broker, "others"))

            await soon(is_delivered)
            assert (await broker.delays.stats()).dropped_total == 0

        async def is_late() -> bool:
            return [record.value for record in stored(broker, "orders")] == [b"later"]

        await soon(is_late)
        assert len(await broker.delays.waiting("orders")) == 1


async def test_a_transaction_ends_in_a_partition_that_was_not_here(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        producer = await begun(broker, "writer")
        (written,) = await broker.publisher.publish(
            "orders", [Message(value=b"v", partition=0)], producer=producer
        )
        assert isinstance(written, Published)
        with absent(broker, "orders"):
            with pytest.raises(AlpacaError):  # its records cannot be flushed
                await end(broker, producer, committed=True)
            await end(broker, producer, committed=False)
        partition = broker.topics.partition("orders", 0)

        async def is_ended() -> bool:
            return partition.last_stable_offset == partition.log.end_offset == 2

        await soon(is_ended)
