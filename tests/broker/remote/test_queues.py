"""Queues of three brokers, through any of them."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.dlq.redrive import RedriveTask
from alpacamq.broker.partition.leader import Partition, delete_before
from alpacamq.broker.publishing import Message, Published
from alpacamq.broker.queue.fifo import DeduplicationScope, FifoMessage, FifoPublished
from alpacamq.broker.queue.service import Delivery
from alpacamq.broker.tracing.partition import Origin
from alpacamq.model.errors import (
    DamagedLog,
    GroupIdNotFound,
    InvalidRequest,
    PartitionNotReady,
    StaleReceipt,
)
from alpacamq.model.topics import QUEUES_TOPIC
from alpacamq.queues.messages import Action, DescribeRequest, QueueId, Start
from tests.broker.open_brokers import sent
from tests.broker.queue_steps import acknowledge, settle, values, waits
from tests.waiting import soon

from .three_brokers import ThreeBrokers, three_brokers

ORDERS = QueueId("workers", "orders")
QUEUE = QueueId("queue", "orders")
ONE_EACH = ((1,), (2,), (3,))


async def filled(broker: Broker, *messages: bytes, partitions: int = 3) -> None:
    """Publish messages, one partition after the other."""
    for number, message in enumerate(messages):
        await sent(broker, "orders", message, partition=number % partitions)


async def received(broker: Broker, count: int, queue: QueueId = ORDERS, **options: Any) -> list[Delivery]:
    """Receive until there are so many messages."""
    found: list[Delivery] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await broker.queues.receive(
                queue, max_messages=count - len(found), wait_ms=2000, **options
            )
    return found


def shard_of(cluster: ThreeBrokers, queue: QueueId) -> int:
    return cluster.any.queues._host._machines.index_of(DescribeRequest(queue=queue).routing_key)


async def broker_of(cluster: ThreeBrokers, queue: QueueId) -> Broker:
    """Return the broker that hosts a queue, once it does."""
    await cluster.any.queues.broker_of(queue)
    index = shard_of(cluster, queue)
    await cluster.led(QUEUES_TOPIC, index)
    broker = cluster.leader_of(QUEUES_TOPIC, index)
    await cluster.until(lambda: broker.queues._host._machines.is_here(index), "the host of the queue")
    return broker


async def others(cluster: ThreeBrokers, queue: QueueId) -> list[Broker]:
    """Return the brokers that do not host a queue."""
    host = await broker_of(cluster, queue)
    return [broker for broker in cluster.brokers.values() if broker is not host]


async def test_a_queue_works_through_any_broker(tmp_path: Path) -> None:
    """Its partitions have one replica each, so that most reads are calls."""
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", assignments=ONE_EACH)
        left = {b"%d" % number for number in range(12)}
        await filled(cluster[1], *sorted(left))
        for broker in (*cluster.brokers.values(), cluster[1]):
            deliveries = await received(broker, 3)
            left -= {value for value in values(deliveries) if value is not None}
            settling = cluster[deliveries[0].partition + 1]
            await acknowledge(settling, *deliveries)
        assert left == set()
        for broker in cluster.brokers.values():
            described = await broker.queues.describe(ORDERS)
            assert described.acked_total == 12
            assert [part.start_offset for part in described.partitions] == [4, 4, 4]
            assert await broker.queues.receive(ORDERS) == []
            assert await broker.queues.queues() == [ORDERS]
            assert [each.queue for each in await broker.queues.describe_all()] == [ORDERS]


async def test_a_poll_finds_what_was_there_before(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", assignments=ONE_EACH)
        await received_nothing(cluster[1])
        for number in range(30):
            publishing, receiving = cluster[number % 3 + 1], cluster[(number // 3) % 3 + 1]
            await sent(publishing, "orders", b"%d" % number, partition=number % 3)
            (delivery,) = await receiving.queues.receive(ORDERS)
            assert delivery.record.value == b"%d" % number
            await acknowledge(publishing, delivery)


async def received_nothing(broker: Broker) -> None:
    assert await broker.queues.receive(ORDERS) == []


@pytest.mark.parametrize("factor", [1, 3])
async def test_a_receive_waits_at_the_broker_of_the_queue(tmp_path: Path, factor: int) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", replication_factor=factor)
        for receiving in cluster.brokers.values():
            for index in range(3):
                waiting = asyncio.create_task(receiving.queues.receive(ORDERS, wait_ms=600_000))
                await soon(lambda: waits(cluster[1]))
                await sent(cluster[2], "orders", b"late", partition=index)
                async with asyncio.timeout(60):
                    (delivery,) = await waiting
                assert delivery.partition == index
                await acknowledge(cluster[3], delivery)


async def test_a_receive_at_its_limit_is_served_when_another_broker_deletes_what_it_leases(
    tmp_path: Path,
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", assignments=ONE_EACH, overrides={"queue.max.in.flight": "1"})
        away, _ = await others(cluster, ORDERS)
        index = next(number for number, broker in cluster.brokers.items() if broker is away) - 1
        await sent(away, "orders", b"a", b"b", partition=index)
        assert values(await received(away, 1, consumer="one")) == [b"a"]
        waiting = asyncio.create_task(away.queues.receive(ORDERS, consumer="one", wait_ms=20_000))
        await soon(lambda: waits(away))
        await delete_before(away.topics.partition("orders", index), 1, away.work_threads)
        async with asyncio.timeout(10):
            assert values(await waiting) == [b"b"]


async def test_a_cancelled_receive_leaves_nothing_leased(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", assignments=ONE_EACH)
        away, _ = await others(cluster, ORDERS)
        waiting = asyncio.create_task(away.queues.receive(ORDERS, wait_ms=20_000))
        await soon(lambda: waits(away))
        waiting.cancel()
        await asyncio.wait({waiting})

        async def waits_no_more() -> bool:
            return not await waits(away)

        await soon(waits_no_more)
        await sent(away, "orders", b"a", partition=0)
        (delivery,) = await received(away, 1)
        assert delivery.delivery_count == 1


async def test_a_receive_that_is_cancelled_while_its_reply_is_on_its_way_leaves_nothing_leased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", assignments=ONE_EACH)
        host = await broker_of(cluster, ORDERS)
        away, _ = await others(cluster, ORDERS)
        await sent(away, "orders", b"a", partition=0)
        machines = host.queues._host._machines
        answer = machines._answer
        assert answer is not None

        async def answer_and_hang_up(*arguments: Any) -> Any:
            reply = await answer(*arguments)
            receiving.cancel()
            return reply

        monkeypatch.setattr(machines, "_answer", answer_and_hang_up)
        receiving = asyncio.create_task(away.queues.receive(ORDERS, wait_ms=20_000))
        await asyncio.wait({receiving})
        assert receiving.cancelled()
        monkeypatch.undo()
        (delivery,) = await received(away, 1)
        assert (delivery.record.value, delivery.delivery_count) == (b"a", 1)


async def test_a_queue_is_changed_through_any_broker(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", assignments=ONE_EACH)
        first, second = await others(cluster, ORDERS)
        await filled(first, b"a", b"b", b"c", b"d", b"e", b"f")
        with pytest.raises(GroupIdNotFound):
            await first.queues.describe(ORDERS)
        (delivery,) = await received(first, 1, partitions=(0,))
        described = await second.queues.configure(ORDERS, {"queue.visibility.timeout.ms": "1234"})
        assert described.overrides == {"queue.visibility.timeout.ms": "1234"}
        assert (await first.queues.settings(ORDERS)).queue_visibility_timeout_ms == 1234
        await acknowledge(second, delivery)
        peeked = [record.value for _, record in await second.queues.peek(ORDERS, 10)]
        assert sorted(value for value in peeked if value is not None) == [b"b", b"c", b"d", b"e", b"f"]
        assert await second.queues.reset(ORDERS, {0: 99, 1: 1}) == {0: 2}
        assert sorted(v for v in values(await received(first, 3)) if v) == [b"c", b"e", b"f"]
        assert await first.queues.purge(ORDERS) == {0: 2, 1: 2, 2: 2}
        assert await second.queues.receive(ORDERS) == []
        await second.queues.delete(ORDERS)
        assert await first.queues.queues() == []
        late = await received(second, 6, start=Start.EARLIEST)
        assert len(late) == 6


async def test_a_receipt_is_stale_at_every_broker(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", assignments=ONE_EACH)
        await filled(cluster[1], b"a")
        (delivery,) = await received(cluster[1], 1)
        assert await settle(cluster[2], Action.NACK, delivery) == [None]
        for broker in cluster.brokers.values():
            (error,) = await settle(broker, Action.NACK, delivery)
            assert isinstance(error, StaleReceipt)


async def test_leases_and_acknowledgements_survive_the_broker_of_the_queue(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", replication_factor=3)
        host = await broker_of(cluster, ORDERS)
        away, other = await others(cluster, ORDERS)
        await filled(away, *(b"%d" % number for number in range(30)))
        acked = await received(away, 10)
        leased = await received(other, 10, visibility_ms=6000)
        await acknowledge(other, *acked)
        waiting = asyncio.create_task(received(away, 20, visibility_ms=60_000))
        await cluster.kill(host.settings.node_id)
        async with asyncio.timeout(30):
            rest = await waiting
        # Those in flight are received again after their lease, the acknowledged ones never.
        done = {(each.partition, each.record.offset) for each in acked}
        again = {(each.partition, each.record.offset): each.delivery_count for each in rest}
        assert len(again) == 20
        assert not done & again.keys()
        for each in leased:
            assert again[each.partition, each.record.offset] == 2
        await acknowledge(other, *rest)
        assert await away.queues.receive(ORDERS, wait_ms=200) == []


async def test_partitions_of_a_dead_broker_do_not_hold_up_the_others(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", assignments=ONE_EACH)
        host = await broker_of(cluster, ORDERS)
        await received_nothing(host)
        await filled(host, b"a", b"b", b"c", b"d", b"e", b"f")
        dead = next(each for each in cluster.brokers if each != host.settings.node_id)
        await cluster.kill(dead)
        async with asyncio.timeout(10):
            found = await received(host, 4, visibility_ms=60_000)
        assert {each.partition for each in found} == {0, 1, 2} - {dead - 1}
        waiting = asyncio.create_task(received(host, 2, visibility_ms=60_000))
        await cluster.start(dead)
        assert {each.partition for each in await waiting} == {dead - 1}


async def test_only_the_leader_of_a_partition_says_where_it_ends(tmp_path: Path) -> None:
    """By the end of a replica that lags behind, acknowledged messages would be delivered again."""
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1, replication_factor=3)
        await filled(cluster[1], b"a", b"b", partitions=1)
        leader = cluster.leader_id("orders")
        ends = {
            node_id: broker.queues._host._backlog.leader_end("orders", 0)
            for node_id, broker in cluster.brokers.items()
        }
        assert ends == {node_id: 2 if node_id == leader else None for node_id in (1, 2, 3)}


@pytest.mark.parametrize(("factor", "is_discarded"), [(1, True), (3, False)])
async def test_damage_is_skipped_only_where_no_other_replica_has_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: int, is_discarded: bool
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1, replication_factor=factor)
        for value in (b"a", b"b"):
            await sent(cluster[1], "orders", value)
        read = Partition.read

        def damaged(self: Partition, offset: int, *arguments: Any, **options: Any) -> Any:
            if self.identity.topic == "orders" and self.is_leading and offset == 0:
                raise DamagedLog(Path("segment"), 0, "flipped bits", (0, 1))
            return read(self, offset, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Partition, "read", damaged)
            for broker in cluster.brokers.values():
                with suppress(PartitionNotReady):
                    for delivery in await broker.queues.receive(ORDERS, wait_ms=200):
                        assert await settle(broker, Action.RELEASE, delivery) == [None]
        found = values(await received(cluster[1], 1 if is_discarded else 2))
        assert found == ([b"b"] if is_discarded else [b"a", b"b"])


@pytest.mark.parametrize("is_committed", [True, False])
async def test_messages_behind_a_stable_offset_that_a_new_leader_does_not_know_are_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """A marker that is not known to be committed keeps the last stable offset before its transaction."""
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1, replication_factor=3)
        for value in (b"a", b"b"):
            await sent(cluster[1], "orders", value)
        for delivery in await received(cluster[1], 2):
            assert await settle(cluster[1], Action.RELEASE, delivery) == [None]
        before = vars(Partition)["last_stable_offset"].fget

        def behind(self: Partition) -> Any:
            return 0 if self.identity.topic == "orders" else before(self)

        with monkeypatch.context() as patch:
            patch.setattr(Partition, "last_stable_offset", property(behind))
            for broker in cluster.brokers.values():
                reader = broker.queues._host.reader
                broker.queues._host._blocks.forget("orders")
                if is_committed:
                    with pytest.raises(PartitionNotReady):
                        await reader.read("orders", [(0, 1)])
                    with suppress(PartitionNotReady):
                        assert await broker.queues.receive(ORDERS, wait_ms=200) == []
                else:
                    found = await reader.read("orders", [(0, 1)], is_committed=False)
                    assert found[0, 1].value == b"b"
        assert values(await received(cluster[1], 2)) == [b"a", b"b"]


async def test_a_queue_forgets_what_the_only_replica_of_a_partition_has_lost(tmp_path: Path) -> None:
    """Else new messages with the same offsets would count as done."""
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", assignments=ONE_EACH)
        host = await broker_of(cluster, ORDERS)
        other = next(each for each in cluster.brokers if each != host.settings.node_id)
        for number in range(6):
            await sent(host, "orders", b"%d" % number, partition=other - 1)
        await acknowledge(host, *await received(host, 5))
        # As after a power cut that has left two of the records; here the others are still there.
        cluster[other].topics.partition("orders", other - 1).cut_offset = 2
        await cluster[other].queues.settled()
        assert values(await received(host, 4)) == [b"2", b"3", b"4", b"5"]
        await cluster[other].queues.settled()


@pytest.mark.parametrize("is_killed", [False, True], ids=["moved", "killed"])
async def test_a_redrive_continues_when_its_queue_gets_another_broker(
    tmp_path: Path, is_killed: bool
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=2)
        await cluster.create("orders.dlq", partitions=2)
        messages = sorted(b"%d" % number for number in range(40))
        for number, message in enumerate(messages):
            await sent(cluster[1], "orders.dlq", message, partition=number % 2)
        dead = QueueId("queue", "orders.dlq")
        hosting = await broker_of(cluster, dead)
        away, other = await others(cluster, dead)
        task = await away.queues.start_redrive("orders.dlq", target="orders", messages_per_second=20)

        async def found() -> RedriveTask:
            (found,) = await other.queues.redrives()
            return found

        async def has_begun() -> bool:
            return (await found()).moved > 3

        async def ended() -> RedriveTask | None:
            now = await found()
            return None if now.state == "running" else now

        await soon(has_begun)
        if is_killed:
            await cluster.kill(hosting.settings.node_id)
        else:
            index = shard_of(cluster, dead)
            await cluster.move_leader(QUEUES_TOPIC, index, other.settings.node_id)
        done = await soon(ended, within_s=60)
        assert (done.id, done.state, done.moved, done.failure) == (task.id, "completed", 40, "")
        moved = await received(other, 40, QUEUE)
        assert sorted(value for value in values(moved) if value is not None) == messages
        assert await other.queues.receive(QUEUE) == []


async def test_dead_letters_go_to_a_topic_of_another_broker_and_back(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", assignments=ONE_EACH, overrides={"queue.max.deliveries": "1"})
        await cluster.create("orders.dlq", assignments=((2,), (3,), (1,)))
        messages = sorted(b"%d" % number for number in range(9))
        await filled(cluster[1], *messages)
        for delivery in await received(cluster[2], 9, QUEUE):
            assert await settle(cluster[3], Action.REJECT, delivery) == [None]
        dead = QueueId("queue", "orders.dlq")
        letters = await received(cluster[3], 9, dead)
        assert sorted(value for value in values(letters) if value is not None) == messages
        assert [
            await broker.queues.dead_letter_sources("orders.dlq") for broker in cluster.brokers.values()
        ] == [{"orders"}] * 3
        for letter in letters:
            assert await settle(cluster[1], Action.RELEASE, letter) == [None]
        away, other = await others(cluster, dead)
        task = await away.queues.start_redrive("orders.dlq")
        assert [each.id for each in await other.queues.redrives("orders.dlq")] == [task.id]

        async def ended() -> RedriveTask | None:
            (found,) = await other.queues.redrives()
            return None if found.state == "running" else found

        found = await soon(ended)
        assert (found.state, found.moved) == ("completed", 9)
        assert (await away.queues.cancel_redrive(task.id)).state == "completed"
        with pytest.raises(InvalidRequest):
            await away.queues.cancel_redrive("unknown")
        again = await received(cluster[1], 9, QUEUE)
        assert sorted(value for value in values(again) if value is not None) == messages


async def test_each_dead_letter_is_stored_once_when_the_leader_of_its_topic_dies(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=3, replication_factor=3)
        await cluster.create("orders.dlq", partitions=3, replication_factor=3)
        messages = sorted(b"%d" % number for number in range(60))
        host = await broker_of(cluster, QUEUE)
        await filled(host, *messages)
        deliveries = await received(host, 60, QUEUE, visibility_ms=60_000)
        index = next(each for each in range(3) if cluster.leader_of("orders.dlq", each) is not host)
        rejecting = asyncio.gather(*(settle(host, Action.REJECT, each) for each in deliveries))
        await cluster.kill(cluster.leader_id("orders.dlq", index))
        assert await rejecting == [[None]] * 60
        dead = QueueId("queue", "orders.dlq")
        letters = await received(host, 60, dead, visibility_ms=60_000)
        assert sorted(value for value in values(letters) if value is not None) == messages
        assert await host.queues.receive(dead, wait_ms=300) == []


def fifo(value: bytes, deduplication_id: str, group: bytes = b"g") -> FifoMessage:
    return FifoMessage(message=Message(value=value, key=group), deduplication_id=deduplication_id)


async def fifo_sent(broker: Broker, *messages: FifoMessage) -> list[FifoPublished]:
    topic = broker.topics.image.topic("orders.fifo")
    results = await broker.fifo.publish(topic, messages, scope=DeduplicationScope.QUEUE, origin=Origin())
    published = [each for each in results if isinstance(each, FifoPublished)]
    assert len(published) == len(results), results
    return published


async def test_fifo_messages_are_deduplicated_across_brokers_and_leaders(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(
            "orders.fifo", partitions=3, replication_factor=3, overrides={"queue.ordering": "key"}
        )
        groups = [b"%d" % number for number in range(6)]
        first = [
            await fifo_sent(broker, *(fifo(b"x", f"id-{each.decode()}", each) for each in groups))
            for broker in cluster.brokers.values()
        ]
        assert first[0] == first[1] == first[2]
        await cluster.kill(cluster.leader_id("orders.fifo"))
        for broker in cluster.brokers.values():
            async with asyncio.timeout(30):
                again = await fifo_sent(broker, *(fifo(b"x", f"id-{each.decode()}", each) for each in groups))
            assert [each[1:] for each in again] == [each[1:] for each in first[0]]
        queue = QueueId("queue", "orders.fifo")
        assert len(await received(cluster.any, 6, queue)) == 6
        assert await cluster.any.queues.receive(queue) == []
        await cluster.any.purge_queue(queue)
        (purged,) = await fifo_sent(cluster.any, fifo(b"x", "id-0", b"0"))
        assert purged not in first[0]


async def test_publishing_and_receiving_by_many_at_once_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", replication_factor=1, partitions=6)
        count = 300
        seen: list[bytes] = []

        async def publish(broker: Broker, numbers: range) -> None:
            for number in numbers:
                (result,) = await broker.publisher.publish("orders", [Message(value=b"%d" % number)])
                assert isinstance(result, Published)

        async def consume(broker: Broker) -> None:
            while len(seen) < count:
                deliveries = await broker.queues.receive(ORDERS, wait_ms=500)
                await acknowledge(broker, *deliveries)
                seen.extend(value for value in values(deliveries) if value is not None)

        async with asyncio.timeout(40), asyncio.TaskGroup() as tasks:
            for number, broker in enumerate(cluster.brokers.values()):
                tasks.create_task(publish(broker, range(number, count, 3)))
                tasks.create_task(consume(broker))
        assert sorted(map(int, seen)) == list(range(count))
