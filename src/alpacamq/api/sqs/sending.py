"""SendMessage and SendMessageBatch."""

from collections.abc import Sequence

from alpacamq.broker.broker import Broker
from alpacamq.broker.later import Later
from alpacamq.broker.publishing import Published
from alpacamq.broker.queue.fifo import DeduplicationScope, FifoPublished, sequence_text
from alpacamq.broker.tracing.partition import Origin
from alpacamq.model.errors import AlpacaError
from alpacamq.telemetry.tracing import ClientApi

from .attributes import MAX_MESSAGE_BYTES
from .directory import Queue, QueueDirectory
from .errors import BATCH_TOO_LONG, Fault, fault_of
from .outgoing import Draft, Sent, check_ids, derived_id, draft
from .requests import SendMessage, SendMessageBatch
from .results import Caller, SendEntryResult, SendMessageBatchResult, SendMessageResult
from .settling import check_entries, failure


class Sending:
    """Publishes messages to queues."""

    def __init__(self, broker: Broker, directory: QueueDirectory) -> None:
        self._broker = broker
        self._directory = directory

    def send(self, request: SendMessage, caller: Caller) -> Later[SendMessageResult]:
        queue = self._directory.by_url(request.queue_url)
        made = draft(queue, request, self._broker.time.now_ms(), caller.trace_header)

        def published(outcomes: Sequence[Sent | Fault]) -> SendMessageResult:
            (sent,) = outcomes
            if isinstance(sent, Fault):
                raise sent
            return SendMessageResult(
                message_id=sent.message_id,
                md5_of_body=made.md5_of_body,
                md5_of_attributes=made.md5_of_attributes,
                md5_of_system_attributes=made.md5_of_system_attributes,
                sequence_number=sent.sequence_number,
            )

        return self._publish(queue, [made], caller).map(published)

    def send_batch(self, request: SendMessageBatch, caller: Caller) -> Later[SendMessageBatchResult]:
        queue = self._directory.by_url(request.queue_url)
        check_entries(request.entries, "SendMessageBatchRequestEntry")
        result = SendMessageBatchResult(successful=[], failed=[])
        drafts = self._drafts(queue, request, result, caller.trace_header)

        def published(outcomes: Sequence[Sent | Fault]) -> SendMessageBatchResult:
            for (entry_id, made), outcome in zip(drafts, outcomes, strict=True):
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

        return self._publish(queue, [made for _, made in drafts], caller).map(published)

    def _drafts(
        self, queue: Queue, request: SendMessageBatch, result: SendMessageBatchResult, trace_header: str
    ) -> list[tuple[str, Draft]]:
        """Return the valid entries; the others are added to the failed ones."""
        now_ms = self._broker.time.now_ms()
        check_ids(queue, request.entries)
        drafts = []
        size = 0
        for entry in request.entries:
            try:
                made = draft(queue, entry, now_ms, trace_header)
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

    def _publish(
        self, queue: Queue, drafts: Sequence[Draft], caller: Caller
    ) -> Later[Sequence[Sent | Fault]]:
        if queue.is_fifo or not drafts:
            return Later.of(self._publish_in_order(queue, drafts, caller))
        messages = [made.message() for made in drafts]
        published = self._broker.publisher.publish_later(
            queue.name, messages, origin=Origin(ClientApi.SQS, caller.peer), traceparent=caller.traceparent
        )
        return published.map(
            lambda outcomes: [_sent(queue, *pair) for pair in zip(drafts, outcomes, strict=True)]
        )

    async def _publish_in_order(
        self, queue: Queue, drafts: Sequence[Draft], caller: Caller
    ) -> Sequence[Sent | Fault]:
        if not drafts:
            return []
        results = await self._broker.fifo.publish(
            queue.topic,
            [made.fifo_message() for made in drafts],
            scope=_scope(queue),
            origin=Origin(ClientApi.SQS, caller.peer),
            traceparent=caller.traceparent,
        )
        return [_sent_to_fifo(queue, published) for published in results]


def _scope(queue: Queue) -> DeduplicationScope:
    per_group = queue.attributes.get("DeduplicationScope") == DeduplicationScope.MESSAGE_GROUP
    return DeduplicationScope.MESSAGE_GROUP if per_group else DeduplicationScope.QUEUE


def _sent_to_fifo(queue: Queue, published: FifoPublished | AlpacaError) -> Sent | Fault:
    if isinstance(published, AlpacaError):
        return fault_of(published)
    message_id = published.message_id or derived_id(queue.topic.id, published.partition, published.offset)
    return Sent(message_id, sequence_text(published.offset))


def _sent(queue: Queue, made: Draft, outcome: Published | AlpacaError) -> Sent | Fault:
    if isinstance(outcome, AlpacaError):
        return fault_of(outcome)
    if made.message_id:
        return Sent(made.message_id)
    assert outcome.offset is not None
    return Sent(derived_id(queue.topic.id, outcome.partition, outcome.offset))
