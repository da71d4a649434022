"""Transactions over three brokers: markers, failovers, fencing, hanging transactions."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.leader import Partition, append
from alpacamq.broker.publishing import Message, Published
from alpacamq.broker.remote.markers import TransactionEnd, WriteTxnMarkers, WrittenMarkers
from alpacamq.broker.transactions import HangingTransaction
from alpacamq.coordinator.messages import (
    CompleteTransactionRequest,
    FetchOffsetsRequest,
    OffsetToCommit,
    TxnCommitRequest,
)
from alpacamq.coordinator.transactions.transaction import (
    AddPartitions,
    DescribeTransaction,
    EndProtocol,
    EndTransaction,
    InitProducer,
    ListTransactions,
    ProducerIdentity,
    TransactionState,
)
from alpacamq.model.batch import TRANSACTIONAL
from alpacamq.model.errors import (
    AlpacaError,
    ConcurrentTransactions,
    CoordinatorUnavailable,
    FencedProducer,
    InvalidTransactionState,
    NotCoordinator,
    PeerUnavailable,
    ProducerFenced,
    RequestTimedOut,
    TransactionCoordinatorFenced,
)
from alpacamq.model.ids import BrokerId, TopicName, TopicPartition
from alpacamq.model.records import Record, write_batch
from alpacamq.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.broker.transactions import begun, end_with_new_epoch

from .three_brokers import ThreeBrokers, three_brokers

ID = "till-7"
RETRY_SECONDS = 20.0


def partition(index: int, topic: str = "orders") -> TopicPartition:
    return TopicPartition(TopicName(topic), index)


class Till:
    """A transactional producer of the classic protocol, which talks to leaders and coordinators itself."""

    def __init__(self, cluster: ThreeBrokers, transactional_id: str = ID) -> None:
        self._cluster = cluster
        self.id = transactional_id
        self.identity = ProducerIdentity(-1, -1)
        self._sequences: dict[TopicPartition, int] = {}

    async def coordinator(self) -> Broker:
        """Return the broker that coordinates this producer, once a running one does."""
        await self._cluster.led(TRANSACTIONS_TOPIC, await self._shard())
        return self._cluster.leader_of(TRANSACTIONS_TOPIC, await self._shard())

    async def coordinator_id(self) -> int:
        await self.coordinator()
        return self._cluster.leader_id(TRANSACTIONS_TOPIC, await self._shard())

    async def _shard(self) -> int:
        machines = self._cluster.any.transactions._machines
        await machines.broker_of(self.id)
        return machines.index_of(self.id)

    async def ask(self, request: Any) -> Any:
        """Ask the coordinator as Kafka's clients do: find it again and retry while there is none."""
        async with asyncio.timeout(RETRY_SECONDS):
            while True:
                try:
                    return await (await self.coordinator()).transactions.ask_here(request)
                except (NotCoordinator, CoordinatorUnavailable):
                    await asyncio.sleep(0.02)

    async def begin(self) -> None:
        self.identity = await self.ask(InitProducer(transactional_id=self.id))
        self._sequences.clear()

    async def add(self, *partitions: TopicPartition) -> int:
        request = AddPartitions(transactional_id=self.id, producer=self.identity, partitions=partitions)
        added = await self.ask(request)
        number: int = added.number
        return number

    async def write(self, *partitions: TopicPartition) -> None:
        """Write one record to each partition, which was added before."""
        for place in partitions:
            sequence = self._sequences.get(place, 0)
            batch = write_batch(
                [Record(0, 1000, b"k", b"%d" % sequence)],
                attributes=TRANSACTIONAL,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.epoch,
                base_sequence=sequence,
            )
            await append(await self._cluster.led(*place), batch)
            self._sequences[place] = sequence + 1

    async def end(
        self, *, committed: bool = True, protocol: EndProtocol = EndProtocol.CLASSIC
    ) -> ProducerIdentity:
        request = EndTransaction(
            transactional_id=self.id, producer=self.identity, committed=committed, protocol=protocol
        )
        ended = await (await self.coordinator()).transactions.end_here(request)
        if ended != self.identity:
            self._sequences.clear()
        self.identity = ended
        return ended

    async def end_when_possible(self, *, committed: bool) -> None:
        """End as Kafka's clients do: find the coordinator again and retry while there is none."""
        async with asyncio.timeout(RETRY_SECONDS):
            while True:
                try:
                    await self.end(committed=committed)
                    return
                except (NotCoordinator, CoordinatorUnavailable, ConcurrentTransactions):
                    await asyncio.sleep(0.02)

    async def until_complete(self) -> TransactionState:
        async with asyncio.timeout(RETRY_SECONDS):
            while True:
                known = await self.ask(DescribeTransaction(transactional_id=self.id))
                if known.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
                    state: TransactionState = known.state
                    return state
                await asyncio.sleep(0.01)


