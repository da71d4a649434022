"""Dead-letter records and their origin headers."""

from alpacamq.model.headers import (
    DEAD_LETTER_HEADERS,
    DEAD_LETTER_REASON,
    DEAD_LETTERED_AT,
    DELIVERY_COUNT,
    ORIGIN_GROUP,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP,
    ORIGIN_TOPIC,
)
from alpacamq.model.records import Header, Record

from .messages import Move


def dead_letter(record: Record, move: Move, now_ms: int) -> Record:
    """Return the record with headers for its origin and the reason."""
    origin = {
        ORIGIN_TOPIC: move.queue.topic,
        ORIGIN_PARTITION: str(move.partition),
        ORIGIN_OFFSET: str(record.offset),
        ORIGIN_TIMESTAMP: str(record.timestamp_ms),
        ORIGIN_GROUP: move.queue.group,
        DELIVERY_COUNT: str(move.delivery_count),
        DEAD_LETTER_REASON: move.reason,
        DEAD_LETTERED_AT: str(now_ms),
    }
    headers = tuple(Header(name, text.encode()) for name, text in origin.items())
    return record._replace(timestamp_ms=now_ms, headers=_without_origin(record) + headers)


def restored(record: Record, now_ms: int) -> Record:
    """Return a dead letter without its origin headers and with a new timestamp."""
    return record._replace(timestamp_ms=now_ms, headers=_without_origin(record))


def origin(record: Record) -> tuple[str | None, int | None]:
    """Return the topic and partition in the origin headers."""
    topic = partition = None
    for name, value in record.headers:
        if name == ORIGIN_TOPIC and value:
            topic = value.decode(errors="replace")
        elif name == ORIGIN_PARTITION and value and value.isdigit() and len(value) < 10:
            partition = int(value)
    return topic, partition


def _without_origin(record: Record) -> tuple[Header, ...]:
    return tuple(header for header in record.headers if header.key not in DEAD_LETTER_HEADERS)
