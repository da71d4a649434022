"""A power cut between any two syncs keeps all promises: a transaction or a move is done or not done."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.leader import delete_before
from alpacamq.broker.publishing import Message, Published, TransactionalProducer
from alpacamq.broker.read.record_reader import Limits, RecordReader
from alpacamq.coordinator.messages import (
    CommitRequest,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    OffsetToCommit,
    PartitionResults,
    TxnCommitRequest,
)
from alpacamq.coordinator.transactions.transaction import AddPartitions, ProducerIdentity
from alpacamq.log import data_directory
from alpacamq.log.data_directory import DataDirectory, LastStop
from alpacamq.log.disk import SystemDisk
from alpacamq.model.errors import ConcurrentTransactions, GroupIdNotFound, ProducerFenced
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.queues.messages import Action, QueueId
from tests.waiting import soon

from .open_brokers import running, sent, stored
from .power_cuts import RecordingDisk
from .queue_steps import ORDERS, acknowledge, settle, values
from .transactions import begun, end, end_with_new_epoch

NEVER_FLUSHED = {"flush.ms": str(2**63 - 1)}
COPIER = "copier"
GROUP = "copiers"
SOURCE = TopicPartition(TopicName("source"), 0)


class Cuts:
    """The data directories after a power cut at each sync from now on."""

    def __init__(self, disk: RecordingDisk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._first = disk.syncs
        self._done: list[tuple[int, int]] = []

    def done(self, number: int) -> None:
        """Note that step `number` was acknowledged: later cuts must keep it."""
        self._done.append((self._disk.syncs, number))

    def __iter__(self) -> Iterator[tuple[Path, list[int]]]:
        """Yield the directory of each cut, and the steps acknowledged before it."""
        for syncs in range(self._first, self._disk.syncs + 1):
            target = self._path / f"cut-{syncs}"
            target.mkdir()
            self._disk.restore(self._path / "data", syncs, target / "data")
            yield target, [number for at, number in self._done if at <= syncs]


async def test_a_transaction_is_committed_everywhere_or_nowhere(tmp_path: Path) -> None:
    """Covers records in two topics without flush settings, and an offset."""
    disk = RecordingDisk()
    async with running(tmp_path, disk=disk) as broker:
        for topic in ("source", "left", "right"):
            await broker.topics.create(topic, partitions=1, overrides=NEVER_FLUSHED)
        producer = await begun(broker, COPIER)
        cuts = Cuts(disk, tmp_path)
        for number in range(4):
            await copy(broker, producer, number)
            producer = await end_with_new_epoch(broker, producer, committed=number % 2 == 0)
            if number % 2 == 0:
                cuts.done(number)
        checked = 0
        for path, done in cuts:
            async with running(path) as restarted:
                await when_free(partial(begun, restarted, COPIER))
                left, right = await committed(restarted, "left"), await committed(restarted, "right")
                offset = await committed_offset(restarted)
            assert left == right, path
            assert set(left) <= {0, 2}, f"{path}: an aborted record is visible"
            assert offset == (left[-1] + 1 if left else -1), path
            assert set(done) <= set(left), path
            checked += 1
    assert checked > 10


async def test_a_dead_letter_is_in_its_queue_or_in_the_dead_letter_topic(tmp_path: Path) -> None:
    disk = RecordingDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"flush.messages": "1"})
        await broker.topics.create("orders.dlq", partitions=1, overrides=NEVER_FLUSHED)
        await sent(broker, "orders", *(b"%d" % number for number in range(6)))
        cuts = Cuts(disk, tmp_path)
        for _ in range(3):
            received = await broker.queues.receive(ORDERS, max_messages=2, wait_ms=5000)
            assert await settle(broker, Action.REJECT, *received) == [None, None]
            await soon(partial(is_moved, broker, ORDERS))
            # The queue's own state is on disk now and records the moves.
            await flushed(broker, "__queue_state")
        for path, _ in cuts:
            async with running(path) as restarted:
                await soon(partial(is_moved, restarted, ORDERS))
                waiting = await restarted.queues.receive(ORDERS, max_messages=10)
                letters = [record.value or b"" for record in stored(restarted, "orders.dlq")]
            left = [delivery.record.value or b"" for delivery in waiting]
            assert sorted(left + letters) == [b"%d" % number for number in range(6)], path


async def test_a_redriven_message_is_in_the_dead_letter_topic_or_back(tmp_path: Path) -> None:
    disk = RecordingDisk()
    dead = QueueId("queue", "orders.dlq")
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("orders", partitions=1, overrides=NEVER_FLUSHED)
        await sent(broker, "orders", *(b"%d" % number for number in range(4)))
        await flushed(broker, "orders")
        received = await broker.queues.receive(ORDERS, max_messages=4, wait_ms=5000)
        await settle(broker, Action.REJECT, *received)
        await soon(partial(is_moved, broker, ORDERS))
        await flushed(broker, "__queue_state")
        cuts = Cuts(disk, tmp_path)
        await broker.queues.start_redrive("orders.dlq")
        await soon(partial(is_redriven, broker))
        await flushed(broker, "__queue_state")
        for path, _ in cuts:
            async with running(path) as restarted:
                await soon(partial(is_moved, restarted, dead))
                letters = await restarted.queues.receive(dead, max_messages=10)
                back = [record.value or b"" for record in stored(restarted, "orders")][4:]
            left = [delivery.record.value or b"" for delivery in letters]
            assert sorted(left + back) == [b"%d" % number for number in range(4)], path


async def test_groups_and_queues_do_not_skip_records_that_reuse_lost_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their state is flushed separately, so it may be ahead of the records."""
    disk = RecordingDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("orders", partitions=1, overrides=NEVER_FLUSHED)
        await sent(broker, "orders", b"kept")
        await flushed(broker, "orders")
        await sent(broker, "orders", b"lost", b"lost")
        received = await broker.queues.receive(ORDERS, max_messages=3, wait_ms=5000)
        await acknowledge(broker, *received)
        await commit(broker, TopicPartition(TopicName("orders"), 0), 3)
        await flushed(broker, "__queue_state")
        await flushed(broker, "__consumer_offsets")
        path = restored(disk, tmp_path)
    power_comes_back(monkeypatch)
    async with running(path) as restarted:
        # Before anything is loaded, like a producer that has not noticed the restart.
        await sent(restarted, "orders", b"new", b"new")
        assert await committed_offset(restarted, TopicPartition(TopicName("orders"), 0)) == 1
        received = await restarted.queues.receive(ORDERS, max_messages=3, wait_ms=5000)
        assert values(received) == [b"new", b"new"]
        await acknowledge(restarted, *received)
        await soon(partial(is_settled, restarted))
    async with running(path) as again:
        assert await again.queues.receive(ORDERS, max_messages=3) == []


