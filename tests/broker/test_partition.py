"""The leader of a partition: when appends are acknowledged and become visible."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.partition.appends import Append
from alpacamq.broker.partition.group_commit import GroupCommit
from alpacamq.broker.partition.leader import Partition, append
from alpacamq.cluster.partition_state import PartitionState
from alpacamq.log.data_directory import DataDirectory, LastStop
from alpacamq.log.disk import SystemDisk
from alpacamq.model.batch import read_header
from alpacamq.model.errors import (
    DataInDoubt,
    DiskFull,
    FencedLeaderEpoch,
    OutOfOrderSequence,
    UnknownLeaderEpoch,
    UnknownTopic,
)
from alpacamq.model.ids import BrokerId, TopicId, TopicName, TopicPartition
from alpacamq.model.records import Record, write_batch
from tests.log.logs import a_storage, open_log
from tests.waiting import soon

from .open_brokers import BreakableDisk, running


class CountingDisk(SystemDisk):
    """The real disk, with syncs that are counted, held or failing."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.failing = False

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        if self.failing:
            raise OSError(5, "Input/output error")
        super().sync(descriptor)


def batch(value: bytes = b"v") -> bytearray:
    return write_batch([Record(0, 1000, b"k", value)])


def numbered(sequence: int) -> bytearray:
    """Return a batch of one record of an idempotent producer."""
    return write_batch([Record(0, 1000, b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=sequence)


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.fixture
async def broker(tmp_path: Path, disk: CountingDisk) -> AsyncIterator[Broker]:
    broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path), disk=disk)
    broker.open()
    yield broker
    await broker.close()


async def partition_of(broker: Broker, **overrides: str) -> Partition:
    await broker.topics.create(
        "t", partitions=1, overrides={name.replace("_", "."): value for name, value in overrides.items()}
    )
    return broker.topics.partition("t", 0)


async def test_an_append_is_visible_at_once_if_fsync_is_deferred(broker: Broker) -> None:
    partition = await partition_of(broker)
    await append(partition, batch())
    assert partition.high_watermark == 1
    assert partition.log.flushed_offset == 0


async def test_an_append_is_visible_only_once_durable_if_every_batch_is_synced(broker: Broker) -> None:
    partition = await partition_of(broker, flush_messages="1")
    data = batch()
    done = asyncio.Event()
    partition.stage(Append(data, read_header(data), done.set))
    partition.commit()
    assert partition.high_watermark == 0
    assert partition.log.end_offset == 1
    await done.wait()
    assert partition.high_watermark == partition.log.flushed_offset == 1


async def test_producers_that_wait_together_share_one_sync(broker: Broker, disk: CountingDisk) -> None:
    partition = await partition_of(broker, flush_messages="1")
    await append(partition, batch())  # the first one also syncs the names of new files
    before = disk.syncs
    await asyncio.gather(*(append(partition, batch()) for _ in range(100)))
    # The first append starts a sync at once; all others wait for it and share the next.
    assert disk.syncs - before == 2
    assert partition.high_watermark == 101


async def test_after_a_failed_sync_nothing_is_acknowledged(broker: Broker, disk: CountingDisk) -> None:
    partition = await partition_of(broker, flush_messages="1")
    await append(partition, batch())
    disk.failing = True
    with pytest.raises(DataInDoubt):
        await append(partition, batch())
    disk.failing = False
    with pytest.raises(DataInDoubt):
        await append(partition, batch())
    assert partition.high_watermark == 1


async def test_a_failed_sync_does_not_affect_other_partitions(broker: Broker, disk: CountingDisk) -> None:
    await broker.topics.create("pair", partitions=2, overrides={"flush.messages": "1"})
    one, other = (broker.topics.partition("pair", index) for index in (0, 1))
    disk.failing = True
    with pytest.raises(DataInDoubt):
        await append(one, batch())
    disk.failing = False
    assert (await append(other, batch())).base_offset == 0


async def test_batches_behind_one_that_was_refused_have_its_error(tmp_path: Path) -> None:
    """Out of order, a producer begins a new epoch: duplicates in other partitions are not recognised then."""
    disk = BreakableDisk()
    async with running(tmp_path, disk=disk) as broker:
        partition = await partition_of(broker)
        await append(partition, numbered(0))
        disk.full = True
        for sequence in (1, 2, 3):
            with pytest.raises(DiskFull):
                await append(partition, numbered(sequence))
        disk.full = False
        await append(partition, batch())
        with pytest.raises(DiskFull):
            await append(partition, numbered(3))
        for sequence in (1, 2, 3):
            assert (await append(partition, numbered(sequence))).next_offset == sequence + 2
        assert (await append(partition, numbered(2))).duplicate


async def test_a_gap_long_after_a_refused_write_is_out_of_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BreakableDisk()
    async with running(tmp_path, disk=disk) as broker:
        partition = await partition_of(broker)
        await append(partition, numbered(0))
        disk.full = True
        with pytest.raises(DiskFull):
            await append(partition, numbered(1))
        disk.full = False
        monkeypatch.setattr("alpacamq.broker.partition.leader.REFUSED_RETRY_SECONDS", -1)
        with pytest.raises(OutOfOrderSequence):
            await append(partition, numbered(2))
        # Nothing was written, so the disk may still be full.
        assert isinstance(partition.refusal, DiskFull)
        await append(partition, numbered(1))
        assert partition.refusal is None


