"""Formats records as plain data for JSON and YAML and as cells of a table, and reads JSON back."""

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .cells import printable
from .output import timestamp_text
from .yaml import Plain

if TYPE_CHECKING:
    from alpacamq.model.ids import TopicPartition
    from alpacamq.model.records import Header, Record


def plain(
    place: "TopicPartition", record: "Record", decoded: Mapping[str, Plain] | None = None
) -> dict[str, Plain]:
    """Convert a record to plain data; bytes that are not UTF-8 go into a base64 field.

    `decoded` has the key or value where their schemas are known.
    """
    known = decoded or {}
    return {
        "topic": place.topic,
        "partition": place.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "time": timestamp_text(record.timestamp_ms),
        **({"key": known["key"]} if "key" in known else _bytes("key", record.key)),
        **({"value": known["value"]} if "value" in known else _bytes("value", record.value)),
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


def parse_json(line: bytes) -> "tuple[bytes | None, bytes | None, list[Header]]":
    """Return key, value and headers of a record as `plain` converts it; ValueError if it is not one.

    A value or key of another type than text is taken as its JSON. Position and time are ignored: a record
    gets new ones when it is written.
    """
    from alpacamq.model.records import Header

    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("it must be a JSON object")
    if not record.keys() & {"value", "value_base64"}:
        raise ValueError("it has neither value nor value_base64")
    headers = record.get("headers", [])
    if not isinstance(headers, list):
        raise ValueError("headers must be a list")
    parsed = []
    for header in headers:
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise ValueError("a header must have a name")
        parsed.append(Header(header["name"], _parse_bytes("value", header)))
    return _parse_bytes("key", record), _parse_bytes("value", record), parsed


def _parse_bytes(name: str, fields: dict[str, Any]) -> bytes | None:
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        if not isinstance(encoded, str):
            raise ValueError(f"{name}_base64 must be text")
        return base64.b64decode(encoded, validate=True)
    match fields.get(name):
        case None:
            return None
        case str(text):
            return text.encode()
        case other:
            return json.dumps(other, ensure_ascii=False, separators=(",", ":")).encode()
