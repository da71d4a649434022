"""Records as plain data for programs and as cells of a table for people."""

import base64
from typing import TYPE_CHECKING

from .cells import visible
from .output import moment
from .yaml import Plain

if TYPE_CHECKING:
    from alpacamq.model.ids import TopicPartition
    from alpacamq.model.records import Record


def plain(place: "TopicPartition", record: "Record") -> dict[str, Plain]:
    """A record as plain data; bytes that are no text get a field of their own, in base64."""
    return {
        "topic": place.topic,
        "partition": place.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "time": moment(record.timestamp_ms),
        **_bytes("key", record.key),
        **_bytes("value", record.value),
        "headers": [{"name": header.key, **_bytes("value", header.value)} for header in record.headers],
    }


def cell(data: bytes | None) -> str | None:
    """Bytes on one line: text as it is where it can be printed, else as a JSON string, else base64."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(data).decode()}"
    return visible(text)


def _bytes(name: str, data: bytes | None) -> dict[str, Plain]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
