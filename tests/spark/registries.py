"""Schemas in the registry of the broker under test, and records that name them."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import UUID

import fastavro
import httpx
from confluent_kafka import Producer

from alpacamq.registry.framing import framed
from alpacamq.registry.protobuf import from_descriptors
from tests.brokers import Broker

from .pipeline_files import NOON_MS


@dataclass(frozen=True)
class Registered:
    """A registered schema."""

    id: int
    guid: UUID
    schema: Any

    def avro(self, value: Any) -> bytes:
        """Encode an Avro value as Confluent's serializers do."""
        data = io.BytesIO()
        fastavro.schemaless_writer(data, fastavro.parse_schema(self.schema), value)
        return framed(self.id, data.getvalue())

    def json(self, value: Any) -> bytes:
        return framed(self.id, json.dumps(value).encode())

    def protobuf(self, url: str, value: Any, message: str) -> bytes:
        """Encode the JSON form of a Protobuf message."""
        text = httpx.get(f"{url}/schemas/ids/{self.id}", params={"format": "serialized"}).json()["schema"]
        return framed(self.id, from_descriptors(text).encode(value, message))


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    """Describe an Avro record; a tuple is a type and its default."""
    described = [
        {"name": field, "type": kind[0], "default": kind[1]}
        if isinstance(kind, tuple)
        else {"name": field, "type": kind}
        for field, kind in fields.items()
    ]
    return {"type": "record", "name": name, "fields": described}


def register(
    url: str,
    subject: str,
    schema: Any,
    kind: str = "AVRO",
    references: Sequence[Mapping[str, object]] = (),
) -> Registered:
    """Register a schema over HTTP."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    body = {"schema": text, "schemaType": kind, "references": list(references)}
    answer = httpx.post(f"{url}/subjects/{quote(subject, safe='')}/versions", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    guid = found.get("guid") or httpx.get(f"{url}/schemas/ids/{found['id']}").json()["guid"]
    return Registered(found["id"], UUID(guid), schema)


def allow_any_change(url: str, subject: str) -> None:
    """Let versions of a subject be incompatible."""
    answer = httpx.put(f"{url}/config/{quote(subject, safe='')}", json={"compatibility": "NONE"})
    assert answer.status_code == 200, answer.text


def send_bytes(
    broker: Broker,
    topic: str,
    values: Sequence[bytes | None],
    key: bytes | None = None,
    headers: Sequence[tuple[str, bytes]] = (),
) -> None:
    """Write values to the first partition with a client that is not ours."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20})
    for value in values:
        producer.produce(topic, value, key=key, partition=0, timestamp=NOON_MS, headers=list(headers))
    assert producer.flush(30) == 0
