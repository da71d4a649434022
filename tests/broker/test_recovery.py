"""Start after a kill: few syncs for many partitions, each served as soon as it is ready."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of
from alpacamq.api.kafka.handlers.metadata import metadata
from alpacamq.broker.access import ANONYMOUS_CALLER
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.partition.leader import append
from alpacamq.cluster.topics import TopicLimits
from alpacamq.log.disk import SystemDisk
from alpacamq.model.errors import FencedLeaderEpoch, PartitionNotReady, UnknownTopic
from alpacamq.model.ids import BrokerId
from alpacamq.model.records import Record, write_batch
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.waiting import soon

from .open_brokers import running


class SyncCountingDisk(SystemDisk):
    """Counts syncs and open files."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.open_now: set[int] = set()
        self.most_open = 0
        self._lock = threading.Lock()

    def open(self, path: Path, *, create: bool = False) -> int:
        descriptor = super().open(path, create=create)
        with self._lock:
            self.open_now.add(descriptor)
            self.most_open = max(self.most_open, len(self.open_now))
        return descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            self.open_now.discard(descriptor)
        super().close(descriptor)

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        super().sync(descriptor)

    def sync_directory(self, path: Path) -> None:
        self.syncs += 1
        super().sync_directory(path)

    def sync_filesystem(self, path: Path) -> bool:
        self.syncs += 1
        return super().sync_filesystem(path)


class SlowDisk(SystemDisk):
    """A disk that is slow for one partition."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.is_reached = threading.Event()
        self.may_go_on = threading.Event()

    def names(self, path: Path) -> list[str]:
        if path.name.startswith(self._name):
            self.is_reached.set()
            assert self.may_go_on.wait(30)
        return super().names(path)


def a_batch(value: bytes = b"v") -> bytearray:
    return write_batch([Record(0, 1_900_000_000_000, b"k", value)])


async def killed(path: Path, topics: Sequence[tuple[str, int]]) -> Path:
    """Return the data directory of a broker that was killed with one record in every partition."""
    async with running(path, limits=TopicLimits(max_partitions=10_000)) as broker:
        for name, partitions in topics:
            await broker.topics.create(name, partitions=partitions)
        for partition in list(broker.topics.all_partitions()):
            await append(partition, a_batch())
        shutil.copytree(path / "data", path / "killed")
    return path / "killed"


def a_broker(directory: Path, disk: SystemDisk | None = None, **settings: Any) -> Broker:
    return Broker(BrokerSettings(node_id=BrokerId(1), data_directory=directory, **settings), disk=disk)


def whole_file_systems(path: Path) -> bool:
    return SystemDisk().sync_filesystem(path)


async def test_partitions_of_a_killed_broker_are_recovered_and_closed_with_few_syncs(tmp_path: Path) -> None:
    directory = await killed(tmp_path, [("a", 150), ("b", 150)])
    if not whole_file_systems(directory):
        pytest.skip("this file system cannot be synced as a whole")
    disk = SyncCountingDisk()
    broker = a_broker(directory, disk, open_files=64)
    broker.open()
    partitions = list(broker.topics.all_partitions())
    assert [partition.log.end_offset for partition in partitions] == [1] * 300
    assert not any(partition.log.recovered.clean for partition in partitions)
    # A few for each group of recovered partitions, whatever its size.
    assert disk.syncs < 100
    disk.syncs = 0
    await broker.close()
    assert disk.syncs < 100
    assert disk.most_open <= 64 + 20
    again = a_broker(directory)
    again.open()
    assert all(partition.log.recovered.clean for partition in again.topics.all_partitions())
    await again.close()


async def test_flushes_of_many_partitions_share_their_syncs(tmp_path: Path) -> None:
    if not whole_file_systems(tmp_path):
        pytest.skip("this file system cannot be synced as a whole")
    disk = SyncCountingDisk()
    async with running(tmp_path, disk=disk, open_files=64) as broker:
        await broker.topics.create("t", partitions=300, overrides={"flush.ms": "50"})
        disk.syncs = disk.most_open = 0
        partitions = broker.topics.partitions_of("t")
        await asyncio.gather(*(append(partition, a_batch()) for partition in partitions))

        async def all_are_flushed() -> bool:
            return all(partition.log.flushed_offset == 1 for partition in partitions)

        await soon(all_are_flushed)
        assert disk.syncs < 200
        await asyncio.gather(*(partition.flush_to(1) for partition in partitions))


class HeldDisk(SystemDisk):
    """A disk with syncs that can be held."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()

    def sync(self, descriptor: int) -> None:
        assert self.may_sync.wait(30)
        super().sync(descriptor)