async def test_a_transaction_open_at_a_power_loss_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its records may be lost: its producer must not commit the rest."""
    disk = RecordingDisk()
    async with running(tmp_path, disk=disk) as broker:
        for topic in ("source", "left", "right"):
            await broker.topics.create(topic, partitions=1, overrides=NEVER_FLUSHED)
        producer = await begun(broker, COPIER)
        await copy(broker, producer, 0)
        await flushed(broker, "left")
        path = restored(disk, tmp_path)
    power_comes_back(monkeypatch)
    async with running(path) as restarted:
        with pytest.raises(ProducerFenced):
            await end_with_new_epoch(restarted, producer, committed=True)
        assert await committed(restarted, "left") == await committed(restarted, "right") == []


async def test_a_transaction_open_at_a_kill_continues(tmp_path: Path) -> None:
    disk = RecordingDisk()
    async with running(tmp_path, disk=disk) as broker:
        for topic in ("source", "left", "right"):
            await broker.topics.create(topic, partitions=1)
        producer = await begun(broker, COPIER)
        await copy(broker, producer, 0)
        for topic in ("left", "right", "__consumer_offsets"):
            await flushed(broker, topic)
        path = restored(disk, tmp_path)
    async with running(path) as restarted:
        await end_with_new_epoch(restarted, producer, committed=True)
        assert await committed(restarted, "left") == await committed(restarted, "right") == [0]


async def test_a_power_loss_is_remembered_until_it_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill before the settlement does not clear it."""

    def last_stop(*then: Callable[[DataDirectory], None]) -> LastStop:
        directory = DataDirectory(tmp_path / "data", SystemDisk(), 1)
        directory.open()
        for step in then:
            step(directory)
        directory.close()
        return directory.last_stop

    assert last_stop() is LastStop.CLEAN
    power_comes_back(monkeypatch)
    assert last_stop() is LastStop.POWER_LOST
    assert last_stop(DataDirectory.stopped) is LastStop.POWER_LOST
    assert last_stop(DataDirectory.power_loss_settled) is LastStop.POWER_LOST
    assert last_stop(DataDirectory.stopped) is LastStop.KILLED
    assert last_stop() is LastStop.CLEAN


