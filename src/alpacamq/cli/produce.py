"""`alpacactl produce`: lines from standard input or a file become records."""

import argparse
import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from select import select
from typing import TYPE_CHECKING, Protocol

from alpacamq.model.lanes import LANES_BY_NAME

from .asking import duration, index, pair, reach, reach_http, topic_name
from .cells import size_text
from .output import Output, moment
from .parsing import Declined, Parser
from .position import parse_timestamp
from .progress import ProgressBar
from .yaml import Plain

if TYPE_CHECKING:
    from alpacamq.client.http.connection import HttpApi
    from alpacamq.client.http.delayed import Sent
    from alpacamq.client.kafka.cluster import Cluster
    from alpacamq.client.kafka.producer import Written
    from alpacamq.model.records import Header

MAX_LINE_BYTES = 64 << 20
CHUNK_BYTES = 64 << 10
STANDARD_INPUT = 0
_SHOWN_TRACES = 5
_EXAMPLES = (
    "echo tea | alpacactl produce orders",
    "echo 'alice:cake' | alpacactl produce orders --key-separator : --header table=12 --priority high",
    "alpacactl produce orders --file orders.txt -o json",
    "echo 'close the shop' | alpacactl produce orders --delay 8h",
    "echo coffee | alpacactl produce orders --trace",
)