@asynccontextmanager
async def a_till(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[ThreeBrokers, Till]]:
    """A cluster with three partitions of `orders`, each led by another broker, and a producer."""
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=3, **options)
        till = Till(cluster)
        await till.begin()
        yield cluster, till


ALL = (partition(0), partition(1), partition(2))
Handler = Callable[[WriteTxnMarkers, Any], Awaitable[WrittenMarkers]]


def markers_handler(broker: Broker) -> Handler:
    assert broker.member is not None
    handler: Handler = broker.member.handlers[WriteTxnMarkers]
    return handler


async def a_partition_elsewhere(cluster: ThreeBrokers, till: Till) -> tuple[TopicPartition, Broker]:
    """Return a partition that another broker than the coordinator leads, and that broker."""
    coordinator = await till.coordinator_id()
    index = next(index for index in range(3) if cluster.leader_id("orders", index) != coordinator)
    return partition(index), cluster.leader_of("orders", index)


async def open_transactions(cluster: ThreeBrokers, *places: TopicPartition) -> list[int]:
    """Return the number of open transactions in each partition, at its leader."""
    led = [await cluster.led(*place) for place in places]
    return [len(each.log.transactions.open_transactions()) for each in led]


async def until_stable(cluster: ThreeBrokers, *places: TopicPartition) -> None:
    """Return once readers of committed records see everything."""
    for place in places:
        led = await cluster.led(*place)
        is_stable = partial(_is_stable, led)
        await cluster.until(is_stable, f"the end of transactions in {place}")


def _is_stable(led: Partition) -> bool:
    return led.last_stable_offset == led.end_offset


@pytest.mark.parametrize("committed", [True, False])
async def test_a_transaction_ends_on_every_broker(tmp_path: Path, committed: bool) -> None:
    async with a_till(tmp_path) as (cluster, till):
        for _ in range(2):
            await till.add(*ALL)
            await till.write(*ALL)
            assert await open_transactions(cluster, *ALL) == [1, 1, 1]
            await till.end(committed=committed)
            await till.until_complete()
            assert await open_transactions(cluster, *ALL) == [0, 0, 0]
        for place in ALL:
            led = await cluster.led(*place)
            assert (led.end_offset, led.high_watermark) == (4, 4)
            assert len(led.aborted_between(0, 4)) == (0 if committed else 2)


async def test_markers_of_a_turn_go_with_one_call_per_broker(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=12)
        till = Till(cluster)
        await till.begin()
        calls: dict[int, list[int]] = {node_id: [] for node_id in cluster.brokers}
        for node_id, broker in cluster.brokers.items():
            serve = markers_handler(broker)

            async def counted(
                value: WriteTxnMarkers, peer: Any, serve: Handler = serve, node_id: int = node_id
            ) -> WrittenMarkers:
                calls[node_id].append(len(value.partitions))
                return await serve(value, peer)

            assert broker.member is not None
            broker.member.serve({WriteTxnMarkers: counted})
        places = [partition(index) for index in range(12)]
        await till.add(*places)
        await till.write(*places)
        await till.end()
        await till.until_complete()
        led_by = Counter(cluster.leader_id("orders", index) for index in range(12))
        coordinator = await till.coordinator_id()
        assert calls == {
            node_id: [] if node_id == coordinator else [led_by[node_id]] for node_id in cluster.brokers
        }


