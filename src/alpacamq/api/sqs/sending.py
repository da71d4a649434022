"""SendMessage and SendMessageBatch."""

import asyncio
from collections.abc import Sequence

from alpacamq.broker.broker import Broker
from alpacamq.broker.publishing import Published
from alpacamq.broker.tracing.partition import Origin
from alpacamq.model.errors import AlpacaError
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.telemetry.tracing import ClientApi

from .attributes import MAX_MESSAGE_BYTES
from .deduplication import Deduplication, message_key
from .directory import Queue, QueueDirectory
from .errors import BATCH_TOO_LONG, THROTTLED, Fault, fault_of
from .outgoing import Draft, Sent, check_ids, derived_id, draft, sequence_number
from .requests import SendMessage, SendMessageBatch
from .results import Caller, SendEntryResult, SendMessageBatchResult, SendMessageResult
from .sent_window import Remembered, SentWindow
from .settling import check_entries, failure

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
                origin=Origin(ClientApi.SQS, caller.peer),
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


class Sending:
    """Takes messages into queues."""

    def __init__(self, broker: Broker, directory: QueueDirectory, fifo: FifoSending) -> None:
        self._broker = broker
        self._directory = directory
        self._fifo = fifo

    async def send(self, asked: SendMessage, caller: Caller) -> SendMessageResult:
        queue = self._directory.by_url(asked.queue_url)
        made = draft(queue, asked, self._broker.clock.now_ms())
        (sent,) = await self._publish(queue, [made], caller)
        if isinstance(sent, Fault):
            raise sent
        return SendMessageResult(
            message_id=sent.message_id,
            md5_of_body=made.md5_of_body,
            md5_of_attributes=made.md5_of_attributes,
            md5_of_system_attributes=made.md5_of_system_attributes,
            sequence_number=sent.sequence_number,
        )

    async def send_batch(self, asked: SendMessageBatch, caller: Caller) -> SendMessageBatchResult:
        queue = self._directory.by_url(asked.queue_url)
        check_entries(asked.entries, "SendMessageBatchRequestEntry")
        result = SendMessageBatchResult(successful=[], failed=[])
        drafts = self._drafts(queue, asked, result)
        sent = await self._publish(queue, [made for _, made in drafts], caller)
        for (entry_id, made), outcome in zip(drafts, sent, strict=True):
            if isinstance(outcome, Fault):
                result.failed.append(failure(entry_id, outcome))
                continue
            result.successful.append(
                SendEntryResult(
                    id=entry_id,
                    message_id=outcome.message_id,
                    md5_of_body=made.md5_of_body,
                    md5_of_attributes=made.md5_of_attributes,
                    md5_of_system_attributes=made.md5_of_system_attributes,
                    sequence_number=outcome.sequence_number,
                )
            )
        return result

    def _drafts(
        self, queue: Queue, asked: SendMessageBatch, result: SendMessageBatchResult
    ) -> list[tuple[str, Draft]]:
        """The entries that are fit to be sent; those that are not are noted as failed."""
        now_ms = self._broker.clock.now_ms()
        check_ids(queue, asked.entries)
        drafts = []
        size = 0
        for entry in asked.entries:
            try:
                made = draft(queue, entry, now_ms)
            except Fault as fault:
                result.failed.append(failure(entry.id, fault))
                size += len(entry.message_body.encode(errors="replace"))
            else:
                drafts.append((entry.id, made))
                size += made.size
        if size > MAX_MESSAGE_BYTES:
            raise Fault(
                BATCH_TOO_LONG,
                f"Batch requests cannot be longer than {MAX_MESSAGE_BYTES} bytes. "
                f"You have sent {size} bytes.",
            )
        return drafts

    async def _publish(self, queue: Queue, drafts: Sequence[Draft], caller: Caller) -> Sequence[Sent | Fault]:
        if not drafts:
            return []
        if queue.is_fifo:
            return await self._fifo.send(queue, drafts, caller)
        outcomes = await self._broker.publisher.publish(
            queue.name,
            [made.message() for made in drafts],
            origin=Origin(ClientApi.SQS, caller.peer),
            traceparent=caller.traceparent,
        )
        return [_sent(queue, made, outcome) for made, outcome in zip(drafts, outcomes, strict=True)]


def _sent(queue: Queue, made: Draft, outcome: Published | AlpacaError) -> Sent | Fault:
    if isinstance(outcome, AlpacaError):
        return fault_of(outcome)
    if made.message_id is not None:
        return Sent(made.message_id)
    assert outcome.offset is not None
    return Sent(derived_id(queue.topic.id, outcome.partition, outcome.offset))
