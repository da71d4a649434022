"""Declares the nouns of `alpacactl` and the options that every verb has.

The module of a noun is imported when its name is on the command line.
"""

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Protocol

from alpacamq import __version__

from .output import COLORS, FORMATS
from .parsing import Parser
from .target import ADDRESS_VARIABLE, BROKER_VARIABLE, DEFAULT_BROKER, DEFAULT_HTTP, HTTP_VARIABLE

NOUNS: Mapping[str, str] = {
    "topics": "list, describe, create, alter, widen and delete topics",
    "produce": "write lines from standard input or a file to a topic",
    "consume": "read a topic",
    "groups": "list, describe and delete consumer groups, see their lag, reset their offsets",
    "queue": "receive and settle messages of a topic as a queue, and look after queues",
    "dlq": "see dead letters and move them back",
    "delayed": "list and cancel messages that wait for their time",
    "trace": "see what happened to a message, step by step",
    "transactions": "list and describe transactional ids",
    "cluster": "the brokers there are, and how they are",
    "top": "watch topics, groups and queues live",
    "bench": "measure produce, consume, queues and latency",
    "pipeline": "run, list, validate and watch data pipelines on Spark",
    "config": "name brokers, and choose which one commands are about",
    "completion": "print what completes commands in a shell",
}
# As others call them. They are not in the help.
ALIASES: Mapping[str, str] = {
    "topic": "topics",
    "group": "groups",
    "queues": "queue",
    "transaction": "transactions",
    "pipelines": "pipeline",
    "context": "config",
    "traces": "trace",
}
# Nouns that are verbs.
VERBS = frozenset({"produce", "consume", "trace", "top", "completion"})
_EPILOG = (
    "Every noun and verb has its own --help. Exit codes: 0 ok, 1 refused, 2 wrong usage, "
    "3 broker unreachable, 4 no such topic, group, id or file."
)
_EXAMPLES = (
    "alpacactl topics create orders --partitions 3",
    "echo tea | alpacactl produce orders",
    "alpacactl consume orders --exit",
)


class Noun(Protocol):
    """What the module of a noun offers."""

    def add_to(self, parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
        """Declare its verbs and options, each with the function that runs it."""


def parser_of(given: Sequence[str]) -> Parser:
    """What reads this command line: only the nouns that are on it know their verbs."""
    parser = Parser(
        prog="alpacactl",
        description="See and steer an AlpacaMQ broker, or any broker that speaks Kafka's protocol.",
        epilog=_EPILOG,
    )
    parser.add_examples(_EXAMPLES)
    parser.add_argument("--version", action="version", version=f"alpacactl {__version__}")
    # What is given behind the verb counts; what is given before it, otherwise.
    _add_common(parser, broker=None, http=None, context=None, output=FORMATS[0], color=COLORS[0])
    nouns = parser.add_subparsers(metavar="NOUN", required=True)
    for name, summary in NOUNS.items():
        _add_noun(nouns.add_parser(name, help=summary, parents=_options_of(name)), name, given)
    for alias, name in ALIASES.items():
        if alias in given:
            noun = nouns.add_parser(alias, prog=f"alpacactl {name}", parents=_options_of(name))
            _add_noun(noun, name, [name])
    return parser


def _options_of(name: str) -> list[Parser]:
    return [_common()] if name in VERBS else []


def _add_noun(parser: argparse.ArgumentParser, name: str, given: Sequence[str]) -> None:
    parser.description = NOUNS[name]
    parser.set_defaults(verb=parser)
    if name in given:
        module: Noun = import_module(f".{name}", __package__)
        module.add_to(parser, _common())


def _common() -> Parser:
    """The options of every verb; what is not given there is left as it was given before."""
    common = Parser(add_help=False)
    names = ("broker", "http", "context", "output", "color")
    _add_common(common, **dict.fromkeys(names, argparse.SUPPRESS))
    return common


def _add_common(parser: argparse.ArgumentParser, **defaults: str | None) -> None:
    options = parser.add_argument_group("options of every command")
    options.add_argument(
        "--http",
        metavar="HOST:PORT",
        default=defaults["http"],
        help="HTTP address of the broker "
        f"(${HTTP_VARIABLE}, ${ADDRESS_VARIABLE}, the context, {DEFAULT_HTTP})",
    )
    options.add_argument(
        "--broker",
        metavar="HOST:PORT",
        default=defaults["broker"],
        help="its address for Kafka's protocol "
        f"(${BROKER_VARIABLE}, the context, as it says over HTTP, {DEFAULT_BROKER})",
    )
    options.add_argument(
        "--context", metavar="NAME", default=defaults["context"], help="the broker of this name; see config"
    )
    options.add_argument(
        "-o", "--output", choices=FORMATS, default=defaults["output"], help="how results are printed"
    )
    options.add_argument(
        "--color", choices=COLORS, default=defaults["color"], help="whether tables are coloured"
    )