async def test_a_marker_whose_reply_is_lost_is_written_once(tmp_path: Path) -> None:
    async with a_till(tmp_path) as (cluster, till):
        place, leader = await a_partition_elsewhere(cluster, till)
        serve = markers_handler(leader)
        calls: list[WriteTxnMarkers] = []

        async def lose_first_replies(value: WriteTxnMarkers, peer: Any) -> WrittenMarkers:
            calls.append(value)
            written = await serve(value, peer)
            if len(calls) <= 2:
                raise RequestTimedOut("the reply is lost")
            return written

        assert leader.member is not None
        leader.member.serve({WriteTxnMarkers: lose_first_replies})
        await till.add(place)
        await till.write(place)
        await till.end()
        await till.until_complete()
        assert len(calls) == 3
        led = await cluster.led(*place)
        assert led.end_offset == 2
        # The first call again, which was delayed on its way: the next transaction goes on.
        await till.add(place)
        await till.write(place)
        await leader.transactions.markers._end_here(place, calls[0].ends[0])
        assert await open_transactions(cluster, place) == [1]
        assert led.end_offset == 3


async def test_the_next_leader_gets_the_marker(tmp_path: Path) -> None:
    async with a_till(tmp_path) as (cluster, till):
        place, leader = await a_partition_elsewhere(cluster, till)
        refused = asyncio.Event()

        async def refuse(_value: WriteTxnMarkers, _peer: Any) -> WrittenMarkers:
            refused.set()
            raise PeerUnavailable("not now")

        assert leader.member is not None
        leader.member.serve({WriteTxnMarkers: refuse})
        await till.add(*ALL)
        await till.write(*ALL)
        await till.end()
        await refused.wait()
        assert await open_transactions(cluster, place) == [1]
        await cluster.kill(cluster.leader_id(*place))
        await until_stable(cluster, place)
        assert await till.until_complete() is TransactionState.COMPLETE_COMMIT
        await until_stable(cluster, *ALL)
        for each in ALL:
            assert (await cluster.led(*each)).aborted_between(0, 2) == []


@pytest.mark.parametrize("committed", [True, False])
async def test_the_next_coordinator_completes_a_decided_transaction(tmp_path: Path, committed: bool) -> None:
    async with a_till(tmp_path) as (cluster, till):
        blocked = asyncio.Event()

        async def block(_value: WriteTxnMarkers, _peer: Any) -> WrittenMarkers:
            blocked.set()
            raise PeerUnavailable("not now")

        handlers = {node_id: markers_handler(broker) for node_id, broker in cluster.brokers.items()}
        for broker in cluster.brokers.values():
            assert broker.member is not None
            broker.member.serve({WriteTxnMarkers: block})
        await till.add(*ALL)
        await till.write(*ALL)
        await till.end(committed=committed)
        await blocked.wait()
        former = await till.coordinator_id()
        await cluster.kill(former)
        for node_id, broker in cluster.brokers.items():
            assert broker.member is not None
            broker.member.serve({WriteTxnMarkers: handlers[node_id]})
        state = await till.until_complete()
        assert state is (TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT)
        await until_stable(cluster, *ALL)
        for place in ALL:
            led = await cluster.led(*place)
            assert len(led.aborted_between(0, led.end_offset)) == (0 if committed else 1)


async def test_markers_of_a_former_coordinator_are_refused(tmp_path: Path) -> None:
    async with a_till(tmp_path) as (cluster, till):
        place, _ = await a_partition_elsewhere(cluster, till)
        former = await till.coordinator_id()
        shard = await till._shard()
        former_epoch = cluster.state(TRANSACTIONS_TOPIC, shard).leader_epoch
        await cluster.move_leader(TRANSACTIONS_TOPIC, shard, next(iter({1, 2, 3} - {former})))
        await till.add(place)
        await till.write(place)
        await till.end()
        await till.until_complete()
        await till.add(place)
        await till.write(place)
        late = TransactionEnd(*till.identity, committed=False, coordinator_epoch=former_epoch, number=2)
        markers = cluster.follower_of(*place).transactions.markers
        with pytest.raises(TransactionCoordinatorFenced):
            await markers.end(place, late)
        with pytest.raises(TransactionCoordinatorFenced):
            await cluster.leader_of(*place).transactions.write_marker(
                place, *till.identity, committed=False, coordinator_epoch=former_epoch
            )
        assert await open_transactions(cluster, place) == [1]


async def test_a_transaction_completes_without_the_partitions_of_a_deleted_topic(tmp_path: Path) -> None:
    async with a_till(tmp_path) as (cluster, till):
        await cluster.create("short-lived", partitions=3)
        gone = [partition(index, "short-lived") for index in range(3)]
        await till.add(*ALL, *gone)
        await till.write(*ALL, *gone)
        await cluster.any.topics.delete("short-lived")
        await till.end()
        assert await till.until_complete() is TransactionState.COMPLETE_COMMIT
        await until_stable(cluster, *ALL)


