"""Share groups with confluent-kafka's unmodified share consumer."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import AcknowledgeType, Consumer, KafkaException, Producer, TopicPartition

from alpacamq.model.headers import DEAD_LETTER_REASON, DELIVERY_COUNT, ORIGIN_OFFSET, ORIGIN_TOPIC
from tests.brokers import Broker
from tests.conftest import NewBroker
from tests.waiting import eventually

from .share import EARLIEST, Queue, drain, settle, take, values_of

NewQueue = Callable[..., Queue]
SHORT_LOCK = {**EARLIEST, "share.record.lock.duration.ms": "1000"}


@pytest.fixture
def new_queue(broker: Broker, topic: str) -> NewQueue:
    def make(**options: Any) -> Queue:
        return Queue(broker.address, topic).create(**options)

    return make


def numbered(count: int) -> list[str]:
    return [f"message {number}" for number in range(count)]


def dead_letters(queue: Queue, count: int) -> list[Any]:
    """Read `count` messages of the dead-letter topic."""
    consumer = Consumer({"bootstrap.servers": queue.address, "group.id": "none", "enable.auto.commit": False})
    found: list[Any] = []

    def poll() -> bool:
        consumer.assign([TopicPartition(f"{queue.topic}.dlq", 0, 0)])
        while (message := consumer.poll(0.5)) is not None:
            if message.error() is None and message.offset() == len(found):
                found.append(message)
        return len(found) >= count

    try:
        eventually(poll, what=f"{count} dead letters")
    finally:
        consumer.close()
    return found


def test_messages_are_acknowledged_by_polls_and_commits(new_queue: NewQueue) -> None:
    queue = new_queue(partitions=2)
    queue.publish(*numbered(500))
    with queue.consumer() as consumer:
        assert Counter(drain(consumer, 500)) == Counter(numbered(500))
    eventually(queue.is_done)


def test_a_group_starts_at_the_end_by_default(new_queue: NewQueue) -> None:
    queue = new_queue(settings={})
    queue.publish("before the group")
    with queue.consumer() as consumer:
        eventually(lambda: not consumer.poll(0.2) and queue.places())
        queue.publish("after it")
        assert drain(consumer, 1) == ["after it"]


def test_members_share_one_partition_and_nothing_is_delivered_twice(new_queue: NewQueue) -> None:
    queue = new_queue()
    with (
        queue.consumer(max_poll_records=50) as one,
        queue.consumer(max_poll_records=50) as two,
        queue.consumer(max_poll_records=50) as three,
    ):
        queue.publish(*numbered(900))
        taken: list[list[str]] = [[], [], []]

        def poll() -> bool:
            for consumer, mine in zip((one, two, three), taken, strict=True):
                mine += values_of(consumer.poll(0.1))
            return sum(map(len, taken)) >= 900

        eventually(poll, within_s=60)
        for consumer in (one, two, three):
            consumer.commit_sync(20)
        assert Counter(chain(*taken)) == Counter(numbered(900))
        assert all(taken), "each consumer received some"
    eventually(queue.is_done)


def test_members_divide_the_partitions(new_queue: NewQueue) -> None:
    queue = new_queue(partitions=4)
    with queue.consumer() as one, queue.consumer() as two:
        taken: list[list[str]] = [[], []]

        def poll() -> None:
            for consumer, mine in zip((one, two), taken, strict=True):
                mine += values_of(consumer.poll(0.1))

        def are_done() -> bool:
            poll()
            return queue.is_done()

        def are_divided() -> bool:
            before = [len(mine) for mine in taken]
            for partition in range(4):
                queue.publish(*numbered(100), partition=partition)
            eventually(are_done, within_s=30)
            return [len(mine) - count for mine, count in zip(taken, before, strict=True)] == [200, 200]

        # Each member learns of the other with a heartbeat.
        eventually(are_divided, within_s=60)


def test_released_messages_are_redelivered_and_accepted_ones_are_not(new_queue: NewQueue) -> None:
    queue = new_queue()
    queue.publish(*numbered(6))
    with queue.consumer("explicit") as consumer:
        first = take(consumer)
        assert [message.delivery_count() for message in first] == [1] * 6
        settle(consumer, first, lambda value: (
            AcknowledgeType.RELEASE if value in ("message 1", "message 4") else AcknowledgeType.ACCEPT
        ))  # fmt: skip
        again = take(consumer)
        assert values_of(again) == ["message 1", "message 4"]
        assert [message.delivery_count() for message in again] == [2, 2]
        settle(consumer, again)
    eventually(queue.is_done)


def test_a_rejected_message_becomes_a_dead_letter(new_queue: NewQueue) -> None:
    queue = new_queue()
    queue.publish("good", "bad", key=b"k", headers=[("h", b"1")])
    with queue.consumer("explicit") as consumer:
        settle(consumer, take(consumer), lambda value: (
            AcknowledgeType.REJECT if value == "bad" else AcknowledgeType.ACCEPT
        ))  # fmt: skip
    (letter,) = dead_letters(queue, 1)
    headers = dict(letter.headers())
    assert (letter.key(), letter.value(), headers["h"]) == (b"k", b"bad", b"1")
    assert headers[ORIGIN_TOPIC] == queue.topic.encode()
    assert headers[ORIGIN_OFFSET] == b"1"
    assert b"rejected" in headers[DEAD_LETTER_REASON]
    eventually(queue.is_done)


@pytest.mark.parametrize("limit", ["topic", "group"])
def test_a_message_released_too_often_becomes_a_dead_letter(new_queue: NewQueue, limit: str) -> None:
    if limit == "topic":
        queue = new_queue(queue_max_deliveries="2")
    else:
        queue = new_queue(settings={**EARLIEST, "share.delivery.count.limit": "2"})
    queue.publish("poison")
    with queue.consumer("explicit") as consumer:
        for delivery in (1, 2):
            messages = take(consumer)
            assert [message.delivery_count() for message in messages] == [delivery]
            settle(consumer, messages, lambda _: AcknowledgeType.RELEASE)
        (letter,) = dead_letters(queue, 1)
        assert dict(letter.headers())[DELIVERY_COUNT] == b"2"
        assert not consumer.poll(0.5)


def test_messages_are_redelivered_when_their_lock_expires(new_queue: NewQueue) -> None:
    queue = new_queue(settings=SHORT_LOCK)
    queue.publish("slow")
    with queue.consumer("explicit") as slow:
        held = take(slow)
        with queue.consumer("explicit") as other:
            again = take(other)
            assert values_of(again) == ["slow"]
            assert [message.delivery_count() for message in again] == [2]
            settle(other, again)
        slow.acknowledge(held[0])
        ((_, error),) = slow.commit_sync(20).items()
        assert isinstance(error, KafkaException)
        assert error.args[0].name() == "INVALID_RECORD_STATE"
    eventually(queue.is_done)


def test_messages_of_a_closed_member_are_redelivered_at_once(new_queue: NewQueue) -> None:
    queue = new_queue()
    queue.publish("unfinished")
    with queue.consumer("explicit") as consumer:
        take(consumer)
    with queue.consumer() as other:
        (message,) = take(other, within_s=15)  # far less than the lock of 30 s
        assert message.value() == b"unfinished"


def test_a_compressed_batch_is_shared_record_by_record(new_queue: NewQueue) -> None:
    queue = new_queue()
    producer = Producer({"bootstrap.servers": queue.address, "compression.type": "zstd", "linger.ms": 200})
    for value in numbered(100):
        producer.produce(queue.topic, value=value)
    assert producer.flush(20) == 0
    with queue.consumer(max_poll_records=7) as one, queue.consumer(max_poll_records=7) as two:
        values: list[str] = []

        def poll() -> bool:
            for consumer in (one, two):
                values.extend(values_of(consumer.poll(0.1)))
            return len(values) >= 100

        eventually(poll)
    assert Counter(values) == Counter(numbered(100))


def test_aborted_transactions_are_not_delivered(new_queue: NewQueue) -> None:
    queue = new_queue()
    producer = Producer({"bootstrap.servers": queue.address, "transactional.id": queue.topic})
    producer.init_transactions()
    for fate, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(queue.topic, value=f"{fate} {number}")
        producer.flush(20)
        end()
    with queue.consumer() as consumer:
        assert drain(consumer, 3) == [f"committed {number}" for number in range(3)]
    eventually(queue.is_done)


def test_a_group_that_reads_uncommitted_records_gets_those_of_open_and_aborted_transactions(
    new_queue: NewQueue,
) -> None:
    queue = new_queue(settings={**EARLIEST, "share.isolation.level": "read_uncommitted"})
    producer = Producer({"bootstrap.servers": queue.address, "transactional.id": f"{queue.topic}-writer"})
    producer.init_transactions(20)
    with queue.consumer() as consumer:
        for ends in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.produce(queue.topic, f"before {ends.__name__}")
            producer.flush(20)
            assert drain(consumer, 1) == [f"before {ends.__name__}"]
            ends(20)
        queue.publish("outside of a transaction")
        assert drain(consumer, 1) == ["outside of a transaction"]
    eventually(queue.is_done)


def test_a_share_group_is_listed_over_http(new_queue: NewQueue, broker: Broker) -> None:
    queue = new_queue()
    queue.publish("a")
    with queue.consumer() as consumer:
        take(consumer)
        with urlopen(f"http://{broker.http_address}/groups/{queue.group}") as answer:
            group = json.load(answer)
    assert (group["type"], group["state"], group["queues"]) == ("share", "Stable", [queue.topic])
    assert group["members"][0]["assignment"] == {queue.topic: [0]}


def test_settings_of_a_group_are_stored_and_invalid_ones_refused(new_queue: NewQueue) -> None:
    queue = new_queue(settings=SHORT_LOCK)
    settings = queue.settings()
    assert settings["share.record.lock.duration.ms"] == "1000"
    assert settings["share.auto.offset.reset"] == "earliest"
    assert settings["share.session.timeout.ms"] == "45000"
    with pytest.raises(KafkaException, match=r"share\.record\.lock\.duration\.ms"):
        queue.configure({"share.record.lock.duration.ms": "soon"})


def test_a_queue_survives_a_restart_of_the_broker(new_broker: NewBroker, topic: str) -> None:
    """Acknowledged messages are not redelivered, others are, and settings are kept."""
    broker = new_broker()
    broker.start()
    queue = Queue(broker.address, topic).create(settings=SHORT_LOCK)
    queue.publish(*numbered(10))
    with queue.consumer("explicit") as consumer:
        messages = take(consumer)
        for message in messages[:6]:
            consumer.acknowledge(message)
        assert set(consumer.commit_sync(20).values()) == {None}
        broker.kill()
        broker.start()
    with queue.consumer() as other:
        again = take(other)
        assert values_of(again) == numbered(10)[6:]
        assert {message.delivery_count() for message in again} == {2}
    assert queue.settings()["share.record.lock.duration.ms"] == "1000"
