"""A message to be sent: checked against what SQS takes, with the digests the sender will compare."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5, sha256
from typing import NamedTuple
from uuid import uuid4

from alpacamq.broker.publishing import Message
from alpacamq.model.headers import LANE, MESSAGE_ID
from alpacamq.model.ids import TopicId
from alpacamq.model.lanes import LANES_BY_NAME
from alpacamq.model.records import Header

from . import message_attributes
from .attributes import MAX_DELAY_S
from .directory import Queue
from .errors import INVALID_CONTENTS, INVALID_PARAMETER, Fault, has_forbidden, invalid_value, missing
from .requests import AttributeValue, Outgoing


def derived_id(topic_id: TopicId, partition: int, offset: int) -> str:
    """The id of the message at this place: a UUID of version 8, which is made of whatever one likes."""
    place = topic_id.bytes + partition.to_bytes(4, "big") + offset.to_bytes(8, "big")
    text = md5(place, usedforsecurity=False).hexdigest()
    return f"{text[:8]}-{text[8:12]}-8{text[13:16]}-a{text[17:20]}-{text[20:]}"


def given_id() -> str:
    """An id for a message that has no place yet."""
    return str(uuid4())


def sequence_number(number: int) -> str:
    """As long as SQS makes them, so that they sort as text too."""
    return f"{number:020d}"


DEDUPLICATION_ID_HEADER = "sqs-deduplication-id"
TRACE_HEADER = "sqs-trace-header"
# Of delayed messages: when they were sent, and the number they were given in a FIFO queue.
SENT_HEADER = "sqs-sent-timestamp"
SEQUENCE_HEADER = "sqs-sequence-number"

TRACE_ATTRIBUTE = "AWSTraceHeader"
MAX_TRACE_LENGTH = 2048

# Letters, digits and punctuation, which is all of ASCII that can be seen.
_TOKEN = re.compile(r"[\x21-\x7e]{1,128}")
_WRONG_QUEUE_TYPE = "The request include parameter that is not valid for this queue type."


class Sent(NamedTuple):
    """What a message is called since it was sent."""

    message_id: str
    sequence_number: str | None = None


@dataclass(slots=True)
class Draft:
    """A message that is fit to be sent."""

    body: bytes
    headers: list[Header]
    group_id: str | None
    deduplication_id: str | None
    deliver_at_ms: int
    size: int
    md5_of_body: str
    md5_of_attributes: str | None
    md5_of_system_attributes: str | None
    # Of a delayed one only: the others get theirs from where they come to lie.
    message_id: str | None = None
    number: int | None = None

    def message(self) -> Message:
        """The message as the broker takes it."""
        return Message(
            value=self.body,
            key=None if self.group_id is None else self.group_id.encode(),
            headers=tuple(self.headers),
            deliver_at_ms=self.deliver_at_ms,
        )

    def give_number(self, number: int) -> None:
        """Number a message that has no place yet."""
        self.number = number
        self.headers.append(Header(SEQUENCE_HEADER, sequence_number(number).encode()))


def draft(queue: Queue, outgoing: Outgoing, now_ms: int) -> Draft:
    """The message if SQS would take it for this queue, or the Fault it would answer."""
    text = outgoing.message_body
    if not text:
        raise missing("MessageBody")
    if has_forbidden(text):
        raise Fault(
            INVALID_CONTENTS,
            "The message body has a character outside of the allowed set "
            "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF.",
        )
    body = text.encode()
    size = len(body)
    headers: list[Header] = []
    attributes, system = outgoing.message_attributes, outgoing.message_system_attributes
    if attributes:
        size += message_attributes.check(attributes)
        _check_lane(attributes)
        headers += message_attributes.pack(attributes)
    if system:
        headers.append(Header(TRACE_HEADER, _trace(system).encode()))
    if size > (limit := queue.max_message_bytes):
        raise Fault(
            INVALID_PARAMETER,
            f"One or more parameters are invalid. Reason: Message must be shorter than {limit} bytes.",
        )
    group_id, deduplication_id = _fifo_ids(queue, outgoing, body)
    if deduplication_id is not None:
        headers.append(Header(DEDUPLICATION_ID_HEADER, deduplication_id.encode()))
    made = Draft(
        body=body,
        headers=headers,
        group_id=group_id,
        deduplication_id=deduplication_id,
        # Said even of one that need not wait: the queue's delay may change before it is published.
        deliver_at_ms=now_ms,
        size=size,
        md5_of_body=md5(body, usedforsecurity=False).hexdigest(),
        md5_of_attributes=message_attributes.digest(attributes) if attributes else None,
        md5_of_system_attributes=message_attributes.digest(system) if system else None,
    )
    if outgoing.delay_seconds is not None or queue.config.queue_delay_ms:
        _delay(made, queue, outgoing.delay_seconds, now_ms)
    return made


def check_ids(queue: Queue, entries: Sequence[Outgoing]) -> None:
    """Refuse a batch for a FIFO queue of which one entry could not be put in order."""
    if not queue.is_fifo:
        return
    for entry in entries:
        if entry.message_group_id is None:
            raise Fault(INVALID_PARAMETER, missing("MessageGroupId").message)
        _check_deduplicated(queue, entry)


def _check_lane(attributes: Mapping[str, AttributeValue]) -> None:
    lane = attributes.get(LANE)
    if lane is not None and lane.string_value not in LANES_BY_NAME:
        raise invalid_value(lane.string_value, LANE, f"Must be one of {', '.join(LANES_BY_NAME)}.")


def _trace(system: Mapping[str, AttributeValue]) -> str:
    for name, attribute in system.items():
        if name != TRACE_ATTRIBUTE:
            raise Fault(INVALID_PARAMETER, f"Message system attribute name '{name[:100]}' is invalid.")
        value = attribute.string_value
        if (
            attribute.data_type != "String"
            or not value
            or len(value) > MAX_TRACE_LENGTH
            or has_forbidden(value)
        ):
            raise Fault(INVALID_PARAMETER, f"Message system attribute '{name}' must be a non-empty String.")
    return system[TRACE_ATTRIBUTE].string_value or ""


def _fifo_ids(queue: Queue, outgoing: Outgoing, body: bytes) -> tuple[str | None, str | None]:
    group_id, deduplication_id = outgoing.message_group_id, outgoing.message_deduplication_id
    if group_id is not None:
        _check_token(group_id, "MessageGroupId")
    if deduplication_id is not None:
        _check_token(deduplication_id, "MessageDeduplicationId")
    if not queue.is_fifo:
        if deduplication_id is not None:
            raise invalid_value(deduplication_id, "MessageDeduplicationId", _WRONG_QUEUE_TYPE)
        return group_id, None
    if group_id is None:
        raise missing("MessageGroupId")
    _check_deduplicated(queue, outgoing)
    return group_id, deduplication_id or sha256(body).hexdigest()


def _check_deduplicated(queue: Queue, outgoing: Outgoing) -> None:
    by_content = queue.attributes.get("ContentBasedDeduplication") == "true"
    if outgoing.message_deduplication_id is None and not by_content:
        raise Fault(
            INVALID_PARAMETER,
            "The queue should either have ContentBasedDeduplication enabled or "
            "MessageDeduplicationId provided explicitly",
        )


def _check_token(value: str, parameter: str) -> None:
    if not _TOKEN.fullmatch(value):
        raise invalid_value(
            value[:200],
            parameter,
            f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )


def _delay(made: Draft, queue: Queue, delay_s: int | None, now_ms: int) -> None:
    if delay_s is not None and not 0 <= delay_s <= MAX_DELAY_S:
        raise invalid_value(delay_s, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {MAX_DELAY_S}.")
    if queue.is_fifo:
        if delay_s:
            raise invalid_value(delay_s, "DelaySeconds", _WRONG_QUEUE_TYPE)
        delay_s = None
    delay_ms = queue.config.queue_delay_ms if delay_s is None else delay_s * 1000
    made.deliver_at_ms = now_ms + delay_ms
    if delay_ms:
        made.message_id = given_id()
        made.headers.append(Header(MESSAGE_ID, made.message_id.encode()))
        made.headers.append(Header(SENT_HEADER, str(now_ms).encode()))
