"""Members of consumer groups against a real broker: assignment, commits, rebalances, fencing."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack

import pytest

from alpacamq.client.aio.cluster import Cluster, Coordinates
from alpacamq.client.aio.consumer import Consumer, ConsumerSettings
from alpacamq.client.aio.producer import Producer
from alpacamq.client.aio.reader import At, ConsumedRecord
from alpacamq.client.connect import parse_address
from alpacamq.client.errors import MemberFenced, OffsetOutOfRange, Refused
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.brokers import Broker
from tests.waiting import soon

PARTITIONS = 3


async def write(cluster: Cluster, topic: str, count: int, *, first: int = 0) -> None:
    async with Producer(cluster) as producer:
        for number in range(first, first + count):
            await producer.put(topic, b"%d" % number, key=b"%d" % number)


def places(topic: str, *numbers: int) -> set[TopicPartition]:
    return {TopicPartition(TopicName(topic), number) for number in numbers or range(PARTITIONS)}


async def take(consumer: Consumer, count: int) -> list[int]:
    return sorted([int((await anext(consumer)).value or b"") for _ in range(count)])


@pytest.fixture
async def other(broker: Broker) -> AsyncIterator[Cluster]:
    """Another client, with connections of its own."""
    async with Cluster([parse_address(broker.address)]) as cluster:
        yield cluster


async def test_a_member_gets_every_record_and_goes_on_where_it_committed(
    cluster: Cluster, topic: str
) -> None:
    await write(cluster, topic, 100)
    async with Consumer(cluster, topic, topics=[topic]) as consumer:
        assert await take(consumer, 100) == list(range(100))
        assert consumer.assignment == places(topic)
        await consumer.commit()
        committed = await consumer.committed(places(topic))
        assert sum(offset or 0 for offset in committed.values()) == 100
    await write(cluster, topic, 50, first=100)
    async with Consumer(cluster, topic, topics=[topic]) as consumer:
        assert await take(consumer, 50) == list(range(100, 150))


async def test_what_was_not_committed_is_delivered_again(cluster: Cluster, topic: str) -> None:
    await write(cluster, topic, 10)
    for _ in range(2):
        async with Consumer(cluster, topic, topics=[topic]) as consumer:
            assert await take(consumer, 10) == list(range(10))


async def test_a_commit_is_of_the_records_that_were_delivered(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster) as producer:
        for number in range(100):
            await producer.put(topic, b"%d" % number, partition=0)
    place = TopicPartition(TopicName(topic), 0)
    async with Consumer(cluster, topic, topics=[topic]) as consumer:
        await take(consumer, 42)
        await consumer.commit()
        assert consumer.positions()[place] == 42
    async with Consumer(cluster, topic, topics=[topic]) as consumer:
        assert await take(consumer, 1) == [42]
        await consumer.commit({place: 99})
    async with Consumer(cluster, topic, topics=[topic]) as consumer:
        assert await take(consumer, 1) == [99]


async def test_members_share_partitions_and_nothing_is_lost_or_doubled(
    cluster: Cluster, other: Cluster, topic: str
) -> None:
    count = 3000
    await write(cluster, topic, count)
    seen: Counter[int] = Counter()
    assigned: dict[int, set[TopicPartition]] = {1: set(), 2: set()}
    is_shared = asyncio.Event()

    async def member(number: int, mine: Cluster) -> None:
        def got(added: Iterable[TopicPartition]) -> None:
            assigned[number].update(added)
            if assigned[1] and assigned[2]:
                is_shared.set()

        async with Consumer(mine, topic, topics=[topic], on_assigned=got) as consumer:
            while seen.total() < count:
                # The first one must not be done before the second has its share.
                for record in await consumer.take(50 if is_shared.is_set() else 1, wait_s=0.2):
                    seen[int(record.value or b"")] += 1
                await consumer.commit()

    async with asyncio.TaskGroup() as members:
        members.create_task(member(1, cluster))
        await soon(lambda: seen)
        members.create_task(member(2, other))
    assert assigned[2], "the second member got nothing"
    assert seen == Counter(range(count))


async def test_partitions_are_revoked_before_another_member_gets_them(
    cluster: Cluster, other: Cluster, topic: str
) -> None:
    await write(cluster, topic, 300)
    events: list[tuple[str, int]] = []

    def note(what: str) -> object:
        return lambda some: events.extend((what, each.partition) for each in some)

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            Consumer(cluster, topic, topics=[topic], on_revoked=note("revoked"))  # type: ignore[arg-type]
        )
        await take(first, 300)
        second = await stack.enter_async_context(
            Consumer(other, topic, topics=[topic], on_assigned=note("assigned"))  # type: ignore[arg-type]
        )
        while not second.assignment:
            await asyncio.gather(first.take(wait_s=0.1), second.take(wait_s=0.1))
        assert not first.assignment & second.assignment
        assert first.assignment | second.assignment == places(topic)
        for partition in {each.partition for each in second.assignment}:
            assert events.index(("revoked", partition)) < events.index(("assigned", partition))


async def test_revoked_partitions_are_committed_with_auto_commit(
    cluster: Cluster, other: Cluster, topic: str
) -> None:
    await write(cluster, topic, 300)
    settings = ConsumerSettings(auto_commit_s=3600)
    async with Consumer(cluster, topic, topics=[topic], settings=settings) as first:
        await take(first, 300)
        async with Consumer(other, topic, topics=[topic], settings=settings) as second:
            while not second.assignment:
                got = await asyncio.gather(first.take(wait_s=0.1), second.take(wait_s=0.1))
                assert not any(got), "a record was delivered twice"


async def test_auto_commit_leaves_out_the_record_that_is_being_processed(
    cluster: Cluster, topic: str
) -> None:
    async with Producer(cluster) as producer:
        for number in range(10):
            await producer.put(topic, b"%d" % number, partition=0)
    settings = ConsumerSettings(auto_commit_s=0.01)
    place = TopicPartition(TopicName(topic), 0)

    async def fail_at_the_fifth() -> None:
        async with Consumer(cluster, topic, topics=[topic], settings=settings) as consumer:
            await take(consumer, 5)
            async with asyncio.timeout(60):
                while (await consumer.committed([place]))[place] != 4:
                    pass
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_the_fifth()
    async with Consumer(cluster, topic, topics=[topic], settings=settings) as consumer:
        assert await take(consumer, 1) == [4]
    # Left without an error: it was processed.
    async with Consumer(cluster, topic, topics=[topic], settings=settings) as consumer:
        assert await take(consumer, 1) == [5]


async def test_a_pattern_subscribes_to_topics_that_match(cluster: Cluster, topic: str) -> None:
    await write(cluster, f"{topic}-a", 5)
    await write(cluster, f"{topic}-b", 5, first=5)
    await write(cluster, f"other-{topic}", 5, first=10)
    async with Consumer(cluster, topic, pattern=f"{topic}-.*") as consumer:
        assert await take(consumer, 10) == list(range(10))


async def test_a_subscription_can_be_replaced(cluster: Cluster, topic: str) -> None:
    await write(cluster, f"{topic}-a", 5)
    await write(cluster, f"{topic}-b", 5, first=5)
    async with Consumer(cluster, topic, topics=[f"{topic}-a"]) as consumer:
        assert await take(consumer, 5) == list(range(5))
        consumer.subscribe([f"{topic}-b"])
        assert await take(consumer, 5) == list(range(5, 10))
        assert {each.topic for each in consumer.assignment} == {f"{topic}-b"}


@pytest.mark.parametrize("reset", ["latest", At(timestamp_ms=5_000_000)], ids=["latest", "time"])
async def test_a_new_group_starts_where_it_is_told(cluster: Cluster, topic: str, reset: str | At) -> None:
    async with Producer(cluster) as producer:
        for number in range(10):
            await producer.put(topic, b"%d" % number, partition=0, timestamp_ms=number * 1_000_000 + 1)
        await producer.flush()
        async with Consumer(
            cluster, topic, topics=[topic], settings=ConsumerSettings(reset=reset)
        ) as consumer:
            while not consumer.assignment:
                first = await consumer.take(wait_s=0.1)
            if reset == "latest":
                assert first == []
                await producer.put(topic, b"new", partition=0)
                assert (await anext(consumer)).value == b"new"
            else:
                values = [*first, *([] if first else await consumer.take())]
                assert [int(record.value or b"") for record in values] == [5, 6, 7, 8, 9]


async def test_a_new_group_without_a_start_is_an_error(cluster: Cluster, topic: str) -> None:
    await write(cluster, topic, 1)
    settings = ConsumerSettings(reset="error")
    async with Consumer(cluster, topic, topics=[topic], settings=settings) as consumer:
        with pytest.raises(OffsetOutOfRange, match="no committed offset"):
            await anext(consumer)


async def test_paused_partitions_deliver_nothing_until_they_are_resumed(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster) as producer:
        for number in range(30):
            await producer.put(topic, b"%d" % number, partition=number % PARTITIONS)
    async with Consumer(cluster, topic, topics=[topic]) as consumer:
        await anext(consumer)
        consumer.pause(places(topic, 1, 2))
        consumer.seek(TopicPartition(TopicName(topic), 0), 0)
        assert await take(consumer, 10) == list(range(0, 30, 3))
        assert await consumer.take(wait_s=0.1) == []
        for place in places(topic, 1, 2):
            consumer.seek(place, 0)
        consumer.resume(places(topic, 1, 2))
        assert await take(consumer, 20) == [number for number in range(30) if number % 3]


async def test_a_member_that_was_removed_joins_again(cluster: Cluster, other: Cluster, topic: str) -> None:
    await write(cluster, topic, 10)
    lost: list[TopicPartition] = []
    async with Consumer(cluster, topic, topics=[topic], on_lost=lost.extend) as consumer:
        assert await take(consumer, 10) == list(range(10))
        await leave_for(other, consumer)
        with pytest.raises(MemberFenced):
            await consumer.commit()
        assert await take(consumer, 10) == list(range(10)), "nothing was committed"
        assert set(lost) == places(topic)
        await consumer.commit()
    async with Consumer(cluster, topic, topics=[topic]) as consumer:
        while not consumer.assignment:
            assert await consumer.take(wait_s=0.1) == []


async def leave_for(cluster: Cluster, consumer: Consumer) -> None:
    """Remove a member from its group behind its back."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=consumer.group, member_id=consumer.member_id, member_epoch=-1
    )
    answer = await cluster.call_coordinator(
        Coordinates.GROUP, consumer.group, request, ConsumerGroupHeartbeatResponse
    )
    assert not answer.error_code


