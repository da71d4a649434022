"""How many records a second does one asyncio client produce and consume, and what do they cost it?

100 B, one broker, acks=all and idempotent, batches of 64 KiB and 5 ms: the client of this package, aiokafka,
and confluent-kafka in one thread. Producers await only when their buffer is full, consumers get records one
at a time and in lists. On a machine with other load the cost counts: CPU of the client, in µs a record.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from alpacamq.client.aio.cluster import Cluster
from alpacamq.client.aio.producer import Producer as OurProducer
from alpacamq.client.aio.reader import Reader
from alpacamq.client.connect import parse_address

from . import topics
from .clients import Load
from .report import OURS, Floor, Report
from .servers import AlpacaMQ, Server
from .session import Session
from .usage import Meter, Usage

SIZE = 100
WAIT_S = 60.0
LINGER_MS = 5
BATCH_BYTES = 64 << 10
# What a producer may buffer: as much as ours does by default.
BUFFER_BYTES = 8 << 20
AT_ONCE = 500
PRODUCE_FLOOR = Floor(at_least=150_000)
CONSUME_FLOOR = Floor(at_least=200_000)

# Returns the seconds that the load took.
Run = Callable[[str, Load], Coroutine[None, None, float]]


async def produce_ours(address: str, load: Load) -> float:
    value = b"x" * load.size
    async with Cluster([parse_address(address)]) as cluster, OurProducer(cluster) as producer:
        await producer.prepare(load.topic)
        send, topic = producer.send, load.topic
        began_at = time.monotonic()
        for _ in range(load.count):
            if producer.is_full:
                await producer.room()
            send(topic, value)
        await producer.flush()
        return time.monotonic() - began_at


async def produce_aiokafka(address: str, load: Load) -> float:
    value = b"x" * load.size
    producer = AIOKafkaProducer(
        bootstrap_servers=address,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
    )
    await producer.start()
    try:
        await producer.partitions_for(load.topic)
        began_at = time.monotonic()
        for _ in range(load.count):
            await producer.send(load.topic, value)
        await producer.flush()
        return time.monotonic() - began_at
    finally:
        await producer.stop()


async def produce_confluent(address: str, load: Load) -> float:
    value = b"x" * load.size
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.kbytes": BUFFER_BYTES >> 10,
            "delivery.report.only.error": True,
        }
    )
    producer.list_topics(load.topic, WAIT_S)
    began_at = time.monotonic()
    for _ in range(load.count):
        while True:
            try:
                producer.produce(load.topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    if unsent := producer.flush(WAIT_S):
        raise TimeoutError(f"{unsent} of {load.count} messages were not acknowledged")
    return time.monotonic() - began_at


async def iterate_ours(address: str, load: Load) -> float:
    async with Cluster([parse_address(address)]) as cluster:
        began_at = time.monotonic()
        async with Reader(cluster, load.topic) as reader:
            left = load.count
            async for _ in reader:
                left -= 1
                if not left:
                    break
        return time.monotonic() - began_at


async def take_ours(address: str, load: Load) -> float:
    async with Cluster([parse_address(address)]) as cluster:
        began_at = time.monotonic()
        async with Reader(cluster, load.topic) as reader:
            left = load.count
            while left > 0:
                left -= len(await reader.take(AT_ONCE))
        return time.monotonic() - began_at


def _aiokafka_reader(address: str, load: Load) -> Any:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    consumer.assign([AioPartition(load.topic, number) for number in range(load.partitions)])
    return consumer


async def iterate_aiokafka(address: str, load: Load) -> float:
    consumer = _aiokafka_reader(address, load)
    began_at = time.monotonic()
    await consumer.start()
    try:
        left = load.count
        async for _ in consumer:
            left -= 1
            if not left:
                break
        return time.monotonic() - began_at
    finally:
        await consumer.stop()


async def take_aiokafka(address: str, load: Load) -> float:
    consumer = _aiokafka_reader(address, load)
    began_at = time.monotonic()
    await consumer.start()
    try:
        left = load.count
        while left > 0:
            found = await consumer.getmany(timeout_ms=1000, max_records=AT_ONCE)
            left -= sum(map(len, found.values()))
        return time.monotonic() - began_at
    finally:
        await consumer.stop()


def _confluent_reader(address: str, load: Load) -> Any:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([ConfluentPartition(load.topic, number, 0) for number in range(load.partitions)])
    return consumer


async def iterate_confluent(address: str, load: Load) -> float:
    began_at = time.monotonic()
    consumer = _confluent_reader(address, load)
    try:
        for _ in range(load.count):
            if consumer.poll(WAIT_S) is None:
                raise TimeoutError(f"{load.count} messages did not come")
        return time.monotonic() - began_at
    finally:
        consumer.close()


async def take_confluent(address: str, load: Load) -> float:
    began_at = time.monotonic()
    consumer = _confluent_reader(address, load)
    try:
        left = load.count
        while left > 0:
            found = consumer.consume(min(left, AT_ONCE), WAIT_S)
            if not found:
                raise TimeoutError(f"{left} of {load.count} messages did not come")
            left -= len(found)
        return time.monotonic() - began_at
    finally:
        consumer.close()


PRODUCE: dict[str, Run] = {
    "confluent-kafka": produce_confluent,
    "aiokafka": produce_aiokafka,
    OURS: produce_ours,
}
CONSUME: dict[str, dict[str, Run]] = {
    "one at a time": {
        "confluent-kafka": iterate_confluent,
        "aiokafka": iterate_aiokafka,
        OURS: iterate_ours,
    },
    f"{AT_ONCE} at a time": {"confluent-kafka": take_confluent, "aiokafka": take_aiokafka, OURS: take_ours},
}


def run(session: Session, report: Report) -> None:
    report.settings["clients"] = {"linger.ms": LINGER_MS, "batch.size": BATCH_BYTES, "acks": "all"}
    with session.server(AlpacaMQ()) as server:
        load = Load(topic="log", partitions=3, size=SIZE, count=session.scaled(1_000_000, 100_000))
        topics.create(server.address, load.topic, load.partitions)
        for name, produce in PRODUCE.items():
            _measure(session, report, server, name, produce, load, "produce, 100 B", PRODUCE_FLOOR)
        for how, clients in CONSUME.items():
            for name, consume in clients.items():
                _measure(
                    session, report, server, name, consume, load, f"consume, 100 B, {how}", CONSUME_FLOOR
                )


def _measure(
    session: Session, report: Report, server: Server, name: str, run: Run, load: Load, case: str, floor: Floor
) -> None:
    rates: list[float] = []
    costs: list[float] = []
    usages: list[Usage] = []
    for _ in range(session.repeats):
        session.settle()
        with Meter(server.pid) as meter:
            took_s = asyncio.run(run(server.address, load))
        rates.append(load.count / took_s)
        usages.append(meter.usage.over(took_s))
        costs.append(meter.usage.client_cpu_s / load.count * 1e6)
    report(
        case=case,
        server=name,
        unit="records/s",
        samples=rates,
        usages=usages,
        floor=floor if name == OURS else None,
    )
    report(case=case, server=name, unit="µs of CPU a record", samples=costs)
