"""Converts messages from and to JSON.

Bytes are text if they are valid UTF-8 and base64 in a separate field otherwise. A value to publish may be
any JSON: text is stored as it is, null is a tombstone, and everything else is stored as compact JSON text.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from alpacamq.broker.publishing import Message
from alpacamq.broker.queue.service import Delivery
from alpacamq.model.durations import parse_duration
from alpacamq.model.lanes import LANES_BY_NAME, Lane
from alpacamq.model.records import Header, Record
from alpacamq.model.topics import INT32_MAX, INT64_MAX

from .errors import ConflictingInput, InvalidInput
from .parameters import Duration, Timestamp, epoch_ms

MAX_HEADERS = 1000

_BASE64_PATTERN = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
Base64Bytes = Annotated[bytes, Meta(extra_json_schema={"pattern": _BASE64_PATTERN})]
DurationMs = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Index = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Offset = Annotated[int, Meta(ge=0, le=INT64_MAX)]

_text = msgspec.json.Decoder(str).decode
_raw = msgspec.json.Decoder(Raw).decode


class Priority(StrEnum):
    """The priority lane of a message."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
    BACKGROUND = "background"


_PRIORITIES = tuple(Priority(lane.text) for lane in Lane)


class Values(StrEnum):
    """The format of keys and values: text, parsed JSON, or always base64."""

    TEXT = "text"
    JSON = "json"
    BASE64 = "base64"


