"""SendMessage and SendMessageBatch."""

from collections.abc import Sequence

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition_traces import Origin
from alpacamq.broker.publishing import Published
from alpacamq.model.errors import AlpacaError
from alpacamq.telemetry.tracing import Door

from .actions import Caller
from .attributes import MAX_MESSAGE_BYTES
from .batches import check_entries, failure
from .directory import Queue, QueueDirectory
from .drafts import Draft, Sent, check_ids, draft
from .errors import BATCH_TOO_LONG, Fault, fault_of
from .fifo_sending import FifoSending
from .message_ids import derived_id
from .requests import SendMessage, SendMessageBatch
from .results import SendEntryResult, SendMessageBatchResult, SendMessageResult


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
            origin=Origin(Door.SQS, caller.peer),
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
