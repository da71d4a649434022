"""`alpacactl consume`: prints records of a topic, byte for byte except on a terminal."""

import argparse
import sys
from typing import TYPE_CHECKING

from .cells import escape_controls
from .commands import connect, count, index, topic_name
from .output import Output, json_text
from .parsing import Parser
from .position import HELP, Earliest, Latest, locate, parse_position
from .record_forms import plain
from .schema_records import RecordDecoder
from .yaml import Plain, yaml

if TYPE_CHECKING:
    from alpacamq.client.kafka.reader import Delivery
    from alpacamq.model.message_filter import Filter


_EXAMPLES = (
    "alpacactl consume orders --exit",
    "alpacactl consume orders --from 1h --exit --key-separator :",
    "alpacactl consume orders --from earliest --max 3 -o json",
    "alpacactl consume orders --partition 0 --from 0 --exit > orders.txt",
    """alpacactl consume orders --exit --filter 'value.total > 100 and key == "alice"'""",
    "alpacactl consume payments --schema --exit",
)


def add_to(parser: argparse.ArgumentParser, _common: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the values of a topic's records, one per line; on a terminal, control characters "
        "are escaped. "
        "With -o json or yaml, print all fields of each record, with base64 for bytes that are not UTF-8."
    )
    parser.add_argument("topic", type=topic_name)
    parser.add_argument(
        "--from", dest="start", type=parse_position, metavar="WHERE",
        help=f"{HELP} (default: latest; earliest with --exit)",
    )  # fmt: skip
    parser.add_argument("--max", type=count, metavar="N", help="stop after this many records")
    parser.add_argument("--exit", action="store_true", help="stop at the current end of the topic")
    parser.add_argument("--partition", type=index, metavar="N", help="only this partition")
    parser.add_argument(
        "--filter", type=_filter, metavar="EXPRESSION",
        help="only records that match, such as 'value.total > 100'; over value, key, headers, partition, "
        "offset and timestamp",
    )  # fmt: skip
    parser.add_argument(
        "--isolation", choices=("committed", "uncommitted"), default="committed",
        help="committed skips records of open and aborted transactions (default: committed)",
    )  # fmt: skip
    parser.add_argument(
        "--key-separator", metavar="TEXT", help="print the key and this separator before the value"
    )
    parser.add_argument(
        "--schema", action="store_true", help="decode values by the schemas that they name, and print JSON"
    )
    parser.add_argument("--key-schema", action="store_true", help="the same for keys")
    parser.add_argument(
        "--delimiter", metavar="TEXT", default="\n", help="printed after each value (default: newline)"
    )
    parser.set_defaults(run=_consume)
    if isinstance(parser, Parser):
        parser.add_examples(_EXAMPLES)


def _filter(text: str) -> "Filter":
    """Parse a filter expression."""
    from alpacamq.model.message_filter import Filter, InvalidFilter

    try:
        return Filter(text)
    except InvalidFilter as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _consume(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.errors import NotFound
    from alpacamq.client.kafka.offsets import Isolation, extents
    from alpacamq.client.kafka.reader import Reader
    from alpacamq.client.kafka.topics import find_topic

    isolation = Isolation[parsed.isolation.upper()]
    start = parsed.start or (Earliest() if parsed.exit else Latest())
    decoder = RecordDecoder(parsed)
    wanted: Filter | None = parsed.filter
    show = _Printer(parsed, output.form, decoder)
    with connect(parsed) as cluster:
        places = find_topic(cluster, parsed.topic).all_partitions()
        if parsed.partition is not None:
            places = [place for place in places if place.partition == parsed.partition]
            if not places:
                raise NotFound("partition", f"{parsed.topic}-{parsed.partition}")
        spans = extents(cluster, places, isolation)
        reader = Reader(cluster, locate(cluster, start, spans), isolation)
        shown = 0
        while True:
            for place, span in spans.items():
                if parsed.exit and reader.positions.get(place, span.end) >= span.end:
                    reader.drop(place)
            if not reader.positions:
                return decoder.finish()
            for delivery in reader.read():
                if parsed.exit and delivery.record.offset >= spans[delivery.partition].end:
                    continue
                if wanted is not None and not wanted.matches(delivery.partition.partition, delivery.record):
                    continue
                show(delivery)
                shown += 1
                if shown == parsed.max:
                    return decoder.finish()
            sys.stdout.flush()


class _Printer:
    """Prints records in the chosen format."""

    def __init__(self, parsed: argparse.Namespace, form: str, decoder: RecordDecoder) -> None:
        self._form = form
        self._decoder = decoder
        # Otherwise record contents could control the terminal.
        self._is_terminal = sys.stdout.isatty()
        self._delimiter = parsed.delimiter.encode(errors="surrogateescape")
        self._separator = (
            None if parsed.key_separator is None else parsed.key_separator.encode(errors="surrogateescape")
        )

    def __call__(self, delivery: "Delivery") -> None:
        decoded = self._decoder.decoded(delivery)
        if decoded is None:
            return
        match self._form:
            case "json":
                print(json_text(plain(*delivery, decoded)))
            case "yaml":
                print(f"---\n{yaml(plain(*delivery, decoded))}")
            case _:
                self._raw(delivery, decoded)

    def _raw(self, delivery: "Delivery", decoded: dict[str, Plain]) -> None:
        out = sys.stdout.buffer
        key, value = delivery.record.key, delivery.record.value
        if self._separator is not None:
            out.write(self._shown(_json(decoded["key"]) if "key" in decoded else key) + self._separator)
        out.write(self._shown(_json(decoded["value"]) if "value" in decoded else value) + self._delimiter)

    def _shown(self, data: bytes | None) -> bytes:
        if not data or not self._is_terminal:
            return data or b""
        return escape_controls(data.decode(errors="backslashreplace")).encode()


def _json(value: Plain) -> bytes:
    return json_text(value).encode()
