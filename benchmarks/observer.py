"""A confluent-kafka consumer among the members: measures how long it is without records in a rebalance.

Runs in its own process, undisturbed. It also produces what it reads: a record to each of its partitions
every few milliseconds.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from confluent_kafka import Consumer, Producer

WRITE_EVERY_S = 0.005
_CALM_S = 0.5
_STOP_S = 30.0
NAME = "observer"


class Observer:
    """The consumer as the benchmark sees it; reports its partitions to `noted`."""

    def __init__(
        self, address: str, topic: str, group: str, protocol: str, noted: Callable[[frozenset[int]], None]
    ) -> None:
        self._noted = noted
        self._reports: asyncio.Queue[float] = asyncio.Queue()
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_observe, args=(address, topic, group, protocol, theirs), daemon=True
        )
        self._process.start()
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._read)

    async def mark(self) -> None:
        """Start measuring, once records have been flowing for a while."""
        await asyncio.sleep(_CALM_S)
        self._pipe.send("mark")
        await asyncio.sleep(_CALM_S)

    async def longest_gap_s(self) -> float:
        """Return the longest pause since the mark in any partition that it has kept."""
        self._pipe.send("report")
        return await self._reports.get()

    async def leave(self) -> None:
        """Make it leave its group, and wait for that."""
        self._pipe.send("leave")
        await asyncio.to_thread(self._process.join, _STOP_S)
        self.end()

    def end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        self._process.kill()
        self._process.join()

    def _read(self) -> None:
        while self._pipe.poll():
            try:
                told = self._pipe.recv()
            except EOFError:
                asyncio.get_running_loop().remove_reader(self._pipe.fileno())
                return
            if isinstance(told, float):
                self._reports.put_nowait(told)
            else:
                self._noted(told)


class _Watch:
    """The time of the last record of each partition, and the longest wait for one."""

    def __init__(self) -> None:
        self.last: dict[int, float] = {}
        self._longest: dict[int, float] = {}

    def seen(self, partition: int) -> None:
        now = time.monotonic()
        if partition in self._longest:
            self._longest[partition] = max(self._longest[partition], now - self.last[partition])
        self.last[partition] = now

    def mark(self) -> None:
        self._longest = dict.fromkeys(self.last, 0.0)

    def forget(self, partition: int) -> None:
        self.last.pop(partition, None)
        self._longest.pop(partition, None)

    def longest_s(self) -> float:
        now = time.monotonic()
        return max(
            (max(longest, now - self.last[each]) for each, longest in self._longest.items()), default=0.0
        )


def _observe(address: str, topic: str, group: str, protocol: str, pipe: Connection) -> None:
    held: set[int] = set()
    watch = _Watch()

    def assigned(_consumer: Any, places: list[Any]) -> None:
        held.update(place.partition for place in places)
        pipe.send(frozenset(held))

    def revoked(_consumer: Any, places: list[Any]) -> None:
        for place in places:
            held.discard(place.partition)
            watch.forget(place.partition)
        pipe.send(frozenset(held))

    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "latest",
        "group.protocol": protocol,
    }
    if protocol == "classic":
        settings["partition.assignment.strategy"] = "cooperative-sticky"
    consumer = Consumer(settings)
    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    threading.Thread(target=_write, args=(address, topic, held), daemon=True).start()
    while True:
        message = consumer.poll(0.01)
        if message is not None and message.error() is None:
            watch.seen(message.partition())
        if pipe.poll():
            match pipe.recv():
                case "mark":
                    watch.mark()
                case "report":
                    pipe.send(watch.longest_s())
                case "leave":
                    consumer.close()
                    return


def _write(address: str, topic: str, held: set[int]) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "1"})
    while True:
        for partition in [*held]:
            producer.produce(topic, b"x" * 100, partition=partition)
        producer.poll(0)
        time.sleep(WRITE_EVERY_S)
