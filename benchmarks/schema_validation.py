"""How many records a second does a topic accept that checks them by their schemas, and what do others notice?

Batches of 1,000 records of about 100 bytes, prepared once and sent on 4 connections with 2 in flight, to a
topic without validation, and to topics that check ids, or all of the data. Meanwhile another client sends
one record at a time to another topic and measures its acknowledgements. Whether a topic without validation
costs more than before is what `python -m benchmarks.earlier_version` measures.
"""

import json
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from urllib.request import Request, urlopen

from alpacamq.model.records import Record, write_batch
from alpacamq.registry.framing import framed

from . import topics, wire
from .clients import percentile
from .report import OURS, Floor, Report
from .servers import AlpacaMQ, Server
from .session import Session
from .usage import Meter, Usage
from .writers import Acknowledged, one_in_flight, pipelined

RECORDS = 1000
CONNECTIONS = 4
DEPTH = 2
PARTITIONS = 4
OTHER = "other"
RATE = Floor(at_least=150_000)
LATENCY = Floor(at_most=10.0)

_FIELDS = ("customer", "item", "note")
_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, *({"name": each, "type": "string"} for each in _FIELDS)],
}
_JSON = {
    "type": "object",
    "properties": {"id": {"type": "integer"}} | {each: {"type": "string"} for each in _FIELDS},
    "required": ["id", *_FIELDS],
}
_TEXTS = [name.ljust(26, "x") for name in _FIELDS]
_AVRO_VALUE = b"\x02" + b"".join(bytes([2 * len(text)]) + text.encode() for text in _TEXTS)
_JSON_VALUE = json.dumps({"id": 1} | dict(zip(_FIELDS, (text[:18] for text in _TEXTS), strict=True))).encode()
_STRINGS = " ".join(f"string {name} = {number};" for number, name in enumerate(_FIELDS, 2))
_PROTOBUF = f'syntax = "proto3"; message Order {{ int64 id = 1; {_STRINGS} }}'
# After the index of the message; each field has a tag, and a string its length.
_PROTOBUF_VALUE = b"\0\x08\x01" + b"".join(
    bytes([number << 3 | 2, len(text)]) + text.encode() for number, text in enumerate(_TEXTS, 2)
)
# The text of a schema, and a value.
LANGUAGES: Mapping[str, tuple[str, bytes]] = {
    "AVRO": (json.dumps(_AVRO), _AVRO_VALUE),
    "JSON": (json.dumps(_JSON), _JSON_VALUE),
    "PROTOBUF": (_PROTOBUF, _PROTOBUF_VALUE),
}


def run(session: Session, report: Report) -> None:
    with session.server(AlpacaMQ(OURS)) as server:
        topics.create(server.address, OTHER, 1)
        for language, (schema, value) in LANGUAGES.items():
            for level in ("none", "id", "full"):
                topic = f"{language.lower()}-{level}"
                schema_id = _register(server, f"{topic}-value", language, schema)
                topics.create(server.address, topic, PARTITIONS, {"schema.validation": level})
                samples, others, usages = [], [], []
                for number in range(session.repeats + 1):
                    session.settle()
                    with Meter(server.pid) as meter:
                        done, other = _produce(session, server, topic, framed(schema_id, value))
                    if number:  # the first one starts processes
                        samples.append(done.per_second * RECORDS)
                        others.append(percentile(other.latencies_ns, 0.99) / 1e6)
                        usages.append(meter.usage)
                _report(report, language, level, samples, others, usages)


def _produce(session: Session, server: Server, topic: str, value: bytes) -> tuple[Acknowledged, Acknowledged]:
    now_ms = time.time_ns() // 1_000_000
    batch = bytes(write_batch([Record(at, now_ms, None, value) for at in range(RECORDS)]))
    requests = b"".join(wire.produce_request(topic, index, batch, acks=1) for index in range(PARTITIONS))
    response_bytes = wire.produce_response_bytes(topic) * PARTITIONS
    seconds = session.scaled(5, 2)
    before = topics.record_count(server.address, topic, PARTITIONS)
    with ProcessPoolExecutor(1) as processes:
        other = processes.submit(
            one_in_flight, server.address, OTHER, connections=1, size=100, seconds=seconds
        )
        done = pipelined(
            server.address, requests, response_bytes, connections=CONNECTIONS, depth=DEPTH, seconds=seconds
        )
        written = topics.record_count(server.address, topic, PARTITIONS) - before
        sent = done.requests * PARTITIONS * RECORDS
        assert written == sent, f"{written} of {sent} records were written to {topic}"
        counted = Acknowledged(
            requests=done.requests * PARTITIONS, wall_s=done.wall_s, latencies_ns=done.latencies_ns
        )
        return counted, other.result()


def _register(server: Server, subject: str, language: str, schema: str) -> int:
    body = json.dumps({"schemaType": language, "schema": schema}).encode()
    request = Request(
        f"http://{server.addresses['registry']}/subjects/{subject}/versions",
        body,
        {"Content-Type": "application/json"},
    )
    with urlopen(request) as answer:  # noqa: S310
        found: int = json.load(answer)["id"]
        return found


def _report(
    report: Report, language: str, level: str, samples: list[float], others: list[float], usages: list[Usage]
) -> None:
    case = f"{language}, schema.validation={level}"
    is_promised = level == "full"
    report(
        case=case,
        server=OURS,
        unit="records/s",
        samples=samples,
        usages=usages,
        floor=RATE if is_promised else None,
    )
    report(
        case=f"{case}, p99 of another topic",
        server=OURS,
        unit="ms",
        samples=others,
        floor=LATENCY if is_promised else None,
    )