def add_to(parser: argparse.ArgumentParser, _common: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write every line of standard input, or of a file, to a topic as one record, without its newline, "
        "and wait until all are acknowledged."
    )
    parser.add_argument("topic", type=topic_name)
    parser.add_argument("--file", metavar="PATH", help="default: standard input")
    parser.add_argument(
        "--key-separator", metavar="TEXT", help="what comes before it in a line is the key; lines need it"
    )
    parser.add_argument(
        "--header", type=pair, action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    parser.add_argument(
        "--partition", type=index, metavar="N", help="default: by key, as every Kafka client does it"
    )
    parser.add_argument(
        "--priority", choices=tuple(LANES_BY_NAME), help="lane for consumers of queues (default: normal)"
    )
    parser.add_argument(
        "--trace", action="store_true", help="have every record traced, and print the ids of the traces"
    )
    due = parser.add_mutually_exclusive_group()
    due.add_argument(
        "--delay", type=duration, metavar="TIME", help="let them appear only after this long, such as 15m"
    )
    due.add_argument(
        "--deliver-at", type=parse_timestamp, metavar="WHEN",
        help="let them appear only then (2026-01-31T12:00:00Z; without a zone it is UTC)",
    )  # fmt: skip
    parser.set_defaults(run=_produce)
    if isinstance(parser, Parser):
        parser.add_examples(_EXAMPLES)


class _Sink(Protocol):
    """Where records go."""

    def add(self, key: bytes | None, value: bytes) -> None: ...

    def flush(self) -> None: ...

    def report(self, output: Output) -> None:
        """Say what was written."""


def _produce(parsed: argparse.Namespace, output: Output) -> None:
    if parsed.delay is None and parsed.deliver_at is None:
        with reach(parsed) as cluster:
            _write(_Now(cluster, parsed), parsed, output)
    else:
        with reach_http(parsed) as api:
            _write(_Later(api, parsed), parsed, output)


def _write(sink: _Sink, parsed: argparse.Namespace, output: Output) -> None:
    separator = (parsed.key_separator or "").encode(errors="surrogateescape")
    try:
        with _source(parsed.file) as (source, total_bytes):
            bar = ProgressBar(f"writing to {parsed.topic}", total_bytes, size_text)
            done_bytes = 0
            try:
                for number, line in _numbered_lines(source):
                    if line is None:
                        sink.flush()
                    else:
                        sink.add(*_split(line, separator, number))
                        done_bytes += len(line) + 1
                        bar.at(done_bytes)
                sink.flush()
            finally:
                bar.end()
    except Declined:
        # What stands before a line we cannot take was meant to be written.
        with suppress(Declined):
            sink.flush()
        sink.report(output)
        raise
    sink.report(output)


@contextmanager
def _source(path: str | None) -> Iterator[tuple[int, int | None]]:
    """Where lines come from, and how many bytes there are if that is known."""
    opened = STANDARD_INPUT if path is None else _opened(path)
    try:
        status = os.fstat(opened)
        yield opened, status.st_size if stat.S_ISREG(status.st_mode) else None
    finally:
        if opened != STANDARD_INPUT:
            os.close(opened)


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        from alpacamq.client.errors import NotFound

        raise NotFound("file", path) from None


def _headers(parsed: argparse.Namespace) -> "list[Header]":
    from alpacamq.model.records import Header

    return [Header(name, value.encode(errors="surrogateescape")) for name, value in parsed.header]


class _Traces:
    """Begins a trace for every record, if that is wanted."""

    def __init__(self, parsed: argparse.Namespace) -> None:
        self._is_wanted: bool = parsed.trace
        self.ids: list[str] = []

    def headers(self) -> "list[Header]":
        """What the next record carries."""
        from alpacamq.model.records import Header

        if not self._is_wanted:
            return []
        self.ids.append(os.urandom(16).hex())
        # Version 00, the trace, a span, and the flag that says that it is to be followed.
        return [Header("traceparent", f"00-{self.ids[-1]}-{os.urandom(8).hex()}-01".encode())]

    def plain(self) -> dict[str, Plain]:
        """What a program is told of them."""
        ids: list[Plain] = [*self.ids]
        return {"traces": ids} if self._is_wanted else {}

    def told(self) -> str:
        """What a person is told of them."""
        lines = [f"\n  alpacactl trace {trace_id}" for trace_id in self.ids[:_SHOWN_TRACES]]
        if len(self.ids) > _SHOWN_TRACES:
            lines.append(f"\n  and {len(self.ids) - _SHOWN_TRACES} more; -o json has them all")
        return "".join(lines)


class _Now:
    """Records that are written at once."""

    def __init__(self, cluster: "Cluster", parsed: argparse.Namespace) -> None:
        from alpacamq.client.kafka.producer import Producer
        from alpacamq.model.headers import LANE
        from alpacamq.model.records import Header

        self._topic: str = parsed.topic
        self._headers = _headers(parsed)
        if parsed.priority is not None:
            self._headers.append(Header(LANE, parsed.priority.encode()))
        self._producer = Producer(cluster, parsed.topic, partition=parsed.partition)
        self._written: list[Written] = []
        self._traces = _Traces(parsed)

    def add(self, key: bytes | None, value: bytes) -> None:
        self._written += self._producer.add(key, value, [*self._headers, *self._traces.headers()])

    def flush(self) -> None:
        self._written += self._producer.flush()

    def report(self, output: Output) -> None:
        total = sum(batch.count for batch in self._written)
        batches = [
            {"partition": batch.partition, "first_offset": batch.first_offset, "count": batch.count}
            for batch in self._written
        ]
        output.done(
            {"topic": self._topic, "written": total, "batches": batches, **self._traces.plain()},
            f"wrote {total} {_records(total)} to {self._topic}{self._traces.told()}",
        )


class _Later:
    """Records that wait for their time."""

    def __init__(self, api: "HttpApi", parsed: argparse.Namespace) -> None:
        from alpacamq.client.http.delayed import DelayedProducer

        self._topic: str = parsed.topic
        due = {"delay_ms": parsed.delay} if parsed.delay is not None else {"deliver_at": parsed.deliver_at}
        self._producer = DelayedProducer(
            api,
            parsed.topic,
            due=due,
            partition=parsed.partition,
            lane=parsed.priority,
            headers=_headers(parsed),
        )
        self._traces = _Traces(parsed)
        self._at_once = 0
        # Numbers of the messages that wait, by partition and the time they are due.
        self._waiting: dict[tuple[int, int], list[int]] = defaultdict(list)

    def add(self, key: bytes | None, value: bytes) -> None:
        self._take(self._producer.add(key, value, self._traces.headers()))

    def flush(self) -> None:
        self._take(self._producer.flush())

    def _take(self, sent: "Sequence[Sent]") -> None:
        for each in sent:
            if each.delayed_id is not None and each.deliver_at is not None:
                self._waiting[each.partition, each.deliver_at].append(each.delayed_id)
            else:
                self._at_once += each.error is None
        if refused := [each.failure for each in sent if each.failure is not None]:
            raise Declined(f"{len(refused)} of {len(sent)} records were refused: {refused[0]}")

    def report(self, output: Output) -> None:
        waiting = sum(map(len, self._waiting.values()))
        batches = [
            {
                "partition": partition,
                "deliver_at": moment(due_ms),
                "ids": [f"{partition}:{number}" for number in numbers],
            }
            for (partition, due_ms), numbers in self._waiting.items()
        ]
        at_once = f", and wrote {self._at_once} whose time had come" if self._at_once else ""
        output.done(
            {
                "topic": self._topic,
                "written": self._at_once,
                "delayed": waiting,
                "batches": batches,
                **self._traces.plain(),
            },
            f"delayed {waiting} {_records(waiting)} for {self._topic}{at_once}{self._traces.told()}",
        )


def _records(number: int) -> str:
    return "record" if number == 1 else "records"


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
