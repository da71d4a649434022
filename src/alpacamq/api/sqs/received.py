"""A record as the message an SQS consumer receives, whichever door it came through."""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from hashlib import md5

from alpacamq.broker.queues import Delivery
from alpacamq.model.headers import (
    DELIVERY_COUNT,
    MESSAGE_ID,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP,
    ORIGIN_TOPIC,
)
from alpacamq.model.ids import TopicId
from alpacamq.model.topics import INT32_MAX

from . import message_attributes
from .directory import Queue, QueueDirectory
from .drafts import DEDUPLICATION_ID_HEADER, SENT_HEADER, SEQUENCE_HEADER, TRACE_ATTRIBUTE, TRACE_HEADER
from .errors import INVALID_ATTRIBUTE_NAME, Fault
from .message_attributes import ENCODING, Selection, text_of
from .message_ids import derived_id, sequence_number
from .requests import AttributeValue, ReceiveMessage
from .results import ReceivedMessage

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
