"""Loads of a run. Each has its own topics, threads and clients, and records what it does in the history.

Clients have the settings that a careful user would give them: they retry until a generous deadline. An error
that they report all the same is recorded as `Refused`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.waiting import eventually

from .history import (
    Acked,
    Assigned,
    CaughtUp,
    Committed,
    Committing,
    Ended,
    Ending,
    Event,
    Found,
    History,
    Position,
    Read,
    ReadBack,
    Refused,
    Revoked,
    Sent,
)
from .nodes import Cluster

PARTITIONS = 6
CALL_S = 10.0
GIVE_UP_MS = 120_000
FINISH_S = 90.0
# A client with the default timeouts waits for a silent leader for 30 s, even if another leads meanwhile.
IMPATIENT = {"request.timeout.ms": 3000, "socket.timeout.ms": 5000}


class Load(Protocol):
    """A kind of load."""

    def prepare(self) -> None:
        """Create topics."""
        ...

    def start(self) -> None: ...

    def finish(self) -> None:
        """Stop, once all nodes are well; settle what is in flight and read everything back."""
        ...


class Workers:
    """Threads that run until stopped. An unexpected error is recorded."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._threads: list[threading.Thread] = []
        self.stopping = threading.Event()

    def start(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - reported with the run
                self._history.write(Refused(name, repr(error)))

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(FINISH_S)
            assert not thread.is_alive(), f"{thread.name} did not stop"


class RecordsLoad:
    """Idempotent producers with acks=all, and optionally a consumer group that commits offsets."""

    topic = "records"
    group = "readers"

    def __init__(
        self, nodes: Cluster, history: History, seed: int, *, producers: int = 2, members: int = 3
    ) -> None:
        self._nodes = nodes
        self._history = history
        self._seed = seed
        self._producers = producers
        self._members = members
        self._writers = Workers(history)
        self._readers = Workers(history)
        self._is_written = threading.Event()
        self._caught_up: set[int] = set()

    def prepare(self) -> None:
        self._nodes.create(self.topic, PARTITIONS)

    def start(self) -> None:
        for number in range(self._producers):
            work = partial(self._produce, f"p{number}", is_impatient=number % 2 == 1)
            self._writers.start(f"producer-{number}", work)
        for number in range(self._members):
            self._readers.start(f"member-{number}", partial(self._consume, number))

    def finish(self) -> None:
        self._writers.stop()
        self._is_written.set()
        ends = ends_of(self._nodes, self.topic)
        if self._members:
            eventually(lambda: self._is_caught_up(ends), within_s=FINISH_S, what="group at the end")
            self._history.write(CaughtUp(self.group, self.topic))
        self._readers.stop()
        read_back(self._nodes, self._history, self.topic)

    def _produce(self, name: str, *, is_impatient: bool) -> None:
        producer = Producer(
            {
                **self._nodes.kafka_settings,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": GIVE_UP_MS,
                **(IMPATIENT if is_impatient else {}),
            }
        )
        acked: list[Event] = []

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                # A retry that the broker knows as a duplicate, but not where the first attempt is.
                offset = -1 if message.offset() is None else message.offset()
                acked.append(
                    Acked(
                        self.topic,
                        message.partition(),
                        message.value().decode(),
                        offset,
                        at_s=time.monotonic(),
                    )
                )
            else:
                self._history.write(Refused(name, str(error)))

        number = 0
        while not self._writers.stopping.is_set():
            sent = [
                Sent(self.topic, (number + each) % PARTITIONS, name, f"{name}.{number + each}")
                for each in range(PARTITIONS)
            ]
            number += len(sent)
            self._history.write(*sent)
            for record in sent:
                while True:
                    try:
                        producer.produce(
                            self.topic, record.value, partition=record.partition, on_delivery=delivered
                        )
                        break
                    except BufferError:
                        producer.poll(0.05)
            producer.poll(0.01)
            self._history.write(*acked)
            acked.clear()
        producer.flush(FINISH_S)
        self._history.write(*acked)

    def _consume(self, number: int) -> None:
        """Be a member; leave and come back now and then."""
        dice = Random(f"{self._seed}-{number}")
        life = 0
        while not self._readers.stopping.is_set():
            life += 1
            # One member stays.
            until_s = time.monotonic() + (dice.uniform(8, 20) if number else 1e9)
            member = _Member(f"m{number}.{life}", self._nodes, self._history, self.group, self.topic)
            member.run(partial(self._goes_on, until_s))
            self._readers.stopping.wait(dice.uniform(0, 2))

    def _goes_on(self, until_s: float) -> bool:
        return not self._readers.stopping.is_set() and time.monotonic() < until_s

    def _is_caught_up(self, ends: dict[int, int]) -> bool:
        consumer = Consumer({**self._nodes.kafka_settings, "group.id": self.group})
        try:
            found = consumer.committed([TopicPartition(self.topic, index) for index in ends], CALL_S)
            return all(each.offset >= ends[each.partition] for each in found)
        except KafkaException:
            return False
        finally:
            consumer.close()


class _Member:
    """One life of a member of a consumer group."""

    def __init__(self, name: str, nodes: Cluster, history: History, group: str, topic: str) -> None:
        self._name = name
        self._history = history
        self._group = group
        self._topic = topic
        self._next: dict[int, int] = {}
        self._consumer = Consumer(
            {
                **nodes.kafka_settings,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 10_000,
                "fetch.wait.max.ms": 100,
            }
        )

    def run(self, goes_on: Callable[[], bool]) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked)
        commit_s = time.monotonic()
        try:
            while goes_on():
                read: list[Event] = []
                for message in self._consumer.consume(500, 0.1):
                    if message.error() is None:
                        partition, offset = message.partition(), message.offset()
                        value = message.value().decode()
                        read.append(Read(self._name, self._topic, partition, offset, value))
                        self._next[partition] = offset + 1
                self._history.write(*read)
                if time.monotonic() > commit_s + 0.3:
                    self._commit()
                    commit_s = time.monotonic()
            self._commit()
        finally:
            self._consumer.close()

    def _commit(self) -> None:
        if not self._next:
            return
        offsets, self._next = self._next, {}
        self._history.write(
            *(Committing(self._group, self._topic, index, offset) for index, offset in offsets.items())
        )
        try:
            done = self._consumer.commit(
                offsets=[TopicPartition(self._topic, index, offset) for index, offset in offsets.items()],
                asynchronous=False,
            )
        except KafkaException:
            return  # its outcome is unknown
        self._history.write(
            *(
                Committed(self._group, self._topic, each.partition, each.offset)
                for each in done
                if each.error is None
            )
        )

    def _assigned(self, consumer: Any, places: Sequence[TopicPartition]) -> None:
        # The group metadata is documented as opaque; its generation follows a fixed prefix.
        generation = int.from_bytes(consumer.consumer_group_metadata()[7:11], "little", signed=True)
        self._history.write(
            Assigned(
                self._group, self._name, generation, self._topic, tuple(each.partition for each in places)
            )
        )
        self._next.clear()
        asked_s = time.monotonic()
        with suppress(KafkaException):
            found = consumer.committed(list(places), CALL_S)
            self._history.write(
                *(
                    # No offset is a negative one.
                    Position(self._group, self._topic, each.partition, max(each.offset, -1), asked_s)
                    for each in found
                )
            )

    def _revoked(self, consumer: Any, places: Sequence[TopicPartition]) -> None:
        self._commit()
        self._history.write(
            Revoked(self._group, self._name, self._topic, tuple(each.partition for each in places))
        )


