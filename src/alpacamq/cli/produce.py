"""`alpacactl produce`: writes lines from standard input or a file as records."""

import argparse
import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from select import select
from typing import TYPE_CHECKING, Protocol

from alpacamq.model.lanes import LANES_BY_NAME

from .cells import size_text
from .commands import connect, connect_http, duration, index, pair, subject_name, topic_name
from .output import Output, timestamp_text
from .parsing import CommandError, Parser, UsageError
from .position import parse_timestamp
from .progress import ProgressBar
from .record_forms import parse_json
from .schema_records import RecordEncoder
from .yaml import Plain

if TYPE_CHECKING:
    from alpacamq.client.http.connection import HttpApi
    from alpacamq.client.http.messages import Sent
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
    "alpacactl consume orders --exit -o json | alpacactl produce invoices --json",
    "echo 'close the shop' | alpacactl produce orders --delay 8h",
    "echo coffee | alpacactl produce orders --trace",
    """echo '{"id": 1}' | alpacactl produce orders --schema orders-value""",
)


def add_to(parser: argparse.ArgumentParser, _common: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write every line of standard input, or of a file, to a topic as one record, without its newline, "
        "and wait until all are acknowledged."
    )
    parser.add_argument("topic", type=topic_name)
    parser.add_argument("--file", metavar="PATH", help="default: standard input")
    parser.add_argument(
        "--key-separator", metavar="TEXT", help="separates the key from the value; required in every line"
    )
    parser.add_argument("--record-key", metavar="TEXT", help="key of every record")
    parser.add_argument(
        "--json", action="store_true",
        help="every line is a record as printed by `alpacactl consume -o json`: key, value and headers",
    )  # fmt: skip
    parser.add_argument(
        "--schema", type=subject_name, metavar="SUBJECT|ID",
        help="lines are JSON, to encode with the latest schema of this subject, or that of this id",
    )  # fmt: skip
    parser.add_argument(
        "--key-schema", type=subject_name, metavar="SUBJECT|ID",
        help="the same for keys; needs --key-separator",
    )  # fmt: skip
    parser.add_argument(
        "--header", type=pair, action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    parser.add_argument("--partition", type=index, metavar="N", help="default: by key, like Kafka clients")
    parser.add_argument(
        "--priority", choices=tuple(LANES_BY_NAME), help="priority lane in queues (default: normal)"
    )
    parser.add_argument("--trace", action="store_true", help="trace every record, and print the trace ids")
    due = parser.add_mutually_exclusive_group()
    due.add_argument("--delay", type=duration, metavar="TIME", help="deliver after this time, such as 15m")
    due.add_argument(
        "--deliver-at", type=parse_timestamp, metavar="WHEN",
        help="deliver at this time (2026-01-31T12:00:00Z; UTC if no zone is given)",
    )  # fmt: skip
    parser.set_defaults(run=_produce)
    if isinstance(parser, Parser):
        parser.add_examples(_EXAMPLES)


class _Sink(Protocol):
    """Destination of records."""

    def add(self, key: bytes | None, value: bytes | None, headers: "Sequence[Header]" = ()) -> None: ...

    def flush(self) -> None: ...

    def report(self, output: Output) -> None:
        """Print what was written."""


def _produce(parsed: argparse.Namespace, output: Output) -> None:
    if parsed.record_key is not None and (parsed.json or parsed.key_separator is not None):
        raise UsageError("--record-key cannot be used with --json or --key-separator")
    if parsed.json and parsed.key_separator is not None:
        raise UsageError("--key-separator cannot be used with --json, which has the key in a field")
    if parsed.json and (parsed.schema or parsed.key_schema):
        raise UsageError("--schema and --key-schema cannot be used with --json")
    encoder = RecordEncoder(parsed)
    if parsed.delay is None and parsed.deliver_at is None:
        with connect(parsed) as cluster:
            _write(_KafkaSink(cluster, parsed), encoder, parsed, output)
    else:
        with connect_http(parsed) as api:
            _write(_DelayedSink(api, parsed), encoder, parsed, output)


def _write(sink: _Sink, encoder: RecordEncoder, parsed: argparse.Namespace, output: Output) -> None:
    separator = (parsed.key_separator or "").encode(errors="surrogateescape")
    key = None if parsed.record_key is None else parsed.record_key.encode(errors="surrogateescape")
    try:
        with _source(parsed.file) as (source, total_bytes):
            bar = ProgressBar(f"writing to {parsed.topic}", total_bytes, size_text)
            done_bytes = 0
            try:
                for number, line in _numbered_lines(source):
                    if line is None:
                        sink.flush()
                    else:
                        record = (
                            _json_record(line, number)
                            if parsed.json
                            else encoder.encoded(*_split(line, separator, number, key), number)
                        )
                        sink.add(*record)
                        done_bytes += len(line) + 1
                        bar.at(done_bytes)
                sink.flush()
            finally:
                bar.end()
    except CommandError as error:
        # Lines before an invalid one are still written.
        with suppress(CommandError):
            sink.flush()
        sink.report(output)
        if isinstance(error, _InvalidLine):
            raise CommandError(f"{error}; {error.lines_before()} written") from None
        raise
    sink.report(output)


class _InvalidLine(CommandError):
    """A line is not a record."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"line {number} {problem}")
        self._number = number

    def lines_before(self) -> str:
        """Return the lines before it as the subject of a sentence."""
        last = self._number - 1
        return f"lines 1 to {last} were" if last > 1 else "line 1 was" if last else "nothing was"


@contextmanager
def _source(path: str | None) -> Iterator[tuple[int, int | None]]:
    """Open the input; yield its descriptor and its size, if known."""
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
    """Starts a trace for every record with --trace."""

    def __init__(self, parsed: argparse.Namespace) -> None:
        self._is_wanted: bool = parsed.trace
        self.ids: list[str] = []

    def headers(self) -> "list[Header]":
        """Return the headers of the next record."""
        from alpacamq.model.records import Header

        if not self._is_wanted:
            return []
        self.ids.append(os.urandom(16).hex())
        # Version 00, trace id, span id, and the flag "sampled".
        return [Header("traceparent", f"00-{self.ids[-1]}-{os.urandom(8).hex()}-01".encode())]

    def plain(self) -> dict[str, Plain]:
        """Return the fields for JSON and YAML."""
        ids: list[Plain] = [*self.ids]
        return {"traces": ids} if self._is_wanted else {}

    def summary(self) -> str:
        """Return the text for the message."""
        lines = [f"\n  alpacactl trace {trace_id}" for trace_id in self.ids[:_SHOWN_TRACES]]
        if len(self.ids) > _SHOWN_TRACES:
            lines.append(f"\n  and {len(self.ids) - _SHOWN_TRACES} more; -o json has them all")
        return "".join(lines)


class _KafkaSink:
    """Writes records with a Kafka producer."""

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

    def add(self, key: bytes | None, value: bytes | None, headers: "Sequence[Header]" = ()) -> None:
        self._written += self._producer.add(key, value, [*headers, *self._headers, *self._traces.headers()])

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
            f"wrote {total} {_records(total)} to {self._topic}{self._traces.summary()}",
        )


class _DelayedSink:
    """Publishes delayed records over HTTP."""

    def __init__(self, api: "HttpApi", parsed: argparse.Namespace) -> None:
        from alpacamq.client.http.messages import DelayedProducer

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
        self._already_due = 0
        # Ids of delayed messages by partition and due time.
        self._waiting: dict[tuple[int, int], list[int]] = defaultdict(list)

    def add(self, key: bytes | None, value: bytes | None, headers: "Sequence[Header]" = ()) -> None:
        self._take(self._producer.add(key, value, [*headers, *self._traces.headers()]))

    def flush(self) -> None:
        self._take(self._producer.flush())

    def _take(self, sent: "Sequence[Sent]") -> None:
        for each in sent:
            if each.delayed_id is not None and each.deliver_at is not None:
                self._waiting[each.partition, each.deliver_at].append(each.delayed_id)
            else:
                self._already_due += each.error is None
        if refused := [each.failure for each in sent if each.failure is not None]:
            raise CommandError(f"{len(refused)} of {len(sent)} records were rejected: {refused[0]}")

    def report(self, output: Output) -> None:
        waiting = sum(map(len, self._waiting.values()))
        batches = [
            {
                "partition": partition,
                "deliver_at": timestamp_text(due_ms),
                "ids": [f"{partition}:{number}" for number in numbers],
            }
            for (partition, due_ms), numbers in self._waiting.items()
        ]
        at_once = f", and wrote {self._already_due} that were already due" if self._already_due else ""
        output.done(
            {
                "topic": self._topic,
                "written": self._already_due,
                "delayed": waiting,
                "batches": batches,
                **self._traces.plain(),
            },
            f"delayed {waiting} {_records(waiting)} for {self._topic}{at_once}{self._traces.summary()}",
        )


def _records(number: int) -> str:
    return "record" if number == 1 else "records"


def _numbered_lines(source: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield numbered lines without newlines, and None whenever no more input is available yet."""
    parts: list[bytes] = []
    number = size = 0
    while chunk := os.read(source, CHUNK_BYTES):
        first, *rest = chunk.split(b"\n")
        parts.append(first)
        size += len(first)
        if size > MAX_LINE_BYTES:
            raise CommandError(f"line {number + 1} is longer than {MAX_LINE_BYTES} bytes")
        for part in rest:
            number += 1
            yield number, b"".join(parts)
            parts, size = [part], len(part)
        if not select([source], [], [], 0)[0]:
            yield number, None
    if last := b"".join(parts):
        yield number + 1, last


def _json_record(line: bytes, number: int) -> "tuple[bytes | None, bytes | None, list[Header]]":
    try:
        return parse_json(line)
    except (ValueError, RecursionError) as error:
        raise _InvalidLine(number, f"is not a record in JSON: {error}") from None


def _split(
    line: bytes, separator: bytes, number: int, key: bytes | None = None
) -> tuple[bytes | None, bytes]:
    """Return the key of a line, or `key` if lines have none, and its value."""
    if not separator:
        return key, line
    before, found, value = line.partition(separator)
    if not found:
        shown = separator.decode(errors="replace")
        raise _InvalidLine(number, f"does not contain the key separator {shown!r}")
    return before, value
