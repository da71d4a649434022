"""`alpacactl top`: shows a broker, its topics, groups and queues, live."""

import argparse

from alpacamq.cli.commands import duration
from alpacamq.cli.output import Output
from alpacamq.cli.parsing import Parser, UsageError

_EXAMPLES = (
    "alpacactl top",
    "alpacactl top --once --sort size --filter orders",
    "alpacactl top --once -o json",
)
_SORTS = ("rate", "size", "name")
_MIN_INTERVAL_MS = 100


def add_to(parser: argparse.ArgumentParser, _common: argparse.ArgumentParser) -> None:
    parser.description = (
        "Watch a broker: topics with rates and sizes, groups with lag and its trend, queues. Press ? for the "
        "keys. With -o json or yaml, a document is printed for every refresh, endlessly unless --once "
        "is given."
    )
    parser.add_argument("--once", action="store_true", help="print one frame, after two samples")
    parser.add_argument(
        "--interval", type=_interval, default=2000, metavar="TIME", help="refresh interval (default: 2s)"
    )
    parser.add_argument("--sort", choices=_SORTS, default="rate", help="largest first (default: rate)")
    parser.add_argument("--filter", default="", metavar="TEXT", help="only names that contain this")
    parser.set_defaults(run=_top)
    if isinstance(parser, Parser):
        parser.add_examples(_EXAMPLES)


def _interval(text: str) -> int:
    if (length_ms := duration(text)) < _MIN_INTERVAL_MS:
        raise argparse.ArgumentTypeError(f"{text!r} is shorter than {_MIN_INTERVAL_MS}ms")
    return length_ms


def _top(parsed: argparse.Namespace, output: Output) -> None:
    import sys

    from .terminal import print_snapshots, watch

    if parsed.once or output.form != "table":
        print_snapshots(parsed, output)
    elif sys.stdin.isatty() and sys.stdout.isatty():
        watch(parsed, output)
    else:
        raise UsageError("top needs a terminal; use --once or -o json elsewhere")
