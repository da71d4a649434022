"""What do transactions cost a producer: how many messages a second, against a plain producer in the same run?

One confluent-kafka producer, 100 B, 6 partitions, acks=all: plain, idempotent, and in transactions of 100,
1,000 and 10,000 messages, each committed before the next begins. Then the time that one transaction of a
single message takes from its beginning to the acknowledgement of its commit.
"""

import time
from array import array
from dataclasses import replace
from typing import Any

from confluent_kafka import Producer

from . import topics
from .clients import PRODUCER, Load, Settings, percentile
from .report import Report
from .servers import Server
from .session import Session
from .usage import Meter, Usage

WAIT_S = 60.0
PARTITIONS = 6
SIZE = 100
PLAIN: Settings = {**PRODUCER, "acks": "all"}
IDEMPOTENT: Settings = {**PLAIN, "enable.idempotence": True}
# Batching in the client would delay every commit: send without delay.
TRANSACTIONAL: Settings = {**PLAIN, "linger.ms": 0}
PER_TRANSACTION = (100, 1_000, 10_000)


def run(session: Session, report: Report) -> None:
    report.settings |= {"plain": dict(PLAIN), "transactional": dict(TRANSACTIONAL)}
    load = Load(topic="load", partitions=PARTITIONS, size=SIZE, count=session.scaled(500_000, 100_000))
    for contender in session.contenders:
        with session.server(contender) as server:
            _warm_up(server, load)
            _measure(session, report, server, load, "plain", PLAIN, None)
            _measure(session, report, server, load, "idempotent", IDEMPOTENT, None)
            for size in PER_TRANSACTION:
                # Transactions of 100 do not get faster with their number.
                some = replace(load, count=min(load.count, session.scaled(1_000, 100) * size))
                case = f"in transactions of {size:,}"
                _measure(session, report, server, some, case, TRANSACTIONAL, size)
            _single(session, report, server)


def _measure(
    session: Session,
    report: Report,
    server: Server,
    load: Load,
    case: str,
    settings: Settings,
    per_transaction: int | None,
) -> None:
    rates: list[float] = []
    usages: list[Usage] = []
    for sample in range(session.repeats):
        mine = replace(load, topic=f"{case.replace(' ', '-').replace(',', '')}-{sample}")
        topics.create(server.address, mine.topic, mine.partitions)
        session.settle()
        with Meter(server.pid) as meter:
            took_s = _produce(server.address, mine, settings, per_transaction)
        rates.append(mine.count / took_s)
        usages.append(meter.usage.over(took_s))
        found = topics.record_count(server.address, mine.topic, mine.partitions)
        assert found >= mine.count, f"{found} of {mine.count} messages are there"
        topics.delete(server.address, mine.topic)
    report(case=case, server=server.name, unit="msg/s", samples=rates, usages=usages)


def _produce(address: str, load: Load, settings: Settings, per_transaction: int | None) -> float:
    """Return seconds from the first message to the last acknowledgement, or the last commit."""
    if per_transaction is None:
        producer = Producer({"bootstrap.servers": address, **settings})
        producer.list_topics(load.topic, WAIT_S)
        began_at = time.monotonic()
        _send(producer, load.topic, load.size, load.count)
        unsent = producer.flush(WAIT_S)
        assert not unsent, f"{unsent} messages were not acknowledged"
        return time.monotonic() - began_at
    producer = _transactional(address, load.topic, settings)
    began_at = time.monotonic()
    for _ in range(load.count // per_transaction):
        producer.begin_transaction()
        _send(producer, load.topic, load.size, per_transaction)
        producer.commit_transaction(WAIT_S)
    return time.monotonic() - began_at


def _send(producer: Any, topic: str, size: int, count: int) -> None:
    value = b"x" * size
    produce = producer.produce
    for _ in range(count):
        produce(topic, value)
    producer.poll(0)


def _transactional(address: str, transactional_id: str, settings: Settings) -> Any:
    producer = Producer({"bootstrap.servers": address, "transactional.id": transactional_id, **settings})
    producer.init_transactions(WAIT_S)
    return producer


def _single(session: Session, report: Report, server: Server) -> None:
    """Run transactions of one message, one after the other."""
    topics.create(server.address, "single", 1)
    producer = _transactional(server.address, "single", TRANSACTIONAL)
    runs: list[array[int]] = []
    for _ in range(session.repeats):
        took_ns = array("q")
        session.settle()
        for _ in range(session.scaled(1_000, 200)):
            began_ns = time.monotonic_ns()
            producer.begin_transaction()
            producer.produce("single", b"x" * SIZE)
            producer.commit_transaction(WAIT_S)
            took_ns.append(time.monotonic_ns() - began_ns)
        runs.append(took_ns)
    for name, share in {"p50": 0.50, "p99": 0.99}.items():
        report(
            case=f"one transaction of a single message, {name}",
            server=server.name,
            unit="ms",
            samples=[percentile(each, share) / 1e6 for each in runs],
        )


def _warm_up(server: Server, load: Load) -> None:
    """Warm up a server that compiles code while it runs."""
    topics.create(server.address, "warm-up", PARTITIONS)
    warm = replace(load, topic="warm-up")
    _produce(server.address, warm, PLAIN, None)
    _produce(server.address, replace(warm, count=200_000), TRANSACTIONAL, 1_000)
    topics.delete(server.address, "warm-up")
