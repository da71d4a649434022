"""`alpacactl produce`: lines from standard input become records."""

import argparse
import os
from collections.abc import Iterator
from select import select
from typing import TYPE_CHECKING

from .asking import Declined, index, pair, reach
from .output import Output, say

if TYPE_CHECKING:
    from alpacamq.client.producer import Written

MAX_LINE_BYTES = 64 << 20
CHUNK_BYTES = 64 << 10
STANDARD_INPUT = 0


def add_to(parser: argparse.ArgumentParser, _common: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write every line of standard input to a topic as one record, without its newline, and wait until "
        "all are acknowledged."
    )
    parser.add_argument("topic")
    parser.add_argument(
        "--key-separator", metavar="TEXT", help="what comes before it in a line is the key; lines need it"
    )
    parser.add_argument(
        "--header", type=pair, action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    parser.add_argument(
        "--partition", type=index, metavar="N", help="default: by key, as every Kafka client does it"
    )
    parser.set_defaults(run=_produce)


def _produce(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.producer import Producer
    from alpacamq.model.records import Header

    headers = [Header(name, value.encode(errors="surrogateescape")) for name, value in parsed.header]
    separator = (parsed.key_separator or "").encode(errors="surrogateescape")
    written: list[Written] = []
    with reach(parsed) as cluster:
        producer = Producer(cluster, parsed.topic, partition=parsed.partition)
        try:
            for number, line in _numbered_lines(STANDARD_INPUT):
                if line is None:
                    written += producer.flush()
                else:
                    key, value = _split(line, separator, number)
                    written += producer.add(key, value, headers)
        except Declined:
            # What stands before a line we cannot take was meant to be written.
            _report(parsed.topic, written + producer.flush(), output)
            raise
        _report(parsed.topic, written + producer.flush(), output)


def _numbered_lines(source: int) -> Iterator[tuple[int, bytes | None]]:
    """Lines without their ends, and None whenever no more is there for the moment."""
    parts: list[bytes] = []
    number = size = 0
    while chunk := os.read(source, CHUNK_BYTES):
        first, *rest = chunk.split(b"\n")
        parts.append(first)
        size += len(first)
        if size > MAX_LINE_BYTES:
            raise Declined(f"line {number + 1} is longer than {MAX_LINE_BYTES} bytes")
        for part in rest:
            number += 1
            yield number, b"".join(parts)
            parts, size = [part], len(part)
        if not select([source], [], [], 0)[0]:
            yield number, None
    if last := b"".join(parts):
        yield number + 1, last


def _split(line: bytes, separator: bytes, number: int) -> tuple[bytes | None, bytes]:
    if not separator:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        raise Declined(f"line {number} has no {separator.decode(errors='replace')!r} in it")
    return key, value


def _report(topic: str, written: "list[Written]", output: Output) -> None:
    total = sum(batch.count for batch in written)
    if output.form == "table":
        say(f"wrote {total} {'record' if total == 1 else 'records'} to {topic}")
        return
    batches = [
        {"partition": batch.partition, "first_offset": batch.first_offset, "count": batch.count}
        for batch in written
    ]
    output.show({"topic": topic, "written": total, "batches": batches})