async def test_a_topic_that_the_coordinator_has_not_heard_of_is_not_taken_for_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_till(tmp_path) as (cluster, till):
        place, _ = await a_partition_elsewhere(cluster, till)
        coordinator = await till.coordinator()
        topics = coordinator.topics
        await till.add(place)
        await till.write(place)
        # As if its image were behind until it asks the controller.
        catch_up = topics.catch_up

        async def caught_up() -> None:
            await catch_up()
            monkeypatch.undo()

        monkeypatch.setattr(topics, "catch_up", caught_up)
        monkeypatch.setattr(topics, "_topic", lambda _key: None)
        await till.end(committed=False)
        assert await till.until_complete() is TransactionState.COMPLETE_ABORT
        await until_stable(cluster, place)


async def test_offsets_are_committed_at_the_coordinator_of_their_group(tmp_path: Path) -> None:
    async with a_till(tmp_path) as (cluster, till):
        topic_id = cluster.any.topics.image.topics[TopicName("orders")].id
        coordinator = await till.coordinator_id()
        any_broker = cluster.any
        # A group of another broker.
        groups = [f"group-{number}" for number in range(100)]
        shards = {group: (await any_broker.groups.offsets_partition(group)).partition for group in groups}
        group, index = next(
            (group, shard)
            for group, shard in shards.items()
            if cluster.leader_id(OFFSETS_TOPIC, shard) != coordinator
        )
        await cluster.led(OFFSETS_TOPIC, index)
        machines = cluster.leader_of(OFFSETS_TOPIC, index).groups._machines
        await machines.all()
        host = machines.host_at(index)

        async def committed() -> list[int]:
            request = FetchOffsetsRequest(
                group=group, partitions=(partition(0),), topic_ids={"orders": topic_id}
            )
            return [each.offset for each in (await host.ask(request)).offsets]

        async def commit_offset(offset: int, number: int) -> None:
            request = TxnCommitRequest(
                group=group,
                producer_id=till.identity.producer_id,
                producer_epoch=till.identity.epoch,
                offsets=(OffsetToCommit(topic="orders", partition=0, offset=offset, topic_id=topic_id),),
                number=number,
            )
            await host.ask(request)

        place = partition(index, OFFSETS_TOPIC)
        first = await till.add(place)
        await commit_offset(5, first)
        assert await committed() == [-1]
        await till.end()
        await till.until_complete()
        assert await committed() == [5]
        # A late request of the first transaction is refused, and a late marker does not end the second.
        with pytest.raises(InvalidTransactionState):
            await commit_offset(6, first)
        second = await till.add(place)
        await commit_offset(7, second)
        await host.ask(
            CompleteTransactionRequest(
                producer_id=till.identity.producer_id,
                producer_epoch=till.identity.epoch,
                committed=True,
                number=first,
            )
        )
        assert await committed() == [5]
        await till.end(committed=False)
        await till.until_complete()
        assert await committed() == [5]


@pytest.mark.parametrize("committed", [True, False])
async def test_the_next_coordinator_of_a_group_ends_the_transaction(tmp_path: Path, committed: bool) -> None:
    async with a_till(tmp_path) as (cluster, till):
        place = await cluster.any.groups.offsets_partition("billing")
        await cluster.led(*place)
        request = TxnCommitRequest(
            group="billing",
            producer_id=till.identity.producer_id,
            producer_epoch=till.identity.epoch,
            offsets=(OffsetToCommit(topic="orders", partition=0, offset=5),),
            number=await till.add(place, *ALL),
        )
        await cluster.any.groups.ask(request)
        await till.write(*ALL)
        await cluster.kill(cluster.leader_id(*place))
        await till.end_when_possible(committed=committed)
        await till.until_complete()
        fetch = FetchOffsetsRequest(group="billing", partitions=(partition(0),), require_stable=True)
        for broker in cluster.brokers.values():
            (found,) = (await broker.groups.ask(fetch)).offsets
            assert (found.offset, found.error) == (5 if committed else -1, None)


