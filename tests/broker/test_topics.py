"""The topics of a broker: restarts, and failed changes."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.partition.leader import append
from alpacamq.log.disk import SystemDisk
from alpacamq.model.errors import DiskFull, PartitionNotReady, PolicyViolation, TopicExists
from alpacamq.model.ids import BrokerId
from alpacamq.model.records import Record, write_batch
from alpacamq.model.topics import OFFSETS_TOPIC
from tests.waiting import soon


class NoRoomForDirectories(SystemDisk):
    """The real disk, which fails to create directories while it is `full`."""

    full = False

    def make_directory(self, path: Path) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().make_directory(path)


class NoDescriptors(SystemDisk):
    """The real disk, which has no descriptors to sync while it is `short`."""

    short = False
    postponed = 0

    def sync(self, descriptor: int) -> None:
        if self.short:
            self.postponed += 1
            raise OSError(24, "Too many open files")
        super().sync(descriptor)


class CountedSyncs(SystemDisk):
    """The real disk; counts the syncs of files."""

    syncs = 0

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        super().sync(descriptor)


@asynccontextmanager
async def running(path: Path, disk: SystemDisk | None = None) -> AsyncIterator[Broker]:
    broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=path), disk=disk)
    broker.open()
    try:
        yield broker
    finally:
        await broker.close()


async def test_topics_and_their_settings_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await broker.topics.create("kept", partitions=2, overrides={"retention.ms": "5"})
        await broker.topics.grow("kept", 4)
        await broker.topics.create("gone")
        await broker.topics.delete("gone")
    async with running(tmp_path) as broker:
        assert [*broker.topics.image.topics] == ["kept"]
        assert len(broker.topics.partitions_of("kept")) == 4
        assert broker.topics.partition("kept", 3).config.retention_ms == 5
        assert broker.topics.find(topic.id.bytes, 0) is broker.topics.partition("kept", 0)


async def test_topics_created_or_deleted_together_share_the_syncs_of_the_metadata_log(tmp_path: Path) -> None:
    disk = CountedSyncs()
    names = [f"t{number}" for number in range(100)]
    async with running(tmp_path, disk) as broker:
        for change in (broker.topics.create, broker.topics.delete, broker.topics.create):
            before = disk.syncs
            await asyncio.gather(*map(change, names))
            assert disk.syncs - before < len(names) / 5
    async with running(tmp_path) as broker:
        assert sorted(broker.topics.image.topics) == sorted(names)


async def test_a_recreated_topic_does_not_see_the_data_of_the_deleted_one(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("t", partitions=1)
        await append(broker.topics.partition("t", 0), write_batch([Record(0, 1, None, b"old")]))
        await broker.topics.delete("t")
        await broker.topics.create("t", partitions=1)
        assert broker.topics.partition("t", 0).high_watermark == 0


async def test_partitions_that_could_not_be_opened_are_opened_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic exists: the image says so, on all brokers."""
    monkeypatch.setattr("alpacamq.broker.topics.REOPEN_SECONDS", 0.01)
    disk = NoRoomForDirectories()
    async with running(tmp_path, disk) as broker:
        await broker.topics.create("grown", partitions=1)
        disk.full = True
        with pytest.raises(DiskFull):
            await broker.topics.create("t")
        with pytest.raises(DiskFull):
            await broker.topics.grow("grown", 3)
        with pytest.raises(PartitionNotReady):
            broker.topics.partition("t", 0)
        disk.full = False

        async def are_open() -> bool:
            return [len(broker.topics.partitions_of(name)) for name in ("t", "grown")] == [3, 3]

        await soon(are_open)
        with pytest.raises(TopicExists):
            await broker.topics.create("t")


async def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("t", partitions=1)
        await broker.topics.create("other", dry_run=True)
        await broker.topics.grow("t", 9, dry_run=True)
        await broker.topics.configure("t", lambda _: {"retention.ms": "5"}, dry_run=True)
        with pytest.raises(TopicExists):
            await broker.topics.create("t", dry_run=True)
        assert {name: topic.partitions for name, topic in broker.topics.image.topics.items()} == {"t": 1}
        assert not broker.topics.image.topic("t").overrides


async def test_an_internal_topic_cannot_grow(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create_internal(OFFSETS_TOPIC, partitions=2, overrides={})
        with pytest.raises(PolicyViolation, match="internal"):
            await broker.topics.grow(OFFSETS_TOPIC, 3)
        assert broker.topics.image.topic(OFFSETS_TOPIC).partitions == 2


async def test_an_internal_topic_cannot_be_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create_internal(OFFSETS_TOPIC, partitions=1, overrides={})
        with pytest.raises(PolicyViolation, match="internal"):
            await broker.topics.delete(OFFSETS_TOPIC)


async def test_producer_ids_are_unique_across_restarts(tmp_path: Path) -> None:
    given: list[int] = []
    for _ in range(3):
        async with running(tmp_path) as broker:
            given += [await broker.producer_ids.new() for _ in range(1500)]
    assert len(set(given)) == len(given)


async def test_a_cancelled_change_is_completed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        changes: list[Coroutine[Any, Any, object]] = [
            broker.topics.create("made", partitions=5),
            broker.topics.grow("made", 7),
            broker.topics.delete("made"),
        ]
        for change, partitions in zip(changes, (5, 7, 0), strict=True):
            task = asyncio.create_task(change)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            await broker.topics.finish()
            assert len(broker.topics.partitions_of("made")) == partitions
        await broker.topics.create("made", partitions=1)


async def test_a_change_is_not_refused_because_its_flush_is_postponed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is in the log, so it would take effect at the next start."""
    monkeypatch.setattr("alpacamq.broker.partition.group_commit.PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr("alpacamq.broker.partition.group_commit.RETRY_MS", 1)
    disk = NoDescriptors()
    async with running(tmp_path, disk) as broker:
        disk.short = True
        creation = asyncio.create_task(broker.topics.create("t"))
        await soon(lambda: asyncio.sleep(0, disk.postponed >= 5))
        assert not creation.done()
        assert "t" not in broker.topics.image.topics
        disk.short = False
        await creation
        assert "t" in broker.topics.image.topics
