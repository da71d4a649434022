"""How late are delayed messages while a million others wait, and what do those cost?

Sent with confluent-kafka, 100 B, 6 partitions. First a million messages due between an hour and 30 days
ahead: the rate at which they are accepted, and the broker's memory with them. Then 10,000 due within 20
seconds: the delay from the due time until a waiting consumer receives each. Then kill -9: the time from
the start of the process until a message that was due meanwhile is received.
"""

import random
import time
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from . import topics
from .clients import PRODUCER, percentile
from .report import OURS, Floor, Report
from .servers import Contender, Server
from .session import Session
from .usage import MIB, Meter

HEADER = "alpacamq-deliver-at"
TOPIC = "delayed"
PARTITIONS = 6
SIZE = 100
HOUR_MS = 3_600_000
MONTH_MS = 30 * 24 * HOUR_MS
# Due time of the first message whose delay is measured, and the range over which the others are spread.
AHEAD_MS = 3_000
SPREAD_MS = 20_000
WAIT_S = 120.0
SERVE_EVERY = 1_000
LATE = Floor(at_most=20.0)
RESIDENT = Floor(at_most=300.0)


def run(session: Session, report: Report) -> None:
    report.settings |= {"producer": dict(PRODUCER)}
    for contender in session.contenders:
        if contender.name == OURS:
            _measure(session, report, contender)
        else:
            report.skip(contender.name, "it has no delayed messages")


def _measure(session: Session, report: Report, contender: Contender) -> None:
    directory = session.new_directory()
    pending = session.scaled(1_000_000, 50_000)
    server = contender.start(directory)
    try:
        topics.create(server.address, TOPIC, PARTITIONS, {"message.delays": "true"})
        _fill(report, server, pending)
        _lateness(session, report, server, pending)
        server.kill()
        starts = [_start(session, contender, directory) for _ in range(session.repeats)]
        report(case=f"delivery after kill -9, {pending:,} waiting", server=OURS, unit="s", samples=starts)
    finally:
        server.kill()


def _fill(report: Report, server: Server, pending: int) -> None:
    dice = random.Random(1)
    now_ms = _now_ms()
    dues_ms = (now_ms + dice.randrange(HOUR_MS, MONTH_MS) for _ in range(pending))
    with Meter(server.pid) as meter:
        took_s = _send(server.address, dues_ms)
    usage = meter.usage.over(took_s)
    report(case="messages taken in", server=OURS, unit="msg/s", samples=[pending / took_s], usages=[usage])
    resident_mib = psutil.Process(server.pid).memory_info().rss / MIB
    report(
        case=f"resident, {pending:,} waiting",
        server=OURS,
        unit="MiB",
        samples=[resident_mib],
        floor=RESIDENT,
    )


def _lateness(session: Session, report: Report, server: Server, pending: int) -> None:
    dice = random.Random(2)
    runs: list[array[int]] = []
    for _ in range(session.repeats):
        session.settle()
        consumer = _tail(server.address)
        try:
            first_ms = _now_ms() + AHEAD_MS
            dues_ms = [first_ms + dice.randrange(SPREAD_MS) for _ in range(session.scaled(10_000, 500))]
            _send(server.address, dues_ms)
            assert _now_ms() < first_ms, "they were not taken in before the first was due"
            runs.append(_received(consumer, len(dues_ms)))
        finally:
            consumer.close()
    for name, share, floor in (("p50", 0.5, None), ("p99", 0.99, LATE)):
        report(
            case=f"received after its time, {name}, {pending:,} waiting",
            server=OURS,
            unit="ms",
            samples=[percentile(late_ns, share) / 1e6 for late_ns in runs],
            floor=floor,
        )


def _start(session: Session, contender: Contender, directory: Path) -> float:
    """Start, let a message fall due while stopped, start again; return seconds until received."""
    server = contender.start(directory)
    try:
        due_ms = _now_ms() + AHEAD_MS
        _send(server.address, [due_ms])
    finally:
        server.kill()
    while _now_ms() <= due_ms:
        time.sleep(0.01)
    session.settle()
    began_at = time.monotonic()
    server = contender.start(directory)
    try:
        consumer = _reader(server.address, "earliest")
        try:
            while not any(_due_ms(message) == due_ms for message in consumer.consume(10_000, 0.05)):
                if time.monotonic() - began_at > WAIT_S:
                    raise TimeoutError("the message did not come")
            return time.monotonic() - began_at
        finally:
            consumer.close()
    finally:
        server.kill()


def _send(address: str, dues_ms: Iterable[int]) -> float:
    """Return seconds from the first message to the last acknowledgement."""
    producer = Producer({"bootstrap.servers": address, **PRODUCER})
    producer.list_topics(TOPIC, WAIT_S)
    value = b"x" * SIZE
    began_at = time.monotonic()
    for number, due_ms in enumerate(dues_ms):
        while True:
            try:
                producer.produce(TOPIC, value, headers=[(HEADER, b"%d" % due_ms)])
                break
            except BufferError:
                producer.poll(0.05)
        if number % SERVE_EVERY == 0:
            producer.poll(0)
    unsent = producer.flush(WAIT_S)
    assert not unsent, f"{unsent} messages were not acknowledged"
    return time.monotonic() - began_at


def _received(consumer: Any, count: int) -> "array[int]":
    """Return nanoseconds from its due time until each of `count` messages was received."""
    late_ns = array("q")
    deadline = time.monotonic() + WAIT_S
    while len(late_ns) < count:
        messages = consumer.consume(1_000, 0.002)
        now_ns = time.time_ns()
        late_ns.extend(now_ns - _due_ms(message) * 1_000_000 for message in messages)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count - len(late_ns)} of {count} messages did not come")
    return late_ns


def _tail(address: str) -> Any:
    """Return a consumer that waits at the end of every partition."""
    consumer = _reader(address, "latest")
    for partition in range(PARTITIONS):
        place = TopicPartition(TOPIC, partition)
        place.offset = consumer.get_watermark_offsets(place, timeout=WAIT_S)[1]
        consumer.incremental_unassign([place])
        consumer.incremental_assign([place])
    consumer.poll(0.5)  # so that its first fetch is under way
    return consumer


def _reader(address: str, start: str) -> Any:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False})
    offset = {"earliest": -2, "latest": -1}[start]
    consumer.assign([TopicPartition(TOPIC, partition, offset) for partition in range(PARTITIONS)])
    return consumer


def _due_ms(message: Any) -> int:
    return int(dict(message.headers())[HEADER])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