async def test_a_commit_waits_for_a_partition_with_one_replica_that_cannot_be_flushed(tmp_path: Path) -> None:
    async with a_till(tmp_path) as (cluster, till):
        coordinator = await till.coordinator_id()
        other = next(iter({1, 2, 3} - {coordinator}))
        await cluster.create("alone", assignments=((other,),), partitions=-1)
        place = partition(0, "alone")
        await till.add(place)
        await till.write(place)
        await cluster.kill(other)
        await cluster.until(lambda: cluster.state("alone").leader is None, "no leader")
        (await till.coordinator()).reads._leaders._retry_ms = 10
        with pytest.raises(CoordinatorUnavailable, match="cannot be flushed"):
            await till.end()
        await cluster.start(other)
        await cluster.led("alone")
        await till.end()
        assert await till.until_complete() is TransactionState.COMPLETE_COMMIT
        await until_stable(cluster, place)


async def test_a_new_instance_fences_the_old_one_across_a_failover(tmp_path: Path) -> None:
    async with a_till(tmp_path) as (cluster, till):
        zombie = till.identity
        await till.add(*ALL)
        await till.write(*ALL)
        former = await till.coordinator_id()
        await cluster.kill(former)
        fresh = Till(cluster)
        await _claimed(fresh)
        assert fresh.identity.producer_id == zombie.producer_id
        assert fresh.identity.epoch > zombie.epoch
        await until_stable(cluster, *ALL)
        for place in ALL:
            assert len((await cluster.led(*place)).aborted_between(0, 2)) == 1
        with pytest.raises(ProducerFenced):
            await till.add(partition(0))
        with pytest.raises(FencedProducer):
            await till.write(partition(0))
        await fresh.add(*ALL)
        await fresh.write(*ALL)
        await fresh.end(protocol=EndProtocol.NEW_EPOCH)
        await until_stable(cluster, *ALL)


async def _claimed(till: Till) -> None:
    """Initialise a producer, once the transaction of its former instance has been aborted."""
    async with asyncio.timeout(RETRY_SECONDS):
        while True:
            try:
                await till.begin()
                return
            except AlpacaError:
                await asyncio.sleep(0.02)