async def test_flush_to_ignores_the_flush_settings_of_the_topic(broker: Broker, disk: CountingDisk) -> None:
    partition = await partition_of(broker, flush_ms=str(2**63 - 1))
    await append(partition, batch())
    before = disk.syncs
    await asyncio.gather(*(partition.flush_to(1) for _ in range(100)))
    assert partition.log.flushed_offset == 1
    assert disk.syncs - before == 1
    await partition.flush_to(1)
    assert disk.syncs - before == 1


async def test_flush_to_during_a_flush_waits_for_the_next_one(broker: Broker) -> None:
    partition = await partition_of(broker)
    await append(partition, batch())
    first = asyncio.create_task(partition.flush_to(1))
    await asyncio.sleep(0)
    await append(partition, batch())
    await partition.flush_to(2)
    assert partition.log.flushed_offset == 2
    await first


async def test_flush_to_fails_if_the_sync_fails(broker: Broker, disk: CountingDisk) -> None:
    partition = await partition_of(broker)
    await append(partition, batch())
    disk.failing = True
    with pytest.raises(DataInDoubt):
        await partition.flush_to(1)
    disk.failing = False
    with pytest.raises(DataInDoubt):
        await partition.flush_to(1)


async def test_flush_to_fails_when_the_topic_is_deleted(broker: Broker) -> None:
    partition = await partition_of(broker)
    await append(partition, batch())
    flushing = asyncio.create_task(partition.flush_to(2))
    await asyncio.sleep(0)
    await broker.topics.delete("t")
    with pytest.raises(UnknownTopic):
        await flushing


async def test_deleting_a_topic_wakes_its_watchers(broker: Broker) -> None:
    partition = await partition_of(broker)
    woken: list[int] = []
    partition.watch("reader", woken.append)
    await broker.topics.delete("t")
    assert woken
    with pytest.raises(UnknownTopic):
        broker.topics.partition("t", 0)


async def test_a_client_of_another_leader_epoch_is_refused(broker: Broker) -> None:
    partition = await partition_of(broker)
    partition.check_epoch(-1)
    partition.check_epoch(0)
    with pytest.raises(UnknownLeaderEpoch):
        partition.check_epoch(1)


async def test_records_lost_in_a_crash_begin_a_new_leader_epoch(tmp_path: Path) -> None:
    broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path / "running"))
    broker.open()
    partition = await partition_of(broker)
    await append(partition, batch())
    await append(partition, batch())
    shutil.copytree(tmp_path / "running", tmp_path / "killed")
    await broker.close()
    segment = next((tmp_path / "killed" / "partitions" / partition.log.directory.name).glob("*.log"))
    with segment.open("ab") as file:
        file.write(bytes(partition.log.size_bytes // 2)[:70])  # the torn remainder of a third batch
    again = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path / "killed"))
    again.open()
    try:
        recovered = again.topics.partition("t", 0)
        assert recovered.log.end_offset == 2
        assert recovered.leader_epoch > partition.leader_epoch
        with pytest.raises(FencedLeaderEpoch):
            recovered.check_epoch(0)
        await append(recovered, batch())
        assert recovered.log.epochs.end_offset_for(0, 3) == (0, 2)
    finally:
        await again.close()


async def test_a_stop_with_a_partition_whose_flush_failed_is_not_clean(
    tmp_path: Path, disk: CountingDisk
) -> None:
    settings = BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path)
    broker = Broker(settings, disk=disk)
    broker.open()
    partition = await partition_of(broker, flush_messages="1")
    disk.failing = True
    with pytest.raises(DataInDoubt):
        await append(partition, batch())
    disk.failing = False
    await broker.close()
    directory = DataDirectory(tmp_path, SystemDisk(), 1)
    directory.open()
    assert directory.last_stop is LastStop.KILLED
    directory.close()


async def test_periodic_flushes_are_not_starved_by_waiting_producers(tmp_path: Path) -> None:
    """Else a topic that syncs every batch could delay the sync of others forever."""
    order: list[str] = []
    may_sync = threading.Event()

    class HeldDisk(SystemDisk):
        def sync_directory(self, path: Path) -> None:
            assert may_sync.wait(30)
            order.append(path.name)
            super().sync_directory(path)

    disk = HeldDisk()
    root = tmp_path / "held"
    root.mkdir()
    storage = a_storage(disk)
    with ThreadPoolExecutor(1) as thread:
        flushes = GroupCommit(thread, disk=disk, root=root, slots=1)

        def a_partition(name: str, **settings: str) -> Partition:
            log = open_log(root / name, storage, **settings)
            partition = Partition(TopicPartition(TopicName(name), 0), TopicId(int=7), log, flushes)
            partition.lead(PartitionState(replicas=(1,), isr=(1,), leader=1))
            return partition

        first, second = a_partition("first", flush_messages="1"), a_partition("second", flush_messages="1")
        due = a_partition("due", flush_ms="1")
        waiting = [asyncio.create_task(append(each, batch())) for each in (first, second)]
        await asyncio.sleep(0)
        await append(due, batch())
        await soon(lambda: asyncio.sleep(0, due in flushes._due))
        may_sync.set()
        await asyncio.gather(*waiting)
        await soon(lambda: asyncio.sleep(0, due.log.flushed_offset == 1))
    names = [name for name in order if name != "held"]
    assert names.index("due") < names.index("second")
