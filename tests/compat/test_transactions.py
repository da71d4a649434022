"""Transactions with unmodified clients: atomicity, exactly once, and fencing of zombies."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from random import Random
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import ProducerFenced as AioProducerFenced
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import AbortTransactionSpec

from tests.brokers import Broker
from tests.conftest import NewBroker
from tests.ports import lasting_address
from tests.waiting import eventually

from .client import DEADLINE_S, Record
from .confluent import Confluent

PARTITIONS = 2


def confluent_producer(address: str, transactional_id: str, settings: Mapping[str, Any] | None = None) -> Any:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": transactional_id,
            "log_level": 0,
            **(settings or {}),
        }
    )
    producer.init_transactions(DEADLINE_S)
    return producer


def write(producer: Any, topic: str, *values: str) -> None:
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    producer.flush(DEADLINE_S)


def read_confluent(address: str, topic: str, isolation: str, *, until: str) -> list[str]:
    """Return all values before `until`, which is the last in each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    values: list[str] = []
    with closing(consumer):

        def is_complete() -> bool:
            values.extend(message.value().decode() for message in consumer.consume(100, 0.1))
            return values.count(until) == PARTITIONS

        eventually(is_complete, what=f"{until} in {topic}")
    return [value for value in values if value != until]


def read_kafka_python(address: str, topic: str, isolation: str, *, until: str) -> list[str]:
    consumer = KafkaConsumer(
        bootstrap_servers=address, isolation_level=isolation, auto_offset_reset="earliest"
    )
    values: list[str] = []
    with closing(consumer):
        consumer.assign([KafkaPythonPartition(topic, partition) for partition in range(PARTITIONS)])

        def is_complete() -> bool:
            for messages in consumer.poll(100).values():
                values.extend(message.value.decode() for message in messages)
            return values.count(until) == PARTITIONS

        eventually(is_complete)
    return [value for value in values if value != until]


def read_aiokafka(address: str, topic: str, isolation: str, *, until: str) -> list[str]:
    async def read() -> list[str]:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=address, isolation_level=isolation, auto_offset_reset="earliest"
        )
        values: list[str] = []
        await consumer.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                while values.count(until) < PARTITIONS:
                    values.append((await consumer.getone()).value.decode())
        finally:
            await consumer.stop()
        return values

    return [value for value in asyncio.run(read()) if value != until]


READERS = [
    pytest.param(read_confluent, id="confluent-kafka"),
    pytest.param(read_kafka_python, id="kafka-python"),
    pytest.param(read_aiokafka, id="aiokafka"),
]


class Transactions:
    """One transactional producer of any client."""

    def __init__(self, address: str, transactional_id: str) -> None:
        raise NotImplementedError

    def write(self, topic: str, *values: str, commit: bool) -> None:
        """Run one transaction."""
        raise NotImplementedError


class ConfluentTransactions(Transactions):
    def __init__(self, address: str, transactional_id: str) -> None:
        self._producer = confluent_producer(address, transactional_id)

    def write(self, topic: str, *values: str, commit: bool) -> None:
        self._producer.begin_transaction()
        write(self._producer, topic, *values)
        if commit:
            self._producer.commit_transaction(DEADLINE_S)
        else:
            self._producer.abort_transaction(DEADLINE_S)


class KafkaPythonTransactions(Transactions):
    def __init__(self, address: str, transactional_id: str) -> None:
        self._producer = KafkaProducer(bootstrap_servers=address, transactional_id=transactional_id)
        self._producer.init_transactions()

    def write(self, topic: str, *values: str, commit: bool) -> None:
        self._producer.begin_transaction()
        for number, value in enumerate(values):
            self._producer.send(topic, value.encode(), partition=number % PARTITIONS)
        self._producer.flush(DEADLINE_S)
        if commit:
            self._producer.commit_transaction()
        else:
            self._producer.abort_transaction()


class AioKafkaTransactions(Transactions):
    def __init__(self, address: str, transactional_id: str) -> None:
        self._settings = {"bootstrap_servers": address, "transactional_id": transactional_id}

    def write(self, topic: str, *values: str, commit: bool) -> None:
        async def run() -> None:
            producer = AIOKafkaProducer(**self._settings)
            await producer.start()
            try:
                await producer.begin_transaction()
                for number, value in enumerate(values):
                    await producer.send_and_wait(topic, value.encode(), partition=number % PARTITIONS)
                if commit:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()
            finally:
                await producer.stop()

        asyncio.run(run())


WRITERS = [
    pytest.param(ConfluentTransactions, id="confluent-kafka"),
    pytest.param(KafkaPythonTransactions, id="kafka-python"),
    pytest.param(AioKafkaTransactions, id="aiokafka"),
]


