"""The code of docs/guide/client-comparison.md runs, and its table counts the lines right."""

import asyncio
import re
import textwrap
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

import alpacamq
from alpacamq import aio
from tests.brokers import Broker
from tests.conftest import NewBroker
from tests.waiting import soon

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "client-comparison.md"
CLIENTS = ("alpacamq", "aiokafka", "boto3", "nats-py")
SECTION = re.compile(r"^## (\d+)\. .*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^([a-z0-9-]+)(?:, [^\n]*)?:\n\n```py\n(.*?)```", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| \[.*?\]\(#(\d+)-.*?\) \|(.*)\|$", re.MULTILINE)


@dataclass
class Order:
    """The value of the page."""

    id: int


def snippets() -> dict[tuple[int, str], str]:
    return {
        (int(section[1]), block[1]): block[2]
        for section in SECTION.finditer(PAGE.read_text())
        for block in BLOCK.finditer(section[0])
    }


SNIPPETS = snippets()


def test_the_table_counts_the_lines_of_the_code() -> None:
    rows = {
        int(row[1]): [each.strip() for each in row[2].split("|")] for row in ROW.finditer(PAGE.read_text())
    }
    assert len(rows) == 10
    for number, counts in rows.items():
        for client, count in zip(CLIENTS, counts, strict=True):
            code = SNIPPETS.get((number, client))
            lines = [line for line in (code or "").splitlines() if line.strip()]
            assert count == (str(len(lines)) if code else "–"), (number, client, len(lines))


def test_code_that_is_not_run_is_at_least_valid() -> None:
    for (number, client), code in SNIPPETS.items():
        compile(_function(code), f"{client} {number}", "exec")


def _function(code: str) -> str:
    return f"async def run():\n{textwrap.indent(code, '    ')}"


async def execute(number: int, client: str, names: dict[str, Any]) -> None:
    """Run a snippet with these names; those it sets are set in them."""
    # Names that it sets are local to it, names of the set-up are global.
    exec(_function(SNIPPETS[number, client]), names)  # noqa: S102 - our own page
    await names["run"]()


@pytest.fixture
def broker(new_broker: NewBroker) -> Broker:
    return new_broker().start()


@pytest.fixture
async def mq(broker: Broker) -> AsyncIterator[aio.Client]:
    async with aio.connect(f"alpaca://{broker.grpc_address}") as client:
        yield client


def encode(order: Order) -> bytes:
    return msgspec.json.encode(order)


def decode(data: bytes | str) -> Order:
    return msgspec.json.decode(data, type=Order)


class Enough(Exception):
    """Ends a loop that has no end."""


def processing(seen: list[int], enough: int) -> Any:
    def process(order: Order) -> None:
        seen.append(order.id)
        if len(seen) > enough:
            raise Enough

    return process


async def test_the_code_of_our_client(mq: aio.Client, broker: Broker) -> None:
    orders = mq.topic("orders", value=Order)
    target = mq.topic("receipts", value=str)
    names: dict[str, Any] = {
        "alpacamq": alpacamq,
        "mq": mq,
        "orders": orders,
        "target": target,
        "order": Order(0),
        "thousand": [Order(number) for number in range(1, 1001)],
        "transform": lambda order: f"order {order.id}",
    }
    await execute(1, "alpacamq", names)
    await execute(2, "alpacamq", names)
    seen: list[int] = []
    names["process"] = processing(seen, 2000)
    await execute(3, "alpacamq", names)
    assert sorted(seen) == list(range(1001))
    for number in (4, 5):
        seen.clear()
        names["process"] = processing(seen, 20)
        with pytest.raises(Enough):
            await asyncio.wait_for(execute(number, "alpacamq", names), 60)
        assert len(seen) == 21
    async with orders.queue("other").receive(credit=1) as jobs:
        for number in (6, 7):
            names["job"] = await jobs.next()
            await execute(number, "alpacamq", names)
            assert names["job"].is_settled
    await execute(8, "alpacamq", names)
    async with orders.subscribe("copier") as consumer:
        names["consumer"] = consumer
        await execute(9, "alpacamq", names)
    assert len([each async for each in target.read(until="latest")]) == 1
    app = alpacamq.Worker(f"alpaca://{broker.grpc_address}")
    rendered: list[Order] = []

    async def process_slowly(order: Order) -> None:
        rendered.append(order)
        if len(rendered) == 1001:
            app.stop()

    names |= {"app": app, "Order": Order, "process_slowly": process_slowly}
    await execute(10, "alpacamq", names)
    await asyncio.wait_for(app.run_async(), 90)
    assert len(rendered) == 1001


async def test_the_code_of_aiokafka(broker: Broker) -> None:
    servers = broker.kafka
    consumers: list[AIOKafkaConsumer] = []

    def consumer(*topics: str, **options: Any) -> AIOKafkaConsumer:
        made = AIOKafkaConsumer(*topics, bootstrap_servers=servers, auto_offset_reset="earliest", **options)
        consumers.append(made)
        return made

    producer = AIOKafkaProducer(bootstrap_servers=servers)
    await producer.start()
    seen: list[int] = []
    names: dict[str, Any] = {
        "producer": producer,
        "encode": encode,
        "decode": decode,
        "TopicPartition": TopicPartition,
        "order": Order(0),
        "thousand": [Order(number) for number in range(1, 1001)],
        "transform": lambda order: order,
        "hour_ago_ms": int(time.time() * 1000) - 3_600_000,
    }
    try:
        await execute(1, "aiokafka", names)
        await execute(2, "aiokafka", names)
        names["consumer"] = consumer("orders")
        await names["consumer"].start()
        names["process"] = processing(seen, 2000)
        await asyncio.wait_for(execute(3, "aiokafka", names), 60)
        assert sorted(seen) == list(range(1001))
        seen.clear()
        names["process"] = processing(seen, 5)
        names["consumer"] = consumer("orders", group_id="billing", enable_auto_commit=False)
        with pytest.raises(Enough):
            await asyncio.wait_for(execute(4, "aiokafka", names), 90)
        names["consumer"] = consumer("orders", group_id="copier", enable_auto_commit=False)
        await names["consumer"].start()
        names["message"] = await names["consumer"].getone()
        await execute(7, "aiokafka", names)
        transactional = AIOKafkaProducer(bootstrap_servers=servers, transactional_id="copier")
        await transactional.start()
        try:
            await execute(9, "aiokafka", {**names, "producer": transactional})
        finally:
            await transactional.stop()
    finally:
        await producer.stop()
        for each in consumers:
            await each.stop()


async def test_the_code_of_boto3(broker: Broker) -> None:
    sqs = boto3.client(
        "sqs",
        endpoint_url=f"http://{broker.sqs_address}",
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106
    )
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    seen: list[int] = []
    names: dict[str, Any] = {
        "sqs": sqs,
        "url": url,
        "dead_letters": sqs.create_queue(QueueName="dead")["QueueUrl"],
        "encode": encode,
        "decode": decode,
        "threading": threading,
        "order": Order(0),
        "thousand": [Order(number) for number in range(1, 31)],
    }
    await execute(1, "boto3", names)
    await execute(2, "boto3", names)
    stopping = threading.Event()

    def process(order: Order) -> None:
        seen.append(order.id)
        if len(set(seen)) == 25:
            stopping.set()
            raise KeyboardInterrupt  # which the loop does not catch

    names["process"] = process
    with suppress(KeyboardInterrupt):
        await asyncio.to_thread(lambda: asyncio.run(execute(5, "boto3", dict(names))))
    assert stopping.is_set()
    for number in (6, 7):
        (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
        await execute(number, "boto3", {**names, "message": message})
    await execute(8, "boto3", names)
    seen.clear()
    names["process"] = lambda order: seen.append(order.id)
    await execute(1, "boto3", names)
    with ThreadPoolExecutor(20) as pool:
        await execute(10, "boto3", {**names, "pool": pool})
    await soon(lambda: len(seen) > 0)
