"""ReceiveMessage."""

import re
from base64 import b64encode
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial
from hashlib import md5
from typing import TYPE_CHECKING, Any

from alpacamq.api.queue_rights import check_received
from alpacamq.broker.broker import Broker
from alpacamq.broker.later import Later
from alpacamq.broker.queue.fifo import sequence_text
from alpacamq.broker.queue.service import Delivery
from alpacamq.model.headers import (
    DEDUPLICATION_ID,
    DELIVERY_COUNT,
    MESSAGE_ID,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP,
    ORIGIN_TOPIC,
    SENT_TIMESTAMP,
    SEQUENCE_NUMBER,
)
from alpacamq.model.topics import INT32_MAX
from alpacamq.queues.messages import ReceiveRequest
from alpacamq.telemetry.tracing import ClientApi

from . import message_attributes
from .attributes import MAX_VISIBILITY_S, MAX_WAIT_S
from .directory import Queue, QueueDirectory
from .errors import INVALID_ATTRIBUTE_NAME, INVALID_PARAMETER, Fault, invalid_value
from .message_attributes import ENCODING, Selection, text_of
from .outgoing import TRACE_ATTRIBUTE, TRACE_HEADER, derived_id
from .requests import AttributeValue, ReceiveMessage
from .results import Caller, ReceivedMessage, ReceiveMessageResult

if TYPE_CHECKING:
    from alpacamq.model.ids import TopicId

MAX_MESSAGES = 10

_ATTEMPT_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Receiving:
    """Leases messages for the time that the queue or the request sets."""

    def __init__(self, broker: Broker, directory: QueueDirectory) -> None:
        self._broker = broker
        self._directory = directory

    def receive(self, request: ReceiveMessage, caller: Caller) -> Later[ReceiveMessageResult]:
        queue = self._directory.by_url(request.queue_url)
        presentation = Presentation(queue, self._directory, request)
        _check(queue, request)
        visibility_s, wait_s = request.visibility_timeout, request.wait_time_seconds
        if wait_s is None:
            wait_s = int(queue.attributes.get("ReceiveMessageWaitTimeSeconds", "0"))
        wanted = ReceiveRequest(
            queue=queue.id,
            consumer="",
            max_messages=1 if request.max_number_of_messages is None else request.max_number_of_messages,
            visibility_ms=None if visibility_s is None else visibility_s * 1000,
            wait_ms=wait_s * 1000,
            # Several messages of a group are delivered in order; its others wait until these are settled.
            key_runs=queue.is_fifo,
        )
        received = self._broker.queues.receive_later(wanted, api=ClientApi.SQS)
        return received.map(partial(self._received, queue, caller, presentation))

    def _received(
        self, queue: Queue, caller: Caller, presentation: "Presentation", deliveries: Sequence[Delivery]
    ) -> ReceiveMessageResult | Coroutine[Any, Any, ReceiveMessageResult]:
        if self._broker.access.limits(caller.identity):
            return self._checked(queue, caller, presentation, deliveries)
        return presentation.result(deliveries)

    async def _checked(
        self, queue: Queue, caller: Caller, presentation: "Presentation", deliveries: Sequence[Delivery]
    ) -> ReceiveMessageResult:
        await check_received(self._broker, caller.identity, queue.id, deliveries, ClientApi.SQS)
        return presentation.result(deliveries)


def _check(queue: Queue, request: ReceiveMessage) -> None:
    wait_s, visibility_s = request.wait_time_seconds, request.visibility_timeout
    count = request.max_number_of_messages
    if count is not None and not 1 <= count <= MAX_MESSAGES:
        raise invalid_value(
            count, "MaxNumberOfMessages", f"Must be between 1 and {MAX_MESSAGES}, if provided."
        )
    if wait_s is not None and not 0 <= wait_s <= MAX_WAIT_S:
        raise invalid_value(wait_s, "WaitTimeSeconds", f"Must be >= 0 and <= {MAX_WAIT_S}, if provided.")
    if visibility_s is not None:
        check_visibility(visibility_s)
    attempt_id = request.receive_request_attempt_id
    if attempt_id is not None and (not queue.is_fifo or not _ATTEMPT_ID.fullmatch(attempt_id)):
        raise Fault(INVALID_PARAMETER, "ReceiveRequestAttemptId is for FIFO queues, of 1 to 128 characters.")


def check_visibility(visibility_s: int) -> None:
    """Refuse an invalid visibility timeout."""
    if not 0 <= visibility_s <= MAX_VISIBILITY_S:
        raise invalid_value(
            visibility_s, "VisibilityTimeout", f"Must be >= 0 and <= {MAX_VISIBILITY_S}, if provided."
        )


