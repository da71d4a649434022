"""The entry of `alpacactl`: nouns, options that every verb has, exit codes.

A noun's module is imported when its name is on the command line, and the client when a verb runs, so
that `--help` is quick.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import NoReturn, Protocol

from alpacamq import __version__
from alpacamq.model.errors import AlpacaError

from .asking import Assumed, WrongUsage
from .output import FORMATS, Output, say

DEFAULT_BROKER = "127.0.0.1:9092"
BROKER_VARIABLE = "ALPACACTL_BROKER"
DEFAULT_HTTP = "127.0.0.1:8080"
HTTP_VARIABLE = "ALPACACTL_HTTP"

FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOT_FOUND = 4
INTERRUPTED = 130

NOUNS: Mapping[str, str] = {
    "cluster": "the brokers there are",
    "topics": "list, describe, create, alter, widen and delete topics",
    "groups": "list, describe and delete consumer groups, see their lag, reset their offsets",
    "transactions": "list and describe transactional ids",
    "produce": "write lines from standard input to a topic",
    "consume": "read a topic",
    "queue": "receive and settle messages of a topic as a queue, and look after queues",
    "dlq": "see dead letters and move them back",
    "delayed": "list and cancel messages that wait for their time",
    "pipeline": "run, list, validate and watch data pipelines on Spark",
}
# Nouns that are asked over HTTP instead of Kafka's protocol; produce uses both.
_OVER_HTTP = frozenset({"queue", "dlq", "delayed"})
_EPILOG = (
    "Every noun and verb has its own --help. Exit codes: 0 ok, 1 refused, 2 wrong usage, "
    "3 broker unreachable, 4 no such topic, group, id or file."
)


class Noun(Protocol):
    """What the module of a noun offers."""

    def add_to(self, parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
        """Declare its verbs and options, each with the function that runs it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parsed = parser_of(given).parse_args(given)
    # Data has one encoding whatever the terminal's; what cannot be said in it must not end the command.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        parsed.run(parsed, Output(parsed.output))
        sys.stdout.flush()
    except AlpacaError as error:
        say(f"alpacactl: {error}")
        return _exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has seen enough. Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UnicodeEncodeError:
        say("alpacactl: names on the command line have to be UTF-8")
        return USAGE
    except OSError as error:
        say(f"alpacactl: {error}")
        return FAILED
    return 0


def _exit_code(error: AlpacaError) -> int:
    from alpacamq.client.errors import NotFound, Unreachable

    match error:
        case Unreachable():
            return UNREACHABLE
        case NotFound():
            return NOT_FOUND
        case WrongUsage():
            return USAGE
        case _:
            return FAILED


class _Parser(argparse.ArgumentParser):
    """Says how to get help instead of printing all of the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def parser_of(given: Sequence[str]) -> argparse.ArgumentParser:
    """What reads this command line: only the nouns that are on it know their verbs."""
    parser = _Parser(
        prog="alpacactl",
        description="See and steer an AlpacaMQ broker, or any broker that speaks Kafka's protocol.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"alpacactl {__version__}")
    # What is given behind the verb counts; what is given before it, otherwise.
    _add_broker(parser, Assumed(os.environ.get(BROKER_VARIABLE) or DEFAULT_BROKER))
    _add_http(parser, os.environ.get(HTTP_VARIABLE) or DEFAULT_HTTP)
    _add_output(parser, FORMATS[0])
    nouns = parser.add_subparsers(metavar="NOUN", required=True)
    for name, summary in NOUNS.items():
        common = _Parser(add_help=False)
        if name not in _OVER_HTTP:
            _add_broker(common, argparse.SUPPRESS)
        if name in _OVER_HTTP or name == "produce":
            _add_http(common, argparse.SUPPRESS)
        _add_output(common, argparse.SUPPRESS)
        is_verb = name in ("produce", "consume")
        options = [common] if is_verb else []
        noun = nouns.add_parser(name, help=summary, description=summary, parents=options)
        if name in given:
            module: Noun = import_module(f".{name}", __package__)
            module.add_to(noun, common)
    return parser


def _add_broker(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--broker",
        metavar="HOST:PORT",
        default=default,
        help=f"broker to ask (default: ${BROKER_VARIABLE} or {DEFAULT_BROKER})",
    )


def _add_http(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        default=default,
        help=f"HTTP address of the broker (default: ${HTTP_VARIABLE} or {DEFAULT_HTTP})",
    )


def _add_output(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "-o", "--output", choices=FORMATS, default=default, help="how results are printed (default: table)"
    )


if __name__ == "__main__":
    sys.exit(main())