class TransactionsLoad:
    """Transactions over two topics; a quarter of them is aborted."""

    topics = ("ledger-a", "ledger-b")

    def __init__(self, nodes: Cluster, history: History, seed: int, *, producers: int = 2) -> None:
        self._nodes = nodes
        self._history = history
        self._seed = seed
        self._producers = producers
        self._workers = Workers(history)

    def prepare(self) -> None:
        for topic in self.topics:
            self._nodes.create(topic, PARTITIONS // 2)

    def start(self) -> None:
        for number in range(self._producers):
            self._workers.start(f"transactions-{number}", partial(self._run, f"x{number}"))

    def finish(self) -> None:
        self._workers.stop()
        for topic in self.topics:
            read_back(self._nodes, self._history, topic)

    def _run(self, name: str) -> None:
        dice = Random(f"{self._seed}-{name}")
        number = 0
        producer: Any = None
        while not self._workers.stopping.is_set():
            number += 1
            try:
                if producer is None:
                    producer = self._opened(name)
                self._transaction(producer, f"{name}.{number}", dice)
            except KafkaException as error:
                # Fatal for this producer: the next one ends what it has left open.
                self._history.write(Refused(name, str(error)))
                producer = None

    def _opened(self, name: str) -> Any:
        producer = Producer(
            {**self._nodes.kafka_settings, "transactional.id": name, "transaction.timeout.ms": 30_000}
        )
        _insist(lambda: producer.init_transactions(CALL_S))
        return producer

    def _transaction(self, producer: Any, name: str, dice: Random) -> None:
        records = [
            Sent(
                dice.choice(self.topics),
                dice.randrange(PARTITIONS // 2),
                name.partition(".")[0],
                f"{name}.{each}",
                name,
            )
            for each in range(dice.randrange(1, 8))
        ]
        commit = dice.random() < 0.75
        self._history.write(*records)
        producer.begin_transaction()
        for record in records:
            producer.produce(record.topic, record.value, partition=record.partition)
        if not commit:
            # librdkafka cannot abort a transaction before its partitions are added to it, which waits for the
            # markers of the one before: the coordinator takes the request for one about that.
            deadline_s = time.monotonic() + GIVE_UP_MS / 1000
            while producer.flush(CALL_S) and time.monotonic() < deadline_s:
                pass
        self._history.write(Ending(name, commit))
        _insist(lambda: (producer.commit_transaction if commit else producer.abort_transaction)(CALL_S))
        self._history.write(Ended(name, commit))


def _insist(call: Callable[[], None]) -> None:
    """Retry while the outcome is open; the client continues the same request."""
    deadline_s = time.monotonic() + GIVE_UP_MS / 1000
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline_s:
                raise


def ends_of(nodes: Cluster, topic: str) -> dict[int, int]:
    """Return the end offsets of a topic's partitions, for readers of committed records."""
    consumer = Consumer({**nodes.kafka_settings, "group.id": "unused"})
    try:
        count = len(consumer.list_topics(topic, timeout=CALL_S).topics[topic].partitions)
        ends: dict[int, int] = {}

        def have_all() -> bool:
            for index in set(range(count)) - ends.keys():
                with suppress(KafkaException):
                    place = TopicPartition(topic, index)
                    ends[index] = consumer.get_watermark_offsets(place, timeout=CALL_S)[1]
            return len(ends) == count

        eventually(have_all, within_s=FINISH_S, what=f"end offsets of {topic}")
        return ends
    finally:
        consumer.close()


def read_back(nodes: Cluster, history: History, topic: str) -> None:
    """Record all records of a topic."""
    consumer = Consumer(
        {
            **nodes.kafka_settings,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        ends = ends_of(nodes, topic)
        unread = {index for index, end in ends.items() if end > 0}
        consumer.assign([TopicPartition(topic, index, 0) for index in unread])

        def is_read() -> bool:
            found: list[Event] = []
            for message in consumer.consume(5000, 0.5):
                index = message.partition()
                if message.error() is None:
                    found.append(Found(topic, index, message.offset(), message.value().decode()))
                elif message.error().name() == "_PARTITION_EOF" and message.offset() >= ends[index]:
                    unread.discard(index)
            history.write(*found)
            return not unread

        if unread:
            eventually(is_read, within_s=FINISH_S, what=f"{topic} read to the end")
        history.write(ReadBack(topic))
    finally:
        consumer.close()
