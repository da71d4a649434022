"""A broker whose disk is full or fails leaves its partitions to others until it works again."""

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker.metadata import quorum
from alpacamq.broker.metadata.store import Recovered
from alpacamq.broker.partition import housekeeping
from alpacamq.broker.partition.leader import append
from alpacamq.broker.replication.following import Following
from alpacamq.model.errors import DataInDoubt, DiskFull, StorageFailed
from alpacamq.model.ports import Buffer
from alpacamq.model.records import Record, write_batch
from alpacamq.telemetry.logs import capture_logs

from .three_brokers import ThreeBrokers, three_brokers


def batch() -> bytearray:
    return write_batch([Record(0, 1_000, None, b"v")])


def failing(*_: object, **__: object) -> Any:
    raise OSError(errno.EIO, "Input/output error")


async def led_by_another(cluster: ThreeBrokers, failed: int) -> None:
    await cluster.until(lambda: failed not in cluster.state("orders").isr, "the broker out of sync")
    assert cluster.leader_id("orders") != failed
    await append(await cluster.led("orders"), batch())


async def in_sync_again(cluster: ThreeBrokers, failed: int) -> None:
    await cluster.until(lambda: failed in cluster.state("orders").isr, "the broker back in sync")


async def test_leaders_leave_a_broker_whose_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        await cluster.until(lambda: len(cluster.state("orders").isr) == 3, "all in sync")
        full = cluster.leader_id("orders")
        partition = await cluster.led("orders")
        with monkeypatch.context() as patch:
            patch.setattr(cluster[full], "can_write", lambda: False)
            partition.refused(DiskFull("no room"))
            await led_by_another(cluster, full)
        partition.refusal = None
        await in_sync_again(cluster, full)


async def test_leaders_leave_a_broker_whose_writes_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "RETRY_SECONDS", 0.1)
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        await cluster.until(lambda: len(cluster.state("orders").isr) == 3, "all in sync")
        failed = cluster.leader_id("orders")
        partition = await cluster.led("orders")
        await append(partition, batch())
        disk = cluster[failed]._disk
        write = disk.write

        def refuse(descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
            # The metadata log works.
            is_of_topic = "orders-0" in str(Path(f"/proc/self/fd/{descriptor}").readlink())
            (failing if is_of_topic else write)(descriptor, buffers, position)

        with monkeypatch.context() as patch:
            patch.setattr(disk, "write", refuse)
            patch.setattr(housekeeping, "REFUSED_SECONDS", 60.0)
            with pytest.raises(StorageFailed):
                await append(partition, batch())
            await led_by_another(cluster, failed)
            assert cluster[failed].disk_watch.failure is not None
        # Fetching the record above succeeds now.
        await in_sync_again(cluster, failed)
        assert cluster[failed].disk_watch.failure is None


async def unreadable_leader(cluster: ThreeBrokers, patch: pytest.MonkeyPatch) -> int:
    """Let a read of the leader fail, and its file stay unreadable; return its id once another leads."""
    await cluster.create("orders", partitions=1)
    await cluster.until(lambda: len(cluster.state("orders").isr) == 3, "all in sync")
    failed = cluster.leader_id("orders")
    partition = await cluster.led("orders")
    await append(partition, batch())
    patch.setattr(cluster[failed]._disk, "read", failing)
    part = partition.read(0, 1 << 20, 1, at_least_one=True)
    assert part is not None
    with pytest.raises(StorageFailed):
        part.read()
    part.release()
    await led_by_another(cluster, failed)
    return failed


async def test_leaders_leave_a_broker_whose_reads_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "RETRY_SECONDS", 0.1)
    async with three_brokers(tmp_path) as cluster:
        with monkeypatch.context() as patch:
            failed = await unreadable_leader(cluster, patch)
            assert "reading 00000000000000000000.log failed" in str(cluster[failed].disk_watch.failure)
        await in_sync_again(cluster, failed)
        assert cluster[failed].disk_watch.failure is None


async def test_a_replica_that_stays_unreadable_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(housekeeping, "UNREADABLE_SECONDS", 0.5)
    async with three_brokers(tmp_path) as cluster:
        with monkeypatch.context() as patch:
            failed = await unreadable_leader(cluster, patch)
            # Emptied and written again, it needs no read.
            await in_sync_again(cluster, failed)