@pytest.fixture
def end_of(confluent: Confluent, topic: str) -> Callable[[], str]:
    """Append an end marker to the topic, so that readers know when they have everything."""
    confluent.create_topic(topic, partitions=PARTITIONS)

    def mark() -> str:
        confluent.produce(
            topic, [Record(value=b"end", partition=partition) for partition in range(PARTITIONS)]
        )
        return "end"

    return mark


@contextmanager
def refused() -> Iterator[list[KafkaError]]:
    """Collect the error that the block must raise."""
    errors: list[KafkaError] = []
    with pytest.raises(KafkaException) as raised:
        yield errors
    errors.append(raised.value.args[0])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_readers_of_committed_records_see_no_aborted_ones(
    broker: Broker,
    topic: str,
    end_of: Callable[[], str],
    writer: type[Transactions],
    reader: Callable[..., list[str]],
) -> None:
    producer = writer(broker.address, topic)
    producer.write(topic, "a", "b", commit=True)
    producer.write(topic, "c", "d", commit=False)
    producer.write(topic, "e", "f", "g", commit=True)
    end = end_of()

    assert sorted(reader(broker.address, topic, "read_committed", until=end)) == ["a", "b", "e", "f", "g"]
    assert sorted(reader(broker.address, topic, "read_uncommitted", until=end)) == list("abcdefg")


def test_readers_of_committed_records_wait_for_an_open_transaction(
    broker: Broker, topic: str, confluent: Confluent, end_of: Callable[[], str]
) -> None:
    producer = confluent_producer(broker.address, topic)
    producer.begin_transaction()
    write(producer, topic, "a", "b")
    end = end_of()
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "none", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    with closing(consumer):
        assert read_confluent(broker.address, topic, "read_uncommitted", until=end) in (
            ["a", "b"],
            ["b", "a"],
        )
        assert consumer.consume(1, 1.0) == []

        producer.commit_transaction(DEADLINE_S)

        assert [each.value() for each in consumer.consume(2, DEADLINE_S)] == [b"a", b"end"]
    assert confluent.ends(topic) == (0, 3)  # the marker has its own offset


def test_offsets_are_committed_with_their_transaction_or_not_at_all(
    broker: Broker, topic: str, end_of: Callable[[], str]
) -> None:
    end_of()
    producer = confluent_producer(broker.address, topic)
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": topic, "auto.offset.reset": "earliest"}
    )

    def committed() -> int:
        (found,) = consumer.committed([TopicPartition(topic, 0)], DEADLINE_S)
        return int(found.offset)

    with closing(consumer):
        group = consumer.consumer_group_metadata()
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 5)], group, DEADLINE_S)
        producer.abort_transaction(DEADLINE_S)
        assert committed() < 0

        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], group, DEADLINE_S)
        producer.commit_transaction(DEADLINE_S)
        assert committed() == 7


def test_consume_transform_produce_gives_each_input_one_output(
    broker: Broker, topic: str, confluent: Confluent
) -> None:
    """The application aborts half of its transactions and restarts from the committed offsets."""
    outputs = f"{topic}-out"
    confluent.create_topic(topic)
    confluent.create_topic(outputs, partitions=PARTITIONS)
    inputs = [f"input {number}" for number in range(40)]
    confluent.produce(topic, [Record(value=each.encode()) for each in inputs])
    random = Random(3)
    done = 0
    while done < len(inputs):
        producer = confluent_producer(broker.address, topic)
        consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        with closing(consumer):
            consumer.subscribe([topic])
            while done < len(inputs):
                messages = consumer.consume(4, 1.0)
                if not messages:
                    continue
                producer.begin_transaction()
                for message in messages:
                    producer.produce(outputs, message.value(), partition=0)
                producer.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), DEADLINE_S
                )
                if random.random() < 0.3:
                    break  # leaves the transaction open: the next instance ends it
                producer.commit_transaction(DEADLINE_S)
                done += len(messages)
    confluent.produce(outputs, [Record(value=b"end", partition=each) for each in range(PARTITIONS)])

    assert read_confluent(broker.address, outputs, "read_committed", until="end") == inputs


def test_a_zombie_is_fenced_and_its_transaction_aborted(
    broker: Broker, topic: str, end_of: Callable[[], str]
) -> None:
    zombie = confluent_producer(broker.address, topic)
    zombie.begin_transaction()
    write(zombie, topic, "from the zombie")

    successor = confluent_producer(broker.address, topic)
    with refused() as errors:
        zombie.commit_transaction(DEADLINE_S)
    successor.begin_transaction()
    write(successor, topic, "from the successor")
    successor.commit_transaction(DEADLINE_S)

    assert [(error.code(), error.fatal()) for error in errors] == [(KafkaError._FENCED, True)]
    assert read_confluent(broker.address, topic, "read_committed", until=end_of()) == ["from the successor"]


