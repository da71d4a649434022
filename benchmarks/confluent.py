"""confluent-kafka, the client that most Python programs use, in loops as lean as Python allows."""

import time
from array import array
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from .clients import CONSUMER, PACED_PRODUCER, PRODUCER, Latencies, Load, Pace

FETCHED_AT_ONCE = 10_000
SERVE_EVERY = 10_000
WAIT_S = 60.0
# Often enough to send 10,000 a second in time, seldom enough to leave the cores to the server.
PACE_STEP_S = 50e-6


class ConfluentClient:
    """One producer or one consumer in this process."""

    name = "confluent-kafka"

    def produce(self, address: str, load: Load, acks: str) -> float:
        producer = Producer({"bootstrap.servers": address, "acks": acks, **PRODUCER})
        producer.list_topics(load.topic, WAIT_S)
        value = b"x" * load.size
        produce, poll, topic = producer.produce, producer.poll, load.topic
        began_at = time.monotonic()
        for _ in range(load.count // SERVE_EVERY):
            for _ in range(SERVE_EVERY):
                try:
                    produce(topic, value)
                except BufferError:
                    _produce_when_there_is_room(producer, topic, value)
            poll(0)
        for _ in range(load.count % SERVE_EVERY):
            produce(topic, value)
        unsent = producer.flush(WAIT_S)
        took_s = time.monotonic() - began_at
        if unsent:
            raise TimeoutError(f"{unsent} of {load.count} messages were not acknowledged")
        return took_s

    def fetch(self, address: str, load: Load) -> float:
        consumer = _reader(address, load.topic, load.partitions, **CONSUMER)
        try:
            _next_message(consumer)
            began_at = time.monotonic()
            left = load.count - 1
            while left:
                messages = consumer.consume(min(left, FETCHED_AT_ONCE), WAIT_S)
                if not messages:
                    raise TimeoutError(f"{left} of {load.count} messages did not come")
                left -= len(messages)
            return time.monotonic() - began_at
        finally:
            consumer.close()

    def pace(self, address: str, pace: Pace, *, watched: bool) -> Latencies:
        if not watched:
            return Latencies(acked_ns=_publish(address, pace, None), seen_ns=array("q"))
        # A process of its own: in this one the consumer would wait for the producer's turns.
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        watcher = context.Process(target=_watch, args=(address, pace, theirs), daemon=True)
        watcher.start()
        try:
            acked_ns = _publish(address, pace, ours)
            if not ours.poll(WAIT_S):
                raise TimeoutError("the consumer did not get everything")
            seen_ns = array("q", ours.recv_bytes())
        finally:
            watcher.kill()
            watcher.join()
        return Latencies(acked_ns=acked_ns, seen_ns=seen_ns)


def _produce_when_there_is_room(producer: Any, topic: str, value: bytes) -> None:
    while True:
        producer.poll(0.005)
        try:
            producer.produce(topic, value)
        except BufferError:
            continue
        return


def _reader(address: str, topic: str, partitions: int, **settings: str | int) -> Any:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False, **settings}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    return consumer


def _next_message(consumer: Any) -> Any:
    message = consumer.poll(WAIT_S)
    if message is None:
        raise TimeoutError("no message came")
    if message.error() is not None:
        raise RuntimeError(f"fetch: {message.error()}")
    return message


def _publish(address: str, pace: Pace, watcher: Connection | None) -> "array[int]":
    producer = Producer({"bootstrap.servers": address, "acks": pace.acks, **PACED_PRODUCER})
    clock = time.monotonic_ns
    interval_ns = 1_000_000_000 // pace.per_second
    padding = bytes(pace.size - 8)
    latencies = array("q")
    # The first message only shows that all is set up.
    producer.produce(pace.topic, bytes(pace.size), partition=0)
    producer.flush(WAIT_S)
    if watcher is not None and not watcher.poll(WAIT_S):
        raise TimeoutError("the consumer did not get going")
    if watcher is not None:
        watcher.recv()
    began_ns = clock() + 10_000_000

    # Acknowledgements of one partition come in the order of sending, so counting tells which it is.
    def acknowledged(error: Any, _message: Any) -> None:
        if error is not None:
            raise RuntimeError(f"a message was refused: {error}")
        latencies.append(clock() - began_ns - len(latencies) * interval_ns)

    sent = 0
    while sent < pace.count:
        due = min((clock() - began_ns) // interval_ns + 1, pace.count)
        while sent < due:
            intended_ns = began_ns + sent * interval_ns
            value = intended_ns.to_bytes(8, "little") + padding
            producer.produce(pace.topic, value, partition=0, on_delivery=acknowledged)
            sent += 1
        producer.poll(0)
        time.sleep(PACE_STEP_S)
    deadline = time.monotonic() + WAIT_S
    while len(latencies) < pace.count and time.monotonic() < deadline:
        producer.poll(0.001)
    if len(latencies) < pace.count:
        raise TimeoutError(f"{pace.count - len(latencies)} messages were not acknowledged")
    return latencies


def _watch(address: str, pace: Pace, publisher: Connection) -> None:
    consumer = _reader(address, pace.topic, 1)
    latencies = array("q")
    _next_message(consumer)
    publisher.send("ready")
    clock = time.monotonic_ns
    for _ in range(pace.count):
        message = _next_message(consumer)
        latencies.append(clock() - int.from_bytes(message.value()[:8], "little"))
    publisher.send_bytes(latencies.tobytes())