async def test_a_topic_of_the_same_name_does_not_inherit_offsets_or_queues(tmp_path: Path) -> None:
    disk = RecordingDisk()
    orders = TopicPartition(TopicName("orders"), 0)
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("orders", partitions=1)
        await sent(broker, "orders", b"old", b"old")
        await acknowledge(broker, *await broker.queues.receive(ORDERS, max_messages=2, wait_ms=5000))
        await commit(broker, orders, 2)
        await flushed(broker, "__queue_state")
        await flushed(broker, "__consumer_offsets")
        await broker.topics.delete("orders")
        await broker.topics.create("orders", partitions=1, overrides={"flush.messages": "1"})
        await sent(broker, "orders", b"new", b"new")
        path = restored(disk, tmp_path)
    async with running(path) as restarted:
        assert await committed_offset(restarted, orders) == -1
        received = await restarted.queues.receive(ORDERS, max_messages=2, wait_ms=5000)
        assert values(received) == [b"new", b"new"]


async def test_a_topic_that_was_deleted_just_before_a_crash_leaves_no_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = TopicPartition(TopicName("orders"), 0)

    async def killed(topic: str) -> None:
        """Do not drop the offsets."""

    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await commit(broker, orders, 2)
        broker.topic_deleted = killed  # type: ignore[method-assign]
        await broker.topics.delete("orders")
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        assert await committed_offset(broker, orders) == -1


async def test_records_are_flushed_before_the_log_start_moves_past_them(tmp_path: Path) -> None:
    """Else new records would get the offsets of lost ones, hidden below the new log start."""
    disk = RecordingDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("orders", partitions=1, overrides=NEVER_FLUSHED)
        await sent(broker, "orders", *(b"%d" % number for number in range(10)))
        cuts = Cuts(disk, tmp_path)
        await delete_before(broker.topics.partition("orders", 0), 10, broker.work_threads)
        for path, _ in cuts:
            async with running(path) as restarted:
                await sent(restarted, "orders", b"new")
            async with running(path) as restarted:
                assert stored(restarted, "orders")[-1].value == b"new", path


async def test_lowering_the_flush_interval_applies_to_records_already_appended(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides=NEVER_FLUSHED)
        await sent(broker, "orders", b"waits for a minute")
        await broker.topics.configure("orders", lambda _topic: {"flush.ms": "10"})
        await sent(broker, "orders", b"waits for 10 ms")
        log = broker.topics.partition("orders", 0).log

        async def is_flushed() -> bool:
            return log.flushed_offset == 2

        await soon(is_flushed)


def restored(disk: RecordingDisk, path: Path) -> Path:
    """Return a copy of the directory as a power cut now would leave it."""
    target = path / "restored"
    target.mkdir()
    disk.restore(path / "data", disk.syncs, target / "data")
    return target


