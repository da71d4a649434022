"""What does a message cost in queue mode, without an API, and does that grow with the backlog?

Receive and acknowledge in the process of the broker, 100 B messages on three partitions, 8 consumers: ten and
a hundred at a time, and ten at a time from backlogs of up to ten million messages.
"""

import asyncio
import resource
import shutil
import sys
import time
from pathlib import Path

import uvloop

from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.partition.leader import append
from alpacamq.broker.queue.service import Receipted
from alpacamq.model.ids import BrokerId
from alpacamq.model.records import Record, write_batch
from alpacamq.queues.messages import Action, QueueId
from alpacamq.telemetry.logs import Format, Level, configure

from .report import OURS, Report
from .session import Session

SIZE = 100
CONSUMERS = 8
PARTITIONS = 3
STORED_TOGETHER = 1000
BACKLOGS = (100_000, 1_000_000, 10_000_000)
QUEUE = QueueId("bench", "bench")


def run(session: Session, report: Report) -> None:
    configure(Level.WARNING, Format.TEXT, sys.stderr)
    report.settings["load"] = {"message bytes": SIZE, "partitions": PARTITIONS, "consumers": CONSUMERS}
    messages = session.scaled(100_000, 5_000)
    for together in (10, 100):
        _report(session, report, f"{together} at a time", messages, messages, together)
    for backlog in BACKLOGS if not session.is_quick else BACKLOGS[:1]:
        _report(session, report, f"10 at a time, backlog of {backlog:,}", backlog, messages, 10)


def _report(session: Session, report: Report, case: str, backlog: int, messages: int, together: int) -> None:
    rates: list[float] = []
    costs_us: list[float] = []
    for _ in range(session.repeats):
        session.settle()
        directory = session.new_directory()
        try:
            seconds, cpu_s = uvloop.run(_sample(directory, backlog, messages, together))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        rates.append(messages / seconds)
        costs_us.append(cpu_s / messages * 1e6)
    report(case=case, server=OURS, unit="messages/s", samples=rates)
    report(case=case, server=OURS, unit="µs of CPU per message", samples=costs_us)


async def _sample(directory: Path, backlog: int, messages: int, together: int) -> tuple[float, float]:
    """Seconds and processor time for so many messages out of a backlog."""
    broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=directory))
    broker.open()
    running = asyncio.create_task(broker.run())
    try:
        await broker.topics.create(QUEUE.topic, partitions=PARTITIONS)
        await _fill(broker, backlog)
        await _consume(broker, messages // 20, together)  # warms up
        began_at, cpu_before_s = time.monotonic(), _cpu_s()
        await _consume(broker, messages - messages // 20, together)
        share = messages / (messages - messages // 20)
        return (time.monotonic() - began_at) * share, (_cpu_s() - cpu_before_s) * share
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await broker.close()


async def _fill(broker: Broker, messages: int) -> None:
    now_ms = broker.clock.now_ms()
    batch = bytes(write_batch([Record(at, now_ms, None, b"x" * SIZE) for at in range(STORED_TOGETHER)]))
    partitions = broker.topics.partitions_of(QUEUE.topic)
    for number in range(messages // STORED_TOGETHER):
        await append(partitions[number % PARTITIONS], bytearray(batch))


async def _consume(broker: Broker, messages: int, together: int) -> None:
    left = messages

    async def consume(name: str) -> None:
        nonlocal left
        while left > 0:
            wanted = min(together, left)
            left -= wanted
            deliveries = await broker.queues.receive(
                QUEUE, consumer=name, max_messages=wanted, wait_ms=10_000
            )
            assert deliveries, "the backlog should not have run dry"
            left += wanted - len(deliveries)
            results = await broker.queues.settle(
                [Receipted(receipt=each.receipt, action=Action.ACK) for each in deliveries]
            )
            assert not any(results), results

    await asyncio.gather(*(consume(f"consumer-{number}") for number in range(CONSUMERS)))


def _cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime
