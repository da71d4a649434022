"""Sending to FIFO queues: every message once, numbered within its group.

A message may be on disk although its sender has gone before it was told: so what is begun here is
finished, whoever is left to hear of it.
"""

import asyncio
from collections.abc import Sequence

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition_traces import Origin
from alpacamq.broker.publishing import Published
from alpacamq.model.errors import AlpacaError
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.telemetry.tracing import Door

from .actions import Caller
from .deduplication import Deduplication, message_key
from .directory import Queue
from .drafts import Draft, Sent
from .errors import THROTTLED, Fault, fault_of
from .message_ids import derived_id, sequence_number
from .sent_window import Remembered, SentWindow

MAX_UNDER_WAY = 10_000


class FifoSending:
    """Sends drafts that were not sent before, and answers for the others what was answered then."""

    def __init__(self, broker: Broker, deduplication: Deduplication) -> None:
        self._broker = broker
        self._deduplication = deduplication
        # Sends whose client may be gone; each ends by itself within one write.
        self._under_way: set[asyncio.Task[list[Sent | Fault]]] = set()

    async def send(self, queue: Queue, drafts: Sequence[Draft], caller: Caller) -> list[Sent | Fault]:
        """What became of each, in order."""
        if len(self._under_way) >= MAX_UNDER_WAY:
            raise Fault(THROTTLED, f"{MAX_UNDER_WAY} requests to FIFO queues wait for the disk.")
        task = asyncio.ensure_future(self._send(queue, drafts, caller))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def _send(self, queue: Queue, drafts: Sequence[Draft], caller: Caller) -> list[Sent | Fault]:
        window = await self._deduplication.window(queue)
        keys = [_key(queue, made) for made in drafts]
        results: dict[int, Sent | Fault] = {}
        while len(results) < len(drafts):
            claimed: list[int] = []
            awaited: list[tuple[int, asyncio.Future[Remembered | None]]] = []
            for index, key in enumerate(keys):
                if index in results:
                    continue
                found = window.find(key, self._broker.clock.now_ms())
                if found is None:
                    try:
                        self._deduplication.check_room()
                    except Fault as fault:
                        results[index] = fault
                        continue
                    window.claim(key)
                    claimed.append(index)
                elif isinstance(found, Remembered):
                    results[index] = _answer(queue, found)
                else:
                    awaited.append((index, found))
            if claimed:
                claims = [(keys[index], drafts[index]) for index in claimed]
                sent = await self._publish(queue, window, claims, caller)
                results.update(zip(claimed, sent, strict=True))
            for index, answer in awaited:
                if (found := await asyncio.shield(answer)) is not None:
                    results[index] = _answer(queue, found)
                # Else whoever was first has failed, and it is our turn.
        return [results[index] for index in range(len(drafts))]

    async def _publish(
        self, queue: Queue, window: SentWindow, claims: Sequence[tuple[bytes, Draft]], caller: Caller
    ) -> list[Sent | Fault]:
        """Send what was claimed; every claim is settled, whatever happens."""
        open_claims = dict(claims)
        try:
            self._number_delayed(queue, window, [made for _, made in claims])
            now_ms = self._broker.clock.now_ms()
            outcomes = await self._broker.publisher.publish(
                queue.name,
                [made.message() for _, made in claims],
                origin=Origin(Door.SQS, caller.peer),
                traceparent=caller.traceparent,
            )
            results: list[Sent | Fault] = []
            for (key, made), outcome in zip(claims, outcomes, strict=True):
                if isinstance(outcome, AlpacaError):
                    results.append(fault_of(outcome))
                    continue
                found = _remembered(made, outcome, now_ms)
                del open_claims[key]
                window.confirm(key, found)
                results.append(_answer(queue, found))
            return results
        finally:
            for key in open_claims:
                window.give_up(key)

    def _number_delayed(self, queue: Queue, window: SentWindow, drafts: Sequence[Draft]) -> None:
        partitions = self._broker.topics.partitions_of(queue.name)
        for made in drafts:
            if made.message_id is not None and made.number is None and partitions:
                assert made.group_id is not None
                index = partition_for_key(made.group_id.encode(), len(partitions))
                made.give_number(window.next_number(index, partitions[index].high_watermark))


def _key(queue: Queue, made: Draft) -> bytes:
    assert made.deduplication_id is not None
    assert made.group_id is not None
    return message_key(queue, made.deduplication_id, made.group_id)


def _remembered(made: Draft, published: Published, now_ms: int) -> Remembered:
    if made.message_id is not None:
        assert made.number is not None
        return Remembered(now_ms, published.partition, made.number, made.message_id)
    assert published.offset is not None
    return Remembered(now_ms, published.partition, published.offset)


def _answer(queue: Queue, found: Remembered) -> Sent:
    message_id = found.message_id or derived_id(queue.topic.id, found.partition, found.offset)
    return Sent(message_id, sequence_number(found.offset))