async def test_a_static_member_that_restarts_gets_its_partitions_back(cluster: Cluster, topic: str) -> None:
    await write(cluster, topic, 10)
    settings = ConsumerSettings(instance_id="one", auto_commit_s=3600)
    async with Consumer(cluster, topic, topics=[topic], settings=settings) as consumer:
        await take(consumer, 10)
    await write(cluster, topic, 10, first=10)
    async with Consumer(cluster, topic, topics=[topic], settings=settings) as consumer:
        assert await take(consumer, 10) == list(range(10, 20))


async def test_a_subscription_that_the_broker_refuses_is_an_error(cluster: Cluster, topic: str) -> None:
    async with Consumer(cluster, topic, pattern="(") as consumer:
        with pytest.raises(Refused, match="INVALID_REGULAR_EXPRESSION"):
            await anext(consumer)


async def test_an_application_that_waits_briefly_takes_part_in_rebalances(
    cluster: Cluster, topic: str
) -> None:
    await write(cluster, topic, 10)
    release = asyncio.Event()
    calls: list[int] = []

    async def assigned(added: Iterable[TopicPartition]) -> None:
        calls.append(len(list(added)))
        await release.wait()

    async with Consumer(cluster, topic, topics=[topic], on_assigned=assigned) as consumer:
        async with asyncio.timeout(60):
            while not calls:
                assert await consumer.take(wait_s=0.001) == []
            for _ in range(10):
                assert await consumer.take(wait_s=0.001) == []
        release.set()
        assert await take(consumer, 10) == list(range(10))
    assert calls == [PARTITIONS], "the callback was started once and not cancelled"