SYSTEM_ATTRIBUTES = frozenset(
    {
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
        "AWSTraceHeader",
        "DeadLetterQueueSourceArn",
    }
)
ALL = "All"
MAX_ID_BYTES = 100
MAX_DIGITS = 20  # length of sequence numbers
INT64_MAX = 2**63 - 1
_BASE64 = AttributeValue(data_type="String", string_value="base64")


def system_attributes(names: Iterable[str]) -> frozenset[str]:
    """Return the system attributes that a receive requests."""
    wanted = frozenset(names)
    if ALL in wanted:
        return SYSTEM_ATTRIBUTES
    if unknown := wanted - SYSTEM_ATTRIBUTES:
        raise Fault(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {min(unknown)[:100]}.")
    return wanted


class Presentation:
    """Converts deliveries to messages with the requested attributes."""

    def __init__(self, queue: Queue, directory: QueueDirectory, request: ReceiveMessage) -> None:
        self._queue = queue
        self._directory = directory
        self._wanted = system_attributes(
            (*(request.attribute_names or ()), *(request.message_system_attribute_names or ()))
        )
        self._selection = Selection(request.message_attribute_names)

    def result(self, deliveries: Sequence[Delivery]) -> ReceiveMessageResult:
        """Return the result of a receive."""
        return ReceiveMessageResult(messages=[self.message(each) for each in deliveries])

    def message(self, delivery: Delivery) -> ReceivedMessage:
        record = delivery.record
        headers = {name: value or b"" for name, value in record.headers} if record.headers else {}
        attributes: dict[str, AttributeValue] = {}
        if headers and not self._selection.is_empty:
            attributes = self._selection.of(message_attributes.unpack(record.headers))
        value = record.value or b""
        if (body := text_of(value)) is None:
            value = b64encode(value)
            body = value.decode()
            attributes[ENCODING] = _BASE64
        return ReceivedMessage(
            message_id=self._message_id(delivery, headers),
            receipt_handle=delivery.receipt,
            body=body,
            md5_of_body=md5(value, usedforsecurity=False).hexdigest(),
            attributes=self._system(delivery, headers) if self._wanted else {},
            message_attributes=attributes,
            md5_of_attributes=message_attributes.digest(attributes) if attributes else None,
        )

    def _message_id(self, delivery: Delivery, headers: Mapping[str, bytes]) -> str:
        if headers and (given := headers.get(MESSAGE_ID)) and (text := text_of(given[:MAX_ID_BYTES])):
            return text
        topic_id: TopicId = self._queue.topic.id
        partition, offset = delivery.partition, delivery.record.offset
        if headers and (
            origin := self._directory.find(headers.get(ORIGIN_TOPIC, b"").decode(errors="replace"))
        ):
            # A dead letter keeps the id of the original message.
            topic_id = origin.topic.id
            partition = _number(headers, ORIGIN_PARTITION, partition, INT32_MAX)
            offset = _number(headers, ORIGIN_OFFSET, offset)
        return derived_id(topic_id, partition, offset)

    def _system(self, delivery: Delivery, headers: Mapping[str, bytes]) -> dict[str, str]:
        record = delivery.record
        sent_ms = _number(headers, SENT_TIMESTAMP, _number(headers, ORIGIN_TIMESTAMP, record.timestamp_ms))
        received = _number(headers, DELIVERY_COUNT, 0) + delivery.delivery_count
        found = {
            "SenderId": self._directory.account_id,
            "SentTimestamp": str(sent_ms),
            "ApproximateReceiveCount": str(received),
            "ApproximateFirstReceiveTimestamp": str(delivery.first_delivered_ms),
        }
        if record.key is not None and (group_id := text_of(record.key)):
            found["MessageGroupId"] = group_id
        if self._queue.is_fifo:
            found["SequenceNumber"] = sequence_text(_number(headers, SEQUENCE_NUMBER, record.offset))
        for name, header in (
            (TRACE_ATTRIBUTE, TRACE_HEADER),
            ("MessageDeduplicationId", DEDUPLICATION_ID),
        ):
            if (value := headers.get(header)) and (text := text_of(value)):
                found[name] = text
        if (origin := headers.get(ORIGIN_TOPIC)) and (source := text_of(origin)):
            found["DeadLetterQueueSourceArn"] = self._directory.arn(source)
        return {name: value for name, value in found.items() if name in self._wanted}


def _number(headers: Mapping[str, bytes], name: str, otherwise: int, maximum: int = INT64_MAX) -> int:
    """Return the number in a header, which any client may have written."""
    value = headers.get(name, b"")
    if not value.isdigit() or len(value) > MAX_DIGITS:
        return otherwise
    number = int(value)
    return number if number <= maximum else otherwise
