"""ReceiveMessage."""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from hashlib import md5
from typing import TYPE_CHECKING

from alpacamq.broker.queue.service import Delivery, Queues
from alpacamq.model.headers import (
    DELIVERY_COUNT,
    MESSAGE_ID,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP,
    ORIGIN_TOPIC,
)
from alpacamq.model.topics import INT32_MAX
from alpacamq.telemetry.tracing import ClientApi

from . import message_attributes
from .attributes import MAX_VISIBILITY_S, MAX_WAIT_S
from .directory import Queue, QueueDirectory
from .errors import INVALID_ATTRIBUTE_NAME, INVALID_PARAMETER, Fault, invalid_value
from .message_attributes import ENCODING, Selection, text_of
from .outgoing import (
    DEDUPLICATION_ID_HEADER,
    SENT_HEADER,
    SEQUENCE_HEADER,
    TRACE_ATTRIBUTE,
    TRACE_HEADER,
    derived_id,
    sequence_number,
)
from .requests import AttributeValue, ReceiveMessage
from .results import Caller, ReceivedMessage, ReceiveMessageResult

if TYPE_CHECKING:
    from alpacamq.model.ids import TopicId

MAX_MESSAGES = 10

_ATTEMPT_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Receiving:
    """Leases messages to whoever asks, for as long as the queue or the request says."""

    def __init__(self, queues: Queues, directory: QueueDirectory) -> None:
        self._queues = queues
        self._directory = directory

    async def receive(self, asked: ReceiveMessage, _caller: Caller) -> ReceiveMessageResult:
        queue = self._directory.by_url(asked.queue_url)
        presentation = Presentation(queue, self._directory, asked)
        _check(queue, asked)
        visibility_s, wait_s = asked.visibility_timeout, asked.wait_time_seconds
        if wait_s is None:
            wait_s = int(queue.attributes.get("ReceiveMessageWaitTimeSeconds", "0"))
        deliveries = await self._queues.receive(
            queue.id,
            max_messages=1 if asked.max_number_of_messages is None else asked.max_number_of_messages,
            visibility_ms=None if visibility_s is None else visibility_s * 1000,
            wait_ms=wait_s * 1000,
            # Several of one group come in order, and its others wait until all of them are done with.
            key_runs=queue.is_fifo,
            api=ClientApi.SQS,
        )
        return ReceiveMessageResult(messages=[presentation.message(delivery) for delivery in deliveries])


def _check(queue: Queue, asked: ReceiveMessage) -> None:
    wait_s, visibility_s = asked.wait_time_seconds, asked.visibility_timeout
    count = asked.max_number_of_messages
    if count is not None and not 1 <= count <= MAX_MESSAGES:
        raise invalid_value(
            count, "MaxNumberOfMessages", f"Must be between 1 and {MAX_MESSAGES}, if provided."
        )
    if wait_s is not None and not 0 <= wait_s <= MAX_WAIT_S:
        raise invalid_value(wait_s, "WaitTimeSeconds", f"Must be >= 0 and <= {MAX_WAIT_S}, if provided.")
    if visibility_s is not None:
        check_visibility(visibility_s)
    attempt_id = asked.receive_request_attempt_id
    if attempt_id is not None and (not queue.is_fifo or not _ATTEMPT_ID.fullmatch(attempt_id)):
        raise Fault(INVALID_PARAMETER, "ReceiveRequestAttemptId is for FIFO queues, of 1 to 128 characters.")


def check_visibility(visibility_s: int) -> None:
    """Refuse a visibility timeout that SQS does not know."""
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
MAX_DIGITS = 20  # sequence numbers have as many
INT64_MAX = 2**63 - 1
_BASE64 = AttributeValue(data_type="String", string_value="base64")


def system_attributes(names: Iterable[str]) -> frozenset[str]:
    """Which system attributes a receive asks for."""
    wanted = frozenset(names)
    if ALL in wanted:
        return SYSTEM_ATTRIBUTES
    if unknown := wanted - SYSTEM_ATTRIBUTES:
        raise Fault(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {min(unknown)[:100]}.")
    return wanted


class Presentation:
    """Turns what one receive was given into what it asked for."""

    def __init__(self, queue: Queue, directory: QueueDirectory, asked: ReceiveMessage) -> None:
        self._queue = queue
        self._directory = directory
        self._wanted = system_attributes(
            (*(asked.attribute_names or ()), *(asked.message_system_attribute_names or ()))
        )
        self._selection = Selection(asked.message_attribute_names)

    def message(self, delivery: Delivery) -> ReceivedMessage:
        record = delivery.record
        headers = {name: value or b"" for name, value in record.headers}
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
        if (given := headers.get(MESSAGE_ID)) and (text := text_of(given[:MAX_ID_BYTES])):
            return text
        topic_id: TopicId = self._queue.topic.id
        partition, offset = delivery.partition, delivery.record.offset
        if headers and (
            origin := self._directory.find(headers.get(ORIGIN_TOPIC, b"").decode(errors="replace"))
        ):
            # A dead letter is still the message it was.
            topic_id = origin.topic.id
            partition = _number(headers, ORIGIN_PARTITION, partition, INT32_MAX)
            offset = _number(headers, ORIGIN_OFFSET, offset)
        return derived_id(topic_id, partition, offset)

    def _system(self, delivery: Delivery, headers: Mapping[str, bytes]) -> dict[str, str]:
        record = delivery.record
        sent_ms = _number(headers, SENT_HEADER, _number(headers, ORIGIN_TIMESTAMP, record.timestamp_ms))
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
            found["SequenceNumber"] = sequence_number(_number(headers, SEQUENCE_HEADER, record.offset))
        for name, header in (
            (TRACE_ATTRIBUTE, TRACE_HEADER),
            ("MessageDeduplicationId", DEDUPLICATION_ID_HEADER),
        ):
            if (value := headers.get(header)) and (text := text_of(value)):
                found[name] = text
        if (origin := headers.get(ORIGIN_TOPIC)) and (source := text_of(origin)):
            found["DeadLetterQueueSourceArn"] = self._directory.arn(source)
        return {name: value for name, value in found.items() if name in self._wanted}


def _number(headers: Mapping[str, bytes], name: str, otherwise: int, maximum: int = INT64_MAX) -> int:
    """The number in a header, which anybody may have written."""
    value = headers.get(name, b"")
    if not value.isdigit() or len(value) > MAX_DIGITS:
        return otherwise
    number = int(value)
    return number if number <= maximum else otherwise
