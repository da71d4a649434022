"""How many messages a second does the Python client receive and acknowledge, and a worker process?

100 B messages, a backlog to begin with, one process of the client. Settlements are not awaited one by one but
all of them are confirmed at the end. A worker calls a coroutine function that does nothing.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

import alpacamq
from alpacamq import aio

from .report import Floor, Report
from .servers import AlpacaMQ, Server
from .session import Session
from .usage import Meter, Usage

SIZE = 100
CONSUMERS = 8
CREDIT = 500
CONCURRENCY = 100
BODY = b"x" * SIZE
RECEIVED = Floor(at_least=20_000)
TASKS = Floor(at_least=10_000)

Drain = Callable[[str, str, int], Coroutine[Any, Any, None]]


def run(session: Session, report: Report) -> None:
    report.settings["load"] = {"message bytes": SIZE, "consumers": CONSUMERS, "credit of each": CREDIT}
    messages = session.scaled(100_000, 2_000)
    with session.server(AlpacaMQ()) as server:
        case = f"receive and acknowledge, {CONSUMERS} consumers"
        _measure(session, report, server, case, "messages/s", _consume, messages, RECEIVED)
        _measure(
            session, report, server, f"worker, {CONCURRENCY} at a time", "tasks/s", _work, messages, TASKS
        )


def _measure(
    session: Session,
    report: Report,
    server: Server,
    case: str,
    unit: str,
    drain: Drain,
    messages: int,
    floor: Floor,
) -> None:
    url = f"alpaca://{server.addresses['grpc']}"
    rates: list[float] = []
    usages: list[Usage] = []
    for sample in range(session.repeats + 1):
        topic = f"{drain.__name__.strip('_')}-{sample}"
        uvloop.run(_fill(url, topic, messages))
        session.settle()
        with Meter(server.pid) as meter:
            began_at = time.monotonic()
            uvloop.run(drain(url, topic, messages))
            seconds = time.monotonic() - began_at
        if sample:  # the first one warms up
            rates.append(messages / seconds)
            usages.append(meter.usage)
    report(case=case, server=server.name, unit=unit, samples=rates, usages=usages, floor=floor)


async def _fill(url: str, topic: str, messages: int) -> None:
    async with aio.connect(url) as mq, mq.topic(topic).producer(batch_records=1000) as producer:
        for _ in range(messages):
            await producer.put(BODY)


async def _consume(url: str, topic: str, messages: int) -> None:
    async with aio.connect(url) as mq:
        queue = mq.topic(topic).queue("bench")
        receivers = [queue.receive(credit=CREDIT) for _ in range(CONSUMERS)]
        left = messages

        async def consume(receiver: Any) -> None:
            nonlocal left
            async with receiver:
                async for job in receiver:
                    job.ack()
                    left -= 1
                    if left <= 0:
                        for each in receivers:
                            each.drain()
                await receiver.settled()

        async with asyncio.TaskGroup() as group:
            for each in receivers:
                group.create_task(consume(each))


async def _work(url: str, topic: str, messages: int) -> None:
    app = alpacamq.Worker(url)
    done = 0

    @app.task(topic, group="bench", concurrency=CONCURRENCY, prefetch=CREDIT, timeout="30s")
    async def task(value: bytes) -> None:  # noqa: ARG001 - it does nothing
        nonlocal done
        done += 1
        if done == messages:
            app.stop()

    await app.run_async()
    assert next(iter(app.metrics.values())).succeeded == messages
