"""Delayed messages in a broker at work: scheduled, delivered, listed, taken back, and still there after a crash."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.delays import DelayedMessage, DelaySettings
from alpacamq.model.errors import InvalidDelay, TooManyDelayed, UnknownDelayed, UnknownTopic
from alpacamq.model.headers import DELIVER_AT
from alpacamq.model.records import Header

from .open_brokers import BreakableDisk, SettableClock, eventually, running, stored

DAY_MS = 86_400_000


def delayed(
    broker: Broker, value: bytes, delay_ms: int, topic: str = "orders", partition: int = 0
) -> DelayedMessage:
    return DelayedMessage(
        topic=topic,
        partition=partition,
        due_ms=broker.clock.now_ms() + delay_ms,
        key=b"k",
        value=value,
        headers=(Header("h", b"1"),),
    )


async def schedule(broker: Broker, *messages: tuple[bytes, int]) -> list[int]:
    return await broker.delays.schedule([delayed(broker, *message) for message in messages])


async def values(broker: Broker, topic: str = "orders", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in stored(broker, topic, partition)]


async def delivered(broker: Broker, expected: Sequence[bytes], topic: str = "orders") -> None:
    async def is_there() -> bool:
        return await values(broker, topic) == list(expected)

    await eventually(is_there)


async def test_a_message_appears_when_it_is_due_as_it_was_sent(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        message = delayed(broker, b"later", 120)
        await broker.delays.schedule([message])
        assert await values(broker) == []
        await delivered(broker, [b"later"])
        [record] = stored(broker, "orders")
        assert record.key == b"k"
        assert record.headers == (Header("h", b"1"), Header(DELIVER_AT, str(message.due_ms).encode()))
        assert record.timestamp_ms >= message.due_ms
        figures = await broker.delays.figures()
        assert (figures.pending, figures.next_due_ms) == (0, None)
        assert (figures.scheduled_total, figures.fired_total) == (1, 1)
