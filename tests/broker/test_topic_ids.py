"""A topic that is deleted and created again starts fresh, also if nobody hears of the deletion."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.coordinator.messages import CommitRequest, FetchOffsetsRequest, OffsetToCommit
from alpacamq.model.ids import TopicName, TopicPartition

from .open_brokers import running, sent

GROUP = "readers"
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
