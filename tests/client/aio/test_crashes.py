"""Clients whose brokers are killed: nothing acknowledged is missing, nothing is doubled, nothing hangs."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count, islice
from pathlib import Path
from random import Random, SystemRandom

import pytest

from alpacamq.client.aio.cluster import Cluster
from alpacamq.client.aio.connection import Connection
from alpacamq.client.aio.consumer import Consumer
from alpacamq.client.aio.producer import Producer, ProducerSettings, RecordMetadata
from alpacamq.client.aio.reader import Reader
from alpacamq.client.aio.transactions import TransactionalProducer
from alpacamq.client.connect import parse_address, parse_addresses
from alpacamq.model.ids import TopicName, TopicPartition
from tests.conftest import NewBroker
from tests.integration.nodes import running_nodes
from tests.ports import lasting_address
from tests.waiting import soon

TOPIC = "orders"
DEADLINE_S = 150.0
# Restarts take time on a busy machine.
PATIENT = ProducerSettings(delivery_s=120.0)


class Traffic:
    """A producer and two members of a group, at work until they are stopped."""

    def __init__(self, clusters: Callable[[], Cluster]) -> None:
        self._clusters = clusters
        self.acknowledged: dict[int, RecordMetadata] = {}
        self.sent = 0
        # How often each record was delivered.
        self.seen: Counter[int] = Counter()
        self._is_over = asyncio.Event()
        self._is_stopping = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            producing = tasks.create_task(self._produce())
            members = [tasks.create_task(self._consume()) for _ in range(2)]
            yield
            self._is_stopping.set()
            await producing
            await soon(lambda: self.seen.keys() >= self.acknowledged.keys(), within_s=DEADLINE_S)
            self._is_over.set()
            await asyncio.wait(members)

    async def progress(self, more: int) -> None:
        """Wait until more records have been acknowledged and delivered."""
        acknowledged, seen = len(self.acknowledged) + more, self.seen.total() + more
        await soon(
            lambda: len(self.acknowledged) >= acknowledged and self.seen.total() >= seen, within_s=DEADLINE_S
        )

    async def _produce(self) -> None:
        async with self._clusters() as cluster, Producer(cluster, PATIENT) as producer:
            while not self._is_stopping.is_set():
                async with asyncio.TaskGroup() as group:
                    for _ in range(50):
                        group.create_task(self._send(producer, self.sent))
                        self.sent += 1

    async def _send(self, producer: Producer, number: int) -> None:
        delivery = await producer.put(TOPIC, b"%d" % number, key=b"%d" % number)
        self.acknowledged[number] = await delivery

    async def _consume(self) -> None:
        async with (
            self._clusters() as cluster,
            Consumer(cluster, "billing", topics=[TOPIC]) as consumer,
        ):
            while not self._is_over.is_set():
                for record in await consumer.take(20, wait_s=0.2):
                    self.seen[int(record.value or b"")] += 1
                await consumer.commit()


async def check_stored(cluster: Cluster, traffic: Traffic) -> None:
    """Check that what is stored is what was acknowledged, each once and where the producer was told."""
    found: dict[int, RecordMetadata] = {}
    async with Reader(cluster, TOPIC, until="now") as reader:
        async for record in reader:
            number = int(record.value or b"")
            assert number not in found, f"{number} is stored twice"
            place = record.partition
            found[number] = RecordMetadata(place.topic, place.partition, record.offset, record.timestamp_ms)
    assert found == traffic.acknowledged
    assert len(found) == traffic.sent


def tasks() -> set["asyncio.Task[object]"]:
    return {task for task in asyncio.all_tasks() if not task.done()}


async def survive_kills(new_broker: NewBroker, kills: int, seed: int) -> None:
    print(f"seed {seed}")
    dice = Random(seed)
    broker = new_broker(kafka=lasting_address()).start()
    before = tasks()
    traffic = Traffic(lambda: Cluster([parse_address(broker.address)]))
    async with traffic.running():
        await traffic.progress(1)
        for _ in range(kills):
            await traffic.progress(dice.randrange(1, 500))
            await asyncio.to_thread(broker.restart, kill=True)
        await traffic.progress(200)
    async with Cluster([parse_address(broker.address)]) as cluster:
        await check_stored(cluster, traffic)
    # Members were away for less than their session, and committed before they gave partitions up.
    assert traffic.seen == Counter(traffic.acknowledged.keys())
    assert tasks() == before


async def test_three_kills(new_broker: NewBroker) -> None:
    await survive_kills(new_broker, kills=3, seed=16_001)


@pytest.mark.heavy
@pytest.mark.timeout(900)
async def test_twenty_kills(new_broker: NewBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.client.aio.test_crashes.DEADLINE_S", 800.0)
    await survive_kills(new_broker, kills=20, seed=SystemRandom().randrange(1 << 32))


async def test_a_group_that_commits_gets_each_record_once_over_a_kill(new_broker: NewBroker) -> None:
    broker = new_broker(kafka=lasting_address()).start()
    seen: Counter[int] = Counter()
    async with asyncio.timeout(DEADLINE_S), Cluster([parse_address(broker.address)]) as cluster:
        async with Producer(cluster, PATIENT) as producer:
            for number in range(1000):
                await producer.put(TOPIC, b"%d" % number, key=b"%d" % number)
        async with Consumer(cluster, "billing", topics=[TOPIC]) as consumer:
            restarting: asyncio.Future[None] | None = None
            while seen.total() < 1000:
                for record in await consumer.take(10):
                    seen[int(record.value or b"")] += 1
                if restarting is None and seen.total() > 300:
                    restarting = asyncio.ensure_future(asyncio.to_thread(broker.restart, kill=True))
                await consumer.commit()
            assert restarting is not None
            await restarting
            committed = await consumer.committed(consumer.assignment)
            assert sum(offset or 0 for offset in committed.values()) == 1000
    assert seen == Counter(range(1000))


async def test_transactions_over_kills_are_seen_whole_or_not_at_all(new_broker: NewBroker) -> None:
    broker = new_broker(kafka=lasting_address()).start()
    async with asyncio.timeout(DEADLINE_S), Cluster([parse_address(broker.address)]) as cluster:
        async with TransactionalProducer(cluster, "tx", settings=PATIENT) as producer:
            for number in range(30):
                restarting: asyncio.Future[None] | None = None
                transaction = producer.transaction()
                for part in range(10):
                    await transaction.put(TOPIC, b"%d/%d" % (number, part), partition=part % 3)
                if number in (5, 15, 25):
                    restarting = asyncio.ensure_future(asyncio.to_thread(broker.restart, kill=True))
                await (transaction.abort() if number % 3 == 2 else transaction.commit())
                if restarting is not None:
                    await restarting
        async with Reader(cluster, TOPIC, until="now") as reader:
            found = Counter([record.value or b"" async for record in reader])
    expected = [b"%d/%d" % (number, part) for number in range(30) if number % 3 != 2 for part in range(10)]
    assert found == Counter(expected)


def is_lost(connection: Connection) -> bool:
    return not connection.is_open


async def test_records_for_a_broker_that_stops_for_a_while_are_written_once(new_broker: NewBroker) -> None:
    """Requests time out and are sent again; the broker finds both when it goes on."""
    broker = new_broker().start()
    before = tasks()
    process = broker.process
    acknowledged: dict[int, int] = {}
    async with asyncio.timeout(DEADLINE_S):
        async with Cluster([parse_address(broker.address)], request_s=0.5) as cluster:
            async with Producer(cluster, PATIENT) as producer:
                lost: set[object] = set()
                numbers = count()
                for _ in range(3):
                    first = next(numbers)
                    acknowledged[first] = (await (await producer.put(TOPIC, b"%d" % first))).offset
                    connection = cluster.open_connection(1, producer)
                    assert connection is not None
                    process.send_signal(signal.SIGSTOP)
                    try:
                        sent = {
                            number: await producer.put(TOPIC, b"%d" % number)
                            for number in islice(numbers, 50)
                        }
                        await soon(partial(is_lost, connection))
                        lost.add(connection)
                    finally:
                        process.send_signal(signal.SIGCONT)
                    for each, delivery in sent.items():
                        acknowledged[each] = (await delivery).offset
                assert len(lost) == 3
            async with Reader(cluster, TOPIC, until="now") as reader:
                stored = sorted([(int(record.value or b""), record.offset) async for record in reader])
    assert stored == sorted(acknowledged.items())
    assert len(stored) == 153
    assert tasks() == before


async def test_the_leader_of_a_cluster_is_killed(tmp_path: Path) -> None:
    before = tasks()
    with running_nodes(tmp_path) as nodes:
        traffic = Traffic(lambda: Cluster(parse_addresses(nodes.kafka)))
        async with traffic.running():
            await traffic.progress(100)
            async with Cluster(parse_addresses(nodes.kafka)) as cluster:
                await cluster.topic(TOPIC)
                leader = cluster.leader_of(TopicPartition(TopicName(TOPIC), 0))
            await asyncio.to_thread(nodes.by_id[leader].kill)
            await traffic.progress(300)
            nodes.by_id[leader].start()
            await traffic.progress(300)
        async with Cluster(parse_addresses(nodes.kafka)) as cluster:
            await check_stored(cluster, traffic)
    assert tasks() == before