async def test_a_failed_flush_moves_the_leader_before_the_next_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        await cluster.until(lambda: len(cluster.state("orders").isr) == 3, "all in sync")
        failed = cluster.leader_id("orders")
        partition = await cluster.led("orders")
        sync = cluster[failed]._disk.sync
        with monkeypatch.context() as patch:
            patch.setattr(cluster[failed]._disk, "sync", once(failing, sync))
            with pytest.raises(DataInDoubt):
                await append(partition, batch())
        await led_by_another(cluster, failed)
        # It is emptied and fetched again: what the failed flush has left does not matter then.
        await in_sync_again(cluster, failed)
        assert partition.log.in_doubt is None
        assert partition.log.end_offset == (await cluster.led("orders")).end_offset
        await cluster.move_leader("orders", 0, failed)
        await append(await cluster.led("orders"), batch())


async def test_a_replica_whose_flushes_keep_failing_is_not_fetched_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        await cluster.until(lambda: len(cluster.state("orders").isr) == 3, "all in sync")
        failed = cluster.leader_id("orders")
        partition = await cluster.led("orders")
        disk = cluster[failed]._disk
        sync = disk.sync

        def refuse(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            (failing if "orders-0" in str(path) and path.suffix == ".log" else sync)(descriptor)

        with monkeypatch.context() as patch, capture_logs() as logged:
            patch.setattr(disk, "sync", refuse)
            with pytest.raises(DataInDoubt):
                await append(partition, batch())
            await led_by_another(cluster, failed)

            def rebuilt() -> int:
                return sum(
                    each["event"] == "replica_rebuilt" and each["log_level"] == "warning" for each in logged
                )

            await cluster.until(
                lambda: any(each["event"] == "replica_truncated" for each in logged), "the log is emptied"
            )
            await cluster.until(lambda: partition.log.in_doubt, "in doubt again")
            following = partition.following
            assert isinstance(following, Following)
            await cluster.until(following.may_rebuild, "the controller knows")
            following.drive()
            assert not following.is_cutting
            assert rebuilt() == 1
        # Later it is tried again.
        following._rebuild_again_ms = 0
        await in_sync_again(cluster, failed)


def once(first: Callable[..., Any], then: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls another at its first call."""
    calls = iter([first])
    return lambda *arguments: next(calls, then)(*arguments)


async def test_a_broker_stops_if_its_metadata_log_keeps_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum, "PATIENCE_SECONDS", 0.0)
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        failed = cluster.leader_id("orders")

        def refuse(*_: object) -> None:
            raise StorageFailed("the disk fails")

        monkeypatch.setattr(cluster[failed]._store, "write", refuse)
        await cluster.follower_of("orders").topics.create("another", partitions=1)
        await cluster.until(lambda: cluster[failed].metadata.has_failed, "the broker gives up")
        with pytest.raises(ExceptionGroup):
            await cluster.kill(failed)
        await cluster.until(lambda: cluster.state("orders").leader not in (failed, None), "another leader")


async def test_what_comes_while_the_metadata_log_is_read_again_is_not_written_behind_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        controller = cluster.any.metadata.controller_id
        assert controller is not None
        full = next(each for each in cluster.brokers if each != controller)
        metadata, store = cluster[full].metadata, cluster[full]._store
        write, recover = store.write, store.recover
        loop = asyncio.get_running_loop()
        is_refused, may_recover = asyncio.Event(), threading.Event()

        def refuse_once(*_: object) -> None:
            monkeypatch.setattr(store, "write", write)
            loop.call_soon_threadsafe(is_refused.set)
            raise DiskFull("no room")

        def recover_later() -> Recovered | None:
            assert may_recover.wait(30)
            return recover()

        with capture_logs() as logged:
            monkeypatch.setattr(store, "recover", recover_later)
            monkeypatch.setattr(store, "write", refuse_once)
            topics = cluster.brokers[controller].topics
            await topics.create("first", partitions=1)
            await is_refused.wait()
            before = metadata.quorum.last_index
            second = await topics.create("second", partitions=1)
            await cluster.until(lambda: metadata.quorum.last_index > before, "entries have come")
            may_recover.set()
            await cluster.until(
                lambda: metadata.image.topic_by_id(second.id) is not None, "the broker has caught up"
            )
        assert [each["event"] for each in logged].count("metadata_not_written") == 1
        assert not metadata.has_failed
