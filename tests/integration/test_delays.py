"""Delayed records of Kafka clients are delivered once, when they are due, also across kill -9."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from alpacamq.model.headers import DELIVER_AT
from tests.brokers import Broker
from tests.compat.confluent import Confluent
from tests.conftest import NewBroker
from tests.ports import lasting_address
from tests.waiting import eventually

DAY_MS = 86_400_000
DELAYS = {"message.delays": "true"}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Sender:
    """A producer that checks its acknowledgements."""

    def __init__(self, address: str, **settings: Any) -> None:
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 20, **settings})
        # So that delayed records are not overdue when they arrive.
        self._producer.list_topics(timeout=20)
        self.acknowledged: list[bytes] = []
        self.refused: list[str] = []

    def send(self, topic: str, value: bytes, due_ms: int | None = None) -> None:
        headers = [("h", b"1")] if due_ms is None else [(DELIVER_AT, str(due_ms).encode()), ("h", b"1")]
        self._producer.produce(
            topic,
            value,
            headers=headers,
            partition=0,
            on_delivery=lambda *report: self._on_delivery(value, *report),
        )
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    def _on_delivery(self, value: bytes, error: Any, _message: Any) -> None:
        if error is None:
            self.acknowledged.append(value)
        else:
            self.refused.append(str(error))


class Tail:
    """Reads a partition from its start."""

    def __init__(self, address: str, topic: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "tail", "auto.offset.reset": "earliest"}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self.messages: list[Any] = []

    def read(self) -> list[bytes]:
        for message in self._consumer.consume(1000, 0.1):
            assert message.error() is None, message.error()
            self.messages.append(message)
        return [message.value() for message in self.messages]

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("delays") / "data")
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_delayed_records_appear_when_due_and_others_at_once(
    broker: Broker, topic: str, compression: str
) -> None:
    Confluent(broker.address).create_topic(topic, settings=DELAYS)
    sender = Sender(broker.address, **{"enable.idempotence": True, "compression.type": compression})
    due_ms = now_ms() + 1500
    for number in range(20):
        sender.send(topic, f"{number}".encode(), due_ms + number if number % 2 else None)
    sender.flush()
    assert sorted(sender.acknowledged) == sorted(f"{number}".encode() for number in range(20))
    tail = Tail(broker.address, topic)
    eventually(lambda: len(tail.read()) == 20)
    expected = [*range(0, 20, 2), *range(1, 20, 2)]
    assert tail.read() == [f"{number}".encode() for number in expected]
    for message in tail.messages[10:]:
        meant_ms = int(dict(message.headers())[DELIVER_AT])
        assert message.timestamp()[1] >= meant_ms
        assert message.headers() == [(DELIVER_AT, str(meant_ms).encode()), ("h", b"1")]
    tail.close()


def test_a_topic_without_the_setting_ignores_the_header(broker: Broker, topic: str) -> None:
    Confluent(broker.address).create_topic(topic)
    sender = Sender(broker.address)
    sender.send(topic, b"now", now_ms() + DAY_MS)
    sender.flush()
    tail = Tail(broker.address, topic)
    eventually(lambda: tail.read() == [b"now"])
    tail.close()


def test_thirty_days_are_accepted_and_an_invalid_time_is_refused(broker: Broker, topic: str) -> None:
    Confluent(broker.address).create_topic(topic, settings=DELAYS)
    sender = Sender(broker.address)
    sender.send(topic, b"in thirty days", now_ms() + 30 * DAY_MS)
    sender.flush()
    assert sender.acknowledged == [b"in thirty days"]
    for due_ms in (now_ms() + 3000 * DAY_MS, 10**17):
        sender.send(topic, b"too far", due_ms)
        sender.flush()
    assert len(sender.refused) == 2
    assert all("INVALID_RECORD" in reason or "invalid record" in reason.lower() for reason in sender.refused)


def test_a_delayed_record_in_a_transaction_is_refused(broker: Broker, topic: str) -> None:
    Confluent(broker.address).create_topic(topic, settings=DELAYS)
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "x"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"later", headers=[(DELIVER_AT, str(now_ms() + DAY_MS).encode())])
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)


def test_kills_neither_lose_nor_duplicate_delayed_records(new_broker: NewBroker) -> None:
    kill_again_and_again(new_broker, kills=2, records=600)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_a_million_delayed_records_use_bounded_memory(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    Confluent(broker.address).create_topic("t", partitions=3, settings=DELAYS)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20})
    first_ms = now_ms() + 3_600_000
    for number in range(1_000_000):
        headers = [(DELIVER_AT, b"%d" % (first_ms + number * 2592))]  # 30 days in all
        while not produced(producer, headers):
            pass
    assert producer.flush(120) == 0
    assert broker.resident_bytes < 300 << 20
    broker.kill()
    broker.start()
    tail = Tail(broker.address, "t")
    sender = Sender(broker.address)
    sender.send("t", b"soon", now_ms() + 1000)
    sender.flush()
    eventually(lambda: tail.read() == [b"soon"])
    assert broker.resident_bytes < 300 << 20
    tail.close()


def produced(producer: Any, headers: list[tuple[str, bytes]]) -> bool:
    try:
        producer.produce("t", b"x" * 100, headers=headers)
    except BufferError:
        producer.poll(0.1)
        return False
    producer.poll(0)
    return True


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_many_kills_neither_lose_nor_duplicate_delayed_records(new_broker: NewBroker) -> None:
    kill_again_and_again(new_broker, kills=40, records=20_000)


def kill_again_and_again(new_broker: NewBroker, *, kills: int, records: int) -> None:
    """Kill the broker while records fall due; in the end each is there once, in order of due time."""
    dice = random.Random(7)
    broker: Broker = new_broker(kafka=lasting_address()).start()
    # Never synced: deliveries are not known to be on disk, and are repeated after every kill.
    settings = {**DELAYS, "flush.ms": str(2**63 - 1)}
    Confluent(broker.address).create_topic("t", settings=settings)
    sender = Sender(broker.address, **{"enable.idempotence": True})
    span_ms = 2000 * (kills + 1)
    began_ms = now_ms()
    due = {f"{number}".encode(): began_ms + dice.randrange(200, span_ms) for number in range(records)}
    values = list(due)
    share = len(values) // (kills + 1) + 1
    for _ in range(kills):
        for value in values[:share]:
            sender.send("t", value, due[value])
        del values[:share]
        threading.Event().wait(dice.uniform(0.1, 1.5))
        broker.kill()
        broker.start()
    for value in values:
        sender.send("t", value, due[value])
    sender.flush()
    assert not sender.refused
    tail = Tail(broker.address, "t")
    eventually(lambda: len(tail.read()) >= records, within_s=60 + span_ms / 1000)
    threading.Event().wait(0.5)
    counted = Counter(tail.read())
    assert counted == Counter(due.keys()), "each once"
    assert not broker.errors.find("crashed|internal error"), broker.errors.text()
    tail.close()
