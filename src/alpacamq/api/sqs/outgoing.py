"""Validates messages to send, and computes the digests that senders compare."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5, sha256
from typing import NamedTuple
from uuid import uuid4

from alpacamq.broker.publishing import Message
from alpacamq.broker.queue.fifo import FifoMessage
from alpacamq.model.headers import LANE, MESSAGE_ID, SENT_TIMESTAMP
from alpacamq.model.ids import TopicId
from alpacamq.model.lanes import LANES_BY_NAME
from alpacamq.model.records import Header

from . import message_attributes
from .attributes import MAX_DELAY_S
from .directory import Queue
from .errors import INVALID_CONTENTS, INVALID_PARAMETER, Fault, has_forbidden, invalid_value, missing
from .requests import AttributeValue, Outgoing


def derived_id(topic_id: TopicId, partition: int, offset: int) -> str:
    """Return the id of the message at this position: a UUID of version 8, whose bits are free to choose."""
    place = topic_id.bytes + partition.to_bytes(4, "big") + offset.to_bytes(8, "big")
    text = md5(place, usedforsecurity=False).hexdigest()
    return f"{text[:8]}-{text[8:12]}-8{text[13:16]}-a{text[17:20]}-{text[20:]}"


def given_id() -> str:
    """Return an id for a message that has no offset yet."""
    return str(uuid4())


TRACE_HEADER = "sqs-trace-header"

TRACE_ATTRIBUTE = "AWSTraceHeader"
MAX_TRACE_LENGTH = 2048

# Letters, digits and punctuation: all visible ASCII characters.
_TOKEN = re.compile(r"[\x21-\x7e]{1,128}")
_WRONG_QUEUE_TYPE = "The request include parameter that is not valid for this queue type."


class Sent(NamedTuple):
    """The id and sequence number of a sent message."""

    message_id: str
    sequence_number: str | None = None


@dataclass(slots=True)
class Draft:
    """A validated message."""

    body: bytes
    headers: list[Header]
    group_id: str | None
    deduplication_id: str | None
    deliver_at_ms: int
    size: int
    md5_of_body: str
    md5_of_attributes: str | None
    md5_of_system_attributes: str | None
    # Of a delayed message only: the id of any other is derived from its offset.
    message_id: str = ""

    def message(self) -> Message:
        """Return the message for the publisher."""
        return Message(
            value=self.body,
            key=None if self.group_id is None else self.group_id.encode(),
            headers=tuple(self.headers),
            deliver_at_ms=self.deliver_at_ms,
        )

    def fifo_message(self) -> FifoMessage:
        """Return the message for the publisher of FIFO queues."""
        assert self.deduplication_id is not None
        return FifoMessage(
            message=self.message(), deduplication_id=self.deduplication_id, message_id=self.message_id
        )


def draft(queue: Queue, outgoing: Outgoing, now_ms: int, trace_header: str = "") -> Draft:
    """Validate a message for this queue; raise Fault.

    `trace_header` is that of the request, for a message without the system attribute AWSTraceHeader. An
    invalid one is ignored: it must not cost the message.
    """
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
    elif trace_header and _is_trace(trace_header):
        headers.append(Header(TRACE_HEADER, trace_header.encode()))
    if size > (limit := queue.max_message_bytes):
        raise Fault(
            INVALID_PARAMETER,
            f"One or more parameters are invalid. Reason: Message must be shorter than {limit} bytes.",
        )
    group_id, deduplication_id = _fifo_ids(queue, outgoing, body)
    made = Draft(
        body=body,
        headers=headers,
        group_id=group_id,
        deduplication_id=deduplication_id,
        # Set for undelayed messages too: the queue's delay may change before publishing. Not to this time:
        # the clock of the broker that publishes it may be behind.
        deliver_at_ms=0,
        size=size,
        md5_of_body=md5(body, usedforsecurity=False).hexdigest(),
        md5_of_attributes=message_attributes.digest(attributes) if attributes else None,
        md5_of_system_attributes=message_attributes.digest(system) if system else None,
    )
    if outgoing.delay_seconds is not None or queue.config.queue_delay_ms:
        _delay(made, queue, outgoing.delay_seconds, now_ms)
    return made


def check_ids(queue: Queue, entries: Sequence[Outgoing]) -> None:
    """Refuse a batch for a FIFO queue if one entry has no group or deduplication id."""
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
        if attribute.data_type != "String" or not value or not _is_trace(value):
            raise Fault(INVALID_PARAMETER, f"Message system attribute '{name}' must be a non-empty String.")
    return system[TRACE_ATTRIBUTE].string_value or ""


def _is_trace(text: str) -> bool:
    return len(text) <= MAX_TRACE_LENGTH and not has_forbidden(text)


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
    if delay_ms:
        made.deliver_at_ms = now_ms + delay_ms
        made.message_id = given_id()
        made.headers.append(Header(MESSAGE_ID, made.message_id.encode()))
        made.headers.append(Header(SENT_TIMESTAMP, str(now_ms).encode()))
