"""Code as users write it, which mypy checks: types of values arrive where they are used."""

from dataclasses import dataclass
from typing import Any, assert_type

import alpacamq
from alpacamq import aio
from alpacamq.client.blocking import Job as BlockingJob


@dataclass
class Order:
    """A value."""

    id: int


async def asynchronous() -> None:
    async with aio.connect("alpaca://localhost", token=lambda: "a token") as mq:
        orders = mq.topic("orders", value=Order)
        assert_type(orders, aio.Topic[Order])
        assert_type(mq.topic("raw"), aio.Topic[bytes])
        assert_type(mq.topic("any", value=alpacamq.json), aio.Topic[Any])
        written = await orders.send(Order(1), key=1, delay="10m", priority="high", headers={"a": "b"})
        assert_type(written, aio.RecordMetadata)
        async with orders.producer(acks="all", compression="lz4") as producer:
            assert_type(producer.send(Order(2)), aio.Delivery)
            await (await producer.put(Order(3)))
        async for message in orders.read(start="-1h"):
            assert_type(message.value, Order)
        async with orders.subscribe("billing") as consumer:
            async for message in consumer:
                assert_type(message, aio.Message[Order])
                await consumer.commit()
            async with mq.transaction("tx-1") as tx:
                await tx.send(orders, Order(4))
                tx.commit_offsets(consumer)
        async for job in orders.queue("mail").receive(credit=100):
            async with job:
                assert_type(job.value, Order)
            await job.extend("1m")


def blocking() -> None:
    with alpacamq.connect("alpaca://localhost") as mq:
        orders = mq.topic("orders", value=Order, key=str)
        orders.send(Order(1), key="a")
        with orders.producer() as producer:
            assert_type(producer.send(Order(2)).result(), aio.RecordMetadata)
        for message in orders.read(until="latest"):
            assert_type(message.value, Order)
        with orders.queue("mail").receive() as jobs:
            for job in jobs:
                assert_type(job, BlockingJob[Order])
                with job:
                    raise alpacamq.Retry(after="5s")


app = alpacamq.Worker("alpaca://localhost")


@app.task("emails", group="mailer", concurrency=20, retries=5, timeout="30s")
async def send_mail(order: Order) -> None:
    raise alpacamq.Reject("no address")


@app.task("reports", group="reports")
def report(order: Order) -> int:
    return order.id


async def direct_calls() -> None:
    await send_mail(Order(1))
    assert_type(report(Order(1)), int)