def test_a_zombie_cannot_write(broker: Broker, topic: str, end_of: Callable[[], str]) -> None:
    # Without a listener the client would raise its errors at arbitrary places.
    zombie = confluent_producer(broker.address, topic, {"error_cb": lambda _: None})
    zombie.begin_transaction()
    write(zombie, topic, "from the zombie")
    confluent_producer(broker.address, topic)

    with refused() as errors:
        zombie.produce(topic, "too late", partition=0)
        zombie.flush(DEADLINE_S)
        zombie.commit_transaction(DEADLINE_S)

    assert [(error.code(), error.fatal()) for error in errors] == [(KafkaError._FENCED, True)]
    assert read_confluent(broker.address, topic, "read_committed", until=end_of()) == []


def test_a_zombie_with_aiokafka_gets_an_error(broker: Broker, topic: str, end_of: Callable[[], str]) -> None:
    async def run() -> None:
        zombie, successor = (
            AIOKafkaProducer(bootstrap_servers=broker.address, transactional_id=topic) for _ in range(2)
        )
        await zombie.start()
        try:
            await zombie.begin_transaction()
            await zombie.send_and_wait(topic, b"from the zombie", partition=0)
            await successor.start()
            await successor.stop()
            with pytest.raises(AioProducerFenced):
                await zombie.commit_transaction()
        finally:
            await zombie.stop()

    asyncio.run(run())

    assert read_confluent(broker.address, topic, "read_committed", until=end_of()) == []


def test_an_abandoned_transaction_is_aborted_in_time(
    broker: Broker, topic: str, end_of: Callable[[], str]
) -> None:
    abandoned = confluent_producer(broker.address, topic, {"transaction.timeout.ms": 1000})
    abandoned.begin_transaction()
    write(abandoned, topic, "left alone")

    # Readers get past it only once it has ended.
    assert read_confluent(broker.address, topic, "read_committed", until=end_of()) == []
    with refused() as errors:
        abandoned.commit_transaction(DEADLINE_S)
    assert errors[0].code() in (KafkaError._FENCED, KafkaError._STATE)


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_a_transaction_continues_after_a_restart_of_the_broker(
    new_broker: NewBroker, topic: str, kill: bool
) -> None:
    broker = new_broker(kafka=lasting_address())
    broker.start()
    client = Confluent(broker.address)
    client.create_topic(topic, partitions=PARTITIONS)
    producer = ConfluentTransactions(broker.address, topic)
    producer.write(topic, "aborted before", commit=False)
    going_on = confluent_producer(broker.address, "other")
    going_on.begin_transaction()
    write(going_on, topic, "before")

    broker.restart(kill=kill)

    write(going_on, topic, "after")
    going_on.commit_transaction(DEADLINE_S)
    producer.write(topic, "aborted after", commit=False)
    client.produce(topic, [Record(value=b"end", partition=partition) for partition in range(PARTITIONS)])
    committed = read_confluent(broker.address, topic, "read_committed", until="end")
    assert committed == ["before", "after"]


def test_transactions_are_listed_and_described(broker: Broker, topic: str, end_of: Callable[[], str]) -> None:
    end_of()
    producer = confluent_producer(broker.address, topic, {"transaction.timeout.ms": 45_000})
    producer.begin_transaction()
    write(producer, topic, "a", "b")
    partitions = [KafkaPythonPartition(topic, partition) for partition in range(PARTITIONS)]
    with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
        (ongoing,) = [
            each
            for of_broker in admin.list_transactions(state_filters=["Ongoing"]).values()
            for each in of_broker
            if each.transactional_id == topic
        ]
        described = admin.describe_transactions([topic])[topic]
        assert (described.state, described.transaction_timeout_ms) == ("Ongoing", 45_000)
        assert described.topic_partitions == set(partitions)
        assert described.transaction_start_time_ms > 1_700_000_000_000

        producers = admin.describe_producers(partitions)
        open_in = {
            where: each.current_transaction_start_offset
            for where, state in producers.items()
            for each in state.active_producers
            if each.producer_id == ongoing.producer_id
        }
        assert open_in == dict.fromkeys(partitions, 1)

        producer.commit_transaction(DEADLINE_S)

        def is_complete() -> bool:
            after = admin.describe_transactions([topic])[topic]
            return after.state == "CompleteCommit" and not after.topic_partitions

        eventually(is_complete)


def test_an_administrator_can_abort_a_hanging_transaction(
    broker: Broker, topic: str, end_of: Callable[[], str]
) -> None:
    producer = confluent_producer(broker.address, topic)
    producer.begin_transaction()
    producer.produce(topic, "hanging", partition=0)
    producer.flush(DEADLINE_S)
    where = KafkaPythonPartition(topic, 0)
    with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
        (active,) = admin.describe_producers([where])[where].active_producers

        admin.abort_transaction(AbortTransactionSpec(where, active.producer_id, active.producer_epoch))

        (after,) = admin.describe_producers([where])[where].active_producers
    assert after.current_transaction_start_offset == -1
    assert read_confluent(broker.address, topic, "read_committed", until=end_of()) == []