def power_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a reboot of the machine."""
    monkeypatch.setattr(data_directory, "boot_id", lambda: b"another\n")


async def is_settled(broker: Broker) -> bool:
    return not broker.topics.power_lost


async def commit(broker: Broker, partition: TopicPartition, offset: int) -> None:
    request = CommitRequest(
        group=GROUP,
        offsets=(OffsetToCommit(topic=partition.topic, partition=partition.partition, offset=offset),),
    )
    results: PartitionResults = await broker.groups.ask(request)
    assert all(result.error is None for result in results.partitions), results


async def copy(broker: Broker, producer: TransactionalProducer, number: int) -> None:
    """Write a number to two topics and commit its source offset, in one transaction."""
    for topic in ("left", "right"):
        (result,) = await broker.publisher.publish(
            topic, [Message(value=b"%d" % number, partition=0)], producer=producer
        )
        if not isinstance(result, Published):
            raise result
    await added(broker, producer, await broker.groups.offsets_partition(GROUP))
    request = TxnCommitRequest(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        group=GROUP,
        offsets=(OffsetToCommit(topic=SOURCE.topic, partition=SOURCE.partition, offset=number + 1),),
    )
    results: PartitionResults = await broker.groups.ask(request)
    assert all(result.error is None for result in results.partitions), results


async def when_free(step: Callable[[], Awaitable[Any]]) -> None:
    """Repeat a step until the transaction before it is complete."""

    async def is_done() -> bool:
        try:
            await step()
        except ConcurrentTransactions:
            return False
        return True

    await soon(is_done)


async def committed(broker: Broker, topic: str) -> list[int]:
    """Return the numbers that a committed reader finds up to the end of the log."""
    partition = broker.topics.partition(topic, 0)

    async def is_stable() -> bool:
        return partition.last_stable_offset == partition.log.end_offset

    await soon(is_stable)
    reader = RecordReader(broker.work_threads, unpacked_limit_bytes=1 << 20)
    limits = Limits(records=100, size_bytes=1 << 20, before_offset=partition.log.end_offset)
    page = await reader.read(partition, 0, limits, committed=True)
    return [int(record.value or b"") for record in page.records]


async def committed_offset(broker: Broker, partition: TopicPartition = SOURCE) -> int:
    request = FetchOffsetsRequest(group=GROUP, partitions=(partition,), require_stable=True)
    reply: FetchOffsetsReply = await broker.groups.ask(request)
    (fetched,) = reply.offsets
    assert fetched.error is None
    return fetched.offset


async def is_moved(broker: Broker, queue: QueueId) -> bool:
    try:
        described = await broker.queues.describe(queue)
    except GroupIdNotFound:
        return True  # the cut was before its first use
    return not any(each.dead_lettering for each in described.partitions)


async def is_redriven(broker: Broker) -> bool:
    return (await broker.queues.redrives())[0].state == "completed"


async def flushed(broker: Broker, topic: str) -> None:
    for partition in broker.topics.partitions_of(topic):
        await partition.flush_to(partition.log.end_offset)


async def test_a_producer_begins_its_next_transaction_while_the_last_one_is_completed(tmp_path: Path) -> None:
    """Refused clients retry after 20 ms, which is longer than most completions take."""
    target = TopicPartition(TopicName("t"), 0)
    may_complete = threading.Event()

    class HeldDisk(SystemDisk):
        """Holds the flush of the marker, which is the second of the partition."""

        flushes = 0

        def sync(self, descriptor: int) -> None:
            if Path(f"/proc/self/fd/{descriptor}").readlink().parent.name.startswith("t-0."):
                self.flushes += 1
                assert self.flushes != 2 or may_complete.wait(30)
            super().sync(descriptor)

    async with running(tmp_path, disk=HeldDisk()) as broker:
        await broker.topics.create("t", partitions=1, overrides=NEVER_FLUSHED)
        producer = await begun(broker, COPIER)
        (written,) = await broker.publisher.publish(
            "t", [Message(value=b"v", partition=0)], producer=producer
        )
        assert isinstance(written, Published)
        await end(broker, producer, committed=True)
        asyncio.get_running_loop().call_later(0.01, may_complete.set)
        await added(broker, producer, target)


async def added(broker: Broker, producer: TransactionalProducer, partition: TopicPartition) -> None:
    request = AddPartitions(
        transactional_id=producer.transactional_id,
        producer=ProducerIdentity(producer.producer_id, producer.producer_epoch),
        partitions=(partition,),
    )
    await broker.transactions.ask(request)
