"""Formats records as plain data for JSON and YAML and as cells of a table."""

import base64
from typing import TYPE_CHECKING

from .cells import printable
from .output import timestamp_text
from .yaml import Plain

if TYPE_CHECKING:
    from alpacamq.model.ids import TopicPartition
    from alpacamq.model.records import Record


def plain(place: "TopicPartition", record: "Record") -> dict[str, Plain]:
    """Convert a record to plain data; bytes that are not UTF-8 go into a base64 field."""
    return {
        "topic": place.topic,
        "partition": place.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "time": timestamp_text(record.timestamp_ms),
        **_bytes("key", record.key),
        **_bytes("value", record.value),
        "headers": [{"name": header.key, **_bytes("value", header.value)} for header in record.headers],
    }


def cell(data: bytes | None) -> str | None:
    """Format bytes on one line: as printable text, otherwise as a JSON string, otherwise base64."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(data).decode()}"
    return printable(text)


def _bytes(name: str, data: bytes | None) -> dict[str, Plain]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