async def test_a_due_flush_runs_behind_many_that_need_none(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("t", partitions=200, overrides={"flush.ms": "3600000"})
        first, *idle, last = broker.topics.partitions_of("t")
        for partition in (first, last):
            await append(partition, a_batch())
        disk.may_sync.clear()
        flushes = broker._flushes
        flushes.within(first, 0)

        async def all_others_are_due() -> bool:
            return len(flushes._due) == 199

        async def first_is_running() -> bool:
            return first in flushes._running

        await soon(first_is_running)
        for partition in (*idle, last):
            flushes.within(partition, 0)
        await soon(all_others_are_due)
        disk.may_sync.set()

        async def is_flushed() -> bool:
            return last.log.flushed_offset == 1

        await soon(is_flushed)


async def test_creating_partitions_waits_only_for_the_sync_of_the_metadata_log(tmp_path: Path) -> None:
    disk = SyncCountingDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("first", partitions=1)
        disk.syncs = 0
        await broker.topics.create("t", partitions=500)
        assert disk.syncs == 1


async def test_every_start_after_a_kill_begins_a_new_leader_epoch(tmp_path: Path) -> None:
    """Even if nothing was written in between: clients may have seen the epoch."""
    directory = await killed(tmp_path, [("t", 1)])
    epochs = []
    for _ in range(3):
        shutil.copytree(directory, tmp_path / "copy")
        broker = a_broker(tmp_path / "copy")
        broker.open()
        partition = broker.topics.partition("t", 0)
        epochs.append(partition.leader_epoch)
        with pytest.raises(FencedLeaderEpoch):
            partition.check_epoch(0)
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "copy", directory)  # killed again
        await broker.close()
        shutil.rmtree(tmp_path / "copy")
    assert epochs == sorted(set(epochs))
    broker = a_broker(directory)
    broker.open()
    partition = broker.topics.partition("t", 0)
    await append(partition, a_batch())
    assert partition.log.epochs.entries == ((0, 0), (partition.leader_epoch, 1))
    await broker.close()


async def test_a_client_at_an_epoch_without_records_has_lost_none(tmp_path: Path) -> None:
    """A position from the last start must not count as truncated."""
    directory = await killed(tmp_path, [("t", 2)])
    told = []
    for _ in range(2):
        shutil.copytree(directory, tmp_path / "copy")
        broker = a_broker(tmp_path / "copy")
        broker.open()
        partition = broker.topics.partition("t", 0)
        told.append(partition.leader_epoch)
        assert [partition.end_of_epoch(epoch).end_offset for epoch in told] == [1] * len(told)
        assert partition.end_of_epoch(partition.leader_epoch + 1).end_offset == -1
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "copy", directory)  # killed again
        await broker.close()
        shutil.rmtree(tmp_path / "copy")
    broker = a_broker(directory)
    broker.open()
    partition = broker.topics.partition("t", 0)
    await append(partition, a_batch())
    assert [partition.end_of_epoch(epoch) for epoch in told] == [(0, 1), (0, 1)]
    assert partition.end_of_epoch(partition.leader_epoch) == (partition.leader_epoch, 2)
    await broker.close()


@asynccontextmanager
async def recovering(directory: Path, disk: SlowDisk) -> AsyncIterator[tuple[Broker, asyncio.Task[None]]]:
    """Run a broker with one partition still in recovery."""
    broker = a_broker(directory, disk)
    broker.begin()
    work = asyncio.create_task(broker.run())
    recovery = asyncio.create_task(broker.recover())
    try:
        await asyncio.to_thread(disk.is_reached.wait, 30)
        yield broker, recovery
    finally:
        disk.may_go_on.set()
        await asyncio.wait([recovery])
        assert not work.done()
        work.cancel()
        await asyncio.wait([work])
        await broker.close()


