"""How far is a throttled client from its quota over 10 s, and how long do other clients wait meanwhile?

A producer and a consumer that want all they can get are limited to some MiB/s. Rates are those that the
client sees, over 10 s, after it has used up what was saved up before. The other client produces 1,000
messages a second, alone and beside the throttled one.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition

from alpacamq.client.connect import parse_address
from alpacamq.client.kafka.access import CLIENT_ID, EntityPart, set_quotas
from alpacamq.client.kafka.cluster import Cluster

from . import topics
from .clients import Pace, percentile
from .report import OURS, Floor, Report
from .servers import AlpacaMQ, Server
from .session import Session

MIB = 1 << 20
RATES_MIB = (1, 10)
VALUE = bytes(10_000)
SECONDS = 10
# Of each case, one after the other with the same client: the whole takes less than two minutes.
SAMPLES = 2
# Until what was saved up is used, and the client has found its pace.
WARM_UP_S = 3
DEVIATION = "% away from the quota"
ACCURATE = Floor(at_most=5.0)
OTHERS_PER_SECOND = 1_000
LIMITED = "limited"
# Small against ten seconds of the lowest rate.
SMALL_BATCHES = {"batch.size": 100_000, "linger.ms": 5}

# Transfers until it is stopped, and counts bytes.
Transfer = Callable[[Server, str, threading.Event, list[int]], None]


def run(session: Session, report: Report) -> None:
    with session.server(AlpacaMQ()) as server:
        alone = _others(session, server, "alone")
        report(case="another producer, alone, p99", server=OURS, unit="ms", samples=alone)
        for name, key, transfer in (
            ("produce", "producer_byte_rate", _produce),
            ("fetch", "consumer_byte_rate", _fetch),
        ):
            for rate_mib in RATES_MIB:
                _limit(server, key, rate_mib * MIB)
                case = f"{name}, {rate_mib} MiB/s"
                deviations, waited = [], []
                topic = f"{name}-{rate_mib}"
                topics.create(server.address, topic, 1)
                if transfer is _fetch:
                    _fill(session, server, topic, rate_mib)
                with _transferring(transfer, server, topic) as counted:
                    time.sleep(session.scaled(WARM_UP_S, 1))
                    for number in range(session.scaled(SAMPLES, 1)):
                        before, began_at = counted[0], time.monotonic()
                        waited += _others(session, server, f"{topic}-{number}")
                        seconds = session.scaled(SECONDS, 2)
                        time.sleep(max(0.0, began_at + seconds - time.monotonic()))
                        rate = (counted[0] - before) / (time.monotonic() - began_at)
                        deviations.append(abs(rate / (rate_mib * MIB) - 1) * 100)
                topics.delete(server.address, topic)
                report(case=case, server=OURS, unit=DEVIATION, samples=deviations, floor=ACCURATE)
                report(case=f"another producer, beside {case}, p99", server=OURS, unit="ms", samples=waited)


def _limit(server: Server, key: str, rate: int) -> None:
    with Cluster(parse_address(server.address)) as cluster:
        set_quotas(cluster, (EntityPart(CLIENT_ID, LIMITED),), {key: rate})


def _others(session: Session, server: Server, name: str) -> list[float]:
    """Return the p99 of another producer, in milliseconds."""
    topic = f"others-{name}"
    topics.create(server.address, topic, 1)
    seconds = session.scaled(SECONDS - 1, 1)
    pace = Pace(topic=topic, size=100, per_second=OTHERS_PER_SECOND, seconds=seconds)
    latencies = session.clients[-1].pace(server.address, pace, watched=False)
    topics.delete(server.address, topic)
    return [percentile(latencies.acked_ns, 0.99) / 1e6]


@contextmanager
def _transferring(transfer: Transfer, server: Server, topic: str) -> Iterator[list[int]]:
    """Transfer in a thread for the duration of the block; yield the count of bytes."""
    stop, counted = threading.Event(), [0]
    thread = threading.Thread(target=transfer, args=(server, topic, stop, counted))
    thread.start()
    try:
        yield counted
    finally:
        stop.set()
        thread.join()


def _produce(server: Server, topic: str, stop: threading.Event, counted: list[int]) -> None:
    def delivered(error: object, _message: object) -> None:
        if error is None:
            counted[0] += len(VALUE)

    producer = Producer(
        {
            "bootstrap.servers": server.address,
            "client.id": LIMITED,
            "queue.buffering.max.messages": 200,
            **SMALL_BATCHES,
        }
    )
    while not stop.is_set():
        try:
            producer.produce(topic, VALUE, on_delivery=delivered)
        except BufferError:
            producer.poll(0.01)
    producer.purge()
    producer.flush(1)


def _fill(session: Session, server: Server, topic: str, rate_mib: int) -> None:
    producer = Producer({"bootstrap.servers": server.address, **SMALL_BATCHES})
    # More than the samples take: of a client that is not throttled, the benchmark must not measure the end.
    seconds = session.scaled(WARM_UP_S + SAMPLES * (SECONDS + 2), 5)
    for number in range(rate_mib * MIB * seconds // len(VALUE)):
        producer.produce(topic, VALUE)
        if not number % 1000:
            producer.flush()
    producer.flush()


def _fetch(server: Server, topic: str, stop: threading.Event, counted: list[int]) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "client.id": LIMITED,
            "group.id": "bench",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    while not stop.is_set():
        for message in consumer.consume(100, 0.1):
            if message.error() is None:
                counted[0] += len(VALUE)
    consumer.close()