async def test_an_error_of_a_callback_is_raised_and_the_rebalance_tried_again(
    cluster: Cluster, other: Cluster, topic: str
) -> None:
    await write(cluster, topic, 300)
    failures = [ZeroDivisionError]

    def revoked(_: object) -> None:
        if failures:
            raise failures.pop()

    async with Consumer(cluster, topic, topics=[topic], on_revoked=revoked) as first:
        await take(first, 300)
        async with Consumer(other, topic, topics=[topic]) as second:

            async def wait_for_both() -> None:
                while not second.assignment:
                    await asyncio.gather(first.take(wait_s=0.1), second.take(wait_s=0.1))

            with pytest.raises(ZeroDivisionError):
                await wait_for_both()
            await wait_for_both()
            assert not first.assignment & second.assignment


async def test_callbacks_may_be_coroutines_and_may_commit(
    cluster: Cluster, other: Cluster, topic: str
) -> None:
    await write(cluster, topic, 300)
    got: list[ConsumedRecord] = []
    async with AsyncExitStack() as stack:

        async def revoked(_: object) -> None:
            await first.commit()

        first = await stack.enter_async_context(Consumer(cluster, topic, topics=[topic], on_revoked=revoked))
        await take(first, 300)
        second = await stack.enter_async_context(Consumer(other, topic, topics=[topic]))
        while not second.assignment:
            _, records = await asyncio.gather(first.take(wait_s=0.1), second.take(wait_s=0.1))
            got += records
        assert got == []