async def test_partitions_are_served_while_others_are_recovered(tmp_path: Path) -> None:
    directory = await killed(tmp_path, [("quick", 3), ("slow", 100)])
    disk = SlowDisk("slow-99.")
    async with recovering(directory, disk) as (broker, recovery):

        async def others_are_ready() -> bool:
            ready = broker.topics.ready_partitions_of("slow")
            return len(broker.topics.partitions_of("quick")) == 3 and len(ready) >= 60

        await soon(others_are_ready)
        # Ready partitions can be written and read.
        for name in ("quick", "slow"):
            partition = broker.topics.partition(name, 0)
            assert broker.topics.find(broker.topics.image.topic(name).id.bytes, 0) is partition
            await append(partition, a_batch(b"after"))
            assert partition.high_watermark == 2
        # Others return a retriable error, distinct from that of a missing partition.
        with pytest.raises(PartitionNotReady) as not_ready:
            broker.topics.partition("slow", 99)
        assert code_of(not_ready.value) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(UnknownTopic):
            broker.topics.partition("slow", 100)
        with pytest.raises(UnknownTopic):
            broker.topics.partition("none", 0)
        assert described(broker, "slow") == (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
        # A change waits: the topic could not be deleted as a whole.
        deletion = asyncio.create_task(broker.topics.delete("slow"))
        await asyncio.sleep(0)
        assert "slow" in broker.topics.image.topics
        disk.may_go_on.set()
        await recovery
        await deletion
        assert not list((directory / "partitions").glob("slow-*"))
        assert [p.log.end_offset for p in broker.topics.partitions_of("quick")] == [2, 1, 1]


def described(broker: Broker, topic: str) -> tuple[int, int]:
    """Return the error codes of the first and of the last partition in metadata."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    response = metadata(
        Backend(broker=broker, host="h", port=1),
        request,
        Call(12, "c", ANONYMOUS_CALLER, partial(asyncio.sleep, 0)),
    )
    assert isinstance(response, MetadataResponse)
    partitions = response.topics[0].partitions
    return partitions[0].error_code, partitions[-1].error_code


async def test_metadata_lists_the_partitions_of_a_topic_in_recovery(tmp_path: Path) -> None:
    """Older clients treat a topic without partitions as changed, and rebalance their group."""
    directory = await killed(tmp_path, [("slow", 1)])
    async with recovering(directory, SlowDisk("slow-0.")) as (broker, _):
        assert described(broker, "slow") == (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE)


async def test_groups_are_served_before_all_partitions_are_ready(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("slow", partitions=1)
        await broker.groups.offsets_partition("group")  # creates the internal topic
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    disk = SlowDisk("slow-0.")
    async with recovering(tmp_path / "killed", disk) as (broker, recovery):
        assert (await broker.groups.offsets_partition("group")).topic == "__consumer_offsets"
        assert not recovery.done()


async def test_stopping_ends_the_recovery_early(tmp_path: Path) -> None:
    async with running(tmp_path / "made") as broker:
        await broker.groups.offsets_partition("group")
        shutil.copytree(tmp_path / "made" / "data", tmp_path / "data")
    directory = await killed(tmp_path, [("quick", 1), ("slow", 400)])
    disk = SlowDisk("__consumer_offsets-4.")
    async with recovering(directory, disk) as (broker, recovery):
        deletion = asyncio.create_task(broker.topics.delete("slow"))
        await asyncio.sleep(0)
        broker.topics.stop_loading()
        disk.may_go_on.set()
        await recovery
        assert len(list(broker.topics.all_partitions())) < 409
        # The rest exists. Deleting a partly opened topic would leave the files of its other partitions.
        with pytest.raises(PartitionNotReady):
            broker.topics.partition("slow", 399)
        with pytest.raises(PartitionNotReady, match="stopping"):
            await deletion
    again = a_broker(directory)
    again.open()
    assert [partition.log.end_offset for partition in again.topics.all_partitions()] == [1] * 409
    await again.close()


async def test_stopping_ends_the_scan_of_a_partition_early(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("long", partitions=1)
        partition = broker.topics.partition("long", 0)
        for _ in range(40):
            await append(partition, a_batch(b"v" * 500_000))
        shutil.copytree(tmp_path / "data", tmp_path / "killed")

    class StoppingDisk(SystemDisk):
        """Stops the recovery at the first large read."""

        def __init__(self) -> None:
            super().__init__()
            self.large_reads = 0

        def read(self, descriptor: int, size: int, position: int) -> bytes:
            if size > 100_000:
                self.large_reads += 1
                broker.topics.stop_loading()
            return super().read(descriptor, size, position)

    disk = StoppingDisk()
    broker = a_broker(tmp_path / "killed", disk)
    broker.begin()
    await broker.recover()
    assert disk.large_reads == 1
    with pytest.raises(PartitionNotReady):
        broker.topics.partition("long", 0)
    await broker.close()
    again = a_broker(tmp_path / "killed")
    again.open()
    assert again.topics.partition("long", 0).log.end_offset == 40
    await again.close()


async def test_partitions_are_recovered_in_parallel_on_a_slow_disk(tmp_path: Path) -> None:
    directory = await killed(tmp_path, [("t", 100)])

    class WaitingDisk(SystemDisk):
        """Blocks until two partitions are read concurrently."""

        def __init__(self) -> None:
            super().__init__()
            self.both = threading.Barrier(2)

        def names(self, path: Path) -> list[str]:
            if path.name.startswith(("t-0.", "t-16.")):
                self.both.wait(30)
            return super().names(path)

    broker = a_broker(directory, WaitingDisk())
    broker.open()
    assert [partition.log.end_offset for partition in broker.topics.all_partitions()] == [1] * 100
    await broker.close()


async def test_a_file_system_that_cannot_be_synced_as_a_whole_is_synced_file_by_file(tmp_path: Path) -> None:
    class FailingDisk(SystemDisk):
        def sync_filesystem(self, path: Path) -> bool:
            raise OSError(5, "Input/output error")

    directory = await killed(tmp_path, [("t", 40)])
    broker = a_broker(directory, FailingDisk())
    broker.open()  # falls back to single files
    assert [partition.log.end_offset for partition in broker.topics.all_partitions()] == [1] * 40
    await broker.close()