async def test_producer_ids_are_unique_over_brokers_and_restarts(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        given: list[int] = []

        async def take_some() -> None:
            for broker in cluster.brokers.values():
                given.extend([await broker.producer_ids.new() for _ in range(150)])

        await take_some()
        for node_id in (1, 2, 3):
            await cluster.kill(node_id)
            await cluster.until(
                lambda node_id=node_id: (  # type: ignore[misc]
                    cluster.any.metadata.image.brokers[BrokerId(node_id)].is_fenced
                ),
                "fencing",
            )
            await cluster.start(node_id)
            await take_some()
        assert len(given) == len(set(given))


async def test_any_broker_takes_the_steps_of_a_transaction(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=3)
        brokers = cycle(cluster.brokers.values())
        producer = await begun(next(brokers), ID)
        for committed in (True, False, True):
            for _ in range(3):
                results = await next(brokers).publisher.publish(
                    "orders",
                    [Message(value=b"v", partition=index) for index in range(3)],
                    producer=producer,
                )
                assert all(isinstance(each, Published) for each in results), results
            producer = await end_with_new_epoch(next(brokers), producer, committed=committed)
            await until_stable(cluster, *ALL)
        for place in ALL:
            led = await cluster.led(*place)
            assert led.end_offset == 12
            assert len(led.aborted_between(0, 12)) == 1
        for broker in cluster.brokers.values():
            (known,) = await broker.transactions.find(ListTransactions())
            assert known.state is TransactionState.COMPLETE_COMMIT
        here = [
            await broker.transactions.find_here(ListTransactions()) for broker in cluster.brokers.values()
        ]
        assert sorted(map(len, here)) == [0, 0, 1]


async def test_messages_of_a_transaction_follow_a_leader_that_moves(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create("orders", partitions=3)
        producer = await begun(cluster.any, ID)
        former = cluster.leader_id("orders", 0)
        await cluster.kill(former)
        for broker in cluster.brokers.values():
            (result,) = await broker.publisher.publish(
                "orders", [Message(value=b"v", partition=0)], producer=producer
            )
            assert isinstance(result, Published), result
        await end_with_new_epoch(cluster.any, producer, committed=True)
        await until_stable(cluster, partition(0))
        assert (await cluster.led("orders", 0)).end_offset == 3


async def test_clients_that_find_coordinators_are_told_where_theirs_is(tmp_path: Path) -> None:
    async with a_till(tmp_path) as (cluster, till):
        coordinator = await till.coordinator_id()
        request = EndTransaction(
            transactional_id=ID, producer=till.identity, committed=True, protocol=EndProtocol.CLASSIC
        )
        for node_id, broker in cluster.brokers.items():
            if node_id != coordinator:
                with pytest.raises(NotCoordinator) as refused:
                    await broker.transactions.ask_here(InitProducer(transactional_id=ID))
                assert refused.value.coordinator == coordinator
                with pytest.raises(NotCoordinator):
                    await broker.transactions.end_here(request)


async def test_transactions_that_no_coordinator_knows_are_found_by_the_leader(tmp_path: Path) -> None:
    async with a_till(tmp_path) as (cluster, till):
        known, hanging = partition(0), partition(1)
        await till.add(known)
        await till.write(known, hanging)
        leader = cluster.leader_of(*hanging)
        for broker in cluster.brokers.values():
            broker.transactions.hanging.found = ()
            await broker.transactions.hanging.check()
            await broker.transactions.hanging.check()
        expected = HangingTransaction(hanging, till.identity.producer_id, 0)
        for broker in cluster.brokers.values():
            assert list(broker.transactions.hanging.found) == ([expected] if broker is leader else [])
        # As alpacactl aborts it.
        await leader.transactions.write_marker(hanging, *till.identity, committed=False, coordinator_epoch=99)
        await leader.transactions.hanging.check()
        assert not leader.transactions.hanging.found
        # It does not keep the coordinator from ending its own transactions.
        await till.add(hanging)
        await till.end()
        assert await till.until_complete() is TransactionState.COMPLETE_COMMIT


async def test_a_transaction_is_not_complete_while_a_later_epoch_keeps_it_open_in_a_partition(
    tmp_path: Path,
) -> None:
    async with a_till(tmp_path) as (cluster, till):
        place, leader = await a_partition_elsewhere(cluster, till)
        await till.add(place)
        await till.write(place)
        led = await cluster.led(*place)
        # As a broker of an earlier version let any client do.
        unverified = write_batch(
            [Record(0, 1000, b"k", b"v")],
            attributes=TRANSACTIONAL,
            producer_id=till.identity.producer_id,
            producer_epoch=till.identity.epoch + 1,
            base_sequence=0,
        )
        await append(led, unverified)
        end = TransactionEnd(*till.identity, committed=True, coordinator_epoch=0, number=1)
        for broker in leader, cluster.follower_of(*place):
            with pytest.raises(FencedProducer):
                await broker.transactions.markers.end(place, end)
        await till.end()
        known = await till.ask(DescribeTransaction(transactional_id=ID))
        assert known.state is TransactionState.PREPARE_COMMIT
        assert await open_transactions(cluster, place) == [1]
        # As alpacactl aborts it.
        identity = till.identity.bumped()
        await leader.transactions.write_marker(place, *identity, committed=False, coordinator_epoch=0)
        assert await till.until_complete() is TransactionState.COMPLETE_COMMIT


async def test_nothing_is_reported_while_a_coordinator_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_till(tmp_path) as (cluster, till):
        await till.write(partition(0))
        leader = cluster.leader_of("orders", 0)

        async def unanswered(_request: object) -> list[object]:
            raise CoordinatorUnavailable("broker 2 did not answer")

        monkeypatch.setattr(leader.transactions._machines, "ask_all", unanswered)
        await leader.transactions.hanging.check()
        await leader.transactions.hanging.check()
        assert not leader.transactions.hanging.found


async def test_a_power_loss_aborts_what_other_brokers_would_commit(tmp_path: Path) -> None:
    async with a_till(tmp_path) as (cluster, till):
        other = next(iter({1, 2, 3} - {await till.coordinator_id()}))
        await cluster.create("alone", assignments=((other,),), partitions=-1)
        place = partition(0, "alone")
        await till.add(place)
        await till.write(place)
        # As after a start that found out that power was lost.
        topics = cluster[other].topics
        topics.power_lost = True
        (await till.coordinator()).reads._leaders._retry_ms = 10
        with pytest.raises(CoordinatorUnavailable, match="not settled"):
            await till.end()
        await cluster[other].transactions.settled()
        topics.power_loss_settled()
        with pytest.raises(ProducerFenced):
            await till.end()
        await until_stable(cluster, place)
        assert len((await cluster.led(*place)).aborted_between(0, 2)) == 1