class Base64(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that are not valid UTF-8."""

    base64: Base64Bytes


HeaderValue = str | Base64 | None
Headers = (
    Annotated[dict[str, HeaderValue], Meta(max_length=MAX_HEADERS)]
    | Annotated[list[tuple[str, HeaderValue]], Meta(max_length=MAX_HEADERS)]
)
# Other APIs have other limits.
StoredHeaders = dict[str, HeaderValue] | list[tuple[str, HeaderValue]]


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message to publish. `value` is any JSON; in a compacted topic, null deletes the key."""

    value: Annotated[Raw, Meta(description="text, null, or any other JSON")] | UnsetType = UNSET
    value_base64: Base64Bytes | UnsetType = UNSET
    key: Annotated[Raw, Meta(description="text, null, or any other JSON")] | UnsetType = UNSET
    key_base64: Base64Bytes | UnsetType = UNSET
    headers: (
        Annotated[Headers, Meta(description="by name; as a list of pairs if names repeat")] | UnsetType
    ) = UNSET
    partition: Index | UnsetType = UNSET
    timestamp: Timestamp | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    delay_ms: DurationMs | UnsetType = UNSET
    delay: Duration | UnsetType = UNSET
    deliver_at: Timestamp | UnsetType = UNSET

    @property
    def has_only_value(self) -> bool:
        """Whether nothing is given beside the value."""
        # Fields of different types are the same object only if neither is set.
        return (
            self.key is self.key_base64 is self.headers is self.partition is self.timestamp
            is self.priority is self.delay_ms is self.delay is self.deliver_at
        )  # fmt: skip

    def to_message(self, now_ms: int, at: str = "") -> Message:
        """Convert to a message of the publisher; `at` is the JSON pointer of the message."""
        if self.value is UNSET and self.value_base64 is UNSET:
            raise InvalidInput(f"{at}/value: missing; use null for a tombstone", f"{at}/value")
        value = _bytes(self.value, self.value_base64, at, "value")
        if self.has_only_value:
            return Message(value=value)
        return Message(
            value=value,
            key=_bytes(self.key, self.key_base64, at, "key"),
            headers=() if self.headers is UNSET else _headers(self.headers),
            partition=None if self.partition is UNSET else self.partition,
            timestamp_ms=(None if self.timestamp is UNSET else epoch_ms(self.timestamp)),
            lane=None if self.priority is UNSET else LANES_BY_NAME[self.priority],
            deliver_at_ms=self._due_ms(now_ms, at),
        )

    def _due_ms(self, now_ms: int, at: str) -> int | None:
        if self.delay_ms is self.delay is self.deliver_at:  # the common case: all unset
            return None
        given = [
            name
            for name, value in (
                ("delay_ms", self.delay_ms),
                ("delay", self.delay),
                ("deliver_at", self.deliver_at),
            )
            if value is not UNSET
        ]
        if len(given) > 1:
            raise ConflictingInput(f"{at}/{given[1]}: give one of {' and '.join(given)}", f"{at}/{given[1]}")
        if self.deliver_at is not UNSET:
            return epoch_ms(self.deliver_at)
        delay_ms = self.delay_ms if self.delay is UNSET else parse_duration(self.delay)
        assert delay_ms is not UNSET
        return min(now_ms + delay_ms, INT64_MAX)


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A stored message. Timestamps are in milliseconds since 1970."""

    partition: int
    offset: int
    timestamp: int
    key: Any | UnsetType = UNSET
    key_base64: Base64Bytes | UnsetType = UNSET
    value: Any | UnsetType = UNSET
    value_base64: Base64Bytes | UnsetType = UNSET
    headers: StoredHeaders | UnsetType = UNSET


class MessageSchema(msgspec.Struct, frozen=True, kw_only=True):
    """The schema that a key or value names, as a version of a subject."""

    subject: str
    version: int
    id: int
    type: str


class DecodedContent(msgspec.Struct, frozen=True, kw_only=True):
    """A key or value that names a schema: decoded, or with the reason why it is not."""

    schema: MessageSchema | UnsetType = UNSET
    value: Any | UnsetType = UNSET
    error: str | UnsetType = UNSET


class ReadMessage(StoredMessage, frozen=True, kw_only=True):
    """A message read from a topic; with `decode`, also what its key and value are by their schemas."""

    key_decoded: DecodedContent | UnsetType = UNSET
    value_decoded: DecodedContent | UnsetType = UNSET


class TopicMessage(StoredMessage, frozen=True, kw_only=True):
    """A message read from one of several topics."""

    topic: str


class LeasedMessage(TopicMessage, frozen=True, kw_only=True):
    """A leased message, to be settled by its receipt before the deadline."""

    receipt: str
    delivery_count: int
    priority: Priority
    deadline: int
    first_delivered: int


# JSON schema rules on combinations of fields.
NEW_MESSAGE_RULES: Mapping[str, object] = {
    "oneOf": [{"required": ["value"]}, {"required": ["value_base64"]}],
    "not": {
        "anyOf": [
            {"required": ["key", "key_base64"]},
            {"required": ["delay_ms", "delay"]},
            {"required": ["delay_ms", "deliver_at"]},
            {"required": ["delay", "deliver_at"]},
        ]
    },
}


def read_message(
    partition: int,
    record: Record,
    values: Values,
    *,
    key_decoded: DecodedContent | UnsetType = UNSET,
    value_decoded: DecodedContent | UnsetType = UNSET,
) -> ReadMessage:
    return ReadMessage(
        key_decoded=key_decoded, value_decoded=value_decoded, **_shown(partition, record, values)
    )


def topic_message(topic: str, partition: int, record: Record, values: Values) -> TopicMessage:
    return TopicMessage(topic=topic, **_shown(partition, record, values))


def leased_message(delivery: Delivery, values: Values) -> LeasedMessage:
    record = delivery.record
    if values is Values.TEXT and record.key is None and not record.headers and record.value is not None:
        try:
            return LeasedMessage(
                partition=delivery.partition,
                offset=record.offset,
                timestamp=record.timestamp_ms,
                key=None,
                value=record.value.decode(),
                topic=delivery.topic,
                receipt=delivery.receipt,
                delivery_count=delivery.delivery_count,
                priority=_PRIORITIES[delivery.lane],
                deadline=delivery.deadline_ms,
                first_delivered=delivery.first_delivered_ms,
            )
        except UnicodeDecodeError:
            pass  # shown as base64
    return LeasedMessage(
        topic=delivery.topic,
        receipt=delivery.receipt,
        delivery_count=delivery.delivery_count,
        priority=_PRIORITIES[delivery.lane],
        deadline=delivery.deadline_ms,
        first_delivered=delivery.first_delivered_ms,
        **_shown(delivery.partition, record, values),
    )


def _shown(partition: int, record: Record, values: Values) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
    }
    show_content(fields, record.key, record.value, record.headers, values)
    return fields


def show_content(
    fields: dict[str, Any],
    key: bytes | None,
    value: bytes | None,
    headers: tuple[Header, ...],
    values: Values,
) -> None:
    """Add the key, value and headers of a message to the fields of a response."""
    show = _SHOW[values]
    show(fields, "key", key)
    show(fields, "value", value)
    if headers:
        fields["headers"] = _shown_headers(headers)


def _show_text(fields: dict[str, Any], name: str, content: bytes | None) -> None:
    if content is None:
        fields[name] = None
        return
    try:
        fields[name] = content.decode()
    except UnicodeDecodeError:
        fields[name + "_base64"] = content


def _show_json(fields: dict[str, Any], name: str, content: bytes | None) -> None:
    _show_text(fields, name, content)
    if content and name in fields:
        try:
            fields[name] = _raw(content)
        except (msgspec.DecodeError, RecursionError):  # invalid JSON is returned as text
            return


def _show_base64(fields: dict[str, Any], name: str, content: bytes | None) -> None:
    fields[name if content is None else name + "_base64"] = content


_SHOW: Mapping[Values, Callable[[dict[str, Any], str, bytes | None], None]] = {
    Values.TEXT: _show_text,
    Values.JSON: _show_json,
    Values.BASE64: _show_base64,
}


def _bytes(given: Raw | UnsetType, in_base64: bytes | UnsetType, at: str, name: str) -> bytes | None:
    """Return a key or value; `at` is the JSON pointer of its message."""
    if given is UNSET:
        return None if in_base64 is UNSET else in_base64
    if in_base64 is not UNSET:
        raise ConflictingInput(f"{at}/{name}_base64: excludes {name}", f"{at}/{name}_base64")
    content = bytes(given)
    try:
        if content[0] == 0x22:  # a quotation mark
            return _text(content).encode()
        if content == b"null":
            return None
        content.decode()
        return msgspec.json.format(content, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidInput(f"{at}/{name}: not valid UTF-8", f"{at}/{name}") from None
    except RecursionError:
        raise InvalidInput(f"{at}/{name}: nested too deeply", f"{at}/{name}") from None


def _headers(headers: Headers) -> tuple[Header, ...]:
    pairs = headers.items() if isinstance(headers, dict) else headers
    return tuple(Header(name, _header_bytes(value)) for name, value in pairs)


def _header_bytes(value: HeaderValue) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else value.base64


def _shown_headers(headers: tuple[Header, ...]) -> StoredHeaders:
    pairs = [(name, _shown_header(value)) for name, value in headers]
    by_name = dict(pairs)
    return by_name if len(by_name) == len(pairs) else pairs


def _shown_header(value: bytes | None) -> HeaderValue:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Base64(value)
