"""Delayed messages in a cluster of three: any broker takes them, failovers neither lose nor double them."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.delay import host as delay_host
from alpacamq.broker.delay.service import DelayedMessage
from alpacamq.broker.partition.housekeeping import Housekeeping
from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.read.record_reader import Limits, RecordReader
from alpacamq.broker.remote.appends import AppendBatches
from alpacamq.broker.remote.shards import ShardCall
from alpacamq.broker.statemachine import topic as state_machine_topic
from alpacamq.model.batch import read_header
from alpacamq.model.errors import RequestTimedOut, UnknownDelayed
from alpacamq.model.headers import DELIVER_AT
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.model.topics import DELAYS_TOPIC
from alpacamq.timers.messages import Schedule

from .three_brokers import ThreeBrokers, three_brokers

PARTITIONS = 6


def message(broker: Broker, value: str, delay_ms: int, partition: int = 0) -> DelayedMessage:
    return DelayedMessage(
        topic="orders",
        partition=partition,
        due_ms=broker.time.now_ms() + delay_ms,
        key=None,
        value=value.encode(),
        headers=(),
    )


async def schedule(broker: Broker, delay_ms: int, *values: str, partition: int = 0) -> list[int]:
    return await broker.delays.schedule([message(broker, value, delay_ms, partition) for value in values])


async def stored(cluster: ThreeBrokers, partitions: Sequence[int]) -> list[Record]:
    """Return everything that consumers can read of some partitions."""
    reader = RecordReader(cluster.any.work_threads, 1 << 30)
    limits = Limits(records=1000, size_bytes=1 << 20, before_offset=1 << 40)
    found: list[Record] = []
    for index in partitions:
        partition = await cluster.led("orders", index)
        offset = 0
        while offset < partition.high_watermark:
            page = await reader.read(partition, offset, limits, committed=True)
            found += page.records
            offset = page.next_offset
    return found


async def delivered(cluster: ThreeBrokers, *values: str, partitions: int = PARTITIONS) -> None:
    """Wait until these values are in the topic; each must be there once, and not before it was due."""
    expected = Counter(value.encode() for value in values)
    async with asyncio.timeout(20):
        while True:
            records = await stored(cluster, range(partitions))
            found = Counter(record.value for record in records)
            if found >= expected:
                break
            await asyncio.sleep(0.02)
    assert found == expected
    for record in records:
        due_ms = int(dict(record.headers)[DELIVER_AT] or b"0")
        assert record.timestamp_ms >= due_ms


async def settled(cluster: ThreeBrokers) -> None:
    """Wait until nothing is pending."""
    async with asyncio.timeout(20):
        while (await cluster.any.delays.stats()).pending:  # noqa: ASYNC110 - asks other brokers
            await asyncio.sleep(0.02)


def delay_log_of(cluster: ThreeBrokers, partition: int) -> int:
    """Return the number of the delay log of a partition of the topic."""
    return cluster.any.delays._logs._machines.index_of(f"orders-{partition}")


async def test_every_broker_schedules_for_every_partition(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=PARTITIONS)
        values = []
        for node_id, broker in cluster.brokers.items():
            for partition in range(PARTITIONS):
                some = [f"{node_id}-{partition}-{number}" for number in range(5)]
                await schedule(broker, 400, *some, partition=partition)
                values += some
        await delivered(cluster, *values)
        await settled(cluster)


async def test_every_broker_lists_reads_counts_and_cancels(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=PARTITIONS)
        ids: dict[int, int] = {}
        for partition in range(PARTITIONS):
            [ids[partition]] = await schedule(cluster[1], 60_000, f"m{partition}", partition=partition)
        assert len(set(ids.values())) == PARTITIONS
        for broker in cluster.brokers.values():
            listed = await broker.delays.waiting("orders")
            assert [each.id for each in listed] == sorted(ids.values())
            assert {each.partition: each.id for each in listed} == ids
            contents = await broker.delays.messages("orders")
            assert sorted(each.value or b"" for _, each in contents) == [
                f"m{partition}".encode() for partition in range(PARTITIONS)
            ]
            waiting, read = await broker.delays.message("orders", ids[3])
            assert (waiting.partition, read.value) == (3, b"m3")
            assert (await broker.delays.stats()).pending == PARTITIONS
            counts = await broker.delays.stats("orders")
            assert (counts.pending, counts.next_due_ms) == (PARTITIONS, min(each.due_ms for each in listed))
        for node_id, broker in cluster.brokers.items():
            cancelled = await broker.delays.cancel("orders", node_id, ids[node_id])
            assert cancelled.id == ids[node_id]
            with pytest.raises(UnknownDelayed):
                await broker.delays.cancel("orders", node_id, ids[node_id])
            with pytest.raises(UnknownDelayed):
                await broker.delays.cancel("orders", 0, ids[4])
        assert (await cluster[3].delays.stats()).pending == PARTITIONS - 3


@pytest.mark.parametrize("delay_ms", [150, 1500], ids=["while delivering", "before the delivery"])
async def test_messages_survive_the_broker_of_their_delay_log(tmp_path: Path, delay_ms: int) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        await schedule(cluster[1], 60_000, "later")
        number = delay_log_of(cluster, 0)
        await cluster.led(DELAYS_TOPIC, number)
        victim = cluster.leader_id(DELAYS_TOPIC, number)
        values = [f"{number}" for number in range(300)]
        others = [broker for node_id, broker in cluster.brokers.items() if node_id != victim]
        await asyncio.gather(
            *(schedule(others[at % 2], delay_ms, *values[at : at + 30]) for at in range(0, 300, 30))
        )
        await cluster.kill(victim)
        await delivered(cluster, *values, partitions=1)
        assert [each.partition for each in await cluster.any.delays.waiting("orders")] == [0]


async def test_messages_survive_the_leader_of_their_target(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        await schedule(cluster[1], 60_000, "later")
        number = delay_log_of(cluster, 0)
        await cluster.led(DELAYS_TOPIC, number)
        shard = cluster.leader_id(DELAYS_TOPIC, number)
        victim = next(node_id for node_id in cluster.brokers if node_id != shard)
        await cluster.move_leader("orders", 0, victim)
        values = [f"{number}" for number in range(100)]
        for at in range(0, 100, 10):
            await schedule(cluster[shard], 200 + 20 * at, *values[at : at + 10])
        target = await cluster.led("orders")
        await cluster.until(lambda: target.high_watermark > 0, "the first deliveries")
        await cluster.kill(victim)
        await delivered(cluster, *values, partitions=1)


async def test_deliveries_that_were_not_recorded_are_not_repeated_by_the_next_broker(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        await schedule(cluster[1], 60_000, "later")
        number = delay_log_of(cluster, 0)
        await cluster.led(DELAYS_TOPIC, number)
        shard = cluster.leader_id(DELAYS_TOPIC, number)
        target = next(node_id for node_id in cluster.brokers if node_id != shard)
        await cluster.move_leader("orders", 0, target)
        # The leader of the target appends, but its replies are lost.
        member = cluster[target].member
        assert member is not None
        append = member.handlers[AppendBatches]

        async def lossy(call: AppendBatches, peer: Peer) -> Any:
            await append(call, peer)
            raise RequestTimedOut("the reply was lost")

        member.serve({AppendBatches: lossy})
        values = [f"{number}" for number in range(50)]
        for at in range(0, 50, 5):
            await schedule(cluster[shard], 300 + 3 * at, *values[at : at + 5])
        partition = cluster[target].topics.partition("orders", 0)
        await cluster.until(lambda: partition.high_watermark > 0, "a delivery")
        await cluster.kill(shard)
        member.serve({AppendBatches: append})
        await delivered(cluster, *values, partitions=1)
        await cluster.until(lambda: pending(cluster, number) == 1, "the delivery to be recorded")
        assert len(await stored(cluster, [0])) == 50


def pending(cluster: ThreeBrokers, number: int) -> int | None:
    """Return how many messages a delay log has, in flight or waiting; None while it is loaded."""
    logs = cluster.leader_of(DELAYS_TOPIC, number).delays._logs
    machine = logs[number].host.machine if number in logs else None
    return None if machine is None else machine.pending + len(machine._state.due_batches.in_flight)


async def test_a_repeated_schedule_of_unknown_outcome_is_recognised(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        await schedule(cluster[1], 60_000, "later")
        number = delay_log_of(cluster, 0)
        await cluster.led(DELAYS_TOPIC, number)
        shard = cluster.leader_id(DELAYS_TOPIC, number)
        source = next(node_id for node_id in cluster.brokers if node_id != shard)
        lost = lose_first_replies(cluster[shard])
        ids = [await schedule(cluster[source], 1500, f"{at}", "again") for at in range(10)]
        assert lost == ["Schedule"] * 10
        assert len({each for some in ids for each in some}) == 20
        waiting = await cluster[source].delays.waiting("orders")
        assert {each.id for each in waiting} >= {each for some in ids for each in some}
        await delivered(cluster, *(f"{at}" for at in range(10)), *["again"] * 10, partitions=1)


def lose_first_replies(broker: Broker) -> list[str]:
    """Lose every other reply to schedules of other brokers, after they took effect; return those lost."""
    assert broker.member is not None
    serve = broker.member.handlers[ShardCall]
    lost: list[str] = []
    is_repeated = False

    async def lossy(call: ShardCall, peer: Peer) -> Any:
        nonlocal is_repeated
        reply = await serve(call, peer)
        if call.kind == Schedule.__name__:
            is_repeated = not is_repeated
            if is_repeated:
                lost.append(call.kind)
                raise RequestTimedOut("the reply was lost")
        return reply

    broker.member.serve({ShardCall: lossy})
    return lost


async def test_a_kafka_batch_that_is_split_again_is_scheduled_once(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=1)
        await schedule(cluster[1], 60_000, "later")
        number = delay_log_of(cluster, 0)
        await cluster.led(DELAYS_TOPIC, number)
        shard = cluster.leader_id(DELAYS_TOPIC, number)
        others = [node_id for node_id in cluster.brokers if node_id != shard]
        due_ms = cluster[1].time.now_ms() + 1000
        records = [
            Record(at, 1000, None, f"{at}".encode(), (Header(DELIVER_AT, str(due_ms).encode()),))
            for at in range(3)
        ]
        data = write_batch(records, producer_id=77, producer_epoch=0, base_sequence=0)
        for leader in others:
            await cluster.move_leader("orders", 0, leader)
            partition = cluster[leader].topics.partition("orders", 0)
            left, header = await cluster[leader].delayed_batches.without_delayed(
                partition, bytearray(data), read_header(data)
            )
            assert header.is_control  # all its records are delayed
            del left
        await delivered(cluster, "0", "1", "2", partitions=1)


async def test_replicas_of_delay_logs_are_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(state_machine_topic.OVERRIDES, "segment.bytes", "4096")
    monkeypatch.setattr(delay_host, "GARBAGE_BYTES", 16 << 10)
    async with three_brokers(tmp_path, checkpoint_bytes=1024) as cluster:
        await cluster.create("orders", partitions=1)
        for at in range(20):
            await schedule(cluster[1], 1, *[f"{at}-{number:0300}" for number in range(10)])
        await settled(cluster)
        number = delay_log_of(cluster, 0)
        leader = await cluster.led(DELAYS_TOPIC, number)
        follower = cluster.follower_of(DELAYS_TOPIC, number)
        replica = follower.topics.replica(DELAYS_TOPIC.encode(), number)
        assert replica is not None
        await cluster.until(
            lambda: replica.high_watermark == leader.log.end_offset, "the follower's watermark"
        )
        await replica.flush_to(replica.log.end_offset)
        before_bytes = replica.log.size_bytes
        assert follower.delays.is_worth_compacting(replica)
        housekeeping = Housekeeping(
            lambda: [replica],
            follower.work_threads,
            follower.clock,
            1000,
            follower.delays.is_worth_compacting,
        )
        await housekeeping.clean(replica)
        assert replica.log.size_bytes < before_bytes / 2
        assert not follower.delays.is_worth_compacting(replica)
